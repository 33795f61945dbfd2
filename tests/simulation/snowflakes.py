"""Ids that sort by time: how the processes of a world make them, and what is promised of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple, Protocol

from sqla_tickets import TicketPool
from sqla_tickets.errors import (
    ClockMovedBack,
    NodeIdsExhausted,
    TicketError,
)
from sqla_tickets.snowflake.generator import SnowflakeGenerator
from sqla_tickets.snowflake.layouts import BitLayout
from sqla_tickets.snowflake.lease import Lease
from sqla_tickets.snowflake.leases import NodeLeases

from .number_set import NumberSet
from .world import Machine, World

__all__ = ["IdChecker", "IdHabits", "IdMaker"]

LIKES: Final = "likes"
#: How old an id may be when it is made, and how far a clock is behind that is waited for, in seconds.
BACKDATED_SECONDS: Final = 1.0
CLOCK_WAIT_SECONDS: Final = 1.0
#: By how much a time in seconds since 1970 is rounded, in seconds.
ROUNDED_SECONDS: Final = 2e-6


class IdHabits(Protocol):
    """How the processes of a world make ids."""

    @property
    def layout(self) -> BitLayout | None:
        """How an id is cut; None where there are none."""
        ...

    @property
    def shard(self) -> int | None:
        """The shard that they are of."""
        ...

    @property
    def lease_seconds(self) -> float:
        """How long a lease of a node number lasts."""
        ...


class _Call(NamedTuple):
    """One call of a generator.

    Attributes:
        began: when it did, in the world's time.
        wall: the same, by the clock of its machine.
        error: how wrong that was.
        above: the largest id that the process had made before.
    """

    began: float
    wall: float
    error: float
    above: int


class IdChecker:
    """Ids of all processes, and what was broken.

    Args:
        world: in which they are made.
        broken: is told of a broken promise, by its kind and a text.
        well: the servers that could serve the process that runs since a moment.

    Attributes:
        has_number: whether a server had a node number to lease: its name, the number's bits, the clock of
            the process, and since when.
        made: how many ids were made.
        failed: how many calls failed, by the classes of their errors.
        slowest: seconds that the slowest call took.
    """

    def __init__(
        self,
        world: World,
        broken: Callable[[str, str], None],
        well: Callable[[float], list[str]],
    ) -> None:
        self._world, self._broken, self._well = world, broken, well
        self.has_number: Callable[[str, int, float, float], bool]
        self._issued = NumberSet()
        self._latest: dict[Machine, int] = {}
        #: The processes that have begun to make ids.
        self._begun = set[Machine]()
        #: By node number, the first and the last tick of each owner's ids.
        self._ticks: dict[int, dict[tuple[Machine, int], tuple[int, int]]] = {}
        self.made = self.calls = 0
        self.failed: Counter[str] = Counter()
        self.slowest = 0.0

    def forked(self, parent: Machine, child: Machine) -> None:
        """A process was forked: it remembers the clock that its parent has seen."""
        if parent in self._begun:
            self._begun.add(child)
            child.furthest_ahead = parent.furthest_ahead

    def begin(self) -> _Call:
        """The process that runs begins to make ids."""
        machine = self._world.machine
        if machine not in self._begun:  # what its clock showed before has left no trace
            self._begun.add(machine)
            machine.furthest_ahead = machine.wall_error
        above = self._latest.get(machine, -1)
        return _Call(self._world.now, machine.wall(), machine.wall_error, above)

    def end(self, call: _Call, layout: BitLayout, runs: Iterable[range], seconds: float) -> None:
        """A call was answered."""
        machine = self._world.machine
        self.slowest = max(self.slowest, seconds)
        self.calls += 1
        above, wall = call.above, machine.wall()
        shift = layout.node + layout.sequence
        for run in runs:
            self.made += len(run)
            if self._issued.add(run):
                self._broken("repeated id", f"{LIKES}: {run}")
            if run[0] <= above:
                self._broken("descending id", f"{LIKES}: {run} after {above}")
            above = run[-1]
            if machine.wall_error == call.error:
                made_at = layout._began_at(run[0] >> shift) / 1e6
                least = call.wall - BACKDATED_SECONDS - layout.unit / 1000
                if not least <= made_at <= wall + ROUNDED_SECONDS:
                    text = f"{LIKES}: {run} is of {made_at}, made from {call.wall} to {wall}"
                    self._broken("wrong time", text)
        self._latest[machine] = max(self._latest.get(machine, -1), above)

    def owns(self, lease: Lease, layout: BitLayout, runs: Sequence[range]) -> None:
        """The process that runs has made ids of a lease: before its horizon, and all before or after another owner's."""
        shift = layout.node + layout.sequence
        first, last = runs[0][0] >> shift, runs[-1][-1] >> shift
        if layout._began_at(last) > lease.horizon:
            text = f"{runs[-1]} is of {layout._began_at(last)}, and the horizon {lease.horizon}"
            self._broken("late id", f"{LIKES}: {text}")
        owners = self._ticks.setdefault(lease.node, {})
        key = self._world.machine, lease.since
        before = owners.get(key, (first, last))
        first, last = owners[key] = min(first, before[0]), max(last, before[1])
        for (machine, since), (begin, end) in owners.items():
            if (machine, since) != key and begin <= last and first <= end:
                text = f"node {lease.node}: {key[0]} from {first} to {last}, {machine} from {begin} to {end}"
                self._broken("two owners", text)

    def fail(self, call: _Call, bits: int, error: Exception, seconds: float) -> None:
        """A call for ids whose node has so many bits has failed."""
        machine = self._world.machine
        self.slowest = max(self.slowest, seconds)
        self.failed[type(error).__name__] += 1
        is_allowed = False
        if isinstance(error, ClockMovedBack):
            stepped_back = machine.furthest_ahead - min(call.error, machine.wall_error)
            is_allowed = stepped_back > CLOCK_WAIT_SECONDS / 2
        elif isinstance(error, NodeIdsExhausted):
            wall = min(call.wall, machine.wall())
            is_allowed = not any(
                self.has_number(name, bits, wall, call.began) for name in self._well(call.began)
            )
        elif isinstance(error, TicketError):
            is_allowed = not self._well(call.began)
        if not is_allowed:
            self._broken("failed id", f"{LIKES}: {error!r}")


class IdMaker:
    """The generator of one process, and how it is used.

    Args:
        world: that it is part of.
        checker: is told of each call.
        pool: of the process.
        habits: how ids are made.
    """

    def __init__(
        self, world: World, checker: IdChecker, pool: TicketPool, habits: IdHabits
    ) -> None:
        self._world, self._checker = world, checker
        NodeLeases(pool, duration=habits.lease_seconds)
        self._generator = SnowflakeGenerator(pool, LIKES, habits.layout, habits.shard)

    def make(self) -> None:
        """Make one id, or some, or more than a tick has."""
        world, generator, machine = self._world, self._generator, self._world.machine
        (n,) = world.random.choices((1, 10, 1000, 10_000), (40, 10, 5, 1))
        call, frozen = self._checker.begin(), machine.frozen_seconds
        before = generator._lease
        if world.trace is not None:
            world.log("makes {} ids", n)
        runs: list[range] = []
        error: Exception | None = None
        try:
            if n == 1:
                number = generator.next_id()
                runs = [range(number, number + 1)]
            else:
                runs = generator.reserve(n)
        except Exception as caught:  # noqa: BLE001  # the checker finds out whether it may be
            error = caught
        seconds = world.now - call.began - (machine.frozen_seconds - frozen)
        if world.trace is not None:
            world.log("has {} after {:.3f} s", error or runs[:2], seconds)
        if error is None:
            self._checker.end(call, generator.layout, runs, seconds)
            lease = generator._lease
            if lease is not None and lease is before:  # else both may have been used
                self._checker.owns(lease, generator.layout, runs)
        else:
            self._checker.fail(call, generator._bits, error, seconds)
