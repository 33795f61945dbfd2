"""``TicketSequence``: what a column declares, and what draws for whatever passes by the flush.

A column default sees one row at a time. This one looks at the statement that is about to be sent,
counts all its rows, draws once for all of them and hands the tickets out row by row.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

from sqlalchemy import Column, Insert, MetaData, Numeric, SmallInteger, Table, event, types
from sqlalchemy.engine.default import DefaultExecutionContext
from sqlalchemy.schema import ColumnDefault
from sqlalchemy.sql import visitors
from sqlalchemy.types import Integer, TypeDecorator, TypeEngine

from .errors import NoTicketPool, TicketArgumentError, TicketsExhausted

if TYPE_CHECKING:
    from typing_extensions import Self

    from .pool import TicketPool

__all__ = [
    "Bounds",
    "TicketSequence",
    "attached_pools",
    "check_fits",
    "is_name",
    "pool_of",
    "sequence_of",
]

#: The least and the most that one draw takes when fewer are needed.
Bounds: TypeAlias = "tuple[int, int]"
#: The key under which a MetaData's ``info`` holds its pools, by name.
INFO: Final = "sqla_tickets"


class TicketSequence(ColumnDefault):
    """Tickets for a column: ``Column(BigInteger, TicketSequence("photos"), primary_key=True)``.

    It holds plain data only, so that a table with it can be copied and pickled. The pool that serves
    it is found through the column's MetaData when a ticket is needed.

    Args:
        name: of the sequence, and so of its table on the ticket servers; by default the name of the
            column's table.
        pool: the name of the attached `TicketPool` that serves it; None for ``"default"``.
        block: how many tickets one draw takes when fewer are needed. The rest is kept in hand by
            this process, and is lost (a gap) when it ends; when half of a block is left, the next one
            is fetched beside the traffic. 1 keeps nothing in hand. A pair ``(least, most)`` lets the
            block grow and shrink, so that it lasts for the pool's ``block_lasts`` seconds.

    Raises:
        TicketArgumentError: a name or a block that cannot be meant. On attachment to a column: its
            type holds no integers, or it is declared AUTO_INCREMENT.
    """

    is_callable = True
    has_arg = True
    for_update = False
    inherit_cache = True

    def __new__(
        cls, name: str | None = None, *, pool: str | None = None, block: int | Bounds = 1
    ) -> Self:
        """Make this very class: ``ColumnDefault`` would choose one by its first argument."""
        return object.__new__(cls)

    def __init__(
        self, name: str | None = None, *, pool: str | None = None, block: int | Bounds = 1
    ) -> None:
        if name is not None and not is_name(name):
            raise TicketArgumentError(
                f"TicketSequence({name!r}): the name of a sequence is a string"
            )
        if not _is_block(block):
            raise TicketArgumentError(
                f"TicketSequence({name!r}, block={block!r}): it is 1 or more, or a pair (least, most)"
            )
        self.name, self.pool, self.block = name, pool, block

    @property
    def bounds(self) -> Bounds:
        """The least and the most that one draw takes when fewer are needed."""
        return self.block if isinstance(self.block, tuple) else (self.block, self.block)

    def __repr__(self) -> str:
        parts = [repr(self.name)] if self.name is not None else []
        parts += [f"pool={self.pool!r}"] if self.pool is not None else []
        parts += [f"block={self.block}"] if self.block != 1 else []
        return f"TicketSequence({', '.join(parts)})"

    @property
    def arg(self) -> Any:
        """What SQLAlchemy calls with the execution context, once for each row."""
        return self._ticket_for_row

    def _copy(self) -> Self:
        return type(self)(self.name, pool=self.pool, block=self.block)

    def compare_argument(self, argument: object) -> bool:
        """Whether ``argument`` is this very default (SQLAlchemy 2.1 asks, for dataclasses)."""
        return argument is self

    def _set_parent(self, parent: Any, **kw: Any) -> None:
        column: Column[Any] = parent
        if column.onupdate is self:
            raise TicketArgumentError(f"{self!r} is no onupdate: a ticket is for an INSERT")
        super()._set_parent(column, **kw)
        if column.autoincrement is True:
            raise TicketArgumentError(
                f"{column!r} is declared autoincrement: an id that a shard gives by itself is one that"
                " another shard gives too. Leave autoincrement out."
            )
        # else the migration that is generated from the model would create it AUTO_INCREMENT
        column.autoincrement = False
        event.listen(column, "after_parent_attach", _check_type)

    # -- the column default

    def _ticket_for_row(self, context: DefaultExecutionContext | None) -> int:
        prefetched = getattr(context, "current_column", None)
        column = _table_column(prefetched)
        if column is None:  # called outside of a statement, as some admin tools do
            column = getattr(self, "column", None)
        if column is None:
            raise NoTicketPool(
                f"{self!r} stands in no table, so no pool is known for it: use pool.next_id()"
            )
        name = sequence_of(self, column)
        if context is None or prefetched is None:
            return self._draw(context, column, name, 1)[0]
        by_hand: int | None = context.current_parameters.get(prefetched.key)  # type: ignore[union-attr]  # set while defaults are called
        if by_hand is not None:  # in an executemany whose first row has no id
            return by_hand
        drawn: dict[tuple[str | None, str], Iterator[int]]
        drawn = context.__dict__.setdefault("_tickets", {})
        if (self.pool, name) not in drawn:
            drawn[self.pool, name] = iter(self._draw_for_statement(context, column, name))
        return next(drawn[self.pool, name])

    def _draw_for_statement(
        self, context: DefaultExecutionContext, column: Column[Any], name: str
    ) -> list[int]:
        """All tickets that the rows of a statement need from this sequence."""
        compiled = cast("Any", context.compiled)
        if _selects_its_rows(compiled, column):
            raise TicketArgumentError(
                f"insert().from_select() into {column.table!s} would give one ticket of {name!r} to"
                " every row: select ids of their own, or insert the rows that were selected"
            )
        columns = [c for c in compiled.insert_prefetch if _draws(c, self, name)]
        rows = context.compiled_parameters
        needed = sum(row.get(c.key) is None for row in rows for c in columns)
        tickets = self._draw(context, column, name, needed)
        for other in {_table_column(c) for c in columns} - {column}:
            check_fits(other, name, max(tickets))
        return tickets

    def _draw(
        self, context: DefaultExecutionContext | None, column: Column[Any], name: str, n: int
    ) -> list[int]:
        pool = pool_of(self, column)
        if context is not None:
            pool.refuse_database_of(context.root_connection.engine)
        tickets = list(chain.from_iterable(pool.reserve_for(name, n, self.bounds)))
        check_fits(column, name, max(tickets))
        return tickets


def sequence_of(declared: TicketSequence, column: Column[Any] | None = None) -> str:
    """The name of the sequence that a column draws from.

    Raises:
        TicketArgumentError: it has no name of its own, and stands in no table that could lend one.
    """
    if declared.name is not None:
        return declared.name
    column = getattr(declared, "column", None) if column is None else column
    table = getattr(column, "table", None)
    if table is None:
        raise TicketArgumentError(f"{declared!r} has no name, and stands in no table yet: name it")
    return str(table.name)


def attached_pools(metadata: MetaData) -> dict[str, TicketPool]:
    """The pools that serve the sequences of this MetaData, by their names."""
    pools: dict[str, TicketPool] = metadata.info.setdefault(INFO, {})
    return pools


def pool_of(declared: TicketSequence, column: Column[Any]) -> TicketPool:
    """The pool that serves a column.

    Raises:
        NoTicketPool: none of that name is attached to the column's MetaData.
    """
    pools = attached_pools(column.table.metadata)
    wanted = declared.pool or "default"
    try:
        return pools[wanted]
    except KeyError:
        there = f"attached: {', '.join(sorted(pools))}" if pools else "none is attached"
        raise NoTicketPool(
            f"no ticket pool named {wanted!r} serves the sequence {sequence_of(declared, column)!r} of"
            f" {column.table.name}.{column.name} ({there}): call"
            f" TicketPool([...], name={wanted!r}).attach(metadata) with the MetaData of its table"
        ) from None


def check_fits(column: Column[Any], name: str, ticket: int) -> None:
    """See that a column's type can hold a ticket.

    Raises:
        TicketsExhausted: it cannot; nothing was inserted, and the ticket is a gap.
    """
    largest = _largest(column.type)
    if ticket > largest:
        raise TicketsExhausted(
            f"the ticket {ticket} of the sequence {name!r} is larger than {column.table.name}."
            f"{column.name} can hold ({column.type!r}, up to {largest}): change the column to BigInteger"
        )


def is_name(name: object) -> bool:
    """Whether a sequence can be called so."""
    return isinstance(name, str) and bool(name.strip())


def _is_block(block: object) -> bool:
    bounds = cast("tuple[int, ...]", block if isinstance(block, tuple) else (1, block))
    return len(bounds) == 2 and {*map(type, bounds)} == {int} and 1 <= bounds[0] <= bounds[1]


def _table_column(prefetched: Any) -> Any:
    """The column itself, of which each row of ``insert().values([...])`` has a stand-in."""
    return getattr(prefetched, "original", prefetched)


def _draws(prefetched: Any, declared: TicketSequence, name: str) -> bool:
    """Whether a column of the statement takes tickets of the same sequence."""
    other = prefetched.default
    return (
        isinstance(other, TicketSequence)
        and other.pool == declared.pool
        and sequence_of(other, _table_column(prefetched)) == name
    )


def _selects_its_rows(compiled: Any, column: Column[Any]) -> bool:
    """Whether the rows of an INSERT into the column's table come from a SELECT, in a CTE or not."""
    statement = compiled.statement
    inserts = [statement] if isinstance(statement, Insert) else []
    if compiled.ctes:
        inserts = [
            element for element in visitors.iterate(statement) if isinstance(element, Insert)
        ]
    into = str(column.table)  # the ORM's statements have a copy of the table
    return any(i.select is not None and str(i.table) == into for i in inserts)


def _check_type(column: Column[Any], table: Table) -> None:
    if not _holds_integers(column.type):
        raise TicketArgumentError(
            f"{table.name}.{column.name} has the type {column.type!r}, which cannot hold the tickets of"
            f" {column.default!r}: use BigInteger"
        )


def _holds_integers(type_: TypeEngine[Any]) -> bool:
    if isinstance(type_, (TypeDecorator, types.NullType)):
        return True  # it may make what it likes of an integer; a foreign key's type comes later
    if isinstance(type_, Numeric):
        return bool(type_.asdecimal) and not type_.scale
    try:
        return type_.python_type is int
    except NotImplementedError:
        return True


def _largest(type_: TypeEngine[Any]) -> int:
    """The largest ticket that a type holds: of its variants the narrowest."""
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
    if not isinstance(type_, Integer) or dialect == "sqlite":  # its INTEGER has 64 bits
        return 2**63 - 1
    bits = _BITS.get(type(type_).__name__.upper())
    if bits is None:
        bits = 64 if isinstance(type_, types.BigInteger) else 32
        bits = 16 if isinstance(type_, SmallInteger) else bits
    signs = 0 if getattr(type_, "unsigned", False) else 1
    return (1 << (bits - signs)) - 1


_BITS = {"TINYINT": 8, "MEDIUMINT": 24, "BIGINT": 64}
