"""The two acts: outages, which nobody may notice, and mistakes, which must not go unnoticed."""

from __future__ import annotations

import random
import shutil
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.chaos.checker import Event, Report, check
from tests.chaos.cluster import Cluster
from tests.chaos.nemesis import (
    MISTAKES,
    OUTAGES,
    Nemesis,
    all_killed,
    cannot,
    emptied_and_lowered,
    name_of,
)
from tests.chaos.workers import Workers
from tests.chaos.workloads import WORKLOADS, Plan

__all__ = ["Act", "Settings", "mistakes", "outages"]

#: How many seconds after the return of all servers draws may still fail.
RETURN = 1.0
#: Drivers of the workers with sessions, one process each.
ASYNC_DRIVERS = ("asyncmy", "aiomysql")


@dataclass(frozen=True)
class Settings:
    """How a run is done.

    Attributes:
        seconds: how long an act draws.
        seed: of the schedule, and of what the workers draw.
        pace: how many seconds a thread or a task rests between draws, on the average.
        longest: how many seconds an outage lasts at the most.
        only: the names of what may be done; empty for everything.
        keep: whether the journals stay.
    """

    seconds: float
    seed: int
    pace: float = 0.02
    longest: float = 3.0
    only: frozenset[str] = frozenset()
    keep: bool = False

    def allows(self, nemesis: Nemesis) -> bool:
        """Whether it may be done."""
        return not self.only or name_of(nemesis) in self.only


@dataclass
class Act:
    """What came of one act.

    Attributes:
        title: which, on what.
        settings: how.
        began: when, in seconds of the monotonic clock.
        report: the counters.
        events: what was done.
        complaints: of processes that hung or died, or left something behind.
        left_out: what cannot be done here, and why.
        starved: for which part of the time a proxy waited for a CPU: on a machine as busy as that,
            healthy servers do not answer in time.
        folder: where the journals are, if they were kept.
    """

    title: str
    settings: Settings
    began: float
    report: Report = field(default_factory=Report)
    events: list[Event] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    starved: float = 0.0
    folder: Path | None = None

    @property
    def broken(self) -> list[str]:
        """The promises that did not hold."""
        found = list(self.complaints)
        counters = self.report.all
        limit = name_of(emptied_and_lowered)  # the one that passes by all that could tell
        repeats = Counter[str]()
        for (name, _), tickets in self.report.repeats.items():
            repeats[name] += tickets
        found += [f"{n} duplicates after {name!r}" for name, n in repeats.items() if name != limit]
        if counters.needless:
            found.append(f"{counters.needless} draws failed while a server served")
        if not counters.acknowledged:
            found.append("nothing was drawn")
        return found


def outages(cluster: Cluster, settings: Settings) -> Act:
    """Draw while one server after the other is hurt, and clients are forked and killed."""
    act = Act(f"outages on {_about(cluster)}", settings, time.monotonic())
    possible = _possible(OUTAGES, cluster, act)
    with _drawing(cluster, act) as workers:
        clients = threading.Thread(target=_hurt_clients, args=(workers, act))
        clients.start()
        chooser = random.Random(f"{settings.seed}/servers")
        bag: list[Nemesis] = []
        while possible and _rest(act, chooser.uniform(0.2, 1.0)):
            bag = bag or chooser.sample(possible, len(possible))
            outage, target = bag.pop(), chooser.choice(cluster.targets)
            began = time.monotonic()
            with outage(cluster, target, chooser):
                _rest(act, chooser.uniform(0.3, settings.longest))
            ended, hurt = time.monotonic(), [target]
            if outage is all_killed:
                ended, hurt = ended + RETURN, cluster.targets
            name = name_of(outage)
            act.events += [Event(name, each.number, began, ended) for each in hurt]
        clients.join()
    return act


def mistakes(cluster: Cluster, settings: Settings) -> Act:
    """Set one server back, let processes meet it that did not know it, repair it, start them anew."""
    act = Act(f"mistakes on {_about(cluster)}", settings, time.monotonic())
    possible = _possible(MISTAKES, cluster, act)
    with _drawing(cluster, act) as workers:
        chooser = random.Random(f"{settings.seed}/servers")
        bag: list[Nemesis] = []
        while possible and _rest(act, chooser.uniform(1.5, 3.0)):
            bag = bag or chooser.sample(possible, len(possible))
            mistake, target = bag.pop(), chooser.choice(cluster.targets)
            above, began = cluster.last_tickets(), time.monotonic()
            with mistake(cluster, target, chooser):
                for index in chooser.sample(workers.indexes, len(workers.indexes) // 2):
                    workers.kill(index)
                _rest(act, chooser.uniform(1.5, settings.longest))
                cluster.repair(above)
            act.events.append(Event(name_of(mistake), target.number, began, time.monotonic()))
            for index in workers.indexes:
                workers.kill(index)
    return act


def _hurt_clients(workers: Workers, act: Act) -> None:
    """Storms of forks, and SIGKILL in the middle of a draw."""
    chooser = random.Random(f"{act.settings.seed}/clients")
    kinds: dict[str, Callable[[], None]] = {
        "fork storm": workers.storm,
        "client killed": lambda: workers.kill(chooser.choice(workers.indexes)),
    }
    names = [name for name in kinds if not act.settings.only or name in act.settings.only]
    while names and _rest(act, chooser.uniform(0.5, 2.0)):
        name, began = chooser.choice(names), time.monotonic()
        kinds[name]()
        act.events.append(Event(name, 0, began, time.monotonic()))


@contextmanager
def _drawing(cluster: Cluster, act: Act) -> Iterator[Workers]:
    """Workers that draw for the time of an act; afterwards their journals are checked."""
    folder = Path(tempfile.mkdtemp(prefix="tickets-chaos-"))
    plans = _plans(cluster, act, folder)
    waited = [target.proxy.waited for target in cluster.targets]
    workers = Workers(plans)
    try:
        yield workers
    finally:
        workers.finish()
    waits = [t.proxy.waited - before for t, before in zip(cluster.targets, waited, strict=True)]
    act.starved = max(waits) / act.settings.seconds
    act.events.sort(key=lambda event: event.began)
    journals = [plan.journal for plan in plans if plan.journal.exists()]
    act.report = check(journals, act.events, len(cluster.targets))
    act.complaints += workers.complaints + act.report.complaints
    if act.settings.keep or act.broken:
        act.folder = folder
    else:
        shutil.rmtree(folder)


def _plans(cluster: Cluster, act: Act, folder: Path) -> list[Plan]:
    drivers = [
        (workload, driver)
        for workload in WORKLOADS
        for driver in (ASYNC_DRIVERS if workload == "sessions" else ("pymysql",))
    ]
    return [
        Plan(
            workload=workload,
            name=f"{workload}-{number}",
            urls=cluster.urls(driver),
            sequences=tuple(cluster.sequences),
            folder=folder,
            seed=str(act.settings.seed),
            until=act.began + act.settings.seconds,
            pace=act.settings.pace,
        )
        for number, (workload, driver) in enumerate(drivers)
    ]


def _possible(wanted: Sequence[Nemesis], cluster: Cluster, act: Act) -> list[Nemesis]:
    """What of it can be done here; the rest is noted."""
    possible: list[Nemesis] = []
    for nemesis in wanted:
        why_not = cannot(nemesis, cluster.targets[0].server)
        if why_not is not None:
            act.left_out[name_of(nemesis)] = why_not
        elif act.settings.allows(nemesis):
            possible.append(nemesis)
    return possible


def _rest(act: Act, seconds: float) -> bool:
    """Let it go on for a while; False when the act's time is over."""
    left = act.began + act.settings.seconds - time.monotonic()
    time.sleep(max(0.0, min(seconds, left)))
    return left > seconds


def _about(cluster: Cluster) -> str:
    return f"{cluster.kind}, {' and '.join(cluster.sequences)}"
