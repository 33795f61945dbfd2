"""The handbook's procedures from end to end, while an application inserts; each step is killed once, and done again.

Operators of the simulation do all of them, with more interruptions: `tests/simulation/procedures.py`.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from sqlalchemy import (
    URL,
    BigInteger,
    Column,
    Connection,
    Engine,
    MetaData,
    String,
    Table,
    create_engine,
    insert,
    text,
)
from sqlalchemy.pool import NullPool

from sqla_tickets import TicketPool, TicketSequence
from tests.support.command_line import run_cli
from tests.support.draws import run, setting, until
from tests.support.projects import REPOSITORY, Project, text_of
from tests.support.servers import MySQLLike, ServerFixtures
from tests.support.take_over import (
    ALTERED,
    CREATED,
    FILL,
    GENERATED,
    count_apart,
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
ROWS = 5_000
#: How far apart the shards' ids are before the beginning.
APART = 700_000
PATIENCE = 90.0
#: Runs a program that kills itself at a statement that changes or locks something, when it is told to go on.
HARNESS = """\
import os, re, signal, sys
from pymysql.connections import Connection
what, at, is_sent, *sys.argv[1:] = sys.argv[1:]
sent, count = Connection.query, 0

def query(self, sql, unbuffered=False):
    global count
    said = " ".join((sql if isinstance(sql, str) else sql.decode("utf-8", "replace")).split())
    count += not re.match("SELECT|SHOW|DESCRIBE|ROLLBACK|SET (?!STATEMENT)", said)
    if count != int(at):
        return sent(self, sql, unbuffered)
    os.write(2, f"killed at {count}: {said[:120]}\\n".encode())
    if is_sent == "True":
        sent(self, sql, unbuffered)
    os.kill(os.getpid(), signal.SIGKILL)

Connection.query = query
from sqla_tickets.connect import cursor
cursor.insert_over_socket = lambda dbapi, wire, poll: None  # it does without that method
if what == "alembic":
    from alembic.config import main
else:
    from sqla_tickets.cli.commands import cli as main
sys.stdin.readline()
try:
    main()
finally:
    os.write(2, f"sent {count}\\n".encode())
"""


class Step:
    """A program that stands by, and is killed at one of its statements.

    Args:
        what: ``"alembic"`` or ``"sqla-tickets"``.
        arguments: of its command line.
        folder: where it runs.
        at: the change at which it dies, from 1; -1 for none.
        is_sent: whether the server still gets that statement.
    """

    def __init__(
        self,
        what: str,
        arguments: Sequence[str],
        folder: Path,
        *,
        at: int = -1,
        is_sent: bool = False,
    ) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", HARNESS, what, str(at), str(is_sent), *arguments],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{REPOSITORY}"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def go(self) -> tuple[int, str, str]:
        """Let it do its work; its exit code and output, negative when it was killed."""
        out, err = self._process.communicate("go\n", timeout=PATIENCE)
        return self._process.returncode, out, err


class Writer(threading.Thread):
    """A process of the application, as a thread: it inserts, whatever happens, until it is told to end."""

    def __init__(
        self, shard: URL, work: Callable[[Connection], object], pools: Sequence[TicketPool] = ()
    ) -> None:
        super().__init__(daemon=True)
        self.pools = pools
        self.rows = 0
        self.failures: list[str] = []
        self._work, self._end = work, threading.Event()
        self._engine: Engine = create_engine(
            shard, isolation_level="AUTOCOMMIT", poolclass=NullPool
        )
        self.start()

    def run(self) -> None:
        with self._engine.connect() as connection:
            while not self._end.wait(0.004):
                try:
                    self._work(connection)
                except Exception as error:  # noqa: BLE001  # counted where it is ended
                    self.failures.append(f"{type(error).__name__}: {error}")
                else:
                    self.rows += 1

    def go_on(self, more: int = 20) -> None:
        """Wait until it has inserted some more."""
        wanted = self.rows + more
        until(lambda: self.rows >= wanted, PATIENCE)

    def end(self) -> None:
        self._end.set()
        self.join(PATIENCE)
        for pool in self.pools:
            pool.dispose()


class Site:
    """Two shards with rows, ticket databases, writers, and the steps that are done to them."""

    def __init__(self, kind: str, shards: list[URL], folder: Path, seed: int) -> None:
        self.kind, self.shards, self.folder = kind, shards, folder
        self.chance = random.Random(seed)
        self.seed = seed
        self.writers: list[Writer] = []
        self.log: list[str] = []
        self._of_shards = [word for url in shards for word in ("--shard", text_of(url))]

    @property
    def config(self) -> Path:
        return self.folder / "tickets.toml"

    def configure(self, stride: int, **pools: Sequence[URL]) -> None:
        """Write the configuration that the steps find; the pool `default` is the first."""
        lines = ["[tool.alembic]"]
        for name, urls in pools.items():
            listed = json.dumps([text_of(url) for url in urls])
            if name == "default":
                lines += [f"ticket_servers = {listed}", f"ticket_stride = {stride}"]
            else:
                lines += [f"[tool.alembic.ticket_pools.{name}]", f"servers = {listed}"]
                lines += [f"stride = {stride}"]
        self.config.write_text("\n".join(lines))

    def writes(self, stride: int, **pools: Sequence[URL]) -> list[Writer]:
        """Start a process of the new code for each shard."""
        return [self._writer(shard, stride, pools) for shard in self.shards]

    def _writer(self, shard: URL, stride: int, urls: dict[str, Sequence[URL]]) -> Writer:
        photos = Table(
            "photos",
            MetaData(),
            Column("id", BigInteger, TicketSequence(), primary_key=True),
            Column("title", String(100)),
        )
        pools = [TicketPool(list(u), stride=stride, name=name) for name, u in urls.items()]
        for pool in pools:
            pool.attach(photos.metadata)
        writer = Writer(shard, lambda on: on.execute(insert(photos)), pools)
        self.writers.append(writer)
        return writer

    def go_on(self) -> None:
        for writer in self.writers:
            writer.go_on()

    # -- steps

    def does(self, changes: int, command: str, *arguments: str, shards: bool = True) -> None:
        """Do a step of the handbook: killed at one of so many changes, and done again."""
        words = [command, *arguments, "--config", str(self.config)]
        words += self._of_shards if shards else []
        self._twice(changes, "sqla-tickets", words, self.folder)

    def migrates(self, changes: int, project: Project) -> None:
        """Run the migrations of every shard: each is killed at one of so many changes, and done again."""
        ini = project.folder / "alembic.ini"
        before = ini.read_text()
        first = text_of(self.shards[0]).replace("%", "%%")
        for shard in self.shards:
            ini.write_text(before.replace(first, text_of(shard).replace("%", "%%")))
            self._twice(changes, "alembic", ["upgrade", "head"], project.folder)
        ini.write_text(before)

    def _twice(self, changes: int, what: str, words: Sequence[str], folder: Path) -> None:
        at, is_sent = self.chance.randint(1, changes), self.chance.random() < 0.5
        killed, again = Step(what, words, folder, at=at, is_sent=is_sent), Step(what, words, folder)
        code, out, err = killed.go()
        self.log.append(f"{words[0]} {err.strip().splitlines()[-1]}")
        assert code == -9, f"seed {self.seed}: {words[0]} has less than {at} changes: {out}{err}"
        code, out, err = again.go()
        assert code == 0, (self.seed, self.log[-1], out, err)

    def audit(self, *pool: str, allowed: Sequence[str] = ()) -> None:
        """See that nothing is wrong on the shards but what is allowed."""
        done = run_cli("audit", *self._of_shards, "--config", str(self.config), *pool, "--json")
        (report,) = done.json["audit"]
        found = [a for a in report["anomalies"] if a["kind"] not in allowed]
        assert found == [], (self.seed, self.log[-1])

    def end(self) -> None:
        for writer in self.writers:
            writer.end()

    def check(self, rows: int) -> None:
        """See that no id is there twice, none is missing, and no insert has failed."""
        failures = [failure for writer in self.writers for failure in writer.failures]
        assert failures == [], (self.seed, self.log)
        ids = [row[0] for shard in self.shards for row in run(shard, "SELECT id FROM photos")]
        assert len(ids) == len(set(ids)) == rows + sum(w.rows for w in self.writers), self.seed


@pytest.fixture
def site(
    app_kind: str, shard_urls: list[URL], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> Iterator[Site]:
    site = Site(app_kind, shard_urls, tmp_path, random.randrange(2**32))
    for number, shard in enumerate(shard_urls):
        first = 1 + number * APART
        run(shard, *(statement.format(first=first, rows=ROWS) for statement in FILL[app_kind]))
    yield site
    site.end()
    with capsys.disabled():
        inserted = sum(writer.rows for writer in site.writers)
        print(f"\n{app_kind}, seed {site.seed}: {inserted:,} rows; " + "; ".join(site.log))


def fresh(servers: ServerFixtures, kind: str, count: int) -> list[URL]:
    return [servers.fresh_database(servers.shared(kind, n % 2)) for n in range(count)]


def set_back(server: MySQLLike, site: Site, pool: str) -> None:
    """Kill a ticket server, and begin again with a copy of its data that lacks the last hour."""
    server.stop()
    server.copy_data()
    server.start()
    site.go_on()
    wait_for_all(site, pool)
    server.kill()
    site.go_on()
    server.restore_data()
    server.start()
    site.go_on()


def wait_for_all(site: Site, pool: str) -> None:
    """Wait until every writer has been given tickets by the first server of a pool again."""
    for writer in site.writers:
        (of_writer,) = (p for p in writer.pools if p.name == pool)
        table = of_writer.servers[0].table("photos")
        before = table.draws
        until(lambda t=table, b=before: t.draws > b + 5, PATIENCE)  # type: ignore[misc]  # bound now


@pytest.mark.app_databases("mariadb")
def test_take_over_to_restore_with_the_page_s_stride(
    site: Site, servers: ServerFixtures, tmp_path: Path
) -> None:
    """Take-over, raise, audit, grow by one, retire, move and restore, with a stride of 16."""
    first = servers.new_mariadb()
    default = fresh(servers, site.kind, 3)
    media = [servers.fresh_database(first), *fresh(servers, site.kind, 2)[1:]]
    with contextlib.ExitStack() as ending:
        for number, shard in enumerate(site.shards):
            server = servers.shared(site.kind, number)
            assert isinstance(server, MySQLLike)
            defaults = {"auto_increment_increment": 1, "auto_increment_offset": 1}
            ending.enter_context(setting(server, **defaults))
            count_apart(server, shard, number)
        by_itself = text("INSERT INTO photos (title) VALUES ('old')")
        old = [Writer(shard, lambda on: on.execute(by_itself)) for shard in site.shards]
        for writer in old:
            ending.callback(writer.end)

        project = Project(tmp_path / "project")
        project.set_up(site.shards[0], default[:2])
        ini = project.folder / "alembic.ini"
        project.replace(ini, ("ticket_servers =", "ticket_stride = 16\nticket_servers ="))
        assert GENERATED in project.revision("tickets")
        created = CREATED.replace("SHARD1, SHARD2", repr([*map(text_of, site.shards)])[1:-1])
        project.replace(project.file("tickets"), (GENERATED, created))
        site.migrates(8, project)
        site.configure(16, default=default[:2], media=media)
        site.writes(16, default=default[:2], media=media)
        site.go_on()
        for writer in old:  # which run ahead of the tickets
            writer.go_on(100)
            writer.end()
        project.run("revision", "-m", "explicit")
        upgrade = "def upgrade() -> None:\n"
        project.replace(
            project.file("explicit"), (upgrade, f"{upgrade}    {ALTERED}\n    return\n")
        )
        site.migrates(2, project)
    assert [failure for writer in old for failure in writer.failures] == []
    site.audit(allowed=["unowned"])

    site.does(2, "raise")
    site.audit()
    site.does(4, "grow", "--add", text_of(default[2]))
    site.configure(16, default=default, media=media)
    site.audit()
    site.writes(16, default=default, media=media)
    site.go_on()
    site.does(14, "retire")
    site.configure(16, default=default[:2], media=media)
    site.audit()
    site.go_on()
    site.does(24, "move", "photos", "--to", "media", shards=False)
    site.audit("--pool", "media")
    site.go_on()
    restore(site, first, "media")
    site.end()
    site.check(2 * ROWS + sum(writer.rows for writer in old))


def restore(site: Site, first: MySQLLike, pool: str) -> None:
    """A ticket server comes back without the last hour, and is put right while all insert."""
    set_back(first, site, pool)
    site.does(4, "restore", "--offset", "1", "--pool", pool)
    site.audit("--pool", pool)
    for writer in site.writers:
        (of_writer,) = (p for p in writer.pools if p.name == pool)
        of_writer.unquarantine("photos")
    wait_for_all(site, pool)
    site.audit("--pool", pool)
