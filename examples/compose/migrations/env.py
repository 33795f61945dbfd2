"""Runs the migrations of one shard after another; `sqla-tickets init` writes this loop."""

from __future__ import annotations

from alembic import context
from sqlalchemy import create_engine, pool
from web import Base

from alembic_ext.configuration import shards_or_database


def migrate(url: str) -> None:
    with create_engine(url, poolclass=pool.NullPool).connect() as connection:
        context.configure(
            connection=connection,
            target_metadata=Base.metadata,
            autogenerate_plugins=["alembic.autogenerate.*", "sqla_tickets"],
        )
        with context.begin_transaction():
            context.run_migrations()


for url in shards_or_database(context.config):
    migrate(url)
