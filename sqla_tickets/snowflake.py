"""``SnowflakeSequence``: ids that sort by time, made in the process with a leased node number.

Ids of one tick, node and sequence name differ in their sequence number. A process never goes back to a tick
that it has left, so its ids only grow; when many are needed at once, or more than the ticks have, it goes on
with ticks just past that it has not used, and waits for the next tick when there are none. No id is ahead of
the clock.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from itertools import chain
from time import time
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from sqlalchemy import Column, Table, Uuid

from . import clock
from .aio import pause
from .bits import SNOWFLAKE, BitLayout
from .default import IdDefault
from .errors import ClockMovedBack, TicketArgumentError, TicketServerError, TicketsExhausted
from .sequence import holds_integers, is_name, largest_of, pool_of, sequence_of

if TYPE_CHECKING:
    from typing_extensions import Self

    from .forks import Mark
    from .leases import Lease, Nodes
    from .pool import TicketPool

__all__ = ["SnowflakeSequence", "Snowflakes"]

#: Seconds that a clock which has stepped back is waited for.
PATIENCE: Final = 1.0
#: Microseconds: how old the time of an id may be when it is made, for as many as are needed at once.
PAST: Final = 1_000_000
#: The same for one or a few, once a tick had too few: a process that gets the processor back late would else
#: lose the ticks that began meanwhile.
LATE: Final = 50_000
#: How often a lease may be over before it can be used.
IN_VAIN: Final = 20


class SnowflakeSequence(IdDefault):
    """Ids that sort by time: ``Column(BigInteger, SnowflakeSequence("photos"), primary_key=True)``.

    They are made in this process, without a round trip, with a node number that it leases from the ticket
    servers of a `TicketPool`. It holds plain data only, so that a table with it can be copied and pickled.

    Args:
        name: of the sequence; by default the name of the column's table. Ids of two sequences may be
            equal, as they are in other tables.
        pool: the name of the attached `TicketPool` that leases the node numbers; None for ``"default"``.
        layout: how an id is cut. Never change it for a column in use.
        shard: tells the shard of a new object, when it is flushed: the number that then stands in the node's
            bits, as in Instagram's scheme. The number of the process takes the upper half of the sequence's.
            For the table to be pickled it has to be a function of a module.

    Raises:
        TicketArgumentError: a name that is none. On attachment to a column: its type cannot hold ids of the
            layout, or it is declared AUTO_INCREMENT.
    """

    def __init__(
        self,
        name: str | None = None,
        *,
        pool: str | None = None,
        layout: BitLayout = SNOWFLAKE,
        shard: Callable[[Any], int] | None = None,
    ) -> None:
        if name is not None and not is_name(name):
            raise TicketArgumentError(
                f"SnowflakeSequence({name!r}): the name of a sequence is a string"
            )
        if type(layout) is not BitLayout:
            raise TicketArgumentError(f"SnowflakeSequence({name!r}): {layout!r} is no BitLayout")
        if shard is not None and not callable(shard):
            raise TicketArgumentError(
                f"SnowflakeSequence({name!r}): expected a function that tells an object's shard, found"
                f" {shard!r}"
            )
        self.name, self.pool, self.layout, self.shard = name, pool, layout, shard
        self.node_pool = pool or "default"

    def __repr__(self) -> str:
        parts = [repr(self.name)] if self.name is not None else []
        parts += [f"pool={self.pool!r}"] if self.pool is not None else []
        parts += [f"layout={self.layout}"] if self.layout != SNOWFLAKE else []
        parts += [f"shard={getattr(self.shard, '__name__', self.shard)}"] if self.shard else []
        return f"SnowflakeSequence({', '.join(parts)})"

    def _copy(self) -> Self:
        return type(self)(self.name, pool=self.pool, layout=self.layout, shard=self.shard)

    def check_column(self, column: Column[Any], table: Table) -> None:
        """See that the column can hold every id of the layout.

        Raises:
            TicketArgumentError: it cannot.
        """
        wide = self.layout.bits > 64
        fits = isinstance(column.type, Uuid) if wide else holds_integers(column.type)
        if fits and not wide and largest_of(column.type) < self.layout.largest:
            fits = False
        if not fits:
            raise TicketArgumentError(
                f"{table.name}.{column.name} has the type {column.type!r}, which cannot hold the"
                f" {self.layout.bits} bits of {self.layout}: use {'Uuid' if wide else 'BigInteger'}"
            )

    def stream_of(self, column: Column[Any]) -> Hashable:
        """The pool, the name of the sequence, the layout, and what tells the shard."""
        return pool_of(self, column), sequence_of(self, column), self.layout, self.shard

    def pool_for(self, column: Column[Any]) -> TicketPool:
        """The pool that leases the node numbers."""
        return pool_of(self, column)

    def draw(
        self, columns: Sequence[Column[Any]], n: int, alike: Iterable[IdDefault] = ()
    ) -> Iterator[Any]:
        """``n`` new ids; of a layout of 128 bits as the column has its UUIDs."""
        pool, name = pool_of(self, columns[0]), sequence_of(self, columns[0])
        if self.shard is not None:
            raise TicketArgumentError(
                f"{self!r} of {columns[0].table.name}.{columns[0].name} asks an object for its shard, and a"
                f" statement has none: set the ids of its rows, pool.snowflakes({name!r}, shard=...).next_ids(n)"
            )
        return _as_in(columns[0], pool.snowflakes(name, self.layout).reserve(n))

    def draw_for(
        self,
        columns: Sequence[Column[Any]],
        objects: Sequence[object],
        alike: Iterable[IdDefault] = (),
    ) -> Iterator[Any]:
        """An id for each object, of its shard."""
        if self.shard is None:
            return self.draw(columns, len(objects), alike)
        pool, name = pool_of(self, columns[0]), sequence_of(self, columns[0])
        shards = list(map(self.shard, objects))
        for shard in set(shards):  # None would be a number that is leased
            _check_shard(name, self.layout, shard)
        ids = {
            shard: _as_in(columns[0], pool.snowflakes(name, self.layout, shard).reserve(n))
            for shard, n in Counter(shards).items()
        }
        return (next(ids[shard]) for shard in shards)


def _check_shard(name: str, layout: BitLayout, shard: object) -> None:
    if layout.node_lowest:
        raise TicketArgumentError(
            f"ids of {name!r}: {layout} has the node in its lowest bits, so no process beside it: use INSTAGRAM"
        )
    if type(shard) is not int or not 0 <= shard < layout.nodes:
        raise TicketArgumentError(
            f"ids of {name!r}: expected a shard from 0 to {layout.nodes - 1} ({layout.node} bits), found"
            f" {shard!r}"
        )


def _as_in(column: Column[Any], runs: list[range]) -> Iterator[Any]:
    """Ids as the column has them."""
    ids = chain.from_iterable(runs)
    if not isinstance(column.type, Uuid):
        return ids
    uuids = (UUID(int=number) for number in ids)
    return uuids if column.type.as_uuid else map(str, uuids)


class _Popped(Iterator[int]):
    """Numbers that threads take from without a global lock: Python promises that ``popleft`` is atomic."""

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


class _Laid:
    """Numbers that are laid out for `Snowflakes.next_id`.

    Who takes one looks afterwards whether it may be used.

    Attributes:
        numbers: each is taken once.
        begins: when they may be used, in seconds since 1970.
        ends: from when on they may not.
        here: the mark of the process that they are for.
    """

    __slots__ = ("_all", "begins", "ends", "here", "numbers")

    def __init__(self, numbers: range, begins: float, ends: float, here: Mark) -> None:
        self._all, self.numbers = numbers, _shared(numbers)
        self.begins, self.ends, self.here = begins, ends, here

    def take_back(self) -> int:
        """Have them for other uses; how many there are, the last ones."""
        self.ends = 0.0  # first: whoever takes one after the next line takes it in vain
        first = next(self.numbers, None)
        self.numbers = iter(())
        return 0 if first is None else len(self._all) - self._all.index(first)


class Snowflakes:
    """What makes the ids of one sequence in this process: ``pool.snowflakes("photos").next_id()``.

    Threads and tasks may share it. Each id is above all that it has made before.
    """

    def __init__(
        self, name: str, layout: BitLayout, nodes: Nodes, shard: int | None = None
    ) -> None:
        self.name, self._nodes = name, nodes
        #: Bits of the number that is leased, and what stands above it.
        self._bits, self._above = layout.node, 0
        if shard is not None:
            _check_shard(name, layout, shard)
            self._bits = layout.sequence // 2
            self._above = shard << self._bits
            layout = layout.in_processes
        self.layout = layout
        self._size = 1 << layout.sequence
        self._last_tick = layout.largest >> (layout.node + layout.sequence)
        #: The tick that was made ids of last, its next sequence number, and whether it had too few of late.
        self._tick, self._next, self._in_haste = -1, self._size, False
        self._lease: Lease | None = None
        #: By process: another thread may have held the lock while this one was forked.
        self._locks: dict[int, threading.Lock] = {}
        self._laid = _Laid(range(0), 0.0, 0.0, nodes.here)
        nodes.add(self)

    def forget_parent(self) -> None:
        """In a fork: what is laid out is the parent's, as its mark says, and only takes up memory."""
        self._laid = _Laid(range(0), 0.0, 0.0, self._nodes.here)

    def next_id(self) -> int:
        """One id.

        Raises:
            NoNodeLeft: every node number has an owner.
            NoTicketServer: this process has no node number, and no ticket server answers.
            ClockMovedBack: the clock is behind, by more than is waited for.
            TicketsExhausted: the layout has run out of time.
        """
        laid = self._laid
        for number in laid.numbers:
            # looked at last: until now it may have been taken back, or be the parent's of this fork
            if laid.begins <= time() < laid.ends and laid.here[0]:
                return number
            break
        return self._make(1, lay_out=True)[0][0]

    def next_ids(self, n: int) -> list[int]:
        """Exactly ``n`` ids, ascending.

        Raises:
            TicketArgumentError: ``n`` is not 1 or more.
            TicketError: as `next_id`.
        """
        return list(chain.from_iterable(self.reserve(n)))

    def reserve(self, n: int) -> list[range]:
        """Exactly ``n`` ids as ranges, ascending: one for each tick.

        Raises:
            TicketArgumentError: ``n`` is not 1 or more.
            TicketError: as `next_id`.
        """
        if type(n) is not int or n < 1:
            raise TicketArgumentError(f"{n!r} ids of {self.name!r}: ask for 1 or more")
        return self._make(n)

    def stop(self) -> int:
        """Make no more ids of this lease; the latest time of one, in microseconds since 1970, or 0."""
        with self._lock():
            self._next -= self._laid.take_back()
            return self.layout.began_at(self._tick) if self._tick >= 0 else 0

    def _make(self, n: int, *, lay_out: bool = False) -> list[range]:
        """``n`` ids, and some laid out for those who come next in this tick."""
        runs: list[range] = []
        waits_since: float | None = None
        in_vain, needed, here = 0, n, self._nodes.here
        while n:
            lease = self._nodes.lease(self._bits)
            with self._lock():
                now = clock.wall()
                tick = self.layout.tick_at(now)
                is_live, is_covered = lease.is_live, now <= lease.horizon
                taken = 0
                if is_live and is_covered:
                    self._see_that_it_fits(tick)
                    taken = self._take(lease, tick, n, runs)
                    if taken == n and lay_out:
                        self._lay_out(lease, now, here)
                behind = self._tick - tick
            n -= taken
            if not is_live:
                in_vain = self._count(in_vain, lease)
            elif not is_covered:  # the clock has stepped forward
                in_vain = self._count(in_vain, lease)
                self._nodes.extend(lease)
            elif n:
                waits_since = self._wait(behind, waits_since if not taken else None)
        if not here[0]:  # this is a fork, and some may be the parent's
            return self._make(needed, lay_out=lay_out)
        return runs

    def _lock(self) -> threading.Lock:
        pid = os.getpid()
        return self._locks.get(pid) or self._locks.setdefault(pid, threading.Lock())

    def _take(self, lease: Lease, tick: int, n: int, runs: list[range]) -> int:
        """Take up to ``n`` numbers of the ticks up to this one; how many there were."""
        self._next -= self._laid.take_back()
        self._in_haste = self._in_haste or self._next == self._size
        if lease is not self._lease:  # its numbers begin after those of its last owner
            self._lease = lease
            self._tick = max(self._tick, self.layout.tick_at(lease.since))
            self._next, self._in_haste = self._size, False
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
        """Leave the ticks that are too long past for ``n`` ids."""
        unit = 1000 * self.layout.unit
        begin = tick - min((n - 1) // self._size, PAST // unit)
        is_late = self._in_haste and tick - self._tick <= LATE // unit
        if self._tick < begin and not is_late:
            self._tick, self._next, self._in_haste = begin, 0, False

    def _run(self, lease: Lease, n: int) -> range:
        return self.layout.run(self._tick, self._above | lease.node, self._next, n)

    def _lay_out(self, lease: Lease, now: int, here: Mark) -> None:
        """Lay out the rest of the tick, until another one begins or the lease is over."""
        numbers = self._run(lease, self._size - self._next)
        self._next = self._size
        layout = self.layout
        rest = int((lease.deadline - clock.elapsed()) * 1_000_000)  # a tick may be longer
        ends = min(layout.began_at(layout.tick_at(now) + 1), now + rest)
        self._laid = _Laid(numbers, layout.began_at(self._tick) / 1e6, ends / 1e6, here)

    def _wait(self, behind: int, since: float | None) -> float:
        """Wait for the next tick, or for a clock that has stepped back.

        Args:
            behind: by how many ticks the clock is behind.
            since: when the wait began, by `clock.elapsed`; None when it begins now.

        Raises:
            ClockMovedBack: that would take too long.
        """
        now = clock.elapsed()
        tick = self.layout.unit / 1000
        since = now if since is None else since
        if behind * tick > PATIENCE or now - since > PATIENCE + 2 * tick:
            raise ClockMovedBack(
                f"this machine's clock is {behind * tick:.3f} s behind the last id of {self.name!r}, of"
                f" {self.layout.time_at(self._tick)}: ids that sort by time wait for a clock that"
                f" has stepped back, for {PATIENCE} s at most. Try again when the clock has caught up;"
                " and let NTP slew it instead of stepping it"
            )
        if behind > 0:
            pause(min(behind * tick, 0.01))
        else:
            pause(tick - clock.wall() / 1_000_000 % tick)
        return since

    def _see_that_it_fits(self, tick: int) -> None:
        if tick > self._last_tick:
            raise TicketsExhausted(
                f"the ids of {self.name!r} have run out: {self.layout} ends at {self.layout.runs_out_at}"
            )
        if tick < 0:
            raise ClockMovedBack(
                f"this machine's clock is before the epoch of {self.layout}: set it, then try again"
            )

    def _count(self, in_vain: int, lease: Lease) -> int:
        if in_vain >= IN_VAIN:
            raise TicketServerError(
                f"{lease!r} was renewed {in_vain} times, and was over each time when the answer came, or"
                " this machine's clock steps: use a longer node_lease"
            )
        return in_vain + 1
