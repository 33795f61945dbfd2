"""Tables, rows and transactions in memory, and what a crash leaves of them.

A row has its latest values and, while a transaction has changed it, those before. A client that reads without a lock sees the
latter. The lock of a row is held by one transaction and waited for in a queue. What was committed and is not on the
disk yet is kept as a list of what to undo, so that a durable commit costs nothing.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import Any, Final, NamedTuple

from tests.simulation.models.expressions import Function, Value, Values

__all__ = [
    "FLUSHED_EACH_SECONDS",
    "Change",
    "Check",
    "Column",
    "Image",
    "Key",
    "LockWait",
    "Row",
    "Store",
    "Table",
    "TableImage",
    "TableKey",
    "Transaction",
]

#: The name of a database, or a schema, and that of a table.
TableKey = tuple[str, str]


@dataclass(frozen=True)
class Column:
    """A column.

    Attributes:
        name: as it was written.
        type_: as the server's catalog writes it.
        least: of an integer, the smallest number; None of a text.
        largest: of an integer, the largest number; of a text, the number of characters.
        default: the default, if it has one.
        has_default: whether it has one.
        counts: whether it is AUTO_INCREMENT.
    """

    name: str
    type_: str
    least: int | None
    largest: int
    default: Value = None
    has_default: bool = False
    counts: bool = False


@dataclass(frozen=True)
class Check:
    """A CHECK constraint: its name, its text as it was written, and its function."""

    name: str
    text: str
    holds: Function


@dataclass(frozen=True)
class Key:
    """A unique key.

    Attributes:
        name: its name.
        columns: the positions of its columns.
        of: the key of a row: a tuple, or the value of the only column.
    """

    name: str
    columns: tuple[int, ...]
    of: Callable[[Values], Any] = field(init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "of", itemgetter(*self.columns))


class LockWait:
    """A transaction that waits for the lock of a row.

    Attributes:
        transaction: that waits.
        row: whose lock it wants.
        with_gap: whether it wants the gap before the row's entry in an index, too (InnoDB).
        is_granted: whether it holds the lock now.
    """

    __slots__ = ("is_granted", "row", "transaction", "with_gap")

    def __init__(self, transaction: Transaction, row: Row, with_gap: bool) -> None:
        self.transaction, self.row, self.with_gap = transaction, row, with_gap
        self.is_granted = False

    def blockers(self) -> Iterator[object]:
        """The sessions that it waits for."""
        if self.row.owner is not None:
            yield self.row.owner.session
        for wait in self.row.waits:
            if wait is self:
                return
            yield wait.transaction.session


class Row:
    """A row.

    Attributes:
        serial: tells it from others of its server, in the order of their creation.
        values: the latest; None when it is deleted.
        before: those before the changes of ``changed_by``; None when that has inserted it.
        changed_by: the transaction that has changed it and is not over.
        owner: the transaction that holds its lock.
        waits: for its lock, in order.
    """

    __slots__ = ("before", "changed_by", "owner", "serial", "values", "waits")

    def __init__(self, serial: int, values: Values | None) -> None:
        self.serial, self.values = serial, values
        self.before: Values | None = None
        self.changed_by: Transaction | None = None
        self.owner: Transaction | None = None
        self.waits: list[LockWait] = []

    def seen_by(self, transaction: Transaction | None) -> Values | None:
        """The values that a reader without a lock sees; None when there is no row for it."""
        if self.changed_by is None or self.changed_by is transaction:
            return self.values
        return self.before

    def unlock(self, pick: Callable[[int], int]) -> bool:
        """Hand the lock on to the one in the queue that is picked; False where there is none."""
        self.owner = None
        if not self.waits:
            return False
        wait = self.waits.pop(pick(len(self.waits)))
        self.owner = wait.transaction
        wait.transaction.locked.append(self)
        wait.is_granted = True
        return True


class Change(NamedTuple):
    """One change of a row; ``before`` is None of an inserted one."""

    table: Table
    row: Row
    before: Values | None


class Transaction:
    """What a session has changed and locked since its transaction began.

    Attributes:
        session: whose it is.
        changes: in their order.
        locked: the rows whose locks it holds.
    """

    __slots__ = ("changes", "locked", "session")

    def __init__(self, session: object) -> None:
        self.session = session
        self.changes: list[Change] = []
        self.locked: list[Row] = []


@dataclass
class Table:
    """A table.

    Attributes:
        key: the names of its database and its own.
        columns: in their order.
        keys: the unique keys, the primary key first where there is one.
        checks: its CHECK constraints.
        comment: its comment.
        engine: the storage engine, on MySQL and MariaDB.
        counter: the least number that AUTO_INCREMENT gives next; None while a restart has forgotten it.
        persisted: what MariaDB has of the counter on the disk, which a restart goes on above.
        stepped: by which stride and offset its latest number was generated.
        rows: by their serial numbers.
        plans: the statements that were bound to its columns, by their text.
        oid: its number, on PostgreSQL; another table of the same name has another one.
    """

    key: TableKey
    columns: tuple[Column, ...]
    keys: tuple[Key, ...]
    checks: tuple[Check, ...] = ()
    comment: str = ""
    engine: str = "InnoDB"
    counter: int | None = 1
    persisted: int = 0
    stepped: tuple[int, int] = (1, 1)
    rows: dict[int, Row] = field(default_factory=dict)
    plans: dict[str, Any] = field(default_factory=dict)
    oid: int = 0
    positions: dict[str, int] = field(init=False)
    indexes: tuple[dict[Any, Row], ...] = field(init=False)
    counting: int | None = field(init=False)
    _unique: tuple[tuple[Callable[[Values], Any], dict[Any, Row]], ...] = field(init=False)

    def __post_init__(self) -> None:
        self.positions = {column.name.lower(): n for n, column in enumerate(self.columns)}
        self.counting = next((n for n, column in enumerate(self.columns) if column.counts), None)
        self.indexes = tuple({} for _ in self.keys)
        self._unique = tuple(zip((key.of for key in self.keys), self.indexes, strict=True))
        for row in self.rows.values():
            if row.values is not None:
                self._add(row, row.values)

    def _add(self, row: Row, values: Values) -> None:
        for of, index in self._unique:
            index[of(values)] = row

    def _remove(self, row: Row, values: Values) -> None:
        for of, index in self._unique:
            if index.get(of(values)) is row:
                del index[of(values)]

    def conflict(
        self, values: Values, transaction: Transaction, but: Row | None = None
    ) -> tuple[int, Row] | None:
        """The first unique key that another row holds already, and that row; it may be one that is being deleted."""
        for n, (of, index) in enumerate(self._unique):
            row = index.get(of(values))
            if row is None or row is but:
                continue
            if row.values is not None or row.changed_by is not transaction:
                return n, row
        return None

    def set(self, transaction: Transaction, row: Row, values: Values | None) -> None:
        """Change a row, insert it, or delete it (None). The transaction holds its lock."""
        before = row.values
        transaction.changes.append(Change(self, row, before))
        if row.changed_by is not transaction:
            row.changed_by, row.before = transaction, before
        self._put(row, before, values)

    def _put(self, row: Row, before: Values | None, values: Values | None) -> None:
        row.values = values
        if values is None:
            return
        if before is None:
            self.rows[row.serial] = row
            self._add(row, values)
            return
        for of, index in self._unique:
            old, new = of(before), of(values)
            if old != new:
                if index.get(old) is row:
                    del index[old]
                index[new] = row

    def undo(self, change: Change) -> None:
        """Take a change back, the latest first."""
        row = change.row
        if row.values is not None:
            self._remove(row, row.values)
        row.values = change.before
        if change.before is None:
            self.rows.pop(row.serial, None)
        else:
            self._add(row, change.before)

    def forget_deleted(self, row: Row, before: Values | None) -> None:
        """The deletion of a row was committed."""
        self.rows.pop(row.serial, None)
        for index in self.indexes:
            for key in [key for key, held in index.items() if held is row]:
                del index[key]

    def largest_number(self) -> int:
        """The largest number in the column that counts; 0 in an empty table."""
        assert self.counting is not None
        numbers = [row.values[self.counting] for row in self.rows.values() if row.values]
        return max((int(number or 0) for number in numbers), default=0)

    def altered(self, **changes: Any) -> Table:
        """The table with another definition, and the same rows."""
        return replace(self, plans={}, stepped=(1, 1), **changes)


class TableImage(NamedTuple):
    """What is durable of a table."""

    table: Table
    counter: int | None
    rows: dict[int, Values]
    persisted: int


Image = dict[TableKey, TableImage]


class _Unflushed(NamedTuple):
    """A commit that is not on the disk yet; or a counter that went on (``counter`` is where it stood)."""

    at: float
    changes: Sequence[Change]
    table: Table | None = None
    counter: int | None = None


#: A server that does not flush each commit flushes them once in a second (MySQL manual, innodb_flush_log_at_timeout).
FLUSHED_EACH_SECONDS: Final = 1.0


class Store:
    """All tables of a server since its start.

    Attributes:
        tables: by their keys.
        position: how many commits, and steps of counters, there were since the start.
        pick: which of so many that wait for a row is served next.
    """

    def __init__(self, image: Image, pick: Callable[[int], int] = lambda waiting: 0) -> None:
        self.pick = pick
        self.position = 0
        self.tables: dict[TableKey, Table] = {}
        self._serials = itertools.count(1)
        self._unflushed: deque[_Unflushed] = deque()
        for key, saved in image.items():
            rows = {serial: Row(serial, values) for serial, values in saved.rows.items()}
            self.tables[key] = saved.table.altered(
                rows=rows, counter=saved.counter, persisted=saved.persisted
            )
            self._serials = itertools.count(max([*saved.rows, next(self._serials)]) + 1)

    def new_row(self) -> Row:
        """A row that is not in a table yet."""
        return Row(next(self._serials), None)

    def end(self, transaction: Transaction) -> bool:
        """Give up the locks of a transaction that was committed or rolled back; whether others wait for one."""
        locked = transaction.locked
        if not locked:
            return False
        transaction.locked = []
        served = False
        for row in locked:
            served = row.unlock(self.pick) or served
        return served

    def commit(self, transaction: Transaction, now: float) -> bool:
        """Let everybody see the changes; whether there were any. They are not durable before `flush`."""
        changes = transaction.changes
        if not changes:
            return False
        transaction.changes = []
        for change in changes:
            row = change.row
            if row.changed_by is transaction:
                row.changed_by = None
                if row.values is None:
                    change.table.forget_deleted(row, row.before)
        self._append(_Unflushed(now, changes))
        return True

    def rollback(self, transaction: Transaction, to: int = 0) -> None:
        """Take changes back, down to the first ``to`` of them."""
        changes = transaction.changes
        while len(changes) > to:
            change = changes.pop()
            change.table.undo(change)
            if not any(other.row is change.row for other in changes):
                change.row.changed_by = None

    def count_on(self, table: Table, counter: int, now: float) -> None:
        """Set the counter of a table, of which the disk knows with the next flush."""
        self._append(_Unflushed(now, (), table, table.counter))
        table.counter = counter

    def _append(self, one: _Unflushed) -> None:
        self._unflushed.append(one)
        self.position += 1

    def flush(self, up_to: int | None = None) -> None:
        """All that was committed is durable from now on, or what was by the time of a `position`."""
        if up_to is None or up_to == self.position:
            self._unflushed.clear()
            return
        while len(self._unflushed) > self.position - up_to:
            self._unflushed.popleft()

    def flush_before(self, moment: float) -> None:
        """All that was committed before a moment is durable from now on."""
        while self._unflushed and self._unflushed[0].at < moment:
            self._unflushed.popleft()

    @property
    def unflushed(self) -> int:
        """How many commits, and steps of counters, are not on the disk yet."""
        return len(self._unflushed)

    def image(self, lost: int = 0) -> Image:
        """What is on the disk.

        Args:
            lost: how many of the latest `unflushed` are not.
        """
        found = {
            key: TableImage(
                table, table.counter, dict(_committed(table.rows.values())), table.persisted
            )
            for key, table in self.tables.items()
        }
        for one in itertools.islice(reversed(self._unflushed), lost):
            if one.table is not None and one.table.key in found:
                saved = found[one.table.key]
                found[one.table.key] = saved._replace(counter=one.counter)
            for change in reversed(one.changes):
                if change.table.key not in found:
                    continue
                rows = found[change.table.key].rows
                if change.before is None:
                    rows.pop(change.row.serial, None)
                else:
                    rows[change.row.serial] = change.before
        return found


def _committed(rows: Iterable[Row]) -> Iterator[tuple[int, Values]]:
    for row in rows:
        values = row.seen_by(None)
        if values is not None:
            yield row.serial, values
