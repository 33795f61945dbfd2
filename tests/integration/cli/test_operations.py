"""What ``sqla-tickets`` changes, each with its plan, its dry run and its proof."""

from __future__ import annotations

import contextlib
import re
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import URL, create_engine
from sqlalchemy.pool import NullPool

from sqla_tickets import TicketPool, TicketTableMissing, TicketTableMoved
from sqla_tickets.high_water.statements import MARKS
from sqla_tickets.maintenance import operations
from tests.support.command_line import Done, options, run_cli
from tests.support.draws import OpenPool, assert_unique, draw_from, run
from tests.support.servers import ServerFixtures
from tests.support.terminal import in_a_terminal, read_until

SQLITE = pytest.mark.ticket_servers("sqlite")


def last_tickets(on: list[str]) -> list[int]:
    found = run_cli("status", *on, "--json", "--over", 0).json["status"]
    return [s["last_ticket"] for s in found if s["sequence"] == "photos"]


def dry_and_done(*arguments: str | float, on: list[str]) -> Done:
    """Run it as a rehearsal, which changes nothing, and then for good."""
    before = last_tickets(on)
    rehearsal = run_cli(*arguments, *on, "--dry-run", "--json")
    assert rehearsal.code == 0, rehearsal.text
    assert rehearsal.json["proof"] is None
    assert last_tickets(on) == before
    done = run_cli(*arguments, *on)
    assert done.code == 0, done.text
    for line in rehearsal.json["plan"]:
        assert f"- {line}\n" in done.text
    return done


def test_next_draws(pool: TicketPool, on: list[str]) -> None:
    drawn = pool.next_ids("photos", 5)
    before = last_tickets(on)
    assert run_cli("next", "photos", "-n", 3, "--dry-run", *on).code == 0
    assert last_tickets(on) == before
    printed = [int(line) for line in run_cli("next", "photos", "-n", 3, *on).text.split()]
    (block,) = run_cli("next", "photos", "-n", 3, "--json", *on).json["blocks"]
    ids = [*drawn, *printed, *range(block["first"], block["last"] + 1, block["step"])]
    assert len(set(ids)) == 11


@pytest.mark.every_kind
def test_next_of_an_unknown_sequence_says_once_what_to_do(pool: TicketPool, on: list[str]) -> None:
    refused = run_cli("next", "nowhere", *on)
    assert refused.code == 3
    assert refused.text.count("'nowhere'") == 1
    assert "sqla-tickets create nowhere" in refused.text
    assert "autogenerate" not in refused.text


@pytest.mark.every_kind
def test_a_missing_table_names_the_privileges_of_its_dialect(pool: TicketPool) -> None:
    with pytest.raises(TicketTableMissing) as caught:
        pool.next_id("nowhere")
    is_mysql = pool.servers[0].context.dialect.kind in ("mysql", "mariadb")
    assert ("LOCK TABLES" in str(caught.value)) is is_mysql
    assert "SELECT, INSERT, UPDATE" in str(caught.value)


@pytest.mark.ticket_servers("mariadb", "postgresql")
def test_a_refused_login_is_said_before_a_missing_table(
    pool: TicketPool, ticket_urls: list[URL]
) -> None:
    wrong = [url.set(password="another") for url in ticket_urls]
    for command in ("restore", "retire", "grow"):
        more = ["--finish"] if command == "grow" else []
        refused = run_cli(command, *more, *options(wrong))
        assert refused.code == 3
        assert "check the user, the password and the database in its URL" in refused.text


def test_raise(pool: TicketPool, on: list[str]) -> None:
    done = dry_and_done("raise", "photos", "--above", 5000, on=on)
    assert "from now on, every ticket of 'photos' is above 5000" in done.text
    assert min(pool.next_ids("photos", 3)) > 5000
    before = last_tickets(on)
    assert run_cli("raise", "photos", "--above", 10, *on).code == 0
    assert last_tickets(on) == before
    refused = run_cli("raise", "nowhere", "--above", 10, *on)
    assert refused.code == 3
    assert re.search(
        "there is no ticket table 'nowhere' on .*: first run sqla-tickets create", refused.text
    )


def shard_with(folder: Path, name: str, *ids: int) -> tuple[str, str]:
    """The option that names a new shard with these photos."""
    url = URL.create("sqlite", database=str(folder / name))
    run(url, "CREATE TABLE photos (id BIGINT NOT NULL PRIMARY KEY)")
    for number in ids:
        run(url, f"INSERT INTO photos VALUES ({number})")
    return "--shard", url.render_as_string(False)


def test_raise_above_the_shards(pool: TicketPool, on: list[str], tmp_path: Path) -> None:
    shards = (*shard_with(tmp_path, "one.db", 700, 8003), *shard_with(tmp_path, "two.db", 9))
    done = dry_and_done("raise", *shards, on=on)
    assert "the largest photos.id on sqlite" in done.text
    assert "all ids above 8003 on the shards are tickets" in done.text
    assert min(pool.next_ids("photos", 3)) > 8003
    # the larger of the two counts, and nothing is lowered
    assert run_cli("raise", "photos", "--above", 9010, *shards, *on).code == 0
    before = last_tickets(on)
    assert run_cli("raise", "photos", "--above", 10, *shards, *on).code == 0
    assert last_tickets(on) == before


@SQLITE
def test_a_named_column_leaves_those_of_other_sequences_known(
    pool: TicketPool, on: list[str], tmp_path: Path
) -> None:
    pool.create_table("people")
    shards = shard_with(tmp_path, "one.db", 8003)
    url = URL.create("sqlite", database=str(tmp_path / "one.db"))
    run(url, "CREATE TABLE members (id BIGINT PRIMARY KEY)", "INSERT INTO members VALUES (9001)")
    column = ["--column", "members.id=people"]
    for command in (["restore"], ["retire"], ["raise"]):
        planned = run_cli(*command, *shards, *column, *on, "--dry-run")
        assert "NOT KNOWN" not in planned.text
        assert "8003" in planned.text
        assert "9001" in planned.text


@SQLITE
def test_raise_without_what_it_needs_is_refused(
    pool: TicketPool, on: list[str], tmp_path: Path
) -> None:
    pool.create_table("people")
    shards = shard_with(tmp_path, "one.db", 8003)
    assert run_cli("raise", "photos", *on).code == 2
    assert run_cli("raise", "--above", 9, *on).code == 2
    refused = run_cli("raise", "people", *shards, "--column", "photos.id", *on)
    assert refused.code == 3
    assert "--column TABLE.COLUMN=people" in refused.text
    done = run_cli("raise", *shards, *on)
    assert done.code == 0, done.text
    assert "NOT KNOWN: the ids of 'people'" in done.text
    assert min(pool.next_ids("photos", 3)) > 8003


@SQLITE
def test_raise_while_others_insert_is_no_proof(
    pool: TicketPool, on: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An old process goes on above all that the tickets were raised above."""
    shards = shard_with(tmp_path, "one.db", 8003)
    shard = URL.create("sqlite", database=f"{tmp_path}/one.db")
    raised = TicketPool.raise_above

    def raise_above(self: TicketPool, sequence: str, above: int) -> None:
        raised(self, sequence, above)
        run(shard, f"INSERT INTO photos VALUES ({above + 16})")

    with monkeypatch.context() as patch:
        patch.setattr(TicketPool, "raise_above", raise_above)
        done = run_cli("raise", "photos", *shards, *on)
    assert done.code == 3
    assert "no ticket server issued" in done.text
    done = run_cli("raise", "photos", *shards, *on)
    assert done.code == 0, done.text
    assert run_cli("audit", *shards, *on).code == 0


def test_create(pool: TicketPool, on: list[str], ticket_urls: list[URL]) -> None:
    done = dry_and_done("create", "people", "--start", 700, "--layout", "counter", on=on)
    assert "from now on, every ticket of 'people' is above 699" in done.text
    assert min(pool.next_ids("people", 3)) >= 700
    again = run_cli("create", "people", *on)
    assert again.code == 0
    assert "verify 'people'" in again.text
    # on one server it was lost
    run(ticket_urls[0], "DROP TABLE photos")
    pool.next_ids("photos", 3)
    assert run_cli("create", "photos", *on).code == 0
    assert min(draw_from(pool, 1)[-1:]) > 5


@SQLITE
def test_create_of_a_lost_table_tells_where_it_begins(
    pool: TicketPool, on: list[str], ticket_urls: list[URL]
) -> None:
    """Above the peers' marks, which are above the numbers of all servers that are left."""
    pool.servers[1].draw("photos", 300_000)
    pool._marks.flush()
    run(ticket_urls[1], "DROP TABLE photos", f"DROP TABLE {MARKS}")
    dry = run_cli("create", "photos", "--dry-run", *on)
    (above,) = re.findall(r"create 'photos' on .*, 64 bits, above (\d+), or higher", dry.text)
    assert int(above) > 600_000
    assert operations.table_states(pool, "photos")[pool.servers[1]] is None
    done = run_cli("create", "photos", *on)
    assert done.code == 0, done.text
    created = pool.servers[1]
    assert f"every ticket of 'photos' from {created} is above {above}: the next is " in done.text
    (block,) = created.draw("photos", 1)
    assert int(above) < block[0] <= int(above) + 4


def test_move(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, open_pool: OpenPool) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ALEMBIC_CONFIG", raising=False)
    (tmp_path / "pyproject.toml").write_text(
        "[tool.alembic]\nticket_servers = ['sqlite:///a.db', 'sqlite:///b.db']\n"
        "[tool.alembic.ticket_pools.media]\nservers = ['sqlite:///c.db', 'sqlite:///d.db']\n"
        "[tool.alembic.ticket_pools.wide]\nservers = ['sqlite:///e.db']\nstride = 4\n"
    )
    old = open_pool(["sqlite:///a.db", "sqlite:///b.db"])
    old.create_table("photos")
    high = max(old.next_ids("photos", 50))
    assert run_cli("move", "photos", "--to", "media", "--dry-run").code == 0
    for unfit, why in (("wide", "both pools the same stride"), ("default", "to itself")):
        refused = run_cli("move", "photos", "--to", unfit, "--dry-run")
        assert refused.code != 0
        assert why in " ".join(refused.text.split())
    command = [sys.executable, "-m", "sqla_tickets.cli", "move"]
    with in_a_terminal([*command, "photos", "--to", "media"]) as (_, terminal):
        assert "Do this? [y/N]" in read_until(terminal, "[y/N]")
    high = max(high, *old.next_ids("photos", 1))
    done = run_cli("move", "photos", "--to", "media")
    assert done.code == 0, done.text
    found = re.search(r"no ticket of .* above (\d+), .* start at (\d+)", done.text)
    assert found
    assert high <= int(found[1]) < int(found[2])
    with pytest.raises(TicketTableMoved):
        old.next_id("photos")
    again = run_cli("move", "photos", "--to", "media", "--dry-run")
    assert "is already in the pool 'media'" in " ".join(again.text.split())
    (first,) = run_cli("next", "photos", "--pool", "media").text.split()
    assert int(first) > high
    refused = run_cli("move", "photos", "--to", "nowhere")
    assert refused.code == 2
    assert "a section [ticket_pools.nowhere]" in refused.text
    assert "env.py" not in refused.text


def test_pool_that_a_sequence_has_left_is_repaired(tmp_path: Path) -> None:
    """Once its first server was set back, and once it was lost."""
    files = {
        name: [tmp_path / f"{name}{n}.db" for n in (1, 2)] for name in ("old", "media", "third")
    }
    urls = {name: [f"sqlite:///{file}" for file in pair] for name, pair in files.items()}
    config = tmp_path / "pyproject.toml"
    config.write_text(
        f"[tool.alembic]\nticket_servers = {urls['old']}\n"
        f"[tool.alembic.ticket_pools.media]\nservers = {urls['media']}\n"
        f"[tool.alembic.ticket_pools.third]\nservers = {urls['third']}\n"
    )
    on = ("--config", str(config), "--pool")
    with TicketPool(urls["old"]) as pool:
        pool.create_table("photos")
        ids = pool.next_ids("photos", 9)
    backup = files["old"][0].read_bytes()
    assert run_cli("move", "photos", "--to", "media", *on, "default").code == 0
    assert run_cli("move", "photos", "--to", "third", *on, "media").code == 0

    files["old"][0].write_bytes(backup)
    assert "SET BACK" in run_cli("status", *on, "default").text
    again = run_cli("move", "photos", "--to", "media", *on, "default")
    assert again.code == 0, again.text
    assert "it has gone on from the pool 'media'" in again.text

    files["old"][0].write_bytes(b"")
    lost = run_cli("status", *on, "default").text
    assert "NO TABLE" in lost
    assert "sqla-tickets create photos" in " ".join(lost.split())
    created = run_cli("create", "photos", *on, "default")
    assert created.code == 0, created.text
    assert "'photos' has moved to 'photos' of the pool 'media'" in created.text
    for check in ("status", "doctor"):
        assert run_cli(check, *on, "default").code == 0

    for file in files["old"]:  # without a repair in between, so only the sequence's path shows it
        file.write_bytes(b"")
    created = run_cli("create", "photos", *on, "default")
    assert created.code == 0, created.text
    assert "'photos' has moved to 'photos' of the pool 'third'" in created.text
    with TicketPool(urls["old"]) as pool, pytest.raises(TicketTableMoved):
        pool.next_id("photos")
    with TicketPool(urls["third"], name="third") as third:
        assert_unique([*ids, *third.next_ids("photos", 9)])


class Application(threading.Thread):
    """Draws an id and inserts a row with it, again and again, with a pool of its own."""

    def __init__(self, tickets: list[URL], shard: URL) -> None:
        super().__init__()
        self.pool = TicketPool(tickets, hedge=False)
        self.ids: list[int] = []
        self.error: Exception | None = None
        self._shard = shard
        self._end = threading.Event()
        self.start()

    def run(self) -> None:
        engine = create_engine(self._shard, isolation_level="AUTOCOMMIT", poolclass=NullPool)
        try:
            with engine.connect() as connection:
                while not self._end.wait(0.002):
                    number = self.pool.next_id("photos")
                    connection.exec_driver_sql(f"INSERT INTO photos VALUES ({number})")
                    self.ids.append(number)
        except Exception as error:  # noqa: BLE001  # it is raised where it is ended
            self.error = error

    @property
    def has_quarantined(self) -> bool:
        return self.pool.servers[0].table("photos").state == "quarantined"

    def wait_for_ids(self, n: int, offset: int) -> None:
        """Wait until it has drawn some more from a server."""
        before = len(self.ids)
        wait_until(
            lambda: not self.is_alive() or sum(i % 2 == offset % 2 for i in self.ids[before:]) >= n
        )

    def end(self) -> None:
        self._end.set()
        self.join()
        self.pool.dispose()
        if self.error is not None:
            raise self.error


#: The status of a server that was set back: before and after clients have said so to its peers.
SET_BACK = re.compile("SET BACK|QUARANTINED")


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 90
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.ticket_servers("mariadb")
def test_a_server_is_set_back_under_a_running_application(
    servers: ServerFixtures, open_pool: OpenPool, caplog: pytest.LogCaptureFixture
) -> None:
    """It is quarantined without anybody's doing, put back by one command, and no id is there twice."""
    first, second = servers.new_mariadb(), servers.mariadb(1)
    urls = [servers.fresh_database(first), servers.fresh_database(second)]
    shard, on = servers.fresh_database(second), options(urls)
    open_pool(urls).create_table("photos")
    run(shard, "CREATE TABLE photos (id BIGINT PRIMARY KEY)")
    with contextlib.ExitStack() as ending:
        applications = [Application(urls, shard) for _ in range(2)]
        for application in applications:
            ending.callback(application.end)
            application.wait_for_ids(5, offset=1)
        first.stop()
        first.copy_data()
        first.start()
        for application in applications:  # the hour that will be lost
            application.wait_for_ids(100, offset=1)
        first.kill()
        first.restore_data()
        first.start()
        wait_until(lambda: all(application.has_quarantined for application in applications))
        before = max(i for application in applications for i in application.ids if i % 2)
        for application in applications:
            application.wait_for_ids(20, offset=2)
        wait_until(lambda: SET_BACK.search(run_cli("status", *on, "--over", 0).text) is not None)
        with pytest.raises(AssertionError, match="gave too little"):
            draw_on_first(open_pool(urls))  # nor does a new process draw from it

        shards = ("--shard", shard.render_as_string(False))
        assert_the_genuine_ids_stay_genuine(on, shards)
        raised = run_cli("raise", "photos", *shards, *on)
        assert raised.code == 3
        assert "Processes refuse its tickets up to" in raised.text
        assert "(offset 1)" not in "".join(re.findall("Done:.*", raised.text))
        rehearsal = run_cli("restore", "--offset", 1, *shards, *on, "--dry-run", "--json")
        assert rehearsal.json["proof"] is None
        assert any("the largest photos.id on" in line for line in rehearsal.json["plan"])
        assert any("the high-water mark of" in line for line in rehearsal.json["plan"])
        assert any(
            "raised by 100,000 tickets (200,000 numbers)" in line for line in rehearsal.json["plan"]
        )
        assert run_cli("status", *on, "--over", 0).code == 1
        done = run_cli("restore", "--yes", "--offset", 1, *shards, *on)
        assert done.code == 0, done.text
        assert re.search(r"every ticket of 'photos' from mysql\S+ \(offset 1\) is above", done.text)
        assert run_cli("status", *on, "--over", 0).code == 0
        assert all(application.has_quarantined for application in applications)
        assert "a rate/s above 0" in done.text
        for application in applications:
            application.pool.unquarantine("photos")
            assert "drawing again" in caplog.records[-1].getMessage()
            seen = len(application.ids)
            application.wait_for_ids(20, offset=1)
            assert min(i for i in application.ids[seen:] if i % 2) > before
    ids = sorted(i for application in applications for i in application.ids)
    assert [(i,) for i in ids] == run(shard, "SELECT id FROM photos ORDER BY id")
    assert run_cli("audit", *on, *shards).code == 0


def assert_the_genuine_ids_stay_genuine(on: list[str], shards: tuple[str, str]) -> None:
    """The audit goes by the peers' marks, too, and says how the server is put right."""
    (report,) = run_cli("audit", *on, *shards, "--json").json["audit"]
    assert [anomaly["kind"] for anomaly in report["anomalies"]] == ["set back"]
    text = " ".join(run_cli("audit", *on, *shards).text.split())
    assert "SET BACK mysql://" in text
    assert "sqla-tickets restore --offset 1 now, with the same --shard options" in text
    assert "sqla-tickets raise" not in text


def draw_on_first(pool: TicketPool) -> list[int]:
    ids = [pool.next_id("photos") for _ in range(20)]
    assert any(i % 2 for i in ids), f"the first server gave too little of {ids}"
    return ids


@SQLITE
def test_restore_goes_by_what_is_known(
    pool: TicketPool, on: list[str], tmp_path: Path, ticket_urls: list[URL]
) -> None:
    pool.raise_above("photos", 100)
    done = dry_and_done("restore", "--yes", "photos", "--margin", 50, on=on)
    assert "from now on, every ticket of 'photos' is above" in done.text
    assert min(pool.next_ids("photos", 2)) > 150
    shard = tmp_path / "shard.db"
    url = URL.create("sqlite", database=str(shard))
    run(url, "CREATE TABLE photos (id BIGINT PRIMARY KEY)", "INSERT INTO photos VALUES (98765)")
    arguments = ("restore", "photos", "--shard", f"sqlite:///{shard}", "--margin", 0)
    # one server alone, and only that
    assert run_cli(*arguments, "--offset", 2, *on).code == 0
    assert last_tickets(on)[0] < 98765 < last_tickets(on)[1] + 2
    refused = run_cli(*arguments, "--offset", 3, *on)
    assert refused.code == 3
    assert "no server with the offset 3: expected one of 1, 2" in refused.text
    # an empty table gets its number back
    run(ticket_urls[0], "DELETE FROM photos")
    assert run_cli(*arguments, *on).code == 0
    assert min(pool.next_ids("photos", 3)) > 98765


@SQLITE
def test_restore_says_what_is_recorded_nowhere(
    pool: TicketPool, ticket_urls: list[URL], tmp_path: Path
) -> None:
    """A server whose peer is down has nobody to say how far it had come, but the shards."""
    pool.create_table("people")
    pool.raise_above("photos", 100)
    down = URL.create("sqlite", database=f"{tmp_path}/no/where.db")
    on = options([ticket_urls[0], down])
    before = last_tickets(options(ticket_urls))
    for restored in (("--offset", 1), ()):
        refused = run_cli("restore", "--yes", "photos", *restored, *on)
        assert refused.code == 3
        assert "cannot be asked" in refused.text
    assert last_tickets(options(ticket_urls)) == before
    shard = URL.create("sqlite", database=str(tmp_path / "shard.db"))
    run(shard, "CREATE TABLE photos (id BIGINT PRIMARY KEY)", "INSERT INTO photos VALUES (98765)")
    shards = ("--shard", shard.render_as_string(False))
    done = run_cli("restore", "--yes", "photos", "--offset", 1, *shards, *on)
    assert done.code == 0, done.text
    assert f"NOT KNOWN: the high-water marks on sqlite:///{down.database}" in done.text
    assert "were not checked" not in done.text
    assert f"Next: sqlite:///{down.database} (offset 2) did not show high-water marks" in done.text
    without_offset = run_cli("restore", "photos", *shards, *on, "--dry-run")
    assert "this raises the servers that answer" in without_offset.text
    assert "give --offset 2" in without_offset.text
    assert "this raises" not in done.text
    assert last_tickets(options(ticket_urls))[0] > 98765
    done = run_cli("restore", "--yes", *shards, *options(ticket_urls))
    assert done.code == 0, done.text
    assert done.text.count("NOT KNOWN") == 1
    assert "did not show" not in done.text
    assert "--column TABLE.COLUMN=people" in done.text
    assert "Next: the ids of 'people' on the shards were not checked" in done.text
    assert "the ids of 'photos' on the shards were not" not in done.text


def test_a_server_that_is_down_stops_what_needs_all(tmp_path: Path) -> None:
    files = [tmp_path / "no/where.db", tmp_path / "other.db"]
    nowhere = [word for file in files for word in ("--server", f"sqlite:///{file}")]
    for command in (
        ["raise", "photos", "--above", "9"],
        ["create", "photos"],
        ["restore", "photos"],
    ):
        done = run_cli(*command, *nowhere)
        assert done.code == 3, done.text
        assert "Error: " in done.text


def test_restore_of_a_server_without_a_peer_is_refused(tmp_path: Path) -> None:
    """What it shows is what it came back with."""
    url = URL.create("sqlite", database=str(tmp_path / "alone.db"))
    with TicketPool([url]) as pool:
        pool.create_table("photos")
    done = run_cli("restore", "--yes", *options([url]), "photos")
    assert done.code == 3
    assert "it has no peer" in done.text
    assert "--shard" in done.text
