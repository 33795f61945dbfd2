"""`dispose` while a background call is under way: what that opens afterwards is nobody's, and does not stay."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sqla_tickets import TicketPool, TicketSequence
from sqla_tickets.draw.health_check import probe
from sqla_tickets.snowflake.generator import SnowflakeGenerator
from sqla_tickets.snowflake.leases import NodeLeases

from .directed import play
from .scenario import Scenario

LEASE_SECONDS = 3.0
#: The longest wait of a background call: two servers, each asked twice.
ALL_OVER_SECONDS = 15.0


def fetch(scenario: Scenario, pool: TicketPool) -> None:
    """Begin to fetch a block."""
    videos = TicketSequence("videos", block=50)
    for _ in range(30):
        pool.next_id(videos)


def check_health(scenario: Scenario, pool: TicketPool) -> None:
    """Begin to ask a server whether it is back, over an idle connection that gives no answer."""
    probe(pool.servers[0])


def write_marks(scenario: Scenario, pool: TicketPool) -> None:
    """Begin to write the marks of tickets."""
    scenario.world.sleep(5)
    pool.next_id("photos")


def renew_lease(scenario: Scenario, pool: TicketPool) -> None:
    """Begin to renew the lease of a node number."""
    leases = NodeLeases(pool, duration=LEASE_SECONDS)
    leases.create_table()
    generator = SnowflakeGenerator(pool, "likes")
    generator.next_id()
    scenario.world.sleep(LEASE_SECONDS / 2)
    generator.next_id()


@pytest.mark.parametrize("frozen_seconds", [0.0, 0.4, 1.5])
@pytest.mark.parametrize("slow_seconds", [0.0002, 0.05])
@pytest.mark.parametrize(
    ("begin", "name"),
    [
        (fetch, "block"),
        (check_health, "probe"),
        (write_marks, "marks"),
        (renew_lease, "renewal"),
    ],
)
def test_dispose_during_a_background_call_leaves_nothing(
    begin: Callable[[Scenario, TicketPool], None],
    name: str,
    slow_seconds: float,
    frozen_seconds: float,
) -> None:
    left: list[str] = []

    def work(scenario: Scenario) -> None:
        scenario.create_tables()
        world, pool, hosts = scenario.world, scenario.pool(), scenario.network.hosts.values()
        pool.next_ids("photos", 4)
        world.sleep(1)
        begin(scenario, pool)
        assert any(f"sqla_tickets {name}" in task.name for task in world.machine.tasks.values())
        for host in hosts:
            host.seconds = slow_seconds
            if frozen_seconds:
                host.machine.freeze()
                world.at(world.now + frozen_seconds, host.machine.thaw)
        pool.dispose()
        world.sleep(ALL_OVER_SECONDS)
        left.extend(f"{channel}" for host in hosts for channel in host.channels.values())
        left.extend(task.name for task in world.machine.tasks.values() if task is not world.task)

    play("mysql", work)
    assert not left
