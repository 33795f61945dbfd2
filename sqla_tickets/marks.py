"""What each ticket server knows of its peers: high-water marks, by which an old number is told.

A server that was restored from a backup, or a replica that lagged and was promoted, issues numbers again
that it had issued before, and a process that has just started has never seen them. So every server has
a small table of marks: how far its *peers* had come. Marks are written behind the traffic and only ever
raised; a process that meets a ticket table for the first time, or meets its server anew, takes them for
what it would have seen itself, and refuses every ticket that is not above.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from .aio import a_loop_runs_here, pause
from .keeper import PATIENCE, Keeper
from .mark_statements import JOINED, Mark
from .statements import seed

if TYPE_CHECKING:
    from .server import TicketServer
    from .ticket_table import TicketTable

__all__ = ["Marks"]

log = logging.getLogger(__name__)

#: Seconds from one write of a process's marks to the next, at most; spread, so that many do not meet.
INTERVAL: Final = 3.0
#: So many tickets of one server do not wait for that ...
MANY: Final = 10_000
#: ... but for so many seconds.
SOON: Final = 0.2
#: Seconds that closing a pool waits for the last marks to be written.
LAST_WORDS: Final = 0.25


class Marks:
    """The marks that the servers of one pool keep of each other.

    Nothing here fails a draw, or keeps one waiting for longer than `PATIENCE`: a server that is down
    is done without, and what it knows is learned when it is back.
    """

    def __init__(self, servers: Sequence[TicketServer], stride: int) -> None:
        self._keepers = [Keeper(server, stride) for server in servers]
        self._stride = stride
        self._due = self._soon = 0.0
        self._meetings: dict[tuple[TicketServer, str], _Meeting] = {}
        self._lock = threading.Lock()
        self._told_of_twins = False

    def forget_parent(self) -> None:
        """In a fork: what the parent has begun will not end here."""
        self._meetings, self._lock = {}, threading.Lock()
        for keeper in self._keepers:
            keeper.forget_parent()

    def _peers_of(self, server: TicketServer) -> list[Keeper]:
        return [keeper for keeper in self._keepers if keeper.server is not server]

    # -- before the first ticket of a table

    def meet(self, server: TicketServer, table: TicketTable) -> None:
        """Learn from the peers how far a table's tickets had been issued.

        One caller asks; the others that come meanwhile wait for what it learns. When it is cancelled, they
        know nothing, and one of them asks.
        """
        key, own = (server, table.name), _Meeting()
        with self._lock:
            meeting = self._meetings.setdefault(key, own)
        if meeting is not own:
            _wait_until(lambda: meeting.is_over)
            if meeting.is_over and not meeting.has_told:
                self.meet(server, table)
            return
        try:
            self._ask_peers(server, table)
            own.has_told = True
        finally:
            self._meetings.pop(key, None)
            own.is_over = True

    def _ask_peers(self, server: TicketServer, table: TicketTable) -> None:
        for peer in self._peers_of(server):
            peer.forget(table.name, server)
        asked = {p for p in self._peers_of(server) if p.is_well and p.can_be_asked_by(server)}
        for peer in list(asked):

            def ask(peer: Keeper = peer) -> None:
                try:
                    peer.read([(server, table)])
                finally:
                    asked.discard(peer)

            if not peer.begin(ask):
                asked.discard(peer)
        _wait_until(lambda: not asked)
        for peer in list(asked):
            log.info("%r is drawn from %s before %s has told its mark", table.name, server, peer)

    def warn_of_twins(self, server: TicketServer) -> None:
        """Say once that two servers of the pool are one: addresses need not tell it."""
        if self._told_of_twins or server.identity is None:
            return
        for peer in self._peers_of(server):
            same_database = peer.server.engine.url.database == server.engine.url.database
            if same_database and server.identity.is_same_run(peer.server.identity):
                self._told_of_twins = True
                log.warning(
                    "%s and %s are one server: that makes two offsets and no second machine, so nothing"
                    " goes on when it dies",
                    server,
                    peer,
                )

    # -- behind the traffic

    def drawn(self, server: TicketServer, table: TicketTable, now: float) -> None:
        """After a draw: begin to write what is new, when it is time."""
        if table.high_water >= table.write_at:
            self._due = min(self._due, self._soon)
        if now >= self._due:
            self.begin_to_write(server)

    def is_of_former_life(self, server: TicketServer, table: TicketTable) -> bool:
        """Whether the sequence was dropped and created anew since this process has drawn from a table."""
        return any(k.ends_at(server, table) >= table.high_water for k in self._peers_of(server))

    def begin_to_write(self, server: TicketServer) -> None:
        """Begin to write what is new to all servers that are well.

        Args:
            server: that was drawn from; the driver of the others has to get on with its way to wait.
        """
        now = time.monotonic()
        self._soon = now + SOON
        self._due = now + INTERVAL * random.uniform(0.5, 1.0)  # noqa: S311  # guards no secret
        for keeper in self._keepers:
            for table in keeper.server.known_tables():
                table.write_at = table.high_water + MANY * self._stride
        for keeper in self._keepers:
            if keeper.is_well and keeper.can_be_asked_by(server):
                keeper.begin_to_write(self._issuers_beside(keeper))

    def _issuers_beside(self, keeper: Keeper) -> list[TicketServer]:
        return [other.server for other in self._keepers if other is not keeper]

    def flush(self) -> None:
        """Write what is not written yet, for a moment at most, over connections that are idle.

        An event loop is not kept waiting; there, the last seconds stay unwritten.
        """
        if a_loop_runs_here():
            return
        keepers = [k for k in self._keepers if not k.server.engine.dialect.is_async]
        for keeper in keepers:
            if keeper.is_well and keeper.server.connections.has_idle:
                keeper.begin_to_write(self._issuers_beside(keeper))
        _wait_until(lambda: not any(keeper.is_writing for keeper in keepers), LAST_WORDS)

    # -- when ticket tables are created, raised and dropped

    def prepare(self, name: str) -> int:
        """See that every server can keep marks of a sequence, and return the largest that one has.

        From here on, what is written late about a former sequence of that name counts no more.
        """
        token = random.getrandbits(62) + 1  # tells two lives of a name apart
        rows = [Mark(name, self._stride, k.offset, token, 0) for k in self._keepers]
        return max(keeper.prepare(name, rows) for keeper in self._keepers)

    def kept_by(self, peer: TicketServer, name: str) -> dict[int, int] | None:
        """The marks that a server keeps of a sequence, by the offsets of its peers.

        It is waited for as for a draw's answer, and not given up before: no draw waits for this.

        Returns:
            None when it cannot tell now; nothing where it keeps none.
        """
        (keeper,) = (keeper for keeper in self._keepers if keeper.server is peer)
        return keeper.kept(name)

    def joined_above(self, name: str) -> int:
        """No server that joined with a larger stride has issued this number or one below; 0 if unknown."""
        kept = [keeper.kept(name) or {} for keeper in self._keepers]
        return min((marks[JOINED] for marks in kept if JOINED in marks), default=0)

    def join_above(self, name: str, number: int) -> None:
        """Write that for whoever ends the growth."""
        for keeper in self._keepers:
            keeper.write_joined(Mark(name, self._stride, JOINED, 0, number))

    def raised(self, name: str, above: int) -> None:
        """Write that no ticket is to be ``above`` or below from now on."""
        for keeper in self._keepers:
            issuers = self._issuers_beside(keeper)
            keeper.read([(issuer, issuer.table(name)) for issuer in issuers])
            offsets = [issuer.offset or 0 for issuer in issuers]
            numbers = [(o, name, seed(above + 1, self._stride, o)) for o in offsets]
            keeper.write(numbers, patient=True)

    def drop(self, name: str) -> None:
        """Forget the marks of a sequence that is dropped."""
        for keeper in self._keepers:
            _wait_until(lambda keeper=keeper: not keeper.is_writing)  # type: ignore[misc]  # bound now
            keeper.forget(name)
            keeper.delete(name)


class _Meeting:
    """One caller's asking of the peers, for which others wait."""

    is_over = has_told = False


def _wait_until(is_over: Callable[[], bool], seconds: float = PATIENCE) -> None:
    """Wait, in the manner of the caller, for what goes on beside it."""
    end, wait = time.monotonic() + seconds, 0.0005
    while not is_over() and time.monotonic() < end:
        pause(wait)
        wait = min(2 * wait, 0.01)
