"""``sqla-tickets status``, and what every command has in common."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import URL

from sqla_tickets import TicketPool
from tests.cli.conftest import options, run_cli
from tests.drawing.conftest import OpenPool
from tests.drawing.tools import FLICKRS_TABLE, draw_from, run
from tests.servers import PASSWORD, Borrower


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
        assert s["left"] == (2**63 - 1 - s["last_ticket"]) // 2
        assert s["left_in_javascript"] == (2**53 - 1 - s["last_ticket"]) // 2
        assert s["rate"] is None
    numbers = [s["last_ticket"] for s in found[2:]]
    assert [s["lead"] for s in found[2:]] == [n - min(numbers) for n in numbers]


def test_the_table_for_people_has_the_same(pool: TicketPool, on: list[str]) -> None:
    last = max(pool.next_ids("photos", 1500))
    done = run_cli("status", *on, "--over", 0)
    assert done.code == 0
    assert "photos" in done.text
    assert "1 of 2" in done.text
    assert f"{last:,}" in done.text


def test_the_rate_and_the_day_of_the_end(pool: TicketPool, on: list[str]) -> None:
    pool.create_table("small", bits=32, start=2**32 - 2_000_000)
    end = threading.Event()

    def draw() -> None:
        while not end.wait(0.01):
            pool.next_ids("small", 20)

    drawing = threading.Thread(target=draw)
    drawing.start()
    found: list[dict[str, Any]] = []
    small: list[dict[str, Any]] = []
    try:
        for _ in range(20):  # a busy machine may draw nothing for a while
            found = run_cli("status", *on, "--json", "--over", 0.5).json["status"]
            small = [s for s in found if s["sequence"] == "small"]
            if all(s["rate"] > 0 for s in small):
                break
    finally:
        end.set()
        drawing.join()
    assert all(s["rate"] > 0 for s in small)
    assert all(s["runs_out"] for s in small)
    assert all(s["rate"] == 0 and s["runs_out"] is None for s in found if s not in small)


@pytest.mark.ticket_servers("mariadb", "mysql")
def test_a_foreign_table_is_shown_when_it_is_named(ticket_urls: list[URL], on: list[str]) -> None:
    for number, url in enumerate(ticket_urls, 1):
        table = FLICKRS_TABLE.format(name="Tickets64", engine="InnoDB")
        run(url, table, f"INSERT INTO `Tickets64` VALUES ({100 + number}, 'a')")
    assert run_cli("status", *on, "--json", "--over", 0).json == {"status": []}
    found = run_cli("status", "Tickets64", *on, "--json", "--over", 0).json["status"]
    assert [s["last_ticket"] for s in found] == [101, 102]
    assert all(s["is_foreign"] for s in found)


@pytest.mark.ticket_servers("mariadb")
def test_a_server_that_is_down_is_shown_and_told_by_the_exit_code(
    pool: TicketPool, ticket_urls: list[URL], servers: Borrower
) -> None:
    servers.mariadb(1).kill()
    for output in ([], ["--json"]):
        done = run_cli("status", *options(ticket_urls), "--over", 0, *output)
        assert done.code == 1
        assert PASSWORD not in done.text
    up = {s["offset"]: (s["up"], s["error"]) for s in done.json["status"]}
    assert up[1] == (True, None)
    assert up[2][0] is False
    assert str(servers.mariadb(1).port) in up[2][1]


def test_servers_are_found_where_the_migrations_find_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ALEMBIC_CONFIG", raising=False)
    nothing = run_cli("status")
    assert nothing.code == 3
    assert "ticket_servers" in nothing.text
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
    assert run_cli("status", "--pool", "nowhere").code == 3
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
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-m", "sqla_tickets_cli", "status"],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{root}"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert done.stderr == "sqla-tickets needs rich: pip install 'sqla-tickets[cli]'\n"


def test_the_library_does_not_import_it(open_pool: OpenPool) -> None:
    code = (
        "import sys, sqla_tickets, alembic_ext; "
        "assert not {'click', 'rich', 'sqla_tickets_cli'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
