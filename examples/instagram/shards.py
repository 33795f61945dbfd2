"""Creating logical shards: for each a schema with its tables, and the function that makes ids."""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy import Connection, Engine, MetaData, text
from sqlalchemy.schema import CreateSchema

from instagram.site import Base, schema_of
from sqla_tickets import ShardIdFunction
from sqla_tickets.snowflake.instagram import CreateShardIdFunction, CreateShardIdSequence

__all__ = ["create", "create_in", "function_of"]


def function_of(shard: int) -> ShardIdFunction:
    """What makes the ids of a logical shard's likes."""
    return ShardIdFunction(f"{schema_of(shard)}_id", shard)


def create(server: Engine, shards: Iterable[int]) -> None:
    """Create logical shards on a server."""
    for shard in shards:
        with server.begin() as connection:
            create_in(connection, shard, schema_of(shard))


def create_in(connection: Connection, shard: int, schema: str) -> None:
    """Create one logical shard, in a schema of any name."""
    function = function_of(shard)
    connection.execute(CreateSchema(schema))
    connection.execute(CreateShardIdSequence(function))
    connection.execute(CreateShardIdFunction(function))
    metadata = MetaData()
    for table in Base.metadata.sorted_tables:
        table.to_metadata(metadata, schema=schema)
    metadata.create_all(connection, checkfirst=False)
    connection.execute(text(f"ALTER TABLE {schema}.likes ALTER id SET DEFAULT {function.name}()"))
