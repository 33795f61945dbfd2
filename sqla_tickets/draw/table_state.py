"""The state of one sequence's table on one server, as this process knows it, and the fence."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

from ..concurrency import threading
from ..tables.new_table import largest_ticket
from .circuit_breaker import CircuitBreaker
from .timing import TIMING

if TYPE_CHECKING:
    from ..connect.identity import Identity
    from ..errors import TicketError
    from ..tables.layouts import Layout
    from ..tables.metadata import TableMetadata

#: State of a table here: quarantined, else its breaker's; half-open is reported as open.
TableState = Literal["closed", "open", "quarantined"]


class PeerServer(Protocol):
    """Another server of the pool, as far as a table knows it."""

    @property
    def returns(self) -> int:
        """How often it has answered again after it had failed."""
        ...


class Inspected(NamedTuple):
    """The result of a table's inspection, to be compared with what the next one shows.

    Attributes:
        layout: how it is drawn from.
        text: its definition.
        identity: the run of the server at that time.
    """

    layout: Layout
    text: str
    identity: Identity


class MissingMark(NamedTuple):
    """A peer whose mark could not be read when a table's peers were asked.

    Attributes:
        returns: how often the peer had answered again by then.
        draws: how many draws the table had answered before.
    """

    returns: int
    draws: int


class ToldMark(NamedTuple):
    """A mark as a peer has told it.

    Attributes:
        number: the mark; 0 for none.
        generation: the generation of the table's server when the peer was asked.
        identity: the identity of the server that answered; None where it does not show one.
    """

    number: int
    generation: int
    identity: Identity | None


class RefusedTickets(Exception):
    """Tickets that a table may not have issued.

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
        layout: how it is drawn from; None until it was found, and after it changed.
        metadata: how it is numbered, as its comment says; None for a foreign table.
        largest: the largest ticket that it can issue.
        high_water: the largest ticket that this process has received, or mark that it has read from the server's
            peers; 0 before the first.
        largest_shown: the largest number that its row has shown in this generation of its server. InnoDB shows what is committed before
            it is on disk: a crash may take it back, which nobody had received then.
        received: the last blocks that this process has received. Of two draws under way at the same time, the
            high water does not tell that they were given the same ones.
        largest_mark: the largest mark of the server's peers.
        lead_limit: a ticket above it is not handed out before `Peers.bound_lead` has returned.
        write_due: when the peers are told of the table's tickets next, by ``time.monotonic()``.
        last_shown: the number that its row had at the last inspection.
        inspected: how that found it; None where a server does not tell enough to compare it, or the peers were asked since.
        generation: the server's generation in which its peers were asked.
        told_marks: the latest mark of each peer that can be true.
        missing_marks: the peers that have not given their marks in this generation.
        doubtful_marks: the marks, by the peers that keep them, that are too high to be believed at once.
        evidence: what those peers and the others show, by which such marks are judged.
        refuted_marks: the marks that cannot be true, by the peers that keep them.
        has_reported_no_mark: whether it was logged that no peer gave its mark.
        peers_asked_at: when the peers were last asked, by ``time.monotonic()``.
        draws: how many draws were answered.
        errors: how many failed.
        answered: when it last answered a draw, by ``time.monotonic()``.
        breaker: the circuit breaker for failures of this table alone.
        quarantine: the promise that it broke: it is not drawn from until a person has seen to it, whatever its
            breaker says. None while it keeps them.
    """

    def __init__(self, name: str, stride: int, offset: int) -> None:
        self.name, self.stride, self.offset = name, stride, offset
        self.layout: Layout | None = None
        self.inspected: Inspected | None = None
        self.metadata: TableMetadata | None = None
        self.largest = largest_ticket(64)
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
        """Why it is not drawn from."""
        return self.quarantine or self.breaker.reason

    def release(self) -> None:
        """Draw from it again: a person has seen to it."""
        self.quarantine = None
        self.breaker.record_success()

    @property
    def fence(self) -> int:
        """The number that the next ticket has to be above."""
        return max(self.high_water, self.largest_shown)

    @property
    def has_mark_to_read(self) -> bool:
        """Whether a peer whose mark is missing has answered since the peers were asked."""
        return any(
            peer.returns != missing.returns for peer, missing in list(self.missing_marks.items())
        )

    def record_shown(self, number: int) -> None:
        """Its row has this number."""
        with self._lock:
            self.last_shown = number
            self.largest_shown = max(self.largest_shown, number)

    def observe_mark(self, mark: int) -> None:
        """Take a peer's mark into account: the next draws have to be above it."""
        with self._lock:
            self.largest_mark = max(self.largest_mark, mark)
            self.high_water = max(self.high_water, mark)

    def begin_to_read_marks(self, peers: Iterable[PeerServer], generation: int) -> None:
        """Count the marks of peers as missing, before they are read in this generation of the table's server."""
        if self.generation != generation:
            self.refuted_marks = {}
        for peer in peers:
            self.missing_marks.setdefault(peer, MissingMark(peer.returns, self.draws))

    def end_to_read_marks(self, returns: Mapping[PeerServer, int]) -> None:
        """Have missing marks read when their peers answer again; until now, other draws read them as well.

        Args:
            returns: how often each peer had answered again when the reading began.
        """
        for peer, missing in list(self.missing_marks.items()):
            if missing.returns != returns[peer]:
                self.missing_marks[peer] = missing._replace(returns=returns[peer])

    def record_mark(self, peer: PeerServer, mark: ToldMark) -> bool:
        """Record the mark that a peer keeps; whether tickets were drawn before without it."""
        self.observe_mark(mark.number)
        with self._lock:
            before = self.told_marks.get(peer)
            if before is None or before.generation <= mark.generation:
                self.told_marks[peer] = mark
        self.has_reported_no_mark = False
        self.refuted_marks.pop(peer, None)
        missing = self.missing_marks.pop(peer, None)
        return missing is not None and self.draws > missing.draws

    def has_learned(self, missing: Iterable[PeerServer]) -> bool:
        """Whether one of the peers whose marks were missing has told its mark since."""
        return any(peer not in self.missing_marks for peer in missing)

    def was_drawn_without_mark(self, peer: PeerServer) -> bool:
        """Whether tickets were drawn before the peer's mark was read; True once for each of them."""
        missing = self.missing_marks.get(peer)
        if missing is None or self.draws <= missing.draws:
            return False
        self.missing_marks[peer] = missing._replace(draws=self.draws)
        return True

    def accept(self, blocks: list[range], before: int) -> None:
        """Let a draw's tickets through the fence, or refuse them all; later draws must be above them.

        Each must be of the server's residue class, above what `fence` was before the draw, and within what the table
        can hold. None may be among those that another draw was given at the same time.

        Args:
            blocks: the blocks that were drawn, at least one.
            before: what `fence` was when they were asked for.

        Raises:
            RefusedTickets: one is not; nothing is remembered.
        """
        last = before
        for block in blocks:
            first = block.start
            if (first - self.offset) % self.stride:
                raise RefusedTickets("residue", first, last)
            if first <= last:
                raise RefusedTickets("regression", first, last)
            last = block[-1]
        if last > self.largest:
            raise RefusedTickets("exhausted", last, self.largest)
        with self._lock:
            if blocks[0][0] <= self.high_water and self._has(blocks):
                raise RefusedTickets("repeated", blocks[0][0], self.high_water)
            self.received.extend(blocks)
            self.high_water = max(self.high_water, last)
            self.draws += 1

    def _has(self, blocks: list[range]) -> bool:
        """Whether a ticket of these was received before, as far as that is remembered."""
        # dense progressions of one residue class share a number when they overlap
        return any(b[0] <= r[-1] and r[0] <= b[-1] for r in self.received for b in blocks)

    def reinit_after_fork(self) -> None:
        """In a fork: what the parent has drawn is not counted here; a thread of its may hold the lock."""
        self.draws = self.errors = 0
        self.missing_marks = {
            peer: missing._replace(draws=0) for peer, missing in self.missing_marks.items()
        }
        self._lock = threading.Lock()
