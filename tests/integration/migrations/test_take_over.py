"""A table that counted for itself, on two shards, draws tickets from now on."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.operations import Operations
from alembic.runtime.environment import EnvironmentContext
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from sqlalchemy import URL, BigInteger, Column, Connection, MetaData, Table, create_engine, text
from sqlalchemy import insert as insert_into
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool

import alembic_ext
from sqla_tickets import TicketPool, TicketSequence
from sqla_tickets.connect.timeouts import Timeouts
from tests.integration.migrations.test_first_steps import insert
from tests.support.command_line import run_cli
from tests.support.draws import run, setting
from tests.support.projects import REPOSITORY, Project, text_of
from tests.support.servers import MySQLLike, ServerFixtures
from tests.support.take_over import (
    ALTERED,
    COUNT_APART,
    CREATED,
    FILL,
    GENERATED,
    STRIDE,
    count_apart,
)

#: How many rows each shard has, and how they get there.
ROWS = {"mariadb": 500_000, "mysql": 20_000, "postgresql": 20_000}
EDITED = f"{CREATED}\n    {ALTERED}"
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
    shard_urls: list[URL], app_kind: str, servers: ServerFixtures, tmp_path: Path
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


@pytest.mark.app_databases("mariadb", "mysql")
def test_an_int_key_keeps_its_attribute(
    shard_urls: list[URL], servers: ServerFixtures, tmp_path: Path
) -> None:
    """Old processes insert without an id after the migration that widens the column, too."""
    shard, ticket_server = shard_urls[0], servers.fresh_database(servers.mariadb(0))
    run(shard, "CREATE TABLE photos (id INT AUTO_INCREMENT PRIMARY KEY, title VARCHAR(100))")
    project = Project(tmp_path / "project")
    project.set_up(shard, [ticket_server])
    assert "autoincrement=True)" in project.revision("wider")
    project.run("upgrade", "head")
    run(shard, "INSERT INTO photos (title) VALUES ('old')")
    assert "No new upgrade operations" in project.run("check")


def test_every_shard_of_the_configuration_counts(tmp_path: Path) -> None:
    """Also one whose migrations come later; one that has no such table yet has no ids."""
    shards = [URL.create("sqlite", database=str(tmp_path / f"shard{n}.db")) for n in range(3)]
    for shard, largest in zip(shards, (10, 5_000_000), strict=False):
        run(shard, "CREATE TABLE photos (id BIGINT NOT NULL PRIMARY KEY, title VARCHAR(100))")
        run(shard, f"INSERT INTO photos VALUES ({largest}, 'old')")
    tickets = [URL.create("sqlite", database=str(tmp_path / f"tickets{n}.db")) for n in range(2)]
    project = Project(tmp_path / "project")
    project.set_up(shards[0], tickets)
    named = f"shards = {' '.join(map(text_of, shards[:2]))} ${{THIRD_SHARD}}\nticket_servers ="
    project.replace(project.folder / "alembic.ini", ("ticket_servers =", named))
    assert GENERATED in project.revision("tickets")
    assert "THIRD_SHARD, which is not set" in project.run("upgrade", "head", fails=True)
    logged = project.run("upgrade", "head", THIRD_SHARD=text_of(shards[2]))
    assert "every ticket of 'photos' is above 5010000: the largest photos.id is 5000000" in logged
    with TicketPool(tickets) as pool:
        assert min(pool.next_ids("photos", 2)) > 5_000_000


SHARED = """
from sqlalchemy import BigInteger
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sqla_tickets import TicketSequence

class Base(DeclarativeBase):
    pass

class Album(Base):
    __tablename__ = "albums"
    id: Mapped[int] = mapped_column(BigInteger, TicketSequence("shared"), primary_key=True)

class Photo(Base):
    __tablename__ = "photos"
    id: Mapped[int] = mapped_column(BigInteger, TicketSequence("shared"), primary_key=True)
"""


def test_every_column_of_a_shared_sequence_counts(tmp_path: Path) -> None:
    """Not only the first: a ticket below the ids of another column could repeat one."""
    app = URL.create("sqlite", database=str(tmp_path / "app.db"))
    for table, largest in (("albums", 100), ("photos", 5_000_000)):
        run(app, f"CREATE TABLE {table} (id BIGINT NOT NULL PRIMARY KEY)")
        run(app, f"INSERT INTO {table} VALUES ({largest})")
    tickets = [URL.create("sqlite", database=str(tmp_path / f"tickets{n}.db")) for n in range(2)]
    project = Project(tmp_path / "project")
    project.set_up(app, tickets, SHARED)
    text = project.revision("shared")
    assert "start_above=[('albums', 'id'), ('photos', 'id')])" in text
    assert text.count("drop_ticket_table") == 1
    logged = project.run("upgrade", "head")
    assert "every ticket of 'shared' is above 5010000: the largest photos.id is 5000000" in logged
    with TicketPool(tickets) as pool:
        assert min(pool.next_ids("shared", 2)) > 5_000_000
    assert "No new upgrade operations" in project.run("check")
    project.run("downgrade", "base")
    project.run("upgrade", "head")


@contextlib.contextmanager
def migrating(shard: URL, pool: TicketPool, shards: Sequence[str]) -> Iterator[Operations]:
    """The operations of a migration in one transaction, and the configuration's shards."""
    config = Config()
    config.set_main_option("shards", " ".join(shards).replace("%", "%%"))
    environment = EnvironmentContext(config, ScriptDirectory("."))
    with create_engine(shard, poolclass=NullPool).begin() as connection:
        context = MigrationContext.configure(
            connection, opts={"ticket_pools": pool}, environment_context=environment
        )
        with Operations.context(context) as op:
            yield op


@pytest.mark.app_databases("postgresql")
@pytest.mark.ticket_servers("sqlite")
@pytest.mark.parametrize("source", ["shards", "list"])
def test_own_shard_is_read_in_the_own_transaction(
    shard_urls: list[URL], default: TicketPool, source: str
) -> None:
    """Another connection would wait for the lock that this migration holds."""
    for shard, largest in zip(shard_urls, (10, 5_000_000), strict=True):
        run(shard, "CREATE TABLE photos (id BIGINT PRIMARY KEY)")
        run(shard, f"INSERT INTO photos VALUES ({largest})")
    shards = [*map(text_of, shard_urls)]
    for shard in shard_urls:
        with migrating(shard, default, shards) as op:
            op.execute("ALTER TABLE photos ADD title VARCHAR(9)")
            above = ("photos", "id", shards) if source == "list" else ("photos", "id")
            alembic_ext.create_ticket_table("photos", start_above=above)
    assert min(default.next_ids("photos", 2)) > 5_000_000


@pytest.mark.app_databases("postgresql")
@pytest.mark.ticket_servers("sqlite")
def test_own_shard_with_another_schema_is_read_in_both(
    shard_urls: list[URL], default: TicketPool
) -> None:
    """A statement has chosen the schema, as for the tenants of Alembic's cookbook."""
    for table, largest in (("photos", 5_000_000), ("tenant.photos", 10)):
        schema = "CREATE SCHEMA IF NOT EXISTS tenant"
        run(shard_urls[0], schema, f"CREATE TABLE {table} (id BIGINT PRIMARY KEY)")
        run(shard_urls[0], f"INSERT INTO {table} VALUES ({largest})")
    with migrating(shard_urls[0], default, [text_of(shard_urls[0])]) as op:
        op.execute("SET search_path TO tenant")
        alembic_ext.create_ticket_table("photos", start_above=("photos", "id"))
    assert min(default.next_ids("photos", 2)) > 5_000_000


@pytest.mark.app_databases("postgresql")
@pytest.mark.ticket_servers("sqlite")
def test_shard_that_is_locked_for_long_is_an_error(
    shard_urls: list[URL], default: TicketPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A migration of that shard may take hours."""
    monkeypatch.setattr("alembic_ext.operations.MAX_ID_QUERY", Timeouts(600, 0.05))
    for shard in shard_urls:
        run(shard, "CREATE TABLE photos (id BIGINT PRIMARY KEY)")
    with create_engine(shard_urls[1]).begin() as connection:
        connection.execute(text("LOCK TABLE photos"))
        with (
            migrating(shard_urls[0], default, [*map(text_of, shard_urls)]),
            pytest.raises(CommandError, match=r"largest value cannot be read: .*lock timeout"),
        ):
            alembic_ext.create_ticket_table("photos", start_above=("photos", "id"))


class Writer(threading.Thread):
    """A process of the application, as a thread: it inserts until it is told to end."""

    def __init__(self, shard: URL, insert: Callable[[Connection], object]) -> None:
        super().__init__()
        self._shard, self._insert = shard, insert
        self._end = threading.Event()
        self.rows = 0
        self.error: Exception | None = None
        self.start()

    def run(self) -> None:
        engine = create_engine(self._shard, isolation_level="AUTOCOMMIT", poolclass=NullPool)
        try:
            with engine.connect() as connection:
                while not self._end.wait(0.005):
                    self._insert(connection)
                    self.rows += 1
        except Exception as error:  # noqa: BLE001  # it is raised where it is ended
            self.error = error

    def go_on(self) -> None:
        """Wait until it has inserted some more."""
        before = self.rows
        while self.rows < before + 20 and self.is_alive():
            time.sleep(0.01)

    def end(self) -> None:
        self._end.set()
        self.join()
        if self.error is not None:
            raise self.error


@pytest.mark.app_databases("mariadb", "postgresql")
def test_old_and_new_processes_side_by_side(
    shard_urls: list[URL], app_kind: str, servers: ServerFixtures, tmp_path: Path
) -> None:
    tickets = [servers.fresh_database(servers.mariadb(n)) for n in range(2)]
    photos = Table(
        "photos", MetaData(), Column("id", BigInteger, TicketSequence(), primary_key=True)
    )
    with contextlib.ExitStack() as ending:
        for number, shard in enumerate(shard_urls):
            for statement in FILL[app_kind]:
                run(shard, statement.format(first=1 + number * 700_000, rows=1000))
            server = servers.shared(app_kind, number)
            if isinstance(server, MySQLLike):
                defaults = {"auto_increment_increment": 1, "auto_increment_offset": 1}
                ending.enter_context(setting(server, **defaults))
            count_apart(server, shard, number)
        by_itself = text("INSERT INTO photos (title) VALUES ('old')")
        old = [Writer(shard, lambda on: on.execute(by_itself)) for shard in shard_urls]
        for writer in old:
            ending.callback(writer.end)

        project = Project(tmp_path / "project")
        project.set_up(shard_urls[0], tickets)
        ini = project.folder / "alembic.ini"
        project.replace(ini, ("ticket_servers =", f"ticket_stride = {STRIDE}\nticket_servers ="))
        assert GENERATED in project.revision("tickets")
        created = CREATED.replace("SHARD1, SHARD2", repr([*map(text_of, shard_urls)])[1:-1])
        project.replace(project.file("tickets"), (GENERATED, created))
        project.run("revision", "-m", "explicit")
        altered = ALTERED.replace(*ON_POSTGRESQL) if app_kind == "postgresql" else ALTERED
        upgrade = "def upgrade() -> None:\n"
        project.replace(
            project.file("explicit"), (upgrade, f"{upgrade}    {altered}\n    return\n")
        )
        of_first, of_second = (text_of(shard).replace("%", "%%") for shard in shard_urls)

        def migrate(to: str) -> None:
            before = ini.read_text()
            for shard in (of_first, of_second):
                ini.write_text(before.replace(of_first, shard))
                project.run("upgrade", to)
            ini.write_text(before)

        migrate("+1")
        pool = ending.enter_context(TicketPool(tickets, stride=STRIDE, hedge=False))
        ending.enter_context(pool.attached(photos.metadata))
        new = [Writer(shard, lambda on: on.execute(insert_into(photos))) for shard in shard_urls]
        for writer in new:
            ending.callback(writer.end)
        for writer in (*old, *new):
            writer.go_on()
        for writer in old:
            writer.end()
        migrate("+1")
        for writer in new:
            writer.go_on()
            writer.end()
        for shard in shard_urls:
            with pytest.raises(DBAPIError):
                run(shard, "INSERT INTO photos (title) VALUES ('forgot its id')")
        found = [("--shard", text_of(shard)) for shard in shard_urls]
        on = [("--server", text_of(server)) for server in tickets]
        words = [word for pair in (*found, *on) for word in pair]
        raised = run_cli("raise", *words, "--stride", STRIDE)
        assert raised.code == 0, raised.text
        done = run_cli("audit", *words, "--stride", STRIDE, "--json")
    (report,) = done.json["audit"]
    assert report["anomalies"] == []
    assert report["rows"] == 2000 + sum(writer.rows for writer in (*old, *new))
    assert {"1", "2", "15", "16"} <= set(report["residues"])


def test_the_page_says_what_is_done_here() -> None:
    page = (REPOSITORY / "docs" / "guide" / "take-over.md").read_text()
    said = "\n".join(line.strip() for line in page.splitlines())
    commands = [f"{line};" for lines in COUNT_APART.values() for line in lines]
    for block in (GENERATED, CREATED, ALTERED, ON_POSTGRESQL[1].rstrip(")"), *commands):
        assert "\n".join(line.strip() for line in block.splitlines()) in said
