"""Runs the migrations of one shard after another; `sqla-tickets init` writes this loop."""

from __future__ import annotations

import os

from alembic import context
from sqlalchemy import create_engine, pool
from web import Base


def shards() -> list[str]:
    """The URLs of `alembic.ini`, with variables of the environment."""
    return os.path.expandvars(context.config.get_main_option("shards", "")).split()


def migrate(url: str) -> None:
    with create_engine(url, poolclass=pool.NullPool).connect() as connection:
        context.configure(
            connection=connection,
            target_metadata=Base.metadata,
            autogenerate_plugins=["alembic.autogenerate.*", "sqla_tickets"],
        )
        with context.begin_transaction():
            context.run_migrations()


for url in shards():
    migrate(url)
