"""The two layouts of a ticket table, each with its statements for a draw.

A layout knows statements and numbers. It knows nothing of pools, and of connections only the cursor that
it gets; its caller retries. It always returns blocks: ascending arithmetic progressions.

``replace`` is Flickr's table. Only its AUTO_INCREMENT counter counts, not its row, since InnoDB takes the number
before it waits for the row. So a block is drawn while every other client is locked out: ``LOCK TABLES``, a REPLACE
that draws the first ticket, a REPLACE that names the last.

A block locks the table, a single ticket does not. Four exceptions:

- While many clients draw single tickets, these queue for a named lock first, so that few clients replace the row at
  once: the more wait for a row, the slower InnoDB serves them, and the less fairly. The queue only orders them. Who
  waits for it in vain, or does not know it, draws without it, and each REPLACE commits by itself, as ever.
- For a while after a single ticket has waited in vain, single tickets lock too: blocks may have starved it.
- A block is drawn without the lock after its draw has waited for it in vain.
- Nothing is locked if the user lacks the privilege, a proxy splits the statements, or the server's version forgets
  its counter.

``counter`` is one row, raised by one atomic UPDATE, without a lock.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any, ClassVar, Protocol

from ..concurrency import random, time
from ..connect.cursor import DrawCursor
from ..dialects import ErrorKind, LayoutName, Statement, TicketDialect
from ..errors import OutOfStep


class Layout(Protocol):
    """The columns of a ticket table, and its draw statements.

    `draw.server` draws, and says whether the draw has waited before. After an attempt's error, `draw.slow_path` calls
    `lock_timed_out` and `adapts`. Both call `took_long`.

    Attributes:
        name: the layout's name.
        stub: the name of the table's stub column.
    """

    name: LayoutName
    stub: str

    def draw(self, cursor: DrawCursor, n: int, *, has_waited: bool = False) -> list[range]:
        """Draw up to ``n`` tickets, at least one. A counter without its row returns none.

        Args:
            cursor: a cursor of a connection in autocommit. After an error the connection may hold a lock.
            n: how many tickets are wanted.
            has_waited: whether this draw has waited for the table's lock in vain.
        """
        ...

    def lock_timed_out(self, n: int) -> None:
        """Record that a draw of ``n`` tickets has waited for another client's lock in vain."""
        ...

    def took_long(self, n: int, seconds: float) -> None:
        """Record that a draw of ``n`` tickets took so long that many other clients may draw, too."""
        ...

    def adapts(self, kind: ErrorKind, n: int) -> bool:
        """Whether the layout can draw in another way after such an error; if so, the next call does."""
        ...


class ReplaceLayout:
    """Flickr's table: ``id`` AUTO_INCREMENT, ``stub`` unique."""

    name: LayoutName = "replace"
    #: How many statements a packet has that queues.
    _queued_statements: ClassVar[int] = 3
    #: How many tickets are drawn one by one before the table's lock is tried again.
    _max_singles: ClassVar[int] = 50
    #: How long single tickets lock the table after one of them has waited in vain, or queue after two have waited long.
    _careful_seconds: ClassVar[float] = 10.0
    #: How far apart these two are at most: a server that stands still once is not crowded.
    _took_long_again_seconds: ClassVar[float] = 1.0
    #: A queue that takes so long has been waited for in vain: somebody may stay in it.
    _vain_seconds: ClassVar[float] = 1.0

    def __init__(
        self, table: str, dialect: TicketDialect, stride: int, offset: int, stub: str
    ) -> None:
        self.stub, self._stride = stub, stride
        one = dialect.replace_ticket(table, stride, offset, stub)
        self._single = one.arguments()
        self._last = dialect.replace_up_to(table, stride, offset, stub)
        lock = dialect.lock_table(table)
        assert lock is not None  # of every dialect with this layout
        self._lock, self._unlock = lock.text, dialect.unlock_tables().text
        self._packet = "; ".join((self._lock, one.text, self._last.text, self._unlock))
        self._may_lock = dialect.keeps_counter()
        self._sends_one_packet = True
        #: A packet for each queue; none if the server refuses queues.
        self._queued = [
            Statement(f"{join}; {one}; {leave}").arguments()
            for join, leave in map(partial(dialect.queue, table), range(dialect.queues))
        ]
        #: Until when single tickets lock, or queue, by ``time.monotonic()``; 0.0 if they do not.
        self._lock_singles_until = self._queue_singles_until = 0.0
        self._took_long_at = self._may_queue_from = -math.inf

    def draw(self, cursor: DrawCursor, n: int, *, has_waited: bool = False) -> list[range]:
        locks_singles = self._lock_singles_until and time.monotonic() < self._lock_singles_until
        if self._may_lock and (locks_singles if n == 1 else not has_waited):
            return self._draw_block(cursor, n)
        blocks: list[range] = []
        for _ in range(min(n, self._max_singles)):
            may_queue = n == 1 and self._queue_singles_until
            ticket = self._draw_in_queue(cursor) if may_queue else None
            if ticket is None:
                ticket = cursor.insert(*self._single)
            if not ticket:
                return []
            blocks.append(range(ticket, ticket + self._stride, self._stride))
        return blocks

    def lock_timed_out(self, n: int) -> None:
        if n == 1:
            now, until = time.monotonic(), self._lock_singles_until
            self._lock_singles_until = 0.0 if now < until else now + self._careful_seconds

    def took_long(self, n: int, seconds: float) -> None:
        if n > 1:
            return
        now, before = time.monotonic(), self._took_long_at
        self._took_long_at = now
        if self._queue_singles_until and seconds >= self._vain_seconds:
            self._queue_singles_until, self._may_queue_from = 0.0, now + self._careful_seconds
        elif now - before < self._took_long_again_seconds and now > self._may_queue_from:
            self._queue_singles_until = now + self._careful_seconds

    def adapts(self, kind: ErrorKind, n: int) -> bool:
        if kind is ErrorKind.SYNTAX_ERROR and self._sends_one_packet:
            self._sends_one_packet = False  # the connection takes single statements
            return True
        if kind is not ErrorKind.ACCESS_DENIED:
            return False
        if self._may_lock and (n > 1 or self._lock_singles_until):
            self._may_lock = False  # LOCK TABLES is a privilege of its own
            return True
        if self._queued and self._queue_singles_until:
            self._queued = []
            return True
        return False

    def _draw_in_queue(self, cursor: DrawCursor) -> int | None:
        """A single ticket from within a queue; None if single tickets do not queue now."""
        queued, is_on = self._queued, time.monotonic() < self._queue_singles_until
        if not (is_on and queued and self._sends_one_packet and hasattr(cursor, "nextset")):
            return None
        cursor.may_hold_lock = True
        # spreads clients, guards no secret
        ticket = cursor.insert(*random.choice(queued), answers=self._queued_statements)
        cursor.may_hold_lock = False
        return ticket

    def _draw_block(self, cursor: DrawCursor, n: int) -> list[range]:
        span = self._stride * (n - 1)
        parameters = self._last.parameters(span=span)
        cursor.may_hold_lock = True
        # SQLAlchemy's first 2.0 releases have async cursors that read one answer only
        if self._sends_one_packet and hasattr(cursor, "nextset"):
            cursor.execute(self._packet, parameters)
            number_of_lock = cursor.lastrowid
            cursor.nextset()
            first = cursor.lastrowid
            cursor.nextset()
            last = cursor.lastrowid
            cursor.nextset()
            # SQLAlchemy's async cursors do not show whether there is another answer; a lock has no number
            if number_of_lock or not first or cursor.lastrowid or cursor.nextset():
                raise OutOfStep("expected one answer for each statement")
        else:
            cursor.execute(self._lock, ())
            cursor.execute(*self._single)
            first = cursor.lastrowid
            cursor.execute(self._last.text, parameters)
            last = cursor.lastrowid
            cursor.execute(self._unlock, ())
        cursor.may_hold_lock = False
        if last != first + span:  # a proxy has sent the statements to more than one connection
            self._may_lock = False
            last = first
        return [range(first, last + self._stride, self._stride)] if first else []


class CounterLayout:
    """One row: ``stub`` the primary key, ``id`` the last ticket issued."""

    name: LayoutName = "counter"

    def __init__(
        self, table: str, dialect: TicketDialect, stride: int, offset: int, stub: str
    ) -> None:
        self.stub, self._stride = stub, stride
        self._single = dialect.advance_counter(table, stub, stride).arguments()
        self._block = dialect.advance_counter(table, stub)
        self._returning = dialect.returns_counter

    def draw(self, cursor: DrawCursor, n: int, *, has_waited: bool = False) -> list[range]:
        stride, send = self._stride, cursor.execute if self._returning else cursor.insert
        last: Any
        if n == 1:
            last = send(*self._single)
        else:
            last = send(self._block.text, self._block.parameters(span=stride * n))
        if self._returning:
            rows = cursor.fetchall()
            last = rows[0][0] if rows else 0
        return [range(last - stride * (n - 1), last + stride, stride)] if last else []

    def lock_timed_out(self, n: int) -> None:
        """Do nothing: this layout takes no locks."""

    def took_long(self, n: int, seconds: float) -> None:
        """Do nothing: clients that wait to update a row slow the server down little."""

    def adapts(self, kind: ErrorKind, n: int) -> bool:
        return False


def layout_of(
    name: LayoutName, table: str, dialect: TicketDialect, stride: int, offset: int, stub: str
) -> Layout:
    """The layout of that name for one table, whose stub column has the name ``stub``."""
    kind = ReplaceLayout if name == "replace" else CounterLayout
    return kind(table, dialect, stride, offset, stub)
