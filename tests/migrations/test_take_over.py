"""A table that counted for itself, on two shards, draws tickets from now on."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import URL, create_engine, text

from sqla_tickets import TicketPool
from tests.migrations.projects import Project, text_of

ROWS = 500_000
SEQUENCE = f"seq_1_to_{ROWS}"
#: The edits of the page "Taking over a table".
DRAWN_FROM_NOW_ON = (
    "op.create_ticket_table('photos', start_above=('photos', 'id'))",
    (
        "op.create_ticket_table('photos', start_above=('photos', 'id', {shards!r}))\n"
        "    op.alter_column('photos', 'id', existing_type=sa.BigInteger(), existing_nullable=False,"
        " autoincrement=False)"
    ),
)


def fill(shard: URL, first: int) -> int:
    engine = create_engine(shard)
    with engine.begin() as connection:
        connection.execute(
            text(
                "CREATE TABLE photos (id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,"
                f" title VARCHAR(100)) AUTO_INCREMENT={first}"
            )
        )
        connection.execute(text(f"INSERT INTO photos (title) SELECT 'old' FROM {SEQUENCE}"))
        return int(connection.scalar(text("SELECT MAX(id) FROM photos")) or 0)


@pytest.mark.ticket_servers("mariadb")
@pytest.mark.app_databases("mariadb")
def test_a_million_rows_on_two_shards(
    shard_urls: list[URL], ticket_urls: list[URL], tmp_path: Path
) -> None:
    largest = max(fill(shard_urls[0], 1), fill(shard_urls[1], 700_000))
    project = Project(tmp_path / "project")
    project.set_up(shard_urls[0], ticket_urls)
    generated = project.revision("tickets")
    assert DRAWN_FROM_NOW_ON[0] in generated
    old, new = DRAWN_FROM_NOW_ON
    project.replace(project.file("tickets"), (old, new.format(shards=[*map(text_of, shard_urls)])))
    ini = (project.folder / "alembic.ini").read_text()
    for shard in shard_urls:
        (project.folder / "alembic.ini").write_text(
            ini.replace(text_of(shard_urls[0]), text_of(shard))
        )
        project.run("upgrade", "head")
        assert "No new upgrade operations" in project.run("check")
    with TicketPool(ticket_urls) as pool:
        drawn = pool.next_ids("photos", 100)
    assert min(drawn) > largest
    for shard in shard_urls:
        with create_engine(shard).begin() as connection:
            shown = connection.execute(text("SHOW CREATE TABLE photos")).one()[1]
            assert "AUTO_INCREMENT" not in shown
            ticket = drawn.pop()
            connection.execute(text(f"INSERT INTO photos VALUES ({ticket}, 'new')"))
            assert connection.scalar(text("SELECT MAX(id) FROM photos")) == ticket
