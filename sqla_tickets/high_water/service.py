"""The high-water service: it reads and writes marks, which show whether a number is old or new.

A server that was restored from a backup, or a replica that lagged and was promoted, issues numbers again. A process
that has just started has never seen them. So every server has a small table of marks: the largest tickets of its
*peers*. Processes write marks in the background, and only ever raise them. A process reads them before it first draws
from a table, and when the table's server has changed or restarted. It then refuses every ticket that is not above
them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from ..concurrency import (
    SharedCall,
    SingleFlight,
    has_running_loop,
    in_background,
    pause,
    random,
    time,
)
from ..connect.connection import Connection
from ..connect.engines import in_memory
from ..connect.identity import Identity
from ..draw.access import ServerAccess
from ..draw.buffer import drop_everything
from ..draw.table_state import PeerServer, TicketTable
from ..errors import TicketTableError
from .credible import is_credible, refutation
from .duplicates import DuplicateServers
from .joined import JoinedServers
from .peer import Peer
from .sequence_marks import SequenceMarks
from .store import HighWaterStore
from .timing import TIMING

log = logging.getLogger(__name__)


class HighWaterService:
    """Reads and writes the high-water marks that the servers of a pool keep of each other.

    A peer that is down fails no draw: its marks are read when it is back. A draw waits in two cases:

    - Before the first draw from a table, for `Timing.patience_seconds`, until the peers have reported their marks:
      `read_marks`. Only ``require_peer`` refuses a table without a mark. A draw then waits for a peer for as long as
      for a server, since a busy peer has not failed.
    - Before it returns a ticket far above a peer's mark, for `Timing.lead_wait_seconds`: `bound_lead`.

    Args:
        servers: the pool's servers.
        stride: the pool's stride.
        require_peer: whether a table without a peer's mark is refused.

    Attributes:
        requires_peer: the same.
    """

    def __init__(
        self, servers: Sequence[ServerAccess], stride: int, *, require_peer: bool = False
    ) -> None:
        self.requires_peer = require_peer
        self._joined = JoinedServers(servers, stride)
        self._peers = [Peer(HighWaterStore(server), stride, self._joined) for server in servers]
        self._stride = stride
        self._due = 0.0
        self._asking: SingleFlight[tuple[ServerAccess, str, int]] = SingleFlight()
        self._duplicates = DuplicateServers(servers)

    def reinit_after_fork(self) -> None:
        """In a fork: forget the parent's reads and writes, which never finish in this process."""
        self._asking = SingleFlight()
        self._joined.reinit_after_fork()
        for peer in self._peers:
            peer.reinit_after_fork()

    def _peer(self, server: ServerAccess) -> Peer:
        return next(peer for peer in self._peers if peer.server is server)

    def _peers_of(self, server: ServerAccess) -> list[Peer]:
        return [peer for peer in self._peers if peer.server is not server]

    # -- before the first ticket of a table

    def read_marks(
        self, server: ServerAccess, table: TicketTable, over: Connection | ServerAccess
    ) -> None:
        """Read the marks of a table from its server's peers.

        One caller asks; callers that arrive before the answers wait for them. If it is cancelled, one of them asks.

        Args:
            server: the table's server.
            table: the table.
            over: the connection for the draw; the server if there is none.
        """
        own = SharedCall()
        with own.under_way:
            while (
                asking := self._asking.of((server, table.name, over.generation), own)
            ) is not own:
                # the peer is asked for its marks, and then for the numbers by which doubtful marks are judged
                seconds = self._patience_seconds + TIMING.patience_seconds
                _wait_until(lambda asking=asking: asking.is_over, seconds)  # type: ignore[misc]  # bound now
                if asking.is_done or not asking.is_over:
                    return
            self._ask_peers(server, table, over)
            own.is_done = True

    @property
    def _patience_seconds(self) -> float:
        """How long a draw waits for the first peer's mark."""
        if not self.requires_peer:
            return TIMING.patience_seconds
        return max(peer.store.patience_seconds(is_required=True) for peer in self._peers)

    def _ask_peers(
        self, server: ServerAccess, table: TicketTable, over: Connection | ServerAccess
    ) -> None:
        issuer, peers = self._peer(server), self._peers_of(server)
        for peer in peers:
            peer.read_again(table)
        returns: dict[PeerServer, int] = {peer.server: peer.server.returns for peer in peers}
        table.begin_to_read_marks(returns, over.generation)

        def is_awaited() -> bool:
            """Whether the draw is refused unless one more peer reports a mark."""
            return self.requires_peer and not any(
                peer.has_told(server, table, over) for peer in peers
            )

        asked = [peer for peer in peers if peer.store.may_be_asked(is_required=self.requires_peer)]
        late = _ask(
            asked,
            lambda peer: peer.read([(issuer, table)], patient=is_awaited()),
            more_seconds=self._patience_seconds - TIMING.patience_seconds,
            is_awaited=is_awaited,
        )
        for peer in late:
            log.info("%r is drawn from %s before %s has reported a mark", table.name, server, peer)
        if not peers and not self._joined.was_read(table.name) and issuer.store.may_be_asked():
            _ask([issuer], lambda peer: peer.read_joined([table.name]))
        self._joined.bound(table.name)  # which this process may have read before it knew the table
        table.end_to_read_marks(returns)
        if table.doubtful_marks:
            shown: dict[PeerServer, list[int | None]] = {}

            def ask(peer: Peer) -> None:
                # its own number may be set back, but not the marks that it keeps
                if peer is issuer:
                    shown[server] = list((issuer.store.kept(table.name) or {}).values())
                else:
                    shown[peer.server] = peer.store.shown(table.name)

            _ask([*asked, issuer], ask)
            table.evidence = shown  # at once: another draw may judge marks by it at the same time

    def judge_marks(self, server: ServerAccess, table: TicketTable) -> None:
        """Record a table's doubtful marks that prove credible, and report the others."""
        doubted = dict(table.doubtful_marks)
        for peer, told in doubted.items():
            number = told.number
            if is_credible(
                number,
                self._stride,
                own=table.fence,
                peer=peer,
                shown=table.evidence,
                others=[mark.number for other, mark in doubted.items() if other is not peer],
            ):
                table.record_mark(peer, told)
            elif table.refuted_marks.get(peer) != number:
                table.refuted_marks[peer] = number
                log.error("%s", refutation(peer, server, table.name, number))
            if table.doubtful_marks.get(peer) == told:
                table.doubtful_marks.pop(peer, None)

    def check_mark(
        self, server: ServerAccess, table: TicketTable, over: Connection | ServerAccess
    ) -> None:
        """Check that a peer has reported a mark of a table, or report that no peer could.

        Raises:
            TicketTableError: no peer could, and the pool requires a mark.
        """
        peers = self._peers_of(server)
        is_told = any(peer.has_told(server, table, over) for peer in peers)
        if is_told or not peers or in_memory(server.engine):
            return
        why = "; ".join(f"{peer}: {peer.store.why_no_mark(server, table, over)}" for peer in peers)
        if self.requires_peer:
            error = TicketTableError(
                f"{table.name!r} is not drawn from {server}: no peer can report a mark, and the pool has "
                f"require_peer=True. Bring a peer back, or create missing tables of marks with "
                f"pool.create_table() ({why})"
            )
            error.kind = "no_peer"
            raise error
        if not table.has_reported_no_mark:
            table.has_reported_no_mark = True
            log.warning(
                "%r is drawn from %s although no peer can report a mark. If that server was restored or promoted, it "
                "repeats ids. Bring a peer back, or create missing tables of marks with pool.create_table(). "
                "TicketPool(require_peer=True) refuses such draws. Each peer: %s",
                table.name,
                server,
                why,
            )

    def on_return(self, peer: ServerAccess) -> None:
        """Send all marks to a peer that answers again; drop buffered tickets that were drawn without its marks."""
        drawn_without = False
        for other in self._peers_of(peer):
            for table in other.server.known_tables():
                table.lead_limit = 0
                drawn_without |= table.was_drawn_without_mark(peer)
        if drawn_without:
            drop_everything()

    def on_new_generation(self, server: ServerAccess) -> None:
        """Log once that two servers of the pool are one."""
        self._duplicates.report(server)

    def first_of_cluster(
        self, server: ServerAccess, identity: Identity | None
    ) -> ServerAccess | None:
        """The pool's server with a smaller offset in this server's cluster, if any."""
        return self._duplicates.first_of_cluster(server, identity)

    def same_server(self, server: ServerAccess, identity: Identity | None) -> ServerAccess | None:
        """The other server of the pool that a connection of this one really reaches, if any."""
        return self._duplicates.same_server(server, identity)

    # -- before tickets are returned

    def bound_lead(self, server: ServerAccess, table: TicketTable, last: int) -> None:
        """Wait until the peers' marks are not far below a ticket.

        So the marks cover nearly every ticket that was returned, whichever process is killed and however fast they
        draw. Draws stop waiting for a peer that stores no mark within `Timing.lead_wait_seconds`, until it stores
        one.

        Args:
            server: the server that issued the ticket. The caller holds no connection to it, and no lock.
            table: the sequence's table.
            last: the ticket.
        """
        lead = self.lead
        self.begin_to_write(server)  # the running round may write older marks
        if last > self._stored(server, table, last) + lead:
            self._wait_for_marks(server, table, last, last - lead)
        # half of the lead is for tickets drawn until the next write has ended
        table.lead_limit = min(self._stored(server, table, last) + lead, last + lead // 2)

    def _stored(self, server: ServerAccess, table: TicketTable, last: int) -> int:
        """The smallest mark on the peers that a draw waits for; ``last`` where there is no such peer."""
        awaited = [peer for peer in self._peers_of(server) if peer.is_awaited_by(server)]
        return min((peer.stored(table) for peer in awaited), default=last)

    def _wait_for_marks(
        self, server: ServerAccess, table: TicketTable, last: int, number: int
    ) -> None:
        """Wait until the peers have stored ``number``, so that ``last`` can be returned.

        Peers that store none are left behind. The wait also ends when the table is dropped, as no mark of it is
        written any more.
        """
        waited_seconds, polled_at, pause_seconds = 0.0, time.monotonic(), 0.0
        while server.tables.get(table.name) is table and waited_seconds < TIMING.lead_wait_seconds:
            behind = [
                peer
                for peer in self._peers_of(server)
                if peer.is_awaited_by(server)
                and peer.stored(table) < number
                and not peer.drew_earlier(table, last)
            ]
            if not behind:
                break
            for peer in behind:
                if not peer.is_writing:
                    peer.begin_to_write(self._peers_of(peer.server))
            pause_seconds = min(2 * pause_seconds + 0.0005, 0.01)
            pause(pause_seconds)
            since, polled_at = polled_at, time.monotonic()
            # while the process stood still, it could not read a peer's answer
            seconds = min(polled_at - since, TIMING.stall_seconds)
            waited_seconds += seconds
            for peer in behind:
                peer.count_wait(polled_at, seconds)

    # -- in the background

    def on_accepted(self, server: ServerAccess, table: TicketTable, now: float) -> None:
        """After a draw: begin a round when it is due, and let draws go as far as the marks read in the last one allow."""
        if now >= self._due:
            self.begin_to_write(server)
        table.write_due = self._due
        near = self._stored(server, table, table.high_water) + self.lead // 2
        table.lead_limit = max(table.lead_limit, near)

    def is_of_earlier_generation(self, server: ServerAccess, table: TicketTable) -> bool:
        """Whether the sequence was dropped and created anew since this process drew from its table."""
        return any(peer.drew_earlier(table, table.high_water) for peer in self._peers_of(server))

    def begin_to_write(self, server: ServerAccess) -> None:
        """Begin to write new marks to all healthy servers.

        Args:
            server: the server that was drawn from.
        """
        spread = random.uniform(0.8, 1.0)  # guards no secret
        self._due = time.monotonic() + TIMING.interval_seconds * spread
        together: list[Peer] = []
        for peer in self._peers:
            if not peer.store.is_well:
                continue
            issuers = self._peers_of(peer.server)
            if peer.is_writing or not peer.store.waits_in_thread:
                peer.begin_to_write(issuers)
            elif peer.has_news(issuers):
                together.append(peer)
        self._write_in_a_thread(together)
        if not server.context.dialect.is_embedded:
            server.expect_pause()

    def write_last(self) -> bool:
        """Begin to write the marks of tickets that were drawn since the last round, as no draw may follow.

        The hedging monitor calls it now and then, in its thread. So a SQLite file, which survives no fork while a thread
        uses it, is left out.

        Returns:
            Whether it is to be called again: draws have not paused, or a write was begun.
        """
        if time.monotonic() < self._due:
            return True
        peers = [
            peer
            for peer in self._peers
            if not peer.server.context.dialect.is_embedded
            and peer.has_unwritten(self._peers_of(peer.server))
        ]
        in_a_thread = [peer for peer in peers if peer.store.waits_in_thread]
        self._write_in_a_thread(in_a_thread)
        in_a_loop = [
            peer.server.connections.call_in_a_loop(
                partial(peer.begin_to_write, self._peers_of(peer.server))
            )
            for peer in peers
            if peer not in in_a_thread
        ]
        return bool(in_a_thread) or any(in_a_loop)

    def _write_in_a_thread(self, peers: list[Peer]) -> None:
        work = partial(self._write_one_by_one, peers)
        if peers and not in_background(work, "sqla_tickets marks", in_a_task=False):
            for peer in peers:
                peer.give_up("no thread could be started to write a mark")

    def _write_one_by_one(self, peers: list[Peer]) -> None:
        """Write new marks in one thread, as on a busy machine the next peer's cost a fraction of the first one's.

        A peer that no draw uses now comes first. A draw that waits for a peer behind a slow one begins a write of its
        own.
        """
        for peer in sorted(peers, key=lambda peer: not peer.server.connections.has_idle):
            if peer.store.is_well:
                peer.write_here(self._peers_of(peer.server))

    def flush(self) -> None:
        """Write the remaining marks over idle connections, within `Timing.flush_seconds`.

        An event loop is not blocked: there, the marks of the last seconds stay unwritten.
        """
        if has_running_loop():
            return
        peers = [peer for peer in self._peers if not peer.server.is_async]
        for peer in peers:
            # the running round may write older marks
            if peer.store.is_well and (peer.is_writing or peer.server.connections.has_idle):
                peer.begin_to_write(self._peers_of(peer.server))
        _wait_until(lambda: not any(peer.is_writing for peer in peers), TIMING.flush_seconds)

    # -- when ticket tables are created, raised and dropped

    @property
    def margin(self) -> int:
        """How many numbers above its last mark a server may have issued before it was set back."""
        return TIMING.margin_tickets * self._stride

    @property
    def lead(self) -> int:
        """How many numbers above its peers' marks a server's tickets may be returned."""
        return TIMING.lead_tickets * self._stride

    def of(self, name: str) -> SequenceMarks:
        """The marks of one sequence, for operations that create, raise or move its tables."""
        return SequenceMarks(self._peers, self._stride, name)

    def drop(self, name: str) -> None:
        """Forget the marks of a sequence that is dropped."""
        for peer in self._peers:
            _wait_until(lambda peer=peer: not peer.is_writing)  # type: ignore[misc]  # bound now
            peer.forget(name)
            peer.store.delete(name)
        self._joined.forget(name)


def _ask(
    peers: Iterable[Peer],
    question: Callable[[Peer], object],
    *,
    more_seconds: float = 0.0,
    is_awaited: Callable[[], bool] = lambda: False,
) -> list[Peer]:
    """Ask peers at the same time, within a time limit; returns those that have not answered.

    Args:
        peers: the peers.
        question: asks one of them.
        more_seconds: how much longer it waits while ``is_awaited``.
        is_awaited: whether one more answer is needed.
    """
    begun = list(peers)
    asked = set(begun)
    for peer in begun:

        def ask(peer: Peer = peer) -> None:
            try:
                question(peer)
            finally:
                asked.discard(peer)

        if not peer.store.begin(ask):
            asked.discard(peer)
    _wait_until(lambda: not asked)
    _wait_until(lambda: not (asked and is_awaited()), more_seconds)
    return [peer for peer in begun if peer in asked]


def _wait_until(is_over: Callable[[], bool], seconds: float = TIMING.patience_seconds) -> None:
    """Wait for background work, as the caller's thread or event loop does."""
    end, wait = time.monotonic() + seconds, 0.0005
    while not is_over() and time.monotonic() < end:
        pause(wait)
        wait = min(2 * wait, 0.01)
