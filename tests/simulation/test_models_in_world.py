"""Each kind of server in the world: the package reaches its connections, and fails over from a frozen one."""

from __future__ import annotations

import pytest

from sqla_tickets.errors import TicketError

from .directed import play
from .scenario import Scenario
from .servers import KINDS, Kind


@pytest.mark.parametrize("kind", KINDS)
def test_a_frozen_server_keeps_no_draw_waiting(kind: Kind) -> None:
    seconds: list[float] = []

    def draw(scenario: Scenario) -> None:
        scenario.create_tables()
        pool = scenario.pool()
        for _ in range(30):
            pool.next_id("photos")
        scenario.network.hosts["t1"].machine.freeze()
        for _ in range(10):
            began = scenario.world.now
            pool.next_id("photos")
            seconds.append(scenario.world.now - began)

    play(kind, draw)
    assert len(seconds) == 10
    assert max(seconds) < 0.3


@pytest.mark.parametrize("kind", KINDS)
def test_a_server_is_drawn_from_again_once_its_address_leads_to_it(kind: Kind) -> None:
    """Found by a seed: what was open went on leading to the other server for ever."""
    drawn: list[int] = []

    def draw(scenario: Scenario) -> None:
        scenario.create_tables()
        pool = scenario.pool()
        network = scenario.network
        network.swap("t1", "t2")
        for _ in range(3):
            with pytest.raises(TicketError):
                pool.next_id("photos")
        network.swap("t1", "t2")
        scenario.world.sleep(10)
        drawn.extend(pool.next_id("photos") for _ in range(20))

    play(kind, draw)
    assert {number % 2 for number in drawn} == {0, 1}
