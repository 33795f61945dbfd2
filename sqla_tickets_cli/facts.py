"""What a server is asked, as data: its variables, its tables, what its user may do. Judges nothing."""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from sqlalchemy.engine.interfaces import DBAPICursor

from sqla_tickets import TicketError, TicketPool, TicketServer, moves, tombstones
from sqla_tickets.place import Place
from sqla_tickets.tombstones import State

__all__ = ["Facts", "Grant", "PoolFacts", "TableFacts", "facts_of", "is_read_only", "read_only_by"]

VARIABLES: Final = (
    "auto_increment_increment",
    "auto_increment_offset",
    "datadir",
    "group_replication_single_primary_mode",
    "hostname",
    "information_schema_stats_expiry",
    "innodb_flush_log_at_trx_commit",
    "innodb_force_recovery",
    "innodb_read_only",
    "log_bin",
    "max_connections",
    "port",
    "read_only",
    "server_uuid",
    "sql_mode",
    "super_read_only",
    "sync_binlog",
    "wsrep_on",
)
STATUS: Final = (
    "Innodb_redo_log_enabled",
    "Max_used_connections",
    "Ssl_cipher",
    "Threads_connected",
)
_POSTGRESQL: Final = (
    "default_transaction_read_only",
    "fsync",
    "full_page_writes",
    "max_connections",
)
#: Each keeps a ticket user from writing unless it is off.
READ_ONLY: Final = (
    "super_read_only",
    "read_only",
    "innodb_read_only",
    "default_transaction_read_only",
)


@dataclass(frozen=True)
class Grant:
    """Privileges of the ticket user.

    Attributes:
        privileges: such as ``"SELECT"`` or ``"ALL PRIVILEGES"``.
        on: such as ``"*.*"`` or ``"`tickets`.*"``.
    """

    privileges: frozenset[str]
    on: str

    def covers(self, database: str | None, table: str | None = None) -> bool:
        """Whether it counts for all tables of the database, or for one of them."""
        schema, _, name = self.on.replace("`", "").partition(".")
        pattern = re.escape(re.sub(r"\\(.)", r"\1", schema)).replace("%", ".*")
        matches = schema == "*" or re.fullmatch(pattern, database or "") is not None
        return matches and name in ("*", table)


@dataclass(frozen=True)
class TableFacts:
    """One sequence's table on one server.

    Attributes:
        state: what is there, or why that is not known.
        engine: the storage engine, where the server has several.
        counter: the next number of its AUTO_INCREMENT, where it has one.
    """

    state: State | TicketError
    engine: str | None = None
    counter: int | None = None


@dataclass
class Facts:
    """One ticket server.

    Attributes:
        server: the server.
        kind: ``"mysql"``, ``"mariadb"``, ``"postgresql"`` or ``"sqlite"``.
        version: of the server.
        variables: global ones, those of `VARIABLES` that it has.
        status: those of `STATUS` that it has; ``Ssl_cipher`` is that of the session.
        grants: None where they are not known, or come by roles.
        is_replica: whether it takes over another's writes; None when it may not be asked.
        replicas: how many take over its own; None when it may not be asked.
        tables: by sequence.
        error: why it did not answer.
    """

    server: TicketServer
    kind: str
    version: tuple[int, ...] = ()
    variables: dict[str, str] = field(default_factory=dict[str, str])
    status: dict[str, str] = field(default_factory=dict[str, str])
    grants: tuple[Grant, ...] | None = None
    is_replica: bool | None = None
    replicas: int | None = None
    tables: dict[str, TableFacts] = field(default_factory=dict[str, TableFacts])
    error: str | None = None

    @property
    def database(self) -> str | None:
        return self.server.engine.url.database

    @property
    def identity(self) -> tuple[str | None, ...] | None:
        """What is the same for two addresses of one running server."""
        told = tuple(self.variables.get(n) for n in ("hostname", "port", "datadir", "started"))
        return told if any(told) else None


@dataclass(frozen=True)
class PoolFacts:
    """A pool and what its servers have told."""

    pool: TicketPool
    servers: Sequence[Facts]


def facts_of(pool: TicketPool, sequences: Iterable[str] = ()) -> PoolFacts:
    """Ask every server of the pool; one that is down has an error instead of facts."""
    found = {server: _facts(server) for server in pool.servers}
    answered = any(facts.error is None for facts in found.values())
    names = sorted({*sequences, *(moves.names(pool) if answered else ())})
    for name in names:
        for server, facts in found.items():
            if facts.error is None:
                seen = facts.tables.get(name, TableFacts(None))
                state = _state(server, name)
                facts.tables[name] = TableFacts(state, seen.engine, seen.counter)
    for facts in found.values():
        facts.tables = {name: facts.tables[name] for name in names if name in facts.tables}
    return PoolFacts(pool, list(found.values()))


def read_only_by(variables: Mapping[str, str]) -> str | None:
    """The variable by which a server takes no writes, if there is one."""
    return next((n for n in READ_ONLY if variables.get(n, "OFF").upper() not in ("OFF", "0")), None)


def is_read_only(server: TicketServer) -> bool:
    """Whether a server answers and takes no writes: by a variable, or as a standby."""

    def ask(cursor: DBAPICursor, place: Place) -> bool:
        if place.dialect.name == "postgresql":
            ((value,),) = _rows(cursor, "SHOW transaction_read_only")
            return str(value) == "on"
        return read_only_by(_pairs(cursor, "SHOW GLOBAL VARIABLES", READ_ONLY)) is not None

    if server.engine.dialect.name == "sqlite":
        return False
    try:
        return server.do("", ask)
    except TicketError:
        return False


def _state(server: TicketServer, name: str) -> State | TicketError:
    try:
        return server.do(name, lambda cursor, place: tombstones.look(cursor, place, name))
    except TicketError as error:
        return error


def _facts(server: TicketServer) -> Facts:
    dialect = server.engine.dialect
    facts = Facts(server, dialect.name)

    def ask(cursor: DBAPICursor, place: Place) -> None:
        facts.kind = "mariadb" if getattr(dialect, "is_mariadb", False) else dialect.name
        facts.version = tuple(
            part for part in dialect.server_version_info or () if isinstance(part, int)
        )
        if facts.kind in ("mysql", "mariadb"):
            _ask_mysql(cursor, facts)
        elif facts.kind == "postgresql":
            _ask_postgresql(cursor, facts)

    try:
        server.do("", ask)
    except TicketError as error:
        facts.error = str(error)
    return facts


def _ask_mysql(cursor: DBAPICursor, facts: Facts) -> None:
    facts.variables = _pairs(cursor, "SHOW GLOBAL VARIABLES", VARIABLES)
    facts.status = _pairs(cursor, "SHOW GLOBAL STATUS", STATUS)
    facts.status.update(_pairs(cursor, "SHOW SESSION STATUS", ("Ssl_cipher",)))
    facts.grants = _grants(_rows(cursor, "SHOW GRANTS"))
    facts.is_replica, facts.replicas = _replication(cursor)
    if "information_schema_stats_expiry" in facts.variables:
        cursor.execute("SET SESSION information_schema_stats_expiry = 0", ())
    for name, engine, counter in _rows(
        cursor,
        "SELECT TABLE_NAME, ENGINE, AUTO_INCREMENT FROM information_schema.TABLES"
        " WHERE TABLE_SCHEMA = DATABASE() AND TABLE_TYPE = 'BASE TABLE'",
    ):
        number = None if counter is None else int(str(counter))
        facts.tables[str(name)] = TableFacts(None, str(engine), number)


def _ask_postgresql(cursor: DBAPICursor, facts: Facts) -> None:
    names = ", ".join(f"'{name}'" for name in _POSTGRESQL)
    rows = _rows(cursor, f"SELECT name, setting FROM pg_settings WHERE name IN ({names})")
    facts.variables = {str(name): str(value) for name, value in rows}
    ((recovering, started),) = _rows(
        cursor, "SELECT pg_is_in_recovery(), CAST(pg_postmaster_start_time() AS text)"
    )
    facts.is_replica = bool(recovering)
    facts.variables["started"] = str(started)
    facts.grants = _grants_of_postgresql(cursor, facts)
    ((used,),) = _rows(cursor, "SELECT count(*) FROM pg_stat_activity WHERE backend_type LIKE 'c%'")
    facts.status["Threads_connected"] = str(used)
    ((cipher,),) = _rows(cursor, "SELECT cipher FROM pg_stat_ssl WHERE pid = pg_backend_pid()")
    facts.status["Ssl_cipher"] = str(cipher or "")


def _rows(cursor: DBAPICursor, statement: str) -> list[tuple[object, ...]]:
    # no parameters: an empty tuple would make some drivers read the percent sign
    cursor.execute(statement)
    return [tuple(row) for row in cursor.fetchall()]


def _pairs(cursor: DBAPICursor, what: str, names: Sequence[str]) -> dict[str, str]:
    listed = ", ".join(f"'{name}'" for name in names)
    rows = _rows(cursor, f"{what} WHERE Variable_name IN ({listed})")
    return {str(name): str(value) for name, value in rows}


def _grants(rows: list[tuple[object, ...]]) -> tuple[Grant, ...] | None:
    """What ``SHOW GRANTS`` lists; None when a role may hold more."""
    found: list[Grant] = []
    for (text,) in rows:
        parts = re.match(
            r"GRANT (.+?) ON (?:TABLE )?((?:`[^`]*`|\*)\.(?:`[^`]*`|\*)) TO ", str(text)
        )
        if parts:
            privileges = {p.strip().upper() for p in parts[1].split(",")}
            if str(text).endswith("WITH GRANT OPTION"):
                privileges.add("GRANT OPTION")
            found.append(Grant(frozenset(privileges), parts[2]))
        elif " ON " not in str(text) and "SET DEFAULT ROLE" not in str(text):
            return None
    return tuple(found)


def _grants_of_postgresql(cursor: DBAPICursor, facts: Facts) -> tuple[Grant, ...]:
    """What the user may do, by whichever role, to each table that is seen without its schema."""
    ((is_superuser, reads_all),) = _rows(
        cursor,
        "SELECT rolsuper, pg_has_role('pg_read_all_stats', 'USAGE') FROM pg_roles"
        " WHERE rolname = current_user",
    )
    everywhere: set[str] = set()
    if is_superuser or reads_all:
        everywhere.add("SUPERUSER" if is_superuser else "pg_read_all_stats")
    rows = _rows(
        cursor,
        "SELECT c.relname, pg_has_role(c.relowner, 'USAGE'), has_table_privilege(c.oid, 'SELECT'),"
        " has_table_privilege(c.oid, 'INSERT'), has_table_privilege(c.oid, 'UPDATE'),"
        " has_table_privilege(c.oid, 'DELETE'), has_table_privilege(c.oid, 'TRUNCATE')"
        " FROM pg_class AS c WHERE c.relkind = 'r' AND pg_table_is_visible(c.oid)"
        " AND c.relnamespace <> 'pg_catalog'::regnamespace",
    )
    privileges = ("OWNER", "SELECT", "INSERT", "UPDATE", "DELETE", "TRUNCATE")
    found = [Grant(frozenset(everywhere), "*.*")]
    for name, *has in rows:
        held = frozenset(itertools.compress(privileges, has))
        found.append(Grant(held, f"`{facts.database}`.`{name}`"))
    return tuple(found)


def _replication(cursor: DBAPICursor) -> tuple[bool | None, int | None]:
    is_replica: bool | None = None
    for statement in ("SHOW REPLICA STATUS", "SHOW SLAVE STATUS"):
        with contextlib.suppress(Exception):  # not granted, or not of this version
            is_replica = bool(_rows(cursor, statement))
            break
    dumps = "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE COMMAND LIKE 'Binlog Dump%'"
    with contextlib.suppress(Exception):
        ((replicas,),) = _rows(cursor, dumps)
        return is_replica, int(str(replicas))
    return is_replica, None
