"""What seeds have found, each as the least schedule that shows it."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from typing import Any

import pytest

from sqla_tickets.connect.identity import Identity
from sqla_tickets.draw.access import ServerAccess
from sqla_tickets.errors import ClockMovedBack, TicketError, TicketIntegrityError
from sqla_tickets.high_water import store
from sqla_tickets.high_water.statements import Mark
from sqla_tickets.snowflake import lease_table
from sqla_tickets.snowflake.allocator import LeaseAllocator
from sqla_tickets.snowflake.generator import SnowflakeGenerator
from sqla_tickets.snowflake.lease import Lease
from sqla_tickets.snowflake.leases import NodeLease, NodeLeases
from sqla_tickets.tables.context import StatementContext

from .directed import play
from .nemesis import resume
from .network import Link
from .number_set import NumberSet
from .scenario import Scenario
from .servers import Kind
from .world import Machine

LEASE_SECONDS = 3.0
#: By how much a clock is wrong for a while: longer than all that a test does after it.
AHEAD_SECONDS = 20.0


def draw_elsewhere(scenario: Scenario, sequence: str, times: int, drawn: list[int]) -> None:
    """Let another client draw, ten times a second."""

    def work() -> None:
        pool = scenario.pool()
        for _ in range(times):
            drawn.append(pool.next_id(sequence))
            scenario.world.sleep(0.1)

    Machine(scenario.world, "another client").spawn(work, "main")


@pytest.mark.parametrize("microseconds", range(0, 3000, 500))
def test_dispose_during_a_renewal_leaves_no_connection_and_no_lease(
    microseconds: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Seed 1, 10 s, 4 processes: the renewal leased another number, over a connection of its own.

    Nor does it tell the peers a horizon of which the number's server knows nothing any more.
    """
    left: list[NodeLease] = []

    def work(scenario: Scenario) -> None:
        scenario.create_tables()
        world, pool = scenario.world, scenario.pool()
        leases = NodeLeases(pool, duration=LEASE_SECONDS)
        leases.create_table()
        generator = SnowflakeGenerator(pool, "likes")
        generator.next_id()
        world.sleep(LEASE_SECONDS / 2)
        generator.next_id()  # the renewal begins
        world.sleep(microseconds / 1e6)
        pool.dispose()
        world.sleep(1)
        for host in scenario.network.hosts.values():
            assert not host.channels
        left.extend(lease for lease in leases.status() if lease.is_live)
        for _ in range(6):  # most likely with the same number
            generator.next_id()
            pool.dispose()

    play("mysql", work)
    assert not left
    assert not [record for record in caplog.records if record.levelno >= logging.CRITICAL]


def test_renewal_that_begins_during_dispose_keeps_no_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its thread gets the processor late: `dispose()` did not know the token that it was about to write."""
    left: list[NodeLease] = []
    renew, release = LeaseAllocator._try_to_renew, lease_table.release

    def work(scenario: Scenario) -> None:
        scenario.create_tables()
        world, pool = scenario.world, scenario.pool()
        leases = NodeLeases(pool, duration=LEASE_SECONDS)
        leases.create_table()
        generator = SnowflakeGenerator(pool, "likes")

        def renew_late(allocator: LeaseAllocator, lease: Lease) -> None:
            world.sleep(0.05)
            renew(allocator, lease)

        def release_late(*arguments: Any) -> None:
            world.sleep(0.1)
            release(*arguments)

        monkeypatch.setattr(LeaseAllocator, "_try_to_renew", renew_late)
        monkeypatch.setattr(lease_table, "release", release_late)
        generator.next_id()
        world.sleep(LEASE_SECONDS / 2)
        generator.next_id()  # the renewal begins
        pool.dispose()
        world.sleep(1)
        left.extend(lease for lease in leases.status() if lease.is_live)
        pool.dispose()

    play("mysql", work)
    assert not left


@pytest.mark.parametrize("kind", ["mysql", "postgresql"])
def test_peer_that_is_told_twice_of_an_owner_calls_no_server_set_back(
    kind: Kind, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Seed 30004, 30 s, 40 processes, 3 servers: the connection was lost after it was told, and it told its own horizon."""
    record, cut = lease_table._record, list[bool]()

    def work(scenario: Scenario) -> None:
        scenario.create_tables()
        world, network, pool = scenario.world, scenario.network, scenario.pool()
        leases, generator = NodeLeases(pool), SnowflakeGenerator(pool, "likes")
        leases.create_table()
        for _ in range(4):
            pool.next_id("photos")  # over connections that are idle then

        def record_and_cut(*arguments: Any) -> bool:
            is_done = record(*arguments)
            if not cut:
                cut.append(is_done)
                for host in network.hosts.values():
                    for channel in list(host.channels.values()):
                        world.at(world.now, channel.cut)
                world.sleep(0.01)
            return is_done

        monkeypatch.setattr(lease_table, "_record", record_and_cut)
        generator.next_id()
        pool.dispose()

    play(kind, work)
    assert cut == [True]
    assert not [record for record in caplog.records if record.levelno >= logging.CRITICAL]


def test_horizon_that_comes_after_take_back_calls_no_server_set_back(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The network held back what told the peer; the number was given back by then, and leased again."""
    record, late, is_done = lease_table._record, list[Link](), list[bool]()

    def work(scenario: Scenario) -> None:
        scenario.create_tables()
        world, network, pool = scenario.world, scenario.network, scenario.pool()
        leases, generator = NodeLeases(pool), SnowflakeGenerator(pool, "likes")
        leases.create_table()
        for _ in range(4):  # each server has told of a number
            generator.next_id()
            leases.release()
            world.sleep(1)

        def record_late(context: StatementContext, *arguments: Any) -> bool:
            if not late:
                name = next(name for name in network.hosts if f"://{name}/" in str(context.server))
                late.append(network.link(world.machine, network.hosts[name]))
                late[0].cut(there=True, back=False)
            return record(context, *arguments)

        monkeypatch.setattr(lease_table, "_record", record_late)
        generator.next_id()
        late[0].is_cut_there = False  # for what is sent from now on
        while not all(server.breaker.is_closed for server in pool.servers):
            pool.next_id("photos")  # it has them probed
            world.sleep(0.5)
        leases.release()
        late[0].heal()
        for _ in range(8):  # most likely with the same number
            world.sleep(1)
            generator.next_id()
            leases.release()
        is_done.append(True)

    play("mysql", work)
    assert is_done
    assert not [record for record in caplog.records if record.levelno >= logging.CRITICAL]


def test_process_delayed_after_its_claim_calls_no_server_set_back(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Seed 90025, 60 s, 40 processes: its lease had ended before it told the peers, and they knew the next owner."""
    record, delayed, is_done = lease_table.record_owner, list[str](), list[bool]()

    def work(scenario: Scenario) -> None:
        scenario.create_tables()
        world, pool = scenario.world, scenario.pool()
        NodeLeases(pool, duration=3.0).create_table()

        def record_late(*arguments: Any) -> Any:
            if world.machine.name != "another client" and not delayed:
                delayed.append(world.machine.name)
                Machine(world, "another client").spawn(lambda: lease_all(scenario), "main")
                world.sleep(15)
            return record(*arguments)

        monkeypatch.setattr(lease_table, "record_owner", record_late)
        SnowflakeGenerator(pool, "likes").next_id()
        is_done.append(True)

    def lease_all(scenario: Scenario) -> None:
        pool = scenario.pool()
        leases, generator = NodeLeases(pool, duration=3.0), SnowflakeGenerator(pool, "likes")
        for _ in range(12):
            generator.next_id()
            leases.release()
            scenario.world.sleep(1)

    play("mysql", work)
    assert delayed
    assert is_done
    assert not [record for record in caplog.records if record.levelno >= logging.CRITICAL]


def test_address_that_led_to_another_server_uses_up_no_node_numbers() -> None:
    """Seed 26, 10 s: each lease found itself at the peer, took the server for set back, and took the next number."""
    numbers: list[int] = []

    def work(scenario: Scenario) -> None:
        scenario.create_tables()
        world, network, pool = scenario.world, scenario.network, scenario.pool()
        leases, generator = NodeLeases(pool), SnowflakeGenerator(pool, "likes")
        leases.create_table()
        pool.dispose()
        network.swap("t1", "t2")
        with contextlib.suppress(TicketError):
            generator.next_id()
        leases.release()
        network.swap("t1", "t2")
        for channel in list(network.hosts["t2"].channels.values()):
            world.at(
                world.now, channel.cut
            )  # so that both addresses lead to the first server, one by its old connections
        for _ in range(5):
            world.sleep(1)
            with contextlib.suppress(TicketError):
                generator.next_id()
                leases.release()
        generator.next_id()
        numbers.extend(lease.node for lease in leases.status())
        pool.dispose()

    play("mysql", work)
    assert 1 <= len(numbers) < 8


def test_peer_learns_a_horizon_that_it_missed_before_a_clock_stepped_back() -> None:
    """Seed 4, 12 s, 5 processes: renewals told it earlier horizons alone, so ids repeated after a restore."""
    first: list[range] = []
    second: list[range] = []

    def work(scenario: Scenario) -> None:
        scenario.create_tables()
        world, (here, peer) = scenario.world, scenario.network.hosts.values()
        pool = scenario.pool()
        leases, generator = (
            NodeLeases(pool, duration=LEASE_SECONDS),
            SnowflakeGenerator(pool, "likes"),
        )
        leases.create_table()
        peer.stop(is_crash=False)
        generator.next_id()
        leases.release()
        image = here.model.image()
        world.machine.wall_error = AHEAD_SECONDS
        first.extend(generator.reserve(20_000))
        end = world.machine.wall()
        world.machine.wall_error = 0.0
        peer.start()
        for _ in range(6):  # its breaker is closed again, and the lease is renewed
            world.sleep(LEASE_SECONDS / 2)
            pool.next_id("photos")
            with contextlib.suppress(ClockMovedBack):
                generator.next_id()
        here.stop(is_crash=False)
        here.model.restore(image)
        here.start()
        Machine(world, "another client").spawn(lambda: go_on(scenario, end), "main").join()

    def go_on(scenario: Scenario, end: float) -> None:
        world, pool = scenario.world, scenario.pool()
        leases, generator = (
            NodeLeases(pool, duration=LEASE_SECONDS),
            SnowflakeGenerator(pool, "likes"),
        )
        while world.machine.wall() < end:
            generator.next_id()
            world.sleep(0.3)
            if not any(lease.is_live and lease.node == 1 for lease in leases.status()):
                leases.release()  # until it has the number of the first client
        second.extend(generator.reserve(4096 * 500))

    play("mysql", work)
    assert second
    issued = NumberSet()
    assert not any(issued.add(run) for run in first + second)


def test_node_numbers_have_one_owner_while_an_address_leads_elsewhere() -> None:
    """Seed 770006 on MariaDB: two servers of three were down, so nobody told that the number had an owner."""
    ids: list[int] = []
    refused: list[str] = []

    def work(scenario: Scenario) -> None:
        scenario.create_tables()
        world, network = scenario.world, scenario.network
        pools = [scenario.pool() for _ in range(2)]
        NodeLeases(pools[0]).create_table()
        pools[0].dispose()
        generators = [SnowflakeGenerator(pool, "likes") for pool in pools]
        network.swap("t1", "t2")
        network.hosts["t1"].stop(is_crash=False)  # the first address leads to the second server
        try:
            ids.extend(generators[0].next_ids(3))
        except TicketError as error:
            refused.append(str(error))
        network.swap("t1", "t2")
        network.hosts["t1"].start()
        world.sleep(0.5)
        network.hosts["t2"].stop(is_crash=False)
        for _ in range(200):
            for generator in generators[::-1]:
                ids.extend(generator.next_ids(50))
        for pool in pools:
            pool.dispose()

    play("mysql", work)
    assert len(ids) == len(set(ids)) >= 20_000
    assert "expected the offset 1" in refused[0]


def drawn_before_a_restore(scenario: Scenario) -> list[int]:
    """Tickets that t1 has lost since, as it was restored; the name of t2 leads to it, too, and pools require a peer."""
    scenario._is_to_be_restored = True
    scenario.create_tables()
    network, first = scenario.network, scenario.pool()
    image = network.hosts["t1"].model.image()
    tickets = [first.next_id("photos") for _ in range(20)]
    first.dispose()
    network.hosts["t1"].stop(is_crash=False)
    network.hosts["t1"].model.restore(image)
    network.hosts["t1"].start()
    network.lead("t2", "t1")
    return tickets


@pytest.mark.parametrize("kind", ["mysql", "postgresql"])
def test_server_that_answers_for_its_peer_has_no_peer_that_tells(kind: Kind) -> None:
    """Seeds 770000 and 770004: a restored server told its own old mark, and ``require_peer`` was content."""
    tickets: list[int] = []
    refused: list[str] = []

    def work(scenario: Scenario) -> None:
        tickets.extend(drawn_before_a_restore(scenario))
        world, network = scenario.world, scenario.network
        second = scenario.pool()
        for moment in range(12):
            if moment == 6:
                network.lead("t2", "t2")
                for channel in list(network.hosts["t1"].channels.values()):
                    world.at(world.now, channel.cut)
            try:
                tickets.append(second.next_id("photos"))
            except TicketError as error:
                refused.append(str(error))
            world.sleep(2)
        second.dispose()

    play(kind, work)
    assert len(tickets) == len(set(tickets)) > 20
    assert "it is the same server" in refused[0]


def test_answer_counts_for_nothing_once_its_address_leads_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another connection has found the peer meanwhile, and whose answer came before cannot be told any more."""
    refused: list[str] = []
    found: dict[ServerAccess, Identity | None] = {}
    read = store._read

    def work(scenario: Scenario) -> None:
        scenario._is_to_be_restored = True  # so that pools require a peer
        scenario.create_tables()
        pool = scenario.pool()

        def read_late(*arguments: Any) -> list[Mark]:
            marks = read(*arguments)
            for server in pool.servers:
                found.setdefault(server, server.identity)
                server.identity = Identity(f"another {server}", 0.0)
            return marks

        monkeypatch.setattr(store, "_read", read_late)
        try:
            pool.next_id("photos")
        except TicketError as error:
            refused.append(str(error))
        monkeypatch.undo()
        for server, identity in found.items():
            server.identity = identity
        pool.next_id("photos")
        pool.dispose()

    play("mysql", work)
    assert "no peer can report a mark" in refused[0]


def test_peer_whose_address_was_mended_has_come_back() -> None:
    """A table that was drawn from without it is verified before its next ticket, as after a failure."""
    repeated: list[list[range]] = []

    def work(scenario: Scenario) -> None:
        scenario.create_tables()
        network, first = scenario.network, scenario.pool()
        image = network.hosts["t1"].model.image()
        for _ in range(60):
            first.next_id("photos")
        first.dispose()
        network.hosts["t1"].stop(is_crash=False)
        network.hosts["t1"].model.restore(image)
        network.hosts["t1"].start()
        network.lead("t2", "t1")
        second = scenario.pool()
        here, there = second.servers
        here.draw("photos", 1)  # and it was said that nobody could tell
        scenario.world.sleep(1)
        network.lead("t2", "t2")
        there.connections.close_idle()
        there.draw("photos", 1)
        with contextlib.suppress(TicketIntegrityError):
            repeated.append(here.draw("photos", 1))
        second.dispose()

    play("mysql", work)
    assert not repeated


@pytest.mark.parametrize("kind", ["mysql", "postgresql"])
@pytest.mark.every_case
@pytest.mark.parametrize(
    "is_restarted",
    [
        True,
        pytest.param(
            False,
            marks=pytest.mark.xfail(
                strict=True, reason="its start is that of before: docs/understand/causes.md, 5"
            ),
        ),
    ],
)
def test_image_of_a_server_repeats_nothing(kind: Kind, is_restarted: bool) -> None:
    """A process that has drawn nothing since the image was made cannot tell by its own tickets."""
    first: list[int] = []
    second: list[int] = []

    def work(scenario: Scenario) -> None:
        scenario.create_tables()
        world, here, idle = scenario.world, scenario.network.hosts["t1"], scenario.pool()
        idle.next_ids("photos", 10)
        idle.next_id("photos")
        draw_elsewhere(scenario, "photos", 120, first)
        world.sleep(5)
        image = here.model.image()
        world.sleep(8)
        if is_restarted:
            here.stop(is_crash=False)
            here.model.restore(image)
            here.start()
        else:
            resume(here, image)
        for _ in range(10):
            second.append(idle.next_id("photos"))
            world.sleep(0.3)

    play(kind, work)
    assert len(first) == 120
    assert not set(first) & set(second)


@pytest.mark.parametrize("kind", ["mysql", "postgresql"])
def test_server_that_broke_one_promise_is_verified_for_its_other_tables(kind: Kind) -> None:
    """Seed 90016, 60 s, 40 processes: an image with an old uptime, seen in 'photos', then drawn from for 'letters'."""
    first: list[int] = []
    second: list[int] = []

    def work(scenario: Scenario) -> None:
        scenario.create_tables()
        world, here, pool = scenario.world, scenario.network.hosts["t1"], scenario.pool()
        pool.next_ids("letters", 10)
        pool.next_id("letters")
        draw_elsewhere(scenario, "letters", 100, first)
        world.sleep(5)
        image = here.model.image()
        for _ in range(8):
            pool.next_ids("photos", 10)
            world.sleep(1)
        resume(here, image)
        pool.next_ids("photos", 10)
        pool.next_id("photos")
        assert pool.servers[0].table("photos").state == "quarantined"
        second.extend(pool.next_id("letters") for _ in range(10))

    play(kind, work)
    assert len(first) == 100
    assert not set(first) & set(second)


def test_process_frozen_in_a_tick_that_others_use_up_makes_ids() -> None:
    """Seed 904, 6 s, 5 processes: its clock had not stepped back; another thread had taken the ticks since."""
    ids: list[range] = []

    def work(scenario: Scenario) -> None:
        scenario.create_tables()
        world, pool = scenario.world, scenario.pool()
        NodeLeases(pool).create_table()
        generator = SnowflakeGenerator(pool, "likes")
        ids.extend(generator.reserve(4096 * 1200))  # all ticks of the last second
        others = [
            world.machine.spawn(lambda: ids.extend(generator.reserve(4096 * 1600)), "other")
            for _ in range(4)
        ]
        world.at(world.now + 0.0002, world.machine.freeze)
        world.at(world.now + 1.5, world.machine.thaw)
        for other in others:
            other.join()
        pool.dispose()

    play("mysql", work)
    assert sum(map(len, ids)) == 4096 * (1200 + 4 * 1600)


@pytest.mark.parametrize("moment", ["before the question", "after the answer"])
def test_own_answer_counts_for_nothing_once_the_name_is_mended(
    monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """Another thread finds the peer again over a new connection, while this one asks over the one to the restored server."""
    tickets: list[int] = []
    refused: list[str] = []
    use, read = ServerAccess.use, store.HighWaterStore.read

    def work(scenario: Scenario) -> None:
        tickets.extend(drawn_before_a_restore(scenario))
        network = scenario.network

        def mend(server: ServerAccess) -> None:
            if server.offset == 2 and server.generation == 1:
                network.lead("t2", "t2")
                server.connections.release(server.connect(afresh=True))

        def use_late(server: ServerAccess, work: Callable[[StatementContext], None]) -> None:
            def mend_first(context: StatementContext) -> None:
                mend(server)
                work(context)

            use(server, mend_first)

        def read_then_mend(of: store.HighWaterStore, *args: Any, **kwargs: Any) -> Any:
            answer = read(of, *args, **kwargs)
            mend(of.server)
            return answer

        if moment == "before the question":
            monkeypatch.setattr(ServerAccess, "use", use_late)
        else:
            monkeypatch.setattr(store.HighWaterStore, "read", read_then_mend)
        second = scenario.pool()
        for _ in range(12):
            try:
                tickets.append(second.next_id("photos"))
            except TicketError as error:
                refused.append(str(error))
        assert second.servers[1].generation > 1
        second.dispose()

    play("mysql", work)
    assert len(tickets) == len(set(tickets)) > 20, tickets
