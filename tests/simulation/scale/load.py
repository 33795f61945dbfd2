"""One run: processes that draw from servers in a region, a fault, and what came of it."""

from __future__ import annotations

import gc
import logging
from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Final, Literal, NamedTuple

from sqlalchemy import Engine, event

from sqla_tickets import TicketPool, TicketSequence
from sqla_tickets.errors import TicketError

from ..network import Host, HostRuntime
from ..servers import engine_for
from ..stand_ins import installed
from ..world import Machine, World
from .capacity import CapacityServer, Cores, Layout, Profile
from .region import Distance, Region

__all__ = ["Fault", "Figures", "Run", "simulate"]

Fault = Literal["none", "one server", "a frozen server", "a data centre", "all servers"]

NAME: Final = "photos"
#: A server of four cores with a disk of its own.
USUAL_PROFILE: Final = Profile()
#: Of the columns of a history, in seconds.
SLICE_SECONDS: Final = 0.25
#: A draw that takes longer is not well.
WELL_SECONDS: Final = 0.1
#: How often what no part of the world refers to any more is collected, in seconds of the world.
COLLECT_SECONDS: Final = 1.0
#: How often all of it is, and not what is young alone.
ALL_SECONDS: Final = 15
#: Between the begin of what counts, and that of a fault.
CALM_SECONDS: Final = 5.0
#: An id that comes sooner was in the buffer.
BUFFERED_SECONDS: Final = 1e-5


class Sample(NamedTuple):
    """What the servers have done up to a moment.

    Attributes:
        time: the moment.
        connects: how many connections each was asked for.
        statements: of all servers, by what they are.
        busy: seconds of their processors.
    """

    time: float
    connects: list[int]
    statements: Counter[str]
    busy: float


@dataclass(frozen=True)
class Run:
    """What is simulated.

    Attributes:
        processes: how many clients; each has one thread and one pool.
        servers: how many ticket servers.
        block: of the sequence.
        ids_a_second: that each process wants, on average; infinity for as many as it can have.
        layout: of the ticket tables whose times the servers take.
        distance: between two data centres.
        fault: what is lost.
        fault_seconds: for how long.
        start_seconds: in which the processes start, one after the other.
        warm_up_seconds: after that, before anything counts.
        seconds: that count.
        seed: of the world.
        profile: of a server's machine.
        client_seconds: of a core that a process takes for a draw, where it shares the cores of the servers.
        shares_cores: whether all processes and servers run on one machine.
        hedge: of the pools.
        reserves: whether a process reserves blocks, and takes no single ids.
    """

    processes: int
    servers: int
    block: int = 1
    ids_a_second: float = 1.0
    layout: Layout = "counter"
    distance: Distance = "region"
    fault: Fault = "none"
    fault_seconds: float = 60.0
    start_seconds: float = 5.0
    warm_up_seconds: float = 5.0
    seconds: float = 20.0
    seed: int = 1
    profile: Profile = USUAL_PROFILE
    client_seconds: float = 0.0
    shares_cores: bool = False
    hedge: bool | None = None
    reserves: bool = False


@dataclass
class Figures:
    """What came of it, in the seconds that count.

    Attributes:
        ids: how many were handed out, a second.
        draws: how many draws from servers, a second.
        statements: how many a second of all servers together, by what they are.
        p50: of what an id was waited for, in milliseconds.
        p99: the same.
        longest: the same.
        draw_p50: of what an id was waited for that was in no buffer, in milliseconds.
        draw_p99: the same.
        failed: draws that failed.
        errors: of these, by kind.
        connections: to one server at most, at any time.
        connects: that one server was asked for at most in any second, whether it listened or not.
        busy: part of the servers' processors that work, 0 to 1.
        settled: seconds from the beginning of the fault, until 99 of 100 ids of each further second came within
            `WELL_SECONDS`; None when that was not before its end.
        well_again: the same from the end of the fault; None when that was not before the end of the run.
        history: a column for each `SLICE_SECONDS`: ids that came, came late, failed; connects; draws; statements.
        hedges: how many there were.
        digest: of all that happened.
    """

    ids: float = 0.0
    draws: float = 0.0
    statements: dict[str, float] = field(default_factory=dict)
    p50: float = 0.0
    p99: float = 0.0
    longest: float = 0.0
    draw_p50: float = 0.0
    draw_p99: float = 0.0
    failed: int = 0
    errors: dict[str, int] = field(default_factory=dict)
    connections: int = 0
    connects: int = 0
    busy: float = 0.0
    settled: float | None = None
    well_again: float | None = None
    history: list[list[int]] = field(default_factory=list)
    hedges: int = 0
    digest: int = 0


class Load:
    """The world of one run.

    Args:
        world: of it.
        run: what is simulated.
    """

    def __init__(self, world: World, run: Run) -> None:
        self.world, self.run = world, run
        self.region = Region(world, run.distance)
        self._cores = Cores(run.profile.cores) if run.shares_cores else None
        for number in range(run.servers):
            name = f"t{number + 1}"
            self.region.places[name] = number % 2
            make = partial(self._server, name)
            host = self.region.hosts[name] = Host(world, name, make)
            host.seconds = 0.0
        self._engines: list[Engine] = [
            engine_for("toy", self.region, name, 1.0, 1.0) for name in self.region.hosts
        ]
        self.waits, self.began = array("d"), array("d")
        self.failed: list[tuple[float, float, str]] = []
        self.hedges = 0
        self.samples: list[Sample] = []
        self._sequence = TicketSequence(NAME, block=run.block)

    def _server(self, name: str, runtime: HostRuntime) -> CapacityServer:
        run = self.run
        return CapacityServer(self.world, name, runtime, run.profile, run.layout, self._cores)

    @property
    def models(self) -> list[CapacityServer]:
        """The servers."""
        found = [host.model for host in self.region.hosts.values()]
        return [model for model in found if isinstance(model, CapacityServer)]

    # -- processes

    def create(self) -> None:
        """What an operator does first."""
        for engine in self._engines:
            engine.connect().close()
        pool = TicketPool(self._engines)
        pool.create_table(NAME)
        pool.dispose()

    def client(self) -> None:
        """What one process does."""
        world, run, random = self.world, self.run, self.world.random
        pool = world.machine.state["pool"] = TicketPool(self._engines, hedge=run.hedge)
        event.listen(pool, "hedged", self._hedged)
        sequence, waits, starts = self._sequence, self.waits, self.began
        cores, pause = self._cores, 1 / run.ids_a_second
        reserved = run.block if run.reserves else 0
        while True:
            if pause:
                world.sleep(random.expovariate(1 / pause))
            began = world.now
            if cores is not None:
                end = cores.take(began, run.client_seconds * (0.5 + random.random()))
                world.sleep(end - began)
            try:
                if reserved:
                    pool.reserve(NAME, reserved)
                else:
                    pool.next_id(sequence)
            except TicketError as error:
                self.failed.append((began, world.now - began, error.kind or type(error).__name__))
            else:
                starts.append(began)
                waits.append(world.now - began)

    def _hedged(self, *_: object) -> None:
        self.hedges += 1

    def start(self) -> None:
        """Start all processes, one after the other."""
        run, world = self.run, self.world
        for number in range(run.processes):
            machine = Machine(world, f"p{number + 1}")
            self.region.places[machine.name] = number % 2
            when = world.now + run.start_seconds * number / run.processes
            world.at(when, partial(machine.spawn, self.client, "main"))

    # -- time

    def sample(self) -> None:
        """Note what the servers have done so far, again and again."""
        usages = [model.usage for model in self.models]
        statements: Counter[str] = sum((usage.statements for usage in usages), Counter())
        connects = [self.region.attempts[name] for name in self.region.hosts]
        busy = sum(cores.busy_seconds for cores in self.cores)
        self.samples.append(Sample(self.world.now, connects, statements, busy))
        self.world.at(self.world.now + SLICE_SECONDS, self.sample)

    @property
    def cores(self) -> list[Cores]:
        """All processors of servers."""
        return [self._cores] if self._cores else [model.cores for model in self.models]

    def pass_time(self, until: float) -> None:
        """Let time pass, and collect garbage at fixed moments of it."""
        world = self.world
        while world.now < until:
            world.run(min(until, world.now + COLLECT_SECONDS))
            gc.collect(2 if round(world.now) % ALL_SECONDS == 0 else 1)

    def break_down(self) -> None:
        """Begin the fault."""
        hosts, fault = list(self.region.hosts.values()), self.run.fault
        if fault == "a data centre":
            self.region.lose(0)
        if fault == "a frozen server":
            hosts[0].machine.freeze()
        for host in hosts[:1] if fault == "one server" else hosts if fault == "all servers" else []:
            host.stop(is_crash=True)

    def repair(self) -> None:
        """End the fault: the servers are back, and the processes that were lost are not."""
        for host in self.region.hosts.values():
            host.machine.thaw()
            host.start()

    def happen(self) -> Figures:
        """Let it all happen."""
        world, run = self.world, self.run
        Machine(world, "operator").spawn(self.create, "main")
        world.run(world.now + 60)
        self.start()
        begin = world.now + run.start_seconds + run.warm_up_seconds
        self.pass_time(begin)
        for model in self.models:
            model.usage.most = model.usage.open
        world.at(begin, self.sample)
        if run.fault != "none":
            world.at(begin + CALM_SECONDS, self.break_down)
            world.at(begin + CALM_SECONDS + run.fault_seconds, self.repair)
        self.pass_time(begin + run.seconds)
        self.sample()
        return self._figures(begin)

    # -- what came of it

    def _figures(self, begin: float) -> Figures:
        run, first, last = self.run, self.samples[0], self.samples[-1]
        seconds = run.seconds
        waits = sorted(w for w, b in zip(self.waits, self.began, strict=True) if b >= begin)
        waited = [wait for wait in waits if wait > BUFFERED_SECONDS]
        failed = [failure for failure in self.failed if failure[0] >= begin]
        statements = last.statements - first.statements
        busy = last.busy - first.busy
        connects = self._connects()
        figures = Figures(
            ids=len(waits) / seconds,
            draws=statements["draw"] / seconds,
            statements={kind: n / seconds for kind, n in sorted(statements.items())},
            p50=_quantile(waits, 0.5) * 1e3,
            p99=_quantile(waits, 0.99) * 1e3,
            longest=_quantile(waits, 1.0) * 1e3,
            draw_p50=_quantile(waited, 0.5) * 1e3,
            draw_p99=_quantile(waited, 0.99) * 1e3,
            failed=len(failed),
            errors=dict(sorted(Counter(why for _, _, why in failed).items())),
            connections=max(model.usage.most for model in self.models),
            connects=max(connects, default=0),
            busy=busy / seconds / sum(cores.number for cores in self.cores),
            history=self._history(begin),
            hedges=self.hedges,
            digest=self.world.digest,
        )
        if run.fault != "none":
            history, end = figures.history, CALM_SECONDS + run.fault_seconds
            figures.settled = _seconds_until_well(history, CALM_SECONDS, end)
            figures.well_again = _seconds_until_well(history, end, run.seconds)
        return figures

    def _connects(self) -> list[int]:
        """Of each slice: the most connections that one server was asked for in the second that began with it."""
        each, a_second = [sample.connects for sample in self.samples], int(1 / SLICE_SECONDS)
        return [
            max(
                later - now
                for now, later in zip(each[i], each[min(i + a_second, len(each) - 1)], strict=True)
            )
            for i in range(len(each) - 1)
        ]

    def _history(self, begin: float) -> list[list[int]]:
        columns = [[0] * 6 for _ in range(int(self.run.seconds / SLICE_SECONDS))]

        def column(moment: float) -> list[int]:
            return columns[min(len(columns) - 1, int((moment - begin) / SLICE_SECONDS))]

        for began, wait in zip(self.began, self.waits, strict=True):
            if began >= begin:
                column(began)[wait > WELL_SECONDS] += 1
        for began, _, _ in self.failed:
            if began >= begin:
                column(began)[2] += 1
        for now, later in pairwise(self.samples):
            if later.time > now.time:
                there = column(now.time)
                there[3] += sum(later.connects) - sum(now.connects)
                there[4] += later.statements["draw"] - now.statements["draw"]
                there[5] += later.statements.total() - now.statements.total()
        return columns


def _seconds_until_well(history: Sequence[Sequence[int]], begin: float, end: float) -> float | None:
    """Seconds from a moment until, in each second up to another one, 99 of 100 ids come in time."""
    first, last = (int(moment / SLICE_SECONDS) for moment in (begin, end))
    a_second, is_ill = int(1 / SLICE_SECONDS), 0
    for number in range(first, last):
        slices = history[number : min(number + a_second, last)]
        late = sum(late + failed for _, late, failed, *_ in slices)
        if late > sum(sum(column[:3]) for column in slices) / 100:
            is_ill = number + 1 - first
    return None if first + is_ill >= last else is_ill * SLICE_SECONDS


def _quantile(ordered: Sequence[float], part: float) -> float:
    return ordered[min(len(ordered) - 1, int(len(ordered) * part))] if ordered else 0.0


def simulate(run: Run) -> Figures:
    """Simulate one run."""
    world = World(run.seed)
    logger, pools = logging.getLogger("sqla_tickets"), logging.getLogger("sqlalchemy.pool")
    levels = logger.level, pools.level
    logger.setLevel(logging.CRITICAL + 1)
    pools.setLevel(logging.CRITICAL + 1)
    try:
        with installed(world):
            load = Load(world, run)
            figures = load.happen()
            world.close()
    finally:
        logger.setLevel(levels[0])
        pools.setLevel(levels[1])
    if world.errors:
        raise world.errors[0][1]
    return figures
