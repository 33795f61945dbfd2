"""A ticket server that is a Galera cluster of three nodes, beside one that is a plain server."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator

import pymysql
import pytest
from sqlalchemy import URL

from sqla_tickets import (
    SNOWFLAKE,
    NodeLeases,
    ServerSpec,
    SnowflakeGenerator,
    TicketError,
    TicketIntegrityError,
    TicketPool,
    TicketServer,
    TicketServerError,
    TicketTableError,
)
from sqla_tickets.cli.doctor import examine
from sqla_tickets.connect.connection import Connection
from sqla_tickets.draw import server as server_module
from sqla_tickets.maintenance import operations
from tests.support.command_line import options, run_cli
from tests.support.draws import (
    FLICKRS_TABLE,
    OpenPool,
    assert_unique,
    draw_from,
    in_processes,
    residues,
    run,
    until,
)
from tests.support.load import StartLoad, publish_marks
from tests.support.servers import Front, Galera, GaleraNode, ServerFixtures
from tests.support.tcp_proxy import Fault, TcpProxy
from tests.support.timing import set_timing

pytestmark = pytest.mark.timeout(600)


class Site:
    """A cluster and a plain server, with a sequence ``photos``; the cluster's offset is 1."""

    def __init__(self, servers: ServerFixtures, cluster: Galera) -> None:
        self.cluster, self.plain = cluster, servers.mariadb(0)
        self.in_cluster = servers.fresh_database(self.cluster.nodes[0])
        self.plain_url = servers.fresh_database(self.plain)
        for node in self.cluster.nodes:
            _wait_for_database(node, self.in_cluster)
        with TicketPool(self.urls(0)) as pool:
            pool.create_table("photos", layout="counter")

    def node_url(self, number: int) -> URL:
        """The database, through one node."""
        return self.in_cluster.set(port=self.cluster.nodes[number].port)

    def urls(self, number: int) -> list[URL]:
        """What a client that uses one node is configured with."""
        return [self.node_url(number), self.plain_url]


def _wait_for_database(node: GaleraNode, url: URL) -> None:
    with node.administrator() as cursor:
        cursor.execute("SET SESSION wsrep_sync_wait = 7")
        cursor.execute(f"USE `{url.database}`")


@pytest.fixture
def site(servers: ServerFixtures) -> Site:
    return Site(servers, servers.galera())


@pytest.fixture
def lead_through() -> Iterator[Callable[[int], TcpProxy]]:
    """Open an address that can lead to another port later."""
    with contextlib.ExitStack() as stack:
        yield lambda port: stack.enter_context(contextlib.closing(TcpProxy(port)))


def conflicts(cluster: Galera) -> int:
    """How many commits have met another node's."""
    names = ("wsrep_local_cert_failures", "wsrep_local_bf_aborts")
    return sum(int(node.status(name) or 0) for node in cluster.nodes for name in names)


# -- a node is lost


@pytest.mark.slow
def test_nodes_that_are_killed_hang_and_come_back_under_load(
    site: Site, servers: ServerFixtures, start_load: StartLoad
) -> None:
    """Through HAProxy, and by two processes that have a node of their own, so that commits meet."""
    killed, stays, hangs = site.cluster.nodes
    front = Front([node.port for node in site.cluster.nodes])
    servers.new_haproxy(front, checked=[killed])
    behind_haproxy = [site.in_cluster.set(port=front.port), site.plain_url]
    load = start_load(behind_haproxy, site.urls(1), site.urls(2))
    load.wait_for(1)
    killed.kill()
    load.wait_for(1)  # from the two that are left
    killed.start()
    load.wait_for(1)
    hangs.freeze()
    load.wait_for(2)
    site.cluster.wait_for_size(2)
    hangs.thaw()
    load.wait_for(1)  # from all again
    assert stays.alive
    load.finish()


# -- nodes that are drawn from at the same time


def draw_at(text: str, n: int) -> tuple[list[int], int]:
    """Draw from one node alone, and return the tickets and how many draws had failed."""
    with TicketPool([ServerSpec(text, offset=1)], stride=2, timeout=30) as pool:
        ids = [ticket for number in range(n) for ticket in pool.next_ids("photos", 1 + number % 3)]
        return ids, pool.servers[0].table("photos").errors


def test_draws_on_all_nodes_at_once_meet_and_are_sent_again(site: Site) -> None:
    before = conflicts(site.cluster)
    texts = [site.node_url(n).render_as_string(hide_password=False) for n in (0, 1, 2)]
    drawn = in_processes(draw_at, *[(text, 60) for text in texts * 2])
    assert_unique([ticket for ids, _ in drawn for ticket in ids])
    assert [errors for _, errors in drawn] == [0] * 6
    assert conflicts(site.cluster) > before


def lease_at(text: str, n: int) -> list[int]:
    """Lease node numbers through one node alone."""
    pools = [TicketPool([ServerSpec(text, offset=1)], stride=2, timeout=30) for _ in range(n)]
    ids = [SnowflakeGenerator(pool, "likes").next_id() for pool in pools]
    return [SNOWFLAKE.decode(number).node for number in ids]


def test_node_numbers_leased_on_all_nodes_at_once_have_one_owner(site: Site) -> None:
    texts = [site.node_url(n).render_as_string(hide_password=False) for n in (0, 1, 2)]
    with TicketPool([ServerSpec(texts[0], offset=1)], stride=2) as pool:
        NodeLeases(pool).create_table()
    leased = in_processes(lease_at, *[(text, 8) for text in texts * 2])
    assert_unique([number for numbers in leased for number in numbers])
    assert {number % 2 for numbers in leased for number in numbers} == {1}


def test_a_node_that_has_not_heard_of_the_last_tickets_is_waited_for(site: Site) -> None:
    """It would seem to have been set back."""
    ahead, behind = (
        TicketPool([ServerSpec(site.node_url(n), offset=1)], stride=2, timeout=30) for n in (0, 1)
    )
    with ahead, behind, site.cluster.nodes[1].administrator() as cursor:
        behind.next_id("photos")
        cursor.execute("FLUSH TABLES WITH READ LOCK")  # and nothing that others commit comes in
        ids = ahead.next_ids("photos", 3)
        behind.servers[0].table("photos").observe_mark(max(ids))  # as its peers would have told
        behind.servers[0].connections.close_idle()
        found: list[int] = []
        drawing = threading.Thread(target=lambda: found.append(behind.next_id("photos")))
        drawing.start()
        time.sleep(0.2)
        cursor.execute("UNLOCK TABLES")
        drawing.join()
    assert found[0] > max(ids)


def test_a_sequence_moves_away_and_back(
    site: Site, servers: ServerFixtures, open_pool: OpenPool
) -> None:
    """While nobody draws from another node."""
    here, there = (
        open_pool(site.urls(0)),
        [servers.fresh_database(servers.mariadb(n)) for n in (0, 1)],
    )
    with TicketPool(there, name="elsewhere") as elsewhere:
        ids = draw_from(here, 1, 3)
        operations.move(here, "photos", elsewhere)
        ids += draw_from(elsewhere, 1, 3)
        operations.move(elsewhere, "photos", here)
    with TicketPool(site.urls(1)) as through_another_node:
        ids += draw_from(through_another_node, 1, 3)
    assert_unique(ids)


# -- mistakes


def test_flickrs_table_is_refused(site: Site, open_pool: OpenPool) -> None:
    pool = open_pool(site.urls(0))
    with pytest.raises(TicketTableError, match=r"wsrep_on = ON.*layout 'counter'"):
        pool.create_table("albums", layout="replace")
    before = pool.next_id("photos")
    with pytest.raises(TicketTableError, match=r"wsrep_on = ON"):
        operations.convert(pool, "photos", "replace")
    assert pool.next_id("photos") != before


def test_flickrs_table_does_not_move_here(
    site: Site, servers: ServerFixtures, open_pool: OpenPool
) -> None:
    """It would be closed where it is, and could not be drawn from here."""
    here = open_pool(site.urls(0))
    there = [servers.fresh_database(servers.mariadb(n)) for n in (0, 1)]
    with TicketPool(there, name="elsewhere") as elsewhere:
        elsewhere.create_table("albums", layout="replace")
        ids = draw_from(elsewhere, 1, 3, "albums")
        with pytest.raises(TicketTableError, match=r"wsrep_on = ON.*layout 'counter'"):
            operations.move(elsewhere, "albums", here)
        ids += draw_from(elsewhere, 2, 3, "albums")
        operations.convert(elsewhere, "albums", "counter")
        operations.move(elsewhere, "albums", here)
    ids += draw_from(here, 1, 3, "albums")
    assert_unique(ids)


def test_doctor_tells_a_node_and_what_must_not_be_drawn_from_it(
    site: Site, open_pool: OpenPool
) -> None:
    pool, node = open_pool(site.urls(0)), site.cluster.nodes[0]
    with node.administrator() as cursor:
        cursor.execute("SELECT @@GLOBAL.auto_increment_increment")
        assert cursor.fetchall() == ((3,),)  # it has counted its nodes
        assert "galera" not in {f.code for f in examine(pool)}  # what is done is not advised
        cursor.execute(f"USE `{site.in_cluster.database}`")
        cursor.execute(FLICKRS_TABLE.format(name="Tickets64", engine="InnoDB"))
    (finding,) = (f for f in examine(pool, ["Tickets64"]) if f.code == "galera")
    assert finding.severity == "repeats"
    assert "Tickets64" in finding.why


@pytest.fixture(params=["the same database", "another database"])
def nodes(request: pytest.FixtureRequest, site: Site, servers: ServerFixtures) -> list[URL]:
    """Two nodes of the cluster, as one would name two ticket servers."""
    second = site.node_url(1)
    if request.param == "another database":
        second = servers.fresh_database(site.cluster.nodes[1])
        with TicketPool([ServerSpec(second, offset=2)], stride=2) as alone:
            alone.create_table("photos", layout="counter")
    return [site.node_url(0), second]


def test_two_nodes_as_two_servers_are_refused(
    nodes: list[URL], open_pool: OpenPool, caplog: pytest.LogCaptureFixture
) -> None:
    """The second one only: the first is drawn from."""
    with pytest.raises(TicketServerError, match=r"offset 2.*offset 1.*members of one cluster"):
        open_pool(nodes).create_table("albums", layout="counter")
    assert not run(nodes[0], "SHOW TABLES LIKE 'albums'")
    for _ in range(4):  # whichever it begins with
        pool = open_pool(nodes)
        assert residues(pool.next_id("photos") for _ in range(6)) == {1}
        with pytest.raises(TicketServerError, match="Give the pool one address"):
            pool.servers[1].draw("photos", 1)
        assert [record.up for record in pool.status()] == [True, False]
    assert sum(r.levelname == "ERROR" for r in caplog.records) == 5  # once for each pool


def test_two_nodes_as_two_servers_fail_doctor_and_status(
    nodes: list[URL], open_pool: OpenPool
) -> None:
    (finding,) = (f for f in examine(open_pool(nodes)) if f.server[-2] == "2")
    assert (finding.code, finding.severity) == ("same-cluster", "repeats")
    doctor, status = (run_cli(name, *options(nodes)) for name in ("doctor", "status"))
    assert (doctor.code, status.code) == (1, 1)


@pytest.mark.parametrize("nodes", ["another database"], indirect=True)
def test_node_drawn_from_before_the_first_answers_is_left(
    nodes: list[URL], site: Site, open_pool: OpenPool, lead_through: Callable[[int], TcpProxy]
) -> None:
    """Which of the two is refused must not depend on which one a process has met first."""
    proxy = lead_through(site.cluster.nodes[0].port)
    proxy.do(Fault("refuse"))
    pool = open_pool([nodes[0].set(port=proxy.port), nodes[1]])
    ids = [pool.next_id("photos") for _ in range(4)]
    assert residues(ids) == {0}
    proxy.do(Fault())
    ids += draw_from(pool, 1)
    later = [pool.next_id("photos") for _ in range(6)]
    assert residues(later) == {1}
    with pytest.raises(TicketServerError, match="members of one cluster"):
        pool.servers[1].draw("photos", 1)
    assert_unique(ids + later)


def test_node_is_let_in_again_as_the_first_leads_elsewhere(
    servers: ServerFixtures,
    site: Site,
    open_pool: OpenPool,
    lead_through: Callable[[int], TcpProxy],
) -> None:
    """The mistake is mended at an address: no process has to be started again."""
    other = servers.fresh_database(site.plain)
    site.cluster.nodes[0].create_database(str(other.database), "migrate")
    proxy = lead_through(site.cluster.nodes[0].port)
    urls = [other.set(port=proxy.port), site.node_url(1)]
    for offset, url in enumerate([other, urls[0]]):
        with TicketPool([ServerSpec(url, offset=1)], stride=2) as alone:
            alone.create_table("photos", layout="counter", start=1 + 1000 * (1 - offset))
    run(site.node_url(1), "UPDATE photos SET id = 2", "ALTER TABLE photos COMMENT ''")
    pool = open_pool(urls)
    ids = [pool.next_id("photos") for _ in range(4)]
    assert residues(ids) == {1}
    proxy.lead_to(site.plain.port)
    ids += draw_from(pool, 2)
    assert_unique(ids)


def test_a_cluster_that_is_begun_anew_from_a_node_that_was_behind(
    site: Site, open_pool: OpenPool, start_load: StartLoad
) -> None:
    *ahead, behind = site.cluster.nodes
    with TicketPool(site.urls(0)) as before:
        ids = draw_from(before, 1)
        behind.stop()
        ids += before.next_ids("photos", 20) + before.next_ids("photos", 20)
        publish_marks(before, site.plain_url, "photos")
    for node in ahead:
        node.stop()
        node.forget()
    behind.start()
    pool = open_pool(site.urls(2))
    with pytest.raises(TicketIntegrityError, match="its peers know"):
        pool.servers[0].draw("photos", 1)
    ids += [pool.next_id("photos") for _ in range(4)]
    assert residues(ids[-4:]) == {0}
    pool.raise_above("photos", 10**6)
    pool.servers[0].unquarantine("photos")
    ids += draw_from(pool, 1)
    assert_unique(ids)


@pytest.mark.slow
def test_member_that_was_behind_and_goes_on_alone_is_verified_anew(
    servers: ServerFixtures,
    open_pool: OpenPool,
    lead_through: Callable[[int], TcpProxy],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It was not started again since this process had drawn from it, and its cluster's identity is the same."""
    set_timing(monkeypatch, server_module, idle_seconds=3600.0)
    site = Site(servers, servers.new_galera())
    ahead, also_ahead, behind = site.cluster.nodes
    proxy = lead_through(ahead.port)
    pool = open_pool([site.in_cluster.set(port=proxy.port), site.plain_url])
    first = pool.servers[0]
    ids = draw_from(pool, 1)
    proxy.lead_to(behind.port)
    ids += draw_from(pool, 1)  # both members are known now
    with TicketPool(site.urls(0)) as others:
        ids += draw_from(others, 1, 20)
        until(lambda: number_on(site.node_url(2)) == others.servers[0].table("photos").high_water)
        behind.freeze()
        site.cluster.wait_for_size(2)
        ids += draw_from(others, 1, 20)
        publish_marks(others, site.plain_url, "photos")
    ahead.kill()
    also_ahead.kill()
    behind.thaw()
    until(lambda: goes_on_alone(behind))
    assert first.table("photos").high_water < number_on(site.node_url(2)) < max(ids)
    proxy.lead_to(behind.port)  # which ends the connections
    until(lambda: is_refused(first, ids))
    assert first.table("photos").state == "quarantined"
    assert_unique(ids)


def number_on(url: URL) -> int:
    ((number,),) = run(url, "SELECT id FROM photos")
    return int(str(number))


def goes_on_alone(node: GaleraNode) -> bool:
    """Make a node that has lost all others a cluster of its own."""
    with contextlib.suppress(pymysql.err.OperationalError), node.administrator() as cursor:
        cursor.execute(
            "SET GLOBAL wsrep_provider_options = 'pc.bootstrap=YES'"
        )  # not while it looks for them
    return node.size == 1 and node.answers()


def is_refused(server: TicketServer, ids: list[int]) -> bool:
    """Whether a server that answers again is found to have been set back."""
    try:
        ids += [ticket for block in server.draw("photos", 1) for ticket in block]
    except TicketIntegrityError:
        return True
    except TicketError:
        return False
    return False


# -- behind HAProxy


def test_node_without_the_others_is_left_by_the_check(
    site: Site, servers: ServerFixtures, open_pool: OpenPool
) -> None:
    """It goes on to say hello, which is all that HAProxy's own check asks for."""
    alone = site.cluster.nodes[0]
    front = Front([node.port for node in site.cluster.nodes], is_galera=True)
    servers.new_haproxy(front, checked=[alone])
    pool = open_pool([site.in_cluster.set(port=front.port), site.plain_url])
    ids = draw_from(pool, 1, 2)
    try:
        set_isolation(alone, 1)
        until(lambda: alone.status("wsrep_ready") == "OFF")
        ids += draw_from(pool, 1, 2)
        assert alone.status("wsrep_ready") == "OFF"
    finally:
        set_isolation(alone, 0)
        until(alone.answers, 90)
    assert_unique(ids)


def set_isolation(node: GaleraNode, value: int) -> None:
    """Cut a node off from the others, or let it see them again."""
    with node.administrator() as cursor:
        cursor.execute(f"SET GLOBAL wsrep_provider_options = 'gmcast.isolate={value}'")


def draw_in_rotation(server: TicketServer, held: list[Connection]) -> list[int]:
    """Draw through each of some connections, one after the other."""
    ids: list[int] = []
    for connection in held:
        server.connections.release(connection)  # the next one who asks for one gets it
        ids += server.draw("photos", 1)[0]
        assert server.connect() is connection
    return ids


def test_pool_on_two_nodes_after_a_failback_stays_in_a_generation(
    site: Site, servers: ServerFixtures, caplog: pytest.LogCaptureFixture
) -> None:
    """Alternating between members of a cluster asks the peers nothing, not even one that is frozen."""
    caplog.set_level(logging.INFO)
    first_node, backup, _ = site.cluster.nodes
    front = Front([first_node.port, backup.port])
    servers.new_haproxy(front, checked=[first_node])
    urls = [site.in_cluster.set(port=front.port), site.plain_url]
    with TicketPool(urls, timeout=30, hedge=False) as pool:
        server, held = pool.servers[0], list[Connection]()

        def opens_another() -> bool:
            connection = server.connections.open()
            if connection.identity in [other.identity for other in held]:
                server.connections.discard(connection)
                return False
            held.append(connection)
            return True

        ids = draw_from(pool, 1, 2)
        first_node.kill()
        ids += draw_from(pool, 1, 2)
        server.connections.close_idle()
        until(opens_another)
        first_node.start()
        until(opens_another)
        ids += draw_in_rotation(server, held * 2)  # after its members changed, each is met once
        before = server.generation
        ids += draw_in_rotation(server, held * 4)
        caplog.clear()
        site.plain.freeze()
        ids += draw_in_rotation(server, held * 4)
        site.plain.thaw()
        assert server.generation == before
        assert "reported a mark" not in caplog.text
    assert_unique(ids)
