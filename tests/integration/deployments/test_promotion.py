"""A replica that lagged takes the place of its primary: the numbers that it lacks are not issued again."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import URL

from sqla_tickets import TicketPool
from sqla_tickets.cli.doctor import Finding, examine
from tests.support.command_line import options, run_cli
from tests.support.draws import OpenPool, assert_unique, draw_from, mysql_like, residues, run
from tests.support.load import StartLoad, publish_marks
from tests.support.servers import USER, Replication, ServerFixtures
from tests.support.tcp_proxy import TcpProxy


class Site:
    """A ticket server with a replica, behind one address, and another ticket server."""

    def __init__(self, servers: ServerFixtures, kind: str) -> None:
        self.pair = Replication(servers, kind)
        self.proxy = TcpProxy(self.pair.source.port)
        self.source = servers.fresh_database(self.pair.source)
        self.replica = self.source.set(port=self.pair.replica.port)
        other = servers.fresh_database(mysql_like(servers, kind))
        self.urls = [self.source.set(port=self.proxy.port), other]

    def promote(self) -> None:
        """What is done at night: the replica gets its primary's address."""
        self.pair.promote()
        self.proxy.lead_to(self.pair.replica.port)


@pytest.fixture(params=["mariadb", "mysql"])
def site(request: pytest.FixtureRequest, servers: ServerFixtures) -> Iterator[Site]:
    site = Site(servers, request.param)
    yield site
    site.proxy.close()


def found(urls: list[URL], code: str) -> list[Finding]:
    with TicketPool(urls) as pool:
        return [finding for finding in examine(pool) if finding.code == code]


def test_a_replica_that_lagged_is_promoted(
    site: Site, open_pool: OpenPool, start_load: StartLoad
) -> None:
    with TicketPool(site.urls) as pool:
        pool.create_table("photos", layout="counter")
        pool.create_table("albums", layout="replace")
    running = open_pool(site.urls)
    ids = {name: draw_from(running, 1, 3, name) for name in ("photos", "albums")}
    site.pair.wait()
    assert_doctor_knows_both(site)
    site.pair.hold_back()
    load = start_load(site.urls)
    load.wait_for(1, 40)
    for name in ids:
        ids[name] += draw_from(running, 1, 20, name)
    publish_marks(running, site.urls[1], *ids)

    site.promote()
    for name, drawn in ids.items():
        ((stands_at,),) = run(site.replica, f"SELECT id FROM {name}")
        assert int(str(stands_at)) < max(i for i in drawn if i % 2)
    for name in ids:
        for pool in (running, open_pool(site.urls)):  # one that runs, and one that has just begun
            later = [pool.next_id(name) for _ in range(6)]
            assert residues(later) == {0}, name
            ids[name] += later
    load.wait_for(2)
    ids["photos"] += load.finish()

    done = run_cli("restore", "--yes", "--offset", 1, *options(site.urls))
    assert done.code == 0, done.text
    for name, drawn in ids.items():
        running.unquarantine(name)
        again = draw_from(running, 1, 3, name) + draw_from(open_pool(site.urls), 1, 3, name)
        assert_unique(drawn + again)


def assert_doctor_knows_both(site: Site) -> None:
    """A ticket server that has a replica, and a replica that is given as a ticket server."""
    with site.pair.source.administrator() as cursor:
        for privilege in ("PROCESS", "REPLICATION CLIENT", *site.pair.more_privileges):
            cursor.execute(f"GRANT {privilege} ON *.* TO '{USER}'@'%'")
    site.pair.wait()
    (finding,) = found([site.source, site.urls[1]], "has-replicas")
    assert (finding.severity, finding.variable, finding.value) == ("advice", "replicas", "1")
    (finding,) = found([site.replica, site.urls[1]], "replica")
    assert (finding.severity, finding.value) == ("repeats", "it is a replica")
    (finding,) = found([site.replica, site.urls[1]], "read-only")
    assert (finding.severity, finding.variable) == ("stops", site.pair.read_only)


def test_a_replica_restored_before_clients_reach_it_is_drawn_from(
    site: Site, open_pool: OpenPool, caplog: pytest.LogCaptureFixture
) -> None:
    """The order of the page, with the user of the documentation: no client refuses the server afterwards."""
    with TicketPool(site.urls) as pool:
        pool.create_table("photos")
    running = open_pool(site.urls)
    ids = draw_from(running, 1, 3)
    site.pair.wait()
    site.pair.hold_back()
    ids += draw_from(running, 1, 20)
    publish_marks(running, site.urls[1], "photos")
    own = options([site.replica, site.urls[1]])
    refused = run_cli("restore", "--yes", "--offset", 1, *own)
    assert refused.code == 3
    assert "takes no writes: make it writable under an address that no client has" in refused.text
    assert "Next:" not in refused.text
    assert ".." not in refused.text
    for done in (run_cli("doctor", *own), run_cli("status", *own, "--over", 0)):
        assert "under an address that no client has; then run sqla-tickets restore --offset 1" in (
            " ".join(done.text.split())
        )

    site.pair.promote()  # the clients' address still leads to the primary, which is dead
    (stands_at,) = (int(str(n)) for (n,) in run(site.replica, "SELECT id FROM photos"))
    assert stands_at < max(i for i in ids if i % 2)
    ids += [running.next_id("photos") for _ in range(6)]
    done = run_cli("restore", "--yes", "--offset", 1, *own)
    assert done.code == 0, done.text
    assert f"from now on, every ticket of 'photos' from {name_of(site.replica)} is" in done.text
    site.proxy.lead_to(site.pair.replica.port)
    again = draw_from(running, 1, 3) + draw_from(open_pool(site.urls), 1, 3)
    assert_unique(ids + again)
    assert not [record for record in caplog.records if record.levelname == "CRITICAL"]


def name_of(url: URL) -> str:
    with TicketPool([url], stride=2) as pool:
        return str(pool.servers[0])
