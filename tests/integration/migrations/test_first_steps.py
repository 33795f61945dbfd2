"""The first page of the documentation, followed to the letter."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import URL

from sqla_tickets import TicketPool, TicketTableMissing
from tests.support.projects import PLUGINS, REPOSITORY, Project, text_of

GENERATED = """\
from typing import Sequence, Union
from alembic import op
import sqlalchemy as sa
import alembic_ext
def upgrade() -> None:
    op.create_ticket_table('photos')
    op.create_table('photos',
    sa.Column('id', sa.BigInteger(), autoincrement=False, nullable=False),
    sa.Column('title', sa.String(length=100), nullable=True),
    sa.PrimaryKeyConstraint('id')
    )
def downgrade() -> None:
    op.drop_table('photos')
    op.drop_ticket_table('photos')"""

INSERT = """\
from sqlalchemy import create_engine
from sqlalchemy.orm import Session
from sqla_tickets import TicketPool
from app import Base, Photo
app, *servers = {urls!r}
with TicketPool(servers) as tickets:
    tickets.attach(Base.metadata)
    with Session(create_engine(app)) as session:
        photos = [Photo() for _ in range(3)]
        session.add_all(photos)
        session.commit()
        print(sorted(photo.id for photo in photos))
"""


def insert(project: Project, app: URL, tickets: list[URL]) -> str:
    return project.python(INSERT.format(urls=[text_of(app), *map(text_of, tickets)])).strip()


@pytest.mark.app_databases("sqlite")
@pytest.mark.ticket_servers("mariadb", "sqlite")
def test_from_init_to_the_first_insert(
    app_url: URL, ticket_urls: list[URL], tmp_path: Path
) -> None:
    follow(app_url, ticket_urls, tmp_path / "project")


@pytest.mark.app_databases("mysql", "postgresql")
@pytest.mark.ticket_servers("mariadb")
def test_an_application_s_database_of_another_kind(
    app_url: URL, ticket_urls: list[URL], tmp_path: Path
) -> None:
    follow(app_url, ticket_urls, tmp_path / "project")


def follow(app: URL, tickets: list[URL], folder: Path) -> None:
    project = Project(folder)
    project.set_up(app, tickets)
    text = project.revision("photos")
    assert text == GENERATED
    project.run("upgrade", "head")
    first = insert(project, app, tickets)
    assert len(set(eval(first))) == 3
    check = "from alembic.config import main; main(argv=['check'], prog='alembic')"
    for printed in (project.run("check"), project.python(check)):  # in a new process, too
        assert "No new upgrade operations detected" in printed
    assert "'photos' is kept" in project.run("downgrade", "base")
    project.run("upgrade", "head")
    assert set(eval(first)).isdisjoint(eval(insert(project, app, tickets)))


@pytest.mark.app_databases("sqlite")
@pytest.mark.ticket_servers("sqlite")
def test_the_edit_that_was_forgotten(app_url: URL, ticket_urls: list[URL], tmp_path: Path) -> None:
    """Nothing fails until the first insert: so the migrations warn, and the insert's error names the cause."""
    project = Project(tmp_path / "project")
    project.set_up(app_url, ticket_urls)
    project.replace(project.env, (PLUGINS, PLUGINS.replace(', "sqla_tickets"', "")))
    said = f"{project.env} does not list 'sqla_tickets': found ['alembic.autogenerate.*']"
    assert said in project.run("revision", "--autogenerate", "-m", "photos")
    project.run("upgrade", "head")
    assert said in project.run("check")
    with TicketPool(ticket_urls) as pool, pytest.raises(TicketTableMissing, match="does not list"):
        pool.next_id("photos")


def test_the_first_page_says_what_is_done_here() -> None:
    page = (REPOSITORY / "docs" / "guide" / "migrations.md").read_text()
    while "\n\n" in page:
        page = page.replace("\n\n", "\n")
    body = GENERATED.partition("import alembic_ext\n")[2]
    assert body in page
    for edit in (PLUGINS, "from app import Base", "target_metadata = Base.metadata"):
        assert edit in page
