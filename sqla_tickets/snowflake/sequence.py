"""``SnowflakeSequence``: a column's declaration of ids that sort by time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID

from sqlalchemy import Column, Table, Uuid

from ..arguments import name_of_pool, name_of_sequence
from ..errors import TicketArgumentError
from ..orm.default import IdDefault
from ..orm.sequence import find_source, holds_integers, largest_of, sequence_of
from .generator import SnowflakeGenerator, check_shard
from .layouts import SNOWFLAKE, BitLayout
from .leases import NodeLeases

if TYPE_CHECKING:
    from typing_extensions import Self

    from ..pool import TicketPool


class SnowflakeSequence(IdDefault):
    """Ids that sort by time: ``Column(BigInteger, SnowflakeSequence("photos"), primary_key=True)``.

    This process makes them without a round trip, with a node number that it leases from the ticket servers of a
    `TicketPool`. The object holds plain data only, so that a table with it can be copied and pickled.

    Args:
        name: the sequence's name; by default the name of the column's table. Two sequences may make equal
            ids, as two tables may have them.
        pool: the name of the attached `TicketPool` that leases the node numbers; None for ``"default"``.
        layout: the layout of the ids. Never change it for a column in use.
        shard: a function that returns the shard of a new object when it is flushed. As in Instagram's scheme, the
            shard takes the node's bits, and the process's number the upper half of the sequence's bits. To let the
            table be pickled, it must be a function of a module.

    Raises:
        TicketArgumentError: an invalid name. On attachment to a column: its type cannot hold ids of the layout, or it
            is declared AUTO_INCREMENT.
    """

    def __init__(
        self,
        name: str | None = None,
        *,
        pool: str | None = None,
        layout: BitLayout = SNOWFLAKE,
        shard: Callable[[Any], int] | None = None,
    ) -> None:
        if name is not None:
            name_of_sequence(name)
        if pool is not None:
            name_of_pool(pool)
        if type(layout) is not BitLayout:
            raise TicketArgumentError(
                f"SnowflakeSequence({name!r}): expected a BitLayout, found {layout!r}"
            )
        if shard is not None and not callable(shard):
            raise TicketArgumentError(
                f"SnowflakeSequence({name!r}): expected a function from an object to its shard, found"
                f" {shard!r}"
            )
        self.name, self.pool, self.layout, self.shard = name, pool, layout, shard

    def __repr__(self) -> str:
        parts = [repr(self.name)] if self.name is not None else []
        parts += [f"pool={self.pool!r}"] if self.pool is not None else []
        parts += [f"layout={self.layout}"] if self.layout != SNOWFLAKE else []
        parts += [f"shard={getattr(self.shard, '__name__', self.shard)}"] if self.shard else []
        return f"SnowflakeSequence({', '.join(parts)})"

    def _copy(self) -> Self:
        return type(self)(self.name, pool=self.pool, layout=self.layout, shard=self.shard)

    def _check_column(self, column: Column[Any], table: Table) -> None:
        """Check that the column can hold every id of the layout.

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

    def _allocation_key(self, column: Column[Any]) -> Hashable:
        """The pool, the name of the sequence, the layout, the shard function, and what ids are in Python."""
        made_as = getattr(column.type, "as_uuid", None)
        return (
            find_source(self, column),
            sequence_of(self, column),
            self.layout,
            self.shard,
            made_as,
        )

    def _source_for(self, column: Column[Any]) -> TicketPool:
        """The pool that leases the node numbers."""
        return cast("TicketPool", find_source(self, column))

    @classmethod
    def _create_tables(cls, source: TicketPool, columns: Iterable[Column[Any]]) -> None:
        """Create the table of node numbers."""
        NodeLeases(source).create_table()

    def _draw(
        self,
        source: TicketPool,
        columns: Sequence[Column[Any]],
        n: int,
        *,
        alike: Iterable[IdDefault] = (),
        objects: Sequence[object] = (),
    ) -> Iterator[Any]:
        """Draw ``n`` new ids, each for its object's shard; with a layout of 128 bits, as the column's UUIDs."""
        column = columns[0]
        name = sequence_of(self, column)
        if self.shard is None:
            return _as_in(column, SnowflakeGenerator(source, name, self.layout).reserve(n))
        if not objects:
            raise TicketArgumentError(
                f"{self!r} of {column.table.name}.{column.name} needs an object's shard, but a statement has no "
                f"objects: set the ids of its rows with SnowflakeGenerator(pool, {name!r}, shard=...).next_ids(n)"
            )
        shards = list(map(self.shard, objects))
        for shard in set(shards):  # None would be a number that is leased
            check_shard(name, self.layout, shard)
        ids = {
            shard: _as_in(column, SnowflakeGenerator(source, name, self.layout, shard).reserve(n))
            for shard, n in Counter(shards).items()
        }
        return (next(ids[shard]) for shard in shards)


def _as_in(column: Column[Any], runs: list[range]) -> Iterator[Any]:
    """Convert ids to the column's type."""
    ids = chain.from_iterable(runs)
    if not isinstance(column.type, Uuid):
        return ids
    uuids = (UUID(int=number) for number in ids)
    return uuids if column.type.as_uuid else map(str, uuids)
