"""Two ticket servers that are reached through HAProxy, each by a port of its own, and by mistake not."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest
from sqlalchemy import URL

from sqla_tickets import TicketError, TicketPool
from tests.support.draws import FLICKRS_TABLE, OpenPool, assert_unique, fresh_pair, run
from tests.support.load import StartLoad
from tests.support.servers import Front, ServerFixtures


class Site:
    """Two servers of one database name, as they would be behind one address."""

    def __init__(self, servers: ServerFixtures) -> None:
        self.first, self.second, self.direct = fresh_pair(servers, "mariadb")
        name = self.direct[0].database
        self.direct[1] = self.second.url(name)
        self.second.create_database(str(name))
        self._servers = servers

    def through(self, *fronts: Front) -> list[URL]:
        """The URLs of the pool, by these fronts."""
        self._servers.new_haproxy(*fronts, checked=[self.first, self.second])
        return [self.direct[0].set(port=front.port) for front in fronts]


@pytest.fixture
def site(servers: ServerFixtures) -> Site:
    return Site(servers)


def test_a_server_behind_a_port_of_its_own_is_killed_under_load(
    site: Site, start_load: StartLoad
) -> None:
    urls = site.through(Front([site.first.port]), Front([site.second.port]))
    with TicketPool(urls) as pool:
        pool.create_table("photos")
    load = start_load(urls, urls)
    load.wait_for(1)
    site.first.kill()
    load.wait_for(2)
    site.first.start()
    load.wait_for(1)
    load.finish()


def noted(site: Site) -> None:
    with TicketPool(site.direct) as pool:
        pool.create_table("photos")


def flickrs(site: Site) -> None:
    for offset, url in enumerate(site.direct, 1):
        run(url, FLICKRS_TABLE.format(name="photos", engine="InnoDB"))
        run(url, f"INSERT INTO photos VALUES ({offset}, 'a')")


@pytest.mark.parametrize("create", [noted, flickrs])
def test_both_servers_behind_one_balanced_port(
    site: Site,
    open_pool: OpenPool,
    create: Callable[[Site], None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Any connection may lead to either: it is used only where it led to the right one."""
    create(site)
    ports = [site.first.port, site.second.port]
    urls = site.through(Front(ports, is_balanced=True), Front(ports[::-1], is_balanced=True))
    caplog.set_level(logging.INFO)
    ids: list[int] = []
    refused: list[str] = []
    for _ in range(30):
        pool = open_pool(urls)
        for number in range(4):
            try:
                ids += pool.next_ids("photos", 1 + number % 2)
            except TicketError as error:
                refused.append(str(error))
        pool.dispose()
    assert_unique(ids)
    told = [record.getMessage() for record in caplog.records] + refused
    assert any("numbered differently" in text for text in told)
