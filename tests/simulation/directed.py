"""A world without chance's faults: what a test does in it, one client does."""

from __future__ import annotations

from collections.abc import Callable

from .checker import told_of_answers
from .scenario import Scenario
from .servers import Kind
from .stand_ins import installed
from .world import Machine, World

__all__ = ["play"]


def play(kind: Kind, work: Callable[[Scenario], None], *, seed: int = 1) -> Scenario:
    """Do some work as one client of two servers of a kind, for a minute at most."""
    world = World(seed)
    with installed(world):
        scenario = Scenario(world, processes=1, servers=2, kind=kind)
        scenario.habits.pool.clear()  # as pools are by default
        Machine(world, "client").spawn(lambda: work(scenario), "main")
        with told_of_answers(scenario.checker):
            world.run(60)
        world.close()
    assert not world.errors
    return scenario
