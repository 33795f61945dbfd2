"""What the client processes of a world do: they draw tickets in every way there is, and make ids that sort by time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, MutableMapping
from dataclasses import dataclass
from itertools import accumulate
from random import Random
from typing import Any, Final, cast

from sqlalchemy import (
    BigInteger,
    Engine,
    ForeignKey,
    MetaData,
    QueuePool,
    create_engine,
    event,
    insert,
    select,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, configure_mappers, mapped_column
from sqlalchemy.schema import CreateTable

from sqla_tickets import TicketPool, TicketSequence
from sqla_tickets import pool as pools
from sqla_tickets.arguments import BlockBounds
from sqla_tickets.errors import TicketError
from sqla_tickets.orm.sequence import INFO
from sqla_tickets.snowflake.layouts import INSTAGRAM, SNOWFLAKE, BitLayout

from .checker import Checker
from .snowflakes import IdMaker
from .world import World

__all__ = ["BLOCKS", "SEQUENCES", "SINGLES", "Habits", "Workload", "application"]

SINGLES: Final = "photos"
BLOCKS: Final = "videos"
#: Of the application's models.
PEOPLE: Final = "people"
LETTERS: Final = "letters"
SEQUENCES: Final = (SINGLES, BLOCKS, PEOPLE, LETTERS)
#: Those of which a process may have drawn some that it hands out later.
_BUFFERED: Final = frozenset({BLOCKS, LETTERS})


class Base(DeclarativeBase):
    """The application's models."""

    metadata = MetaData()


class Person(Base):
    """A row with a ticket."""

    __tablename__ = "people"
    id: Mapped[int] = mapped_column(BigInteger, TicketSequence(PEOPLE), primary_key=True)
    kind: Mapped[str] = mapped_column(default="person")
    __mapper_args__ = {"polymorphic_on": "kind", "polymorphic_identity": "person"}  # noqa: RUF012  # SQLAlchemy's


class Employee(Person):
    """A row of two tables with one ticket."""

    __tablename__ = "employees"
    id: Mapped[int] = mapped_column(ForeignKey(Person.id), primary_key=True)
    __mapper_args__ = {"polymorphic_identity": "employee"}  # noqa: RUF012  # SQLAlchemy's


class Letter(Base):
    """A row of another sequence, of which a process has buffered some."""

    __tablename__ = "letters"
    id: Mapped[int] = mapped_column(BigInteger, TicketSequence(LETTERS, block=20), primary_key=True)


class _PoolsOfProcess(MutableMapping[str, Any]):
    """The pools that are attached to the application's MetaData: each process has its own."""

    def __init__(self, world: World) -> None:
        self._world = world

    @property
    def _own(self) -> dict[str, Any]:
        return cast("dict[str, Any]", self._world.machine.state.setdefault(INFO, {}))

    def __getitem__(self, name: str) -> Any:
        return self._own[name]

    def __setitem__(self, name: str, pool: Any) -> None:
        self._own[name] = pool

    def __delitem__(self, name: str) -> None:
        del self._own[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._own)

    def __len__(self) -> int:
        return len(self._own)


def _new_database() -> Engine:
    engine = create_engine("sqlite://", poolclass=QueuePool, max_overflow=-1)
    statements = [str(CreateTable(table).compile(engine)) for table in Base.metadata.sorted_tables]

    @event.listens_for(engine, "connect")
    def create(connection: Any, _: object) -> None:
        for statement in statements:
            connection.execute(statement)

    configure_mappers()
    with Session(engine) as session:  # SQLAlchemy takes locks of its own the first time
        session.scalars(select(Person)).all()
    return engine


#: The application's, outside of the world: each connection has one of its own, and none ever waits.
DATABASE: Final = _new_database()


def application(world: World) -> MetaData:
    """The MetaData of the application's models; attach the pool of each process of a world to it."""
    Base.metadata.info[INFO] = _PoolsOfProcess(world)
    return Base.metadata


@dataclass(frozen=True)
class Habits:
    """How the processes of one world draw.

    Attributes:
        threads: that draw, in each process.
        think_seconds: from one draw of a thread to its next, on average.
        weights: how often each way to draw is chosen, by the names of `Workload`'s methods.
        block: of the sequence with buffered tickets.
        pool: more arguments of its `TicketPool`.
        layout: of ids that sort by time; None for a world without.
        shard: that they are of.
        lease_seconds: how long a lease of a node number lasts.
    """

    threads: int
    think_seconds: float
    weights: dict[str, float]
    block: int | BlockBounds
    pool: dict[str, Any]
    layout: BitLayout | None
    shard: int | None
    lease_seconds: float

    @classmethod
    def of(cls, random: Random, processes: int, *, has_nodes: bool) -> Habits:
        """Habits as the seed says.

        Args:
            random: of the world.
            processes: how many there are.
            has_nodes: whether the servers can lease node numbers.
        """
        threads = random.choice((1, 1, 2, 8))  # so many share draws
        # draws of all processes together: each is busy
        a_second = max(random.choice((200, 1000, 2000)), 50 * processes)
        weights = {
            "single": 10.0,
            "reserve": 3.0,
            "buffered": 4.0,
            "flush": 1.0,
            "insert": 0.2,
            "raise_above": 0.005,
            "make_ids": 4.0 if has_nodes else 0.0,
        }
        favourite = random.choice(sorted(weights))
        if favourite != "raise_above":
            weights[favourite] *= 3
        layout: BitLayout | None
        layout, shard = random.choice(((SNOWFLAKE, None), (SNOWFLAKE, None), (INSTAGRAM, 5)))
        if not has_nodes or (shard is not None and processes > 10):
            layout, shard = SNOWFLAKE if has_nodes else None, None
        return cls(
            threads,
            processes * threads / a_second,
            weights,
            random.choice((10, 100, 1000, (1, 100), (10, 5000))),
            {
                "block_duration": random.choice((0.5, 2.0, 10.0)),
                "block_max_age": random.choice((1.0, 5.0, 600.0)),
                "hedge": random.choice((None, None, None, False)),
            },
            layout,
            shard,
            random.choice((3.0, 6.0, 20.0)),
        )


class Workload:
    """What one process of an application does.

    Args:
        world: that it is part of.
        checker: is told of each draw.
        habits: of the processes.
        pool: of the process.
        is_to_end: whether processes are to end.

    Attributes:
        draws_under_way: how many threads are in the package.
    """

    def __init__(
        self,
        world: World,
        checker: Checker,
        habits: Habits,
        pool: TicketPool,
        is_to_end: Callable[[], bool],
    ) -> None:
        self._world, self._checker, self._habits = world, checker, habits
        self._pool, self._is_to_end, self._random = pool, is_to_end, world.random
        self._machine = world.machine
        self.draws_under_way = 0
        self._blocks = TicketSequence(BLOCKS, block=habits.block)
        self._announced = announced = checker.announcements
        if announced.hears(self._machine):
            event.listen(pool, "drawn", self._by_process(announced.drawn))
        event.listen(pool, "discarded", self._by_process(announced.discarded))
        event.listen(pool, "quarantined", self._by_process(checker.distrusted))
        event.listen(pool, "quarantined", self._by_process(announced.quarantined))
        pool.attach(Base.metadata)
        self._ids: IdMaker | None = None
        if habits.layout is not None:
            self._ids = IdMaker(world, checker.ids, pool, habits)
        ways = [name for name, weight in habits.weights.items() if weight]
        self._ways = [getattr(self, f"_{name}") for name in ways]
        self._weights = list(accumulate(habits.weights[name] for name in ways))

    def run(self) -> None:
        """Draw by several threads until all processes are to end, and close the pool."""
        threads = [
            self._machine.spawn(self._draw, f"drawer {number}")
            for number in range(self._habits.threads)
        ]
        for thread in threads:
            thread.join()
        self._pool.dispose()

    def _by_process(self, listener: Callable[..., object]) -> Callable[..., object]:
        """A listener that is told which process it hears of: this one, or a fork of it."""
        world = self._world
        return lambda *told: listener(world.machine, *told)

    def run_in_fork(self, *, is_told: bool) -> None:
        """The same in a fork of the process.

        Args:
            is_told: whether the hooks of ``os.fork`` run.
        """
        parent, self._machine = self._machine, self._world.machine
        self.draws_under_way = 0
        self._checker.ids.forked(parent, self._machine)
        self._announced.forked(parent, self._machine)
        if is_told:
            pools._reinit_after_fork()
        self.run()

    def run_in_image(self) -> None:
        """The same in a process that was resumed from an image."""
        self._machine, self.draws_under_way = self._world.machine, 0
        self.run()

    def _draw(self) -> None:
        world, random, pause = self._world, self._random, self._habits.think_seconds
        while not self._is_to_end():
            world.sleep(random.expovariate(1 / pause))
            (way,) = random.choices(self._ways, cum_weights=self._weights)
            self.draws_under_way += 1
            way()
            self.draws_under_way -= 1

    def _timed(self, names: tuple[str, ...], draw: Callable[[], dict[str, list[range]]]) -> bool:
        """Draw once from each of some sequences; whether all have answered."""
        world, checker, machine = self._world, self._checker, self._machine
        before = {name: checker.latest(name) for name in names if name not in _BUFFERED}
        began, frozen = world.now, machine.frozen_seconds
        if world.trace is not None:
            world.log("draws from {}", names)
        error: Exception | None = None
        drawn: dict[str, list[range]] = {}
        try:
            drawn = draw()
        except Exception as caught:  # noqa: BLE001  # the checker finds out whether it may be
            error = caught
        seconds = (world.now - began - (machine.frozen_seconds - frozen)) / len(names)
        if world.trace is not None:
            world.log("has {} after {:.3f} s", error or drawn, seconds)
        for name, blocks in drawn.items():
            self._announced.handed_out(name, sum(map(len, blocks)))
            checker.drawn(name, blocks, before.get(name), began, seconds)
        if error is not None:
            checker.not_drawn(names[-1], error, began, seconds)
        return error is None

    # -- ways to draw

    def _single(self) -> None:
        self._timed((SINGLES,), lambda: {SINGLES: _singles([self._pool.next_id(SINGLES)])})

    def _reserve(self) -> None:
        n = self._random.choice((1, 2, 10, 1000))
        if self._random.random() < 0.5:
            self._timed((SINGLES,), lambda: {SINGLES: self._pool.reserve(SINGLES, n)})
        else:
            pool = self._pool
            self._timed(
                (SINGLES,), lambda: {SINGLES: _runs(pool.next_ids(SINGLES, n), pool.stride)}
            )

    def _buffered(self) -> None:
        sequence, pool, chance = self._blocks, self._pool, self._random.random()
        if chance < 0.7:
            self._timed((BLOCKS,), lambda: {BLOCKS: _singles([pool.next_id(sequence)])})
        elif chance < 0.9:
            n = self._random.choice((2, 7, 150))
            self._timed((BLOCKS,), lambda: {BLOCKS: pool.reserve(sequence, n)})
        else:
            for _ in range(30):  # as fast as one can
                self._timed((BLOCKS,), lambda: {BLOCKS: _singles([pool.next_id(sequence)])})

    def _flush(self) -> None:
        """Flush new objects of several classes; once more, if their tickets could not be drawn."""
        random = self._random
        classes = random.choice(((Person,), (Person, Employee), (Letter,), (Employee, Letter)))
        new: list[Person | Letter] = []
        new += [random.choice(classes)() for _ in range(random.choice((1, 3, 10)))]
        names = tuple({each.__tablename__: None for each in new})  # as they are drawn from
        names = tuple(dict.fromkeys(PEOPLE if name == "employees" else name for name in names))
        with Session(DATABASE) as session:
            session.add_all(new)
            if not self._flushed(session, names, new):
                self._flushed(session, names, new)
            session.rollback()

    def _flushed(
        self, session: Session, names: tuple[str, ...], new: list[Person | Letter]
    ) -> bool:
        """Flush, and tell of the tickets that are set by that."""
        lack = [each for each in new if _lacks_ticket(each)]
        names = tuple(name for name in names if any(_sequence(each) == name for each in lack))

        def drawn() -> dict[str, list[range]]:
            ids: dict[str, list[int]] = {}
            for each in lack:
                if not _lacks_ticket(each):
                    ids.setdefault(_sequence(each), []).append(each.id)
            return {name: _singles(found) for name, found in ids.items()}

        def flush() -> dict[str, list[range]]:
            session.flush()
            return drawn()

        began = self._world.now
        if self._timed(names, flush):
            if any(map(_lacks_ticket, new)):
                self._checker.broken("flush", f"left an object of {names} without a ticket")
            return True
        for name, blocks in drawn().items():  # set before another sequence has failed
            self._announced.handed_out(name, sum(map(len, blocks)))
            self._checker.drawn(name, blocks, None, began, 0.0)
        if not all(each in session.new for each in new):
            self._checker.broken("flush", f"an object of {names} is not pending any more")
        return False

    def _insert(self) -> None:
        """Insert rows without a Session: in the midst of the statement the application's transaction is open."""
        rows = [{"kind": "person"}] * self._random.choice((1, 5))

        def draw() -> dict[str, list[range]]:
            with DATABASE.connect() as connection:
                connection.execute(insert(Person.__table__), rows)  # type: ignore[arg-type]  # it is a table
                return {PEOPLE: _singles(connection.scalars(select(Person.id)))}

        self._timed((PEOPLE,), draw)

    def _raise_above(self) -> None:
        """Raise a sequence above all that was drawn: later draws get larger ones."""
        name = self._random.choice(SEQUENCES)
        above = max(self._checker.latest(name).values(), default=0) + self._random.choice(
            (0, 1, 1000, 300_000)
        )
        began = self._world.now
        try:
            self._pool.raise_above(name, above)
        except TicketError as error:
            self._checker.not_raised(name, error, began)
        else:
            self._checker.raised(name, above)

    def _make_ids(self) -> None:
        assert self._ids is not None
        self._ids.make()


def _sequence(each: Person | Letter) -> str:
    return PEOPLE if isinstance(each, Person) else LETTERS


def _lacks_ticket(each: Person | Letter) -> bool:
    return each.__dict__.get("id") is None


def _runs(tickets: Iterable[int], stride: int) -> list[range]:
    """Tickets as blocks: those that follow each other are together, as a server has given them."""
    runs: list[range] = []
    first = last = -stride
    for ticket in tickets:
        if ticket != last + stride:
            runs.append(range(first, last + 1, stride))
            first = ticket
        last = ticket
    return [*runs[1:], range(first, last + 1, stride)]


def _singles(tickets: Iterable[int]) -> list[range]:
    return [range(ticket, ticket + 1) for ticket in tickets]
