"""The table of node numbers, and PostgreSQL's functions, in migrations.

What the operations do, how they read in a migration file, and when autogenerate finds them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from alembic.autogenerate.render import renderers
from alembic.operations.base import Operations
from alembic.operations.ops import (
    AddColumnOp,
    CreateTableOp,
    MigrateOperation,
    OpContainer,
    UpgradeOps,
)
from alembic.util import CommandError
from sqlalchemy import Column, text

from sqla_tickets import INSTAGRAM, SnowflakeSequence, lease_table
from sqla_tickets.shard_function import (
    CreateShardIdFunction,
    CreateShardIdSequence,
    DropShardIdFunction,
    DropShardIdSequence,
    ShardIdFunction,
    declared_functions,
)

from . import offline
from .pools import pool_named, pools_of
from .time_sorted_ops import CreateNodeTableOp, CreateShardIdFunctionOp, DropShardIdFunctionOp

if TYPE_CHECKING:  # Alembic may be in the middle of its own import
    from alembic.autogenerate.api import AutogenContext

__all__ = ["find_what_is_needed"]


# -- what they do


@Operations.implementation_for(CreateNodeTableOp)
def _(operations: Operations, op: CreateNodeTableOp) -> None:
    context = operations.migration_context
    with pools_of(context) as pools:
        pool = pool_named(pools, op.pool)
        if not context.as_sql:
            pool.create_node_table()
            return
        for server in pool.servers:
            said = f"server {server} of the pool {pool.name!r}: run this there, not here\n"
            offline.comment(context, said + lease_table.creation(server.engine.dialect) + ";")


@Operations.implementation_for(CreateShardIdFunctionOp)
def _(operations: Operations, op: CreateShardIdFunctionOp) -> None:
    function = _on_postgresql(operations, op)
    operations.execute(CreateShardIdSequence(function))
    operations.execute(CreateShardIdFunction(function))


@Operations.implementation_for(DropShardIdFunctionOp)
def _(operations: Operations, op: DropShardIdFunctionOp) -> None:
    function = _on_postgresql(operations, op)
    operations.execute(DropShardIdFunction(function))
    operations.execute(DropShardIdSequence(function))


def _on_postgresql(
    operations: Operations, op: CreateShardIdFunctionOp | DropShardIdFunctionOp
) -> ShardIdFunction:
    dialect = operations.migration_context.dialect.name
    if dialect != "postgresql":
        raise CommandError(
            f"the function {op.name!r} can be created on PostgreSQL only, this is {dialect}: use"
            " SnowflakeSequence(), which makes ids in the process"
        )
    return ShardIdFunction(op.name, op.shard)


# -- how they read


@renderers.dispatch_for(CreateNodeTableOp)
def _(context: AutogenContext, op: CreateNodeTableOp) -> str:
    return _call(context, "create_node_table", f"pool={op.pool!r}" if op.pool else "")


@renderers.dispatch_for(CreateShardIdFunctionOp)
def _(context: AutogenContext, op: CreateShardIdFunctionOp) -> str:
    return _call(context, "create_shard_id_function", _named(op))


@renderers.dispatch_for(DropShardIdFunctionOp)
def _(context: AutogenContext, op: DropShardIdFunctionOp) -> str:
    return _call(context, "drop_shard_id_function", _named(op))


def _named(op: CreateShardIdFunctionOp | DropShardIdFunctionOp) -> str:
    return f"{op.name!r}, shard={op.shard}"


def _call(context: AutogenContext, function: str, arguments: str) -> str:
    context.imports.add("import alembic_ext")  # makes `op` know the operations
    return f"{context.opts['alembic_module_prefix']}{function}({arguments})"


# -- what autogenerate finds


def find_what_is_needed(context: AutogenContext, upgrade_ops: UpgradeOps) -> None:
    """Add what new columns need first: the table of node numbers, and functions that are missing."""
    pools = {default.pool for default in _created(upgrade_ops.ops)}
    found: list[MigrateOperation] = [
        CreateNodeTableOp(pool=pool) for pool in sorted(pools, key=str)
    ]
    found += [
        CreateShardIdFunctionOp(function.name, shard=function.shard)
        for function in _missing_functions(context)
    ]
    upgrade_ops.ops[:0] = found


def _created(ops: Iterable[MigrateOperation]) -> Iterator[SnowflakeSequence]:
    for op in ops:
        columns: list[Any] = []
        if isinstance(op, CreateTableOp):
            columns = [column for column in op.columns if isinstance(column, Column)]
        elif isinstance(op, AddColumnOp):
            columns = [op.column]
        elif isinstance(op, OpContainer):
            yield from _created(op.ops)
        yield from (c.default for c in columns if isinstance(c.default, SnowflakeSequence))


def _missing_functions(context: AutogenContext) -> list[ShardIdFunction]:
    declared = [
        function
        for metadata in _metadatas(context)
        for function in declared_functions(metadata).values()
        if function.layout == INSTAGRAM  # others cannot be written down
    ]
    if not declared or context.dialect.name != "postgresql":
        return []
    assert context.connection is not None  # the comparison of a database
    there = set(context.connection.scalars(text("SELECT proname FROM pg_proc")))
    return sorted((f for f in declared if f.name not in there), key=lambda f: f.name)


def _metadatas(context: AutogenContext) -> list[Any]:
    metadata = context.metadata
    return list(metadata) if isinstance(metadata, (list, tuple)) else [metadata]
