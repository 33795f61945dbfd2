"""`--sql`: ticket tables are for other servers than the one that the script is for."""

from __future__ import annotations

from pathlib import Path

import pytest
from alembic.util import CommandError
from sqlalchemy import URL

from sqla_tickets import TicketPool
from tests.support.migration_contexts import offline
from tests.support.projects import Project
from tests.support.servers import MySQLLike, ServerFixtures

NOWHERE = ["mysql+pymysql://u:hush-4711@a/tickets", "mysql+pymysql://u:hush-4711@b/tickets"]


def test_the_script_has_comments_only() -> None:
    with offline(TicketPool(NOWHERE)) as (op, script):
        op.create_ticket_table("pho`tos 100%")
        op.drop_ticket_table("photos")
    lines = [line for line in script.getvalue().splitlines() if line]
    assert all(line.startswith("-- [sqla_tickets] ") for line in lines)
    assert sum("run this there, not here" in line for line in lines) == 2
    assert sum("CREATE TABLE `pho``tos 100%` (" in line for line in lines) == 2
    assert "hush" not in script.getvalue()


REFUSED = {
    "create": lambda op: op.create_ticket_table("photos", start_above=("photos", "id")),
    "create above columns": lambda op: op.create_ticket_table(
        "shared", start_above=[("albums", "id"), ("photos", "id")]
    ),
    "drop": lambda op: op.drop_ticket_table("photos", force=True),
    "raise": lambda op: op.raise_ticket_table("photos", above=5),
    "rename": lambda op: op.rename_ticket_table("photos", "pictures"),
    "convert": lambda op: op.convert_ticket_table("photos", layout="counter"),
    "move": lambda op: op.move_ticket_table("photos", to="media"),
    "draw": lambda op: op.next_tickets("photos", 5),
}


@pytest.mark.parametrize("function", REFUSED)
def test_what_is_not_known_before_is_refused(function: str) -> None:
    with offline(TicketPool(NOWHERE)) as (op, script), pytest.raises(CommandError, match="--sql"):
        REFUSED[function](op)
    assert script.getvalue() == ""


@pytest.mark.ticket_servers("mariadb")
def test_the_files_create_the_tables(
    ticket_urls: list[URL], ticket_kind: str, servers: ServerFixtures, tmp_path: Path
) -> None:
    project = Project(tmp_path / "project")
    project.set_up(URL.create("sqlite", database=str(tmp_path / "app.db")), ticket_urls)
    project.replace(
        project.folder / "alembic.ini",
        ("ticket_servers", "ticket_sql_dir = tickets\nticket_servers"),
    )
    project.revision("photos")
    script = project.run("upgrade", "head", "--sql")
    assert "CREATE TABLE photos (" in script
    assert "-- [sqla_tickets] CREATE TABLE `photos` (" in script
    script = project.run("downgrade", "head:base", "--sql")
    assert "-- [sqla_tickets] the ticket table 'photos' is kept" in script
    project.run("upgrade", "head", "--sql")
    import subprocess

    for number, url in enumerate(ticket_urls):
        server = servers.shared(ticket_kind, number)
        assert isinstance(server, MySQLLike)
        file = project.folder / "tickets" / f"default-{number + 1}.sql"
        done = subprocess.run(
            server.client(url.database or ""),
            input=file.read_text(),
            capture_output=True,
            text=True,
        )
        assert (done.returncode, done.stderr) == (0, "")
    with TicketPool(ticket_urls) as pool:
        assert len(set(pool.next_ids("photos", 10))) == 10
