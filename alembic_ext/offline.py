"""``alembic upgrade --sql``: the ticket servers' statements, where they do no harm.

The script is run on the application's database, where a ticket table would be on the wrong server. So
there they are comments, a section for each server; with ``ticket_sql_dir`` they are files as well.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from alembic.util import CommandError
from sqlalchemy import ClauseElement, Dialect

from sqla_tickets import TicketPool, TicketServer
from sqla_tickets.compiled import Compiled
from sqla_tickets.statements import CreateTicketTable, NoteTicketTable, SeedTicketTable

from .ops import CreateTicketTableOp
from .pools import option

if TYPE_CHECKING:  # Alembic may be in the middle of its own import
    from alembic.runtime.migration import MigrationContext

__all__ = ["comment", "create", "refuse"]


def refuse(context: MigrationContext, name: str, what: str) -> None:
    """See that the migration is not written down only.

    Raises:
        CommandError: it is.
    """
    if context.as_sql:
        raise CommandError(
            f"--sql: the ticket table {name!r} cannot be {what} before the migration runs; leave --sql"
            " out for this revision"
        )


def comment(context: MigrationContext, text: str) -> None:
    """Write a comment into the script."""
    for line in text.splitlines():
        context.impl.static_output(f"-- [sqla_tickets] {line}")


def create(context: MigrationContext, pool: TicketPool, op: CreateTicketTableOp) -> None:
    """Write down how the table is created on each server.

    Raises:
        CommandError: where it begins depends on what is in a database.
    """
    if op.start_above is not None:
        raise CommandError(
            f"--sql: where the ticket table {op.name!r} begins is not known before the migration runs:"
            f" give start= in place of start_above={op.start_above[:2]!r}, or leave --sql out"
        )
    for server in pool.servers:
        script = ";\n".join(_statements(pool, server, op)) + ";"
        comment(context, f"server {server} of the pool {pool.name!r}: run this there, not here")
        comment(context, script)
        _write_file(context, f"{pool.name}-{server.offset}.sql", f"-- {server}\n{script}\n")


def _statements(pool: TicketPool, server: TicketServer, op: CreateTicketTableOp) -> list[str]:
    dialect = server.engine.dialect
    element = CreateTicketTable(
        op.name,
        layout=op.layout,
        stride=pool.stride,
        offset=server.offset or 0,
        start=op.start or 1,
        bits=op.bits,
        engine=op.engine or "InnoDB",
    )
    if dialect.name in ("mysql", "mariadb"):
        return [_text(element, dialect)]
    note = element.note(dialect.name)
    statements: list[ClauseElement] = [
        element,
        SeedTicketTable(op.name, note.layout, element.seed),
    ]
    if dialect.supports_comments:
        statements.append(NoteTicketTable(op.name, note))
    return ["BEGIN", *(_text(statement, dialect) for statement in statements), "COMMIT"]


def _text(element: ClauseElement, dialect: Dialect) -> str:
    text = Compiled(element, dialect).text
    return text % () if dialect.paramstyle in ("format", "pyformat") else text


def _write_file(context: MigrationContext, name: str, text: str) -> None:
    folder = option(context, "ticket_sql_dir")
    if folder is None:
        return
    # one run of Alembic writes a file anew, however many databases it goes through
    kept = context.opts if context.config is None else context.config.attributes
    begun: set[str] = kept.setdefault("_ticket_sql_files", set())
    Path(folder).mkdir(parents=True, exist_ok=True)
    with (Path(folder) / name).open("a" if name in begun else "w") as file:
        file.write(text)
    begun.add(name)
