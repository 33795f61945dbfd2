from __future__ import annotations

from alembic import context
from app import Base
from sqlalchemy import Connection, create_engine

PLUGINS = ["alembic.autogenerate.*", "sqla_tickets"]


def migrate(connection: Connection) -> None:
    context.configure(
        connection=connection,
        target_metadata=Base.metadata,
        autogenerate_plugins=PLUGINS,
    )
    with context.begin_transaction():
        context.run_migrations()


def migrate_the_configured_database() -> None:
    # a test, or another program, may say which database to migrate
    engine = context.config.attributes.get("connection")
    if engine is None:
        engine = create_engine(context.config.get_main_option("sqlalchemy.url", ""))
    with engine.connect() as connection:
        migrate(connection)
    engine.dispose()


if context.is_offline_mode():
    context.configure(
        url=context.config.get_main_option("sqlalchemy.url"),
        target_metadata=Base.metadata,
        literal_binds=True,
    )
    with context.begin_transaction():
        context.run_migrations()
else:
    migrate_the_configured_database()
