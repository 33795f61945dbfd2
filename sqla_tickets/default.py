"""``IdDefault``: a column default that gives all rows of a statement their ids at once.

A column default sees one row at a time. This one looks at the statement that is about to be sent, counts
all its rows, draws once for all of them and hands the ids out row by row. The flush listener draws from
the same defaults, before anything else happens.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, cast

from sqlalchemy import Column, Insert, Table, event
from sqlalchemy.engine.default import DefaultExecutionContext
from sqlalchemy.schema import ColumnDefault
from sqlalchemy.sql import visitors

from .errors import NoTicketPool, TicketArgumentError

if TYPE_CHECKING:
    from typing_extensions import Self

    from .pool import TicketPool

__all__ = ["IdDefault"]


class IdDefault(ColumnDefault):
    """Ids for a column, made by this process: drawn from a pool or made of a time.

    It holds plain data only, so that a table with it can be copied and pickled.
    """

    is_callable = True
    has_arg = True
    for_update = False
    inherit_cache = True
    #: The name of the pool that leases this process a node number; None where none is needed.
    node_pool: str | None = None

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Make this very class: ``ColumnDefault`` would choose one by its first argument."""
        return object.__new__(cls)

    # -- what each kind of ids says of itself

    def check_column(self, column: Column[Any], table: Table) -> None:
        """See that the column can hold these ids.

        Raises:
            TicketArgumentError: it cannot.
        """
        raise NotImplementedError

    def stream_of(self, column: Column[Any]) -> Hashable:
        """What the ids of a column are drawn from: columns of one stream are drawn for at once."""
        raise NotImplementedError

    def pool_for(self, column: Column[Any]) -> TicketPool | None:
        """The pool whose servers may be asked; None for ids that need none."""
        raise NotImplementedError

    def draw(
        self, columns: Sequence[Column[Any]], n: int, alike: Iterable[IdDefault] = ()
    ) -> Iterator[Any]:
        """``n`` new ids that each of the columns can hold, in their order.

        Args:
            columns: that take them, all of one stream.
            n: how many.
            alike: the other defaults of the stream, which may ask for larger blocks.

        Raises:
            TicketError: there are none.
        """
        raise NotImplementedError

    def draw_for(
        self,
        columns: Sequence[Column[Any]],
        objects: Sequence[object],
        alike: Iterable[IdDefault] = (),
    ) -> Iterator[Any]:
        """New ids for the objects of a flush, in their order, as `draw`."""
        return self.draw(columns, len(objects), alike)

    # -- the column default

    @property
    def arg(self) -> Any:
        """What SQLAlchemy calls with the execution context, once for each row."""
        return self._id_for_row

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
        event.listen(column, "after_parent_attach", self.check_column)

    def _id_for_row(self, context: DefaultExecutionContext | None) -> Any:
        prefetched = getattr(context, "current_column", None)
        column = _table_column(prefetched)
        if column is None:  # called outside of a statement, as some admin tools do
            column = getattr(self, "column", None)
        if column is None:
            raise NoTicketPool(
                f"{self!r} stands in no table, so no pool is known for it: use pool.next_id()"
            )
        if context is None or prefetched is None:
            return next(self._draw(context, [column], 1))
        by_hand = context.current_parameters.get(prefetched.key)  # type: ignore[union-attr]  # set while defaults are called
        if by_hand is not None:  # in an executemany whose first row has no id
            return by_hand
        drawn: dict[Hashable, Iterator[Any]] = context.__dict__.setdefault("_tickets", {})
        ids = drawn.get(id(column))
        if ids is None:
            stream = self.stream_of(column)
            if stream not in drawn:
                drawn[stream] = self._draw_for_statement(context, column, stream)
            ids = drawn[id(column)] = drawn[stream]
        return next(ids)

    def _draw_for_statement(
        self, context: DefaultExecutionContext, column: Column[Any], stream: Hashable
    ) -> Iterator[Any]:
        """All ids that the rows of a statement need from this stream."""
        compiled = cast("Any", context.compiled)
        if _selects_its_rows(compiled, column):
            raise TicketArgumentError(
                f"insert().from_select() into {column.table!s} would give one id of {self!r} to"
                " every row: select ids of their own, or insert the rows that were selected"
            )
        takers = [c for c in compiled.insert_prefetch if _takes_of(c, stream)]
        rows = context.compiled_parameters
        needed = sum(row.get(c.key) is None for row in rows for c in takers)
        others = {_table_column(c) for c in takers} - {column}
        return self._draw(context, [column, *others], needed)

    def _draw(
        self, context: DefaultExecutionContext | None, columns: Sequence[Column[Any]], n: int
    ) -> Iterator[Any]:
        pool = self.pool_for(columns[0])
        if context is not None and pool is not None:
            pool.refuse_database_of(context.root_connection.engine)
        return self.draw(columns, n)


def _table_column(prefetched: Any) -> Any:
    """The column itself, of which each row of ``insert().values([...])`` has a stand-in."""
    return getattr(prefetched, "original", prefetched)


def _takes_of(prefetched: Any, stream: Hashable) -> bool:
    """Whether a column of the statement takes ids of the same stream."""
    default = prefetched.default
    return isinstance(default, IdDefault) and default.stream_of(_table_column(prefetched)) == stream


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
