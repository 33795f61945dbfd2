"""The operations for ids that sort by time as data: what a migration file says."""

from __future__ import annotations

from alembic.operations.base import Operations
from alembic.operations.ops import MigrateOperation

__all__ = ["CreateNodeTableOp", "CreateShardIdFunctionOp", "DropShardIdFunctionOp"]


@Operations.register_operation("create_node_table")
class CreateNodeTableOp(MigrateOperation):
    """Create the table of node numbers on every ticket server of a pool."""

    def __init__(self, *, pool: str | None = None) -> None:
        self.pool = pool

    @classmethod
    def create_node_table(cls, operations: Operations, *, pool: str | None = None) -> None:
        """Create the table of node numbers, unless it is there, on every ticket server.

        Args:
            operations: the context of the migration.
            pool: the name of the pool; None for ``"default"``, or the only one.
        """
        operations.invoke(cls(pool=pool))

    def reverse(self) -> CreateNodeTableOp:
        """Leave it: without its horizons, ids would be made again."""
        return self

    def to_diff_tuple(self) -> tuple[str, str | None]:
        """What ``alembic check`` shows."""
        return ("add_node_table", self.pool)


@Operations.register_operation("create_shard_id_function")
class CreateShardIdFunctionOp(MigrateOperation):
    """Create the function that makes the ids of one logical shard, on PostgreSQL."""

    def __init__(self, name: str, *, shard: int) -> None:
        self.name, self.shard = name, shard

    @classmethod
    def create_shard_id_function(cls, operations: Operations, name: str, *, shard: int) -> None:
        """Create Instagram's function and its sequence in the migration's own database.

        Args:
            operations: the context of the migration.
            name: of the function, for ``server_default=sa.text("name()")``.
            shard: the number of the logical shard, 0 to 8,191.
        """
        operations.invoke(cls(name, shard=shard))

    def reverse(self) -> DropShardIdFunctionOp:
        """Drop it."""
        return DropShardIdFunctionOp(self.name, shard=self.shard)

    def to_diff_tuple(self) -> tuple[str, str, int]:
        """What ``alembic check`` shows."""
        return ("add_shard_id_function", self.name, self.shard)


@Operations.register_operation("drop_shard_id_function")
class DropShardIdFunctionOp(MigrateOperation):
    """Drop such a function, and its sequence."""

    def __init__(self, name: str, *, shard: int) -> None:
        self.name, self.shard = name, shard

    @classmethod
    def drop_shard_id_function(cls, operations: Operations, name: str, *, shard: int) -> None:
        """Drop the function and its sequence.

        Args:
            operations: the context of the migration.
            name: of the function.
            shard: the number of the logical shard, for the way back.
        """
        operations.invoke(cls(name, shard=shard))

    def reverse(self) -> CreateShardIdFunctionOp:
        """Create it again."""
        return CreateShardIdFunctionOp(self.name, shard=self.shard)

    def to_diff_tuple(self) -> tuple[str, str]:
        """What ``alembic check`` shows."""
        return ("remove_shard_id_function", self.name)
