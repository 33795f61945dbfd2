"""Statements bound to the columns of one table: what a model runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Generic, NamedTuple, TypeVar, cast

from tests.simulation.models.expressions import (
    Expression,
    Function,
    Parameters,
    SessionState,
    Value,
    Values,
)
from tests.simulation.models.statements import (
    Assignment,
    Condition,
    Delete,
    Insert,
    Item,
    RowStatement,
    Select,
    Update,
)
from tests.simulation.models.storage import Row, Table

__all__ = ["Filter", "Items", "Plan", "Sets", "select_rows"]

S = TypeVar("S", bound=RowStatement)


class Filter:
    """A WHERE for one table.

    Args:
        condition: None for all rows.
        table: the table.
    """

    def __init__(self, condition: Condition | None, table: Table) -> None:
        columns = table.positions
        self.holds: Function | None = None
        equals: dict[int, Function] = {}
        if condition is not None:
            self.holds = condition.holds.bound(columns)
            equals = {columns[n.lower()]: e.bound(columns) for n, e in condition.equals}
        self._key = next(
            (n for n, key in enumerate(table.keys) if set(key.columns) <= set(equals)), None
        )
        self._parts = (
            [] if self._key is None else [equals[c] for c in table.keys[self._key].columns]
        )
        primary = table.keys[0].columns if table.keys else ()
        self._prefix: list[tuple[int, Function]] = []
        for column in primary:
            if column not in equals:
                break
            self._prefix.append((column, equals[column]))

    def candidates(self, table: Table, p: Parameters, session: SessionState) -> list[Row]:
        """The rows that are looked at, and locked, to find those that meet the condition."""
        if self._key is not None:
            if len(self._parts) == 1:
                key: Any = self._parts[0]((), (), p, session)
            else:
                key = tuple([part((), (), p, session) for part in self._parts])
            row = table.indexes[self._key].get(key)
            return [] if row is None else [row]
        rows = list(table.rows.values())
        for column, part in self._prefix:
            wanted = part((), (), p, session)
            rows = [row for row in rows if _at(row, column) == wanted]
        return rows

    def meets(self, values: Values, p: Parameters, session: SessionState) -> bool:
        """Whether a row meets it."""
        return self.holds is None or bool(self.holds(values, (), p, session))


def _at(row: Row, column: int) -> Value:
    values = row.values if row.values is not None else row.before
    return None if values is None else values[column]


class Sets:
    """The assignments of an UPDATE, done one after the other or all at once.

    Args:
        assignments: as they were written.
        table: the table.
        stored: turns a value into one of its column, or raises.
        in_sequence: whether an assignment sees what those before it have assigned, as on MySQL.
    """

    def __init__(
        self,
        assignments: Iterable[Assignment],
        table: Table,
        stored: Callable[[Table, int, Value], Value],
        *,
        in_sequence: bool,
    ) -> None:
        columns = table.positions
        bound: list[tuple[int, Function]] = []
        for name, expression in assignments:
            # an unknown name raises as it does within an expression
            Expression(f"\0{name}\0").bound(columns)
            bound.append((columns[name.lower()], expression.bound(columns)))
        self._bound, self._stored, self._in_sequence = bound, stored, in_sequence

    def new_values(
        self, table: Table, old: Values, new: Values, p: Parameters, session: SessionState
    ) -> Values:
        """The row after the assignments."""
        values = list(old)
        for column, function in self._bound:
            seen = tuple(values) if self._in_sequence else old
            values[column] = self._stored(table, column, function(seen, new, p, session))
        return tuple(values)


class Items:
    """The columns of a result."""

    def __init__(self, items: Iterable[Item], table: Table) -> None:
        columns = table.positions
        names: list[str] = []
        self._functions: list[Function] = []
        self._folds: list[tuple[str, Function | None]] = []
        for item in items:
            if item.kind == "all":
                names += [column.name for column in table.columns]
                self._functions += [_column(n) for n in range(len(table.columns))]
                continue
            names.append(item.name)
            function = None if item.what is None else item.what.bound(columns)
            if item.kind == "value":
                self._functions.append(cast("Function", function))
            else:
                self._folds.append((item.kind, function))
        self.names = tuple(names)

    def rows(self, found: list[Values], p: Parameters, session: SessionState) -> tuple[Values, ...]:
        """The result of the rows that were found."""
        if self._folds:
            return (tuple(_fold(kind, f, found, p, session) for kind, f in self._folds),)
        return tuple(tuple([f(row, (), p, session) for f in self._functions]) for row in found)


def _column(number: int) -> Function:
    return lambda o, n, p, s: o[number]


def _fold(
    kind: str, function: Function | None, rows: list[Values], p: Parameters, session: SessionState
) -> Value:
    if function is None:
        return len(rows)
    values: list[Any] = [function(row, (), p, session) for row in rows]
    if not values:
        return None
    return cast("Value", max(values) if kind == "max" else min(values))


class Plan(NamedTuple, Generic[S]):
    """A statement about rows, bound to a table.

    Attributes:
        statement: as it was parsed.
        filter: its WHERE.
        items: what it returns.
        order: of a SELECT, by what it sorts.
        limit: of a SELECT.
        sets: of an UPDATE, or of an upsert.
        upsert_filter: of an upsert, its WHERE.
        columns: of an INSERT, the positions that it names.
        rows: of an INSERT, the values; None for the default.
    """

    statement: S
    filter: Filter
    items: Items
    order: tuple[tuple[Function, bool], ...] = ()
    limit: Function | None = None
    sets: Sets | None = None
    upsert_filter: Function | None = None
    columns: tuple[int, ...] = ()
    rows: tuple[tuple[Function | None, ...], ...] = ()

    @classmethod
    def of(
        cls,
        statement: S,
        table: Table,
        stored: Callable[[Table, int, Value], Value],
        *,
        in_sequence: bool,
    ) -> Plan[S]:
        """Bind a statement.

        Raises:
            UnknownColumn: the table lacks one that it names.
        """
        columns = table.positions
        if isinstance(statement, Select):
            order = tuple((e.bound(columns), down) for e, down in statement.order)
            limit = None if statement.limit is None else statement.limit.bound(columns)
            where = Filter(statement.where, table)
            return cls(statement, where, Items(statement.items, table), order, limit)
        if isinstance(statement, Delete):
            return cls(statement, Filter(statement.where, table), Items((), table))
        if isinstance(statement, Update):
            sets = Sets(statement.sets, table, stored, in_sequence=in_sequence)
            items = Items(statement.returning, table)
            return cls(statement, Filter(statement.where, table), items, sets=sets)
        assert isinstance(statement, Insert)
        names = statement.columns or tuple(column.name for column in table.columns)
        for name in names:
            Expression(f"\0{name}\0").bound(columns)
        upsert, upsert_filter = statement.upsert, None
        own_sets: Sets | None = None
        if upsert is not None:
            own_sets = Sets(upsert.sets, table, stored, in_sequence=in_sequence)
            upsert_filter = None if upsert.where is None else upsert.where.holds.bound(columns)
        return cls(
            statement,
            Filter(None, table),
            Items(statement.returning, table),
            sets=own_sets,
            upsert_filter=upsert_filter,
            columns=tuple(columns[name.lower()] for name in names),
            rows=tuple(
                tuple(None if e is None else e.bound({}) for e in row) for row in statement.rows
            ),
        )


def select_rows(
    plan: Plan[Select], table: Table, found: list[Values], p: Parameters, session: SessionState
) -> tuple[Values, ...]:
    """The rows of a SELECT, of those that meet its condition: sorted, cut off and computed."""
    if len(found) > 1 and table.keys:
        key = table.keys[0]
        found.sort(key=key.of)
    for function, down in reversed(plan.order):
        found.sort(key=lambda v: cast("Any", function(v, (), p, session)), reverse=down)
    if plan.limit is not None:
        found = found[: int(cast("int", plan.limit((), (), p, session)))]
    return plan.items.rows(found, p, session)
