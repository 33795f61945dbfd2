"""Callers that come while another one begins a lease, which cannot always go on while they wait for it."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from sqlalchemy import URL
from sqlalchemy.util import greenlet_spawn

from sqla_tickets import NodeLeases, SnowflakeGenerator, TicketArgumentError, TicketPool
from sqla_tickets.snowflake import lease_table
from sqla_tickets.snowflake.lease_table import Row
from tests.integration.snowflake.conftest import OpenPool
from tests.support.draws import PATIENCE, assert_unique
from tests.support.servers import ServerFixtures


async def begin_in_a_task(made: SnowflakeGenerator) -> asyncio.Task[int]:
    """Make an id in a task that now begins the lease for it."""
    task = asyncio.ensure_future(greenlet_spawn(made.next_id))
    calls = made._leases._leasing._doing
    while not any(call.under_way.locked() for call in calls.values()):  # noqa: ASYNC110  # polls a lock
        await asyncio.sleep(0)
    return task


async def test_next_id_in_a_coroutine_waits_for_no_task_of_its_loop(pool: TicketPool) -> None:
    """The coroutine blocks the loop, so the task that begins the lease cannot go on."""
    made = SnowflakeGenerator(pool, "photos")
    task = await begin_in_a_task(made)
    ids = [made.next_id(), made.next_id()]
    ids += [await task, made.next_id()]
    assert_unique(ids)


async def test_next_id_in_a_coroutine_with_async_driver_is_refused(
    pool: TicketPool, files: list[URL]
) -> None:
    tickets = TicketPool([url.set(drivername="sqlite+aiosqlite") for url in files])
    NodeLeases(tickets)
    made = SnowflakeGenerator(tickets, "photos")
    task = await begin_in_a_task(made)
    with pytest.raises(TicketArgumentError, match="has an async driver"):
        made.next_id()
    first = await task
    lease = made._leases.lease(made._bits)
    with pytest.raises(TicketArgumentError, match="has an async driver"):
        made._leases.extend(lease)
    assert not lease.ended
    assert made.next_id() > first
    await greenlet_spawn(tickets.dispose)


def test_next_id_waits_for_no_task_of_a_stopped_loop(pool: TicketPool) -> None:
    made, loop = SnowflakeGenerator(pool, "photos"), asyncio.new_event_loop()
    task = loop.run_until_complete(begin_in_a_task(made))
    ids = [made.next_id(), made.next_id()]
    ids += [loop.run_until_complete(task), made.next_id()]
    loop.close()
    assert_unique(ids)


def test_next_id_waits_for_no_hanging_thread_for_ever(
    files: list[URL], open_pool: OpenPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = SnowflakeGenerator(open_pool(files, 0.5), "photos")
    hangs, goes_on = threading.Event(), threading.Event()
    released, ids = lease_table.released, list[int]()

    def hang(*arguments: Any) -> list[Row]:
        monkeypatch.undo()
        hangs.set()
        assert goes_on.wait(PATIENCE)
        return released(*arguments)

    monkeypatch.setattr(lease_table, "released", hang)
    thread = threading.Thread(target=lambda: ids.append(made.next_id()))
    thread.start()
    assert hangs.wait(PATIENCE)
    ids.append(made.next_id())
    assert len(ids) == 1
    goes_on.set()
    thread.join()
    ids.append(made.next_id())
    assert_unique(ids)
    assert len(ids) == 3


@pytest.mark.parametrize("driver", ["asyncmy", "aiomysql"])
def test_lease_with_async_driver_passes_a_frozen_server(
    servers: ServerFixtures, driver: str
) -> None:
    """No driver's time-out ends the wait, and no monitor polls it, as it is no draw."""
    mariadbs = [servers.mariadb(n) for n in range(2)]
    urls = [servers.fresh_database(server).set(drivername=f"mysql+{driver}") for server in mariadbs]

    async def make() -> int:
        pool = TicketPool(urls, timeout=0.2, lock_wait=0.2)
        await greenlet_spawn(NodeLeases(pool).create_table)
        mariadbs[0].freeze()
        try:
            return await asyncio.wait_for(
                greenlet_spawn(SnowflakeGenerator(pool, "photos").next_id), PATIENCE
            )
        finally:
            mariadbs[0].thaw()
            await greenlet_spawn(pool.dispose)

    assert asyncio.run(make()) > 0
