"""The statements of MySQL and MariaDB by their texts: which function does which.

A text is looked at once. One that nobody knows raises `SyntaxNotModelled` with its text: then a pattern is missing here.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal

from tests.simulation.models.expressions import (
    Parameters,
    SyntaxNotModelled,
    Value,
    text_of,
)
from tests.simulation.models.mysql import catalog, definitions
from tests.simulation.models.mysql.rows import run_rows
from tests.simulation.models.mysql.session import MySQLSession
from tests.simulation.models.protocol import Answer, Query, Result
from tests.simulation.models.statements import RowStatement, parse_rows
from tests.simulation.models.storage import TableKey
from tests.simulation.runtime import ServerError

__all__ = ["run"]

#: One statement, ready to be run.
Command = Callable[[MySQLSession, Parameters], Result]
_STATEMENT: Final = re.compile(r"(?:[^;'`\"]|'(?:[^'\\]|''|\\.)*'|`[^`]*`|\"[^\"]*\")+")
_HINT: Final = re.compile(r"/\*\+((?:\s*SET_VAR\(\w+=\d+\))+)\s*\*/", re.IGNORECASE)
_SET_STATEMENT: Final = re.compile(
    r"SET\s+STATEMENT\s+(.*?)\s+FOR\s+(.*)", re.IGNORECASE | re.DOTALL
)
_PAIR: Final = re.compile(r"(\w+)\s*=\s*(\d+)")
_ASSIGNMENT: Final = re.compile(
    r"\s*(?:@@)?(?P<scope>SESSION\s+|GLOBAL\s+|SESSION\.|GLOBAL\.)?(?P<name>\w+)\s*=\s*"
    r"(?P<value>CONCAT\([^)]*\)|'[^']*'|%s|\w+)\s*(?:,|$)",
    re.IGNORECASE,
)


def run(session: MySQLSession, query: Query) -> Answer:
    """Run a request: a statement, or several, of which those after an error are left out."""
    commands = _commands(query.text)
    if len(commands) == 1:
        return (commands[0](session, query.parameters),)
    if not session.login.multi_statements:
        raise ServerError(1064, "You have an error in your SQL syntax near ';'")
    results: list[Result | ServerError] = []
    for command in commands:
        try:
            results.append(command(session, query.parameters))
        except ServerError as error:
            if not results:
                raise
            results.append(error)
            break
    return tuple(results)


@functools.lru_cache(maxsize=10_000)
def _commands(text: str) -> tuple[Command, ...]:
    parts = [part for part in _STATEMENT.findall(text) if part.strip()]
    return tuple(_command(part.strip()) for part in parts)


def _command(text: str) -> Command:
    for pattern, make in _PATTERNS:
        found = pattern.fullmatch(text)
        if found is not None:
            return make(found)
    variables: dict[str, int] = {}
    carried = _SET_STATEMENT.fullmatch(text)
    hint = _HINT.search(text)
    source = text
    if carried is not None:
        variables, source = _pairs(carried[1]), carried[2]
    elif hint is not None:
        variables, source = _pairs(hint[1]), text[: hint.start()] + text[hint.end() :]
    return _rows(parse_rows(source), text, variables, hint is not None, carried is not None)


def _pairs(text: str) -> dict[str, int]:
    return {name.lower(): int(value) for name, value in _PAIR.findall(text)}


def _rows(
    statement: RowStatement,
    text: str,
    variables: Mapping[str, int],
    is_hint: bool,
    is_set_statement: bool,
) -> Command:
    def command(session: MySQLSession, p: Parameters) -> Result:
        if is_set_statement and not session.server.is_mariadb:
            raise ServerError(1064, f"You have an error in your SQL syntax near '{text[:60]}'")
        # for MariaDB a hint of MySQL's is a comment
        own = {} if is_hint and session.server.is_mariadb else variables
        return run_rows(session, statement, text, p, own)

    return command


# -- patterns


def _constant(*rows: tuple[Value, ...], columns: tuple[str, ...] = ()) -> Callable[[Any], Command]:
    result = Result(rows, columns, len(rows))
    return lambda found: lambda session, p: result


def _nothing(found: re.Match[str]) -> Command:
    return lambda session, p: Result()


def _of(function: Callable[[MySQLSession], Any]) -> Callable[[re.Match[str]], Command]:
    """A SELECT of one value."""
    return lambda found: lambda session, p: Result(((function(session),),), ("value",), 1)


def _version(session: MySQLSession) -> str:
    return session.server.version


def _variable(found: re.Match[str]) -> Command:
    prefix, scope, name = found["text"], found["scope"], found["name"].lower()

    def command(session: MySQLSession, p: Parameters) -> Result:
        is_global = (scope or "").upper() == "GLOBAL."
        known: Mapping[str, Value] = session.server.variables
        if not is_global:
            known = {**known, **session.variables}
        name_ = _ALIASES.get(name, name)
        if name_ not in known or not session.server.has_variable(name):
            raise ServerError(1193, f"Unknown system variable '{name}'")
        row: tuple[Value, ...] = (known[name_],)
        return Result(((prefix, *row) if prefix else row,), (name,), 1)

    return command


_ALIASES: Final = {"transaction_isolation": "isolation", "tx_isolation": "isolation"}


def _set(found: re.Match[str]) -> Command:
    text, at = found["all"], 0
    assignments: list[tuple[bool, str, str]] = []
    default_scope = ""
    while at < len(text):
        one = _ASSIGNMENT.match(text, at)
        if one is None:
            raise SyntaxNotModelled(f"no model knows this: SET {text}")
        scope = (one["scope"] or default_scope).strip(" .").upper()
        if scope == "SESSION":
            default_scope = scope
        assignments.append((scope == "GLOBAL", one["name"].lower(), one["value"]))
        at = one.end()

    def command(session: MySQLSession, p: Parameters) -> Result:
        for is_global, name, value in assignments:
            given = catalog.first_of(p) if value == "%s" else None
            _assign(session, is_global, name, value, given)
        return Result()

    return command


def _assign(session: MySQLSession, is_global: bool, name: str, text: str, given: Value) -> None:
    if not session.server.has_variable(name):
        raise ServerError(1193, f"Unknown system variable '{name}'")
    variables = session.server.variables if is_global else session.variables
    name = _ALIASES.get(name, name)
    if name not in variables:
        raise SyntaxNotModelled(f"no model knows the variable {name}")
    if given is not None:
        value = given
    elif text.upper().startswith("CONCAT("):
        added = text_of(text[text.index("'") : -1])
        value = f"{variables[name]}{added}"
    elif text.startswith("'"):
        value = text_of(text)
    elif text.upper() in ("ON", "OFF"):
        value = int(text.upper() == "ON")
    else:
        value = int(text) if text.isdigit() else text
    if is_global:
        session.server.set_global(name, value)
        return
    if name == "autocommit" and value and not variables[name]:
        session.commit_all()
    variables[name] = value


def _set_isolation(found: re.Match[str]) -> Command:
    level = found["level"].upper().replace(" ", "-")

    def command(session: MySQLSession, p: Parameters) -> Result:
        session.variables["isolation"] = level
        return Result()

    return command


def _does(function: Callable[[MySQLSession], None]) -> Callable[[re.Match[str]], Command]:
    """A statement without an answer."""

    def command(session: MySQLSession, p: Parameters) -> Result:
        function(session)
        return Result()

    return lambda found: command


def _kill(found: re.Match[str]) -> Command:
    query_only, id_ = (found["what"] or "").upper() == "QUERY", int(found["id"])

    def command(session: MySQLSession, p: Parameters) -> Result:
        if not session.server.kill(id_, query_only=query_only):
            raise ServerError(1094, f"Unknown thread id: {id_}")
        if id_ == session.id:
            raise ServerError(1317, "Query execution was interrupted")
        return Result()

    return command


def _lock_tables(found: re.Match[str]) -> Command:
    wanted = [
        (name.replace("``", "`") or plain, str(mode).upper())
        for _, name, plain, mode in re.findall(
            r"(`[^`]*`\.|\w+\.)?(?:`((?:[^`]|``)+)`|(\w+))\s+(READ|WRITE)\s*(?:,\s*|$)",
            found["all"],
            re.IGNORECASE,
        )
    ]

    def command(session: MySQLSession, p: Parameters) -> Result:
        tables = dict[TableKey, Literal["READ", "WRITE"]]()
        for name, mode in wanted:
            tables[session.key_of(name)] = "READ" if mode == "READ" else "WRITE"
        session.lock_tables(tables)
        return Result()

    return command


def _named_lock(function: Callable[[MySQLSession, str], None]) -> Callable[[Any], Command]:
    """What a DO does with the lock of a name; the name is the expression for it."""

    def make(found: re.Match[str]) -> Command:
        def command(session: MySQLSession, p: Parameters) -> Result:
            function(session, f"{session.database} {found['name']}")
            return Result()

        return command

    return make


def _create(found: re.Match[str]) -> Command:
    name, may_exist, definition = definitions.parse_create(found[0])
    return lambda session, p: definitions.create_table(session, name, may_exist, definition)


def _alter(found: re.Match[str]) -> Command:
    name, new_name, changes = definitions.parse_alter(found[0])
    return lambda session, p: definitions.alter_table(session, name, new_name, changes)


def _name(found: re.Match[str]) -> str:
    return found["quoted"].replace("``", "`") if found["quoted"] else found["plain"]


def _drop(found: re.Match[str]) -> Command:
    name, may_be_missing = _name(found), found["if"] is not None
    return lambda session, p: definitions.drop_table(session, name, may_be_missing)


def _truncate(found: re.Match[str]) -> Command:
    name = _name(found)
    return lambda session, p: definitions.truncate_table(session, name)


def _show_create(found: re.Match[str]) -> Command:
    name = _name(found)
    return lambda session, p: definitions.show_create(session, name)


def _use(found: re.Match[str]) -> Command:
    def command(session: MySQLSession, p: Parameters) -> Result:
        session.database = _name(found)
        return Result()

    return command


def _sleep(found: re.Match[str]) -> Command:
    def command(session: MySQLSession, p: Parameters) -> Result:
        session.runtime.sleep(float(found["seconds"]))
        return Result()

    return command


def _table_parts(found: re.Match[str]) -> Command:
    return lambda session, p: catalog.parts(session, text_of(f"'{found['table']}'"))


def _rows_of(
    function: Callable[[MySQLSession], Result],
) -> Callable[[re.Match[str]], Command]:
    """A question to the catalog."""
    return lambda found: lambda session, p: function(session)


def _show_variables(found: re.Match[str]) -> Command:
    names = re.findall(r"'(\w+)'", found["names"]) if found["names"] else None
    return lambda session, p: catalog.show_variables(session, names)


_TABLE: Final = r"(?:(?:`[^`]*`|\w+)\.)?(?:`(?P<quoted>(?:[^`]|``)+)`|(?P<plain>\w+))"


def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern.replace(" ", r"\s+"), re.IGNORECASE | re.DOTALL)


_PATTERNS: Final[list[tuple[re.Pattern[str], Callable[[re.Match[str]], Command]]]] = [
    (_compiled(pattern), make)
    for pattern, make in (
        (r"SELECT VERSION\(\)", _of(_version)),
        (r"SELECT DATABASE\(\)", _of(lambda s: s.database)),
        (r"SELECT CONNECTION_ID\(\)", _of(lambda s: s.id)),
        (r"SELECT CURRENT_USER\(\)", _of(lambda s: f"{s.login.user}@%")),
        (r"SELECT LAST_INSERT_ID\(\)", _of(lambda s: s.last_insert_id)),
        (r"SELECT 1", _constant((1,), columns=("1",))),
        (
            r"SELECT (?:'(?P<text>\w+)', )?@@(?P<scope>GLOBAL\.|SESSION\.)?(?P<name>\w+)",
            _variable,
        ),
        (r"SET NAMES \w+", _nothing),
        (r"SET (?:SESSION )?TRANSACTION ISOLATION LEVEL (?P<level>[\w ]+)", _set_isolation),
        (r"SET (?!STATEMENT )(?P<all>.+)", _set),
        (r"BEGIN|START TRANSACTION", _does(MySQLSession.begin)),
        (r"COMMIT", _does(MySQLSession.commit_all)),
        (r"ROLLBACK", _does(MySQLSession.roll_back_all)),
        (r"KILL (?:(?P<what>QUERY|CONNECTION) )?(?P<id>\d+)", _kill),
        (r"USE " + _TABLE, _use),
        (r"DO SLEEP\((?P<seconds>[\d.]+)\)", _sleep),
        (
            r"DO GET_LOCK\((?P<name>.+), @@innodb_lock_wait_timeout\)",
            _named_lock(MySQLSession.lock_name),
        ),
        (r"DO RELEASE_LOCK\((?P<name>.+)\)", _named_lock(MySQLSession.release_name)),
        (r"LOCK TABLES (?P<all>.+)", _lock_tables),
        (r"UNLOCK TABLES", _does(MySQLSession.unlock_tables)),
        (r"CREATE TABLE .+", _create),
        (r"ALTER TABLE .+", _alter),
        (r"DROP TABLE (?P<if>IF EXISTS )?" + _TABLE, _drop),
        (r"TRUNCATE TABLE " + _TABLE, _truncate),
        (r"SHOW CREATE TABLE " + _TABLE, _show_create),
        (
            r"SHOW GLOBAL VARIABLES(?: WHERE Variable_name IN \((?P<names>[\w', ]+)\))?",
            _show_variables,
        ),
        (
            (
                r"SHOW GLOBAL VARIABLES WHERE Variable_name = 'group_replication_single_primary_mode'"
                r" OR Variable_name = 'wsrep_on' AND Value = 'ON'"
            ),
            _constant(columns=("Variable_name", "Value")),
        ),
        (
            (
                r"SELECT (?:@@server_uuid|CONCAT_WS\(' ', @@hostname, @@port, @@server_id, @@datadir\)),"
                r" UNIX_TIMESTAMP\(\) - MAX.+\.global_status WHERE .+"
            ),
            lambda found: lambda session, p: catalog.identity(session, found[0]),
        ),
        (
            r"SELECT c\.COLUMN_NAME, c\.COLUMN_KEY IN .+ FROM information_schema\.TABLES AS t .+",
            lambda found: catalog.describe,
        ),
        (
            (
                r"SELECT TABLE_NAME, TABLE_COMMENT FROM information_schema\.TABLES"
                r" WHERE TABLE_SCHEMA = DATABASE\(\) AND LOCATE\('sqla_tickets', TABLE_COMMENT\) > 0"
            ),
            lambda found: lambda session, p: catalog.comments(session),
        ),
        (
            (
                r"SELECT DISTINCT 'key', INDEX_NAME FROM .+ AND TABLE_NAME = '(?P<table>(?:[^'\\]|''|\\.)*)'"
                r" AND COLUMN_NAME = 'id'"
            ),
            _table_parts,
        ),
        # what a doctor asks
        (r"SHOW (?:GLOBAL|SESSION) STATUS(?: .+)?", _rows_of(catalog.show_status)),
        (r"SHOW GRANTS", _rows_of(catalog.show_grants)),
        (r"SHOW (?:REPLICA|SLAVE) STATUS", _constant()),
        (
            r"SELECT COUNT\(\*\) FROM information_schema\.PROCESSLIST WHERE COMMAND LIKE 'Binlog Dump%'",
            _constant((0,), columns=("COUNT(*)",)),
        ),
        (
            r"SELECT TABLE_NAME, ENGINE, AUTO_INCREMENT FROM information_schema\.TABLES WHERE .+",
            _rows_of(catalog.counters),
        ),
        (
            r"SELECT id FROM information_schema\.processlist WHERE db = %s(?P<state> AND .+)?",
            lambda found: catalog.processes,
        ),
    )
]
