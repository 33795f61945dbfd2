"""Metrics of a process, of the servers, and what the documentation does with them."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from sqlalchemy import URL

from sqla_tickets import TicketIntegrityError, TicketPool, TicketSequence
from sqla_tickets.contrib.prometheus import TicketCollector
from tests.support.command_line import run_cli
from tests.support.draws import OpenPool, draw_from, run
from tests.support.servers import ServerFixtures

OPERATIONS = Path(__file__).parents[3] / "docs" / "operate"
SQLITE = pytest.mark.ticket_servers("sqlite")
MARIADB = pytest.mark.ticket_servers("mariadb")


class Scraped:
    """What a scrape of some pools gives."""

    def __init__(self, *pools: TicketPool, ask: bool = False) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(TicketCollector(*pools, ask=ask))

    def value(
        self, name: str, server: object | None, sequence: str | None = "photos", **more: str
    ) -> float:
        labels = {"pool": "default", **more}
        if server:
            labels["server"] = str(server)
        if sequence:
            labels["sequence"] = sequence
        found = self.registry.get_sample_value(f"sqla_tickets_{name}", labels)
        assert found is not None, generate_latest(self.registry).decode()
        return found


@SQLITE
def test_what_a_process_has_drawn(pool: TicketPool) -> None:
    first, second = pool.servers
    drawn = draw_from(pool, 1, 3)
    drawn += pool.reserve("photos", 1000)[0]
    scraped = Scraped(pool)
    draws = [scraped.value("draws_total", server) for server in pool.servers]
    assert sum(draws) == sum(record.draws for record in pool.status())
    for offset, server in enumerate((first, second), 1):
        mine = max(d for d in drawn if (d - offset) % 2 == 0)
        assert scraped.value("last_ticket", server) == mine
        assert scraped.value("capacity_ratio", server) == mine / (2**63 - 1)
        assert scraped.value("server_state", server, None, state="closed") == 1
        assert scraped.value("quarantined", server) == 0
        assert scraped.value("draws_in_flight", server, None) == 0
    assert min(scraped.value("lead", server) for server in pool.servers) == 0


@MARIADB
def test_a_scrape_asks_no_server_unless_it_is_told_to(
    pool: TicketPool, open_pool: OpenPool, ticket_urls: list[URL], servers: ServerFixtures
) -> None:
    draw_from(pool, 1)
    draw_from(pool, 2)
    mine, other = Scraped(pool), open_pool(ticket_urls)
    last = max(other.next_ids("photos", 50))
    server = pool.servers[1 - last % 2]
    assert mine.value("last_ticket", server) < last
    assert Scraped(pool, ask=True).value("last_ticket", server) == last
    servers.mariadb(0).kill()
    servers.mariadb(1).kill()
    Scraped(pool, ask=True).value("last_ticket", server)
    assert mine.value("server_state", server, None, state="open") == 1


@MARIADB
def test_a_table_that_broke_a_promise(pool: TicketPool, servers: ServerFixtures) -> None:
    draw_from(pool, 1, 5)
    with servers.mariadb(0).administrator() as cursor:
        database = pool.servers[0].engine.url.database
        cursor.execute(f"DELETE FROM `{database}`.photos")
        cursor.execute(f"ALTER TABLE `{database}`.photos AUTO_INCREMENT = 1")
        cursor.execute(f"INSERT INTO `{database}`.photos VALUES (1, 'a')")
    for _ in range(10):
        pool.next_id("photos")
    assert Scraped(pool).value("quarantined", pool.servers[0]) == 1
    assert Scraped(pool).value("quarantined", pool.servers[1]) == 0


@SQLITE
def test_the_command_prints_what_the_servers_know(pool: TicketPool, on: list[str]) -> None:
    last = max(pool.next_ids("photos", 7))
    done = run_cli("metrics", *on)
    assert done.code == 0
    assert re.search(
        rf'^sqla_tickets_last_ticket{{.*sequence="photos".*}} {last}\.0$', done.text, re.MULTILINE
    )


@SQLITE
def test_the_command_sees_a_table_that_was_set_back(
    pool: TicketPool, ticket_urls: list[URL], on: list[str]
) -> None:
    for server in pool.servers:
        server.draw("photos", 50)
    pool._marks.flush()
    run(ticket_urls[1], "UPDATE photos SET id = 2")
    done = run_cli("metrics", *on)
    assert done.code == 1
    found = re.findall(
        r"^sqla_tickets_quarantined{.*offset (\d).*} (\d)\.0$", done.text, re.MULTILINE
    )
    assert sorted(found) == [("1", "0"), ("2", "1")]


@SQLITE
def test_what_was_counted_by_events(pool: TicketPool, ticket_urls: list[URL]) -> None:
    scraped, (first, second) = Scraped(pool), pool.servers
    kinds = re.findall(r"``(\w+)`` for", TicketIntegrityError.__doc__ or "")
    assert len(kinds) == 3
    for server in pool.servers:
        assert scraped.value("failovers_total", server, None) == 0
        assert scraped.value("hedges_total", server, None, outcome="won") == 0
        for kind in kinds:
            assert scraped.value("integrity_errors_total", server, None, kind=kind) == 0
    draw_from(pool, 1, 2)
    pool.next_id(TicketSequence("photos", block=10))
    held = pool.buffered("photos")
    assert scraped.value("buffered", None) == held > 0
    pool.raise_above("photos", 1000)
    assert scraped.value("discarded_total", None, reason="dropped") == held
    run(ticket_urls[0], "UPDATE photos SET id = 1")
    while scraped.value("failovers_total", first, None) == 0:
        pool.next_id("photos")
    assert scraped.value("integrity_errors_total", first, None, kind="regression") == 1
    assert scraped.value("errors_total", first, kind="regression") == 1
    assert scraped.value("hedges_total", second, None, outcome="lost") == 0
    for server in pool.servers:
        draws = scraped.value("draws_total", server)
        assert scraped.value("drawn_total", server) >= draws
        assert scraped.value("draw_seconds_count", server, None) == draws
        assert scraped.value("draw_seconds_bucket", server, None, le="+Inf") == draws
        assert scraped.value("draw_seconds_sum", server, None) > 0


@SQLITE
@pytest.mark.parametrize("file", ["alerts.yml", "dashboard.json"])
def test_dashboard_and_alerts_use_what_there_is(pool: TicketPool, file: str) -> None:
    draw_from(pool, 1)
    text = (OPERATIONS / file).read_text()
    if file.endswith("json"):
        panels = json.loads(text)["panels"]
        text = "\n".join(target["expr"] for panel in panels for target in panel["targets"])
    used = set(re.findall(r"sqla_tickets_\w+", text))
    ends = {"counter": ["_total"], "gauge": [""], "histogram": ["_bucket", "_count", "_sum"]}
    families = list(TicketCollector(pool).collect())
    there = {family.name + end for family in families for end in ends[family.type]}
    assert used
    assert used <= there


@pytest.fixture
def promtool(pytestconfig: pytest.Config) -> Callable[..., str]:
    """Run Prometheus' own checks, with some text as their input; what they say."""

    def run_it(*arguments: str | Path, text: str = "") -> str:
        done = subprocess.run(["promtool", *arguments], input=text, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    if shutil.which("promtool") is None:
        missing = "promtool is missing: it comes with Debian's prometheus"
        if pytestconfig.getoption("--require-all-servers"):
            pytest.fail(missing)
        pytest.skip(missing)
    return run_it


def test_each_alert_fires_when_it_has_to(promtool: Callable[..., str]) -> None:
    cases = Path(__file__).with_name("alerts_test.yml")
    alerts = set(re.findall(r"- alert: (\w+)", (OPERATIONS / "alerts.yml").read_text()))
    fired = set(re.findall(r"- alertname: (\w+)", cases.read_text()))
    tested = set(re.findall(r"- \{alertname: (\w+)", cases.read_text()))
    assert alerts == fired == tested
    assert "SUCCESS" in promtool("test", "rules", cases)


def test_the_dashboard_asks_what_prometheus_understands(
    promtool: Callable[..., str], tmp_path: Path
) -> None:
    panels = json.loads((OPERATIONS / "dashboard.json").read_text())["panels"]
    asked = [target["expr"] for panel in panels for target in panel["targets"]]
    rules = [
        {"record": f"panel{n}", "expr": text.replace("$__rate_interval", "5m")}
        for n, text in enumerate(asked)
    ]
    file = tmp_path / "rules.yml"  # JSON is YAML, too
    file.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))
    assert f"{len(asked)} rules found" in promtool("check", "rules", file)


@SQLITE
def test_prometheus_finds_no_fault_with_the_names(
    pool: TicketPool, promtool: Callable[..., str]
) -> None:
    scraped = Scraped(pool)
    draw_from(pool, 1)
    assert promtool("check", "metrics", text=generate_latest(scraped.registry).decode()) == ""
