"""CREATE, ALTER, DROP and SHOW CREATE TABLE on MySQL and MariaDB, as far as the package and its operators send them."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final, Literal, NamedTuple

from tests.simulation.models.expressions import Expression, Parser, Value, text_of
from tests.simulation.models.mysql.rows import counter_of, duplicate
from tests.simulation.models.mysql.session import Mode, MySQLSession
from tests.simulation.models.protocol import Result
from tests.simulation.models.storage import Check, Column, Key, Row, Table, TableKey
from tests.simulation.runtime import ServerError

__all__ = [
    "Definition",
    "alter_table",
    "create_table",
    "drop_table",
    "make_column",
    "parse_alter",
    "parse_create",
    "show_create",
    "truncate_table",
]

_INTEGERS: Final = {"tinyint": 8, "smallint": 16, "int": 32, "integer": 32, "bigint": 64}
# MariaDB shows how many digits a number may have.
_WIDTHS: Final = {8: (4, 3), 16: (6, 5), 32: (11, 10), 64: (20, 20)}
_SHORT: Final = {8: "tinyint", 16: "smallint", 32: "int", 64: "bigint"}


@dataclass
class Definition:
    """What a statement says of a table.

    Attributes:
        columns: in their order.
        keys: by their names, with the names of their columns; "PRIMARY" is the primary key.
        checks: their texts.
        options: such as ``COMMENT`` and ``AUTO_INCREMENT``.
        seed: the values of ``SELECT ... AS ...``, by the names of the columns.
        checks_are_of_columns: whether a CHECK goes with its column (MariaDB), or is dropped by its name (MySQL).
    """

    columns: list[Column] = field(default_factory=list)
    keys: dict[str, tuple[str, ...]] = field(default_factory=dict)
    checks: list[str] = field(default_factory=list)
    options: dict[str, Value] = field(default_factory=dict)
    seed: dict[str, Value] = field(default_factory=dict)
    checks_are_of_columns: bool = True


# -- parsing


def parse_create(text: str) -> tuple[str, bool, Definition]:
    """The name of the table, whether it may be there already, and its definition."""
    parser = Parser(text)
    parser.expect("CREATE", "TABLE")
    may_exist = parser.accept("IF", "NOT", "EXISTS")
    name, found = _table_name(parser), Definition()
    parser.expect("(")
    while True:
        _part(parser, found)
        if not parser.accept(","):
            break
    parser.expect(")")
    while _option(parser, found.options):
        pass
    if parser.accept("SELECT"):
        while True:
            value = _literal(parser)
            parser.expect("AS")
            found.seed[parser.name().lower()] = value
            if not parser.accept(","):
                break
        # those that are selected come last, in the order of the SELECT (measured on 10.11 and 9.7)
        places = {name: n for n, name in enumerate(found.seed, start=1)}
        found.columns.sort(key=lambda column: places.get(column.name.lower(), 0))
    parser.end()
    return name, may_exist, found


def _table_name(parser: Parser) -> str:
    name = parser.name()
    return parser.name() if parser.accept(".") else name


def _part(parser: Parser, found: Definition) -> None:
    if parser.accept("PRIMARY", "KEY"):
        found.keys["PRIMARY"] = _names(parser)
    elif parser.accept("UNIQUE", "KEY"):
        name = parser.name()
        found.keys[name] = _names(parser)
    else:
        _column(parser, parser.name(), found)


def _names(parser: Parser) -> tuple[str, ...]:
    parser.expect("(")
    names = [parser.name()]
    while parser.accept(","):
        names.append(parser.name())
    parser.expect(")")
    return tuple(names)


def _column(parser: Parser, name: str, found: Definition) -> Column:
    type_ = parser.name().lower()
    length = 0
    if parser.accept("("):
        length = int(parser.take().text)
        parser.expect(")")
    default: Value = None
    unsigned = has_default = counts = False
    while True:
        if parser.accept("UNSIGNED"):
            unsigned = True
        elif parser.accept("NOT", "NULL"):
            pass
        elif parser.accept("DEFAULT"):
            default, has_default = _literal(parser), True
        elif parser.accept("AUTO_INCREMENT"):
            counts = True
        elif parser.accept("PRIMARY", "KEY"):
            found.keys["PRIMARY"] = (name,)
        elif parser.accept("COLLATE"):
            parser.name()
        elif parser.accept("CHECK"):
            found.checks.append(_source_of(parser))
        else:
            break
    column = make_column(name, type_, length, unsigned=unsigned)
    column = replace(column, default=default, has_default=has_default, counts=counts)
    found.columns.append(column)
    return column


def _source_of(parser: Parser) -> str:
    """A CHECK, as Python with the names of columns in it."""
    parser.expect("(")
    expression = parser.expression()
    parser.expect(")")
    return expression.source


def make_column(name: str, type_: str, length: int, *, unsigned: bool) -> Column:
    """A column of a type: an integer, or a text of so many characters."""
    bits = _INTEGERS.get(type_)
    if bits is None:
        return Column(name, f"{type_}({length})", None, length)
    largest = 2**bits - 1 if unsigned else 2 ** (bits - 1) - 1
    return Column(
        name, f"{_SHORT[bits]}{' unsigned' * unsigned}", 0 if unsigned else -largest - 1, largest
    )


def _literal(parser: Parser) -> Value:
    token = parser.take()
    if token.kind == "text":
        return text_of(token.said)
    return int(token.text)


def _option(parser: Parser, options: dict[str, Value]) -> bool:
    for name in ("ENGINE", "COMMENT", "AUTO_INCREMENT"):
        if parser.accept(name):
            parser.accept("=")
            options[name] = parser.name() if name == "ENGINE" else _literal(parser)
            return True
    return False


class Change(NamedTuple):
    """A part of an ALTER TABLE. The server looks at columns first, and then at what is dropped and added."""

    rank: Literal["columns", "drops", "adds"]
    make: Callable[[Definition], None]


_RANKS: Final = ("columns", "drops", "adds")


def parse_alter(text: str) -> tuple[str, str | None, list[Change]]:
    """The name of the table, its new one if it gets one, and what is to be changed of its definition."""
    parser = Parser(text)
    parser.expect("ALTER", "TABLE")
    name, changes = _table_name(parser), list[Change]()
    if parser.accept("RENAME", "TO"):
        new_name = _table_name(parser)
        parser.end()
        return name, new_name, []
    while True:
        changes.append(_change(parser))
        if not parser.accept(","):
            break
    parser.end()
    return name, None, changes


def _change(parser: Parser) -> Change:
    if parser.accept("DROP", "PRIMARY", "KEY"):
        return Change("drops", lambda d: _drop_key(d, "PRIMARY"))
    if parser.accept("DROP", "KEY"):
        key = parser.name()
        return Change("drops", lambda d: _drop_key(d, key))
    if parser.accept("DROP", "CHECK"):
        check = parser.name()
        return Change("drops", lambda d: _drop_check(d, check))
    if parser.accept("ADD", "PRIMARY", "KEY"):
        names = _names(parser)
        return Change("adds", lambda d: _add_key(d, "PRIMARY", names))
    if parser.accept("ADD", "UNIQUE", "KEY"):
        key, names = parser.name(), _names(parser)
        return Change("adds", lambda d: _add_key(d, key, names))
    if parser.accept("CHANGE"):
        old, own = parser.name(), Definition()
        column = _column(parser, parser.name(), own)
        first = parser.accept("FIRST")
        return Change("columns", lambda d: _change_column(d, old, column, own.checks, first=first))
    options: dict[str, Value] = {}
    if not _option(parser, options):
        raise parser.not_modelled()
    return Change("adds", lambda d: d.options.update(options))


def _drop_check(definition: Definition, name: str) -> None:
    if not definition.checks:
        raise ServerError(3821, f"Check constraint '{name}' is not found in the table.")
    definition.checks.clear()


def _drop_key(definition: Definition, name: str) -> None:
    if name not in definition.keys:
        raise ServerError(1091, f"Can't DROP '{name}'; check that column/key exists")
    del definition.keys[name]


def _add_key(definition: Definition, name: str, columns: tuple[str, ...]) -> None:
    if name in definition.keys:
        text = (
            "Multiple primary key defined" if name == "PRIMARY" else f"Duplicate key name '{name}'"
        )
        raise ServerError(1068 if name == "PRIMARY" else 1061, text)
    definition.keys[name] = columns


def _change_column(
    definition: Definition, old: str, new: Column, checks: list[str], *, first: bool
) -> None:
    names = [column.name.lower() for column in definition.columns]
    if old.lower() not in names:
        raise ServerError(1054, f"Unknown column '{old}' in '...'")
    at = names.index(old.lower())
    definition.columns[at] = new
    definition.keys = {
        key: tuple(new.name if name.lower() == old.lower() else name for name in names_)
        for key, names_ in definition.keys.items()
    }
    if definition.checks_are_of_columns:
        definition.checks = [c for c in definition.checks if f"\0{old}\0" not in c]
    definition.checks += checks
    if first:
        definition.columns.insert(0, definition.columns.pop(at))


# -- doing


def create_table(
    session: MySQLSession, name: str, may_exist: bool, definition: Definition
) -> Result:
    """CREATE TABLE, with its row if it has one: nobody sees one without the other."""
    with session.changing_definitions():
        key, tables = session.key_of(name), session.store.tables
        if session.locked_tables and key not in session.locked_tables:
            raise session.not_locked(name)
        session.metadata_lock(key, _mode_of_existing(session, definition) if key in tables else "X")
        if key in tables:
            if may_exist:
                return Result()
            raise ServerError(1050, f"Table '{name}' already exists")
        table = _built(session, key, definition, [])
        if definition.seed:
            row = session.store.new_row()
            row.values = tuple(
                definition.seed.get(column.name.lower(), column.default) for column in table.columns
            )
            table = table.altered(rows={row.serial: row})
            if table.counting is not None:
                table.counter = max(counter_of(table), table.largest_number() + 1)
        _put_table(session, table)
        seeded = 0 if table.counting is None else table.largest_number()
        return Result(affected=len(table.rows), insert_id=seeded)


def _mode_of_existing(session: MySQLSession, definition: Definition) -> Mode:
    """With a SELECT, MariaDB asks for a table that is there as its writers do."""
    return "SW" if session.server.is_mariadb and definition.seed else "S"


def _put_table(session: MySQLSession, table: Table) -> None:
    """A definition is durable before it is used."""
    if table.counter is not None:
        table.persisted = table.counter - 1
    session.store.tables[table.key] = table
    session.store.flush()


def _built(session: MySQLSession, key: TableKey, definition: Definition, rows: list[Row]) -> Table:
    columns = tuple(
        replace(column, type_=_shown_type(session, column)) for column in definition.columns
    )
    places = {column.name.lower(): n for n, column in enumerate(columns)}
    named = sorted(definition.keys.items(), key=lambda item: item[0] != "PRIMARY")
    keys = tuple(Key(name, tuple(places[c.lower()] for c in parts)) for name, parts in named)
    checks = tuple(
        Check(_check_name(session, key, n), source, Expression(source).bound(places))
        for n, source in enumerate(definition.checks, start=1)
    )
    options = definition.options
    return Table(
        key,
        columns,
        keys,
        checks,
        str(options.get("COMMENT", "")),
        str(options.get("ENGINE", "InnoDB")),
        max(int(options.get("AUTO_INCREMENT") or 1), 1),
        rows={row.serial: row for row in rows},
    )


def _check_name(session: MySQLSession, key: TableKey, number: int) -> str:
    return f"{key[1]}.id" if session.server.is_mariadb else f"{key[1]}_chk_{number}"


def _shown_type(session: MySQLSession, column: Column) -> str:
    if not session.server.is_mariadb or column.least is None or "(" in column.type_:
        return column.type_
    short, _, unsigned = column.type_.partition(" ")
    bits = next(bits for bits, name in _SHORT.items() if name == short)
    width = _WIDTHS[bits][bool(unsigned)]
    return f"{short}({width}){' unsigned' if unsigned else ''}"


def alter_table(
    session: MySQLSession, name: str, new_name: str | None, changes: list[Change]
) -> Result:
    """ALTER TABLE: atomic, and alone with the table."""
    with session.changing_definitions():
        key = session.key_of(name)
        _about_to_alter(session, key, changes)
        table = _alone_with(session, key)
        if new_name is not None:
            new_key = (key[0], new_name)
            session.metadata_lock(new_key, "X")
            if new_key in session.store.tables:
                raise ServerError(1050, f"Table '{new_name}' already exists")
            del session.store.tables[key]
            _put_table(session, table.altered(key=new_key))
        else:
            _put_table(session, _altered(session, table, changes))
        _end_of_definition(session, key)
    return Result()


def _about_to_alter(session: MySQLSession, key: TableKey, changes: list[Change]) -> None:
    """What is wrong with an ALTER TABLE is said before anybody is waited for."""
    if session.locked_tables:
        return
    session.metadata_lock(key, "SU")
    table = session.store.tables.get(key)
    if table is None:
        raise session.missing(key)
    _changed(session, table, changes)


def _alone_with(session: MySQLSession, key: TableKey) -> Table:
    """Wait for everybody who uses the table, but not beyond LOCK TABLES of one's own."""
    _check_lock(session, key)
    session.metadata_lock(key, "X")
    table = session.store.tables.get(key)
    if table is None:
        raise session.missing(key)
    return table


def _check_lock(session: MySQLSession, key: TableKey) -> None:
    """Under LOCK TABLES a definition is changed only of what is locked for that."""
    held = session.locked_tables.get(key)
    if session.locked_tables and held is None:
        raise session.not_locked(key[1])
    if held == "READ":
        raise ServerError(1099, f"Table '{key[1]}' was locked with a READ lock")


def _end_of_definition(session: MySQLSession, key: TableKey) -> None:
    if session.locked_tables:
        session.release_table(session.server.locks[key], "X")


def _changed(
    session: MySQLSession, table: Table, changes: list[Change]
) -> tuple[Definition, list[int]]:
    """The new definition, and for each of its columns the position of the old one."""
    definition = Definition(
        list(table.columns),
        {key.name: tuple(table.columns[c].name for c in key.columns) for key in table.keys},
        [check.text for check in table.checks],
        {"COMMENT": table.comment, "ENGINE": table.engine},
        checks_are_of_columns=session.server.is_mariadb,
    )
    if table.counting is not None:
        definition.options["AUTO_INCREMENT"] = counter_of(table)
    moved = _Moves(definition, list(range(len(table.columns))))
    for change in sorted(changes, key=lambda change: _RANKS.index(change.rank)):
        moved.apply(change.make)
    return definition, moved.order


def _altered(session: MySQLSession, table: Table, changes: list[Change]) -> Table:
    definition, order = _changed(session, table, changes)
    rows = [_carried(row, order) for row in table.rows.values()]
    altered = _built(session, table.key, definition, rows)
    for row in rows:
        assert row.values is not None
        for n, key in enumerate(altered.keys):
            if altered.indexes[n][key.of(row.values)] is not row:
                raise duplicate(session, altered, n, row.values)
        for check in altered.checks:
            if not check.holds(row.values, (), (), session):
                code = 4025 if session.server.is_mariadb else 3819
                raise ServerError(code, f"CHECK {check.name}")
    if altered.counting is not None:
        # the table option cannot take the counter below the rows
        altered.counter = max(counter_of(altered), altered.largest_number() + 1)
    return altered


class _Moves:
    """Follows where the columns of a table go while it is altered."""

    def __init__(self, definition: Definition, order: list[int]) -> None:
        self._definition, self.order = definition, order

    def apply(self, change: Callable[[Definition], None]) -> None:
        """Make one change; a column that goes FIRST takes its values along."""
        before = list(self._definition.columns)
        change(self._definition)
        after = self._definition.columns
        if len(before) == len(after) > 1 and after[0] not in before and after[1] is before[0]:
            at = next(n for n, column in enumerate(before) if column not in after)
            self.order.insert(0, self.order.pop(at))


def _carried(row: Row, order: list[int]) -> Row:
    assert row.values is not None
    copy = Row(row.serial, tuple(row.values[n] for n in order))
    copy.owner = row.owner
    return copy


def drop_table(session: MySQLSession, name: str, may_be_missing: bool) -> Result:
    """DROP TABLE."""
    with session.changing_definitions():
        key, store = session.key_of(name), session.store
        _check_lock(session, key)
        session.metadata_lock(key, "X")
        if store.tables.pop(key, None) is not None:
            store.flush()
            session.locked_tables.pop(key, None)
        elif not may_be_missing:
            raise ServerError(1051, f"Unknown table '{key[0]}.{name}'")
    return Result()


def truncate_table(session: MySQLSession, name: str) -> Result:
    """TRUNCATE TABLE: the counter begins anew."""
    with session.changing_definitions():
        key = session.key_of(name)
        table = _alone_with(session, key)
        _put_table(session, table.altered(rows={}, counter=1))
        _end_of_definition(session, key)
    return Result()


# -- SHOW CREATE TABLE


def show_create(session: MySQLSession, name: str) -> Result:
    """SHOW CREATE TABLE, which waits only for a change of the definition."""
    key = session.key_of(name)
    if session.locked_tables and key not in session.locked_tables:
        raise session.not_locked(name)
    lock = session.metadata_lock(key, "SH")
    table = session.store.tables.get(key)
    session.release_table(lock, "SH")
    if table is None:
        raise session.missing(key)
    return Result(((name, _text(session, table)),), ("Table", "Create Table"), 1)


def _text(session: MySQLSession, table: Table) -> str:
    is_mariadb = session.server.is_mariadb
    lines = [_column_text(session, table, column) for column in table.columns]
    for key in table.keys:
        parts = ",".join(f"`{table.columns[c].name}`" for c in key.columns)
        what = "PRIMARY KEY" if key.name == "PRIMARY" else f"UNIQUE KEY `{key.name}`"
        lines.append(f"  {what} ({parts})")
    if not is_mariadb:
        lines += [
            f"  CONSTRAINT `{check.name}` CHECK ({_sql(check.text)})" for check in table.checks
        ]
    counter = ""
    if table.counting is not None and counter_of(table) > 1:
        counter = f" AUTO_INCREMENT={table.counter}"
    collation = "utf8mb4_general_ci" if is_mariadb else "utf8mb4_0900_ai_ci"
    comment = table.comment.replace("\\", "\\\\").replace("'", "''").replace("\n", "\\n")
    end = f" COMMENT='{comment}'" if table.comment else ""
    return (
        f"CREATE TABLE `{table.key[1]}` (\n" + ",\n".join(lines) + f"\n) ENGINE={table.engine}"
        f"{counter} DEFAULT CHARSET=utf8mb4 COLLATE={collation}{end}"
    )


def _column_text(session: MySQLSession, table: Table, column: Column) -> str:
    collate = ""
    if column.type_.startswith("varchar") and column.name == "sequence":
        binary = "CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"
        collate = f" {binary}"
    default = f" DEFAULT '{column.default}'" if column.has_default else ""
    checks = ""
    if session.server.is_mariadb:
        own = [check for check in table.checks if f"\0{column.name}\0" in check.text]
        checks = "".join(f" CHECK ({_sql(check.text)[1:-1]})" for check in own)
    counts = " AUTO_INCREMENT" if column.counts else ""
    return f"  `{column.name}` {column.type_}{collate} NOT NULL{default}{counts}{checks}"


def _sql(source: str) -> str:
    """The text of a CHECK that the server shows."""
    return re.sub(r"\0(\w+)\0", r"`\1`", source)
