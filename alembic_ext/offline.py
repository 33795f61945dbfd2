"""``alembic upgrade --sql``: writes the ticket servers' statements as comments and files.

The script runs on the application's database, where ticket tables do not belong. So it has the statements as
comments, in a section for each server; with ``ticket_sql_dir`` they are also written to files.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from alembic.util import CommandError

from sqla_tickets import TicketPool, TicketServer

from .configuration import option

if TYPE_CHECKING:  # Alembic may be in the middle of its own import
    from alembic.runtime.migration import MigrationContext


def refuse(context: MigrationContext, name: str, what: str) -> None:
    """Refuse an operation in a migration that is only written as SQL.

    Raises:
        CommandError: the migration runs with ``--sql``.
    """
    if context.as_sql:
        raise CommandError(
            f"--sql: the ticket table {name!r} cannot be {what} before the migration runs: run this revision without "
            f"--sql"
        )


def comment(context: MigrationContext, text: str) -> None:
    """Write a comment into the script."""
    for line in text.splitlines():
        context.impl.static_output(f"-- [sqla_tickets] {line}")


def write_script(
    context: MigrationContext, pool: TicketPool, server: TicketServer, statements: Iterable[str]
) -> None:
    """Write the statements to run on one ticket server."""
    script = "".join(f"{statement};\n" for statement in statements)
    comment(context, f"server {server} of the pool {pool.name!r}: run this there, not here")
    comment(context, script)
    folder = option(context, "ticket_sql_dir")
    if folder is None:
        return
    # one run of Alembic writes a file anew, however many databases it goes through
    kept = context.opts if context.config is None else context.config.attributes
    begun: set[str] = kept.setdefault("_ticket_sql_files", set())
    Path(folder).mkdir(parents=True, exist_ok=True)
    name = f"{pool.name}-{server.offset}.sql"
    with (Path(folder) / name).open("a" if name in begun else "w", encoding="utf-8") as file:
        file.write(f"-- {server}\n{script}")
    begun.add(name)
