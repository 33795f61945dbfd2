# What is protected is hidden from users, not from this package.
# pyright: reportPrivateUsage=false
"""``NextValue``: a ticket in a statement, as ``Sequence.next_value()`` is a number of a sequence.

It is a bind parameter without a value, so a ticket is drawn only on execution. In an INSERT and an UPDATE, the
compiled statement lists it with the columns that have defaults, and `IdDefault` draws once for all rows.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

from sqlalchemy import (
    BigInteger,
    BinaryExpression,
    BindParameter,
    BooleanClauseList,
    Column,
    ColumnElement,
    Insert,
    Integer,
    Label,
    Select,
    Table,
    Update,
    Uuid,
    bindparam,
    select,
)
from sqlalchemy.engine import Dialect
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql import operators, visitors
from sqlalchemy.sql.selectable import CTE
from sqlalchemy.types import NullType, TypeDecorator

from ..errors import TicketArgumentError
from .default import IdDefault
from .inheritance import source_of


class NextValue(BindParameter[int]):
    """One id of a column's default for the one row of a statement: see `TicketSequence.next_value`."""

    # The ORM takes the value of a "bindparam" for what an UPDATE stores.
    __visit_name__ = "next_value"
    # A compiled statement holds its sequence, so none is cached.
    inherit_cache = False

    def __init__(self, default: IdDefault) -> None:
        super().__init__("next_value", None, unique=True)
        self.default = default


class _DrawnWhenSent(TypeDecorator[int]):
    """The type of a parameter that becomes an id when its statement is sent."""

    impl = BigInteger
    cache_ok = False

    def __init__(self, default: IdDefault) -> None:
        super().__init__()
        self.default = default

    def process_bind_param(self, value: object, dialect: Dialect) -> int:
        """Draw the id."""
        return cast("int", self.default._id_outside_of_statements(None))


@compiles(NextValue)
def _compile(element: NextValue, compiler: Any, **kw: Any) -> Any:
    if compiler.statement is element:  # it is printed by itself
        return f"<next value of {element.default!r}>"
    statement: object = compiler.stack[0]["selectable"] if len(compiler.stack) == 1 else None
    if kw.get("literal_binds"):
        pass  # a script of literals is run as often as one likes
    elif isinstance(statement, Select) and _is_row_of_ids(cast("Any", statement)):
        sent = bindparam(None, None, type_=_DrawnWhenSent(element.default), unique=True)
        return compiler.visit_bindparam(sent, **kw)
    elif isinstance(statement, (Insert, Update)) and _is_value_in_one_row(
        element, statement, compiler.dialect, kw
    ):
        rendered = compiler.visit_bindparam(element, **kw)
        if _add_to_prefetch(element, compiler, statement):
            return rendered
    raise TicketArgumentError(
        f"{element.default!r}.next_value() is one ticket, which several rows could get here: draw with "
        "pool.next_id(name) or pool.next_ids(name, n), and use the numbers. It is valid in insert().values(...) of "
        "one row, in update().values(...) whose WHERE only compares the whole primary key (integers or UUIDs) with "
        f"values, and in a select() of nothing else"
    )


def _is_row_of_ids(statement: Select[Any]) -> bool:
    """Whether a SELECT has only ids: anything else could give it more rows."""
    ids = list(statement.selected_columns)
    plain = [each.element if isinstance(each, Label) else each for each in ids]
    return all(isinstance(each, NextValue) for each in plain) and statement.compare(select(*ids))


def _is_value_in_one_row(
    element: NextValue, statement: Insert | Update, dialect: Dialect, kw: dict[str, Any]
) -> bool:
    """Whether it is a column's value in one row: each row of an executemany is one."""
    # SQLAlchemy collects the names of what each row has of its own, and gives the column's type to a whole value.
    if "accumulate_bind_names" not in kw or isinstance(cast("object", element.type), NullType):
        return False
    if isinstance(statement, Update):
        names_row = _names_one_row(statement, dialect)
    else:
        names_row = statement.select is None
    return names_row and not any(isinstance(each, CTE) for each in visitors.iterate(statement))


def _names_one_row(statement: Update, dialect: Dialect) -> bool:
    """Whether an UPDATE's WHERE only compares each column of the primary key with a value."""
    table, where = statement.table, statement.whereclause
    if not isinstance(table, Table) or where is None:
        return False
    criteria: Iterable[ColumnElement[Any]] = (where,)
    if isinstance(where, BooleanClauseList) and where.operator is operators.and_:
        criteria = where.clauses
    compared = [_compared_with_value(criterion) for criterion in criteria]
    columns = cast("Any", table).columns
    if not all(column is not None and columns.contains_column(column) for column in compared):
        return False
    key = list(table.primary_key)
    # MySQL finds many strings equal to the number 0.
    types = [column.type.dialect_impl(dialect) for column in key]
    return (
        bool(key)
        and all(column in compared for column in key)
        and all(isinstance(type_, (Integer, Uuid)) for type_ in types)
    )


def _compared_with_value(criterion: ColumnElement[Any]) -> Column[Any] | None:
    """The column that a criterion compares with a parameter; None if the criterion is anything else."""
    if isinstance(criterion, BinaryExpression) and criterion.operator is operators.eq:
        left, right = criterion.left, criterion.right
        if isinstance(left, Column) and isinstance(right, BindParameter):
            # PostgreSQL finds several integers equal to one float
            is_alike = right.type._type_affinity is left.type._type_affinity
            return left if is_alike else None
    return None


def _add_to_prefetch(element: NextValue, compiler: Any, statement: Insert | Update) -> bool:
    """Add an element, under its parameter's name, to the columns whose defaults are called for each row."""
    source = source_of(element.default._column())
    name = compiler.bind_names[element]
    prefetch = (
        compiler.update_prefetch if isinstance(statement, Update) else compiler.insert_prefetch
    )
    if any(listed.name == name for listed in prefetch):
        return False  # one parameter in two places is one ticket
    listed: Column[Any] = Column(name, element.type)
    listed.table = source.table
    listed.default = listed.onupdate = source.default
    prefetch.append(listed)
    target = cast("Any", statement.table).c.get(name)
    if target is not None and not target.primary_key:
        compiler.postfetch.append(target)  # so that the ORM reads it back
    return True
