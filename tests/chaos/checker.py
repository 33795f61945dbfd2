"""Reading the journals: Jepsen's counters of unique-ids, and how long callers had to wait.

Memory stays small however long the run was: records come one by one in the order of time, and tickets
that have been seen grow together into a few intervals.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.chaos.journal import (
    Acknowledged,
    Attempted,
    Failed,
    Finding,
    Gap,
    Said,
    Started,
    Torn,
    read,
)

__all__ = ["Counters", "Duplicate", "Event", "Ledger", "Report", "check"]

#: How many duplicates are shown, as many as Jepsen shows, and how many failures.
SHOWN, FAILURES_SHOWN = 48, 12
#: Draws that took longer are laid at the door of what happened meanwhile, in seconds.
SLOW = 0.1


@dataclass(frozen=True)
class Event:
    """What a nemesis has done.

    Attributes:
        name: what it was.
        server: which server it hurt, counted from 1; 0 for clients.
        began: when it began to hurt, in seconds of the monotonic clock.
        ended: when all was well again.
    """

    name: str
    server: int
    began: float
    ended: float

    def overlaps(self, began: float, ended: float) -> bool:
        """Whether it hurt at some moment of a draw."""
        return self.began <= ended and began <= self.ended

    def __str__(self) -> str:
        where = f" (server {self.server})" if self.server else ""
        return f"{self.name}{where}"


_NOTHING = Event("nothing", 0, 0.0, 0.0)


class Ledger:
    """The tickets of one sequence that were acknowledged, as intervals."""

    def __init__(self) -> None:
        # by step and residue: the sorted begins and ends of intervals that neither meet nor touch
        self._intervals: dict[tuple[int, int], tuple[list[int], list[int]]] = {}

    def add(self, block: range) -> Iterator[range]:
        """Enter a block; yields what of it was there before.

        Blocks of one ledger have the same step, save those of a single ticket.
        """
        step = block.step
        residue, begin = block[0] % step, block[0] // step
        end = begin + len(block)
        begins, ends = self._intervals.setdefault((step, residue), ([], []))
        low, high = bisect_left(ends, begin), bisect_right(begins, end)
        for n in range(low, high):
            again = range(max(begin, begins[n]), min(end, ends[n]))
            if again:
                yield range(again[0] * step + residue, again[-1] * step + residue + 1, step)
        if low < high:
            begin, end = min(begin, begins[low]), max(end, ends[high - 1])
        begins[low:high], ends[low:high] = [begin], [end]

    @property
    def bounds(self) -> tuple[int, int] | None:
        """The smallest ticket and the largest."""
        firsts = [b[0] * step + rest for (step, rest), (b, _) in self._intervals.items()]
        largest = [(e[-1] - 1) * step + rest for (step, rest), (_, e) in self._intervals.items()]
        return (min(firsts), max(largest)) if firsts else None


@dataclass(frozen=True)
class Duplicate:
    """Tickets that were acknowledged before.

    Attributes:
        sequence: whose they are.
        tickets: those.
        by: who received them the second time.
        at: when.
        announced: whether the library had said before, in some process, that something is wrong with
            this sequence.
        event: what had been done last.
        newcomer: whether the process that received them had met no server before that.
    """

    sequence: str
    tickets: range
    by: str
    at: float
    announced: bool
    event: str
    newcomer: bool


@dataclass
class Counters:
    """What came of some draws, in tickets.

    Attributes:
        attempted: how many were asked for.
        acknowledged: how many were received.
        duplicated: how many of these had been received before.
        unannounced: how many of those came before the library had said that something is wrong.
        errors: draws that raised, by the class of the error.
        needless: draws that raised while one server served.
        longest: how many seconds the longest draw took.
        longest_failure: how many of those that raised.
        longest_gap: how many seconds an event loop stood still.
    """

    attempted: int = 0
    acknowledged: int = 0
    duplicated: int = 0
    unannounced: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    needless: int = 0
    longest: float = 0.0
    longest_failure: float = 0.0
    longest_gap: float = 0.0

    @property
    def lost(self) -> int:
        """Tickets that were asked for and not received: failures, and clients that were killed."""
        return self.attempted - self.acknowledged


@dataclass
class Report:
    """What came of one act.

    Attributes:
        all: the counters of all workloads.
        workloads: those of each.
        bounds: the smallest and the largest ticket of each sequence.
        duplicates: the first of them.
        failures: the first draws that failed while a server served, how long each took and what the servers
            had been through, and when, in seconds.
        repeats: how many tickets came twice after each kind of event, to processes that had met the
            servers before, and to newcomers.
        said: critical log messages without their numbers, and how often each came.
        complaints: of processes that did not come to their end, or left something behind.
        slow: the slowest draws: how many seconds, when they began, whose, and what happened meanwhile.
        slowest: the longest draw during each kind of event, in seconds.
        torn: lines that a killed client had not written to the end.
    """

    all: Counters = field(default_factory=Counters)
    workloads: defaultdict[str, Counters] = field(default_factory=lambda: defaultdict(Counters))
    bounds: dict[str, tuple[int, int]] = field(default_factory=dict)
    duplicates: list[Duplicate] = field(default_factory=list)
    failures: list[tuple[float, str]] = field(default_factory=list)
    repeats: Counter[tuple[str, bool]] = field(default_factory=Counter)
    said: Counter[str] = field(default_factory=Counter)
    complaints: list[str] = field(default_factory=list)
    slow: list[tuple[float, float, str, str]] = field(default_factory=list)
    slowest: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    torn: int = 0


def check(journals: Sequence[Path], events: Sequence[Event], servers: int = 2) -> Report:
    """Count what the journals of one act hold.

    Args:
        journals: their files, each named after a workload and a number.
        events: what was done meanwhile.
        servers: how many servers there were.
    """
    checker = _Checker(events, servers)
    for record in read(journals):
        workload = record.worker.rpartition("-")[0]
        for counters in (checker.report.all, checker.report.workloads[workload]):
            checker.count(counters, record)
        checker.check(record)
    report = checker.report
    for name, ledger in checker.ledgers.items():
        if ledger.bounds:
            report.bounds[name] = ledger.bounds
    return report


class _Checker:
    def __init__(self, events: Sequence[Event], servers: int) -> None:
        self.report = Report()
        self.ledgers: defaultdict[str, Ledger] = defaultdict(Ledger)
        self._events, self._servers = events, range(1, servers + 1)
        self._said: list[Said] = []
        self._births: dict[int, float] = {}

    def count(self, counters: Counters, record: object) -> None:
        """What can be told from one record alone."""
        if isinstance(record, Attempted):
            counters.attempted += record.n
        elif isinstance(record, Acknowledged):
            counters.acknowledged += sum(map(len, record.blocks))
            counters.longest = max(counters.longest, record.at - record.began)
        elif isinstance(record, Failed):
            counters.errors[record.error] += 1
            counters.longest = max(counters.longest, record.at - record.began)
            counters.longest_failure = max(counters.longest_failure, record.at - record.began)
            counters.needless += self._served(record)
        elif isinstance(record, Gap):
            counters.longest_gap = max(counters.longest_gap, record.seconds)

    def check(self, record: object) -> None:
        """What needs the records before, or the events."""
        report = self.report
        if isinstance(record, Acknowledged):
            self._enter(record)
        elif (
            isinstance(record, Failed)
            and self._served(record)
            and len(report.failures) < FAILURES_SHOWN
        ):
            text = (
                f"{record.worker}: {record.sequence}: {record.error} after"
                f" {record.at - record.began:.3f} s; {self._last_of_each_server(record)};"
                f" {record.message}"
            )
            report.failures.append((record.at, text))
        elif isinstance(record, Said):
            report.said[re.sub(r"\d+", "N", record.message)] += 1
            self._said.append(record)
            del self._said[:-1000]
        elif isinstance(record, Started):
            self._births[record.pid] = record.at
        elif isinstance(record, Finding):
            report.complaints.append(f"{record.worker}: {record.message}")
        elif isinstance(record, Torn):
            report.torn += 1
        if isinstance(record, (Acknowledged, Failed)) and record.at - record.began > SLOW:
            self._blame(record.at - record.began, record)

    def _enter(self, record: Acknowledged) -> None:
        report = self.report
        for block in record.blocks:
            for again in self.ledgers[record.sequence].add(block):
                event = self._last_event(record.at)
                newcomer = self._births.get(record.pid, 0.0) >= event.began > 0
                announced = self._announced(record, event)
                report.repeats[event.name, newcomer] += len(again)
                for counters in (report.all, report.workloads[record.worker.rpartition("-")[0]]):
                    counters.duplicated += len(again)
                    counters.unannounced += 0 if announced else len(again)
                if len(report.duplicates) < SHOWN:
                    by = f"{record.worker} (process {record.pid})"
                    found = Duplicate(
                        record.sequence, again, by, record.at, announced, str(event), newcomer
                    )
                    report.duplicates.append(found)

    def _last_event(self, at: float) -> Event:
        """What was done to a server last; a client that dies or forks sets no number back."""
        before = [e for e in self._events if e.server and e.began <= at]
        return max(before, key=lambda e: e.began, default=_NOTHING)

    def _last_of_each_server(self, draw: Failed) -> str:
        """What each server had been through last, in seconds from the begin of a draw."""
        before = [event for event in self._events if event.server and event.began <= draw.at]
        last = {event.server: event for event in sorted(before, key=lambda e: e.began)}
        return ", ".join(
            f"{e} from {e.began - draw.began:+.3f} to {e.ended - draw.began:+.3f}"
            for _, e in sorted(last.items())
        )

    def _announced(self, record: Acknowledged, event: Event) -> bool:
        """Whether the library has complained of the sequence since the event began."""
        name = repr(record.sequence)
        return any(said.at >= event.began and name in said.message for said in self._said)

    def _served(self, record: Failed) -> bool:
        """Whether a server was well all through the draw."""
        hurt = {e.server for e in self._events if e.overlaps(record.began, record.at)}
        return any(server not in hurt for server in self._servers)

    def _blame(self, seconds: float, record: Acknowledged | Failed) -> None:
        """Lay a slow draw at the door of all that happened meanwhile."""
        slowest = self.report.slowest
        meanwhile = [e for e in self._events if e.server and e.overlaps(record.began, record.at)]
        for name in {e.name for e in meanwhile} or {"nothing"}:
            slowest[name] = max(slowest[name], seconds)
        what = f"{record.sequence}, during {', '.join(map(str, meanwhile)) or 'nothing'}"
        self.report.slow.append((seconds, record.began, record.worker, what))
        self.report.slow.sort(reverse=True)
        del self.report.slow[10:]
