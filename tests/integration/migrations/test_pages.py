"""The pages of the operations: each statement runs as it is written there.

`first-steps.md` and `take-over.md` tell stories, which have tests of their own.
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

STORIES = {"first-steps.md", "take-over.md"}
ON_POSTGRESQL = "shard-id-function.md"


def statements() -> Iterator[tuple[str, str]]:
    """Each statement on a page, those that need one another together."""
    for page in sorted((REPOSITORY / "docs" / "migrations").glob("*.md")):
        for block in blocks_of(page):
            if page.name in STORIES:
                continue
            parts = ast.parse(block.text).body
            alone = all(isinstance(part, ast.Expr) for part in parts)
            for text in map(ast.unparse, parts) if alone else [block.text]:
                yield page.name, text


@pytest.mark.ticket_servers("mariadb")
@pytest.mark.parametrize(("page", "statement"), list(statements()))
def test_it_runs(
    page: str,
    statement: str,
    default: TicketPool,
    media: TicketPool,
    servers: ServerFixtures,
    tmp_path: Path,
) -> None:
    photos = sa.table("photos", sa.column("id"), sa.column("title"))
    app = sa.URL.create("sqlite", database=str(tmp_path / "app.db"))
    if page == ON_POSTGRESQL:
        app = servers.fresh_database(servers.postgresql())
    with operations(default, media, app=app):
        op.execute("CREATE TABLE photos (id BIGINT PRIMARY KEY, title TEXT)")
        if page != "create.md":
            default.create_table("photos")
        exec(statement, {"op": op, "photos": photos, "rows": [{"title": "one"}, {"title": "two"}]})


def test_every_page_of_an_operation_has_one() -> None:
    shown = {page for page, _ in statements()}
    listed = (REPOSITORY / "docs" / "migrations" / "index.md").read_text()
    assert all(f"{{doc}}`{page.removesuffix('.md')}`" in listed for page in shown)
    headings = "".join(
        (REPOSITORY / "docs" / "migrations" / page).read_text().partition("\n")[0] for page in shown
    )
    assert [name for name in alembic_ext.__all__ if f"`{name}`" not in headings] == []
