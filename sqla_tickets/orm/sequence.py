"""``TicketSequence``: a column's declaration of its tickets, and the way to its pool."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from sqlalchemy import Column, MetaData, Numeric, SmallInteger, Table, types
from sqlalchemy.types import Integer, TypeDecorator, TypeEngine

from ..arguments import BlockBounds, name_of_pool, name_of_sequence
from ..errors import PoolNotAttached, TicketArgumentError, TicketsExhausted
from .default import IdDefault, IdSource
from .next_value import NextValue

if TYPE_CHECKING:
    from typing_extensions import Self

#: The key under which a MetaData's ``info`` holds its pools, by name.
INFO: Final = "sqla_tickets"


class Named(Protocol):
    """A declaration with the name of a sequence, or its table's, and the name of a pool, or the default one."""

    name: str | None
    pool: str | None


class TicketSequence(IdDefault):
    """Tickets for a column: ``Column(BigInteger, TicketSequence("photos"), primary_key=True)``.

    It holds plain data only, so that a table with it can be copied and pickled. The pool that serves
    it is found through the column's MetaData when a ticket is needed.

    Args:
        name: the name of the sequence and of its table on the ticket servers; by default the name of the
            column's table.
        pool: the name of the attached `TicketPool` that serves it; None for ``"default"``. Without a
            column, None also lets any pool draw from it.
        block: how many tickets one draw takes when fewer are needed. This process buffers
            the rest, which is lost (a gap) when the process ends. When half of a block is left, the next
            one is fetched in the background. 1 buffers nothing. A pair ``(least, most)`` lets the
            block grow and shrink, so that it lasts for the pool's ``block_duration`` seconds.

    Raises:
        TicketArgumentError: an invalid name or block. On attachment to a column: its
            type holds no integers, or it is declared AUTO_INCREMENT.
    """

    def __init__(
        self, name: str | None = None, *, pool: str | None = None, block: int | BlockBounds = 1
    ) -> None:
        if name is not None:
            name_of_sequence(name)
        if pool is not None:
            name_of_pool(pool)
        if not _is_block(block):
            raise TicketArgumentError(
                f"TicketSequence({name!r}, block={block!r}): expected 1 or more, or a pair (least, most)"
            )
        self.name, self.pool, self.block = name, pool, block
        #: The name of the only pool that it may draw from.
        self._only_pool = pool

    def _set_parent(self, parent: Any, **kw: Any) -> None:
        super()._set_parent(parent, **kw)
        self._only_pool = self.pool or "default"

    def next_value(self) -> NextValue:
        """A ticket in a statement, drawn on execution, one for each row of an executemany.

        It is valid as a column's value in ``insert().values(...)`` of one row, in ``update().values(...)`` if the
        WHERE names the whole primary key, and alone in ``select(sequence.next_value())``. Elsewhere it raises
        `TicketArgumentError`, as several rows could get it.
        """
        return NextValue(self)

    def __repr__(self) -> str:
        parts = [repr(self.name)] if self.name is not None else []
        parts += [f"pool={self.pool!r}"] if self.pool is not None else []
        parts += [f"block={self.block}"] if self.block != 1 else []
        return f"TicketSequence({', '.join(parts)})"

    def _copy(self) -> Self:
        return type(self)(self.name, pool=self.pool, block=self.block)

    def _check_column(self, column: Column[Any], table: Table) -> None:
        """Check that the column can hold integers.

        Raises:
            TicketArgumentError: it cannot.
        """
        if not holds_integers(column.type):
            raise TicketArgumentError(
                f"{table.name}.{column.name} has the type {column.type!r}, which cannot hold the"
                f" tickets of {self!r}: use BigInteger"
            )

    def _allocation_key(self, column: Column[Any]) -> Hashable:
        """The pool and the name of the sequence."""
        return find_source(self, column), sequence_of(self, column)

    def _source_for(self, column: Column[Any]) -> TicketSource:
        """The pool that serves the column."""
        return find_source(self, column)

    @classmethod
    def _create_tables(cls, source: TicketSource, columns: Iterable[Column[Any]]) -> None:
        """Create the sequences' ticket tables."""
        for name in sorted({sequence_of(cast("Named", c.default), c) for c in columns}):
            source.create_table(name)

    def _draw(
        self,
        source: TicketSource,
        columns: Sequence[Column[Any]],
        n: int,
        *,
        alike: Iterable[IdDefault] = (),
        objects: Sequence[object] = (),
    ) -> Iterator[int]:
        """``n`` tickets that each of the columns can hold."""
        name = self.name or sequence_of(self, columns[0])
        block = self.block
        for other in alike:
            if isinstance(other, TicketSequence):
                block = _larger(block, other.block)
        sequence = _named(name, block)
        if n == 1:
            ticket = source.next_id(sequence)
            check_fits(columns, name, ticket)
            return iter((ticket,))
        drawn = source.reserve(sequence, n)
        largest = drawn[0][-1] if len(drawn) == 1 else max(tickets[-1] for tickets in drawn)
        check_fits(columns, name, largest)
        return chain.from_iterable(drawn)

    def _reserve(self, source: TicketSource, column: Column[Any], n: int) -> list[range]:
        """``n`` tickets as blocks."""
        name = sequence_of(self, column)
        drawn = source.reserve(_named(name, self.block), n)
        check_fits([column], name, max(tickets[-1] for tickets in drawn))
        return drawn


class TicketSource(IdSource, Protocol):
    """The source of a MetaData's tickets: a `TicketPool`."""

    def next_id(self, sequence: str | TicketSequence) -> int:
        """One ticket."""
        ...

    def reserve(self, sequence: str | TicketSequence, n: int) -> list[range]:
        """``n`` tickets as blocks."""
        ...

    def create_table(self, name: str) -> None:
        """Create the sequence's table on every server."""
        ...


@lru_cache(maxsize=1024)
def _named(name: str, block: int | BlockBounds) -> TicketSequence:
    """A sequence with a name of its own."""
    return TicketSequence(name, block=block)


@lru_cache(maxsize=1024)
def bounds_of(block: int | BlockBounds) -> BlockBounds:
    """The smallest and the largest number of tickets that one draw takes when fewer are needed."""
    return block if isinstance(block, tuple) else (block, block)


def _larger(one: int | BlockBounds, other: int | BlockBounds) -> BlockBounds:
    """A block that is large enough for two sequences of one name."""
    (least, most), (other_least, other_most) = bounds_of(one), bounds_of(other)
    return max(least, other_least), max(most, other_most)


def sequence_of(declared: Named, column: Column[Any] | None = None) -> str:
    """The name of the sequence that a column draws from.

    Raises:
        TicketArgumentError: it has no name, and no table whose name it could take.
    """
    if declared.name is not None:
        return declared.name
    column = getattr(declared, "column", None) if column is None else column
    table = getattr(column, "table", None)
    if table is None:
        raise TicketArgumentError(
            f"{declared!r} has no name, and no table yet whose name it could take: name it"
        )
    return str(table.name)


def attached_sources(metadata: MetaData) -> dict[str, TicketSource]:
    """The sources of this MetaData's sequences, by the names of the pools."""
    sources: dict[str, TicketSource] = metadata.info.setdefault(INFO, {})
    return sources


def find_source(declared: Named, column: Column[Any]) -> TicketSource:
    """The pool that serves a column.

    Raises:
        PoolNotAttached: no pool of that name is attached to the column's MetaData.
    """
    pools: dict[str, TicketSource] = column.table.metadata.info.get(INFO, {})
    wanted = declared.pool or "default"
    try:
        return pools[wanted]
    except KeyError:
        there = f"attached: {', '.join(sorted(pools))}" if pools else "none is attached"
        raise PoolNotAttached(
            f"no ticket pool named {wanted!r} serves the sequence {sequence_of(declared, column)!r} of"
            f" {column.table.name}.{column.name} ({there}): call"
            f" TicketPool([...], name={wanted!r}).attach(metadata) with the MetaData of its table"
        ) from None


def check_fits(columns: Iterable[Column[Any]], name: str, ticket: int) -> None:
    """Check that the columns' types can hold a ticket.

    Raises:
        TicketsExhausted: it cannot; nothing was inserted, and the ticket is a gap.
    """
    for column in columns:
        largest = largest_of(column.type)
        if ticket > largest:
            raise TicketsExhausted(
                f"the ticket {ticket} of the sequence {name!r} is larger than {column.table.name}."
                f"{column.name} can hold ({column.type!r}, up to {largest}): change the column to"
                " BigInteger"
            )


def _is_block(block: object) -> bool:
    bounds = cast("tuple[int, ...]", block if isinstance(block, tuple) else (1, block))
    return len(bounds) == 2 and {*map(type, bounds)} == {int} and 1 <= bounds[0] <= bounds[1]


def holds_integers(type_: TypeEngine[Any]) -> bool:
    """Whether a column of that type can hold integer ids."""
    if isinstance(type_, (TypeDecorator, types.NullType)):
        return True  # it may make what it likes of an integer; a foreign key's type comes later
    if isinstance(type_, Numeric):
        return bool(type_.asdecimal) and not type_.scale
    try:
        return type_.python_type is int
    except NotImplementedError:
        return True


@lru_cache(maxsize=1024)
def largest_of(type_: TypeEngine[Any]) -> int:
    """The largest ticket that a type and all its variants can hold."""
    variants = getattr(type_, "_variant_mapping", {})
    return min(
        _largest_of_one(type_, None),
        *(_largest_of_one(variant, name) for name, variant in variants.items()),
        2**63 - 1,
    )


def _largest_of_one(type_: TypeEngine[Any], dialect: str | None) -> int:
    if isinstance(type_, TypeDecorator):
        type_ = type_.impl_instance
    if isinstance(type_, Numeric):
        return int(10 ** (type_.precision or 19)) - 1
    if not isinstance(type_, Integer) or (dialect and _integers_have_64_bits(dialect)):
        return 2**63 - 1
    bits = _BITS.get(type(type_).__name__.upper())
    if bits is None:
        bits = 64 if isinstance(type_, types.BigInteger) else 32
        bits = 16 if isinstance(type_, SmallInteger) else bits
    signs = 0 if getattr(type_, "unsigned", False) else 1
    return (1 << (bits - signs)) - 1


def _integers_have_64_bits(dialect: str) -> bool:
    from ..dialects import find_class  # noqa: PLC0415  # declaring models needs no dialect

    known = find_class(dialect)
    return known is not None and known.integers_have_64_bits


_BITS = {"TINYINT": 8, "MEDIUMINT": 24, "BIGINT": 64}
