"""The store of high-water marks on one ticket server: reads and writes the marks of its peers."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from itertools import repeat
from typing import NamedTuple, TypeVar, cast

from sqlalchemy import ClauseElement
from sqlalchemy.engine.interfaces import DBAPICursor

from ..concurrency import SharedCall, in_background, time
from ..connect.connection import Connection
from ..connect.cursor import DrawCursor
from ..connect.engines import in_memory
from ..connect.identity import Identity
from ..dialects import ErrorKind
from ..draw.access import ServerAccess
from ..draw.table_state import TicketTable
from ..errors import TicketError, TicketServerError
from ..tables import inspection
from ..tables.context import StatementContext
from ..tables.metadata import Tombstone
from .statements import (
    JOINED,
    MARKS,
    Mark,
    creation,
    deletion,
    raise_one,
    raise_smaller_strides,
    retirements_ended,
    rows_of,
    upsert,
)
from .timing import TIMING

log = logging.getLogger("sqla_tickets.high_water.service")
T = TypeVar("T")
Work = Callable[[StatementContext], T]

_HAS_NONE = (
    ErrorKind.TABLE_MISSING,
    ErrorKind.ACCESS_DENIED,
    ErrorKind.SCHEMA_MISMATCH,
    ErrorKind.SYNTAX_ERROR,
)


class Written(NamedTuple):
    """A mark that was sent to a server.

    Attributes:
        mark: the mark.
        identity: the server that answered; None if unknown.
        stored: the number that it stores now, as its answer shows; None where only a read shows that.
    """

    mark: Mark
    identity: Identity | None
    stored: int | None


class HighWaterStore:
    """Stores the peers' high-water marks on one ticket server.

    No method raises: the pool does without a server that fails.

    Attributes:
        server: the server.
        offset: its residue class.
        write_error: why it did not store the last marks; None if it did.
    """

    def __init__(self, server: ServerAccess) -> None:
        self.server, self.offset = server, server.offset
        self._keeps_none_until = 0.0
        self._read_error: ErrorKind | None = None
        self.write_error: ErrorKind | None = None
        self.reinit_after_fork()

    def __str__(self) -> str:
        return str(self.server)

    def reinit_after_fork(self) -> None:
        """In a fork: forget the parent's requests, for which no thread waits here."""
        self._asking: dict[SharedCall, float] = {}

    # -- whether and how it is asked

    @property
    def takes_marks(self) -> bool:
        """Whether it takes marks if it answers: it has not failed, and has a table of marks."""
        keeps_marks = time.monotonic() >= self._keeps_none_until
        return self.server.breaker.is_closed and keeps_marks and not in_memory(self.server.engine)

    @property
    def takes_no_writes(self) -> bool:
        """Whether it refused the last marks as read-only, or for lack of space."""
        return self.write_error in (ErrorKind.READ_ONLY, ErrorKind.DISK_FULL)

    @property
    def is_well(self) -> bool:
        """Whether it takes marks now: it has not failed, is not unresponsive, and has a table of marks."""
        return self.server.breaker.is_closed and self.may_be_asked()

    def patience_seconds(self, *, is_required: bool) -> float:
        """How long a draw waits for it; if it is required, as long as for the server that it draws from."""
        least = TIMING.patience_seconds
        return max(least, self.server.timeouts.draw_seconds) if is_required else least

    def may_be_asked(self, *, is_required: bool = False) -> bool:
        """Whether it may be asked for marks; a read-only server can still answer.

        A server that only seems unresponsive is asked, too: else a lost number would go unnoticed.

        Args:
            is_required: whether nothing is drawn without it. Then it is asked even if it had no marks a moment ago,
                or is slow.
        """
        now, reason = time.monotonic(), self.server.breaker.reason
        patience = self.patience_seconds(is_required=is_required)
        return (
            (reason is None or reason.kind == ErrorKind.READ_ONLY.word)
            and (is_required or now >= self._keeps_none_until)
            and not any(
                not (asks.is_over or asks.is_suspended) and now - since >= patience
                for asks, since in list(self._asking.items())
            )
            # a database in memory ends with this process
            and not in_memory(self.server.engine)
        )

    def why_no_mark(
        self, drawn: ServerAccess, table: TicketTable, over: Connection | ServerAccess
    ) -> str:
        """Why it has reported no mark of a peer's table."""
        if self.server.is_also(drawn, over=over):
            return "it is the same server"
        if self.server in table.refuted_marks:
            return f"its mark {table.refuted_marks[self.server]} cannot be true"
        if in_memory(self.server.engine):
            return "it is in this process's memory"
        if self.server.breaker.reason is not None:
            return str(self.server.breaker.reason).removeprefix(f"{self.server}: ")
        if self._read_error in _HAS_NONE:
            return f"this user cannot read its table {MARKS}: {self._read_error.value}"
        return "no answer in time" if self._read_error is None else self._read_error.value

    @property
    def waits_in_thread(self) -> bool:
        """Whether `begin` starts a thread, which waits for the server."""
        is_embedded = self.server.context.dialect.is_embedded
        return not is_embedded and not self.server.is_async

    def begin(self, work: Callable[[], None]) -> bool:
        """Do ``work`` in the background; False if it could not be started."""
        if self.server.context.dialect.is_embedded:
            # a file is never unresponsive; SQLite may crash after a fork during another thread's call, and aiosqlite
            # when its loop ends during a task
            return at_once(work)
        name = f"sqla_tickets marks on {self.server}"
        return in_background(work, name, in_a_task=self.server.is_async)

    # -- reading

    def read(
        self, names: Collection[str], *, patient: bool = False
    ) -> tuple[Identity | None, list[Mark]] | None:
        """The marks of some sequences, and the server's identity; None if it fails, or its address leads elsewhere.

        Where servers with a larger stride joined, too.

        Args:
            names: the names of the sequences.
            patient: whether it may wait for other writers.
        """

        def read_marks(context: StatementContext) -> tuple[Identity | None, list[Mark]]:
            return context.identity, _read(names, context)

        answer, self._read_error = self._do(read_marks, patient=patient)
        return answer if answer is not None and self.server.leads_to(answer[0]) else None

    def shown(self, name: str) -> list[int | None]:
        """The server's own number of a sequence, by which marks are judged; None if unknown."""

        def read_shown(context: StatementContext) -> list[int | None]:
            marks = _read_own([name], context)
            joined = [mark.number for mark in marks if mark.offset == JOINED]
            return [*joined, _number(name, context)]

        return self._do(read_shown)[0] or [None]

    def kept(self, name: str, stride: int | None = None) -> dict[int, int] | None:
        """The numbers of `rows`, by offset."""
        rows = self.rows(name, stride)
        return None if rows is None else {mark.offset: mark.number for mark in rows}

    def rows(self, name: str, stride: int | None = None) -> list[Mark] | None:
        """The stored marks of a sequence; none where it keeps no marks, and None if the server does not answer.

        It waits for as long as a draw does, since no draw waits for this call.

        Args:
            name: the sequence's name.
            stride: the stride with which they were written; None for the pool's.
        """

        def read_rows(context: StatementContext) -> list[Mark]:
            return _read_own([name], replace(context, stride=stride or context.stride))

        rows, error = self._try(read_rows, patient=True)
        return [] if rows is None and error in _HAS_NONE else rows

    def number(self, statement: ClauseElement) -> int | None:
        """The single number that a statement about marks reads; None if there is none, or the statement fails."""

        def read_number(context: StatementContext) -> int | None:
            rows = context.rows(statement)
            return max((int(n) for (n,) in rows if n is not None), default=None)

        return self._try(read_number, patient=True)[0]

    def last_ticket(self, name: str) -> int | None:
        """The largest ticket in the server's own table of a sequence; None if unknown."""
        return self._try(functools.partial(_number, name))[0]

    # -- writing

    def write(self, marks: Collection[Mark], *, patient: bool = False) -> list[Written]:
        """Raise marks, or write missing ones; returns the marks that were sent.

        The server ignores a mark whose token differs from the stored one.

        Args:
            marks: the marks.
            patient: whether it may wait for other writers.
        """
        written: list[Written] = []
        ordered = sorted(marks)  # so that two processes do not deadlock
        for start in range(0, len(ordered), TIMING.marks_at_once):
            part = ordered[start : start + TIMING.marks_at_once]
            answer, self.write_error = self._do(functools.partial(_write, part), patient=patient)
            if answer is not None:
                identity, stored = answer
                if not self.server.leads_to(identity):
                    stored = [None] * len(part)
                written += map(Written, part, repeat(identity), stored)
        return written

    def prepare(self, name: str, rows: Collection[Mark]) -> list[Mark] | None:
        """Create the table of marks where it is missing, and a sequence's rows where it has none.

        Returns:
            The rows that the server keeps of the sequence; None if it does not answer.
        """
        others = [row for row in rows if row.offset != self.offset]
        read_rows = functools.partial(_read_own, [name])

        def begin(context: StatementContext) -> list[Mark]:
            _write(others, context)
            return read_rows(context)

        if not others and in_memory(self.server.engine):
            return []  # no server can join later
        found, error = self._try(read_rows, patient=True)
        if found is None and error not in _HAS_NONE:
            return None
        if error is ErrorKind.TABLE_MISSING:
            self._try(_create, patient=True)  # unless another process does it at the same time
        has_fewer = sum(mark.offset > JOINED for mark in found or []) < len(others)
        if has_fewer or error is ErrorKind.TABLE_MISSING:
            self._keeps_none_until = 0.0
        if has_fewer:
            found = self._do(begin, patient=True)[0] or found
        return found or []

    def end_retirements(self, name: str, offsets: Collection[int]) -> bool:
        """Delete the rows that say that some servers have retired; False if there may be one still."""
        kept = self.kept(name)
        if kept is None or not any(-offset in kept for offset in offsets):
            return kept is not None

        def end(context: StatementContext) -> None:
            context.send(retirements_ended(context.stride, name, offsets))

        return self._do(end, patient=True)[1] is None

    def delete(self, name: str) -> None:
        """Delete the marks of a sequence, for all processes."""

        def delete(context: StatementContext) -> None:
            for statement in deletion(context.stride, name):
                context.send(statement)

        self._do(delete, patient=True)

    def raise_smaller_strides(self, name: str, number: int) -> None:
        """Raise the marks of a sequence that were written with a smaller stride."""

        def raise_marks(context: StatementContext) -> None:
            context.send(raise_smaller_strides(context.stride, name, number))

        self._do(raise_marks, patient=True)

    # -- asking the server

    def _do(self, work: Work[T], *, patient: bool = False) -> tuple[T | None, ErrorKind | None]:
        """The answer of ``work``, or why there is none; a server without a table of marks is skipped for a while."""
        answer, kind = self._try(work, patient=patient)
        if kind in _HAS_NONE:
            if not self._keeps_none_until:
                log.info(
                    "%s keeps no marks of its peers (%s: %s): a new process cannot learn from it that a peer "
                    "was set back. Let the user of the migrations run `sqla-tickets create` for its sequences, and "
                    "grant the ticket user SELECT, INSERT, UPDATE and DELETE on the new table.",
                    self.server,
                    MARKS,
                    kind.value,
                )
            self._keeps_none_until = time.monotonic() + TIMING.ask_again_seconds
        return answer, kind

    def _try(self, work: Work[T], *, patient: bool = False) -> tuple[T | None, ErrorKind | None]:
        call = SharedCall()  # until the answer has come, or no caller waits for it
        briefly = not patient and self.server.context.dialect.is_embedded
        answers: list[T] = []

        def ask(context: StatementContext) -> None:
            # opening a connection has a time limit of its own
            self._asking[call] = time.monotonic()
            answers[:] = [_briefly(work, context) if briefly else work(context)]

        with call.under_way:
            try:
                self._asking[call] = time.monotonic()
                for _ in range(TIMING.max_attempts):
                    try:
                        self.server.use(ask)
                    except Exception as error:  # noqa: BLE001  # no draw is to fail for it
                        kind = self._kind(error)
                        log.debug("the marks on %s: %s", self.server, kind.value)
                        if kind is not ErrorKind.DEADLOCK:
                            return None, kind
                    else:
                        return answers[0], None
                return None, ErrorKind.DEADLOCK
            finally:
                self._asking.pop(call, None)

    def _kind(self, error: Exception) -> ErrorKind:
        if isinstance(error, TicketServerError):  # no connection was opened: it may keep marks
            return ErrorKind.DISCONNECTED
        return self.server.context.dialect.error_kind(error)


def at_once(work: Callable[[], None]) -> bool:
    """Do ``work`` in the caller's thread, and return True, as `HighWaterStore.begin` does."""
    work()
    return True


def _briefly(work: Work[T], context: StatementContext) -> T:
    """Do ``work`` within a draw, on a SQLite file; gives up if the file stays locked."""
    context.cursor.execute("PRAGMA busy_timeout", ())
    ((usual,),) = context.cursor.fetchall()
    _wait_for_others(context.cursor, TIMING.sqlite_lock_milliseconds)
    answer = work(context)
    _wait_for_others(context.cursor, int(usual))
    return answer


def _wait_for_others(cursor: DBAPICursor, milliseconds: int) -> None:
    cursor.execute(f"PRAGMA busy_timeout = {milliseconds}", ())
    cursor.fetchall()


def _number(name: str, context: StatementContext) -> int | None:
    """The sequence's number on this server; None if unknown."""
    try:
        found = inspection.describe(context, name)
    except TicketError:
        return None
    if isinstance(found, Tombstone):
        return found.high_water
    return None if found is None else inspection.number(context, name, found.layout, found.stub)


def _create(context: StatementContext) -> None:
    for statement in creation(context.dialect):
        context.send(statement)


def _write(
    marks: Sequence[Mark], context: StatementContext
) -> tuple[Identity | None, list[int | None]]:
    """Send marks; returns the server's identity, and the numbers that it stores now where its answers show them."""
    stored = [_raise(mark, context) for mark in marks] if len(marks) <= TIMING.marks_singly else []
    if not stored or None in stored:
        statement, values = upsert(context.dialect, marks)
        changed = context.send(statement, **values)
        are_raised = changed == len(marks) * context.dialect.rows_per_raised_row
        stored = [mark.number if are_raised else None for mark in marks]
    return context.identity, stored


def _raise(mark: Mark, context: StatementContext) -> int | None:
    """Raise a mark that is there; returns the stored one, or None if there is none, or no answer shows it."""
    statement = raise_one(context.dialect, mark)
    if statement is None:
        return None
    return cast("DrawCursor", context.cursor).insert(*statement.arguments()) or None


def _read(names: Collection[str], context: StatementContext) -> list[Mark]:
    """The marks of the own stride, and where servers with a larger one joined."""
    statement, values = rows_of(context.dialect, context.stride, names)
    return [
        Mark(str(name), int(stride), int(offset), int(token), int(number))
        for name, stride, offset, token, number in context.rows(statement, **values)
    ]


def _read_own(names: Collection[str], context: StatementContext) -> list[Mark]:
    return [mark for mark in _read(names, context) if mark.stride == context.stride]
