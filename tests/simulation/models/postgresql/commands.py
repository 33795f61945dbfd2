"""The statements of PostgreSQL by their texts: which function does which.

One that nobody knows raises `SyntaxNotModelled` with its text: then a pattern is missing here.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any, Final, cast

from tests.simulation.models.expressions import Expression, Parameters, Value, text_of
from tests.simulation.models.mysql.definitions import Definition, make_column, parse_create
from tests.simulation.models.postgresql.rows import run_rows
from tests.simulation.models.postgresql.session import Mode, PostgreSQLSession
from tests.simulation.models.protocol import Answer, Query, Result
from tests.simulation.models.statements import RowStatement, Select, parse_rows
from tests.simulation.models.storage import Check, Column, Key, Table
from tests.simulation.runtime import ServerError

__all__ = ["run"]

#: One statement, ready to be run.
Command = Callable[[PostgreSQLSession, Parameters], Result]


def run(session: PostgreSQLSession, query: Query) -> Answer:
    """Run a statement."""
    return (_command(query.text)(session, query.parameters),)


@functools.lru_cache(maxsize=10_000)
def _command(text: str) -> Command:
    text = text.strip()
    for pattern, make in _CONTROL:
        found = pattern.fullmatch(text)
        if found is not None:
            return make(found)
    for pattern, make in _PATTERNS:
        found = pattern.fullmatch(text)
        if found is not None:
            return _in_statement(make(found))
    return _in_statement(_rows(parse_rows(text), text))


def _in_statement(command: Command) -> Command:
    def run_it(session: PostgreSQLSession, p: Parameters) -> Result:
        with session.statement():
            return command(session, p)

    return run_it


def _rows(statement: RowStatement, text: str) -> Command:
    def command(session: PostgreSQLSession, p: Parameters) -> Result:
        result = run_rows(session, statement, text, p)
        if not isinstance(statement, Select):
            session.spend(session.server.costs.write)
        return result

    return command


# -- what every statement may be


def _does(function: Callable[[PostgreSQLSession], None]) -> Callable[[re.Match[str]], Command]:
    def command(session: PostgreSQLSession, p: Parameters) -> Result:
        function(session)
        return Result()

    return lambda found: command


def _of(function: Callable[[PostgreSQLSession], Value]) -> Callable[[re.Match[str]], Command]:
    """A SELECT of one value."""
    return lambda found: lambda session, p: Result(((function(session),),), ("value",), 1)


def _row(*values: Callable[[PostgreSQLSession], Value]) -> Callable[[re.Match[str]], Command]:
    def command(session: PostgreSQLSession, p: Parameters) -> Result:
        row = tuple(value(session) for value in values)
        return Result((row,), tuple(f"column{n}" for n in range(len(row))), 1)

    return lambda found: command


def _name(found: re.Match[str]) -> str:
    return found["quoted"].replace('""', '"') if found["quoted"] else found["plain"].lower()


def _set(found: re.Match[str]) -> Command:
    name, value = found["name"].lower(), found["value"].strip("'")
    is_local = found["local"] is not None

    def command(session: PostgreSQLSession, p: Parameters) -> Result:
        session.set_variable(name, _milliseconds(name, value), is_local=is_local)
        return Result()

    return command


def _milliseconds(name: str, value: str) -> Value:
    if not name.endswith("_timeout"):
        return value
    number, unit = re.fullmatch(r"(\d+)\s*(ms|s)?", value).groups()  # type: ignore[union-attr]  # else a defect
    return int(number) * (1000 if unit == "s" else 1)


def _set_configs(found: re.Match[str]) -> Command:
    pairs = re.findall(r"set_config\('(\w+)', '(\w+)', false\)", found[0])
    values = {name: _milliseconds(name, value) for name, value in pairs}
    shown = tuple(_shown_setting(value) for value in values.values())

    def command(session: PostgreSQLSession, p: Parameters) -> Result:
        for name, value in values.items():
            session.set_variable(name, value, is_local=False)
        return Result((shown,), tuple("set_config" for _ in shown), 1)

    return command


def _shown_setting(value: Value) -> Value:
    if not isinstance(value, int) or not value:
        return str(value)
    return f"{value}ms" if value % 1000 else f"{value // 1000}s"


def _show(found: re.Match[str]) -> Command:
    name = found["name"].lower()
    return lambda session, p: Result(((session.variable(name),),), (name,), 1)


def _version(session: PostgreSQLSession) -> Value:
    return session.server.version


def _identity(session: PostgreSQLSession) -> Value:
    return session.server.identity


def _current_setting(session: PostgreSQLSession) -> Value:
    read_only = session.variable("default_transaction_read_only") == "on"
    return "on" if read_only or session.server.is_standby else "off"


def _end_backend(found: re.Match[str]) -> Command:
    query_only = found["what"].lower() == "cancel"

    def command(session: PostgreSQLSession, p: Parameters) -> Result:
        given = found["id"] if found["id"] != "%s" else cast("Any", p)[0]
        ended = session.server.kill(int(given), query_only=query_only)
        return Result(((ended,),), ("ended",), 1)

    return command


# -- tables


def _lock(found: re.Match[str]) -> Command:
    name, mode = _name(found), cast("Mode", found["mode"].upper())

    def command(session: PostgreSQLSession, p: Parameters) -> Result:
        if session.state == "idle":
            raise ServerError("25P01", "LOCK TABLE can only be used in transaction blocks")
        if session.server.is_standby and mode != "ACCESS SHARE":
            raise ServerError("25006", "cannot execute LOCK TABLE during recovery")
        session.table(name, mode)
        return Result()

    return command


def _create(found: re.Match[str]) -> Command:
    name, may_exist, definition = parse_create(found[0])

    def command(session: PostgreSQLSession, p: Parameters) -> Result:
        session.check_writable("CREATE TABLE")
        if may_exist and session.find(name) is not None:
            return Result()
        session.create(_built(session, name, definition))
        return Result()

    return command


_TYPES: Final = {"bigint": "bigint", "int": "integer", "char": "character"}


def _built(session: PostgreSQLSession, name: str, definition: Definition) -> Table:
    columns = tuple(_shown(column) for column in definition.columns)
    places = {column.name.lower(): n for n, column in enumerate(columns)}
    keys = tuple(
        Key(f"{name}_pkey", tuple(places[c.lower()] for c in parts))
        for parts in definition.keys.values()
    )
    checks = tuple(
        Check(f"{name}_{_column_of(source)}_check", source, Expression(source).bound(places))
        for source in definition.checks
    )
    oid = session.server.new_oid()
    return Table(session.key_of(name), columns, keys, checks, engine="", oid=oid)


def _column_of(source: str) -> str:
    found = re.search(r"\x00(\w+)\x00", source)
    return found[1] if found else ""


def _shown(column: Column) -> Column:
    kind = column.type_.partition("(")[0]
    shown = "character varying" if kind == "varchar" else _TYPES[kind]
    return Column(column.name, shown, column.least, column.largest)


def _drop(found: re.Match[str]) -> Command:
    name, may_be_missing = _name(found), found["if"] is not None

    def command(session: PostgreSQLSession, p: Parameters) -> Result:
        session.check_writable("DROP TABLE")
        if session.find(name) is None:
            if may_be_missing:
                return Result()
            raise ServerError("42P01", f'table "{name}" does not exist')
        session.drop(session.table(name, "ACCESS EXCLUSIVE"))
        return Result()

    return command


def _rename(found: re.Match[str]) -> Command:
    name, new_name = _name(found), found["new"].lower()

    def command(session: PostgreSQLSession, p: Parameters) -> Result:
        table = session.table(name, "ACCESS EXCLUSIVE")
        if session.find(new_name) is not None:
            raise ServerError("42P07", f'relation "{new_name}" already exists')
        session.replace(table, table.altered(key=session.key_of(new_name)))
        return Result()

    return command


def _retype(found: re.Match[str]) -> Command:
    name, column_name, type_ = _name(found), found["column"].lower(), found["type"].lower()

    def command(session: PostgreSQLSession, p: Parameters) -> Result:
        table = session.table(name, "ACCESS EXCLUSIVE")
        columns = tuple(
            _shown(make_column(column.name, type_, 0, unsigned=False))
            if column.name == column_name
            else column
            for column in table.columns
        )
        session.replace(table, table.altered(columns=columns))
        return Result()

    return command


def _comment(found: re.Match[str]) -> Command:
    name, text = _name(found), text_of(found["text"])

    def command(session: PostgreSQLSession, p: Parameters) -> Result:
        session.check_writable("COMMENT")
        session.comment(session.table(name, "SHARE UPDATE EXCLUSIVE"), text)
        return Result()

    return command


# -- the catalog


def _describe(found: re.Match[str]) -> Command:
    def command(session: PostgreSQLSession, p: Parameters) -> Result:
        name = next(iter(p.values() if isinstance(p, dict) else cast("Any", p)))
        table = session.find(str(name))
        if table is None:
            return Result((), ("attname",))
        unique = {key.columns[0] for key in table.keys if len(key.columns) == 1}
        comment = session.comment_of(table) or None
        rows = tuple(
            (column.name, n in unique, False, comment, column.type_)
            for n, column in enumerate(table.columns)
        )
        return Result(rows, ("attname", "exists", "identity", "left", "format_type"), len(rows))

    return command


def _comments(found: re.Match[str]) -> Command:
    def command(session: PostgreSQLSession, p: Parameters) -> Result:
        rows = tuple(
            (table.key[1], comment)
            for table in session.visible_tables()
            if "sqla_tickets" in (comment := session.comment_of(table))
        )
        return Result(rows, ("relname", "left"), len(rows))

    return command


def _privileges(found: re.Match[str]) -> Command:
    """Every privilege on each table, as its owner has them."""

    def command(session: PostgreSQLSession, p: Parameters) -> Result:
        rows = tuple((table.key[1], *(6 * (True,))) for table in session.visible_tables())
        return Result(rows, ("relname",), len(rows))

    return command


_TABLE: Final = r'(?:public\.)?(?:"(?P<quoted>(?:[^"]|"")+)"|(?P<plain>\w+))'
_Patterns = list[tuple[re.Pattern[str], Callable[[re.Match[str]], Command]]]


def _compiled(*patterns: tuple[str, Callable[[re.Match[str]], Command]]) -> _Patterns:
    flags = re.IGNORECASE | re.DOTALL
    return [(re.compile(pattern.replace(" ", r"\s+"), flags), make) for pattern, make in patterns]


# They are told from all others, since they may come in a transaction that has failed.
_CONTROL: Final = _compiled(
    (r"BEGIN|START TRANSACTION", _does(PostgreSQLSession.begin)),
    (r"COMMIT", _does(PostgreSQLSession.commit_or_roll_back)),
    (r"ROLLBACK", _does(PostgreSQLSession.roll_back)),
)
_PATTERNS: Final = _compiled(
    (r"SELECT 1", _of(lambda s: 1)),
    (r"", lambda found: lambda session, p: Result()),
    (r";", lambda found: lambda session, p: Result()),
    (r"SELECT pg_catalog\.version\(\)", _of(_version)),
    (r"SELECT current_schema\(\)", _of(lambda s: "public")),
    (r"SELECT pg_backend_pid\(\)", _of(lambda s: s.id)),
    (r"SHOW transaction isolation level", _of(lambda s: "read committed")),
    (r"SHOW (?P<name>\w+)", _show),
    (r"SELECT set_config\(.+\)", _set_configs),
    (
        r"SELECT 'transaction_read_only', current_setting\('transaction_read_only'\)",
        _row(lambda s: "transaction_read_only", _current_setting),
    ),
    (
        r"SET (?P<local>LOCAL )?(?:SESSION )?(?P<name>\w+) (?:=|TO) (?P<value>'[^']*'|\w+)",
        _set,
    ),
    (
        r"SELECT CAST\(system_identifier AS TEXT\), .+ FROM pg_control_system\(\)",
        _row(_identity, lambda s: s.server.started_at, lambda s: None, lambda s: ""),
    ),
    (
        r"SELECT pg_(?P<what>cancel|terminate)_backend\((?P<id>%s|\d+)(?:, \d+)?\)",
        _end_backend,
    ),
    (r"LOCK TABLE " + _TABLE + r" IN (?P<mode>[A-Z ]+) MODE", _lock),
    (r"CREATE TABLE .+", _create),
    (r"DROP TABLE (?P<if>IF EXISTS )?" + _TABLE, _drop),
    (r"ALTER TABLE " + _TABLE + r" RENAME TO (?P<new>\w+)", _rename),
    (r"ALTER TABLE " + _TABLE + r" ALTER COLUMN (?P<column>\w+) TYPE (?P<type>\w+)", _retype),
    (r"COMMENT ON TABLE " + _TABLE + r" IS (?P<text>'(?:[^']|'')*')", _comment),
    (r"SELECT rolsuper, pg_has_role\(.+", _row(lambda s: False, lambda s: False)),
    (r"SELECT c\.relname, pg_has_role\(c\.relowner, .+", _privileges),
    (r"SELECT a\.attname, EXISTS .+", _describe),
    (r"SELECT c\.relname, LEFT\(pg_catalog\.obj_description.+", _comments),
)
