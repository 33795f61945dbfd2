"""How tickets are drawn: one by one, in blocks, by flushes, by async sessions; and in forks of each.

Only the public API is used, in the ways that its users have.
"""

from __future__ import annotations

import asyncio
import faulthandler
import gc
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import BigInteger, Engine, create_engine, event
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from sqla_tickets import TicketPool, TicketSequence
from sqla_tickets.dialects import LayoutName
from tests.chaos.journal import Journal
from tests.support.draws import held

__all__ = ["PATIENCE", "SEQUENCES", "WORKLOADS", "Plan", "runs", "see_what_is_left", "work"]

#: The sequences by the layouts of their tables.
SEQUENCES: dict[LayoutName, str] = {"replace": "photos_replace", "counter": "photos_counter"}
STRIDE = 2
THREADS = 2
TASKS = 8
#: How many children one storm forks, and how much each of them draws.
CHILDREN, DRAWS_OF_A_CHILD = 4, 5
#: An event loop that stands still for longer is written down, in seconds.
GAP = 0.05
#: How many seconds the threads and connections of a closed pool may need to end.
SECONDS_TO_LEAVE = 5.0
#: How many seconds a forked child may take; one that hangs ends then, which the report tells.
CHILD_SECONDS = 20
#: How many seconds after its time a worker may still be there; draws and children end sooner.
PATIENCE = 30


class Base(DeclarativeBase):
    pass


class ReplacedPhoto(Base):
    __tablename__ = "replaced_photos"
    id: Mapped[int] = mapped_column(
        BigInteger, TicketSequence(SEQUENCES["replace"]), primary_key=True
    )


class CountedPhoto(Base):
    __tablename__ = "counted_photos"
    id: Mapped[int] = mapped_column(
        BigInteger, TicketSequence(SEQUENCES["counter"], block=20), primary_key=True
    )


MODELS: dict[str, type[ReplacedPhoto | CountedPhoto]] = {
    SEQUENCES["replace"]: ReplacedPhoto,
    SEQUENCES["counter"]: CountedPhoto,
}


@dataclass(frozen=True)
class Plan:
    """What one worker process does.

    Attributes:
        workload: one of `WORKLOADS`.
        name: of the worker, the same after it was killed and started again.
        urls: of the ticket servers.
        sequences: those it draws from, at random.
        folder: for its journal, its shards and its log.
        seed: of what it draws, and when.
        until: when it ends by itself, in seconds of the monotonic clock.
        pace: how many seconds a thread or a task rests after a draw, on the average.
    """

    workload: str
    name: str
    urls: tuple[str, ...]
    sequences: tuple[str, ...]
    folder: Path
    seed: str
    until: float
    pace: float

    @property
    def journal(self) -> Path:
        """The file that it writes to."""
        return self.folder / f"{self.name}.journal"

    @property
    def storm(self) -> Path:
        """The file by whose time a storm of forks is called for."""
        return self.folder / "storm"


class Worker:
    """One process that draws.

    Attributes:
        plan: what it does.
        pool: its ticket servers.
        journal: where it writes down what comes of it.
    """

    def __init__(self, plan: Plan, pool: TicketPool, journal: Journal) -> None:
        self.plan, self.pool, self.journal = plan, pool, journal

    @property
    def over(self) -> bool:
        """Whether its time is."""
        return time.monotonic() >= self.plan.until

    def shuffled_draws(self, chooser: random.Random) -> Iterator[tuple[str, int]]:
        """A sequence and how many tickets to draw from it, again and again until the time is over."""
        while not self.over:
            yield chooser.choice(self.plan.sequences), chooser.choice((1, 1, 2, 5, 40))
            time.sleep(chooser.expovariate(1 / self.plan.pace))


def singles(worker: Worker, thread: int, chooser: random.Random) -> None:
    """``next_id``: a round trip per ticket."""
    for sequence, _ in worker.shuffled_draws(chooser):
        worker.journal.draw(sequence, 1, lambda: runs([worker.pool.next_id(sequence)]))  # noqa: B023


def blocks(worker: Worker, thread: int, chooser: random.Random) -> None:
    """``next_ids`` and ``reserve``, of a sequence that buffers a block and of one that does not."""
    pool = worker.pool
    for name, n in worker.shuffled_draws(chooser):
        sequence = TicketSequence(name, block=chooser.choice((1, 25, 300)))

        def ids(n: int = n, sequence: TicketSequence = sequence) -> Iterable[range]:
            return runs(pool.next_ids(sequence, n))

        def ranges(n: int = n, sequence: TicketSequence = sequence) -> Iterable[range]:
            return pool.reserve(sequence, n)

        worker.journal.draw(name, n, chooser.choice((ids, ranges)))


def flushes(worker: Worker, thread: int, chooser: random.Random) -> None:
    """An ORM flush into a shard; one that has the ticket already refuses it, and it counts as drawn."""
    engine = create_engine(_shard(worker.plan, "sqlite", thread))
    _prepare(engine)
    for sequence, n in worker.shuffled_draws(chooser):

        def flush(n: int = n, sequence: str = sequence) -> Iterable[range]:
            photos = [MODELS[sequence]() for _ in range(n)]
            with (
                suppress(IntegrityError),
                Session(engine, expire_on_commit=False) as session,
                session.begin(),
            ):
                session.add_all(photos)
            return runs([photo.id for photo in photos])

        worker.journal.draw(sequence, n, flush)
    engine.dispose()


async def sessions(worker: Worker, task: int, chooser: random.Random) -> None:
    """An ``AsyncSession`` of its own for each draw; the other tasks go on meanwhile."""
    engine = create_async_engine(_shard(worker.plan, "sqlite+aiosqlite", task))
    await _prepare_async(engine)
    plan, journal = worker.plan, worker.journal
    while not worker.over:
        sequence, n = chooser.choice(plan.sequences), chooser.choice((1, 1, 2, 5, 40))
        began = journal.attempt(sequence, n)
        try:
            photos = [MODELS[sequence]() for _ in range(n)]
            with suppress(IntegrityError):
                async with AsyncSession(engine, expire_on_commit=False) as session, session.begin():
                    session.add_all(photos)
            journal.acknowledge(began, sequence, n, runs([photo.id for photo in photos]))
        except Exception as error:  # noqa: BLE001  # any class: the report tells which
            journal.fail(began, sequence, n, error)
        await asyncio.sleep(chooser.expovariate(1 / plan.pace))
    await engine.dispose()


Work = Callable[[Worker, int, random.Random], None]
_SYNCHRONOUS: dict[str, Work] = {"singles": singles, "blocks": blocks, "flushes": flushes}
WORKLOADS = (*_SYNCHRONOUS, "sessions")


def runs(ids: Iterable[int]) -> Iterator[range]:
    """Tickets that follow one another, as ranges."""
    run: range | None = None
    for number in ids:
        if run is not None and number == run[-1] + STRIDE:
            run = range(run[0], number + 1, STRIDE)
            continue
        if run is not None:
            yield run
        run = range(number, number + 1, STRIDE)
    if run is not None:
        yield run


# -- a process


def work(plan: Plan) -> None:
    """Be a worker process: draw until the time is over."""
    journal = Journal(plan.journal)
    journal.start()
    journal.listen(plan.folder / f"{plan.name}.log")
    # When the alarm comes, the stacks are written by a signal handler of C, and the process ends.
    trace = (plan.folder / f"{plan.name}.trace").open("a")
    faulthandler.register(signal.SIGALRM, trace, all_threads=True, chain=True)
    signal.alarm(round(plan.until - time.monotonic() + PATIENCE))
    before = held()
    with TicketPool(list(plan.urls)) as pool:
        pool.attach(Base.metadata)
        worker = Worker(plan, pool, journal)
        if plan.workload == "sessions":
            asyncio.run(_in_tasks(worker))
        else:
            _in_threads(worker, _SYNCHRONOUS[plan.workload])
        pool.detach(Base.metadata)
    del pool, worker
    see_what_is_left(journal, before)


def see_what_is_left(journal: Journal, before: set[str]) -> None:
    """Of a pool that is closed and forgotten, nothing may remain for longer than its time-outs."""
    end = time.monotonic() + SECONDS_TO_LEAVE
    while True:
        gc.collect()
        left = held() - before
        if not left:
            return
        if time.monotonic() > end:
            journal.complain(f"a closed pool has left behind: {', '.join(sorted(left))}")
            return
        time.sleep(0.05)


def _in_threads(worker: Worker, draw: Work) -> None:
    plan = worker.plan
    threads = [
        threading.Thread(target=draw, args=(worker, n, random.Random(f"{plan.seed}/{n}")))
        for n in range(THREADS)
    ]
    for thread in threads:
        thread.start()
    _fork_when_told(worker)
    for thread in threads:
        thread.join()


async def _in_tasks(worker: Worker) -> None:
    seed = worker.plan.seed
    measuring = asyncio.create_task(_measure_loop_gaps(worker))
    await asyncio.gather(*(sessions(worker, n, random.Random(f"{seed}/{n}")) for n in range(TASKS)))
    await measuring
    engine = create_async_engine("sqlite+aiosqlite://")
    async with engine.connect() as connection:
        await connection.run_sync(lambda _: worker.pool.dispose())
    await engine.dispose()


async def _measure_loop_gaps(worker: Worker) -> None:
    before = time.monotonic()
    while not worker.over:
        await asyncio.sleep(0.005)
        now = time.monotonic()
        if now - before > GAP:
            worker.journal.gap(now - before)
        before = now


# -- forks


def _fork_when_told(worker: Worker) -> None:
    """Wait for the end, and for storms: fork children, while the threads draw, that draw as well."""
    seen = _time_of(worker.plan.storm)
    children: set[int] = set()
    while not worker.over or children:
        now = _time_of(worker.plan.storm)
        if now != seen and not worker.over:
            seen = now
            children.update(_fork(worker) for _ in range(CHILDREN))
        _reap(worker, children)
        time.sleep(0.02)


def _fork(worker: Worker) -> int:
    child = os.fork()
    if child:
        return child
    try:
        signal.alarm(CHILD_SECONDS)
        for _ in range(DRAWS_OF_A_CHILD):
            for sequence in worker.plan.sequences:
                declared = TicketSequence(sequence, block=25)
                worker.journal.draw(sequence, 3, lambda: worker.pool.reserve(declared, 3))  # noqa: B023
    finally:
        os._exit(0)


def _reap(worker: Worker, children: set[int]) -> None:
    for child in list(children):
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            children.remove(child)
            if status:
                name = f"{worker.plan.name}.trace"
                worker.journal.complain(f"a forked child hung for {CHILD_SECONDS} s: see {name}")


def _time_of(file: Path) -> int:
    try:
        return file.stat().st_mtime_ns
    except FileNotFoundError:
        return 0


# -- shards


def _shard(plan: Plan, drivername: str, number: int) -> str:
    return f"{drivername}:///{plan.folder / f'{plan.name}-{number}.db'}"


def _prepare(engine: Engine) -> None:
    _need_no_disk(engine)
    Base.metadata.create_all(engine)


async def _prepare_async(engine: AsyncEngine) -> None:
    _need_no_disk(engine.sync_engine)
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)


def _need_no_disk(engine: Engine) -> None:
    """Shards must not compete with the ticket servers for the disk's flushes."""

    @event.listens_for(engine, "connect")
    def set_pragma(connection: object, record: object) -> None:
        cursor = connection.cursor()  # type: ignore[attr-defined]  # a driver's
        for pragma in ("synchronous = OFF", "journal_mode = MEMORY"):
            cursor.execute(f"PRAGMA {pragma}")
        cursor.close()
