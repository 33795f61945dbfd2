"""``sqla-tickets status``, and what every command has in common."""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import socket
import subprocess
import sys
import threading
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import URL, create_engine

from sqla_tickets import (
    NodeLeases,
    SnowflakeGenerator,
    TicketIntegrityError,
    TicketPool,
    TicketServer,
    TicketsExhausted,
)
from sqla_tickets.connect.connection import Connection
from sqla_tickets.draw.table_state import TicketTable
from sqla_tickets.maintenance import operations, tombstones
from tests.support.command_line import options, run_cli
from tests.support.draws import FLICKRS_TABLE, OpenPool, draw_from, run, setting, until
from tests.support.load import publish_marks
from tests.support.servers import PASSWORD, MySQLLike, ServerFixtures
from tests.support.set_back import SET_BACK
from tests.support.terminal import in_a_terminal, read_until


def test_it_shows_every_server_of_every_sequence(pool: TicketPool, on: list[str]) -> None:
    pool.create_table("people", bits=32, layout="counter")
    drawn = [*pool.next_ids("photos", 10), *draw_from(pool, 1), *draw_from(pool, 2)]
    done = run_cli("status", *on, "--json", "--over", 0)
    assert done.code == 0, done.text
    found = done.json["status"]
    assert [(s["sequence"], s["offset"]) for s in found] == [
        ("people", 1),
        ("people", 2),
        ("photos", 1),
        ("photos", 2),
    ]
    assert {s["bits"] for s in found} == ({32, 64})
    for s in found[2:]:
        assert s["last_ticket"] == max(d for d in drawn if (d - s["offset"]) % 2 == 0)
        assert s["capacity_left"] == (2**63 - 1 - s["last_ticket"]) // 2
        assert s["left_in_javascript"] == (2**53 - 1 - s["last_ticket"]) // 2
        assert s["rate"] is None
    numbers = [s["last_ticket"] for s in found[2:]]
    assert [s["lead"] for s in found[2:]] == [n - min(numbers) for n in numbers]


@pytest.mark.ticket_servers("sqlite")
def test_the_command_and_the_pool_agree(pool: TicketPool, on: list[str]) -> None:
    """Apart from what only this process knows: what it has drawn and buffered."""
    pool.next_ids("photos", 10)
    own = {"buffered", "draws", "errors"}
    listed = run_cli("status", *on, "--json", "--over", 0).json["status"]
    for found, told in zip(map(asdict, pool.status()), listed, strict=True):
        assert own < found.keys() < told.keys()
        assert {n: v for n, v in found.items() if n not in own} == {
            n: told[n] for n in found if n not in own
        }


def test_the_table_for_people_has_the_same(pool: TicketPool, on: list[str]) -> None:
    last = max(pool.next_ids("photos", 1500))
    done = run_cli("status", *on, "--over", 0)
    assert done.code == 0
    assert "photos" in done.text
    assert "1 of 2" in done.text
    assert f"{last:,}" in done.text
    lines = done.text.splitlines()
    assert lines[0] == "2 of 2 ticket servers are UP. Ids are issued."
    assert lines == [line.rstrip() for line in lines], "a pipe gets no blanks that fill a line"


@pytest.mark.ticket_servers("sqlite")
@pytest.mark.parametrize("option", [[], ["--wide"]])
def test_a_terminal_of_80_columns_shows_them_all_when_it_is_asked_to(
    option: list[str], pool: TicketPool, on: list[str]
) -> None:
    last = max(pool.next_ids("photos", 1_000_000))
    arguments = ["status", *on, "--over", "0", *option]
    with in_a_terminal([sys.executable, "-m", "sqla_tickets.cli", *arguments], 80) as (_, terminal):
        seen = read_until(terminal, f"{last:,}")
    assert ("below 2^53" in seen) == bool(option)


@pytest.mark.ticket_servers("sqlite")
def test_each_state_of_a_table(
    pool: TicketPool, ticket_urls: list[URL], on: list[str], tmp_path: Path
) -> None:
    """A server that answers is not DOWN, whatever its tables are."""
    names = ("missing", "other", "old", "refused", "closing", "gone", "dropped", "renamed")
    first, second = pool.servers
    for name in names:
        pool.create_table(name)
        second.draw(name, 50)
    with TicketPool([f"sqlite:///{tmp_path}/media.db"], stride=2, name="media") as media:
        operations.move(pool, "gone", media)
    operations.drop(pool, "dropped")
    operations.rename(pool, "renamed", "new")
    closed = tombstones.Destination("converting", "default", "closing")
    second.do("closing", tombstones.close, "closing", closed)
    run(ticket_urls[1], "DROP TABLE missing", "DROP TABLE other", "CREATE TABLE other (x INT)")
    run(ticket_urls[1], "UPDATE old SET id = 2", "UPDATE refused SET id = 2")
    with pytest.raises(TicketIntegrityError):
        second.draw("refused", 1)
    assert {s.state for s in pool.status(["refused"]) if s.sequence == "refused"} == {
        "up",
        "quarantined",
    }

    def refused() -> int:
        return (pool._marks.of("refused").kept_by(first) or {})[2]

    until(lambda: second.is_raised_fence(refused()))
    listed = run_cli("status", *on, "--over", 0, "--json")
    assert listed.code == 1
    assert {s["sequence"]: s["state"] for s in listed.json["status"] if s["offset"] == 2} == {
        "photos": "up",
        "new": "up",
        "missing": "no table",
        "other": "unfit",
        "old": "set back",
        "refused": "quarantined",
        "closing": "closed",
        "gone": "moved",
    }
    text = run_cli("status", *on, "--over", 0).text
    assert "Ids are still issued." in text.splitlines()[0]
    assert "DOWN" not in text
    for state in ("UP", "NO TABLE", "UNFIT", "SET BACK", "QUARANTINED", "CLOSED", "MOVED"):
        assert state in text
    moved = run_cli("status", *on, "--over", 0, "gone", "--json").json["status"]
    assert {s["state"] for s in moved if s["sequence"] == "gone"} == {"moved"}


def test_a_table_at_the_number_that_peers_refuse_is_up(
    pool: TicketPool, ticket_kind: str, ticket_urls: list[URL], on: list[str]
) -> None:
    """What a client raised the mark to is another server's number; the table stops one below it."""
    first, second = pool.servers
    first.draw("photos", 50)
    how = (
        "truncated and given a row"
        if ticket_kind in ("mariadb", "mysql")
        else "counter row lowered"
    )
    run(ticket_urls[0], *SET_BACK[how][1])
    with pytest.raises(TicketIntegrityError, match=r"sqla-tickets restore --offset 1 .*or raise"):
        first.draw("photos", 1)

    def refused() -> int:
        return (pool._marks.of("photos").kept_by(second) or {})[1]

    until(lambda: first.is_raised_fence(refused()))
    assert run_cli("raise", "photos", "--above", refused() - 2, *on).code == 3
    assert run_cli("status", *on, "--over", 0).code == 1
    with pytest.raises(TicketIntegrityError):
        pool.unquarantine("photos")
    done = run_cli("raise", "photos", "--above", refused(), *on)
    assert done.code == 0, done.text
    assert first.last_ticket("photos") == refused() - 1
    assert run_cli("status", *on, "--over", 0).code == 0
    pool.unquarantine("photos")
    assert first.draw("photos", 1)[0][0] > refused()


@pytest.mark.ticket_servers("sqlite", "mariadb", "postgresql")
@pytest.mark.parametrize(
    ("bits", "fix"),
    [(32, "Widen the table and the application's columns"), (64, "Begin another sequence.")],
)
def test_sequence_without_a_number_left_is_used_up(
    ticket_urls: list[URL], open_pool: OpenPool, on: list[str], bits: int, fix: str
) -> None:
    """The servers answer, but every draw fails."""
    pool = open_pool(ticket_urls)
    end = 2**32 - 1 if bits == 32 else 2**63 - 1
    pool.create_table("photos", bits=bits, start=end - 9)
    assert run_cli("status", *on, "--over", 0).code == 0
    with pytest.raises(TicketsExhausted):
        until(lambda: pool.next_id("photos") < 0)
    done = run_cli("status", *on, "--over", 0)
    assert done.code == 1
    assert done.text.startswith("2 of 2 ticket servers are USED UP. No ids are issued.")
    assert " ".join(done.text.split()).count(f"largest that its column holds. Do: {fix}") == 2
    assert {s.state for s in pool.status()} == {"used up"}


@pytest.mark.ticket_servers("sqlite")
def test_draws_between_two_questions_are_no_set_back(
    pool: TicketPool, ticket_urls: list[URL], on: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table is read before its marks, which clients have raised since."""
    ask_peers = TicketServer.ask_peers

    def ask(self: TicketServer, table: TicketTable, *more: Any) -> None:
        if self.offset == 1 and self not in pool.servers:
            pool.servers[0].draw("photos", 50)
            publish_marks(pool, ticket_urls[1], "photos")
        ask_peers(self, table, *more)

    with monkeypatch.context() as patch:
        patch.setattr(TicketServer, "ask_peers", ask)
        listed = run_cli("status", *on, "--over", 0, "--json").json["status"]
    assert [s["state"] for s in listed] == ["up", "up"]
    assert listed[0]["high_water_mark"]


@pytest.mark.ticket_servers("sqlite")
def test_a_pool_that_every_sequence_has_left(
    pool: TicketPool, on: list[str], tmp_path: Path
) -> None:
    with TicketPool([f"sqlite:///{tmp_path}/media.db"], stride=2, name="media") as media:
        operations.move(pool, "photos", media)
    done = run_cli("status", *on, "--over", 0)
    assert done.code == 0
    assert "Every sequence has MOVED." in done.text
    assert done.text.count("'photos' of the pool 'media'") == 1
    assert ", ".join(map(str, pool.servers)) in done.text


def test_tombstone_of_a_backup_from_before_the_way_back_is_a_problem(
    pool: TicketPool, on: list[str], tmp_path: Path
) -> None:
    moved = tombstones.Destination("moved", "media", "photos")
    pool.servers[1].do("photos", tombstones.close, "photos", moved)
    done = run_cli("status", *on, "--over", 0)
    assert done.code == 1
    assert "1 of 2 ticket servers is CLOSED. Ids are still issued." in done.text
    again = "run the migration again, or the last move"
    assert again in " ".join(done.text.split())
    shard = URL.create("sqlite", database=f"{tmp_path}/shard.db")
    run(shard, "CREATE TABLE photos (id BIGINT PRIMARY KEY)")
    audited = run_cli("audit", *on, "--shard", str(shard), "--column", "photos.id")
    assert again in " ".join(audited.text.split())
    assert "--pool media" not in audited.text


@pytest.mark.ticket_servers("mariadb")
def test_a_table_that_another_session_holds(
    pool: TicketPool,
    ticket_urls: list[URL],
    servers: ServerFixtures,
    on: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each look at it takes a second: a migration has the patience to look thirty times."""
    connected = count_connects(monkeypatch)
    with servers.mariadb(1).administrator() as cursor:
        cursor.execute(f"LOCK TABLES `{ticket_urls[1].database}`.photos WRITE")
        done = run_cli("status", *on, "--over", 0.01)
        of_status = connected[2]
        examined = run_cli("doctor", *on, "--json").json["findings"]
        cursor.execute("UNLOCK TABLES")
    assert done.code == 1
    assert done.text.startswith("1 of 2 ticket servers is BUSY. Ids are still issued.")
    assert "another session holds the ticket table" in done.text.lower()
    codes = {f["code"]: f["severity"] for f in examined}
    assert codes["table-busy"] == "stops"
    assert "table-unfit" not in codes
    (busy,) = (f for f in examined if f["code"] == "table-busy")
    assert "find the backup" not in busy["why"], "what to do is in `fix`"
    assert of_status <= 12
    assert connected[2] - of_status <= 12


def count_connects(monkeypatch: pytest.MonkeyPatch) -> Counter[int | None]:
    """How often a connection to each server is asked for from now on, by its offset."""
    asked: Counter[int | None] = Counter()
    connect = TicketServer.connect

    def counted(self: TicketServer, *, afresh: bool = False) -> Connection:
        asked[self.offset] += 1
        return connect(self, afresh=afresh)

    monkeypatch.setattr(TicketServer, "connect", counted)
    return asked


@pytest.mark.ticket_servers("mariadb", "postgresql")
def test_a_server_that_refuses_the_password_is_not_down(
    pool: TicketPool, ticket_urls: list[URL]
) -> None:
    urls = [ticket_urls[0], ticket_urls[1].set(password="another")]
    done = run_cli("status", *options(urls), "--over", 0)
    assert done.text.startswith("1 of 2 ticket servers has NO LOGIN. Ids are still issued.")
    assert "DOWN" not in done.text
    for shown in (done, run_cli("doctor", *options(urls))):
        text = " ".join(shown.text.split())
        assert "The server refuses this user" in text
        assert (
            "Do: Check the user, the password and the database in the server's URL. On a new server"
            in text
        )
        assert "missing privilege" not in text


@pytest.mark.ticket_servers("mariadb")
def test_password_in_the_drivers_own_file(
    pool: TicketPool, ticket_urls: list[URL], tmp_path: Path
) -> None:
    (tmp_path / "my.cnf").write_text(f"[client]\npassword={ticket_urls[0].password}\n")
    file = {"read_default_file": str(tmp_path / "my.cnf")}
    urls = [
        URL.create(u.drivername, u.username, None, u.host, u.port, u.database, file)
        for u in ticket_urls
    ]
    assert run_cli("status", *options(urls), "--over", 0).code == 0


def test_the_rate_and_the_day_of_the_end(pool: TicketPool, on: list[str]) -> None:
    ends = {"small": 2**32 - 1, "in_javascript": 2**53 - 1, "large": 2**63 - 1}
    for name, end in ends.items():
        pool.create_table(name, bits=32 if name == "small" else 64, start=end - 2_000_000)
    over = threading.Event()

    def draw() -> None:
        while not over.wait(0.01):
            for name in ends:
                pool.next_ids(name, 20)

    drawing = threading.Thread(target=draw)
    drawing.start()
    busy: list[dict[str, Any]] = []
    today: set[dt.date] = set()
    others: list[dict[str, Any]] = []
    try:
        for _ in range(20):  # a busy machine may draw nothing for a while
            today = {dt.datetime.now(dt.timezone.utc).date()}
            found = run_cli("status", *on, "--json", "--over", 0.5).json["status"]
            busy = [s for s in found if s["sequence"] in ends]
            others = [s for s in found if s["sequence"] not in ends]
            if all(s["rate"] > 0 for s in busy):
                break
    finally:
        over.set()
        drawing.join()
    today.add(dt.datetime.now(dt.timezone.utc).date())
    assert len(busy) == 6
    for s in busy:
        ahead = ends[s["sequence"]] - s["last_ticket"]
        left = s["left_in_javascript" if s["sequence"] == "in_javascript" else "capacity_left"]
        assert left == ahead // 2
        days = {str(day + dt.timedelta(seconds=left / s["rate"])) for day in today}
        if s["sequence"] == "in_javascript":
            assert s["runs_out_in_javascript"] in days
            assert s["runs_out"] is None
        else:
            assert s["runs_out"] in days
            assert s["runs_out_in_javascript"] is None
            assert s["left_in_javascript"] == (None if s["sequence"] == "small" else 0)
    assert others
    for s in others:
        assert s["rate"] == 0
        assert (s["runs_out"], s["runs_out_in_javascript"]) == (None, None)


def test_who_leases_which_node_number(
    open_pool: OpenPool, ticket_urls: list[URL], on: list[str]
) -> None:
    pool = open_pool(ticket_urls)
    pool.create_table("photos")
    assert run_cli("status", *on, "--json", "--over", 0).json["nodes"] == []
    assert "leased by" not in run_cli("status", *on, "--over", 0).text
    NodeLeases(pool).create_table()
    for _ in range(2):
        with TicketPool(ticket_urls) as other:
            SnowflakeGenerator(other, "events").next_id()
    with TicketPool(ticket_urls) as other:
        NodeLeases(other, duration=600)
        SnowflakeGenerator(other, "events").next_id()
        shown = run_cli("status", *on, "--over", 0)
        listed = run_cli("status", *on, "--json", "--over", 0)
    assert (shown.code, listed.code) == (0, 0)
    found = listed.json["nodes"]
    (live,) = (node for node in found if node["is_live"])
    assert set(live) == {"pool", "node", "server", "holder", "is_live", "expires", "horizon"}
    assert live["pool"] == "default"
    assert live["holder"] == f"{socket.gethostname()}:{os.getpid()}"
    assert live["server"] in map(str, pool.servers)
    begin, end = map(dt.datetime.fromisoformat, (live["horizon"], live["expires"]))
    assert abs(end - begin) < dt.timedelta(minutes=5)
    until = dt.datetime.fromisoformat(live["expires"]).isoformat(" ", "seconds")
    assert f"{socket.gethostname()}:{os.getpid()}" in shown.text
    assert until in shown.text
    free = len(found) - 1
    assert (f"without an owner: {free}" in shown.text) == bool(free)
    assert [s["sequence"] for s in listed.json["status"]] == ["photos", "photos"]
    gone = run_cli("status", *on, "--json", "--over", 0).json["nodes"]
    assert len(gone) == len(found)
    assert not any(node["is_live"] for node in gone)


@pytest.mark.ticket_servers("sqlite")
def test_watching_until_ctrl_c(pool: TicketPool, on: list[str]) -> None:
    last = max(pool.next_ids("photos", 1_000_000))
    command = [sys.executable, "-m", "sqla_tickets.cli", "status", *on, "--watch", "--over", "0.2"]
    with in_a_terminal(command) as (process, terminal):
        seen = read_until(terminal, f"{last:,}")
        assert "\x1b[?1049h" in seen, "the screen of before is to come back"
        later = max(pool.next_ids("photos", 500_000))
        read_until(terminal, f"{later:,}")
        os.write(terminal, b"\x03")
        read_until(terminal, "\x1b[?1049l")
        assert process.wait(60) == 0


@pytest.mark.ticket_servers("mariadb", "mysql")
def test_a_foreign_table_is_shown_when_it_is_named(ticket_urls: list[URL], on: list[str]) -> None:
    for number, url in enumerate(ticket_urls, 1):
        table = FLICKRS_TABLE.format(name="Tickets64", engine="InnoDB")
        run(url, table, f"INSERT INTO `Tickets64` VALUES ({100 + number}, 'a')")
    assert run_cli("status", *on, "--json", "--over", 0).json["status"] == []
    found = run_cli("status", "Tickets64", *on, "--json", "--over", 0).json["status"]
    assert [s["last_ticket"] for s in found] == [101, 102]
    assert all(s["is_foreign"] for s in found)


@pytest.mark.ticket_servers("mariadb")
def test_a_server_that_is_down_is_shown_and_told_by_the_exit_code(
    pool: TicketPool, ticket_urls: list[URL], servers: ServerFixtures
) -> None:
    servers.mariadb(1).kill()
    for output in ([], ["--json"]):
        done = run_cli("status", *options(ticket_urls), "--over", 0, *output)
        assert done.code == 1
        assert PASSWORD not in done.text
    up = {s["offset"]: (s["up"], s["error"]) for s in done.json["status"]}
    assert up[1] == (True, None)
    assert up[2][0] is False
    assert {s["offset"]: s["state"] for s in done.json["status"]} == {1: "up", 2: "down"}
    assert str(servers.mariadb(1).port) in up[2][1]


@pytest.mark.ticket_servers("sqlite")
def test_status_shows_the_mark_of_a_server_that_is_down(
    pool: TicketPool, ticket_urls: list[URL]
) -> None:
    last = pool.servers[1].draw("photos", 50)[-1][-1]
    pool._marks.flush()
    nowhere = URL.create("mysql+pymysql", "u", PASSWORD, "127.0.0.1", 1, "x")
    listed = run_cli("status", *options([ticket_urls[0], nowhere]), "--over", 0, "--json")
    down = listed.json["status"][1]
    assert (down["state"], down["high_water_mark"]) == ("down", last)


@pytest.mark.ticket_servers("mariadb", "mysql", "postgresql")
def test_a_server_that_takes_no_writes_is_not_up_without_a_word(
    pool: TicketPool, ticket_kind: str, ticket_urls: list[URL], servers: ServerFixtures
) -> None:
    second = servers.shared(ticket_kind, 1)
    with contextlib.ExitStack() as until_then:
        if isinstance(second, MySQLLike):
            until_then.enter_context(setting(second, read_only=1))
        else:
            database = f'"{ticket_urls[1].database}"'
            with servers.postgresql().administrator() as cursor:
                cursor.execute(
                    f"ALTER DATABASE {database} SET default_transaction_read_only = on".encode()
                )
        done = run_cli("status", *options(ticket_urls), "--over", 0)
        listed = run_cli("status", *options(ticket_urls), "--over", 0, "--json")
    assert (done.code, listed.code) == (1, 1)
    assert done.text.count("READ-ONLY") == 3
    assert done.text.startswith("1 of 2 ticket servers is READ-ONLY. Ids are still issued.")
    assert [(s["up"], s["is_read_only"]) for s in listed.json["status"]] == [
        (True, False),
        (True, True),
    ]


@pytest.mark.ticket_servers("mariadb", "mysql", "postgresql")
def test_a_server_without_the_database_is_not_down(
    pool: TicketPool, ticket_kind: str, ticket_urls: list[URL], servers: ServerFixtures
) -> None:
    """The users are there already, and the dump is not loaded yet."""
    second = servers.shared(ticket_kind, 1)
    assert ticket_urls[1].database
    pool.dispose()
    second.drop_database(ticket_urls[1].database)
    done = run_cli("status", *options(ticket_urls), "--over", 0)
    examined = run_cli("doctor", *options(ticket_urls))
    assert (done.code, examined.code) == (1, 1)
    assert done.text.startswith("1 of 2 ticket servers has NO DATABASE. Ids are still issued.")
    for text in (done.text, examined.text):
        assert "It has no such database" in text
        assert "create the users, load the backup, then run sqla-tickets restore --offset 2" in text
        assert "Start" not in text


@pytest.mark.ticket_servers("sqlite")
@pytest.mark.parametrize("command", [["status", "--over", "0.01"], ["doctor"], ["metrics"]])
def test_a_server_that_is_down_is_not_waited_for_again_and_again(
    command: list[str], pool: TicketPool, ticket_urls: list[URL], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that hangs costs seconds each time, while somebody waits who was called at night."""
    for n in range(9):
        pool.create_table(f"photos{n}")
    asked = count_connects(monkeypatch)
    nowhere = URL.create("mysql+pymysql", "u", PASSWORD, "127.0.0.1", 1, "x")
    assert run_cli(*command, *options([ticket_urls[0], nowhere])).code == 1
    assert asked[1] >= 10
    assert asked[2] <= 5


def test_no_server_is_up(tmp_path: Path) -> None:
    """Nobody can tell then which sequences there are, and all is not well."""
    nowhere = [URL.create("mysql+pymysql", "u", PASSWORD, "127.0.0.1", n, "x") for n in (1, 2)]
    done = run_cli("status", *options(nowhere), "--over", 0)
    assert done.code == 1
    assert done.text.count("DOWN") == 5
    assert done.text.startswith("2 of 2 ticket servers are DOWN. No ids are issued.")
    assert PASSWORD not in done.text
    listed = run_cli("status", *options(nowhere), "--over", 0, "--json")
    assert listed.code == 1
    assert [(s["sequence"], s["offset"], s["up"]) for s in listed.json["status"]] == [
        ("", 1, False),
        ("", 2, False),
    ]
    assert run_cli("metrics", *options(nowhere)).code == 1
    # one that is up and has no sequence yet
    empty = URL.create("sqlite", database=str(tmp_path / "empty.db"))
    done = run_cli("status", *options([empty, nowhere[1]]), "--over", 0, "--json")
    assert (done.code, [s["offset"] for s in done.json["status"]]) == (1, [2])
    assert run_cli("status", *options([empty]), "--over", 0).code == 0


def test_servers_are_found_where_the_migrations_find_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ALEMBIC_CONFIG", raising=False)
    nothing = run_cli("status")
    assert nothing.code == 2
    assert "ticket_servers" in nothing.text
    assert "SQLA_TICKETS_SERVERS (URLs separated by spaces)" in nothing.text
    (tmp_path / "alembic.ini").write_text(
        "[alembic]\nticket_servers = sqlite:///${WHERE}/a.db sqlite:///${WHERE}/b.db\n"
        "[ticket_pools.media]\nservers = sqlite:///${WHERE}/c.db\nstride = 4\n"
    )
    unset = run_cli("status")
    assert unset.code == 3
    assert "WHERE" in unset.text
    monkeypatch.setenv("WHERE", str(tmp_path))
    for name, files in (("default", "ab"), ("media", "c")):
        stride = 4 if name == "media" else None
        urls = [f"sqlite:///{tmp_path}/{file}.db" for file in files]
        with TicketPool(urls, stride=stride, name=name) as pool:
            pool.create_table("photos")
    found = run_cli("status", "--json", "--over", 0).json["status"]
    assert [(s["pool"], s["stride"]) for s in found] == [
        ("default", 2),
        ("default", 2),
        ("media", 4),
    ]
    (only,) = run_cli("status", "--json", "--over", 0, "--pool", "media").json["status"]
    assert only["pool"] == "media"
    assert run_cli("status", "--pool", "nowhere").code == 2
    (tmp_path / "other.toml").write_text(
        f"[tool.alembic]\nticket_servers = ['sqlite:///{tmp_path}/a.db']\n"
    )
    assert run_cli("status", "--config", "other.toml", "--json", "--over", 0).code == 1
    assert run_cli("status", "--config", "nowhere.ini").code == 3


def test_wrong_usage_has_a_code_of_its_own() -> None:
    assert run_cli("status", "--nonsense").code == 2


def test_an_error_is_json_too(on: list[str]) -> None:
    done = run_cli("status", *on, *on, "--stride", 1, "--json")
    assert done.code == 3
    assert done.json["kind"] == "TicketArgumentError"


def test_without_its_extra_it_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "rich.py").write_text("raise ModuleNotFoundError(name='rich')\n")
    root = Path(__file__).parents[3]
    done = subprocess.run(
        [sys.executable, "-m", "sqla_tickets.cli", "status"],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{root}"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 3
    assert done.stderr == "sqla-tickets needs rich: pip install 'sqla-tickets[cli]'\n"


def test_the_library_does_not_import_it(open_pool: OpenPool) -> None:
    code = (
        "import sys, sqla_tickets, alembic_ext; "
        "assert not {'click', 'rich', 'sqla_tickets.cli'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_server_that_is_restored_from_before_a_move_has_its_last_move_repeated(
    tmp_path: Path,
) -> None:
    """The pool that has the sequence now issues its ids."""
    files = [tmp_path / f"{name}.db" for name in "abcd"]
    urls = [URL.create("sqlite", database=str(file)) for file in files]
    with TicketPool(urls[:2]) as pool, TicketPool(urls[2:], name="media") as media:
        pool.create_table("photos")
        draw_from(pool, 1)
        backup = files[0].read_bytes()
        draw_from(pool, 2, 5)
        operations.move(pool, "photos", media)
    files[0].write_bytes(backup)
    config = tmp_path / "pools.toml"
    config.write_text(
        f"[tool.alembic]\nticket_servers = {[str(url) for url in urls[:2]]}\n"
        f"[tool.alembic.ticket_pools.media]\nservers = {[str(url) for url in urls[2:]]}\n"
    )
    shown = run_cli("status", "--config", str(config), "--over", 0)
    assert "is SET BACK. Ids are still issued." in shown.text
    shard = f"sqlite:///{tmp_path / 'shard.db'}"
    engine = create_engine(shard)
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE photos (id INTEGER PRIMARY KEY)")
    engine.dispose()
    doctor = run_cli("doctor", "--config", str(config))
    audit = run_cli("audit", "--config", str(config), "--shard", shard)
    for command in (shown, doctor, audit):
        text = " ".join(command.text.split())
        assert "Repeat the move, rename or migration that took the sequence from here." in text
        assert "sqla-tickets restore" not in text
