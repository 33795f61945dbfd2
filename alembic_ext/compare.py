"""The comparison of autogenerate: sequences that models declare and ticket servers lack.

There are two sources. The tables and columns that this revision creates show the sequences that they need, without
any ticket server. If ticket servers are configured, they are asked, too.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from alembic.operations.ops import (
    AddColumnOp,
    AlterColumnOp,
    CreateTableOp,
    DropTableOp,
    MigrateOperation,
    ModifyTableOps,
    OpContainer,
    UpgradeOps,
)
from alembic.util import CommandError, PriorityDispatchResult
from sqlalchemy import Column, DefaultClause, Identity

from sqla_tickets import TicketError, TicketPool, TicketSequence, TicketServer, TicketTableError
from sqla_tickets.dialects import find_dialect
from sqla_tickets.high_water.statements import MARKS
from sqla_tickets.maintenance import operations as maintenance
from sqla_tickets.maintenance.tombstones import FoundTable
from sqla_tickets.orm.mappers import drawing_columns
from sqla_tickets.orm.sequence import sequence_of
from sqla_tickets.snowflake import lease_table
from sqla_tickets.tables.inspection import ActiveTable, are_columns
from sqla_tickets.tables.metadata import Tombstone

from . import snowflake
from .configuration import pool_named, pools_of
from .operations import ColumnAbove, CreateTicketTableOp

if TYPE_CHECKING:  # Alembic may be in the middle of its own import
    from alembic.autogenerate.api import AutogenContext

log = logging.getLogger("alembic.sqla_tickets")


@dataclass
class _Declared:
    """A sequence that the models declare.

    Attributes:
        name: the sequence's name.
        pool: the name of its pool; None for the default one.
        columns: the columns that draw from it.
        is_new: whether this revision creates the first table or column that draws from it.
    """

    name: str
    pool: str | None
    columns: list[Column[Any]] = field(default_factory=list[Column[Any]])
    is_new: bool = False


def compare_tickets(context: AutogenContext, upgrade_ops: UpgradeOps) -> PriorityDispatchResult:
    """Add a `CreateTicketTableOp` for each sequence that is new, or missing on a ticket server."""
    declared = _declared(context)
    created = list(_created_columns(upgrade_ops.ops))
    for table, column in created:
        if isinstance(column.default, TicketSequence):
            key = (column.default.pool, column.default.name or table)
            if key in declared:
                declared[key].is_new = True
    missing = [each for each in declared.values() if each.is_new]
    missing += _missing_on_servers(context, declared)
    found = [_creation(context, each) for each in missing]
    found.sort(key=lambda op: (op.pool or "", op.name))
    needed = snowflake.missing(context, [column for _, column in created])
    _spare_ticket_tables(context, upgrade_ops, {each.name for each in declared.values()})
    # before the tables that need them, and so, when all is reversed, after these
    upgrade_ops.ops[:0] = [*needed, *found]
    return PriorityDispatchResult.CONTINUE


def keep_auto_increment(
    _context: AutogenContext,
    operation: AlterColumnOp,
    _schema: str | None,
    table: str,
    name: str,
    found: Column[Any],
    declared: Column[Any],
) -> PriorityDispatchResult:
    """Keep a column's AUTO_INCREMENT, identity or sequence: until a take-over ends, old processes need it."""
    if not isinstance(declared.default, TicketSequence):
        return PriorityDispatchResult.CONTINUE
    if found.autoincrement is True:
        operation.kw["autoincrement"] = True
    if declared.server_default is None and _numbers_rows(found.server_default):
        log.info("the server default of %s.%s is kept until a take-over ends", table, name)
        operation.modify_server_default = False
        found.server_default = None  # Alembic's own comparison of sequences comes last
    return PriorityDispatchResult.CONTINUE


def _numbers_rows(default: object) -> bool:
    """Whether a server default numbers the rows that come without an id, and lets others in."""
    if isinstance(default, Identity):
        return not default.always
    return isinstance(default, DefaultClause) and "nextval(" in str(default.arg).lower()


def _declared(context: AutogenContext) -> dict[tuple[str | None, str], _Declared]:
    """The sequences of all tables of all MetaDatas that the filters admit."""
    found: dict[tuple[str | None, str], _Declared] = {}
    for column in drawing_columns(c for table in context.sorted_tables for c in table.columns):
        default = column.default
        if isinstance(default, TicketSequence):
            name = sequence_of(default, column)
            if _is_included(context, name, default):
                key = (default.pool, name)
                found.setdefault(key, _Declared(name, default.pool)).columns.append(column)
    return found


def _is_included(context: AutogenContext, name: str, declared: TicketSequence | None) -> bool:
    """Ask ``include_name`` and ``include_object`` about the type ``"ticket_table"``."""
    kind: Any = "ticket_table"  # Alembic's annotations know its own types only
    return context.run_name_filters(name, kind, {}) and (
        declared is None or context.run_object_filters(declared, name, kind, False, None)
    )


def _created_columns(ops: Iterable[MigrateOperation]) -> Iterator[tuple[str, Column[Any]]]:
    """The columns that operations create and that draw ids, each with the name of its table."""
    for op in ops:
        if isinstance(op, CreateTableOp):
            yield from ((op.table_name, column) for column in drawing_columns(op.columns))
        elif isinstance(op, AddColumnOp):
            yield from ((op.table_name, column) for column in drawing_columns([op.column]))
        elif isinstance(op, OpContainer):
            yield from _created_columns(op.ops)


def _creation(context: AutogenContext, declared: _Declared) -> CreateTicketTableOp:
    """Create a sequence, which begins above the ids that its columns already have."""
    there: list[ColumnAbove] = [
        (column.table.fullname, column.name)
        for column in declared.columns
        if _is_there(context, column)
    ]
    above = there[0] if len(there) == 1 else there or None
    return CreateTicketTableOp(declared.name, start_above=above, pool=declared.pool)


def _is_there(context: AutogenContext, column: Column[Any]) -> bool:
    """Whether the application's database already has a column."""
    name, schema = column.table.name, column.table.schema
    return context.inspector.has_table(name, schema=schema) and any(
        each["name"] == column.name for each in context.inspector.get_columns(name, schema=schema)
    )


# -- the ticket servers


def _missing_on_servers(
    context: AutogenContext, declared: dict[tuple[str | None, str], _Declared]
) -> list[_Declared]:
    """The existing sequences for which a configured ticket server has no table."""
    assert context.migration_context is not None  # the comparison of a database
    missing: list[_Declared] = []
    names = {each.name for each in declared.values()}  # and those that they have moved to
    try:
        with pools_of(context.migration_context) as pools:
            for each in declared.values():
                states = maintenance.table_states(pool_named(pools, each.pool), each.name)
                names.update(s.sequence for s in states.values() if isinstance(s, Tombstone))
                if _is_missing(each, states) and not each.is_new:
                    missing.append(each)
            for pool in pools.values():
                _report_undeclared(context, pool, names)
    except CommandError as error:
        level = logging.WARNING if declared else logging.INFO
        log.log(level, "the ticket servers are not compared: %s", error)
    return missing


def _is_missing(
    declared: _Declared, states: Mapping[TicketServer, FoundTable | TicketError]
) -> bool:
    """Whether a server lacks the table; logs any other problem with it."""
    missing = False
    for server, state in states.items():
        if state is None or (isinstance(state, Tombstone) and state.end):
            log.info("Detected missing ticket table %r on %s", declared.name, server)
            missing = True
        elif isinstance(state, TicketTableError):
            log.warning("Detected wrong ticket table %r on %s: %s", declared.name, server, state)
        elif isinstance(state, TicketError):
            log.warning("The ticket server %s is not compared: %s", server, state)
        elif isinstance(state, Tombstone):
            _report_tombstone(declared.name, state)
    layouts = {state.layout for state in states.values() if isinstance(state, ActiveTable)}
    if len(layouts) > 1:
        log.warning(
            "Detected more than one layout of the ticket table %r in the pool %r: run"
            " convert_ticket_table for one of %s",
            declared.name,
            declared.pool or "default",
            sorted(layouts),
        )
    return missing


def _report_tombstone(name: str, state: Tombstone) -> None:
    if state.kind == "moved":
        there = f"{state.sequence!r} of the pool {state.pool!r}"
        log.warning(
            "Detected that the sequence %r has moved to %s: declare that in the models", name, there
        )
    else:
        log.warning("Detected an unfinished migration of the ticket table %r: %s", name, state)


def _report_undeclared(context: AutogenContext, pool: TicketPool, declared: set[str]) -> None:
    # a run for one of several databases compares one MetaData: the pool knows the others
    for name in sorted(maintenance.names(pool) - declared - pool.declared_sequences()):
        if _is_included(context, name, None):
            log.warning(
                "Detected the ticket table %r in the pool %r, which no model declares in any MetaData of that pool: "
                "it is kept. If nothing draws from it, drop it with drop_ticket_table(%r, force=True)",
                name,
                pool.name,
                name,
            )


# -- an application's database that is a ticket server as well


def _spare_ticket_tables(
    context: AutogenContext, upgrade_ops: UpgradeOps, declared: set[str]
) -> None:
    """Keep ticket tables from being dropped because no MetaData has them."""
    dropped = [op for op in upgrade_ops.ops if isinstance(op, DropTableOp)]
    listed = _with_metadata(context) if dropped else set[str]()
    spared = {
        (op.table_name, op.schema)
        for op in dropped
        if (op.schema is None and op.table_name in listed)
        or op.table_name in (MARKS, lease_table.NAME)
        or "sqla_tickets" in (op.to_table().comment or "")
        or (op.table_name in declared and are_columns(op.to_table().columns.keys()))
    }
    for name, _ in sorted(spared, key=str):
        log.info("the ticket table %r in the application's own database is kept", name)
    upgrade_ops.ops[:] = [
        op
        for op in upgrade_ops.ops
        if not (
            isinstance(op, (DropTableOp, ModifyTableOps)) and (op.table_name, op.schema) in spared
        )
    ]


def _with_metadata(context: AutogenContext) -> set[str]:
    """The tables of the application's database that this package created, including tombstones."""
    connection = context.connection
    dialect = None if connection is None else find_dialect(connection.dialect)
    if connection is None or dialect is None:
        return set()
    return {str(row[0]) for row in connection.exec_driver_sql(dialect.list_tables().text)}
