"""Every server is away for a while: the buffer is used up, draws fail, and then all is as before."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from sqla_tickets import NoTicketServer, TicketPool, TicketSequence
from sqla_tickets.concurrency import in_event_loop, pause
from tests.support.draws import PATIENCE, assert_unique, held, mysql_like, residues, until
from tests.support.drivers import Route
from tests.support.servers import ServerFixtures

PHOTOS = TicketSequence("photos", block=20)


def wait_for(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        pause(0.01)


def tasks_left() -> list[str]:
    """The tasks of this event loop that are the pool's."""
    tasks = asyncio.all_tasks() if in_event_loop() else ()
    return [task.get_name() for task in tasks if task.get_name().startswith("sqla_tickets")]


@pytest.mark.parametrize("drivername", ["mysql+pymysql", "mysql+asyncmy"])
def test_all_servers_go_away_and_come_back(
    servers: ServerFixtures, drivername: str, tmp_path: Path
) -> None:
    route = Route(drivername, "mariadb")
    machines = [mysql_like(servers, "mariadb", number) for number in range(2)]
    urls = [route.fresh_database(servers, tmp_path, number) for number in range(2)]
    before = held()

    def work() -> list[int]:
        pool = TicketPool(urls)
        pool.create_table("photos")
        ids = pool.next_ids(PHOTOS, 5)
        for machine in machines:
            machine.kill()
        ids += [pool.next_id(PHOTOS) for _ in range(15)]
        for _ in range(10):
            with pytest.raises(NoTicketServer):
                pool.next_id(PHOTOS)
        for machine in machines:
            machine.start()
        later: list[int] = []

        def both_serve() -> bool:
            with suppress(NoTicketServer):
                later.extend(pool.next_ids("photos", 30))
            return residues(later) == {0, 1}

        wait_for(both_serve)
        pool.dispose()
        wait_for(lambda: not tasks_left())
        return ids + later

    assert_unique(route.run(work))
    gc.collect()
    until(lambda: held() <= before)
