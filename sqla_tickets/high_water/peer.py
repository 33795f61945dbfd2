"""A peer: one ticket server with the marks that this process has read from it, or must write to it."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from ..concurrency import WeakRegistry, begun, running_loop, threading, time
from ..connect.connection import Connection
from ..draw.access import ServerAccess
from ..draw.buffer import drop_everything
from ..draw.table_state import TicketTable, ToldMark
from .credible import is_far
from .joined import JoinedServers
from .statements import Mark
from .store import HighWaterStore, Written, at_once
from .timing import TIMING

log = logging.getLogger("sqla_tickets.high_water.service")


class KnownMark(NamedTuple):
    """A mark as its peer last showed it.

    Attributes:
        token: the token of the sequence's generation.
        number: the mark; in place of a doubtful one, the table's high water.
        read_in: the peer's generation when it was read; 0 when it must be read again.
        earlier: tickets up to this one are of an earlier generation of the sequence; -1 for none.
        written: the mark that the peer has stored since, as the answer to the write showed; at least ``number``.
    """

    token: int
    number: int
    read_in: int
    earlier: int
    written: int


class BackgroundWrite:
    """The only background write to a peer. It runs one more round if a write was requested while it ran."""

    def __init__(self) -> None:
        self._requested_at = 0
        self._running = WeakRegistry[Callable[[], None]]()
        self._dead_at = 0.0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock = threading.Lock()

    @property
    def is_running(self) -> bool:
        """Whether the write is running. A task whose event loop has ended is not, although it never said so."""
        is_of_ended_loop = self._loop is not None and self._loop.is_closed()
        is_alive = bool(self._running.refs) and not is_of_ended_loop
        return is_alive and time.monotonic() < self._dead_at

    def begin(
        self,
        work: Callable[[], None],
        start: Callable[[Callable[[], None]], bool],
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> bool:
        """Request a round, and start ``work`` unless it runs; False when it could not be started.

        Args:
            work: the write.
            start: starts it.
            loop: the event loop of the task that it runs in; None for a thread.
        """
        with self._lock:
            self.request()  # the running round may write older marks
            if self.is_running:
                return True
            self._running.add(work)
            self._loop = loop
            self._dead_at = time.monotonic() + TIMING.dead_seconds
        is_started = start(work)
        if not is_started:
            self.end()
        return is_started

    def request(self) -> None:
        """Request another round."""
        self._requested_at = max(self._requested_at, begun())

    def takes_request(self, closed_at: int) -> bool:
        """Whether another round follows; else the write ends, and another one may begin at once.

        Args:
            closed_at: the logical timestamp when the connections were closed; earlier requests do not count.
        """
        with self._lock:
            goes_on, self._requested_at = self._requested_at > closed_at, 0
            self._dead_at = time.monotonic() + TIMING.dead_seconds if goes_on else 0.0
            return goes_on

    def end(self) -> None:
        """End the write, so that another one may begin."""
        self._dead_at = 0.0


class Peer:
    """The marks in one server's store, as this process knows them, and the marks to write there.

    Offset and sequence identify a mark. A token identifies a generation of the sequence: a mark is written only if
    the stored one has the same token.

    Attributes:
        store: the server's store of marks.
        server: the server.
        offset: its residue class.
        is_left_behind: whether draws no longer wait for it, until it stores a mark.
    """

    def __init__(self, store: HighWaterStore, stride: int, joined: JoinedServers) -> None:
        self.store, self.server, self.offset = store, store.server, store.offset
        self._stride, self._joined = stride, joined
        self._marks: dict[tuple[int, str], KnownMark] = {}
        self._write = BackgroundWrite()
        self.is_left_behind = False
        self._waited_seconds = self._counted_at = 0.0

    def __str__(self) -> str:
        return str(self.server)

    def reinit_after_fork(self) -> None:
        """In a fork: forget the parent's writes, which never finish in this process."""
        self._write = BackgroundWrite()
        self.store.reinit_after_fork()

    # -- reading

    def read(self, tables: list[tuple[Peer, TicketTable]], *, patient: bool = False) -> bool:
        """Read the marks of some tables into the tables; returns whether all marks are then known.

        Args:
            tables: the tables, each with the peer that issues its tickets.
            patient: whether it may wait for other writers.
        """
        # before the read: an earlier generation's answer must not count for the present one
        read_in, generations = self.server.generation, [i.server.generation for i, _ in tables]
        names = sorted({table.name for _, table in tables})
        answer = self.store.read(names, patient=patient)
        if answer is None:
            return False
        identity, marks = answer
        self._joined.record(self.server, names, marks)
        found = {(m.offset, m.sequence): m for m in marks if m.stride == self._stride}
        drawn_without, are_known = False, True
        for (issuer, table), generation in zip(tables, generations, strict=True):
            # the table's own server, at another address
            if self.server.is_also(issuer.server, identity):
                are_known = False
                continue
            mark = found.get(_key(table))
            number = 0 if mark is None else mark.number
            is_doubtful = is_far(number, self._stride, table.fence)
            token = None if mark is None else mark.token
            shown = table.high_water if is_doubtful else number
            are_known &= self._remember(issuer, table, token, shown, read_in)
            told = ToldMark(number, generation, identity)
            if not is_doubtful:
                drawn_without |= table.record_mark(self.server, told)
            elif table.refuted_marks.get(self.server) != number:
                table.doubtful_marks[self.server] = told
        if drawn_without:  # buffered tickets may be older than the new marks
            drop_everything()
        return are_known

    def read_joined(self, names: Sequence[str]) -> None:
        """Read where servers with a larger stride joined, for the server's own tables."""
        answer = self.store.read(names) if names else None
        if answer is not None:
            self._joined.record(self.server, names, answer[1])

    def _not_shown(self) -> list[str]:
        """The sequences for which no peer shows where servers joined, as there is none, or it is down."""
        seconds = 2 * TIMING.interval_seconds  # longer than a round of the peers takes
        tables = self.server.known_tables()
        return [table.name for table in tables if self._joined.is_unread(table, seconds)]

    def _remember(
        self, issuer: Peer, table: TicketTable, token: int | None, number: int, read_in: int
    ) -> bool:
        """Remember a mark that was read; False if its token is new and its generation's tickets are not known yet.

        Another token says that the sequence was dropped and created anew. Tickets of this process may be of either
        generation. Those up to the table's present number count for the new one, too. Those above it are of the
        earlier one, and must not be written as a mark of the new one.

        Args:
            issuer: the peer that issues the table's tickets.
            table: the table.
            token: the mark's token; None where there was no mark: a lost mark is written again as it was.
            number: the mark.
            read_in: the generation of this peer.
        """
        before = self._marks.get(_key(table), KnownMark(token or 0, 0, 0, -1, 0))
        if token is None or token == before.token:
            self._marks[_key(table)] = before._replace(
                number=number, read_in=read_in, written=number
            )
            return True
        shown = issuer.store.last_ticket(table.name)
        if shown is None:
            self.read_again(table)
            return False
        drawn = table.high_water  # read last: a refused ticket may have raised it meanwhile
        earlier = drawn if drawn > shown else -1
        self._marks[_key(table)] = KnownMark(token, number, read_in, earlier, number)
        self._write.request()  # the server ignored marks with the earlier token
        return True

    def has_told(
        self, server: ServerAccess, table: TicketTable, over: Connection | ServerAccess
    ) -> bool:
        """Whether this peer is not the table's own server, and has reported a credible mark of the table.

        Args:
            server: the table's server.
            table: the table.
            over: the connection for the draw. The peer was asked after this connection was recognised.
        """
        told = table.told_marks.get(self.server)
        return (
            told is not None
            and told.generation >= over.generation
            and not self.server.is_also(server, told.identity, over)
        )

    def _known(self, table: TicketTable) -> KnownMark | None:
        mark = self._marks.get(_key(table))
        return mark if mark is not None and mark.read_in == self.server.generation else None

    def drew_earlier(self, table: TicketTable, number: int) -> bool:
        """Whether a ticket is known to be of an earlier generation of its sequence."""
        mark = self._marks.get(_key(table))
        return mark is not None and number <= mark.earlier

    def stored(self, table: TicketTable) -> int:
        """The mark of a table that this peer has shown in its present generation; 0 if unknown."""
        mark = self._known(table)
        return 0 if mark is None else mark.number

    def read_again(self, table: TicketTable) -> None:
        """Have the mark of a table read again."""
        mark = self._marks.get(_key(table))
        if mark is not None:
            self._marks[_key(table)] = mark._replace(read_in=0)

    def forget(self, name: str) -> None:
        """Forget the marks of a sequence and their generation."""
        for key in list(self._marks):
            if key[1] == name:
                self._marks.pop(key, None)

    # -- whether draws wait for it

    def is_awaited_by(self, server: ServerAccess) -> bool:
        """Whether a draw from ``server`` may wait until this peer has stored its mark."""
        is_up = not self.is_left_behind and self.store.takes_marks
        return is_up and not self.server.is_also(server)

    def count_wait(self, now: float, seconds: float) -> None:
        """Count the time that a draw has waited for it; after enough of it, draws no longer wait.

        Args:
            now: the time by ``time.monotonic()``.
            seconds: how long the draw has waited. Simultaneous waits of several draws count once.
        """
        self._waited_seconds += max(0.0, min(seconds, now - self._counted_at))
        self._counted_at = now
        if self._waited_seconds >= TIMING.lead_wait_seconds:
            self.give_up(f"it has stored no mark for {TIMING.lead_wait_seconds:g} s")

    def give_up(self, reason: str) -> None:
        """Let draws go on without this peer until it stores a mark."""
        if not self.is_left_behind:
            self.is_left_behind = True
            log.warning("draws do not wait for marks on %s until it stores one: %s", self, reason)

    def resume(self, issuers: list[Peer]) -> None:
        """Let draws wait for this peer again, as it has stored a mark."""
        self._waited_seconds = 0.0
        if self.is_left_behind:
            self.is_left_behind = False
            for issuer in issuers:
                for table in issuer.server.known_tables():
                    table.lead_limit = 0  # draws did not wait for this peer
            log.info("draws wait for marks on %s again", self)

    # -- writing

    @property
    def is_writing(self) -> bool:
        """Whether a write is running."""
        return self._write.is_running

    def has_news(self, issuers: list[Peer]) -> bool:
        """Whether there is something to write or to read."""
        drawn = _drawn(issuers)
        are_written = all(self._known(table) and not self._is_new(table) for _, table in drawn)
        return not are_written or bool(self._not_shown())

    def has_unwritten(self, issuers: list[Peer]) -> bool:
        """Whether it can be written how far this process has drawn since the last round."""
        is_ready = self.store.is_well and not self.is_left_behind
        return is_ready and any(self._is_new(table) for _, table in _drawn(issuers))

    def begin_to_write(self, issuers: list[Peer]) -> None:
        """Begin to write the marks of ``issuers`` in the background, or add them to the running write.

        Args:
            issuers: the peers that issue the tickets.
        """
        if self.has_news(issuers):
            self._begin(issuers, self.store.begin)

    def write_here(self, issuers: list[Peer]) -> None:
        """Write the marks of ``issuers`` in the caller's thread, or add them to the running write."""
        self._begin(issuers, at_once)

    def _begin(self, issuers: list[Peer], start: Callable[[Callable[[], None]], bool]) -> None:
        work = functools.partial(self._write_news, issuers)
        loop = running_loop() if self.server.is_async else None
        if not self._write.begin(work, start, loop):
            self.give_up("no thread or task could be started to write a mark")

    def write(
        self, news: Iterable[tuple[TicketTable, int]], *, patient: bool = False
    ) -> list[Written]:
        """Raise the marks of tables whose tokens are known; returns the marks that were sent.

        The server ignores marks of an earlier generation.

        Args:
            news: tables and numbers.
            patient: whether it may wait for other writers.
        """
        marks = [
            Mark(table.name, self._stride, table.offset, self._marks[_key(table)].token, number)
            for table, number in news
            if _key(table) in self._marks
        ]
        return self.store.write(marks, patient=patient)

    def _write_news(self, issuers: list[Peer]) -> None:
        connections = self.server.connections
        try:
            while self._write.takes_request(connections.closed_at):
                self._write_round(issuers)
        except BaseException:
            self._write.end()
            raise

    def _write_round(self, issuers: list[Peer]) -> None:
        """Write new marks once, and read those again that other processes may have written, too.

        They know more of a server that was set back while it ran, of a second primary, or of a new generation.
        """
        self.read_joined(self._not_shown())
        drawn = _drawn(issuers)
        unknown = [(issuer, table) for issuer, table in drawn if not self._known(table)]
        are_known = not unknown or self.read(unknown)
        news = {table: table.high_water for _, table in drawn if self._is_new(table)}
        if not news:
            return
        written = {(w.mark.offset, w.mark.sequence): w for w in self.write(news.items())}
        if self.store.takes_no_writes:
            self.give_up("it takes no writes")
        sent = [(i, table) for i, table in drawn if table in news and _key(table) in written]
        unseen = [(i, t) for i, t in sent if not self._has_stored(i, t, written[_key(t)])]
        if unseen:
            self.read(unseen)
        if are_known and all(self.stored(table) >= number for table, number in news.items()):
            self.resume(issuers)

    def _has_stored(self, issuer: Peer, table: TicketTable, written: Written) -> bool:
        """Record a mark that the answer to its write shows; False if it must be read.

        A process must not draw far without a read, which also shows where servers with a larger stride joined.
        """
        number, known = written.stored, self._marks.get(_key(table))
        if number is None or known is None or known.token != written.mark.token:
            return False
        is_other = not self.server.is_also(issuer.server, written.identity)
        # a forged mark is not near
        is_near = number - known.number <= TIMING.unread_tickets * self._stride
        if not is_near or not is_other or self.is_left_behind:
            return False
        self._marks[_key(table)] = known._replace(written=number)
        table.observe_mark(number)
        return True

    def _is_new(self, table: TicketTable) -> bool:
        """Whether the mark of a table is known, and lower than the tickets drawn."""
        mark = self._known(table)
        return mark is not None and table.high_water > max(mark.written, mark.earlier)


def _key(table: TicketTable) -> tuple[int, str]:
    return table.offset, table.name


def _drawn(issuers: list[Peer]) -> list[tuple[Peer, TicketTable]]:
    """The tables that this process has drawn from, or quarantined, with the peers that issue their tickets."""
    return [
        (issuer, table)
        for issuer in issuers
        for table in issuer.server.known_tables()
        if table.draws or table.quarantine is not None  # whose raised fence is for all processes
    ]
