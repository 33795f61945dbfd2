"""A ticket server that is a Galera cluster of three nodes, beside one that is a plain server."""

from __future__ import annotations

import threading
import time

import pytest
from sqlalchemy import URL

from sqla_tickets import TicketPool, TicketServer, TicketTableError, TicketViolation, moves
from sqla_tickets_cli.doctor import examine
from tests.deployments.conftest import OpenPool, StartLoad
from tests.deployments.load import tell
from tests.drawing.tools import FLICKRS_TABLE, assert_unique, draw_from, in_processes, residues
from tests.servers import Borrower, Front, Galera, GaleraNode

pytestmark = pytest.mark.timeout(600)


class Site:
    """A cluster and a plain server, with a sequence ``photos``; the cluster's offset is 1."""

    def __init__(self, servers: Borrower) -> None:
        self.cluster, self.plain = servers.galera(), servers.mariadb(0)
        self.in_cluster = servers.fresh_database(self.cluster.nodes[0])
        self.beside = servers.fresh_database(self.plain)
        for node in self.cluster.nodes:
            _wait_for_database(node, self.in_cluster)
        with TicketPool(self.urls(0)) as pool:
            pool.create_table("photos", layout="counter")

    def node_url(self, number: int) -> URL:
        """The database, through one node."""
        return self.in_cluster.set(port=self.cluster.nodes[number].port)

    def urls(self, number: int) -> list[URL]:
        """What a client that uses one node is configured with."""
        return [self.node_url(number), self.beside]


def _wait_for_database(node: GaleraNode, url: URL) -> None:
    with node.administrator() as cursor:
        cursor.execute("SET SESSION wsrep_sync_wait = 7")
        cursor.execute(f"USE `{url.database}`")


@pytest.fixture
def site(servers: Borrower) -> Site:
    return Site(servers)


def conflicts(cluster: Galera) -> int:
    """How many commits have met another node's."""
    names = ("wsrep_local_cert_failures", "wsrep_local_bf_aborts")
    return sum(int(node.status(name) or 0) for node in cluster.nodes for name in names)


# -- a node is lost


def test_nodes_that_are_killed_hang_and_come_back_under_load(
    site: Site, servers: Borrower, start_load: StartLoad
) -> None:
    """Through HAProxy, and by two processes that have a node of their own, so that commits meet."""
    killed, stays, hangs = site.cluster.nodes
    front = Front([node.port for node in site.cluster.nodes])
    servers.new_haproxy(front, checked=[killed])
    behind_haproxy = [site.in_cluster.set(port=front.port), site.beside]
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
    with TicketPool([TicketServer(text, offset=1)], stride=2, timeout=30) as pool:
        ids = [ticket for turn in range(n) for ticket in pool.next_ids("photos", 1 + turn % 3)]
        return ids, pool.servers[0].table("photos").errors


def test_draws_on_all_nodes_at_once_meet_and_are_sent_again(site: Site) -> None:
    before = conflicts(site.cluster)
    texts = [site.node_url(n).render_as_string(hide_password=False) for n in (0, 1, 2)]
    drawn = in_processes(draw_at, *[(text, 60) for text in texts * 2])
    assert_unique([ticket for ids, _ in drawn for ticket in ids])
    assert [errors for _, errors in drawn] == [0] * 6
    assert conflicts(site.cluster) > before


def test_a_node_that_has_not_heard_of_the_last_tickets_is_waited_for(site: Site) -> None:
    """It would seem to have been set back."""
    ahead, behind = (
        TicketPool([TicketServer(site.node_url(n), offset=1)], stride=2, timeout=30) for n in (0, 1)
    )
    with ahead, behind, site.cluster.nodes[1].administrator() as cursor:
        behind.next_id("photos")
        cursor.execute("FLUSH TABLES WITH READ LOCK")  # and nothing that others commit comes in
        ids = ahead.next_ids("photos", 3)
        behind.servers[0].table("photos").learn(max(ids))  # as its peers would have told
        behind.servers[0].connections.close_idle()
        found: list[int] = []
        drawing = threading.Thread(target=lambda: found.append(behind.next_id("photos")))
        drawing.start()
        time.sleep(0.2)
        cursor.execute("UNLOCK TABLES")
        drawing.join()
    assert found[0] > max(ids)


def test_a_sequence_moves_away_and_back(site: Site, servers: Borrower, open_pool: OpenPool) -> None:
    """While nobody draws from another node."""
    here, there = (
        open_pool(site.urls(0)),
        [servers.fresh_database(servers.mariadb(n)) for n in (0, 1)],
    )
    with TicketPool(there, name="elsewhere") as elsewhere:
        ids = draw_from(here, 1, 3)
        moves.move(here, "photos", elsewhere)
        ids += draw_from(elsewhere, 1, 3)
        moves.move(elsewhere, "photos", here)
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
        moves.convert(pool, "photos", "replace")
    assert pool.next_id("photos") != before


def test_flickrs_table_does_not_move_here(
    site: Site, servers: Borrower, open_pool: OpenPool
) -> None:
    """It would be closed where it is, and could not be drawn from here."""
    here = open_pool(site.urls(0))
    there = [servers.fresh_database(servers.mariadb(n)) for n in (0, 1)]
    with TicketPool(there, name="elsewhere") as elsewhere:
        elsewhere.create_table("albums", layout="replace")
        ids = draw_from(elsewhere, 1, 3, "albums")
        with pytest.raises(TicketTableError, match=r"wsrep_on = ON.*layout 'counter'"):
            moves.move(elsewhere, "albums", here)
        ids += draw_from(elsewhere, 2, 3, "albums")
        moves.convert(elsewhere, "albums", "counter")
        moves.move(elsewhere, "albums", here)
    ids += draw_from(here, 1, 3, "albums")
    assert_unique(ids)


def test_doctor_tells_a_node_and_what_must_not_be_drawn_from_it(
    site: Site, open_pool: OpenPool
) -> None:
    pool, node = open_pool(site.urls(0)), site.cluster.nodes[0]
    with node.administrator() as cursor:
        cursor.execute("SELECT @@GLOBAL.auto_increment_increment")
        assert cursor.fetchall() == ((3,),)  # it has counted its nodes
        (finding,) = (f for f in examine(pool) if f.code == "galera")
        assert (finding.severity, finding.variable) == ("advice", "wsrep_on")
        cursor.execute(f"USE `{site.in_cluster.database}`")
        cursor.execute(FLICKRS_TABLE.format(name="Tickets64", engine="InnoDB"))
    (finding,) = (f for f in examine(pool, ["Tickets64"]) if f.code == "galera")
    assert finding.severity == "repeats"
    assert "Tickets64" in finding.why


def test_two_nodes_are_no_two_ticket_servers(site: Site, open_pool: OpenPool) -> None:
    pool = open_pool([site.node_url(0), site.node_url(1)])
    ids = [pool.next_id("photos") for _ in range(6)]
    assert residues(ids) == {1}
    with pytest.raises(TicketTableError, match="numbered otherwise"):
        pool.servers[1].draw("photos", 1)


def test_a_cluster_that_is_begun_anew_from_a_node_that_was_behind(
    site: Site, open_pool: OpenPool, start_load: StartLoad
) -> None:
    *ahead, behind = site.cluster.nodes
    with TicketPool(site.urls(0)) as before:
        ids = draw_from(before, 1)
        behind.stop()
        ids += before.next_ids("photos", 20) + before.next_ids("photos", 20)
        tell(before, site.beside, "photos")
    for node in ahead:
        node.stop()
        node.forget()
    behind.start()
    pool = open_pool(site.urls(2))
    with pytest.raises(TicketViolation, match="its peers know"):
        pool.servers[0].draw("photos", 1)
    ids += [pool.next_id("photos") for _ in range(4)]
    assert residues(ids[-4:]) == {0}
    pool.raise_above("photos", 10**6)
    pool.servers[0].unquarantine("photos")
    ids += draw_from(pool, 1)
    assert_unique(ids)
