"""One ticket server as the one who keeps its peers' marks: they are written on it and read from it there."""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from sqlalchemy.engine.interfaces import DBAPICursor

from .beside import beside
from .engines import in_memory
from .faults import Fault, fault_of
from .mark_statements import (
    JOINED,
    MARKS,
    CreateMarks,
    DeleteMarks,
    Mark,
    NoteMarks,
    ReadMarks,
    WriteMarks,
)
from .place import Place

if TYPE_CHECKING:
    from .server import TicketServer
    from .ticket_table import TicketTable

__all__ = ["PATIENCE", "Keeper"]

log = logging.getLogger("sqla_tickets.marks")
Work = Callable[[DBAPICursor, Place], None]

#: Seconds that a draw waits for the marks of a table that it meets, and a peer may keep silent.
PATIENCE: Final = 1.0
#: Seconds until a server that has no table of marks is asked again.
LATER: Final = 300.0
#: Seconds after which a write is taken for dead: its event loop has ended, and never told.
DEAD: Final = 10.0
#: How many marks one statement writes.
AT_ONCE: Final = 100
#: How often one statement is sent while deadlocks are all that happens.
ATTEMPTS: Final = 3
#: Milliseconds that a draw waits for whoever holds a SQLite file.
BRIEF: Final = 50

_HAS_NONE = (Fault.MISSING, Fault.DENIED, Fault.SHAPE, Fault.SYNTAX)


class Keeper:
    """The marks that one server keeps of its peers.

    Attributes:
        server: the server.
        offset: its residue class.
    """

    def __init__(self, server: TicketServer, stride: int) -> None:
        self.server, self.offset, self._stride = server, server.offset or 0, stride
        self._keeps_none_until = 0.0
        self._met: set[tuple[int, str]] = set()
        self._tokens: dict[tuple[int, str], int] = {}
        self._written: dict[tuple[int, str], int] = {}
        self._ends: dict[tuple[int, str], int] = {}
        self._epoch = server.epoch
        self._lock = threading.Lock()
        self.forget_parent()

    def __str__(self) -> str:
        return str(self.server)

    def forget_parent(self) -> None:
        self._lock = threading.Lock()
        self._dead, self._again = 0.0, False
        self._since: dict[object, float] = {}

    @property
    def is_well(self) -> bool:
        """Whether it is to be asked: it has not failed, has not kept silent here, and keeps marks.

        That it is suspected of silence is not enough: a number that was lost would not be noticed.
        """
        now = time.monotonic()
        return (
            self.server.breaker.is_closed
            and now >= self._keeps_none_until
            and all(now - since < PATIENCE for since in list(self._since.values()))
            # what lives in this process ends with it
            and not in_memory(self.server.engine)
        )

    def can_be_asked_by(self, drawn: TicketServer) -> bool:
        """Whether it can be waited for in the way in which the server of a draw is waited for."""
        return drawn.engine.dialect.is_async or not self.server.engine.dialect.is_async

    def begin(self, work: Callable[[], None]) -> bool:
        """Do ``work`` beside the traffic; False when it could not be begun."""
        dialect = self.server.engine.dialect
        if dialect.name == "sqlite":
            # a file is never silent; SQLite does not survive a fork beside a thread inside of it, and
            # aiosqlite not always that its loop ends beside a task
            work()
            return True
        name = f"sqla_tickets marks on {self.server}"
        return beside(work, name, in_a_task=dialect.is_async)

    # -- writing

    @property
    def is_writing(self) -> bool:
        return time.monotonic() < self._dead

    def begin_to_write(self, issuers: list[TicketServer]) -> None:
        """Begin to write the marks of ``issuers``, unless it is done at the moment."""
        if self._epoch != self.server.epoch:  # it may have lost what was written before
            self._epoch = self.server.epoch
            self._met.clear()
        if not (self._unmet(issuers) or self._news(issuers)):
            return
        with self._lock:
            self._again = True  # what is written at the moment may be older
            if self.is_writing:
                return
            self._dead = time.monotonic() + DEAD
        closings = self.server.connections.closings
        if not self.begin(lambda: self._write_news(issuers, closings)):
            self._dead = 0.0

    def _write_news(self, issuers: list[TicketServer], closings: int) -> None:
        try:
            # not if it was closed before this began
            while self._is_to_write() and closings == self.server.connections.closings:
                unmet = self._unmet(issuers)
                if unmet:
                    self.read(unmet)
                news = self._news(issuers)
                if self.write([(i.offset or 0, table.name, number) for i, table, number in news]):
                    # others may know more: of a server set back while it ran, of two primaries
                    self.read([(issuer, table) for issuer, table, _ in news])
        finally:
            self._dead = 0.0

    def _is_to_write(self) -> bool:
        """Whether somebody has asked for it since it was begun last; else it has ended."""
        with self._lock:
            asked, self._again = self._again, False
            self._dead = time.monotonic() + DEAD if asked else 0.0
            return asked

    def ends_at(self, server: TicketServer, table: TicketTable) -> int:
        """Up to where this process knows a table from a former life of its sequence; -1 if it does not."""
        return self._ends.get((server.offset or 0, table.name), -1)

    def _unmet(self, issuers: list[TicketServer]) -> list[tuple[TicketServer, TicketTable]]:
        """The tables that were drawn from before this server could tell its marks."""
        return [
            (issuer, table)
            for issuer in issuers
            for table in issuer.known_tables()
            if table.draws and (issuer.offset, table.name) not in self._met
        ]

    def _news(self, issuers: list[TicketServer]) -> list[tuple[TicketServer, TicketTable, int]]:
        return [
            (issuer, table, table.high_water)
            for issuer in issuers
            for table in issuer.known_tables()
            if table.draws
            and (issuer.offset, table.name) in self._met
            and table.high_water > self._written.get((issuer.offset or 0, table.name), 0)
        ]

    def write(self, news: list[tuple[int, str, int]], *, patient: bool = False) -> bool:
        """Raise the marks of sequences whose tokens are known; whether there was one, and it worked.

        Args:
            news: offsets, sequences and numbers.
            patient: whether it may wait for others who write.
        """
        marks = sorted(  # in one order, so that two processes do not lock each other out
            Mark(name, self._stride, offset, self._tokens[offset, name], number)
            for offset, name, number in news
            if (offset, name) in self._tokens
        )
        done = bool(marks)
        for start in range(0, len(marks), AT_ONCE):
            part = marks[start : start + AT_ONCE]

            def write(cursor: DBAPICursor, place: Place, part: list[Mark] = part) -> None:
                _write(cursor, place, part)

            if self._do(write, patient=patient):
                self._written.update({(m.offset, m.sequence): m.number for m in part})
            else:
                done = False
        return done

    # -- reading

    def read(self, tables: list[tuple[TicketServer, TicketTable]]) -> None:
        """Learn the marks of some tables, and let their servers know."""
        found: dict[tuple[int, str], Mark] = {}
        names = sorted({table.name for _, table in tables})

        def read(cursor: DBAPICursor, place: Place) -> None:
            found.update(
                ((mark.offset, mark.sequence), mark) for mark in _read(cursor, place, names)
            )

        if not self._do(read):
            return
        for issuer, table in tables:
            key = issuer.offset or 0, table.name
            own = self._tokens.get(key, 0)  # marks that were lost are written again as they were
            token, number = (found[key].token, found[key].number) if key in found else (own, 0)
            if self._tokens.setdefault(key, token) != token:
                self._tokens[key], self._ends[key] = token, table.high_water
            # what was drawn in a former life is not to be written on this one
            self._written[key] = max(number, self._ends.get(key, 0))
            self._met.add(key)
            table.learn(number)

    def prepare(self, name: str, rows: list[Mark]) -> int:
        """Make the table of marks, where it is missing, and rows for a sequence that has none."""
        others = [row for row in rows if row.offset != self.offset]
        found: list[Mark] = []

        def look(cursor: DBAPICursor, place: Place) -> None:
            found[:] = [m for m in _read(cursor, place, [name]) if m.offset != JOINED]

        def begin(cursor: DBAPICursor, place: Place) -> None:
            _write(cursor, place, others)
            look(cursor, place)

        if others and self._try(look, patient=True) is Fault.MISSING:
            self._try(_create, patient=True)  # unless somebody else does it at the same time
        if len(found) < len(others):
            self._keeps_none_until = 0.0
            self._do(begin, patient=True)
        return max((mark.number for mark in found), default=0)

    def write_joined(self, mark: Mark) -> None:
        """Write where servers that joined began."""
        self._do(lambda cursor, place: _write(cursor, place, [mark]), patient=True)

    def kept(self, name: str) -> dict[int, int] | None:
        """The marks of a sequence by offset, as they stand there; None when it cannot tell now."""
        found: list[Mark] = []

        def look(cursor: DBAPICursor, place: Place) -> None:
            found[:] = _read(cursor, place, [name])

        fault = self._try(look, patient=True)
        if fault is None or fault in _HAS_NONE:
            return {mark.offset: mark.number for mark in found}
        return None

    def delete(self, name: str) -> None:
        """Delete the marks of a sequence, whoever wrote them."""

        def delete(cursor: DBAPICursor, place: Place) -> None:
            place.send(cursor, DeleteMarks(), sequence=name)

        self._do(delete, patient=True)

    def forget(self, name: str, server: TicketServer | None = None) -> None:
        """Ask for the marks of one server's sequence again; of all of them, begin a new life."""
        for key in list(self._tokens):
            if key[1] == name and (server is None or key[0] == server.offset):
                self._met.discard(key)
                if server is None:
                    self._tokens.pop(key, None)
                    self._written.pop(key, None)
                    self._ends.pop(key, None)

    # -- asking the server

    def _do(self, work: Work, *, patient: bool = False) -> bool:
        """Whether ``work`` was done; a server that cannot keep marks is left alone for a while."""
        fault = self._try(work, patient=patient)
        if fault in _HAS_NONE:
            if not self._keeps_none_until:
                log.info(
                    "%s keeps no marks of its peers (%s: %s): a process that starts cannot tell there that"
                    " one of them was set back. pool.create_table() makes the table, once the ticket user"
                    " may CREATE it; it needs SELECT, INSERT, UPDATE and DELETE on it.",
                    self.server,
                    MARKS,
                    fault.value,
                )
            self._keeps_none_until = time.monotonic() + LATER
        return fault is None

    def _try(self, work: Work, *, patient: bool = False) -> Fault | None:
        begun = object()
        if not patient and self.server.engine.dialect.name == "sqlite":
            work = functools.partial(_briefly, work)
        self._since[begun] = time.monotonic()
        try:
            for _ in range(ATTEMPTS):
                try:
                    self.server.use(work)
                except Exception as error:  # noqa: BLE001  # no draw is to fail for it
                    fault = fault_of(error)
                    log.debug("the marks on %s: %s", self.server, fault.value)
                    if fault is not Fault.AGAIN:
                        return fault
                else:
                    return None
            return Fault.AGAIN
        finally:
            self._since.pop(begun, None)


def _briefly(work: Work, cursor: DBAPICursor, place: Place) -> None:
    """Do ``work`` within a draw, on a SQLite file, unless others hold it for too long."""
    cursor.execute("PRAGMA busy_timeout", ())
    ((usual,),) = cursor.fetchall()
    _wait_for_others(cursor, BRIEF)
    work(cursor, place)
    _wait_for_others(cursor, int(usual))


def _wait_for_others(cursor: DBAPICursor, milliseconds: int) -> None:
    cursor.execute(f"PRAGMA busy_timeout = {milliseconds}", ())
    cursor.fetchall()


def _create(cursor: DBAPICursor, place: Place) -> None:
    place.send(cursor, CreateMarks())
    if place.dialect.name not in ("mysql", "mariadb") and place.dialect.supports_comments:
        place.send(cursor, NoteMarks())


def _write(cursor: DBAPICursor, place: Place, marks: Sequence[Mark]) -> None:
    names = {f"sequence_{n}": mark.sequence for n, mark in enumerate(marks)}
    place.send(cursor, WriteMarks(marks), **names)


def _read(cursor: DBAPICursor, place: Place, names: Sequence[str]) -> list[Mark]:
    asked = {f"sequence_{n}": name for n, name in enumerate(names)}
    place.send(cursor, ReadMarks(place.stride, len(names)), **asked)
    return [
        Mark(str(name), place.stride, int(offset), int(token), int(number))
        for name, offset, token, number in cursor.fetchall()
    ]
