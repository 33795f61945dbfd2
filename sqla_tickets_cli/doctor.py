"""What can make ids repeat, or drawing stop: one small function for each thing that is checked."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from sqla_tickets import TicketError, TicketPool, TicketTableMoved
from sqla_tickets.grants import KINDS, everywhere, on_tables
from sqla_tickets.note import Tombstone
from sqla_tickets.statements import largest_ticket
from sqla_tickets.tombstones import Live

from .facts import Facts, Grant, PoolFacts, facts_of, read_only_by

__all__ = ["CHECKS", "Code", "Finding", "Severity", "examine"]

#: What comes of it: ids repeat, draws fail, or it could be better.
Severity = Literal["repeats", "stops", "advice"]

#: What is found. Alerts may be keyed on them: a release does not rename one.
Code = Literal[
    "flush-setting",
    "redo-log",
    "fsync",
    "full-page-writes",
    "binary-log",
    "storage-engine",
    "old-version",
    "galera",
    "group-replication",
    "global-increments",
    "offset-above-increment",
    "replica",
    "has-replicas",
    "unreachable",
    "same-server",
    "read-only",
    "recovery-mode",
    "in-recovery",
    "table-missing",
    "table-closed",
    "table-unfit",
    "table-empty",
    "numbers-used",
    "connections-used",
    "grants-missing",
    "lock-not-granted",
    "grants-everywhere",
    "grants-dangerous",
    "no-encryption",
    "lax-sql-mode",
    "cached-statistics",
]


@dataclass(frozen=True)
class Finding:
    """One thing that is not as it should be.

    Attributes:
        server: the server's name.
        check: the name of the check.
        code: what it is, by a name that stays.
        severity: what comes of it.
        variable: what to look at.
        value: how it was found.
        why: what can happen.
        fix: what to do.
    """

    server: str
    check: str
    code: Code
    severity: Severity
    variable: str
    value: str
    why: str
    fix: str


#: Code, severity, variable, value, why, fix.
Complaint = tuple[Code, Severity, str, str, str, str]
Check = Callable[[Facts, PoolFacts], Iterator[Complaint]]

#: How a cluster is told that takes writes on every node: code, variable, value.
_CLUSTERS: Final[tuple[tuple[Code, str, str], ...]] = (
    ("galera", "wsrep_on", "ON"),
    ("group-replication", "group_replication_single_primary_mode", "OFF"),
)


def examine(pool: TicketPool, sequences: Iterable[str] = ()) -> list[Finding]:
    """Every finding about the pool's servers, the gravest first."""
    facts = facts_of(pool, sequences)
    found = [
        Finding(str(server.server), check.__name__, *complaint)
        for server in facts.servers
        for check in (CHECKS if server.error is None else (unreachable,))
        for complaint in check(server, facts)
    ]
    order: tuple[Severity, ...] = ("repeats", "stops", "advice")
    return sorted(found, key=lambda finding: order.index(finding.severity))


# -- what makes ids repeat


def durability(server: Facts, pool: PoolFacts) -> Iterator[Complaint]:
    value = server.variables.get("innodb_flush_log_at_trx_commit", "1")
    if value not in ("1", "3"):  # MariaDB's 3 flushes more often than 1
        yield (
            "flush-setting",
            "repeats",
            "innodb_flush_log_at_trx_commit",
            value,
            "After a crash the tickets of the last second are issued again.",
            "SET GLOBAL innodb_flush_log_at_trx_commit = 1, and in the server's configuration.",
        )
    if server.status.get("Innodb_redo_log_enabled") == "OFF":
        yield (
            "redo-log",
            "repeats",
            "Innodb_redo_log_enabled",
            "OFF",
            "After a crash the server does not start again, and its backup has old numbers.",
            "ALTER INSTANCE ENABLE INNODB REDO_LOG.",
        )
    switches: tuple[tuple[Code, str], ...] = (
        ("fsync", "fsync"),
        ("full-page-writes", "full_page_writes"),
    )
    for code, variable in switches:
        if server.variables.get(variable) == "off":
            yield (
                code,
                "repeats",
                variable,
                "off",
                "After a crash the last tickets, or the whole table, are lost.",
                f"{_set_global(server, variable, 'on')}.",
            )


def binary_log(server: Facts, pool: PoolFacts) -> Iterator[Complaint]:
    value = server.variables.get("sync_binlog", "1")
    if server.variables.get("log_bin") == "ON" and value != "1":
        yield (
            "binary-log",
            "repeats",
            "sync_binlog",
            value,
            (
                "After a crash the last tickets may be missing, on a replica and on the server itself, which"
                " has InnoDB follow the binary log: they are issued again."
            ),
            "SET GLOBAL sync_binlog = 1; or skip-log-bin, as a ticket server needs no replica.",
        )


def storage_engine(server: Facts, pool: PoolFacts) -> Iterator[Complaint]:
    for name, table in server.tables.items():
        if table.engine not in (None, "InnoDB", "ROCKSDB"):
            yield (
                "storage-engine",
                "repeats",
                f"engine of {name}",
                str(table.engine),
                "It has no redo log: what it issued last can be lost in a crash, and issued again.",
                f"ALTER TABLE `{name}` ENGINE = InnoDB, while nobody draws.",
            )


def version(server: Facts, pool: PoolFacts) -> Iterator[Complaint]:
    since = {"mysql": (8, 0), "mariadb": (10, 2, 4)}.get(server.kind)
    if since and server.version and server.version < since:
        yield (
            "old-version",
            "repeats",
            "version",
            ".".join(map(str, server.version)),
            "Its AUTO_INCREMENT counter is in memory only: a restart or a promotion sets it back.",
            f"Upgrade to {'.'.join(map(str, since))} or later, or use the layout 'counter'.",
        )


def cluster(server: Facts, pool: PoolFacts) -> Iterator[Complaint]:
    counted = [name for name, table in server.tables.items() if _is_flickrs(table.state)]
    for code, variable, value in _CLUSTERS:
        if server.variables.get(variable) == value:
            yield (
                code,
                "repeats" if counted else "advice",
                variable,
                value,
                "Every node takes writes, LOCK TABLES holds off nobody on the others, and increments and"
                " offsets change whenever a node comes or goes. "
                + (
                    f"Who counts by them: {', '.join(counted)}."
                    if counted
                    else "Nothing here counts."
                ),
                "The layout 'counter' for every sequence here: op.convert_ticket_table().",
            )


def increments(server: Facts, pool: PoolFacts) -> Iterator[Complaint]:
    names = ("auto_increment_increment", "auto_increment_offset")
    if not all(name in server.variables for name in names):
        return
    found = [int(server.variables[name]) for name in names]
    wanted = [pool.pool.stride, server.server.offset or 0]
    if found == wanted or any(server.variables.get(n) == v for _, n, v in _CLUSTERS):
        return  # a cluster sets its own
    foreign = [
        n for n, t in server.tables.items() if isinstance(t.state, Live) and not t.state.note
    ]
    above = "The offset is above the increment, and so not kept. " if found[1] > found[0] else ""
    yield (
        "offset-above-increment" if above else "global-increments",
        "repeats" if foreign or above else "advice",
        "auto_increment_increment, auto_increment_offset",
        f"{found[0]}, {found[1]}",
        (
            f"{above}A client that trusts the server's settings, as Flickr's did, issues another server's"
            " numbers. This package sends its own along."
        ),
        (
            f"SET GLOBAL auto_increment_increment = {wanted[0]}, GLOBAL auto_increment_offset = {wanted[1]},"
            " and in the server's configuration; then end all connections."
        ),
    )


def replication(server: Facts, pool: PoolFacts) -> Iterator[Complaint]:
    if server.is_replica and server.kind != "postgresql":
        yield (
            "replica",
            "repeats",
            "SHOW REPLICA STATUS",
            "it is a replica",
            (
                "Another server's writes come in beside the tickets that are drawn here, and can set them"
                " back."
            ),
            "STOP REPLICA; RESET REPLICA ALL; two ticket servers need not know of each other.",
        )
    if server.replicas:
        yield (
            "has-replicas",
            "advice",
            "replicas",
            str(server.replicas),
            "A replica lags: promoted, it issues again what it had not received yet.",
            "Before a promoted replica is let in: sqla-tickets restore.",
        )


# -- what makes drawing stop


def unreachable(server: Facts, pool: PoolFacts) -> Iterator[Complaint]:
    yield (
        "unreachable",
        "stops",
        "connection",
        "none",
        f"It cannot be asked: {server.error}",
        "Start it, or mend the network, the user or the password.",
    )


def twins(server: Facts, pool: PoolFacts) -> Iterator[Complaint]:
    others = [
        str(other.server)
        for other in pool.servers
        if other is not server and other.identity and other.identity == server.identity
    ]
    if others:
        yield (
            "same-server",
            "stops",
            "server",
            f"the same as {', '.join(others)}",
            "Two offsets on one machine: nothing goes on when it dies.",
            "Give the pool another server in its place.",
        )


def read_only(server: Facts, pool: PoolFacts) -> Iterator[Complaint]:
    level = server.variables.get("innodb_force_recovery", "0")
    if level != "0":
        yield (
            "recovery-mode",
            "stops",
            "innodb_force_recovery",
            level,
            (
                "It was started so that data could be saved from it: it may take no writes, and may have"
                " skipped what a crash had left to be done."
            ),
            "Start it without that, and run sqla-tickets restore before it is let in.",
        )
    name = read_only_by(server.variables)
    if name is not None:
        end = (
            _set_global(server, name, "OFF")
            if name != "innodb_read_only"
            else "Start it without that"
        )
        yield (
            "read-only",
            "stops",
            name,
            server.variables[name],
            "It issues no tickets. Was it demoted to a replica?",
            f"{end}, if it is to issue tickets, after sqla-tickets restore.",
        )
        return
    if server.is_replica and server.kind == "postgresql":
        yield (
            "in-recovery",
            "stops",
            "pg_is_in_recovery()",
            "true",
            "It is a replica, and issues no tickets.",
            "Name the primary, or promote it, and run sqla-tickets restore before it is let in.",
        )


def tables(server: Facts, pool: PoolFacts) -> Iterator[Complaint]:
    for name, table in server.tables.items():
        state = table.state
        if state is None:
            yield (
                "table-missing",
                "stops",
                f"table {name}",
                "missing",
                "Nothing is drawn here, so that the other servers have to be up.",
                f"sqla-tickets create {name}",
            )
        elif isinstance(state, TicketTableMoved) or (
            isinstance(state, Tombstone) and state.kind in ("opening", "converting")
        ):
            yield (
                "table-closed",
                "stops",
                f"table {name}",
                str(state),
                "A move or a conversion has not ended.",
                "Run the migration again: it goes on where it stopped.",
            )
        elif isinstance(state, TicketError):
            yield (
                "table-unfit",
                "stops",
                f"table {name}",
                "unfit",
                str(state),
                "As the message says.",
            )
        elif isinstance(state, Live) and state.number is None:
            yield (
                "table-empty",
                "stops",
                f"table {name}",
                "empty",
                "Its number is lost: somebody has truncated it, or deleted the row.",
                (
                    f"sqla-tickets raise {name} --above N, with N above every id that was ever issued"
                    " (sqla-tickets restore finds out)."
                ),
            )


def exhaustion(server: Facts, pool: PoolFacts) -> Iterator[Complaint]:
    for name, table in server.tables.items():
        state = table.state
        if not isinstance(state, Live) or state.number is None:
            continue
        largest = largest_ticket(state.note.bits if state.note else 64)
        if state.number > MUCH * largest:
            yield (
                "numbers-used",
                "stops",
                f"last ticket of {name}",
                f"{state.number} of {largest}",
                f"{state.number / largest:.0%} of the numbers are used.",
                "Widen the table and the applications' columns to 64 bits.",
            )


def connections(server: Facts, pool: PoolFacts) -> Iterator[Complaint]:
    used = max(
        int(server.status.get(name, 0)) for name in ("Threads_connected", "Max_used_connections")
    )
    most = int(server.variables.get("max_connections", 0))
    if most and used > MANY * most:
        yield (
            "connections-used",
            "stops",
            "max_connections",
            f"{most}, of which {used} were used",
            "One more restart of the application may find no connection.",
            f"{_set_global(server, 'max_connections', max(4 * used, 500))}, and in the configuration.",
        )


def missing_grants(server: Facts, pool: PoolFacts) -> Iterator[Complaint]:
    if server.grants is None or _only_looks(server, server.grants):
        return
    needed = on_tables(server.kind, "draw")
    for name, table in server.tables.items():
        if not isinstance(table.state, (Live, TicketError)):
            continue
        has = _privileges(server.grants, server.database, name)
        lacking = [p for p in needed if not {p, "ALL PRIVILEGES", "ALL"} & has]
        if not lacking:
            continue
        is_slow = lacking == [LOCK]
        if is_slow and not _is_flickrs(table.state):
            continue
        yield (
            "lock-not-granted" if is_slow else "grants-missing",
            "advice" if is_slow else "stops",
            f"grants on {name}",
            f"without {', '.join(lacking)}",
            "Many tickets at once are drawn one by one."
            if is_slow
            else "Tickets cannot be drawn, or their marks not be kept.",
            f"GRANT {', '.join(lacking)} ON {_there(server, name)} TO {_user(server)}",
        )


def _only_looks(server: Facts, grants: Sequence[Grant]) -> bool:
    """Whether the user is one of ``sqla-tickets grants monitor``, which is not to draw."""
    here = {p for grant in grants if grant.on != EVERYWHERE for p in grant.privileges}
    anywhere = {p for grant in grants if grant.on == EVERYWHERE for p in grant.privileges}
    return here <= {"SELECT"} and anywhere >= set(everywhere(server.kind, "monitor"))


# -- what could be better


def too_many_grants(server: Facts, pool: PoolFacts) -> Iterator[Complaint]:
    if server.grants is None:
        return
    anywhere: set[str] = set()
    for grant in server.grants:
        if grant.on == EVERYWHERE:
            anywhere |= grant.privileges - HARMLESS
    names = [None, *server.tables]
    here = {p for name in names for p in _privileges(server.grants, server.database, name)}
    here -= {*on_tables(server.kind, "draw"), *HARMLESS, *anywhere}
    if anywhere:
        yield (
            "grants-everywhere",
            "advice",
            f"grants on {EVERYWHERE}",
            ", ".join(sorted(anywhere)),
            "A ticket user needs nothing outside its database.",
            f"REVOKE them from {_user(server)}.",
        )
    if here:
        yield (
            "grants-dangerous",
            "advice",
            f"grants on {_there(server, '*')}",
            ", ".join(sorted(here)),
            (
                "Migrations need that at most. Who gets at the password of an application with it can set"
                " the numbers back, by TRUNCATE, ALTER or a new table."
            ),
            (
                f"If applications draw as {_user(server)}: give the migrations a user of their own, and"
                " this one what `sqla-tickets grants draw` prints."
            ),
        )


def encryption(server: Facts, pool: PoolFacts) -> Iterator[Complaint]:
    host = server.server.engine.url.host
    if server.status.get("Ssl_cipher") == "" and not _is_this_machine(host):
        yield (
            "no-encryption",
            "advice",
            "Ssl_cipher",
            "none",
            f"What goes to {host} can be read and changed on the way.",
            "Give the URL ?sslmode=verify-full&sslrootcert=FILE, and pg_hba.conf hostssl."
            if server.kind == "postgresql"
            else "Give the URL ?ssl_ca=FILE, and the user REQUIRE SSL.",
        )


def lax_mode(server: Facts, pool: PoolFacts) -> Iterator[Complaint]:
    mode = server.variables.get("sql_mode")
    if mode is not None and "STRICT_" not in mode:
        yield (
            "lax-sql-mode",
            "advice",
            "sql_mode",
            mode or "empty",
            "A client other than this package gets the last number again and again when none is left.",
            "Add STRICT_ALL_TABLES to sql_mode.",
        )


def stale_statistics(server: Facts, pool: PoolFacts) -> Iterator[Complaint]:
    value = server.variables.get("information_schema_stats_expiry", "0")
    if value != "0":
        yield (
            "cached-statistics",
            "advice",
            "information_schema_stats_expiry",
            value,
            f"Monitoring by information_schema sees AUTO_INCREMENT as it was up to {value} s ago.",
            "SET GLOBAL information_schema_stats_expiry = 0, or watch `sqla-tickets status`.",
        )


CHECKS: Final[tuple[Check, ...]] = (
    durability,
    binary_log,
    storage_engine,
    version,
    cluster,
    increments,
    replication,
    twins,
    read_only,
    tables,
    exhaustion,
    connections,
    missing_grants,
    too_many_grants,
    encryption,
    lax_mode,
    stale_statistics,
)

#: Parts of the numbers, and of the connections, from which on it is high time.
MUCH: Final = 0.7
MANY: Final = 0.8
LOCK: Final = "LOCK TABLES"
EVERYWHERE: Final = "*.*"
#: What monitoring needs, and the end of a growth.
HARMLESS: Final = frozenset(
    {
        "BINLOG MONITOR",
        "CONNECTION ADMIN",
        "CONNECTION_ADMIN",
        "REPLICATION CLIENT",
        "USAGE",
        *(privilege for kind in KINDS for privilege in everywhere(kind, "monitor")),
    }
)


def _privileges(
    grants: Iterable[Grant], database: str | None, table: str | None = None
) -> set[str]:
    return {p for grant in grants if grant.covers(database, table) for p in grant.privileges}


def _user(server: Facts) -> str:
    mark = '"' if server.kind == "postgresql" else "'"
    return f"{mark}{server.server.engine.url.username}{mark}"


def _there(server: Facts, table: str) -> str:
    """Where a privilege is to be granted: on PostgreSQL table by table."""
    if server.kind != "postgresql":
        return f"`{server.database}`.*"
    return "ALL TABLES IN SCHEMA" if table == "*" else f'"{table}"'


def _set_global(server: Facts, name: str, value: object) -> str:
    if server.kind == "postgresql":
        effective = "a restart" if name == "max_connections" else "SELECT pg_reload_conf()"
        return f"ALTER SYSTEM SET {name} = {value} and {effective}"
    return f"SET GLOBAL {name} = {value}"


def _is_flickrs(state: object) -> bool:
    return isinstance(state, Live) and state.layout == "replace"


def _is_this_machine(host: str | None) -> bool:
    if host in (None, "", "localhost") or str(host).startswith("/"):
        return True
    try:
        return ipaddress.ip_address(str(host)).is_loopback
    except ValueError:
        return False
