"""The statements that read and change rows, parsed once and bound to a table as often as its columns change.

They are those that the package sends, that operators and foreign clients of the tests send, and no more.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from tests.simulation.models.expressions import Expression, Parser, SyntaxNotModelled

__all__ = [
    "Assignment",
    "Condition",
    "Delete",
    "Insert",
    "Item",
    "RowStatement",
    "Select",
    "Update",
    "Upsert",
    "parse_rows",
]


@dataclass(frozen=True)
class Condition:
    """A WHERE.

    Attributes:
        holds: whether a row meets it.
        equals: the columns that it compares with something that does not depend on the row.
    """

    holds: Expression
    equals: tuple[tuple[str, Expression], ...] = ()


@dataclass(frozen=True)
class Item:
    """One of the columns of a result; ``what`` is None for all columns of the table, and for ``count(*)``."""

    kind: Literal["value", "max", "min", "count", "all"]
    name: str
    what: Expression | None = None


Assignment = tuple[str, Expression]


@dataclass(frozen=True)
class Upsert:
    """What an INSERT does to the row that is there already; ``sets`` is empty for DO NOTHING."""

    sets: tuple[Assignment, ...]
    where: Condition | None = None


@dataclass(frozen=True)
class Select:
    """A SELECT from one table."""

    table: str
    items: tuple[Item, ...]
    where: Condition | None = None
    order: tuple[tuple[Expression, bool], ...] = ()
    limit: Expression | None = None
    locks: bool = False


@dataclass(frozen=True)
class Insert:
    """An INSERT, or a REPLACE; ``columns`` is None for all, and a value None for the column's default."""

    table: str
    columns: tuple[str, ...] | None
    rows: tuple[tuple[Expression | None, ...], ...]
    replaces: bool = False
    upsert: Upsert | None = None
    returning: tuple[Item, ...] = ()


@dataclass(frozen=True)
class Update:
    """An UPDATE of one table."""

    table: str
    sets: tuple[Assignment, ...]
    where: Condition | None = None
    returning: tuple[Item, ...] = ()


@dataclass(frozen=True)
class Delete:
    """A DELETE from one table."""

    table: str
    where: Condition | None = None


RowStatement = Select | Insert | Update | Delete


def parse_rows(text: str) -> RowStatement:
    """Parse a statement about rows.

    Raises:
        SyntaxNotModelled: it is none, or no model knows it.
    """
    named = re.search(r"\)\s+AS\s+(\w+)\s+ON\s+DUPLICATE", text, re.IGNORECASE)
    parser = Parser(text, named[1].lower() if named else "excluded")
    if parser.accept("SELECT"):
        statement: RowStatement = _select(parser)
    elif parser.accept("INSERT", "INTO"):
        statement = _insert(parser, replaces=False)
    elif parser.accept("REPLACE", "INTO"):
        statement = _insert(parser, replaces=True)
    elif parser.accept("UPDATE"):
        table = _table(parser)
        parser.expect("SET")
        statement = Update(table, _assignments(parser), _where(parser), _returning(parser))
    elif parser.accept("DELETE", "FROM"):
        statement = Delete(_table(parser), _where(parser))
    else:
        raise SyntaxNotModelled(f"no model knows this statement: {text}")
    parser.end()
    return statement


def _table(parser: Parser) -> str:
    """A table; the name of the database before it is left out: every model's statements name their own."""
    name = parser.name()
    return parser.name() if parser.accept(".") else name


def _select(parser: Parser) -> Select:
    items = _items(parser)
    parser.expect("FROM")
    table = _table(parser)
    where = _where(parser)
    order: list[tuple[Expression, bool]] = []
    if parser.accept("ORDER", "BY"):
        order.append((parser.expression(), parser.accept("DESC")))
        while parser.accept(","):
            order.append((parser.expression(), parser.accept("DESC")))
    limit = parser.expression() if parser.accept("LIMIT") else None
    locks = parser.accept("FOR", "UPDATE")
    return Select(table, items, where, tuple(order), limit, locks)


def _items(parser: Parser) -> tuple[Item, ...]:
    found = [_item(parser)]
    while parser.accept(","):
        found.append(_item(parser))
    return tuple(found)


def _item(parser: Parser) -> Item:
    kind: Literal["value", "max", "min", "count", "all"] = "value"
    what: Expression | None = None
    name = parser.token.said
    if parser.accept("*"):
        return Item("all", "*")
    if parser.accept("COUNT", "(", "*", ")"):
        kind, name = "count", "count(*)"
    elif parser.accept("MAX", "("):
        kind, what = "max", parser.expression()
        parser.expect(")")
    elif parser.accept("MIN", "("):
        kind, what = "min", parser.expression()
        parser.expect(")")
    else:
        what = parser.expression()
        columns = re.findall(r"\0(\w+)\0", what.source)
        name = columns[-1] if columns else name
    if parser.accept("AS"):
        name = parser.name()
    return Item(kind, name, what)


def _where(parser: Parser) -> Condition | None:
    if not parser.accept("WHERE"):
        return None
    holds, equals = parser.condition()
    return Condition(holds, tuple(equals))


def _assignments(parser: Parser) -> tuple[Assignment, ...]:
    found = [_assignment(parser)]
    while parser.accept(","):
        found.append(_assignment(parser))
    return tuple(found)


def _assignment(parser: Parser) -> Assignment:
    name = parser.name()
    if parser.accept("."):
        name = parser.name()
    parser.expect("=")
    return name, parser.expression()


def _returning(parser: Parser) -> tuple[Item, ...]:
    return _items(parser) if parser.accept("RETURNING") else ()


def _insert(parser: Parser, *, replaces: bool) -> Insert:
    table = _table(parser)
    if parser.accept("SET"):
        sets = _assignments(parser)
        return Insert(table, tuple(n for n, _ in sets), (tuple(e for _, e in sets),), replaces)
    columns: tuple[str, ...] | None = None
    if parser.accept("("):
        columns = _names(parser)
    parser.expect("VALUES")
    rows = [_row(parser)]
    while parser.accept(","):
        rows.append(_row(parser))
    upsert: Upsert | None = None
    if parser.accept("AS"):
        parser.name()
    if parser.accept("ON", "DUPLICATE", "KEY", "UPDATE"):
        upsert = Upsert(_assignments(parser))
    elif parser.accept("ON", "CONFLICT"):
        if parser.accept("("):
            _names(parser)
        parser.expect("DO")
        upsert = Upsert(())
        if not parser.accept("NOTHING"):
            parser.expect("UPDATE", "SET")
            upsert = Upsert(_assignments(parser), _where(parser))
    return Insert(table, columns, tuple(rows), replaces, upsert, _returning(parser))


def _names(parser: Parser) -> tuple[str, ...]:
    names = [parser.name()]
    while parser.accept(","):
        names.append(parser.name())
    parser.expect(")")
    return tuple(names)


def _row(parser: Parser) -> tuple[Expression | None, ...]:
    parser.expect("(")
    values: list[Expression | None] = []
    while True:
        values.append(None if parser.accept("DEFAULT") else parser.expression())
        if not parser.accept(","):
            break
    parser.expect(")")
    return tuple(values)
