"""The reference of the operations: each statement runs as it is written there.

`migrations.md` and `take-over.md` tell stories, which have tests of their own.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic import op

import alembic_ext
from sqla_tickets import TicketPool
from tests.support.markdown_blocks import blocks_of
from tests.support.migration_contexts import operations
from tests.support.projects import REPOSITORY
from tests.support.servers import ServerFixtures

DOCS = REPOSITORY / "docs"
REFERENCE = DOCS / "reference" / "migration-operations.md"
PAGES = [REFERENCE, DOCS / "operate" / "move.md"]
CREATES, ON_POSTGRESQL = "`create_ticket_table`", "shard_id_function"


def statements() -> Iterator[tuple[str, str]]:
    """Each statement with its heading, those that need one another together."""
    for page in PAGES:
        lines = page.read_text().splitlines()
        for block in blocks_of(page):
            heading = next(line for line in reversed(lines[: block.line]) if line.startswith("#"))
            parts = ast.parse(block.text).body
            alone = all(isinstance(part, ast.Expr) for part in parts)
            for text in map(ast.unparse, parts) if alone else [block.text]:
                yield heading, text


@pytest.mark.ticket_servers("mariadb")
@pytest.mark.parametrize(("heading", "statement"), list(statements()))
def test_it_runs(
    heading: str,
    statement: str,
    default: TicketPool,
    media: TicketPool,
    servers: ServerFixtures,
    tmp_path: Path,
) -> None:
    photos = sa.table("photos", sa.column("id"), sa.column("title"))
    app = sa.URL.create("sqlite", database=str(tmp_path / "app.db"))
    if ON_POSTGRESQL in heading:
        app = servers.fresh_database(servers.postgresql())
    with operations(default, media, app=app):
        op.execute("CREATE TABLE photos (id BIGINT PRIMARY KEY, title TEXT)")
        if CREATES not in heading:
            default.create_table("photos")
        exec(statement, {"op": op, "photos": photos, "rows": [{"title": "one"}, {"title": "two"}]})


def test_every_operation_is_explained() -> None:
    headings = " ".join(heading for heading, _ in statements())
    assert [name for name in alembic_ext.__all__ if f"`{name}`" not in headings] == []
    rows = "".join(line for line in REFERENCE.read_text().splitlines() if line.startswith("| [`"))
    assert [
        name
        for name in alembic_ext.__all__
        if name.replace("drop_shard", "create_shard") not in rows
    ] == []
