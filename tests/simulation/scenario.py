"""One simulation: servers, client processes, what they draw, a nemesis and a checker, all by one seed."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Final, NamedTuple

from sqlalchemy import event

from sqla_tickets import TicketPool
from sqla_tickets.dialects import LayoutName
from sqla_tickets.snowflake.leases import NodeLeases

from .checker import BrokenPromise, Checker, Health, told_of_answers
from .forks import fork
from .nemesis import Nemesis
from .network import Host, Network
from .servers import KINDS, Kind, engine_for, server_maker
from .stand_ins import installed
from .stored import Stored
from .workload import BLOCKS, SEQUENCES, SINGLES, Habits, Workload, application
from .world import Machine, World

__all__ = ["BLOCKS", "SINGLES", "Configuration", "Outcome", "Scenario", "simulate"]

#: After the last fault: how long a process may take to find all servers well, and how long it then draws.
RECOVERY_SECONDS: Final = 12.0
CALM_SECONDS: Final = 6.0
#: How long processes may take to end.
END_SECONDS: Final = 30.0
#: After the processes were told to end: when they are seen to have given back what they lease for longer.
LEASES_SECONDS: Final = 1.5
#: What one seed may take of a processor, and how often in its own time a world looks at that.
LIMIT_SECONDS: Final = 600.0
POLL_SECONDS: Final = 0.25


class Configuration(NamedTuple):
    """Of a pool: the names of its servers in the order of their offsets, its stride, and its name."""

    servers: tuple[str, ...]
    stride: int
    name: str = "default"


@dataclass
class Outcome:
    """What has become of one seed.

    Attributes:
        seed: of the simulation.
        seconds: that it lasted, in its own time.
        draws: how many were answered.
        tickets: that they gave.
        ids: that sort by time, and were made.
        raises: how often a sequence was raised.
        announced: tickets that came twice after their table was emptied by hand, as other processes had announced.
        failed: how many draws were not answered, by their errors.
        faults: how many there were, by kind.
        broken_promises: broken promises.
        slowest: seconds that the slowest draw took.
        slowest_id: the same of ids that sort by time.
        digest: of all that happened.
        processor_seconds: that the simulation has taken.
    """

    seed: int
    seconds: float = 0.0
    draws: int = 0
    tickets: int = 0
    ids: int = 0
    raises: int = 0
    announced: int = 0
    failed: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    broken_promises: list[BrokenPromise] = field(default_factory=list)
    slowest: float = 0.0
    slowest_id: float = 0.0
    digest: int = 0
    processor_seconds: float = 0.0


class Scenario:
    """The world of one seed.

    Args:
        world: with its seed.
        seconds: for which there are faults.
        processes: how many clients there are; None for what the seed says.
        servers: how many ticket servers; None for what the seed says.
        kind: of the servers; None for what the seed says.
        is_set_back: whether a server is set back; None for what the seed says.
    """

    def __init__(
        self,
        world: World,
        seconds: float = 60.0,
        processes: int | None = None,
        servers: int | None = None,
        kind: Kind | None = None,
        *,
        is_set_back: bool | None = None,
    ) -> None:
        self.world, self._seconds = world, seconds
        random = world.random
        self.wanted = processes or random.choice((1, 2, 5, 10, 20, 40))
        servers = servers or random.choice((2, 2, 3, 3, 4))
        self.habits = Habits.of(random, self.wanted, has_nodes=kind != "toy")
        self._timeout, self._lock_wait = random.choice((1.0, 1.0, 0.5, 2.0)), 1.0
        self.network = Network(world)
        first: Kind = random.choice(KINDS) if kind is None else kind
        self.kinds: list[Kind] = [first] * servers
        if kind is None and random.random() < 0.2:
            self.kinds = [random.choice(KINDS) for _ in range(servers)]
        deadlocks = random.choice((0.0, 0.0, 0.1))
        for number, one in enumerate(self.kinds, 1):
            name = f"t{number}"
            self.network.hosts[name] = Host(world, name, server_maker(one, name, deadlocks))
        self._layout: LayoutName | None = None
        if "postgresql" not in self.kinds and "toy" not in self.kinds:
            self._layout = random.choice((None, None, "counter"))
        self.engines = {
            name: engine_for(kind, self.network, name, self._timeout, self._lock_wait)
            for kind, name in zip(self.kinds, self.network.hosts, strict=True)
        }
        #: Of the processes that start from now on.
        self.configuration = Configuration(tuple(self.network.hosts), servers)
        #: Whether a server is set back, of which its peers can tell; then there are few other faults.
        self._is_to_be_restored = random.random() < 0.25
        if is_set_back is not None:
            self._is_to_be_restored = is_set_back
        self.health = Health(world)
        longest = servers * (self._timeout + self._lock_wait)
        self.checker = Checker(world, self.health, self.network.hosts, longest)
        self.checker.needs_peer = self._is_to_be_restored
        self.stored = Stored(world, self.network.hosts, self.checker.broken)
        self.checker.ids.has_number = self.stored.has_number
        self.checker.max_age_seconds = self.habits.pool["block_max_age"]
        #: Of the models, to which each process attaches its pools.
        self.metadata = application(world)
        pause = random.choice((0.1, 0.1, 0.2))
        self.nemesis = Nemesis(world, self.network, self.health, self, pause)
        self.nemesis.on_untold = self.checker.may_repeat
        self.nemesis.on_reset = self.checker.reset_by_hand
        self.checker.announcements.set_back = self.set_back
        self.alive: list[Machine] = []
        self._are_to_end = False
        self._count = 0

    def set_back(self) -> set[str]:
        """The servers that were set back so far."""
        return self.nemesis.restored | self.nemesis.lossy

    # -- processes

    def start(self) -> None:
        """Start another process."""
        self._start()

    def _start(self) -> None:
        self._count += 1
        machine = Machine(self.world, f"p{self._count}")
        machine.rate = 1 + self.world.random.uniform(-1e-4, 1e-4)
        self.alive.append(machine)
        machine.spawn(self._client, "main")

    def pool(self, configuration: Configuration | None = None) -> TicketPool:
        """What a process draws with."""
        servers, stride, name = configuration or self.configuration
        return TicketPool(
            [self.engines[server] for server in servers],
            stride=stride,
            name=name,
            timeout=self._timeout,
            lock_wait=self._lock_wait,
            require_peer=self._is_to_be_restored,
            **self.habits.pool,
        )

    def client_pool(self) -> TicketPool:
        """The pool of a client that starts now."""
        return self.pool()

    def _client(self) -> None:
        """What one process does."""
        machine = self.world.machine
        pool = machine.state["pool"] = self.client_pool()
        event.listen(pool, "disposing", lambda _: self.stored.disposing(self.world.machine))

        def is_to_end() -> bool:
            return self._are_to_end or "is to end" in self.world.machine.state

        workload = Workload(self.world, self.checker, self.habits, pool, is_to_end)
        machine.state["workload"] = workload
        workload.run()

    def fork(self, machine: Machine, *, is_told: bool) -> None:
        """Fork a process, by a thread of it that draws nothing.

        Args:
            machine: of the process.
            is_told: whether Python is told, as it is not by servers that are written in C.
        """
        if "workload" not in machine.state or self._are_to_end:
            return
        self._count += 1
        child, workload = fork(machine, f"p{self._count}", machine.state["workload"], (Scenario,))
        assert isinstance(workload, Workload)
        self.alive.append(child)
        child.spawn(partial(self._client_in_fork, workload, is_told), "main")

    def _client_in_fork(self, workload: Workload, is_told: bool) -> None:
        """What a fork does."""
        workload.run_in_fork(is_told=is_told)

    # -- the whole

    def run(self) -> None:
        """Let it happen, and check it."""
        world = self.world
        operator = Machine(world, "operator")
        operator.spawn(self.create_tables, "main")
        world.run(world.now + 60)
        self.stored.poll()
        for _ in range(self.wanted):
            self._start()
        if self._is_to_be_restored:
            nemesis = self.nemesis
            ways = (
                nemesis.restore,
                nemesis.restore,
                nemesis.promote_replica,
                nemesis.promote_replica,
                nemesis.reset_numbers,
                nemesis.resume_image,
                nemesis.lose_commits,
            )
            set_back = world.random.choice(ways)
            nemesis.layout = self._layout
            nemesis.kinds = [set_back, nemesis.kill_process, nemesis.freeze_process]
            nemesis.kinds += [nemesis.fork_process, nemesis.jump_clock]
            if set_back == nemesis.lose_commits:
                nemesis.flush_late()
        self.nemesis.start()
        world.run(world.now + self._seconds)
        self.nemesis.end_all()
        self.after_faults()
        world.run(world.now + RECOVERY_SECONDS)
        self.checker.begin_calm()
        self.stored.remember(self.alive)
        world.run(world.now + CALM_SECONDS)
        self.stored.check_horizons(self.alive, self.nemesis.restored | self.nemesis.lossy)
        self._are_to_end = True
        world.run(world.now + LEASES_SECONDS)
        self.stored.check_leases(machine for machine in self.alive if not machine.tasks)
        world.run(world.now + END_SECONDS)
        self.checker.at_end(self.alive, self.nemesis.restored, self.nemesis.lossy)
        self.stored.check_marks(self.nemesis.restored | self.nemesis.lossy)

    def after_faults(self) -> None:
        """What is to end before the calm begins."""

    def create_tables(self) -> None:
        """What an operator does first."""
        for engine in self.engines.values():
            engine.connect().close()  # SQLAlchemy takes a lock of its own the first time
        pool = self.pool()
        for name in SEQUENCES:
            pool.create_table(name, layout=self._layout)
        if self.habits.layout is not None:
            NodeLeases(pool).create_table()
        pool.dispose()


class _Log(logging.Handler):
    """What the package logs is part of the trace."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        self._world.log(f"{record.levelname} {record.getMessage()}")


def simulate(
    seed: int,
    *,
    trace: Callable[[str], object] | None = None,
    seconds: float = 60.0,
    processes: int | None = None,
    servers: int | None = None,
    kind: Kind | None = None,
    scenario_type: Callable[..., Scenario] = Scenario,
    limit_seconds: float = LIMIT_SECONDS,
) -> Outcome:
    """Run one seed.

    Args:
        seed: that decides everything.
        trace: is told of each event in a line.
        seconds: for which there are faults.
        processes: how many clients there are; None for what the seed says.
        servers: how many ticket servers; None for what the seed says.
        kind: of the servers; None for what the seed says.
        scenario_type: what happens.
        limit_seconds: of a processor, after which the seed has failed.
    """
    began = time.process_time()
    log = logging.getLogger("sqla_tickets")
    # it prints the traceback of each connection that could not be opened
    logging.getLogger("sqlalchemy.pool").setLevel(logging.CRITICAL + 1)
    world = World(seed, trace=trace, preemption=0.005)
    handlers: list[logging.Handler] = [] if trace is None else [_Log(world)]
    level, log.propagate = log.level, False
    log.setLevel(logging.WARNING if trace is None else logging.INFO)
    try:
        with installed(world):
            scenario = scenario_type(world, seconds, processes, servers, kind)
            handlers.append(scenario.checker.announcements)
            for handler in handlers:
                log.addHandler(handler)
            try:
                _limit(world, began + limit_seconds)
                with told_of_answers(scenario.checker):
                    scenario.run()
            except TimeoutError:
                text = f"has taken more than {limit_seconds:g} s of a processor"
                scenario.checker.broken("unfinished", text)
            world.close()
    finally:
        for handler in handlers:
            log.removeHandler(handler)
        log.propagate = True
        log.setLevel(level)
    checker = scenario.checker
    return Outcome(
        seed,
        world.now,
        checker.draws + checker.ids.calls,
        checker.tickets,
        checker.ids.made,
        checker.raises,
        checker.announced,
        checker.failed + checker.ids.failed,
        scenario.nemesis.faults,
        checker.broken_promises,
        checker.slowest,
        checker.ids.slowest,
        world.digest,
        time.process_time() - began,
    )


def _limit(world: World, end: float) -> None:
    """End a world that takes too much of the real processor."""

    def poll() -> None:
        if time.process_time() > end:
            raise TimeoutError
        world.at(world.now + POLL_SECONDS, poll)

    poll()
