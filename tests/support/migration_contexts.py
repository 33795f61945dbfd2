"""Operations without a command line: on a MigrationContext of the test's own."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.operations import Operations
from alembic.runtime.environment import EnvironmentContext
from alembic.script import ScriptDirectory
from sqlalchemy import URL, create_engine
from sqlalchemy.pool import NullPool

import alembic_ext  # noqa: F401  # registers the operations
from sqla_tickets import TicketPool

MEMORY = URL.create("sqlite")


@contextmanager
def operations(*pools: TicketPool, app: URL = MEMORY) -> Iterator[Operations]:
    """The operations of a migration of ``app`` that knows these pools."""
    options: Mapping[str, object] = {"ticket_pools": list(pools)} if pools else {}
    with create_engine(app, poolclass=NullPool).connect() as connection:
        context = MigrationContext.configure(connection, opts=dict(options))
        with Operations.context(context) as op:
            yield op
        connection.commit()


@contextmanager
def offline(*pools: TicketPool, **options: object) -> Iterator[tuple[Any, io.StringIO]]:
    """The operations of a migration that is only written down, and what is written."""
    script = io.StringIO()
    opts = {"as_sql": True, "output_buffer": script, "ticket_pools": list(pools), **options}
    context = MigrationContext.configure(dialect_name="sqlite", opts=opts)
    with Operations.context(context) as op:
        yield op, script


def configured_context(config: Config | None = None, **opts: Any) -> MigrationContext:
    """What an ``env.py`` configures, with the options of ``context.configure()``."""
    connection = create_engine("sqlite://").connect()
    environment = None if config is None else EnvironmentContext(config, ScriptDirectory("."))
    made = MigrationContext.configure(connection, opts=opts, environment_context=environment)
    connection.close()
    return made
