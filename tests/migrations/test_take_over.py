"""A table that counted for itself, on two shards, draws tickets from now on."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import URL, create_engine, text
from sqlalchemy.exc import DBAPIError

from tests.migrations.projects import REPOSITORY, Project, text_of
from tests.migrations.test_first_steps import insert
from tests.servers import Borrower

#: How many rows each shard has, and how they get there.
ROWS = {"mariadb": 500_000, "mysql": 20_000, "postgresql": 20_000}
FILL = {
    "mariadb": (
        "CREATE TABLE photos (id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY, title VARCHAR(100))",
        "ALTER TABLE photos AUTO_INCREMENT = {first}",
        "INSERT INTO photos (title) SELECT 'old' FROM seq_1_to_{rows}",
    ),
    "mysql": (
        "CREATE TABLE photos (id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY, title VARCHAR(100))",
        "ALTER TABLE photos AUTO_INCREMENT = {first}",
        "SET cte_max_recursion_depth = {rows}",
        (
            "INSERT INTO photos (title) WITH RECURSIVE rows_ (n) AS (SELECT 1 UNION ALL"
            " SELECT n + 1 FROM rows_ WHERE n < {rows}) SELECT 'old' FROM rows_"
        ),
    ),
    "postgresql": (
        "CREATE TABLE photos (id BIGSERIAL PRIMARY KEY, title VARCHAR(100))",
        "ALTER SEQUENCE photos_id_seq RESTART {first}",
        "INSERT INTO photos (title) SELECT 'old' FROM generate_series(1, {rows})",
    ),
}
#: The edit of the page "Taking over a table", and its one line that is another on PostgreSQL.
GENERATED = "op.create_ticket_table('photos', start_above=('photos', 'id'))"
EDITED = """\
op.create_ticket_table('photos', start_above=('photos', 'id', [SHARD1, SHARD2]))
    op.alter_column('photos', 'id', existing_type=sa.BigInteger(), existing_nullable=False,
                    autoincrement=False)"""
ON_POSTGRESQL = ("autoincrement=False)", "server_default=None)")


def fill(shard: URL, kind: str, first: int) -> int:
    with create_engine(shard).begin() as connection:
        for statement in FILL[kind]:
            connection.execute(text(statement.format(first=first, rows=ROWS[kind])))
        return int(connection.scalar(text("SELECT MAX(id) FROM photos")) or 0)


def ids(shard: URL) -> str:
    with create_engine(shard).connect() as connection:
        rows = connection.execute(text("SELECT id FROM photos WHERE title IS NULL ORDER BY id"))
        return str([row[0] for row in rows])


@pytest.mark.app_databases("mariadb", "mysql", "postgresql")
def test_rows_on_two_shards(
    shard_urls: list[URL], app_kind: str, servers: Borrower, tmp_path: Path
) -> None:
    tickets = [servers.fresh_database(servers.mariadb(n)) for n in range(2)]
    largest = max(fill(shard_urls[0], app_kind, 1), fill(shard_urls[1], app_kind, 700_000))
    project = Project(tmp_path / "project")
    project.set_up(shard_urls[0], tickets)
    assert GENERATED in project.revision("tickets")
    edited = EDITED.replace(*ON_POSTGRESQL) if app_kind == "postgresql" else EDITED
    shards = [repr(text_of(shard)) for shard in shard_urls]
    edited = edited.replace("SHARD1", shards[0]).replace("SHARD2", shards[1])
    project.replace(project.file("tickets"), (GENERATED, edited))
    ini = (project.folder / "alembic.ini").read_text()
    first, second = (text_of(shard).replace("%", "%%") for shard in shard_urls)
    for url in (first, second):
        (project.folder / "alembic.ini").write_text(ini.replace(first, url))
        project.run("upgrade", "head")
        assert "No new upgrade operations" in project.run("check")
    for shard in shard_urls:
        drawn = insert(project, shard, tickets)
        assert ids(shard) == drawn
        assert min(eval(drawn)) > largest
        with create_engine(shard).begin() as connection, pytest.raises(DBAPIError):
            connection.execute(text("INSERT INTO photos (title) VALUES ('forgot its id')"))


def test_the_page_says_what_is_done_here() -> None:
    page = (REPOSITORY / "docs" / "migrations" / "take-over.md").read_text()
    said = "\n".join(line.strip() for line in page.splitlines())
    for block in (GENERATED, EDITED, ON_POSTGRESQL[1].rstrip(")")):
        assert "\n".join(line.strip() for line in block.splitlines()) in said
