"""Forks of simulated processes, at any moment, by threads that draw nothing; and processes resumed from images."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sqla_tickets import TicketPool
from sqla_tickets.draw import buffer as buffers
from sqla_tickets.snowflake.generator import SnowflakeGenerator

from .forks import image_of
from .scenario import Scenario, simulate
from .workload import Workload
from .world import World

LEASE_SECONDS = 1.0


class _Forks(Scenario):
    """Processes are forked and killed, and there are no other faults."""

    def __init__(self, world: World, *options: object) -> None:
        super().__init__(world, *options)  # type: ignore[arg-type]  # as they are
        self.nemesis.choose_only(self.nemesis.fork_process, self.nemesis.kill_process)


@pytest.mark.parametrize("seed", [1])
def test_forks_repeat_no_ticket(seed: int) -> None:
    outcome = simulate(seed, seconds=5.0, processes=3, scenario_type=_Forks)
    assert outcome.faults["fork"] > 1
    assert not outcome.broken_promises


def test_fork_that_keeps_its_buffer_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    reinit = TicketPool._reinit_after_fork

    def keep_buffer(pool: TicketPool) -> None:
        kept = pool._buffer
        reinit(pool)
        pool._buffer = kept
        setattr(kept, "is_owner_process", vars(buffers)["owner_mark"]())  # noqa: B010  # as if it were its own

    monkeypatch.setattr(TicketPool, "_reinit_after_fork", keep_buffer)
    outcome = simulate(4, seconds=4.0, processes=3, scenario_type=_Forks)
    assert {promise.kind for promise in outcome.broken_promises} & {"repeated", "unknown ticket"}


class _Images(Scenario):
    """Processes without buffers end, and go on from images that are older than their leases."""

    def __init__(self, world: World, *options: object) -> None:
        super().__init__(world, *options)  # type: ignore[arg-type]  # as they are
        self.nemesis.choose_only(self.resume_image)
        weights = self.habits.weights | {"make_ids": 10.0, "buffered": 0.0, "flush": 0.0}
        self.habits = replace(self.habits, weights=weights, lease_seconds=LEASE_SECONDS)

    def resume_image(self) -> None:
        """Take an image of a process; let another one go on from it after a while."""
        world, machine = self.world, self.world.random.choice(self.alive)
        workload = machine.state.get("workload")
        names = {task.name for task in machine.tasks.values()}
        own = {"main", *(f"drawer {n}" for n in range(self.habits.threads))}
        pool = machine.state.get("pool")
        if not isinstance(workload, Workload) or workload.draws_under_way:
            return
        # no thread runs in the image, so draws there must find that the monitor's has to be started
        assert isinstance(pool, TicketPool)
        if pool._monitor.poller.is_awake:
            return
        if any(name not in own and not name.endswith("hedging monitor") for name in names):
            return
        go_on = image_of(machine, workload, (Scenario,))

        def resume() -> None:
            if machine.is_dead or self.nemesis.is_over:
                return
            machine.die()
            self.alive.remove(machine)
            resumed, copied = go_on()
            self.alive.append(resumed)
            self.nemesis.faults["resumed image"] += 1
            resumed.spawn(copied.run_in_image, "main")

        world.at(world.now + LEASE_SECONDS * world.random.uniform(1, 1.5), resume)


def test_image_that_is_older_than_its_lease_repeats_nothing() -> None:
    """As docs/guide/time-sorted-ids.md says: its clock of elapsed seconds stood still, its wall clock did not."""
    outcome = simulate(1, seconds=8.0, processes=2, kind="mysql", scenario_type=_Images)
    assert outcome.faults["resumed image"] > 5
    assert not outcome.broken_promises


def test_image_that_trusts_elapsed_time_alone_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    make = SnowflakeGenerator._make

    def trust_elapsed_time(
        generator: SnowflakeGenerator, n: int, *, prepare: bool = False
    ) -> list[range]:
        lease = generator._leases.lease(generator._bits)
        lease.horizon = 2**63  # no clock is past it
        return make(generator, n, prepare=prepare)

    monkeypatch.setattr(SnowflakeGenerator, "_make", trust_elapsed_time)
    outcome = simulate(1, seconds=5.0, processes=2, kind="mysql", scenario_type=_Images)
    assert outcome.broken_promises
