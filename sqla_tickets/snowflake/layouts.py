"""``BitLayout``: a time, a node and a sequence number in one integer, and the classic layouts.

Snowflake's, Instagram's and Boundary's layout have the sequence in the lowest bits, Sonyflake's has the node
there (its source: ``elapsedTime<<(8+16) | sequence<<16 | machineID``).
"""

from __future__ import annotations

import time as clock
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from typing import Any, Final, NamedTuple
from uuid import UUID

from sqlalchemy import ColumnElement, DateTime, Integer, literal_column
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import GenericFunction

from ..dialects import dialect_of
from ..errors import TicketArgumentError

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)
#: How far ahead of this machine's clock the one may have been that made an id.
_AHEAD: Final = timedelta(days=1)


class Decoded(NamedTuple):
    """The parts of an id.

    Attributes:
        time: the beginning of its tick, in UTC.
        node: the number of the process, or of the shard, that made it.
        sequence: its number within the tick, counted from 0.
    """

    time: datetime
    node: int
    sequence: int


@dataclass(frozen=True)
class BitLayout:
    """The layout of an id: a time, a node and a sequence number.

    Args:
        time: bits of the time, which is always in the highest ones.
        node: bits of the number of the process or the shard.
        sequence: bits that distinguish the ids of one node and tick.
        unit: milliseconds that a tick lasts.
        epoch: when tick 0 began, in milliseconds since 1970 (UTC).
        node_lowest: whether the node is in the lowest bits, as in Sonyflake's layout.

    Raises:
        TicketArgumentError: the bits fit neither a BIGINT (64; its sign is never reached, see `runs_out_at`) nor a
            UUID (128), or the epoch is in the future.
    """

    time: int
    node: int
    sequence: int
    unit: int = 1
    epoch: int = 0
    node_lowest: bool = False

    def __post_init__(self) -> None:
        numbers = (self.time, self.node, self.sequence, self.unit, self.epoch)
        if {*map(type, numbers)} != {int} or min(self.time, self.unit) < 1 or min(numbers) < 0:
            raise TicketArgumentError(
                f"{self}: expected integers for the bits, unit and epoch; time and unit must be 1 or more"
            )
        if self.bits > 64 and self.bits != 128:
            raise TicketArgumentError(
                f"{self} has {self.bits} bits: a BIGINT holds up to 64, a UUID 128"
            )
        if self.epoch > clock.time() * 1000:
            raise TicketArgumentError(f"{self}: its epoch, {self._time_at(0)}, is in the future")

    @property
    def bits(self) -> int:
        """The number of all bits."""
        return self.time + self.node + self.sequence

    @property
    def largest(self) -> int:
        """The largest id that a column can hold; a BIGINT has a sign."""
        return (1 << (63 if self.bits == 64 else self.bits)) - 1

    @property
    def nodes(self) -> int:
        """How many nodes there can be."""
        return 1 << self.node

    @property
    def runs_out_at(self) -> datetime:
        """The time when the last tick ends, or the last day that Python can represent."""
        return self._time_at((self.largest >> self._time_shift) + 1)

    def _tick_at(self, microseconds: int) -> int:
        """The tick of a time in microseconds since 1970."""
        return (microseconds - self.epoch * 1000) // (self.unit * 1000)

    def _began_at(self, tick: int) -> int:
        """The time when a tick begins, in microseconds since 1970."""
        return (tick * self.unit + self.epoch) * 1000

    def _run(self, tick: int, node: int, first: int, n: int) -> range:
        """The ids of ``n`` sequence numbers of one tick from ``first``, without checks."""
        step = 1 << self.node if self.node_lowest else 1
        start = (tick << self._time_shift) | (node << self._node_shift) | first * step
        return range(start, start + n * step, step)

    def encode(self, time: datetime, node: int, sequence: int) -> int:
        """The id of a time.

        Raises:
            TicketArgumentError: the time has no zone, or a part does not fit its bits.
        """
        tick = self._tick_at(_microseconds(time))
        last = self.largest >> self._time_shift
        parts = ((tick, last, "time"), (node, self.nodes - 1, "node"))
        for number, most, what in (*parts, (sequence, (1 << self.sequence) - 1, "sequence")):
            if not 0 <= number <= most:
                raise TicketArgumentError(
                    f"the {what} {time if what == 'time' else number} does not fit into {self}:"
                    f" expected 0 to {most}, found {number}"
                )
        return self._run(tick, node, sequence, 1)[0]

    def decode(self, id: int | UUID) -> Decoded:  # noqa: A002  # what it is called everywhere
        """The parts of an id.

        Raises:
            TicketArgumentError: the id is not of this layout: it has more bits, or its time is in the future.
        """
        number = id.int if isinstance(id, UUID) else id
        if not 0 <= number <= self.largest:
            raise TicketArgumentError(
                f"{id!r} is not an id of {self}: expected 0 to {self.largest}, {self.largest.bit_length()}"
                f" bits, found {number.bit_length()}" + (" and a sign" if number < 0 else "")
            )
        at = self._time_at(number >> self._time_shift)
        if at > datetime.now(timezone.utc) + _AHEAD:
            raise TicketArgumentError(
                f"{id!r} is not an id of {self}: its time, {at}, is in the future. Decode it with the layout and "
                f"epoch that made it"
            )
        node = number >> self._node_shift & (1 << self.node) - 1
        return Decoded(at, node, number >> self._sequence_shift & (1 << self.sequence) - 1)

    def shard_of(self, id: int | UUID) -> int:  # noqa: A002
        """The shard or node of an id, for a shard chooser; quicker than `decode`.

        Raises:
            TicketArgumentError: the id has more bits than this layout.
        """
        number = id.int if isinstance(id, UUID) else id
        if not 0 <= number <= self.largest:
            self.decode(number)
        return number >> self._node_shift & (1 << self.node) - 1

    @property
    def in_processes(self) -> BitLayout:
        """The same layout, with the upper half of the sequence's bits for the process.

        So several processes make ids of one shard: Instagram's 10 bits of sequence are 5 for the process and
        5 for its sequence.
        """
        process = self.sequence // 2
        return replace(self, node=self.node + process, sequence=self.sequence - process)

    def id_at(self, time: datetime) -> int:
        """The smallest id of a time, for ranges: ``Photo.id >= layout.id_at(monday)``.

        Raises:
            TicketArgumentError: the time has no zone, or is outside the layout's range.
        """
        return self.encode(time, 0, 0)

    def time_of(self, id: ColumnElement[int] | Any) -> ColumnElement[datetime]:  # noqa: A002
        """The time of an id in SQL, in UTC and without a zone.

        Raises:
            TicketArgumentError: the layout is for UUIDs, which databases cannot compute with.
        """
        tick = self._shifted(id, self._time_shift)
        milliseconds = tick * self.unit if self.unit > 1 else tick
        return _utc_of_milliseconds(milliseconds + self.epoch if self.epoch else milliseconds)

    def node_of(self, id: ColumnElement[int] | Any) -> ColumnElement[int]:  # noqa: A002
        """The node of an id in SQL.

        Raises:
            TicketArgumentError: as `time_of` raises it.
        """
        return self._shifted(id, self._node_shift).bitwise_and((1 << self.node) - 1)

    def sequence_of(self, id: ColumnElement[int] | Any) -> ColumnElement[int]:  # noqa: A002
        """The sequence number of an id in SQL.

        Raises:
            TicketArgumentError: as `time_of` raises it.
        """
        return self._shifted(id, self._sequence_shift).bitwise_and((1 << self.sequence) - 1)

    def _shifted(self, column: Any, by: int) -> ColumnElement[int]:
        if self.bits > 64:
            raise TicketArgumentError(f"{self} is for UUIDs: decode their parts in Python")
        shifted: ColumnElement[int] = column.bitwise_rshift(
            literal_column(str(by), Integer)  # PostgreSQL shifts by nothing wider
        )
        return shifted

    @property
    def _time_shift(self) -> int:
        return self.node + self.sequence

    @property
    def _node_shift(self) -> int:
        return 0 if self.node_lowest else self.sequence

    @property
    def _sequence_shift(self) -> int:
        return self.node if self.node_lowest else 0

    def _time_at(self, tick: int) -> datetime:
        """The time when a tick begins, or the last day that Python can represent."""
        try:
            return _EPOCH + timedelta(milliseconds=tick * self.unit + self.epoch)
        except OverflowError:
            return datetime.max.replace(tzinfo=timezone.utc)


def _microseconds(time: datetime) -> int:
    if time.tzinfo is None:
        raise TicketArgumentError(f"{time!r} has no time zone: add one, as in datetime.now(UTC)")
    return (time - _EPOCH) // timedelta(microseconds=1)


class _utc_of_milliseconds(GenericFunction[datetime]):  # noqa: N801  # a function of SQL's
    """A time from milliseconds since 1970, independent of the session's time zone."""

    type = DateTime()
    inherit_cache = True


@compiles(_utc_of_milliseconds)
def _write_utc(element: _utc_of_milliseconds, compiler: SQLCompiler, **kw: Any) -> str:
    number = compiler.process(element.clauses, **kw)
    return dialect_of(compiler.dialect).utc_of_milliseconds(number)


#: Twitter's, 2010: 4,096 ids per millisecond and node, 1,024 nodes, until 2080.
SNOWFLAKE: Final = BitLayout(41, 10, 12, epoch=1288834974657)
#: Instagram's, 2011: the node is a logical shard, the sequence a database's modulo 1,024.
INSTAGRAM: Final = BitLayout(41, 13, 10, epoch=1314220021721)
#: Sony's, 2014: 256 ids per 10 milliseconds and node, 65,536 nodes, until 2188.
SONYFLAKE: Final = BitLayout(39, 16, 8, unit=10, epoch=1409529600000, node_lowest=True)
#: Boundary's, 2012: 128 bits, for ``Uuid`` columns.
FLAKE: Final = BitLayout(64, 48, 16)
