"""The templates of `alembic init`, each in a folder of its own."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import alembic
import pytest
from sqlalchemy import URL

from sqla_tickets import TicketPool
from tests.integration.migrations.test_first_steps import GENERATED
from tests.support.projects import MODEL, PLUGINS, Project, text_of
from tests.support.servers import ServerFixtures


def stands_at(urls: list[URL], name: str = "photos") -> list[int]:
    """The number of each ticket table."""
    with TicketPool(urls) as pool:
        return [server.last_ticket(name) for server in pool.servers]


@pytest.mark.parametrize("driver", ["pymysql", "asyncmy"])
def test_async_env_with_sync_and_async_ticket_servers(
    servers: ServerFixtures, tmp_path: Path, driver: str
) -> None:
    urls = [servers.fresh_database(servers.mariadb(n)) for n in range(2)]
    app = servers.fresh_database(servers.postgresql(), None).set(drivername="postgresql+asyncpg")
    project = Project(tmp_path / "project", "async")
    project.set_up(app, [url.set(drivername=f"mysql+{driver}") for url in urls])
    assert project.revision("photos") == GENERATED
    project.run("upgrade", "head")
    assert stands_at(urls) == [1, 2]
    assert "No new upgrade operations" in project.run("check")
    project.run("-x", "drop_tickets=1", "downgrade", "base")
    project.run("upgrade", "head")


@pytest.mark.ticket_servers("sqlite")
@pytest.mark.parametrize(
    ("template", "driver"), [("pyproject", "pysqlite"), ("pyproject_async", "aiosqlite")]
)
def test_pyproject(ticket_urls: list[URL], tmp_path: Path, template: str, driver: str) -> None:
    if not (Path(alembic.__file__).parent / "templates" / template).exists():
        pytest.skip("this Alembic has no such template")
    (tmp_path / "pyproject.toml").write_text("")
    project = Project(tmp_path, template)
    project.set_up(URL.create(f"sqlite+{driver}", database=str(tmp_path / "app.db")), ticket_urls)
    ini = tmp_path / "alembic.ini"
    lines = ini.read_text().splitlines(keepends=True)
    ini.write_text("".join(line for line in lines if not line.startswith("ticket_servers")))
    urls = [text_of(url).replace("%", "%%") for url in ticket_urls]
    project.replace(
        tmp_path / "pyproject.toml",
        ("[tool.alembic]", f"[tool.alembic]\nticket_servers = {urls!r}"),
    )
    assert project.revision("photos") == GENERATED
    project.run("upgrade", "head")
    assert stands_at(ticket_urls) == [1, 2]
    assert "No new upgrade operations" in project.run("check")


@pytest.mark.ticket_servers("mariadb")
def test_multidb_creates_once_and_drops_nothing(ticket_urls: list[URL], tmp_path: Path) -> None:
    project = Project(tmp_path / "project", "multidb")
    (project.folder / "app.py").write_text(MODEL)
    project.replace(
        project.env,
        (
            "target_metadata = {}",
            (
                'from app import Base\n\ntarget_metadata = {"engine1": Base.metadata,'
                ' "engine2": Base.metadata}'
            ),
        ),
        (
            "target_metadata=target_metadata.get(name),\n            )\n            context",
            f"target_metadata=target_metadata.get(name), {PLUGINS})\n            context",
        ),
    )
    shards = [tmp_path / f"shard{n}.db" for n in (1, 2)]
    servers = " ".join(map(text_of, ticket_urls)).replace("%", "%%")
    project.replace(
        project.folder / "alembic.ini",
        ("[alembic]\n", f"[alembic]\nticket_servers = {servers}\n"),
        ("driver://user:pass@localhost/dbname\n", f"sqlite:///{shards[0]}\n"),
        ("driver://user:pass@localhost/dbname2\n", f"sqlite:///{shards[1]}\n"),
    )
    text = project.revision("photos")
    assert text.count("op.create_ticket_table('photos')") == 2
    assert text.count("op.drop_ticket_table('photos')") == 2
    project.run("upgrade", "head")
    assert stands_at(ticket_urls) == [1, 2]
    for shard in shards:
        with sqlite3.connect(shard) as connection:
            assert connection.execute("SELECT count(*) FROM photos").fetchone() == (0,)
    assert "No new upgrade operations" in project.run("check")
    assert project.run("downgrade", "base").count("is kept") == 2
    assert stands_at(ticket_urls) == [1, 2]


@pytest.mark.ticket_servers("mariadb")
def test_a_stamped_database_has_no_ticket_tables(ticket_urls: list[URL], tmp_path: Path) -> None:
    project = Project(tmp_path / "project")
    app = URL.create("sqlite", database=str(tmp_path / "app.db"))
    project.set_up(app, ticket_urls)
    project.revision("photos")
    project.run("stamp", "head")
    with TicketPool(ticket_urls) as pool, pytest.raises(Exception, match="a stamped database"):
        pool.next_id("photos")
