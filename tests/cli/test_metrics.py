"""Metrics of a process, of the servers, and what the documentation does with them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from sqlalchemy import URL

from sqla_tickets import TicketPool
from sqla_tickets.metrics import TicketCollector
from tests.cli.conftest import run_cli
from tests.drawing.conftest import OpenPool
from tests.drawing.tools import draw_from
from tests.servers import Borrower

OPERATIONS = Path(__file__).parents[2] / "docs" / "operations"
SQLITE = pytest.mark.ticket_servers("sqlite")
MARIADB = pytest.mark.ticket_servers("mariadb")


class Scraped:
    """What a scrape of some pools gives."""

    def __init__(self, *pools: TicketPool, ask: bool = False) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(TicketCollector(*pools, ask=ask))

    def value(
        self, name: str, server: object, sequence: str | None = "photos", **more: str
    ) -> float:
        labels = {"pool": "default", "server": str(server), **more}
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
        assert scraped.value("last_id", server) == mine
        assert scraped.value("capacity_ratio", server) == mine / (2**63 - 1)
        assert scraped.value("server_state", server, None, state="closed") == 1
        assert scraped.value("quarantined", server) == 0
        assert scraped.value("draws_in_flight", server, None) == 0
    assert min(scraped.value("lead", server) for server in pool.servers) == 0


@MARIADB
def test_a_scrape_asks_no_server_unless_it_is_told_to(
    pool: TicketPool, open_pool: OpenPool, ticket_urls: list[URL], servers: Borrower
) -> None:
    draw_from(pool, 1)
    draw_from(pool, 2)
    mine, other = Scraped(pool), open_pool(ticket_urls)
    last = max(other.next_ids("photos", 50))
    server = pool.servers[1 - last % 2]
    assert mine.value("last_id", server) < last
    assert Scraped(pool, ask=True).value("last_id", server) == last
    servers.mariadb(0).kill()
    servers.mariadb(1).kill()
    Scraped(pool, ask=True).value("last_id", server)
    assert mine.value("server_state", server, None, state="open") == 1


@MARIADB
def test_a_table_that_broke_a_promise(pool: TicketPool, servers: Borrower) -> None:
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
        rf'^sqla_tickets_last_id{{.*sequence="photos".*}} {last}\.0$', done.text, re.MULTILINE
    )


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
