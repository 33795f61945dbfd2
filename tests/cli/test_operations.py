"""What ``sqla-tickets`` changes, each with its plan, its dry run and its proof."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from sqlalchemy import URL

from sqla_tickets import TicketPool, TicketTableMoved
from tests.cli.conftest import Done, options, run_cli
from tests.drawing.conftest import OpenPool
from tests.drawing.tools import draw_from, run
from tests.servers import Borrower

SQLITE = pytest.mark.ticket_servers("sqlite")


def standing(on: list[str]) -> list[int]:
    found = run_cli("status", *on, "--json", "--over", 0).json["status"]
    return [s["last_ticket"] for s in found if s["sequence"] == "photos"]


def dry_and_done(*arguments: str | float, on: list[str]) -> Done:
    """Run it as a rehearsal, which changes nothing, and then for good."""
    before = standing(on)
    rehearsal = run_cli(*arguments, *on, "--dry-run", "--json")
    assert rehearsal.code == 0, rehearsal.text
    assert rehearsal.json["proof"] is None
    assert standing(on) == before
    done = run_cli(*arguments, *on)
    assert done.code == 0, done.text
    for line in rehearsal.json["plan"]:
        assert f"- {line}\n" in done.text
    return done


def test_next_draws(pool: TicketPool, on: list[str]) -> None:
    drawn = pool.next_ids("photos", 5)
    before = standing(on)
    assert run_cli("next", "photos", "-n", 3, "--dry-run", *on).code == 0
    assert standing(on) == before
    printed = [int(line) for line in run_cli("next", "photos", "-n", 3, *on).text.split()]
    (block,) = run_cli("next", "photos", "-n", 3, "--json", *on).json["blocks"]
    ids = [*drawn, *printed, *range(block["first"], block["last"] + 1, block["step"])]
    assert len(set(ids)) == 11
    assert run_cli("next", "nowhere", *on).code == 3


def test_raise(pool: TicketPool, on: list[str]) -> None:
    done = dry_and_done("raise", "photos", "--above", 5000, on=on)
    assert "no ticket of 'photos' from now on is 5000 or below" in done.text
    assert min(pool.next_ids("photos", 3)) > 5000
    before = standing(on)
    assert run_cli("raise", "photos", "--above", 10, *on).code == 0
    assert standing(on) == before
    assert run_cli("raise", "nowhere", "--above", 10, *on).code == 3


def test_create(pool: TicketPool, on: list[str], ticket_urls: list[URL]) -> None:
    done = dry_and_done("create", "people", "--start", 700, "--layout", "counter", on=on)
    assert "no ticket of 'people' from now on is 699 or below" in done.text
    assert min(pool.next_ids("people", 3)) >= 700
    again = run_cli("create", "people", *on)
    assert again.code == 0
    assert "is there" in again.text
    # on one server it was lost
    run(ticket_urls[0], "DROP TABLE photos")
    pool.next_ids("photos", 3)
    assert run_cli("create", "photos", *on).code == 0
    assert min(draw_from(pool, 1)[-1:]) > 5


@SQLITE
def test_move(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, open_pool: OpenPool) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ALEMBIC_CONFIG", raising=False)
    (tmp_path / "pyproject.toml").write_text(
        "[tool.alembic]\nticket_servers = ['sqlite:///a.db', 'sqlite:///b.db']\n"
        "[tool.alembic.ticket_pools.media]\nservers = ['sqlite:///c.db', 'sqlite:///d.db']\n"
    )
    old = open_pool(["sqlite:///a.db", "sqlite:///b.db"])
    old.create_table("photos")
    high = max(old.next_ids("photos", 50))
    assert run_cli("move", "photos", "--to", "media", "--dry-run").code == 0
    high = max(high, *old.next_ids("photos", 1))
    done = run_cli("move", "photos", "--to", "media")
    assert done.code == 0, done.text
    found = re.search(r"no number above (\d+) was ever issued .* start at (\d+)", done.text)
    assert found
    assert high <= int(found[1]) < int(found[2])
    with pytest.raises(TicketTableMoved):
        old.next_id("photos")
    (first,) = run_cli("next", "photos", "--pool", "media").text.split()
    assert int(first) > high
    assert run_cli("move", "photos", "--to", "nowhere").code == 3


@pytest.mark.ticket_servers("mariadb")
def test_a_server_that_came_back_from_a_backup(
    servers: Borrower, open_pool: OpenPool, tmp_path: Path
) -> None:
    """Its folder is set back under an application, which quarantines it by itself."""
    first = servers.new_mariadb()
    urls = [servers.fresh_database(first), servers.fresh_database(servers.mariadb(1))]
    pool, on = open_pool(urls), options(urls)
    pool.create_table("photos")
    pool.next_ids("photos", 10)
    pool.dispose()
    first.stop()
    first.copy_data()
    first.start()
    ids = draw_from(pool, 1, 40)
    ids += pool.next_ids("photos", 2000)
    shard = URL.create("sqlite", database=str(tmp_path / "shard.db"))
    rows = ", ".join(f"({i})" for i in ids)
    run(shard, "CREATE TABLE photos (id BIGINT PRIMARY KEY)", f"INSERT INTO photos VALUES {rows}")
    pool.dispose()  # the marks are written

    first.kill()
    first.restore_data()
    first.start()
    with pytest.raises(AssertionError, match="gave too little"):
        draw_on_first(pool)
    assert "quarantined" in {record.breaker for record in pool.status()}
    fresh = open_pool(urls)
    with pytest.raises(AssertionError, match="gave too little"):
        draw_on_first(fresh)
    status = run_cli("status", *on, "--over", 0)
    assert status.code == 1
    assert "SET BACK" in status.text

    shards = ("--shard", shard.render_as_string(False))
    done = dry_and_done("restore", "--offset", 1, *shards, on=on)
    assert f"the largest photos.id on {shard.render_as_string()}: {max(ids)}" in done.text
    assert "what its peers have of" in done.text
    assert run_cli("status", *on, "--over", 0).code == 0
    for each in (pool, fresh, open_pool(urls)):
        each.unquarantine("photos")
        more = draw_on_first(each)
        assert min(i for i in more if i % 2) > max(ids)
        ids += more
    assert len(set(ids)) == len(ids)
    assert run_cli("audit", *on, *shards).code == 0


def draw_on_first(pool: TicketPool) -> list[int]:
    ids = [pool.next_id("photos") for _ in range(20)]
    assert any(i % 2 for i in ids), f"the first server gave too little of {ids}"
    return ids


@SQLITE
def test_restore_goes_by_what_is_known(
    pool: TicketPool, on: list[str], tmp_path: Path, ticket_urls: list[URL]
) -> None:
    pool.raise_above("photos", 100)
    done = dry_and_done("restore", "photos", "--margin", 50, on=on)
    assert "no ticket of 'photos' from now on is" in done.text
    assert min(pool.next_ids("photos", 2)) > 150
    shard = tmp_path / "shard.db"
    url = URL.create("sqlite", database=str(shard))
    run(url, "CREATE TABLE photos (id BIGINT PRIMARY KEY)", "INSERT INTO photos VALUES (98765)")
    arguments = ("restore", "photos", "--shard", f"sqlite:///{shard}", "--margin", 0)
    # one server alone, and only that
    assert run_cli(*arguments, "--offset", 2, *on).code == 0
    assert standing(on)[0] < 98765 < standing(on)[1] + 2
    assert run_cli(*arguments, "--offset", 3, *on).code == 3
    # an empty table gets its number back
    run(ticket_urls[0], "DELETE FROM photos")
    assert run_cli(*arguments, *on).code == 0
    assert min(pool.next_ids("photos", 3)) > 98765


def test_a_server_that_is_down_stops_what_needs_all(tmp_path: Path) -> None:
    nowhere = ["--server", f"sqlite:///{tmp_path}/no/where.db", "--server", "sqlite:///other.db"]
    for command in (
        ["raise", "photos", "--above", "9"],
        ["create", "photos"],
        ["restore", "photos"],
    ):
        done = run_cli(*command, *nowhere)
        assert done.code == 3, done.text
        assert "Error: " in done.text
