"""The two layouts of a ticket table, and how each is drawn from.

A layout knows statements and numbers. It knows no pool, no retries and no connection but the cursor
that it is handed. What comes back is always blocks: ascending arithmetic progressions.

``replace`` is Flickr's table. Its AUTO_INCREMENT counter is the truth, never its row, since InnoDB
takes the number before it waits for the row. So a block may be drawn only while every other client
is locked out: ``LOCK TABLES``, a REPLACE that draws the first ticket, a REPLACE that names the last.

``counter`` is one row, raised by one atomic UPDATE.
"""

from __future__ import annotations

from typing import Final, Protocol

from sqlalchemy import Dialect
from sqlalchemy.engine.interfaces import DBAPICursor

from .compiled import Compiled
from .faults import Fault
from .note import LayoutName
from .statements import AdvanceCounter, LockTicketTable, ReplaceTicket, ReplaceUpTo, UnlockTables

__all__ = ["CounterLayout", "Layout", "ReplaceLayout", "counter_is_kept", "layout_of"]

#: How many tickets are drawn one by one before the table's lock is tried again.
FEW: Final = 50


class Layout(Protocol):
    """How a ticket table looks and is drawn from."""

    name: LayoutName

    def draw(self, cursor: DBAPICursor, n: int, *, lock: bool) -> list[range]:
        """Draw up to ``n`` tickets and at least one; nothing when the table's row is missing.

        Args:
            cursor: of a connection in autocommit. After an error the connection may hold a lock.
            n: how many are wanted.
            lock: whether to draw under the table's lock, where there is one and it can be had.
        """
        ...

    def adapts(self, fault: Fault) -> bool:
        """Whether there is another way to draw, which the next call will go."""
        ...


class ReplaceLayout:
    """Flickr's table: ``id`` AUTO_INCREMENT, ``stub`` unique."""

    name: LayoutName = "replace"

    def __init__(self, table: str, dialect: Dialect, stride: int, offset: int) -> None:
        self._stride = stride
        one = Compiled(ReplaceTicket(table, stride, offset), dialect)
        self._one = one.alone()
        self._last = Compiled(ReplaceUpTo(table, stride, offset), dialect)
        self._lock = Compiled(LockTicketTable(table), dialect).text
        self._unlock = Compiled(UnlockTables(table), dialect).text
        self._packet = "; ".join((self._lock, one.text, self._last.text, self._unlock))
        self._may_lock = counter_is_kept(dialect)
        self._one_packet = True

    def draw(self, cursor: DBAPICursor, n: int, *, lock: bool) -> list[range]:
        if lock and self._may_lock:
            return self._draw_block(cursor, n)
        blocks: list[range] = []
        for _ in range(min(n, FEW)):
            cursor.execute(*self._one)
            ticket = cursor.lastrowid
            if not ticket:
                return []
            blocks.append(range(ticket, ticket + self._stride, self._stride))
        return blocks

    def adapts(self, fault: Fault) -> bool:
        if fault is Fault.SYNTAX and self._one_packet:  # the connection takes single statements
            self._one_packet = False
            return True
        if fault is Fault.DENIED and self._may_lock:  # LOCK TABLES is a privilege of its own
            self._may_lock = False
            return True
        return False

    def _draw_block(self, cursor: DBAPICursor, n: int) -> list[range]:
        span = self._stride * (n - 1)
        parameters = self._last.parameters(span=span)
        # the async cursors of SQLAlchemy's first 2.0 releases read one answer only
        if self._one_packet and hasattr(cursor, "nextset"):
            cursor.execute(self._packet, parameters)
            cursor.nextset()
            first = cursor.lastrowid
            cursor.nextset()
            last = cursor.lastrowid
            cursor.nextset()
        else:
            cursor.execute(self._lock, ())
            cursor.execute(*self._one)
            first = cursor.lastrowid
            cursor.execute(self._last.text, parameters)
            last = cursor.lastrowid
            cursor.execute(self._unlock, ())
        if last != first + span:  # a proxy has sent the statements to more than one connection
            self._may_lock = False
            last = first
        return [range(first, last + self._stride, self._stride)] if first else []


class CounterLayout:
    """One row: ``stub`` the primary key, ``id`` the last ticket issued."""

    name: LayoutName = "counter"

    def __init__(self, table: str, dialect: Dialect, stride: int, offset: int) -> None:
        self._stride = stride
        self._one = Compiled(AdvanceCounter(table, stride), dialect).alone()
        self._many = Compiled(AdvanceCounter(table), dialect)
        self._returning = dialect.name not in ("mysql", "mariadb")

    def draw(self, cursor: DBAPICursor, n: int, *, lock: bool) -> list[range]:
        if n == 1:
            cursor.execute(*self._one)
        else:
            cursor.execute(self._many.text, self._many.parameters(span=self._stride * n))
        if self._returning:
            rows = cursor.fetchall()
            last = rows[0][0] if rows else 0
        else:
            last = cursor.lastrowid
        stride = self._stride
        return [range(last - stride * (n - 1), last + stride, stride)] if last else []

    def adapts(self, fault: Fault) -> bool:
        return False


def layout_of(name: LayoutName, table: str, dialect: Dialect, stride: int, offset: int) -> Layout:
    """The layout of that name for one table."""
    kind = ReplaceLayout if name == "replace" else CounterLayout
    return kind(table, dialect, stride, offset)


def counter_is_kept(dialect: Dialect) -> bool:
    """Whether AUTO_INCREMENT outlives a restart, and follows ids that are named.

    That is so from MySQL 8.0 (manual, "AUTO_INCREMENT Handling in InnoDB") and MariaDB 10.2.4 (MDEV-6076) on.
    """
    since = (10, 2, 4) if getattr(dialect, "is_mariadb", False) else (8, 0)
    version = dialect.server_version_info
    return version is not None and tuple(version) >= since
