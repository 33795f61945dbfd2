"""Threads, and tasks of an event loop, that draw at once in one process, as `benchmarks.crew` has processes."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import tracemalloc
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, ExitStack, contextmanager
from functools import partial
from itertools import cycle
from typing import Protocol, TypeAlias

from sqlalchemy import make_url

from benchmarks.harness import draws_of
from benchmarks.peers import PEERS, Draw
from benchmarks.testbed import Testbed
from sqla_tickets import AsyncTicketPool

__all__ = ["Crowd", "tasks", "threads"]

AsyncDraw: TypeAlias = "Callable[[], Awaitable[object]]"
_DRIVER = "mysql+asyncmy"


class Crowd(Protocol):
    """Clients that can be told to draw at once."""

    def open(self, peer: str) -> None:
        """Have each open its connections."""
        ...

    def waits(self, peer: str, clients: int, seconds: float, /) -> list[float]:
        """What each draw of the first so many clients took, in seconds, the shortest first."""
        ...

    def memory(self, peer: str) -> int:
        """The bytes that one client more took, or one process."""
        ...


class _Threads:
    """Threads: all of them draw through one pool, and each has bare cursors of its own."""

    def __init__(self, testbed: Testbed, most: int, stack: ExitStack) -> None:
        self._testbed, self._most, self._stack = testbed, most, stack
        self._draws: dict[str, list[Draw]] = {}
        self._memory: dict[str, int] = {}

    def open(self, peer: str) -> None:
        how = PEERS[peer]
        with how.open(self._testbed) as first:
            first()  # which imports what it needs: that counts for neither side
        with _traced() as taken:
            own = self._most if how.alone else 1
            opened = [self._stack.enter_context(how.open(self._testbed)) for _ in range(own)]
            for draw in opened:
                draw()
        self._draws[peer] = opened * (self._most // own)
        self._memory[peer] = taken[0] // self._most

    def waits(self, peer: str, clients: int, seconds: float) -> list[float]:
        waits: list[float] = []
        ready = threading.Barrier(clients)

        def work(draw: Draw) -> None:
            ready.wait()
            found = draws_of(draw, seconds, time.perf_counter)
            waits.extend(took for _, took in found)

        working = [
            threading.Thread(target=work, args=(draw,)) for draw in self._draws[peer][:clients]
        ]
        for thread in working:
            thread.start()
        for thread in working:
            thread.join()
        return sorted(waits)

    def memory(self, peer: str) -> int:
        return self._memory[peer]


class _Tasks:
    """Tasks of one event loop: all of them draw through one pool, and each has bare cursors of its own."""

    def __init__(self, testbed: Testbed, most: int, loop: asyncio.AbstractEventLoop) -> None:
        self._testbed, self._most, self._loop = testbed, most, loop
        self._draws: dict[str, list[AsyncDraw]] = {}
        self._memory: dict[str, int] = {}
        self._stack = AsyncExitStack()

    def open(self, peer: str) -> None:
        self._loop.run_until_complete(self._open(peer, 1))  # as in `_Threads.open`
        with _traced() as taken:
            self._draws[peer] = self._loop.run_until_complete(self._open(peer, self._most))
        self._memory[peer] = taken[0] // self._most

    async def _open(self, peer: str, clients: int) -> list[AsyncDraw]:
        statement = _STATEMENTS.get(peer)
        draws: list[AsyncDraw]
        if statement is not None:
            draws = [await self._bare(statement) for _ in range(clients)]
        else:
            urls = [make_url(url).set(drivername=_DRIVER) for url in self._testbed.tickets]
            pool = await self._stack.enter_async_context(AsyncTicketPool(urls))
            name = _SEQUENCES[peer]
            draws = [partial(pool.next_id, name)] * clients
        for draw in draws:
            await draw()
        return draws

    async def _bare(self, statement: str) -> AsyncDraw:
        import asyncmy

        opened = []
        for address in self._testbed.tickets:
            url = make_url(address)
            connection = await asyncmy.connect(
                host=url.host,
                port=url.port or 3306,
                user=url.username,
                password=str(url.password or ""),
                db=url.database,
                autocommit=True,
            )
            self._stack.callback(connection.close)
            opened.append(connection.cursor())
        cursors = cycle(opened)

        async def draw() -> int:
            cursor = next(cursors)
            await cursor.execute(statement)
            return int(cursor.lastrowid)

        return draw

    def waits(self, peer: str, clients: int, seconds: float) -> list[float]:
        waits: list[float] = []

        async def work(draw: AsyncDraw) -> None:
            began = now = time.perf_counter()
            end = now + seconds
            while now < end:
                try:
                    await draw()
                except Exception:  # noqa: BLE001  # as in `benchmarks.harness.draws_of`
                    now = time.perf_counter()
                else:
                    now = time.perf_counter()
                    waits.append(now - began)
                    began = now

        async def all_of_them() -> None:
            await asyncio.gather(*(work(draw) for draw in self._draws[peer][:clients]))

        self._loop.run_until_complete(all_of_them())
        return sorted(waits)

    def memory(self, peer: str) -> int:
        return self._memory[peer]

    def close(self) -> None:
        """Close every connection."""
        self._loop.run_until_complete(self._stack.aclose())


#: What the bare cursors of tasks send; their tables are those of the bare cursors of threads.
_STATEMENTS = {
    "UPDATE, bare cursors in turn": "UPDATE bare_counted SET id = LAST_INSERT_ID(id + 2) WHERE stub = 'c'",
    "REPLACE, bare cursors in turn": "REPLACE INTO bare_replaced (stub) VALUES ('a')",
}
_SEQUENCES = {"next_id, counter layout": "counted", "next_id, replace layout": "replaced"}


@contextmanager
def _traced() -> Iterator[list[int]]:
    """The bytes that Python has allocated inside of this, and kept."""
    taken: list[int] = []
    tracemalloc.start()
    try:
        yield taken
    finally:
        gc.collect()
        taken.append(tracemalloc.get_traced_memory()[0])
        tracemalloc.stop()


@contextmanager
def threads(testbed: Testbed, most: int) -> Iterator[Crowd]:
    """So many threads for a while."""
    with ExitStack() as stack:
        yield _Threads(testbed, most, stack)


@contextmanager
def tasks(testbed: Testbed, most: int) -> Iterator[Crowd]:
    """So many tasks of one event loop for a while."""
    loop = asyncio.new_event_loop()
    crowd = _Tasks(testbed, most, loop)
    try:
        yield crowd
    finally:
        crowd.close()
        loop.close()
