"""Single rows from the tasks of an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

from sqlalchemy import make_url
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine

from benchmarks.harness import Comparison, Side, compare, timed
from benchmarks.keys import Models, auto_increment_key, models, range_models, ticket_models
from benchmarks.scale import Scale
from benchmarks.testbed import Testbed
from sqla_tickets import TicketPool

__all__ = ["single_rows"]

DRIVERS = {
    "mariadb": "mysql+asyncmy",
    "mysql": "mysql+asyncmy",
    "postgresql": "postgresql+asyncpg",
    "sqlite": "sqlite+aiosqlite",
}
#: Connections of the application's engine, which the tasks share.
CONNECTIONS = 20
#: How many rows each task inserts at least: of a single one, a round would see hardly more than how it begins and ends.
ROWS = 4


def single_rows(testbed: Testbed, scale: Scale) -> Iterator[Comparison]:
    """One AsyncSession, one object, one commit; tickets through the same driver."""
    driver = DRIVERS[testbed.kind]
    tickets = [make_url(url).set(drivername=driver) for url in testbed.tickets]
    loop = asyncio.new_event_loop()
    engine = create_async_engine(
        make_url(testbed.app).set(drivername=driver),
        **({} if testbed.kind == "sqlite" else {"pool_size": CONNECTIONS, "max_overflow": 0}),
    )
    with TicketPool(list(testbed.tickets)) as maker:
        for name in ("t100_photos", "t1_photos"):
            maker.create_table(name, layout="counter")
    pool = TicketPool(list(tickets))
    keys = {
        "TicketSequence, block=100": ticket_models("t100", pool, 100, create=False),
        "TicketSequence, block=1": ticket_models("t1", pool, 1, create=False),
        "AUTO_INCREMENT": models("t_auto", auto_increment_key),
        "ids from a range": range_models("t_range"),
    }
    try:
        for made in keys.values():
            loop.run_until_complete(_create(engine, made))
        for n in scale.tasks:
            each = max(ROWS, -(-scale.transactions // n))
            sides = [
                Side(name, timed(_work(loop, engine, made, n, each))) for name, made in keys.items()
            ]
            yield compare(
                f"tasks {n}" if n < max(scale.tasks) else "tasks",
                testbed.kind,
                f"AsyncSession: transactions of a single row, {n} tasks together",
                "rows/s",
                sides,
                rounds=scale.rounds,
            )
    finally:
        for made in keys.values():
            loop.run_until_complete(_drop(engine, made))
        loop.run_until_complete(engine.dispose())
        pool.dispose()
        loop.close()


def _work(
    loop: asyncio.AbstractEventLoop, engine: AsyncEngine, models: Models, tasks: int, each: int
) -> Callable[[], int]:
    async def insert() -> None:
        for _ in range(each):
            async with AsyncSession(engine) as session:
                session.add_all(models.photos(1))
                await session.commit()

    async def all_of_them() -> int:
        await asyncio.gather(*(insert() for _ in range(tasks)))
        return tasks * each

    return lambda: loop.run_until_complete(all_of_them())


async def _create(engine: AsyncEngine, models: Models) -> None:
    async with engine.begin() as connection:
        await connection.run_sync(models.base.metadata.create_all)


async def _drop(engine: AsyncEngine, models: Models) -> None:
    async with engine.begin() as connection:
        await connection.run_sync(models.base.metadata.drop_all)
