"""Runs the migrations of one database, or of one shard after another."""

import logging
from logging.config import fileConfig

from alembic import context
from sqlalchemy import engine_from_config, pool

from alembic_ext.configuration import shards_or_database

# this is the Alembic Config object, which provides
# access to the values within the .ini file in use.
config = context.config

# Interpret the config file for Python logging.
# This line sets up loggers basically.
if config.config_file_name is not None:
    fileConfig(config.config_file_name)

# add your model's MetaData object here
# for 'autogenerate' support
# from myapp import mymodel
# target_metadata = mymodel.Base.metadata
target_metadata = None


def run_migrations_offline() -> None:
    """Write the migrations as SQL, which is the same for every shard."""
    context.configure(
        url=shards_or_database(config)[0],
        target_metadata=target_metadata,
        literal_binds=True,
        dialect_opts={"paramstyle": "named"},
    )

    with context.begin_transaction():
        context.run_migrations()


def run_migrations_online() -> None:
    """Run the migrations on one shard after another.

    If one fails, earlier ones are done: run it again. A new revision is compared with the
    first shard, `alembic check` compares all.

    """
    databases = shards_or_database(config)
    is_revision = getattr(config.cmd_opts, "autogenerate", False)
    for url in databases[:1] if is_revision else databases:
        engine = engine_from_config(
            {**config.get_section(config.config_ini_section, {}), "sqlalchemy.url": url},
            prefix="sqlalchemy.",
            poolclass=pool.NullPool,
        )
        logging.getLogger("alembic.env").info("Database %s", engine.url)

        with engine.connect() as connection:
            context.configure(
                connection=connection,
                target_metadata=target_metadata,
                autogenerate_plugins=["alembic.autogenerate.*", "sqla_tickets"],
            )

            with context.begin_transaction():
                context.run_migrations()


if context.is_offline_mode():
    run_migrations_offline()
else:
    run_migrations_online()
