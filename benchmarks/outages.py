"""What an outage costs the inserts that run into it: ``python -m benchmarks.outages``.

Threads, or tasks of an event loop, insert into a SQLite shard each, while a ticket server is killed, frozen, or
both are away. Every insert is timed. All times are milliseconds.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import logging
import os
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass, field

from sqlalchemy import (
    URL,
    BigInteger,
    Column,
    MetaData,
    StaticPool,
    String,
    Table,
    create_engine,
    insert,
)
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import registry

from benchmarks.crew import Crew, crew
from benchmarks.machine import machine
from benchmarks.peers import PEERS
from benchmarks.testbed import Testbed
from sqla_tickets import TicketError, TicketPool, TicketSequence
from tests.support.servers import ServerRegistry
from tests.support.servers.base import Server, ServerMissing

THREADS, TASKS, PROCESSES = 16, 200, 32
#: How many tickets are buffered, where any are.
BLOCK = 50
WARM_UP, AFTER = 3.0, 2.0
#: Seconds between two inserts of a thread or a task, so that not the processor is what is measured.
THREADS_REST, TASKS_REST = 0.02, 2.0


@dataclass
class Times:
    """When each insert began and how long it took, in seconds."""

    inserts: list[tuple[float, float]] = field(default_factory=list)
    errors: list[tuple[float, float, str]] = field(default_factory=list)

    @contextlib.contextmanager
    def measured(self) -> Iterator[None]:
        begin = time.monotonic()
        try:
            yield
        except TicketError as error:
            self.errors.append((begin, time.monotonic() - begin, type(error).__name__))
        else:
            self.inserts.append((begin, time.monotonic() - begin))

    def between(self, begin: float, end: float) -> list[float]:
        """The durations, in ms, of the inserts that were under way then."""
        return [1000 * took for at, took in self.inserts if at + took > begin and at < end]


def new_table(block: int = 1) -> Table:
    columns = (
        Column("id", BigInteger, TicketSequence("photos", block=block), primary_key=True),
        Column("title", String(50)),
    )
    return Table("photos", MetaData(), *columns)


def insert_by_threads(pool: TicketPool, nemesis: Callable[[], None], block: int = 1) -> Times:
    """Insert row by row with many threads, each into an in-memory shard of its own."""
    times, over = Times(), threading.Event()
    table = new_table(block)
    pool.attach(table.metadata)

    def work() -> None:
        engine = create_engine(
            "sqlite://", poolclass=StaticPool, connect_args={"check_same_thread": False}
        )
        table.metadata.create_all(engine)
        with engine.connect() as connection:
            while not over.is_set():
                with times.measured(), connection.begin():
                    connection.execute(insert(table).values(title="t"))
                time.sleep(THREADS_REST)
        engine.dispose()

    with ThreadPoolExecutor(THREADS) as threads:
        working = [threads.submit(work) for _ in range(THREADS)]
        try:
            nemesis()
        finally:
            over.set()
    for done in working:
        done.result()
    return times


def insert_by_tasks(pool: TicketPool, nemesis: Callable[[], None]) -> tuple[Times, list[float]]:
    """Insert with many tasks of one event loop; also the loop's gaps, in ms, with their times."""
    times, gaps, over = Times(), [], threading.Event()
    table = new_table()
    pool.attach(table.metadata)

    class Photo:
        pass

    registry(metadata=table.metadata).map_imperatively(Photo, table)

    async def beat() -> None:
        before = time.monotonic()
        while not over.is_set():
            await asyncio.sleep(0.001)
            now = time.monotonic()
            gaps.append(1000 * (now - before))
            before = now

    async def work(
        sessions: Callable[[], AsyncSession], slot: asyncio.Semaphore, number: int
    ) -> None:
        await asyncio.sleep(TASKS_REST * number / TASKS)  # all at once would be a gap of their own
        while not over.is_set():
            with times.measured():
                async with sessions() as session:
                    session.add(Photo())
                    await session.flush()
                    async with slot:
                        await session.rollback()
            await asyncio.sleep(TASKS_REST)

    async def main() -> None:
        gc.collect()
        gc.freeze()  # else each full collection walks through the modules of this program: a gap, too
        engine = create_async_engine("sqlite+aiosqlite://", poolclass=StaticPool)
        async with engine.begin() as connection:
            await connection.run_sync(table.metadata.create_all)
        slot = asyncio.Semaphore(1)
        tasks = [
            asyncio.create_task(work(lambda: AsyncSession(engine), slot, number))
            for number in range(TASKS)
        ]
        beating = asyncio.create_task(beat())
        await asyncio.to_thread(nemesis)
        over.set()
        await asyncio.gather(*tasks, beating)
        await engine.dispose()

    asyncio.run(main())
    return times, gaps


def outage(
    begin: Callable[[], None], end: Callable[[], None], seconds: float
) -> tuple[Callable[[], None], list[float]]:
    """What a nemesis does, and when it began and ended."""
    marks: list[float] = []

    def run() -> None:
        time.sleep(WARM_UP)
        marks.append(time.monotonic())
        begin()
        time.sleep(seconds)
        marks.append(time.monotonic())
        end()
        time.sleep(AFTER)

    return run, marks


def report(title: str, times: Times, begin: float, end: float, usual: float) -> None:
    during = sorted(times.between(begin, end), reverse=True)
    before = sorted(times.between(begin - 1.5, begin), reverse=True)
    median = statistics.median(before)
    slow = [took for took in during if took > median + usual]
    print(
        f"| {title} | {len(times.errors)} | {median:.2f} | {before[len(before) // 1000]:.1f} |"
        f" {before[0]:.1f} | {during[0]:.1f} | {len(slow)} above +{usual:.0f} |"
    )


def run(kind: str, servers: Sequence[Server], layouts: Sequence[str], seconds: float) -> None:
    print(
        f"\n## {kind}, {THREADS} threads\n\n| what | failed | median before | p99.9 before |"
        " slowest before | slowest in the outage | slow ones |\n|---|---:|---:|---:|---:|---:|---|"
    )
    first = servers[0]
    for layout in layouts:
        for name, begin, finish, hedge, usual in (
            ("kill -9", first.kill, first.start, None, 100.0),
            ("freeze, no hedging", first.freeze, first.thaw, False, 20.0),
            ("freeze", first.freeze, first.thaw, None, 50.0),
        ):
            with TicketPool(fresh(servers), hedge=hedge) as pool:
                pool.create_table("photos", layout=layout)  # type: ignore[arg-type]  # from the command line
                nemesis, marks = outage(begin, finish, seconds)
                times = insert_by_threads(pool, nemesis)
                report(f"{name}, {layout}", times, marks[0], marks[1], usual)
                pool.drop_table("photos")


def run_async(kind: str, servers: Sequence[Server], layouts: Sequence[str], seconds: float) -> None:
    print(
        f"\n## {kind}, AsyncSession, {TASKS} tasks, a frozen server\n\n| tickets by | failed | median | slowest"
        " in the outage | longest gap before | longest gap in the outage |\n|---|---:|---:|---:|---:|---:|"
    )
    first = servers[0]
    for driver in ("asyncmy", "aiomysql", "pymysql"):
        for layout in layouts:
            urls = [url.set(drivername=f"mysql+{driver}") for url in fresh(servers)]
            with TicketPool(fresh(servers)) as pool:
                pool.create_table("photos", layout=layout)  # type: ignore[arg-type]  # from the command line
            pool = TicketPool(urls)
            nemesis, marks = outage(first.freeze, first.thaw, seconds)
            times, gaps = insert_by_tasks(pool, nemesis)
            during = times.between(marks[0], marks[1])
            before = times.between(marks[0] - 1.5, marks[0])
            share = int(len(gaps) * WARM_UP / (WARM_UP + seconds + AFTER))
            print(
                f"| {driver}, {layout} | {len(times.errors)} | {statistics.median(before):.1f} |"
                f" {max(during):.1f} | {max(gaps[share // 2 : share]):.1f} | {max(gaps[share:]):.1f} |"
            )
            with TicketPool(fresh(servers)) as sync:
                sync.drop_table("photos")


@dataclass
class Frozen:
    """What one round of `run_frozen` measured: rates in draws per second, times in ms.

    Attributes:
        before: this project's draws on both servers.
        slowest_before: the slowest of them.
        rate: this project's draws while one server was frozen.
        alone: those of bare cursors on the other server, after it was thawed.
        sent: the slowest of this project's draws that were under way when it was frozen.
        slowest: the slowest of the later ones.
        slowest_alone: the slowest of the bare cursors'.
    """

    before: float
    slowest_before: float
    rate: float
    alone: float
    sent: float
    slowest: float
    slowest_alone: float


def frozen_round(workers: Crew, ours: str, bare: str, second: Server, seconds: float) -> Frozen:
    """Freeze the second server while processes draw from both; then have bare cursors draw from the first one."""
    workers.waits(ours, PROCESSES, 1.0)
    nemesis, marks = outage(second.freeze, second.thaw, seconds)
    with ThreadPoolExecutor(1) as thread:
        done = thread.submit(nemesis)
        draws = workers.draws(ours, PROCESSES, WARM_UP + seconds)
        done.result()
    waits = workers.waits(bare, PROCESSES, seconds)
    began, ended = marks
    before = [took for at, took in draws if at + took <= began]
    sent = [took for at, took in draws if at <= began < at + took]
    others = [took for at, took in draws if began < at and at + took <= ended]
    # the first second is that of the draws that were sent to it, and of those that notice
    late = [at for at, _ in draws if began + 1.0 < at <= ended]
    return Frozen(
        before=len(before) / WARM_UP,
        slowest_before=1000 * max(before),
        rate=len(late) / (ended - began - 1.0),
        alone=len(waits) / seconds,
        sent=1000 * max(sent, default=0.0),
        slowest=1000 * max(others),
        slowest_alone=1000 * waits[-1],
    )


def run_frozen(
    kind: str, servers: Sequence[Server], layouts: Sequence[str], seconds: float, rounds: int
) -> None:
    """One of two servers is frozen while processes draw as fast as they can; then bare cursors on the other one alone."""
    print(
        f"\n## {kind}, {PROCESSES} processes that draw as fast as they can, a frozen server\n\n| layout, round | draws/s before |"
        " slowest before | draws/s while frozen | bare cursors on the other one | ratio, at least 0.9 | slowest of those sent"
        " before | slowest of the others | above the slowest before, at most 50 | slowest of the bare ones | above it |\n"
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|"
    )
    _, second = servers
    urls = [url.render_as_string(hide_password=False) for url in fresh(servers)]
    testbed = Testbed(kind, "", tuple(urls), urls[0], None)
    for layout, (ours, bare) in _FROZEN.items():
        if layout not in layouts:
            continue
        with ExitStack() as stack:
            for peer in (ours, bare):
                stack.enter_context(PEERS[peer].open(testbed))
            workers = stack.enter_context(crew(testbed, PROCESSES))
            for peer in (ours, bare):
                workers.open(peer)
            found = []
            for number in range(1, rounds + 1):
                found.append(frozen_round(workers, ours, bare, second, seconds))
                report_frozen(f"{layout}, {number}", found[-1:])
            report_frozen(f"{layout}, median", found)


def report_frozen(title: str, rounds: Sequence[Frozen]) -> None:
    """Print the median of each column."""
    columns: tuple[tuple[str, Callable[[Frozen], float]], ...] = (
        (",.0f", lambda one: one.before),
        (".0f", lambda one: one.slowest_before),
        (",.0f", lambda one: one.rate),
        (",.0f", lambda one: one.alone),
        (".2f", lambda one: one.rate / one.alone),
        (".0f", lambda one: one.sent),
        (".0f", lambda one: one.slowest),
        ("+.0f", lambda one: one.slowest - one.slowest_before),
        (".0f", lambda one: one.slowest_alone),
        ("+.0f", lambda one: one.slowest - one.slowest_alone),
    )
    cells = [format(statistics.median(map(value, rounds)), style) for style, value in columns]
    print(f"| {title} | {' | '.join(cells)} |", flush=True)


#: This project's draw, and a bare cursor on the first server alone, by layout.
_FROZEN = {
    "counter": ("next_id, counter layout", "UPDATE, bare cursor"),
    "replace": ("next_id, replace layout", "REPLACE, bare cursor"),
}


def run_all_down(kind: str, servers: Sequence[Server], block: int, seconds: float) -> None:
    """Both servers are killed for a while: how soon that is said, and how soon it is over."""
    counted = counts()
    with TicketPool(fresh(servers)) as pool:
        pool.create_table("photos")
        returned: list[float] = []

        def start() -> None:
            for server in servers:
                server.start()
                returned.append(time.monotonic())

        nemesis, marks = outage(lambda: each(servers, "kill"), start, seconds)
        times = insert_by_threads(pool, nemesis, block)
        after = [at + took for at, took in times.inserts if at + took > marks[1]]
        slowest = max(took for _, took, _ in times.errors)
        first_error = min(at for at, _, _ in times.errors)
        print(
            f"\n## {kind}, both servers killed for {seconds:.0f} s, block={block}\n\n{len(times.between(marks[0], first_error)):,}"
            f" inserts before the first error; {len(times.errors):,} times"
            f" {', '.join({name for *_, name in times.errors})}, the slowest after {1000 * slowest:.1f} ms; the first insert"
            f" {1000 * (min(after) - marks[1]):.0f} ms after the order to start them, and"
            f" {1000 * (min(after) - returned[0]):.0f} ms after one was seen to answer"
        )
        pool.drop_table("photos")
    gc.collect()
    print(f"threads and file descriptors before: {counted}, after: {counts()}")


def each(servers: Sequence[Server], what: str) -> None:
    for server in servers:
        getattr(server, what)()


def counts() -> tuple[int, int]:
    return threading.active_count(), len(os.listdir("/proc/self/fd"))


def fresh(servers: Sequence[Server]) -> list[URL]:
    return [server.url("bench_outages") for server in servers]


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.outages", description=__doc__)
    parser.add_argument("--servers", default="mariadb,mysql", help="kinds (default: %(default)s)")
    parser.add_argument("--layouts", default="replace,counter", help="(default: %(default)s)")
    parser.add_argument(
        "--parts", default="threads,tasks,frozen,all-down", help="(default: %(default)s)"
    )
    parser.add_argument(
        "--seconds", type=float, default=4.0, help="of an outage (default: %(default)s)"
    )
    parser.add_argument(
        "--rounds", type=int, default=5, help="of the part *frozen* (default: %(default)s)"
    )
    options = parser.parse_args()
    logging.disable(logging.WARNING)  # thousands of them
    kinds, layouts = options.servers.split(","), options.layouts.split(",")
    print(machine())
    with closing(ServerRegistry(kinds)) as server_registry:
        for kind in kinds:
            try:
                servers: list[Server] = [
                    getattr(server_registry, kind)(number) for number in range(2)
                ]
            except ServerMissing as missing:
                print(f"\n{kind}: left out: {missing}")
                continue
            for server in servers:
                server.create_database("bench_outages")
            if "threads" in options.parts:
                run(kind, servers, layouts, options.seconds)
            if "tasks" in options.parts:
                run_async(kind, servers, layouts, options.seconds)
            if "frozen" in options.parts:
                run_frozen(kind, servers, layouts, options.seconds, options.rounds)
            if "all-down" in options.parts:
                for block in (1, BLOCK):
                    run_all_down(kind, servers, block, options.seconds)


if __name__ == "__main__":
    main()
