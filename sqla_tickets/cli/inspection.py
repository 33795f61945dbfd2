# What is protected is hidden from users, not from this package.
# pyright: reportPrivateUsage=false
"""Reads variables, tables and grants of ticket servers, without judging them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from .. import TableStatus, TicketError, TicketPool, TicketServer
from ..dialects import Grant, TicketDialect, class_of
from ..high_water.sequence_marks import VerifiedMarks
from ..high_water.statements import rows_of
from ..maintenance import operations, tombstones
from ..maintenance.status import State, ask_tables, state_after
from ..maintenance.tombstones import FoundTable
from ..snowflake import lease_table, numbering
from ..status.text import EVERY_SHARD
from ..tables.context import StatementContext
from ..tables.inspection import ActiveTable


@dataclass(frozen=True)
class TableInspection:
    """One sequence's table on one server.

    Attributes:
        state: the table or tombstone, or why that is unknown.
        engine: the storage engine, if the server has several.
        counter: the next number of its AUTO_INCREMENT, if it has one.
    """

    state: FoundTable | TicketError
    engine: str | None = None
    counter: int | None = None


@dataclass
class ServerInspection:
    """One ticket server.

    Attributes:
        server: the server.
        kind: ``"mysql"``, ``"mariadb"``, ``"postgresql"`` or ``"sqlite"``.
        version: the server's version.
        variables: all global variables.
        status: its counters; ``Ssl_cipher`` is that of the session.
        account: the user in a GRANT; empty if there are no users.
        grants: the user's grants; None if they are unknown, or come from roles.
        is_replica: whether it applies another server's writes; None if the user may not ask.
        replicas: the number of its replicas; None if the user may not ask.
        tables: the tables, by sequence.
        statuses: the statuses of the tables, by sequence.
        refuted: a high-water mark on it that cannot be true, and the message about it, by sequence.
        larger_joined: where servers with a larger stride joined, by sequence: 0 if none has, None if unknown.
        far_horizons: the number of horizons of node numbers that cannot be true, and the latest of them.
        late_horizons: the same of those that can be true, but are later than their rows' leases explain.
        node_fault: why it leases no node numbers although it has their table.
        marks_fault: why it keeps no high-water marks: their table is missing, or this user may not read it.
        error: why it did not answer, or was not asked.
        state: its state after that error.
        cluster: the cluster that it shares with another server of the pool, in which case it was not asked.
    """

    server: TicketServer
    kind: str
    version: tuple[int, ...] = ()
    variables: dict[str, str] = field(default_factory=dict[str, str])
    status: dict[str, str] = field(default_factory=dict[str, str])
    account: str = ""
    grants: tuple[Grant, ...] | None = None
    is_replica: bool | None = None
    replicas: int | None = None
    tables: dict[str, TableInspection] = field(default_factory=dict[str, TableInspection])
    statuses: dict[str, TableStatus] = field(default_factory=dict[str, TableStatus])
    refuted: dict[str, tuple[int, str]] = field(default_factory=dict[str, tuple[int, str]])
    larger_joined: dict[str, int | None] = field(default_factory=dict[str, "int | None"])
    far_horizons: tuple[int, int] = (0, 0)
    late_horizons: tuple[int, int] = (0, 0)
    node_fault: TicketError | None = None
    marks_fault: TicketError | None = None
    error: str | None = None
    state: State = "up"
    cluster: str | None = None

    @property
    def dialect(self) -> type[TicketDialect]:
        """The class of its kind of database."""
        return class_of(self.kind)

    @property
    def database(self) -> str | None:
        return self.server.engine.url.database

    def literal(self, text: str) -> str:
        """A string literal in a statement that an operator runs."""
        dialect = self.server.context.dialect
        return dialect.script(dialect.statement(dialect.literal(text)))

    def quoted(self, name: str) -> str:
        """The name of a table in a statement that an operator runs."""
        dialect = self.server.context.dialect
        return dialect.script(dialect.statement(dialect.table(name)))


@dataclass(frozen=True)
class PoolInspection:
    """A pool, and one inspection for each of its servers.

    Attributes:
        pool: the pool.
        servers: the inspections.
        with_shards: what advice adds to the name of a command that reads the shards.
        absent: by sequence, the largest marks of servers that issue its tickets and are not in the pool, by offset.
    """

    pool: TicketPool
    servers: Sequence[ServerInspection]
    with_shards: str = EVERY_SHARD
    absent: Mapping[str, Mapping[int, int]] = field(default_factory=dict[str, "dict[int, int]"])


def inspect_pool(
    pool: TicketPool,
    sequences: Iterable[str] = (),
    with_shards: str = EVERY_SHARD,
    *,
    with_found: bool = True,
) -> PoolInspection:
    """Inspect every server of the pool; one that is down has an error instead.

    Args:
        pool: the pool.
        sequences: sequences that are inspected even if their tables have no metadata.
        with_shards: what advice adds to the name of a command that reads the shards.
        with_found: whether to inspect all tables with metadata, too.
    """
    found = {server: _inspect_server(server) for server in pool.servers}
    answered = any(inspection.error is None for inspection in found.values())
    is_asked = answered and with_found
    known = operations.names(pool, with_moved=True) if is_asked else set[str]()
    names = sorted({*sequences, *known})
    by_name = {str(server): inspection for server, inspection in found.items()}
    for status in ask_tables(pool, names, ask_peers=True):
        by_name[status.server].statuses[status.sequence] = status
    absent: dict[str, dict[int, int]] = {}
    for name in names:
        for server, inspection in found.items():
            if inspection.error is None:
                seen = inspection.tables.get(name, TableInspection(None))
                state = _state(server, name)
                inspection.tables[name] = TableInspection(state, seen.engine, seen.counter)
        marks = pool._marks.of(name).verified() if answered else VerifiedMarks(0, [], {}, {})
        refuted = {server: (number, text) for server, number, text in marks.refuted}
        absent[name] = marks.absent
        joined = pool._marks.of(name).larger_joined() if answered else {}
        for server, inspection in found.items():
            inspection.larger_joined[name] = joined.get(server)
            if server in refuted:
                inspection.refuted[name] = refuted[server]
    for server, inspection in found.items():
        if inspection.error is None:
            inspection.far_horizons, inspection.late_horizons = _horizons(server)
            inspection.node_fault = _node_fault(server)
            inspection.marks_fault = _marks_fault(server)
    for inspection in found.values():
        inspection.tables = {
            name: inspection.tables[name] for name in names if name in inspection.tables
        }
    return PoolInspection(pool, list(found.values()), with_shards, absent)


def high_waters(inspection: PoolInspection, sequence: str) -> dict[int, int | None]:
    """The largest ticket that each server has issued, by offset; None if unknown."""
    found: dict[int, int | None] = {}
    for server in inspection.servers:
        table = server.tables.get(sequence)
        high = None
        if table and isinstance(table.state, ActiveTable) and table.state.number is not None:
            # the row of Flickr's table may be behind its counter
            high = max(table.state.number, (table.counter or 1) - 1)
        found[server.server.offset] = high
    return found


def joined_above(pool: TicketPool, sequence: str) -> int:
    """The number above which the servers of a growth began; 0 if unknown."""
    return pool._marks.of(sequence).read_joined()


def _horizons(server: TicketServer) -> tuple[tuple[int, int], tuple[int, int]]:
    """The number and the latest of the far horizons and of the late ones; none without a table."""

    def ask(context: StatementContext) -> tuple[tuple[int, int], tuple[int, int]]:
        return lease_table.far_horizons(context), lease_table.late_horizons(context)

    try:
        return server.do(lease_table.NAME, ask)
    except TicketError:
        return (0, 0), (0, 0)


def _node_fault(server: TicketServer) -> TicketError | None:
    """Why a server leases no node numbers; None if it has no table of them, or it cannot be read."""
    try:
        return server.read(lease_table.NAME, numbering.fault)
    except TicketError:
        return None


def _marks_fault(server: TicketServer) -> TicketError | None:
    """Why a server keeps no high-water marks; None if it does, or that is unknown."""

    def read(context: StatementContext) -> None:
        statement, values = rows_of(context.dialect, context.stride, [""])
        context.rows(statement, **values)

    try:
        server.read("", read)
    except TicketError as error:
        return error if error.kind in ("table_missing", "access_denied") else None
    return None


def _state(server: TicketServer, name: str) -> FoundTable | TicketError:
    try:
        return server.read(name, tombstones.inspect, name)
    except TicketError as error:
        return error


def _inspect_server(server: TicketServer) -> ServerInspection:
    dialect = server.engine.dialect
    inspection = ServerInspection(server, server.context.dialect.kind)

    def ask(context: StatementContext) -> None:
        inspection.kind = context.dialect.kind
        inspection.version = tuple(
            part for part in dialect.server_version_info or () if isinstance(part, int)
        )
        inspection.grants = context.dialect.user_grants(context.cursor, inspection.database)
        facts = context.dialect.facts(context.cursor)
        inspection.account = facts.account
        inspection.variables, inspection.status = facts.variables, facts.status
        inspection.is_replica, inspection.replicas = facts.is_replica, facts.replicas
        for name, (engine, counter) in facts.engines.items():
            inspection.tables[name] = TableInspection(None, engine, counter)

    try:
        server.do("", ask)
    except TicketError as error:
        inspection.error, inspection.state = str(error), state_after(error)
        if error.kind == "duplicate" and server.identity is not None:
            inspection.cluster = server.identity.cluster
    return inspection
