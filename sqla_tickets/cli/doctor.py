"""Checks for causes of repeated ids and failed draws: one function for each check.

A new check is a function here with ``@check``, its `Code`, and a row with both names in
``docs/reference/commands.md``. It may read every variable, and the counters that the kind's ``facts()`` has; if one
is missing, it finds nothing. The user's grants come from ``user_grants()``. Any other fact of the server is a field of
`ServerFacts`, which ``facts()`` fills and `cli.inspection` copies. A fact that needs the pool is read by `cli.inspection`.

Its test in ``tests/integration/cli/test_doctor.py`` puts a server into the state that the check finds, and names the `Code`. A state that the tests'
servers cannot have is tested in ``tests/unit/cli/test_doctor.py``. Its first tests check that a healthy pair has no finding; the servers of
that pair share a host. ``test_every_finding_has_a_test`` fails for a `Code` without a test, ``tests/docs/test_operations_docs.py`` for a check or
a `Code` that no page names.
"""

from __future__ import annotations

import ipaddress
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from .. import TicketError, TicketPool, TicketTableMissing
from .. import concurrency as clock
from ..dialects import Grant
from ..high_water.statements import MARKS
from ..high_water.timing import TIMING as MARKS_TIMING
from ..maintenance.status import state_after
from ..snowflake import lease_table
from ..status.text import (
    EVERY_SHARD,
    in_short,
    more_numbers,
    named,
    remedy,
    restoration,
    set_back,
    without_advice,
    writes_again,
)
from ..tables.inspection import ActiveTable
from ..tables.metadata import Tombstone
from .inspection import PoolInspection, ServerInspection, inspect_pool

__all__ = ["CHECKS", "Code", "Finding", "Severity", "examine"]

#: The consequence: ids repeat, draws fail, or something can be improved.
Severity = Literal["repeats", "stops", "advice"]

#: The problems. Alerts may use these names, so no release renames one.
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
    "set-back",
    "quarantined",
    "marks-missing",
    "replica",
    "has-replicas",
    "unreachable",
    "same-server",
    "same-cluster",
    "read-only",
    "recovery-mode",
    "in-recovery",
    "table-missing",
    "table-retired",
    "table-closed",
    "table-busy",
    "table-unfit",
    "table-empty",
    "node-numbers-missing",
    "node-numbers-foreign",
    "numbers-used",
    "connections-used",
    "grants-missing",
    "lock-not-granted",
    "grants-everywhere",
    "grants-dangerous",
    "no-encryption",
    "lax-sql-mode",
    "cached-statistics",
    "impossible-mark",
    "impossible-horizon",
    "late-horizon",
    "unconfirmed-growth",
    "server-not-configured",
]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A problem of one server.

    Attributes:
        server: the server's name.
        check: the name of the check that found it.
        code: the problem's name, which is stable.
        severity: the consequence.
        sequence: the sequence that it is about; empty where it is about the whole server.
        variable: where it was found.
        value: the variable's value.
        why: what can happen.
        fix: what to do.
    """

    server: str = ""
    check: str = ""
    code: Code
    severity: Severity
    sequence: str = ""
    variable: str
    value: str
    why: str
    fix: str


#: A function of one server and its pool. `examine` writes its name, and the server's, into each finding.
Check = Callable[[ServerInspection, PoolInspection], Iterator[Finding]]

#: The checks of a server that answers.
CHECKS: Final[list[Check]] = []


def check(function: Check) -> Check:
    """Register a check of every server that answers."""
    CHECKS.append(function)
    return function


#: The sign of a cluster that takes writes on every node: code, variable, value.
_CLUSTERS: Final[tuple[tuple[Code, str, str], ...]] = (
    ("galera", "wsrep_on", "ON"),
    ("group-replication", "group_replication_single_primary_mode", "OFF"),
)


def examine(
    pool: TicketPool, sequences: Iterable[str] = (), with_shards: str = EVERY_SHARD
) -> list[Finding]:
    """Every finding about the pool's servers, the most severe first.

    Args:
        pool: the pool.
        sequences: sequences that are examined even if their tables have no metadata.
        with_shards: what advice adds to the name of a command that reads the shards.
    """
    inspection = inspect_pool(pool, sequences, with_shards)
    found = [
        replace(finding, server=str(server.server), check=each.__name__)
        for server in inspection.servers
        for each in _checks(server)
        for finding in each(server, inspection)
    ]
    return gravest_first(found)


def gravest_first(found: Iterable[Finding]) -> list[Finding]:
    """Findings, also of several pools, with the worst consequences first."""
    order: tuple[Severity, ...] = ("repeats", "stops", "advice")
    return sorted(found, key=lambda finding: order.index(finding.severity))


def _checks(server: ServerInspection) -> Sequence[Check]:
    if server.error is None:
        return CHECKS
    return (unreachable,) if server.cluster is None else (one_cluster,)


# -- what makes ids repeat


@check
def durability(server: ServerInspection, pool: PoolInspection) -> Iterator[Finding]:
    variable = "innodb_flush_log_at_trx_commit"
    if variable in server.dialect.lossy_variables(server.variables):
        yield Finding(
            code="flush-setting",
            severity="repeats",
            variable=variable,
            value=server.variables[variable],
            why="After a crash it repeats the tickets of the last second.",
            fix="SET GLOBAL innodb_flush_log_at_trx_commit = 1, and set it in the server's configuration.",
        )
    if server.status.get("Innodb_redo_log_enabled") == "OFF":
        yield Finding(
            code="redo-log",
            severity="repeats",
            variable="Innodb_redo_log_enabled",
            value="OFF",
            why="After a crash the server cannot start, and a restored backup repeats numbers.",
            fix="ALTER INSTANCE ENABLE INNODB REDO_LOG.",
        )
    switches: tuple[tuple[Code, str], ...] = (
        ("fsync", "fsync"),
        ("full-page-writes", "full_page_writes"),
    )
    for code, variable in switches:
        if server.variables.get(variable) == "off":
            yield Finding(
                code=code,
                severity="repeats",
                variable=variable,
                value="off",
                why="After a crash the last tickets, or the whole table, are lost.",
                fix=f"{server.dialect.set_global(variable, 'on')}.",
            )


@check
def binary_log(server: ServerInspection, pool: PoolInspection) -> Iterator[Finding]:
    if "sync_binlog" in server.dialect.lossy_variables(server.variables):
        yield Finding(
            code="binary-log",
            severity="repeats",
            variable="sync_binlog",
            value=server.variables["sync_binlog"],
            why=(
                "After a crash, the server may lack the last tickets, because InnoDB rolls back what the binary log lacks. "
                "A replica may lack them, too. Either issues them again."
            ),
            fix="SET GLOBAL sync_binlog = 1, or set skip-log-bin, as a ticket server needs no replica.",
        )


@check
def storage_engine(server: ServerInspection, pool: PoolInspection) -> Iterator[Finding]:
    for name, table in server.tables.items():
        is_closed = isinstance(table.state, Tombstone)
        if not is_closed and table.engine not in (None, "InnoDB", "ROCKSDB"):
            yield Finding(
                code="storage-engine",
                severity="repeats",
                sequence=name,
                variable=f"engine of {name}",
                value=str(table.engine),
                why="It has no redo log: a crash can lose the last tickets, which are then issued again.",
                fix=f"ALTER TABLE {server.quoted(name)} ENGINE = InnoDB, while no client draws.",
            )


@check
def version(server: ServerInspection, pool: PoolInspection) -> Iterator[Finding]:
    since = server.dialect.counter_kept_since
    states = [table.state for table in server.tables.values()]
    needs_none = _has_active(server) and not any(
        _is_flickrs(state) or isinstance(state, TicketError) for state in states
    )
    if needs_none:
        return
    if since and server.version and server.version < since:
        yield Finding(
            code="old-version",
            severity="repeats",
            variable="version",
            value=".".join(map(str, server.version)),
            why="Its AUTO_INCREMENT counter is in memory only: a restart or a promotion sets it back.",
            fix=f"Upgrade to {'.'.join(map(str, since))} or later, or use the layout 'counter'.",
        )


@check
def cluster(server: ServerInspection, pool: PoolInspection) -> Iterator[Finding]:
    counted = [name for name, table in server.tables.items() if _is_flickrs(table.state)]
    for code, variable, value in _CLUSTERS:
        if counted and server.variables.get(variable) == value:
            yield Finding(
                code=code,
                severity="repeats",
                variable=variable,
                value=value,
                why=(
                    "Every node takes writes, LOCK TABLES locks one node only, and increments and offsets change "
                    "when a node joins or leaves. These sequences depend on that:"
                    f" {', '.join(counted)}."
                ),
                fix="Convert every sequence here to the layout 'counter': op.convert_ticket_table().",
            )


def one_cluster(server: ServerInspection, pool: PoolInspection) -> Iterator[Finding]:
    yield Finding(
        code="same-cluster",
        severity="repeats",
        variable="cluster",
        value=str(server.cluster),
        why=str(server.error),
        fix="Name the cluster once, by one address for all of its members.",
    )


@check
def increments(server: ServerInspection, pool: PoolInspection) -> Iterator[Finding]:
    names = ("auto_increment_increment", "auto_increment_offset")
    if not all(name in server.variables for name in names):
        return
    found = [int(server.variables[name]) for name in names]
    wanted = [pool.pool.stride, server.server.offset]
    if found == wanted or any(server.variables.get(n) == v for _, n, v in _CLUSTERS):
        return  # a cluster sets its own
    foreign = _has_foreign(server)
    if not foreign and found[1] <= found[0]:
        return  # no client here goes by them: this package sends its own
    above = "The server ignores an offset above the increment. " if found[1] > found[0] else ""
    yield Finding(
        code="offset-above-increment" if above else "global-increments",
        severity="repeats",
        variable="auto_increment_increment, auto_increment_offset",
        value=f"{found[0]}, {found[1]}",
        why=(
            f"{above}A client that relies on the server's settings, as Flickr's did, draws another server's numbers. "
            "This package sends its own settings with each statement."
        ),
        fix=(
            f"SET GLOBAL auto_increment_increment = {wanted[0]}, GLOBAL auto_increment_offset = {wanted[1]},"
            f" and set both in the server's configuration; then end all connections.{_for_plain_clients(server)}"
        ),
    )


def _has_foreign(server: ServerInspection) -> bool:
    """Whether another program created a table here, and may draw from it, too."""
    states = [table.state for table in server.tables.values()]
    return any(isinstance(state, ActiveTable) and not state.metadata for state in states)


def _for_plain_clients(server: ServerInspection) -> str:
    """The stub column that other programs must name in tables whose stride has changed."""
    states = [table.state for table in server.tables.values()]
    found = {s.stub for s in states if isinstance(s, ActiveTable) and s.layout == "replace"} - {
        "stub"
    }
    return "".join(
        f" Plain clients must name the column {stub} instead of stub." for stub in sorted(found)
    )


@check
def old_numbers(server: ServerInspection, pool: PoolInspection) -> Iterator[Finding]:
    for name, status in server.statuses.items():
        if status.state in ("set back", "quarantined"):
            yield Finding(
                code="quarantined" if status.state == "quarantined" else "set-back",
                severity="repeats",
                sequence=name,
                variable=f"last ticket of {name}",
                value=f"{status.last_ticket or 0:,}",
                why=set_back(status),
                fix=restoration(status, pool.with_shards),
            )


@check
def missing_marks(server: ServerInspection, pool: PoolInspection) -> Iterator[Finding]:
    fault = server.marks_fault
    if fault is None or not _keeps_marks(server, pool):
        return
    is_missing = fault.kind == "table_missing"
    first = next(n for n, table in server.tables.items() if isinstance(table.state, ActiveTable))
    yield Finding(
        code="marks-missing",
        severity="repeats" if is_missing else "advice",
        variable=f"table {MARKS}",
        value="missing" if is_missing else f"not readable for {server.account}",
        why=f"A process {'that starts' if is_missing else 'of this user'} cannot learn from this server that a peer was "
        "set back, and that peer repeats ids.",
        fix=f"sqla-tickets create {named(first, pool.pool.name)}"
        if is_missing
        else f"Grant {server.account} what `sqla-tickets grants draw --on {server.kind}` prints.",
    )


@check
def replication(server: ServerInspection, pool: PoolInspection) -> Iterator[Finding]:
    if server.is_replica and server.dialect.replica_takes_writes:
        yield Finding(
            code="replica",
            severity="repeats",
            variable="SHOW REPLICA STATUS",
            value="it is a replica",
            why=("It applies another server's writes, which can set back its numbers."),
            fix="STOP REPLICA; RESET REPLICA ALL. Ticket servers need no replication.",
        )
    if server.replicas:
        yield Finding(
            code="has-replicas",
            severity="advice",
            variable="replicas",
            value=str(server.replicas),
            why="A replica lags: after a promotion it repeats tickets that it had not yet received.",
            fix="Run sqla-tickets restore after a promotion, before the server gets the address that clients use.",
        )


@check
def forged_rows(server: ServerInspection, pool: PoolInspection) -> Iterator[Finding]:
    for name, (number, text) in server.refuted.items():
        yield Finding(
            code="impossible-mark",
            severity="repeats",
            sequence=name,
            variable=f"marks of {name}",
            value="one that cannot be true",
            why=f"{text}. Until that mark is deleted, this server cannot show that a peer was set back.",
            fix=f"DELETE FROM {MARKS} WHERE sequence = {server.literal(name)} AND mark = {number}; then change the"
            " passwords of all users who can write that table.",
        )
    for name, above in server.larger_joined.items():
        if above and any(other.larger_joined[name] not in (above, None) for other in pool.servers):
            yield Finding(
                code="unconfirmed-growth",
                severity="stops",
                sequence=name,
                variable=f"marks of {name}",
                value=f"servers with a larger stride joined above {above}",
                why="Draws end there, but another server does not show the same.",
                fix=(
                    "If `sqla-tickets grow --add` was interrupted, run it again. If the pool has not grown: DELETE FROM"
                    f" {MARKS} WHERE sequence = {server.literal(name)} AND stride > {pool.pool.stride} AND mark ="
                    f" {above}; then change the passwords of all users who can write that table."
                ),
            )
    count, latest = server.far_horizons
    if count:
        yield Finding(
            code="impossible-horizon",
            severity="repeats",
            variable=f"horizon in {lease_table.NAME}",
            value=f"{latest}, and {count} such rows",
            why=(
                "This horizon is more than a year and two days from now, which cannot be true, as a lease lasts at most a "
                "year. It is ignored, and the earlier one is lost."
            ),
            fix=(
                f"DELETE FROM {lease_table.NAME} WHERE horizon > {clock.wall() + lease_table.MOST_AHEAD};"
                f" then NodeLeases(pool).create_table(), as the row -1 may be deleted, too, and change the passwords "
                f"of all users who can write that table."
            ),
        )
    count, latest = server.late_horizons
    if count:
        now = clock.wall()
        yield Finding(
            code="late-horizon",
            severity="advice",
            variable=f"horizon in {lease_table.NAME}",
            value=f"{latest}, and {count} such rows",
            why=(
                "This horizon is more than two days from now, and the lease in its row is no longer than a day. No process "
                "leases the node number before that time."
            ),
            fix=(
                "If a machine's clock was ahead, or an earlier lease was longer, leave the row as it is: ids may be that "
                f"late. Otherwise it is forged: UPDATE {lease_table.NAME} SET horizon = {now + lease_table.DAY} WHERE "
                f"horizon > {now + lease_table.DAY} AND duration BETWEEN 1 AND {lease_table.DAY}; then change the "
                "passwords of all users who can write that table."
            ),
        )


@check
def absent_servers(server: ServerInspection, pool: PoolInspection) -> Iterator[Finding]:
    if server is not next(each for each in pool.servers if each.error is None):
        return  # one of them reports it
    for name, marks in pool.absent.items():
        if marks:
            issued = ", ".join(f"offset {offset}: up to {mark:,}" for offset, mark in marks.items())
            yield Finding(
                code="server-not-configured",
                severity="repeats",
                sequence=name,
                variable=f"marks of {name}",
                value=f"tickets of servers that are not configured ({issued})",
                why="A raise, a move or a restore would leave them out, so each of these is refused.",
                fix="Add each to the configuration, which names all servers in the order of their offsets, also those that "
                "grow has just added. If one is gone for good: sqla-tickets retire "
                f"{named(name, pool.pool.name)} --gone {min(marks)}",
            )


# -- what makes drawing stop


def unreachable(server: ServerInspection, pool: PoolInspection) -> Iterator[Finding]:
    yield Finding(
        code="unreachable",
        severity="stops",
        variable="connection",
        value="none",
        why=without_advice(in_short(str(server.error), str(server.server), ""), server.state),
        fix=remedy(server.state, "", server.server.offset, pool.pool.name),
    )


@check
def duplicate_servers(server: ServerInspection, pool: PoolInspection) -> Iterator[Finding]:
    identity = server.server.identity
    others = [
        str(other.server)
        for other in pool.servers
        if other is not server and identity and identity.is_same_run(other.server.identity)
    ]
    if others:
        yield Finding(
            code="same-server",
            severity="stops",
            variable="server",
            value=f"the same as {', '.join(others)}",
            why="Two offsets are on one server: when it fails, both fail.",
            fix="Replace one of the two with another server.",
        )


@check
def read_only(server: ServerInspection, pool: PoolInspection) -> Iterator[Finding]:
    level = server.variables.get("innodb_force_recovery", "0")
    if level != "0":
        yield Finding(
            code="recovery-mode",
            severity="stops",
            variable="innodb_force_recovery",
            value=level,
            why=(
                "It was started for data recovery: it may refuse writes, and may have skipped crash"
                " recovery."
            ),
            fix="Start it without that setting, under an address that no client has, and run sqla-tickets restore "
            "there.",
        )
    values = (
        (name, server.variables.get(name, "OFF")) for name in server.dialect.read_only_variables
    )
    name, shown = next((pair for pair in values if pair[1].upper() not in ("OFF", "0")), ("", ""))
    if name:
        # MySQL's super_read_only ends with read_only
        switch = "read_only" if name == "super_read_only" else name
        end = (
            server.dialect.set_global(switch, "OFF")
            if name != "innodb_read_only"
            else "start it without that setting"
        )
        yield Finding(
            code="read-only",
            severity="stops",
            variable=name,
            value=shown,
            why="It issues no tickets; it may have been demoted to a replica.",
            fix=writes_again(end, server.server.offset),
        )
        return
    if server.is_replica and not server.dialect.replica_takes_writes:
        yield Finding(
            code="in-recovery",
            severity="stops",
            variable="pg_is_in_recovery()",
            value="true",
            why="It is a standby, which issues no tickets.",
            fix="Configure the primary instead. Or promote it under an address that no client has, and run "
            "sqla-tickets restore there.",
        )


@check
def tables(server: ServerInspection, pool: PoolInspection) -> Iterator[Finding]:
    for name, table in server.tables.items():
        state = table.state
        if state is None:
            work = "redirect its clients" if _has_moved(name, pool) else "issue its tickets"
            yield Finding(
                code="table-missing",
                severity="stops",
                sequence=name,
                variable=f"table {name}",
                value="missing",
                why=f"Only the other servers can {work}.",
                fix=f"sqla-tickets create {named(name, pool.pool.name)}",
            )
        elif isinstance(state, Tombstone) and state.end:
            is_retired = state.kind == "retired"
            yield Finding(
                code="table-retired" if is_retired else "table-missing",
                severity="stops",
                sequence=name,
                variable=f"table {name}",
                value=state.kind,
                why=f"It {state.end}, at {state.high_water}.",
                fix=remedy("retired", name, server.server.offset, pool.pool.name)
                if is_retired
                else f"sqla-tickets create {named(name, pool.pool.name)}",
            )
        elif isinstance(state, Tombstone) and not _has_moved(name, pool):
            yield Finding(
                code="table-closed",
                severity="stops",
                sequence=name,
                variable=f"table {name}",
                value=state.kind,
                why="A move or a conversion is unfinished, or another server is older than it.",
                fix="Run that migration or move again: it continues where it stopped.",
            )
        elif isinstance(state, TicketError):
            found = state_after(state)
            yield Finding(
                code="table-busy" if found == "busy" else "table-unfit",
                severity="stops",
                sequence=name,
                variable=f"table {name}",
                value=found,
                why=without_advice(in_short(str(state), str(server.server), name), found),
                fix=remedy(found, name, server.server.offset, pool.pool.name),
            )
        elif isinstance(state, ActiveTable) and state.number is None:
            yield Finding(
                code="table-empty",
                severity="stops",
                sequence=name,
                variable=f"table {name}",
                value="empty",
                why="Its number is lost: the table was truncated, or its row deleted.",
                fix=(
                    f"sqla-tickets raise {shlex.quote(name)} --above N, with N above every id that was ever issued "
                    "(sqla-tickets restore finds it)."
                ),
            )


def _has_moved(name: str, pool: PoolInspection) -> bool:
    """Whether the whole sequence has left the pool, or this name."""
    states = [other.tables[name].state for other in pool.servers if name in other.tables]
    kinds = {state.kind for state in states if isinstance(state, Tombstone)}
    is_left = any(isinstance(state, ActiveTable) for state in states)
    return "moved" in kinds and not (is_left or kinds & {"opening", "converting"})


@check
def node_numbers(server: ServerInspection, pool: PoolInspection) -> Iterator[Finding]:
    fault = server.node_fault
    if fault is None:
        return
    is_missing = isinstance(fault, TicketTableMissing)
    why = str(fault).partition(f" on {server.server} ")[2].partition(": ")[0]
    yield Finding(
        code="node-numbers-missing" if is_missing else "node-numbers-foreign",
        severity="stops",
        variable=f"row -1 of {lease_table.NAME}",
        value="missing" if is_missing else "not this server's",
        why=f"It {why}, so it leases no node numbers.",
        fix="Call NodeLeases(pool).create_table(), which writes the row."
        if is_missing
        else "Check the addresses and the order of the servers, then compare the row with the other servers'.",
    )


@check
def exhaustion(server: ServerInspection, pool: PoolInspection) -> Iterator[Finding]:
    for name, table in server.tables.items():
        state = table.state
        if not isinstance(state, ActiveTable) or state.number is None:
            continue
        status = server.statuses.get(name)
        end = state.largest if status is None else min(state.largest, status.ends_at)
        is_gap = end < state.largest
        # a growth begins with a gap, of any part of the numbers
        first = end - FEW_TICKETS * pool.pool.stride if is_gap else FULL_SEQUENCE_PART * end
        if state.number > first:
            above = " Servers with a larger stride issue those above." * is_gap
            yield Finding(
                code="numbers-used",
                severity="stops",
                sequence=name,
                variable=f"last ticket of {name}",
                value=f"{state.number} of {end}",
                why=f"{state.number / end:.0%} of the numbers are used.{above}",
                fix=more_numbers(state.largest, end),
            )


@check
def connections(server: ServerInspection, pool: PoolInspection) -> Iterator[Finding]:
    used = max(
        int(server.status.get(name, 0)) for name in ("Threads_connected", "Max_used_connections")
    )
    most = int(server.variables.get("max_connections", 0))
    if most and used > FULL_CONNECTIONS_PART * most:
        yield Finding(
            code="connections-used",
            severity="stops",
            variable="max_connections",
            value=f"{most}, of which {used} were used",
            why="The next time the application restarts, it may get no connection.",
            fix=f"{server.dialect.set_global('max_connections', max(4 * used, 500))}, and set it in the configuration.",
        )


@check
def missing_grants(server: ServerInspection, pool: PoolInspection) -> Iterator[Finding]:
    if server.grants is None or _is_monitor(server, server.grants):
        return
    drawing = server.dialect.table_privileges("draw")
    needed = {
        name: drawing
        for name, table in server.tables.items()
        if isinstance(table.state, (ActiveTable, TicketError))
    }
    if server.marks_fault is None and _keeps_marks(server, pool):
        needed[MARKS] = ("SELECT", "INSERT", "UPDATE")
    granted: dict[str, set[str]] = {}  # by the fixes so far
    for name, privileges in needed.items():
        has = _privileges(server.grants, server.database, name)
        target = server.dialect.grant_target(server.database, name)
        lacking = [p for p in privileges if not {p, "ALL PRIVILEGES", "ALL"} & has]
        if not lacking or (name == MARKS and granted.get(target, set()).issuperset(lacking)):
            continue
        is_slow = lacking == [LOCK]
        if is_slow and not _is_flickrs(server.tables[name].state):
            continue
        granted.setdefault(target, set()).update(lacking)
        yield Finding(
            code="lock-not-granted" if is_slow else "grants-missing",
            severity="advice" if is_slow else "stops",
            sequence="" if name == MARKS else name,
            variable=f"grants on {name}",
            value=f"without {', '.join(lacking)}",
            why="Blocks are drawn ticket by ticket."
            if is_slow
            else "Draws fail, or the high-water marks cannot be kept.",
            fix=f"GRANT {', '.join(lacking)} ON {target} TO {server.account}",
        )


def _is_monitor(server: ServerInspection, grants: Sequence[Grant]) -> bool:
    """Whether the user has the privileges of ``sqla-tickets grants monitor`` only, and does not draw."""
    here = {p for grant in grants if grant.on != EVERYWHERE for p in grant.privileges}
    anywhere = {p for grant in grants if grant.on == EVERYWHERE for p in grant.privileges}
    return here <= {"SELECT"} and anywhere >= set(server.dialect.server_privileges("monitor"))


# -- advice


@check
def too_many_grants(server: ServerInspection, pool: PoolInspection) -> Iterator[Finding]:
    if server.grants is None:
        return
    harmless = HARMLESS.union(server.dialect.server_privileges("monitor"))
    anywhere: set[str] = set()
    for grant in server.grants:
        if grant.on == EVERYWHERE:
            anywhere |= grant.privileges - harmless
    names = [None, *server.tables]
    here = {p for name in names for p in _privileges(server.grants, server.database, name)}
    here -= {*server.dialect.table_privileges("draw"), *harmless, *anywhere}
    if anywhere:
        yield Finding(
            code="grants-everywhere",
            severity="advice",
            variable=f"grants on {EVERYWHERE}",
            value=", ".join(sorted(anywhere)),
            why="A ticket user needs nothing outside its database.",
            fix=f"REVOKE them from {server.account}.",
        )
    if here:
        yield Finding(
            code="grants-dangerous",
            severity="advice",
            variable=f"grants on {server.dialect.grant_target(server.database, '*')}",
            value=", ".join(sorted(here)),
            why=(
                "Only migrations need that. Anyone who steals this password can set numbers back with TRUNCATE, "
                "ALTER or a new table."
            ),
            fix=(
                f"Nothing, if only migrations use {server.account}. If applications draw as this user, give migrations "
                f"their own, and this one only what `sqla-tickets grants draw --on {server.kind}` prints."
            ),
        )


@check
def encryption(server: ServerInspection, pool: PoolInspection) -> Iterator[Finding]:
    host = server.server.engine.url.host
    if server.status.get("Ssl_cipher") == "" and not _is_this_machine(host):
        yield Finding(
            code="no-encryption",
            severity="advice",
            variable="Ssl_cipher",
            value="none",
            why=f"Anyone on the network can read and change the traffic to {host}.",
            fix=server.dialect.encryption_advice,
        )


@check
def lax_mode(server: ServerInspection, pool: PoolInspection) -> Iterator[Finding]:
    mode = server.variables.get("sql_mode")
    if mode is not None and "STRICT_" not in mode and _has_foreign(server):
        yield Finding(
            code="lax-sql-mode",
            severity="advice",
            variable="sql_mode",
            value=mode or "empty",
            why="When no number is left, a client without this package gets the last one repeatedly.",
            fix="Add STRICT_ALL_TABLES to sql_mode.",
        )


@check
def stale_statistics(server: ServerInspection, pool: PoolInspection) -> Iterator[Finding]:
    value = server.variables.get("information_schema_stats_expiry", "0")
    if value != "0" and _has_foreign(server):
        yield Finding(
            code="cached-statistics",
            severity="advice",
            variable="information_schema_stats_expiry",
            value=value,
            why=f"A client that reads AUTO_INCREMENT from information_schema sees a number that is up to {value} s "
            "old.",
            fix="SET GLOBAL information_schema_stats_expiry = 0, or watch `sqla-tickets status`.",
        )


#: The used parts of the numbers and of the connections that cause a finding.
FULL_SEQUENCE_PART: Final = 0.7
#: So few tickets are left in a growth's gap that clients may not learn in time where it ends.
FEW_TICKETS: Final = MARKS_TIMING.margin_tickets
FULL_CONNECTIONS_PART: Final = 0.8
LOCK: Final = "LOCK TABLES"
EVERYWHERE: Final = "*.*"
#: Harmless privileges: none at all, and MariaDB's name for MySQL's right to monitor a replica.
HARMLESS: Final = frozenset({"BINLOG MONITOR", "REPLICATION CLIENT", "USAGE"})


def _privileges(
    grants: Iterable[Grant], database: str | None, table: str | None = None
) -> set[str]:
    return {p for grant in grants if grant.covers(database, table) for p in grant.privileges}


def _has_active(server: ServerInspection) -> bool:
    return any(isinstance(table.state, ActiveTable) for table in server.tables.values())


def _keeps_marks(server: ServerInspection, pool: PoolInspection) -> bool:
    """Whether the server is to keep marks: it has peers, and tables in use."""
    return len(pool.servers) > 1 and _has_active(server)


def _is_flickrs(state: object) -> bool:
    return isinstance(state, ActiveTable) and state.layout == "replace"


def _is_this_machine(host: str | None) -> bool:
    if host in (None, "", "localhost") or str(host).startswith("/"):
        return True
    try:
        return ipaddress.ip_address(str(host)).is_loopback
    except ValueError:
        return False
