# What is protected is hidden from users, not from this package.
# pyright: reportPrivateUsage=false
"""``SnowflakeGenerator``: ids that sort by time, made in the process with a leased node number.

Ids of one tick, node and sequence name differ in their sequence number. A process never returns to an earlier tick,
so its ids only grow. A call for many ids also uses recent ticks that the process has not used. If there are none
left, it waits for the next tick. No id is ahead of the clock.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from time import time
from typing import TYPE_CHECKING, Any, Final, Protocol, runtime_checkable

from .. import concurrency as clock
from ..arguments import name_of_sequence, whole_number
from ..concurrency import pause, process_id, threading
from ..errors import ClockMovedBack, TicketArgumentError, TicketServerError, TicketsExhausted
from ..orm.sequence import Named, sequence_of
from .allocator import LeaseAllocator, Registered, allocator_of
from .layouts import INSTAGRAM, SNOWFLAKE, BitLayout
from .timing import TIMING

if TYPE_CHECKING:
    from typing_extensions import Self

    from ..concurrency import OwnerMark
    from ..pool import TicketPool
    from .lease import Lease


def check_shard(name: str, layout: BitLayout, shard: object) -> None:
    """Check that ids of a layout can hold a shard.

    Raises:
        TicketArgumentError: they cannot hold it.
    """
    if layout.node_lowest:
        raise TicketArgumentError(
            f"ids of {name!r}: {layout} keeps the node in its lowest bits, so a shard leaves no bits for the process: "
            f"use INSTAGRAM"
        )
    whole_number(f"ids of {name!r}, a shard of {layout.node} bits", shard, 0, layout.nodes - 1)


class _Popped(Iterator[int]):
    """Numbers that threads take without a global lock, since ``popleft`` is atomic."""

    def __init__(self, numbers: range) -> None:
        self._pop = deque(numbers).popleft

    def __next__(self) -> int:
        try:
            return self._pop()
        except IndexError:
            raise StopIteration from None


#: Where there is a global lock, a range's own iterator is as atomic.
_shared: Final[Callable[[range], Iterator[int]]] = (
    _Popped if "free-threading build" in sys.version else iter
)


#: As many as a tick of Snowflake's has; a sequence of 64 bits has more than a `range` can count.
_MOST_PREPARED: Final = 4096
#: The number after the largest one has a bit more, and is sent as a BIGINT.
_MOST_LEASED_BITS: Final = 62


class _Ready:
    """Numbers that are ready for `SnowflakeGenerator.next_id`.

    A thread first takes a number, then checks that it may use it.

    Attributes:
        numbers: the numbers; each is taken once.
        begins: when they may be used, in seconds since 1970.
        ends: when they expire, in seconds since 1970.
        is_owner_process: the mark of the process that may use them.
    """

    __slots__ = ("_all", "begins", "ends", "is_owner_process", "numbers")

    def __init__(self, numbers: range, begins: float, ends: float, owner: OwnerMark) -> None:
        self._all, self.numbers = numbers, _shared(numbers)
        self.begins, self.ends, self.is_owner_process = begins, ends, owner

    def take_back(self) -> int:
        """Take the remaining numbers back; returns how many there are, which are the last ones."""
        self.ends = 0.0  # first: a number that a thread takes from here on is not used
        first = next(self.numbers, None)
        self.numbers = iter(())
        return 0 if first is None else len(self._all) - self._all.index(first)


@runtime_checkable
class _Declared(Named, Protocol):
    """The declaration of a `SnowflakeSequence`'s ids."""

    layout: BitLayout
    shard: Callable[[Any], int] | None


def _check_declared(pool: str, sequence: object) -> None:
    """Check that a pool makes the ids of a declaration.

    Raises:
        TicketArgumentError: it is no declaration, or belongs to another pool.
    """
    if not isinstance(sequence, _Declared):
        raise TicketArgumentError(
            f"SnowflakeGenerator of the pool {pool!r}: expected the name of a sequence, or a SnowflakeSequence, found"
            f" {sequence!r}"
        )
    if sequence.pool not in (None, pool):
        raise TicketArgumentError(
            f"{sequence!r} belongs to the pool {sequence.pool!r}, and this is {pool!r}; two pools would make the same "
            f"ids. Give SnowflakeGenerator the pool {sequence.pool!r}"
        )


def _layout_of(name: str, declared: Iterable[_Declared], shard: int | None) -> BitLayout:
    """The layout of a sequence's ids: that of its columns, or the default.

    Raises:
        TicketArgumentError: the columns have several layouts, or need a shard, or have none.
    """
    found = {(each.layout, each.shard is not None) for each in declared}
    if not found:
        return SNOWFLAKE if shard is None else INSTAGRAM
    if len(found) > 1:
        raise TicketArgumentError(
            f"the columns of {name!r} declare several layouts: choose one, SnowflakeGenerator(pool, {name!r}, layout)"
        )
    ((layout, has_shard),) = found
    if has_shard != (shard is not None):
        raise TicketArgumentError(
            f"ids of {name!r}: its column declares a shard: give the id's shard,"
            f" SnowflakeGenerator(pool, {name!r}, shard=...)"
            if has_shard
            else f"ids of {name!r}: its column declares no shard, found the shard {shard!r}: leave it out"
        )
    return layout


class SnowflakeGenerator:
    """Makes the ids of one sequence in this process: ``SnowflakeGenerator(tickets, "photos").next_id()``.

    There is one for each pool, name, layout and shard, as two would make the same ids. Threads and tasks may share
    it. Each id is larger than all earlier ones.

    Args:
        pool: the pool whose servers lease the node numbers, as its `NodeLeases` say.
        sequence: the sequence's name, or a `SnowflakeSequence`, whose ``layout`` then applies.
        layout: the layout of the ids; by default that of the sequence's columns in the attached MetaDatas. Without
            such a column it is ``SNOWFLAKE``, with a shard ``INSTAGRAM``.
        shard: the shard in the node's bits; the leased number then takes the upper half of the sequence's bits.

    Attributes:
        name: the sequence's name.

    Raises:
        TicketArgumentError: the sequence belongs to another pool, the shard does not fit its bits, the layout has
            the node in the lowest bits, the existing generator is not of this class, or the columns declare several
            layouts, a shard that is not given, or no shard.
    """

    def __new__(
        cls,
        pool: TicketPool,
        sequence: str | _Declared,
        layout: BitLayout | None = None,
        shard: int | None = None,
    ) -> Self:
        """Return the existing generator, or a new one."""
        if isinstance(sequence, str):
            name = name_of_sequence(sequence)
        else:
            _check_declared(pool.name, sequence)
            name = sequence_of(sequence)
            layout = _layout_of(name, [sequence], shard)
        leases = allocator_of(pool)
        # a table that was declared since may declare the layout
        asked = name, layout or pool._declared_in(), shard
        made = leases.generators.get(asked)
        if made is None:
            if layout is None:
                found = (each for each in pool._declarations() if isinstance(each, _Declared))
                layout = _layout_of(name, (d for d in found if sequence_of(d) == name), shard)
            new = super().__new__(cls)
            new._prepare(name, layout, leases, shard)
            registered = Registered(new, new._stop, new._drop_ready)
            made = leases.generators.setdefault((name, layout, shard), registered)
            leases.generators[asked] = made
        if not isinstance(made.generator, cls):
            raise TicketArgumentError(
                f"{cls.__name__} of {name!r}: expected no other generator of these ids, found a"
                f" {type(made.generator).__name__}; two would make the same ids. Create the {cls.__name__} first:"
                " SnowflakeSequence and SnowflakeGenerator then use it, too"
            )
        return made.generator

    def _prepare(
        self, name: str, layout: BitLayout, leases: LeaseAllocator, shard: int | None
    ) -> None:
        self.name, self._leases = name, leases
        #: What stands above the number that is leased.
        self._above, bits = 0, layout.node
        if shard is not None:
            check_shard(name, layout, shard)
            bits = layout.sequence // 2
            self._above = shard << bits
            layout = layout.in_processes
        self.layout = layout
        #: Bits of the number that is leased.
        self._bits = min(bits, _MOST_LEASED_BITS)
        self._size = 1 << layout.sequence
        self._last_tick = layout.largest >> (layout.node + layout.sequence)
        #: The last tick that has ids, its next sequence number, and whether a tick had too few lately.
        self._tick, self._next, self._in_haste = -1, self._size, False
        self._lease: Lease | None = None
        #: By process: another thread may have held the lock while this one was forked.
        self._locks: dict[int, threading.Lock] = {}
        self._ready = _Ready(range(0), 0.0, 0.0, leases.is_owner_process)

    def _drop_ready(self) -> None:
        """In a fork: drop the ready numbers, which are the parent's."""
        self._ready = _Ready(range(0), 0.0, 0.0, self._leases.is_owner_process)

    def next_id(self) -> int:
        """Make one id.

        Raises:
            NodeIdsExhausted: every node number has an owner.
            NoTicketServer: this process has no node number, and no ticket server answers.
            ClockMovedBack: the clock is too far behind to wait for it.
            TicketsExhausted: the layout's time has run out.
        """
        ready = self._ready
        for number in ready.numbers:
            # checked last: until now it may have been taken back, or be the parent's of this fork
            if ready.begins <= time() < ready.ends and ready.is_owner_process[0]:
                return number
            break
        return self._make(1, prepare=True)[0][0]

    def next_ids(self, n: int) -> list[int]:
        """Make exactly ``n`` ids, ascending.

        Raises:
            TicketArgumentError: ``n`` is not 1 or more.
            TicketError: as `next_id` raises it.
        """
        return list(chain.from_iterable(self.reserve(n)))

    def reserve(self, n: int) -> list[range]:
        """Make exactly ``n`` ids as ascending ranges, one for each tick.

        Raises:
            TicketArgumentError: ``n`` is not 1 or more.
            TicketError: as `next_id` raises it.
        """
        if type(n) is not int or n < 1:
            whole_number(f"ids of {self.name!r}: n", n, 1)
        return self._make(n)

    def _stop(self) -> int:
        """Stop using this lease; returns the latest time of an id, in microseconds since 1970, or 0."""
        with self._lock():
            self._next -= self._ready.take_back()
            return self.layout._began_at(self._tick) if self._tick >= 0 else 0

    def _make(self, n: int, *, prepare: bool = False) -> list[range]:
        """Make ``n`` ids, and prepare some for the next calls in this tick."""
        runs: list[range] = []
        waits_since: float | None = None
        in_vain, needed, waited_in = 0, n, -1
        lease = self._leases.lease(self._bits)
        owner = (
            self._leases.is_owner_process
        )  # after that: a fork that Python was not told of has its own from now on
        while n:
            with self._lock():
                now = clock.wall()
                tick = self.layout._tick_at(now)
                is_live, is_covered = lease.is_live, now <= lease.horizon
                taken = 0
                if is_live and is_covered:
                    self._see_that_it_fits(tick)
                    taken = self._take(lease, tick, n, runs)
                    if taken == n and prepare:
                        self._prepare_rest(lease, now, owner)
                behind = self._tick - tick
            n -= taken
            if not is_live:
                in_vain = self._count(in_vain, lease)
            elif not is_covered:  # the clock has stepped forward
                in_vain = self._count(in_vain, lease)
                self._leases.extend(lease)
            elif n:
                if taken or (
                    behind <= 0 and tick > waited_in
                ):  # the clock goes on; other threads took the tick
                    waits_since = None
                waits_since, waited_in = self._wait(behind, waits_since), tick
            if n:
                asked = clock.elapsed()
                lease = self._leases.lease(self._bits)
                if waits_since is not None:  # for the clock, and not for a server
                    waits_since += clock.elapsed() - asked
        if not owner[0]:  # this is a fork, and some may be the parent's
            return self._make(needed, prepare=prepare)
        return runs

    def _lock(self) -> threading.Lock:
        pid = process_id()
        return self._locks.get(pid) or self._locks.setdefault(pid, threading.Lock())

    def _take(self, lease: Lease, tick: int, n: int, runs: list[range]) -> int:
        """Take up to ``n`` numbers of the ticks up to this one; returns how many there were."""
        self._next -= self._ready.take_back()
        self._in_haste = self._in_haste or self._next == self._size
        if lease is not self._lease:  # its numbers begin after those of its last owner
            self._next, self._in_haste = self._size, False
            self._tick = max(self._tick, self.layout._tick_at(lease.since))
            self._lease = lease  # the last: an interrupt before has all of it done again
        self._go_on(tick, n)
        taken = 0
        while taken < n and self._tick <= tick:
            room = min(n - taken, self._size - self._next)
            if room:
                runs.append(self._run(lease, room))
                self._next += room
                taken += room
            elif self._tick == tick:
                break
            else:
                self._tick, self._next = self._tick + 1, 0
        return taken

    def _go_on(self, tick: int, n: int) -> None:
        """Skip ticks that are too old for ``n`` ids."""
        unit = 1000 * self.layout.unit
        begin = tick - min((n - 1) // self._size, TIMING.backdated_microseconds // unit)
        is_late = self._in_haste and tick - self._tick <= TIMING.late_microseconds // unit
        if self._tick < begin and not is_late:
            self._tick, self._next, self._in_haste = begin, 0, False

    def _run(self, lease: Lease, n: int) -> range:
        return self.layout._run(self._tick, self._above | lease.node, self._next, n)

    def _prepare_rest(self, lease: Lease, now: int, owner: OwnerMark) -> None:
        """Prepare the tick's next numbers, until the next tick or the lease's end."""
        numbers = self._run(lease, min(self._size - self._next, _MOST_PREPARED))
        self._next += len(numbers)
        layout = self.layout
        rest = int((lease.deadline - clock.elapsed()) * 1_000_000)  # a tick may be longer
        ends = min(layout._began_at(layout._tick_at(now) + 1), now + rest)
        self._ready = _Ready(numbers, layout._began_at(self._tick) / 1e6, ends / 1e6, owner)

    def _wait(self, behind: int, since: float | None) -> float:
        """Wait for the next tick, or for a clock that has stepped back.

        Args:
            behind: by how many ticks the clock is behind.
            since: when the wait began, by `clock.elapsed`; None if it begins now.

        Raises:
            ClockMovedBack: the wait would take too long.
        """
        now = clock.elapsed()
        tick = self.layout.unit / 1000
        since = now if since is None else since
        if (
            behind * tick > TIMING.clock_wait_seconds
            or now - since > TIMING.clock_wait_seconds + 2 * tick
        ):
            raise ClockMovedBack(
                f"this machine's clock is {behind * tick:.3f} s behind the last id of {self.name!r}, made at "
                f"{self.layout._time_at(self._tick)}: a generator waits at most {TIMING.clock_wait_seconds} s for a "
                "clock that has stepped back. Try again when the clock has caught up, and let NTP slew the clock "
                f"instead of stepping it"
            )
        if behind > 0:
            pause(min(behind * tick, 0.01))
        else:
            unit = 1000 * self.layout.unit  # whole numbers: a float's remainder may be a whole tick
            pause((unit - clock.wall() % unit) / 1_000_000)
        return since

    def _see_that_it_fits(self, tick: int) -> None:
        if tick > self._last_tick:
            raise TicketsExhausted(
                f"the ids of {self.name!r} have run out: {self.layout} ends at {self.layout.runs_out_at}"
            )
        if tick < 0:
            raise ClockMovedBack(
                f"this machine's clock is before the epoch of {self.layout}: set the clock, then try again"
            )

    def _count(self, in_vain: int, lease: Lease) -> int:
        if in_vain >= TIMING.waits_in_vain:
            raise TicketServerError(
                f"{lease!r} was renewed {in_vain} times, and had ended each time when the answer came: use longer "
                f"leases, NodeLeases(pool, duration=...), and keep this machine's clock from stepping"
            )
        return in_vain + 1
