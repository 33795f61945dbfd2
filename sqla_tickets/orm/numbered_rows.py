"""The rows of a SELECT with a ticket for each, as SQL: the k-th row gets the k-th ticket.

A row beyond the last ticket makes the statement fail: by an expression, or by the column's key, as it gets the first
ticket again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias, cast

from sqlalchemy import (
    BigInteger,
    BindParameter,
    ColumnElement,
    Label,
    Select,
    Subquery,
    bindparam,
    case,
    func,
    null,
    select,
)
from sqlalchemy.sql import operators
from sqlalchemy.sql.elements import Null, TextClause, UnaryExpression
from sqlalchemy.sql.selectable import GenerativeSelect, SelectBase
from sqlalchemy.types import NullType

from ..errors import TicketArgumentError

#: Tickets in the order of the rows.
Ranges: TypeAlias = "list[range]"

_MODIFIERS: Final = (
    operators.asc_op,
    operators.desc_op,
    operators.nulls_first_op,
    operators.nulls_last_op,
)
#: What SQLAlchemy calls a clause that stands for a selected column.
_REFERENCES: Final = ("label_reference", "textual_label_reference")
#: Where a SELECT may have a clause, such as DISTINCT ON, that chooses rows by their columns or their order.
_MAY_CHOOSE: Final = ("_distinct_on", "_prefixes", "_suffixes", "_pre_columns_clause")


def count_of(rows: SelectBase) -> Select[Any]:
    """The SELECT that counts the rows."""
    if isinstance(rows, GenerativeSelect) and not _chooses_by_order(rows):
        rows = rows.order_by(None)
    return select(func.count()).select_from(rows.subquery())


def with_tickets(
    rows: SelectBase,
    tickets: list[Ranges],
    failing: Callable[[ColumnElement[int]], ColumnElement[int] | None],
    counter: ColumnElement[int] | None = None,
    limit: ColumnElement[int] | None = None,
) -> Select[Any]:
    """The SELECT of the rows with their tickets.

    Args:
        rows: rows of any number of columns.
        tickets: the tickets of each column that takes some.
        failing: the dialect's expression that makes a statement fail, if it has one.
        counter: the dialect's count of the rows so far, if it has one.
        limit: the dialect's LIMIT, larger than any number of rows, if it needs one.

    Raises:
        TicketArgumentError: the order of the rows is not one of their columns.
    """
    source, columns, order = _source(rows)
    values = [column for column in columns if not isinstance(column, Null)]
    ordered: Select[Any] | None = None
    if counter is not None:
        number = counter
        # MariaDB may drop the order of a subquery that has no LIMIT; next to ROWNUM() it keeps any (MDEV-24089)
        if order and values:
            ordered = select(*values).order_by(*order).limit(limit)
    else:
        number = func.row_number(type_=BigInteger).over(order_by=order or None)
        # where the number is needed several times, it needs a name
        if failing(number) is not None or any(len(ranges) > 1 for ranges in tickets):
            ordered = select(*values, number.label(_unused_name(values))).select_from(source)
    if ordered is not None:
        source = ordered.subquery()
        named = list(cast("Any", source.c))
        if counter is None:
            number = named.pop()
        found = iter(named)
        columns = [column if isinstance(column, Null) else next(found) for column in columns]
    beyond = failing(number)
    drawn = (_ticket(number, ranges, beyond) for ranges in tickets)
    return select(*columns, *drawn).select_from(source).limit(limit)


def _ticket(
    number: ColumnElement[int], ranges: Ranges, beyond: ColumnElement[int] | None
) -> ColumnElement[int]:
    """The ticket of a row, by the row's number, counted from 1."""
    first, *others = ranges
    if not others and beyond is None:
        # MariaDB has no operator % in its sql_mode ORACLE
        after_first: ColumnElement[int] = func.mod(
            number - _number(1), _number(len(first)), type_=BigInteger
        )
        return _number(first[0]) + after_first * _number(first.step)
    whens: list[tuple[ColumnElement[bool], ColumnElement[int]]] = []
    before = 0
    for tickets in ranges:
        # never below 0: MySQL has no such number of a row
        position = number - _number(before + 1)
        before += len(tickets)
        ticket = _number(tickets[0]) + position * _number(tickets.step)
        whens.append((number <= _number(before), ticket))
    return case(*whens, else_=_number(first[0]) if beyond is None else beyond)


def _number(value: int) -> ColumnElement[int]:
    # A literal is called param_1, as a parameter of the SELECT may be.
    return bindparam("sqla_tickets_number", value, BigInteger, unique=True)


def _source(
    rows: SelectBase,
) -> tuple[Subquery, list[ColumnElement[Any]], list[ColumnElement[Any]]]:
    """A subquery of the rows, their columns in it, and their order."""
    plain: list[Any] = list(rows.selected_columns)
    named: list[Any] = list(cast("Any", rows.subquery()).c)
    keys = [_key_of(clause, rows) for clause in getattr(rows, "_order_by_clauses", ())]
    added = [key for key, _ in keys if _position(key, rows, named) is None]
    if added and (not isinstance(rows, Select) or _is_distinct(rows)):
        raise TicketArgumentError(
            f"insert_from_select(): the tickets cannot follow an ORDER BY {added[0]}, which the DISTINCT or UNION "
            f"does not select: order its subquery() instead, select(rows).order_by(...)"
        )
    if isinstance(rows, Select):
        unused = _unused_name(named)
        rows = rows.add_columns(*(key.label(f"{unused}_{n}") for n, key in enumerate(added)))
    if isinstance(rows, GenerativeSelect) and not _chooses_by_order(rows):
        rows = rows.order_by(None)
    source = rows.subquery()
    columns: list[Any] = list(cast("Any", source.c))
    later = iter(range(len(named), len(columns)))
    order: list[ColumnElement[Any]] = []
    for key, modifiers in keys:
        position = _position(key, rows, named)
        ordered: ColumnElement[Any] = columns[next(later) if position is None else position]
        for modifier in modifiers:
            ordered = UnaryExpression(ordered, modifier=modifier)
        order.append(ordered)
    if isinstance(
        rows, Select
    ):  # a NULL has the type of its target's column, and a subquery's has not
        nulls = map(_is_null, plain)
        columns = [null() if n else column for n, column in zip(nulls, columns, strict=False)]
    return source, columns[: len(named)], order


def _unused_name(columns: list[ColumnElement[Any]]) -> str:
    """A prefix that no column's name has: of two columns with one name, SQLite takes the first."""
    name = "ticket_number"
    while any(str(cast("Any", column).name).lower().startswith(name) for column in columns):
        name += "_"
    return name


def _key_of(clause: Any, rows: SelectBase) -> tuple[Any, list[Any]]:
    """The expression of a part of an ORDER BY, and its ASC, DESC, NULLS FIRST and NULLS LAST, inner ones first."""
    modifiers: list[Any] = []
    key: Any = clause
    while _is_modified(key) or getattr(key, "__visit_name__", "") in _REFERENCES:
        if _is_modified(key):
            modifiers.insert(0, key.modifier)
        key = key.element
    if isinstance(key, str):
        key = rows.selected_columns.get(key)
    if key is None or isinstance(key, TextClause):
        raise TicketArgumentError(
            f"insert_from_select(): the tickets cannot follow the textual ORDER BY {clause}: order by columns"
        )
    return key, modifiers


def _is_modified(key: Any) -> bool:
    return isinstance(key, UnaryExpression) and cast("Any", key).modifier in _MODIFIERS


def _position(key: Any, rows: SelectBase, named: list[Any]) -> int | None:
    """The position of a column in the SELECT; None if it is not selected."""
    for position, selected in enumerate(rows.selected_columns):
        if key is selected or key is getattr(selected, "element", None):
            return position
    subquery = named[0].table
    found = subquery.corresponding_column(key)
    return next((position for position, column in enumerate(named) if column is found), None)


def _chooses_by_order(rows: Any) -> bool:
    """Whether the order decides which rows are selected."""
    return bool(rows._has_row_limiting_clause or any(getattr(rows, n, None) for n in _MAY_CHOOSE))


def _is_distinct(rows: Any) -> bool:
    """Whether one more column could change which rows are selected."""
    return bool(rows._distinct or any(getattr(rows, n, None) for n in _MAY_CHOOSE))


def _is_null(selected: Any) -> bool:
    element: Any = cast("Any", selected).element if isinstance(selected, Label) else selected
    return isinstance(element, Null) or (
        isinstance(element, BindParameter)
        and isinstance(cast("Any", element).type, NullType)
        and cast("Any", element).value is None
    )
