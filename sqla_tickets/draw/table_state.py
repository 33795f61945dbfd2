"""The state of one sequence's table on one server, as this process knows it, and the fence."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

from ..concurrency import threading
from ..errors import TicketsExhausted
from ..tables.new_table import largest_ticket
from .circuit_breaker import CircuitBreaker
from .timing import TIMING

if TYPE_CHECKING:
    from ..connect.identity import Identity
    from ..errors import TicketError
    from ..tables.layouts import Layout
    from ..tables.metadata import TableMetadata

#: A table's state in this process: quarantined, or its breaker's; half-open is reported as open.
TableState = Literal["closed", "open", "quarantined"]


class PeerServer(Protocol):
    """Another server of the pool, as a table knows it."""

    @property
    def returns(self) -> int:
        """How often it has answered again after a failure."""
        ...


class Inspected(NamedTuple):
    """The result of a table's inspection, for comparison with the next one.

    Attributes:
        layout: its layout.
        text: its definition.
        identity: the run of the server at that time.
    """

    layout: Layout
    text: str
    identity: Identity


class MissingMark(NamedTuple):
    """A peer whose mark could not be read when a table's peers were asked.

    Attributes:
        returns: how often the peer had come back by then.
        draws: how many draws the table had answered before.
        generation: the generation of the table's server when they were last asked.
    """

    returns: int
    draws: int
    generation: int


class ToldMark(NamedTuple):
    """A mark as a peer reported it.

    Attributes:
        number: the mark; 0 for none.
        generation: the generation of the table's server when the peer was asked.
        identity: the identity of the server that answered; None where it does not show one.
    """

    number: int
    generation: int
    identity: Identity | None


class Joined(NamedTuple):
    """Where servers with a larger stride began, while clients with this one still draw.

    Attributes:
        above: they issue numbers of every class above this one.
        stride: their stride.
    """

    above: int
    stride: int


class RefusedTickets(Exception):
    """Raised for tickets that a table must not issue.

    Attributes:
        why: ``residue``, ``regression``, ``repeated`` or ``exhausted``.
        found: the ticket.
        last: what it was compared with.
    """

    def __init__(
        self, why: Literal["residue", "regression", "repeated", "exhausted"], found: int, last: int
    ) -> None:
        super().__init__(why, found, last)
        self.why, self.found, self.last = why, found, last


class TicketTable:
    """One sequence's table on one server, as this process has seen it.

    Attributes:
        name: the sequence's name.
        stride: how many numbers apart two tickets of it are.
        offset: its residue class.
        layout: its layout; None until it was inspected, and after it changed.
        metadata: its numbering, from its comment; None for a foreign table.
        largest: the largest ticket that it can issue.
        joined: where servers with a larger stride began; None if none has.
        ends_at: the largest ticket that this process may return: ``largest``, or where others joined.
        high_water: the largest ticket that this process has received, or the largest mark that it has read from the
            server's peers; 0 before the first.
        largest_shown: the largest number that its row has shown in this run of its server. InnoDB shows commits before
            they are on disk, so a crash may undo one whose ticket no client has received.
        received: the last blocks that this process has received. The high water alone does not show that two
            concurrent draws got the same tickets.
        largest_mark: the largest mark of the server's peers.
        lead_limit: a ticket above it waits for `Peers.bound_lead` before it is returned.
        write_due: when the table's next marks are due, by ``time.monotonic()``.
        last_shown: the number that its row had at the last inspection.
        inspected: the result of the last inspection; None if it cannot be compared, or the peers were asked since.
        generation: the server's generation in which its peers were asked.
        told_marks: the latest credible mark of each peer.
        missing_marks: the peers that have not reported their marks in this generation.
        doubtful_marks: the marks, by peer, that are too high to be believed at once.
        evidence: the numbers that servers show, by which doubtful marks are judged.
        refuted_marks: the marks that cannot be true, by peer.
        has_reported_no_mark: whether the log says that no peer reported a mark.
        peers_asked_at: when the peers were last asked, by ``time.monotonic()``.
        draws: how many draws were answered.
        errors: how many failed.
        answered: when it last answered a draw, by ``time.monotonic()``.
        breaker: the circuit breaker for failures of this table alone.
        quarantine: the integrity error for which this process no longer draws from it, whatever its breaker's state,
            until an operator ends the quarantine; None if there is none.
    """

    def __init__(self, name: str, stride: int, offset: int) -> None:
        self.name, self.stride, self.offset = name, stride, offset
        self.layout: Layout | None = None
        self.inspected: Inspected | None = None
        self.metadata: TableMetadata | None = None
        self.largest = self.ends_at = largest_ticket(64)
        self.joined: Joined | None = None
        self.high_water = self.largest_shown = self.largest_mark = self.last_shown = 0
        self.lead_limit = 0
        self.received: deque[range] = deque(maxlen=TIMING.remembered_blocks)
        self.generation = 0
        self.told_marks: dict[PeerServer, ToldMark] = {}
        self.missing_marks: dict[PeerServer, MissingMark] = {}
        self.doubtful_marks: dict[PeerServer, ToldMark] = {}
        self.evidence: dict[PeerServer, list[int | None]] = {}
        self.refuted_marks: dict[PeerServer, int] = {}
        self.has_reported_no_mark = False
        self.peers_asked_at = self.write_due = 0.0
        self.draws = self.errors = 0
        self.answered = 0.0
        self.breaker = CircuitBreaker()
        self.quarantine: TicketError | None = None
        self._lock = threading.Lock()

    @property
    def state(self) -> TableState:
        """Whether this process draws from it."""
        if self.quarantine is not None:
            return "quarantined"
        return "closed" if self.breaker.reason is None else "open"

    @property
    def reason(self) -> TicketError | None:
        """Why this process does not draw from it."""
        return self.quarantine or self.breaker.reason

    def release(self) -> None:
        """End the quarantine: an operator has repaired the table."""
        self.quarantine = None
        self.breaker.record_success()

    @property
    def fence(self) -> int:
        """The number that the next ticket must be above."""
        return max(self.high_water, self.largest_shown)

    @property
    def has_mark_to_read(self) -> bool:
        """Whether a peer whose mark is missing has answered since the peers were asked."""
        return any(
            peer.returns != missing.returns for peer, missing in list(self.missing_marks.items())
        )

    def record_largest(self, largest: int) -> None:
        """Record the largest ticket that it can issue."""
        with self._lock:
            self.largest = largest
            self._bound()

    def record_joined(self, joined: Joined | None) -> bool:
        """Record where servers with a larger stride began; returns whether tickets beyond may be buffered."""
        with self._lock:
            is_news, self.joined = joined != self.joined, joined
            self._bound()
            return is_news and any(block[-1] > self.ends_at for block in self.received)

    def _bound(self) -> None:
        self.ends_at = min(self.largest, self.joined.above if self.joined else self.largest)

    def record_shown(self, number: int) -> None:
        """Record the number that its row shows."""
        with self._lock:
            self.last_shown = number
            self.largest_shown = max(self.largest_shown, number)

    def observe_mark(self, mark: int) -> None:
        """Observe a peer's mark: the next draws must be above it."""
        with self._lock:
            self.largest_mark = max(self.largest_mark, mark)
            self.high_water = max(self.high_water, mark)

    def begin_to_read_marks(self, peers: Iterable[PeerServer], generation: int) -> None:
        """Count the peers' marks as missing before they are read in this generation of the table's server."""
        if self.generation != generation:
            self.refuted_marks = {}
        with self._lock:
            for peer in peers:
                missing = self.missing_marks.get(peer) or MissingMark(peer.returns, self.draws, 0)
                newest = max(missing.generation, generation)
                self.missing_marks[peer] = missing._replace(generation=newest)

    def end_to_read_marks(self, returns: Mapping[PeerServer, int]) -> None:
        """Leave missing marks to be read when their peers come back; until this call, other draws read them, too.

        Args:
            returns: how often each peer had come back when the reading began.
        """
        with self._lock:
            for peer, missing in list(self.missing_marks.items()):
                if missing.returns != returns[peer]:
                    self.missing_marks[peer] = missing._replace(returns=returns[peer])

    def record_mark(self, peer: PeerServer, mark: ToldMark) -> bool:
        """Record a peer's mark; returns whether tickets were drawn before without it.

        A late answer to a read of an earlier generation may be lower than what the peer has stored since.
        """
        self.observe_mark(mark.number)
        with self._lock:
            before = self.told_marks.get(peer)
            if before is None or before.generation <= mark.generation:
                self.told_marks[peer] = mark
            self.has_reported_no_mark = False
            self.refuted_marks.pop(peer, None)
            missing = self.missing_marks.get(peer)
            if missing is None or mark.generation < missing.generation:
                return False
            del self.missing_marks[peer]
            return self.draws > missing.draws

    def has_learned(self, missing: Iterable[PeerServer]) -> bool:
        """Whether a peer whose mark was missing has reported it since."""
        return any(peer not in self.missing_marks for peer in missing)

    def was_drawn_without_mark(self, peer: PeerServer) -> bool:
        """Whether tickets were drawn before the peer's mark was read; True once for each of them."""
        with self._lock:
            missing = self.missing_marks.get(peer)
            if missing is None or self.draws <= missing.draws:
                return False
            self.missing_marks[peer] = missing._replace(draws=self.draws)
            return True

    def accept(self, blocks: list[range], before: int) -> None:
        """Accept all of a draw's tickets or none; later draws must be above accepted ones.

        Each ticket must be of the server's residue class, above the `fence` before the draw, and at most `ends_at`.
        None may be among the tickets of a concurrent draw.

        Args:
            blocks: the blocks that were drawn, at least one.
            before: the `fence` when the draw began.

        Raises:
            RefusedTickets: one ticket breaks a rule; none is recorded.
        """
        last = before
        for block in blocks:
            first = block.start
            if (first - self.offset) % self.stride:
                raise RefusedTickets("residue", first, last)
            if first <= last:
                raise RefusedTickets("regression", first, last)
            last = block[-1]
        if last > self.ends_at:
            raise RefusedTickets("exhausted", last, self.ends_at)
        with self._lock:
            high_water = self.high_water
            if blocks[0].start <= high_water and self._has(blocks):
                raise RefusedTickets("repeated", blocks[0].start, high_water)
            self.received.extend(blocks)
            if last > high_water:
                self.high_water = last
            self.draws += 1

    def exhausted(self, server: object, n: int) -> TicketsExhausted:
        """The error of a draw whose tickets would use up the sequence for everybody, or be other servers' tickets.

        Args:
            server: of the table.
            n: how many tickets are to be drawn; 0 if they were.
        """
        beginning = f"the sequence {self.name!r} on {server} is at {self.fence}"
        more = "one more ticket" if n == 1 else f"{n} more tickets"
        beyond = f"{more} would exceed" if n else "this draw's tickets exceed"
        if self.joined is not None and self.joined.above < self.largest:
            above, stride = self.joined
            return TicketsExhausted(
                f"{beginning}: {beyond} {above}, above which servers with a stride of {stride} issue tickets. Give "
                f"this client the configuration with all servers and stride={stride}"
            )
        return TicketsExhausted(
            f"{beginning}: {beyond} {self.largest}, the largest that its column holds. Widen the column to 64 "
            "bits, or begin another sequence"
        )

    def _has(self, blocks: list[range]) -> bool:
        """Whether any of these tickets is among the remembered ones."""
        # dense progressions of one residue class share a number when they overlap
        return any(b[0] <= r[-1] and r[0] <= b[-1] for r in self.received for b in blocks)

    def reinit_after_fork(self) -> None:
        """In a fork: forget the parent's counts, and its lock, which a thread of the parent may hold."""
        self.draws = self.errors = 0
        self.missing_marks = {
            peer: missing._replace(draws=0) for peer, missing in self.missing_marks.items()
        }
        self._lock = threading.Lock()
