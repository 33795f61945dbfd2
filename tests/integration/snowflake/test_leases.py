"""Node numbers on real servers: one owner each, and no two owners' ids meet."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from datetime import datetime, timezone
from typing import Any

import pytest
from sqlalchemy import URL

from sqla_tickets import (
    SNOWFLAKE,
    AsyncTicketPool,
    BitLayout,
    NodeIdsExhausted,
    NodeLeases,
    NoTicketServer,
    SnowflakeGenerator,
    TicketArgumentError,
    TicketPool,
    TicketTableMissing,
)
from sqla_tickets import concurrency as clock
from sqla_tickets.snowflake.allocator import allocator_of
from tests.integration.snowflake.conftest import OpenPool
from tests.support.draws import in_fork, run, until
from tests.support.servers import ServerFixtures

#: As Snowflake's, for two or four processes only.
TWO, FOUR = BitLayout(41, 1, 12), BitLayout(41, 2, 12)
ROWS = "SELECT node, owner, horizon FROM ticket_nodes WHERE owner <> '' ORDER BY node"


def node_of(made: SnowflakeGenerator) -> int:
    return made.layout.decode(made.next_id()).node


def rows(urls: list[URL]) -> list[tuple[int, str, int]]:
    """Node, owner and horizon of every number that has an owner, on whichever server."""
    found = [row for url in urls for row in run(url, ROWS)]
    return sorted((int(str(n)), str(o), int(str(h))) for n, o, h in found)


def wait_until_over(seconds: float) -> None:
    time.sleep(seconds * 1.05)


def test_each_number_has_one_owner_on_the_server_of_its_residue(
    ticket_urls: list[URL], open_pool: OpenPool
) -> None:
    nodes = [node_of(SnowflakeGenerator(open_pool(ticket_urls), "photos")) for _ in range(12)]
    assert len(set(nodes)) == 12
    for residue, url in ((1, ticket_urls[0]), (0, ticket_urls[1])):
        numbers = [n for n, _, _ in rows([url])]
        assert {n % 2 for n in numbers} <= {residue}
        assert set(numbers) <= set(nodes)


def test_a_number_that_was_given_back_is_taken_again_above_its_ids(
    ticket_urls: list[URL], open_pool: OpenPool
) -> None:
    first = open_pool(ticket_urls)
    made = SnowflakeGenerator(first, "photos", TWO)
    ids = made.next_ids(10_000)
    first.dispose()
    later = [SnowflakeGenerator(open_pool(ticket_urls), "photos", TWO) for _ in range(2)]
    taken = {node_of(each): each for each in later}
    again = taken[TWO.decode(ids[0]).node]
    assert again.next_id() > max(ids)


def test_who_has_which_number(ticket_urls: list[URL], open_pool: OpenPool) -> None:
    pools = [open_pool(ticket_urls) for _ in range(3)]
    nodes = [node_of(SnowflakeGenerator(pool, "photos")) for pool in pools]
    pools[0].dispose()
    found = {lease.node: lease for lease in NodeLeases(pools[1]).status()}
    assert set(found) == set(nodes)
    assert [found[node].is_live for node in nodes] == [False, True, True]
    for lease in found.values():
        assert lease.holder.endswith(f":{os.getpid()}")
        assert f"(offset {lease.node % 2 or 2})" in lease.server
    now = datetime.now(timezone.utc)
    assert found[nodes[0]].horizon <= now < found[nodes[1]].expires


def test_every_number_is_shown(pool: TicketPool, files: list[URL]) -> None:
    run(
        files[1],
        "INSERT INTO ticket_nodes WITH RECURSIVE n(node) AS"
        " (SELECT 2 UNION ALL SELECT node + 2 FROM n WHERE node < 2400)"
        " SELECT node, '', 'h', 1, 60000000, 1, 1 FROM n",
    )
    assert len(NodeLeases(pool).status()) == 1200


def test_an_asynchronous_pool_is_refused() -> None:
    pool: Any = AsyncTicketPool(["sqlite://"])
    for make in (NodeLeases, lambda pool: SnowflakeGenerator(pool, "photos")):
        with pytest.raises(TicketArgumentError, match="give its sync_pool"):
            make(pool)


def test_one_number_serves_every_width_that_it_fits(files: list[URL], open_pool: OpenPool) -> None:
    pools = [open_pool(files) for _ in range(5)]
    nodes = [node_of(SnowflakeGenerator(pool, "photos")) for pool in pools]
    small, large = pools[nodes.index(min(nodes))], pools[nodes.index(max(nodes))]
    assert max(nodes) > 3
    assert node_of(SnowflakeGenerator(small, "photos", FOUR)) == min(nodes)
    SnowflakeGenerator(small, "likes", shard=5).next_id()
    assert len(NodeLeases(small).status()) == 5
    for pool in pools:
        if pool is not large:
            pool.dispose()
    assert node_of(SnowflakeGenerator(large, "photos", FOUR)) < 4
    assert node_of(SnowflakeGenerator(large, "photos")) == max(nodes)


def test_no_number_is_left(pool: TicketPool, files: list[URL], open_pool: OpenPool) -> None:
    pools = [open_pool(files) for _ in range(3)]
    assert {node_of(SnowflakeGenerator(p, "photos", TWO)) for p in pools[:2]} == {0, 1}
    with pytest.raises(NodeIdsExhausted, match=r"all 2 .*pool\.dispose"):
        SnowflakeGenerator(pools[2], "photos", TWO).next_id()
    pools[0].dispose()
    SnowflakeGenerator(pools[2], "photos", TWO).next_id()


def test_numbers_of_the_dead_come_back_after_their_lease(
    ticket_urls: list[URL], open_pool: OpenPool
) -> None:
    seconds = 1.0
    dead = [SnowflakeGenerator(open_pool(ticket_urls, seconds), "photos", TWO) for _ in range(2)]
    ids = {node_of(made): made.next_ids(1000) for made in dead}
    assert set(ids) == {0, 1}
    wait_until_over(seconds)
    began = clock.elapsed()
    heir = SnowflakeGenerator(open_pool(ticket_urls, seconds), "photos", TWO)
    first = heir.next_id()  # waits
    assert clock.elapsed() - began > seconds
    assert first > max(ids[TWO.decode(first).node])


def test_a_server_whose_clock_steps_forward_takes_no_number_from_the_living(
    files: list[URL], open_pool: OpenPool
) -> None:
    living = [SnowflakeGenerator(open_pool(files), "photos", TWO) for _ in range(2)]
    owners = {node_of(made) for made in living}
    assert owners == {0, 1}
    other = open_pool(files, 0.2)
    for _ in range(2):
        for url in files:  # what a step of an hour does to every row
            run(url, "UPDATE ticket_nodes SET expires = expires - 3600000000")
        with pytest.raises(NodeIdsExhausted):
            SnowflakeGenerator(other, "photos", TWO).next_id()
        assert {node_of(made) for made in living} == owners


def test_a_process_that_slept_longer_than_its_lease_takes_another_number(
    files: list[URL], open_pool: OpenPool
) -> None:
    seconds = 0.5
    sleeper = SnowflakeGenerator(open_pool(files, seconds), "photos", FOUR)
    before = sleeper.next_ids(100)
    for url in files:  # somebody has seen it dead for long enough, and freed and taken its number
        run(url, "UPDATE ticket_nodes SET owner = 'another', fence = fence + 2")
    wait_until_over(seconds)
    after = sleeper.next_id()
    assert FOUR.decode(after).node != FOUR.decode(before[0]).node
    assert after > max(before)


def test_a_tick_longer_than_the_lease_ends_with_it(files: list[URL], open_pool: OpenPool) -> None:
    layout = BitLayout(39, 10, 12, unit=1000, epoch=SNOWFLAKE.epoch)
    made = SnowflakeGenerator(open_pool(files, 0.3), "photos", layout)
    made.next_id()
    time.sleep(1 - time.time() % 1)  # what follows is in one tick
    before = layout.decode(made.next_id())
    for url in files:
        run(url, "UPDATE ticket_nodes SET owner = 'another', fence = fence + 2")
    wait_until_over(0.3)
    assert layout.decode(made.next_id()).node != before.node


def test_nothing_is_left_of_a_number_that_was_given_back(
    files: list[URL], open_pool: OpenPool
) -> None:
    pool = open_pool(files)
    made = SnowflakeGenerator(
        pool, "photos", BitLayout(39, 10, 12, unit=1000, epoch=SNOWFLAKE.epoch)
    )
    time.sleep(1 - time.time() % 1)
    made.next_id()
    pool.dispose()
    for url in files:
        run(url, "DROP TABLE ticket_nodes")
    with pytest.raises(TicketTableMissing):
        made.next_id()  # not one that was buffered


def test_renewal_keeps_the_number_while_ids_are_made(files: list[URL], open_pool: OpenPool) -> None:
    seconds = 3.0  # a busy machine may stand still for a second
    made = SnowflakeGenerator(open_pool(files, seconds), "photos", TWO)
    nodes: set[int] = set()
    end = time.monotonic() + 1.5 * seconds
    while time.monotonic() < end:
        nodes.add(node_of(made))
        time.sleep(0.01)
    assert len(nodes) == 1


def test_no_id_is_later_than_the_horizon_in_its_row(files: list[URL], open_pool: OpenPool) -> None:
    made = SnowflakeGenerator(open_pool(files, 0.3), "photos")
    end = time.monotonic() + 1
    while time.monotonic() < end:
        number = made.next_id()
        horizons = {node: horizon for node, _, horizon in rows(files)}
        at = SNOWFLAKE.decode(number)
        assert at.time.timestamp() * 1_000_000 <= horizons[at.node]


def test_a_server_that_forgot_its_leases_gives_none_of_them_away(
    ticket_urls: list[URL], open_pool: OpenPool, caplog: pytest.LogCaptureFixture
) -> None:
    living = [SnowflakeGenerator(open_pool(ticket_urls), "photos") for _ in range(4)]
    owned = {node_of(made) for made in living}
    for residue, url in ((1, ticket_urls[0]), (0, ticket_urls[1])):
        if any(node % 2 == residue for node in owned):  # as from a backup of before
            run(url, f"DELETE FROM ticket_nodes WHERE node >= 0 AND (node & 1) = {residue}")
            break
    others: list[int] = []
    while "set back to an older state" not in caplog.text:
        assert len(others) < 20, "each asks a server at random"
        others.append(node_of(SnowflakeGenerator(open_pool(ticket_urls), "photos")))
    others += [node_of(SnowflakeGenerator(open_pool(ticket_urls), "photos")) for _ in range(5)]
    assert owned.isdisjoint(others)


def test_a_number_that_was_given_back_is_remembered_as_such(
    files: list[URL], open_pool: OpenPool, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(6):
        with TicketPool(files) as pool:
            NodeLeases(pool).create_table()
            SnowflakeGenerator(pool, "photos", TWO).next_ids(5)
    horizons = [
        int(str(h)) for url in files for (h,) in run(url, "SELECT horizon FROM ticket_nodes")
    ]
    assert max(horizons) <= clock.wall()
    assert "set back" not in caplog.text


def test_a_fork_leases_a_number_of_its_own(files: list[URL], open_pool: OpenPool) -> None:
    made = SnowflakeGenerator(open_pool(files), "photos")
    mine = [made.next_id() for _ in range(10)]
    child = [
        int(number) for number in in_fork(lambda: " ".join(map(str, made.next_ids(10)))).split()
    ]
    more = [made.next_id() for _ in range(10)]
    nodes = {SNOWFLAKE.decode(number).node for number in child}
    assert nodes.isdisjoint(SNOWFLAKE.decode(number).node for number in mine + more)
    assert child[0] > mine[-1]


@pytest.mark.ticket_servers("mariadb", "mysql")
def test_one_server_dies(ticket_kind: str, servers: ServerFixtures, open_pool: OpenPool) -> None:
    urls = [servers.fresh_database(servers.shared(ticket_kind, n)) for n in range(2)]
    seconds = 3.0
    made = SnowflakeGenerator(open_pool(urls, seconds), "photos")
    ids = [made.next_id()]
    home = SNOWFLAKE.decode(ids[0]).node
    servers.shared(ticket_kind, 0 if home % 2 else 1).kill()
    end = time.monotonic() + 90
    while SNOWFLAKE.decode(ids[-1]).node == home and time.monotonic() < end:
        ids.append(made.next_id())  # never raises
        time.sleep(0.01)
    assert SNOWFLAKE.decode(ids[-1]).node % 2 != home % 2
    assert sorted(set(ids)) == ids
    with TicketPool(urls) as late:  # of a process that starts now
        assert node_of(SnowflakeGenerator(late, "photos")) % 2 != home % 2


@pytest.mark.ticket_servers("mariadb", "mysql")
def test_renewal_after_the_peer_was_away_records_the_horizon(
    ticket_kind: str, servers: ServerFixtures, open_pool: OpenPool
) -> None:
    """Nothing closes the peer's circuit in a pool without draws."""
    urls = [servers.fresh_database(servers.shared(ticket_kind, n)) for n in range(2)]
    pool = open_pool(urls)
    made = SnowflakeGenerator(pool, "photos")
    node = node_of(made)
    peer = 1 if node % 2 else 0  # of the other residue
    lease = made._leases.lease(made._bits)
    servers.shared(ticket_kind, peer).kill()
    assert made._leases._keeps(lease)
    assert not pool.servers[peer].breaker.is_closed
    servers.shared(ticket_kind, peer).start()
    for _ in range(2):
        until(lambda: pool.servers[peer].breaker.state == "half_open")
        assert made._leases._keeps(lease)
        ((horizon,),) = run(urls[peer], f"SELECT horizon FROM ticket_nodes WHERE node = {node}")
        assert int(str(horizon)) == lease.horizon


@pytest.mark.ticket_servers("mariadb", "mysql")
def test_number_that_no_peer_knows_is_leased_with_a_warning_or_not_at_all(
    ticket_kind: str,
    servers: ServerFixtures,
    open_pool: OpenPool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its server may have been set back, and its last owner may make the same ids."""
    urls = [servers.fresh_database(servers.shared(ticket_kind, n)) for n in range(2)]
    open_pool(urls)  # creates the tables
    servers.shared(ticket_kind, 1).kill()
    with TicketPool(urls, require_peer=True) as careful:
        with pytest.raises(NoTicketServer, match=r"no other server answers.*require_peer=True"):
            SnowflakeGenerator(careful, "photos").next_id()
        assert rows(urls[:1]) == [], "it was given back"
        with TicketPool(urls) as trusting:
            node_of(SnowflakeGenerator(trusting, "photos"))
        assert "no other server answers" in caplog.text
        servers.shared(ticket_kind, 1).start()
        until(lambda: careful.servers[1].breaker.state == "half_open")
        node_of(SnowflakeGenerator(careful, "photos"))


@pytest.mark.ticket_servers("mariadb")
def test_all_servers_die(ticket_kind: str, servers: ServerFixtures, open_pool: OpenPool) -> None:
    urls = [servers.fresh_database(servers.shared(ticket_kind, n)) for n in range(2)]
    seconds = 6.0  # longer than a busy machine takes to kill two servers
    made = SnowflakeGenerator(open_pool(urls, seconds), "photos")
    before = made.next_id()
    for n in range(2):
        servers.shared(ticket_kind, n).kill()
    after = made.next_id()  # its lease goes on
    assert after > before
    wait_until_over(seconds)
    with pytest.raises(NoTicketServer, match="no ticket server of 'default' can lease a node"):
        made.next_id()


def test_the_table_is_missing(files: list[URL]) -> None:
    with TicketPool(files) as pool, pytest.raises(TicketTableMissing, match="create_table"):
        SnowflakeGenerator(pool, "photos").next_id()


#: Makes ids as fast as it can; tells one when it does, and the first one that it was asked for after it was frozen.
SLEEPER = """
import sys
from sqla_tickets import NodeLeases, SnowflakeGenerator, TicketPool, concurrency as clock
seconds = float(sys.argv[1])
pool = TicketPool(sys.argv[2:])
NodeLeases(pool, duration=seconds)
made = SnowflakeGenerator(pool, "photos")
for _ in range(5_000):
    before, number = clock.elapsed(), made.next_id()
print(number, flush=True)
while True:
    asked, number = clock.elapsed(), made.next_id()
    if asked - before > seconds:
        print(number, flush=True)
    before = asked
"""


@pytest.mark.ticket_servers("mariadb", "sqlite")
def test_a_frozen_process_wakes(ticket_urls: list[URL], open_pool: OpenPool) -> None:
    seconds = 1.0
    open_pool(ticket_urls, seconds)
    urls = [url.render_as_string(hide_password=False) for url in ticket_urls]
    command = [sys.executable, "-c", SLEEPER, str(seconds), *urls]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            before = int(process.stdout.readline())
            os.kill(process.pid, signal.SIGSTOP)
            node = SNOWFLAKE.decode(before).node
            pool = open_pool(ticket_urls, seconds)
            heirs: list[int] = []
            end = time.monotonic() + 60
            while node not in heirs and time.monotonic() < end:
                wait_until_over(seconds)
                for server in pool.servers:  # seen dead for a whole lease, then freed
                    allocator_of(pool)._reclaimer.reclaim(server, SNOWFLAKE.nodes)
                heirs += [
                    node_of(SnowflakeGenerator(open_pool(ticket_urls), "photos")) for _ in range(2)
                ]
            assert node in heirs
            os.kill(process.pid, signal.SIGCONT)
            after = int(process.stdout.readline())
        finally:
            process.kill()
    assert SNOWFLAKE.decode(after).node not in heirs
    assert after > before


def lease_at_once(urls: list[str], n: int) -> list[int]:
    pools = [TicketPool(urls) for _ in range(n)]
    nodes = [node_of(SnowflakeGenerator(pool, "photos")) for pool in pools]
    for pool in pools[1:]:
        pool.dispose()
    return nodes[:1]


def test_many_processes_at_once(ticket_urls: list[URL], open_pool: OpenPool) -> None:
    from tests.support.draws import in_processes

    open_pool(ticket_urls)
    urls = [url.render_as_string(hide_password=False) for url in ticket_urls]
    found = in_processes(lease_at_once, *[(urls, 3) for _ in range(4)])
    counts = Counter(node for nodes in found for node in nodes)
    assert max(counts.values()) == 1, counts
