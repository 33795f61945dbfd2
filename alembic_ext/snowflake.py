"""Operations for ids that sort by time: on the table of node numbers, and on PostgreSQL's functions.

Autogenerate adds those that `missing` finds. `alembic_ext.operations` says what a new operation needs; the tests of these
are in ``tests/integration/snowflake/test_migrations.py``.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any

from alembic.operations.base import Operations
from alembic.operations.ops import MigrateOperation
from alembic.util import CommandError
from sqlalchemy import Column, MetaData

from sqla_tickets import INSTAGRAM, NodeLeases, SnowflakeSequence
from sqla_tickets.dialects import has_plpgsql
from sqla_tickets.snowflake import lease_table, numbering
from sqla_tickets.snowflake.instagram import (
    CreateShardIdFunction,
    CreateShardIdSequence,
    DropShardIdFunction,
    DropShardIdSequence,
    ShardIdFunction,
    declared_functions,
    is_there,
)

from . import offline
from .base import TicketOp, operation
from .configuration import pool_named, pools_of

if TYPE_CHECKING:  # Alembic may be in the middle of its own import
    from alembic.autogenerate.api import AutogenContext

__all__ = ["create_node_table", "create_shard_id_function", "drop_shard_id_function"]

log = logging.getLogger("alembic.sqla_tickets")


@dataclass(eq=False, kw_only=True)
class CreateNodeTableOp(TicketOp):
    """Create the table of node numbers on every ticket server, unless it exists, and divide the numbers between them.

    Args:
        pool: the name of the pool; None for ``"default"``, or the only one.
    """

    pool: str | None = None

    def reverse(self) -> CreateNodeTableOp:
        """Do nothing: without the table's horizons, ids would be made again."""
        return self

    def to_diff_tuple(self) -> tuple[str, str | None]:
        """The tuple that ``alembic check`` shows."""
        return ("add_node_table", self.pool)


@operation(CreateNodeTableOp)
def create_node_table(operations: Operations, op: CreateNodeTableOp) -> None:
    """Create the table, or write the statements that do."""
    context = operations.migration_context
    with pools_of(context) as pools:
        pool = pool_named(pools, op.pool)
        if not context.as_sql:
            NodeLeases(pool).create_table()
            return
        for server in pool.servers:
            dialect = server.engine.dialect
            opening = numbering.opening(dialect, pool.stride, server.offset)
            statements = [lease_table.creation(dialect), *opening]
            offline.write_script(context, pool, server, statements)


@dataclass(eq=False)
class CreateShardIdFunctionOp(TicketOp):
    """Create Instagram's function and its sequence in the migration's own database, on PostgreSQL.

    Args:
        name: the function's name, for ``server_default=sa.text("name()")``.
        shard: the number of the logical shard, 0 to 8,191.
    """

    name: str
    _: KW_ONLY
    shard: int

    def reverse(self) -> DropShardIdFunctionOp:
        """Drop it."""
        return DropShardIdFunctionOp(self.name, shard=self.shard)

    def to_diff_tuple(self) -> tuple[str, str, int]:
        """The tuple that ``alembic check`` shows."""
        return ("add_shard_id_function", self.name, self.shard)


@dataclass(eq=False)
class DropShardIdFunctionOp(TicketOp):
    """Drop Instagram's function and its sequence.

    Args:
        name: the function's name.
        shard: the number of the logical shard, for the reverse operation.
    """

    name: str
    _: KW_ONLY
    shard: int

    def reverse(self) -> CreateShardIdFunctionOp:
        """Create it again."""
        return CreateShardIdFunctionOp(self.name, shard=self.shard)

    def to_diff_tuple(self) -> tuple[str, str]:
        """The tuple that ``alembic check`` shows."""
        return ("remove_shard_id_function", self.name)


@operation(CreateShardIdFunctionOp)
def create_shard_id_function(operations: Operations, op: CreateShardIdFunctionOp) -> None:
    """Create the sequence, then the function that draws from it."""
    function = _on_postgresql(operations, op)
    operations.execute(CreateShardIdSequence(function))
    operations.execute(CreateShardIdFunction(function))


@operation(DropShardIdFunctionOp)
def drop_shard_id_function(operations: Operations, op: DropShardIdFunctionOp) -> None:
    """Drop the function, then its sequence."""
    function = _on_postgresql(operations, op)
    operations.execute(DropShardIdFunction(function))
    operations.execute(DropShardIdSequence(function))


def _on_postgresql(
    operations: Operations, op: CreateShardIdFunctionOp | DropShardIdFunctionOp
) -> ShardIdFunction:
    """The function that an operation creates or drops.

    Raises:
        CommandError: the migration's own database is of another kind.
    """
    dialect = operations.migration_context.dialect
    if not has_plpgsql(dialect):
        raise CommandError(
            f"the function {op.name!r} can be created on PostgreSQL only, not on {dialect.name}: use"
            " SnowflakeSequence(), which makes ids in the process"
        )
    return ShardIdFunction(op.name, op.shard)


# -- autogenerate


def missing(context: AutogenContext, created: Iterable[Column[Any]]) -> list[MigrateOperation]:
    """Operations for the prerequisites of new columns: tables of node numbers, and functions that the database lacks."""
    pools = {c.default.pool for c in created if isinstance(c.default, SnowflakeSequence)}
    return [
        *(CreateNodeTableOp(pool=pool) for pool in sorted(pools, key=str)),
        *(CreateShardIdFunctionOp(f.name, shard=f.shard) for f in _missing_functions(context)),
    ]


def _missing_functions(context: AutogenContext) -> list[ShardIdFunction]:
    metadata = context.metadata
    declared = [
        function
        for each in ([metadata] if isinstance(metadata, MetaData) else metadata or ())
        for function in declared_functions(each).values()
    ]
    if not declared or not has_plpgsql(context.dialect):
        return []
    assert context.connection is not None  # the comparison of a database
    missing = [each for each in declared if not is_there(context.connection, each)]
    for each in missing:
        if each.layout != INSTAGRAM:
            log.warning(
                "Detected missing function %r, which no operation can create, as its layout is %s: let create_all() "
                "of a MetaData to which it is attached create it",
                each.name,
                each.layout,
            )
    return sorted((f for f in missing if f.layout == INSTAGRAM), key=lambda f: f.name)
