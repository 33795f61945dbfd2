# What is protected is hidden from users, not from this package.
# pyright: reportPrivateUsage=false
"""``IdDefault``: a column default that gives all rows of a statement their ids at once.

A column default sees one row at a time. This one inspects the statement that is about to be sent, counts its rows and
draws once for all of them. It returns the ids row by row. The flush listener draws from the same defaults, before the
flush does anything else.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol, cast
from weakref import WeakKeyDictionary, WeakSet

from sqlalchemy import Column, Engine, Insert, Table, event
from sqlalchemy.engine.default import DefaultExecutionContext
from sqlalchemy.schema import ColumnDefault
from sqlalchemy.sql import visitors

from ..errors import PoolNotAttached, TicketArgumentError
from .inheritance import has_ids, source_of

if TYPE_CHECKING:
    from sqlalchemy.orm import InstrumentedAttribute
    from typing_extensions import Self


class IdServer(Protocol):
    """A SQLite file that issues ids."""

    def is_database_of(self, engine: Engine) -> bool:
        """Whether ``engine``'s database is this file."""
        ...


class IdSource(Protocol):
    """The source of ids for the columns of a MetaData: a pool of servers."""

    @property
    def name(self) -> str:
        """The name by which columns refer to it."""
        ...

    @property
    def servers(self) -> Sequence[object]:
        """The servers that issue the ids."""
        ...

    @property
    def _files(self) -> Sequence[IdServer]:
        """The servers that are SQLite files, which an application might open, too."""
        ...


#: By an application's engine: the sources that issue no ids from its database.
_separate: Final[WeakKeyDictionary[Engine, WeakSet[IdSource]]] = WeakKeyDictionary()


def create_tables(source: IdSource, columns: Iterable[Column[Any]]) -> None:
    """Create the tables that the ids of columns need on the servers of their source.

    Raises:
        TicketError: a server failed.
    """
    by_class: defaultdict[type[IdDefault], list[Column[Any]]] = defaultdict(list)
    for column in columns:
        if isinstance(column.default, IdDefault):
            by_class[type(column.default)].append(column)
    for kind, of_kind in by_class.items():
        kind._create_tables(source, of_kind)


def refuse_database_of(source: IdSource, engine: Engine) -> None:
    """Refuse an application's SQLite database that also issues ids.

    The application's transaction would hold the file's only write lock while it waits for an id, which needs that
    lock.

    Raises:
        TicketArgumentError: it issues ids.
    """
    if not source._files:
        return
    sources = _separate.get(engine)
    if sources is None:
        sources = _separate.setdefault(engine, WeakSet())
    elif source in sources:
        return
    for server in source._files:
        if server.is_database_of(engine):
            raise TicketArgumentError(
                f"the ticket server {server} is the application's own SQLite database, and the insert would hold its "
                f"only write lock while it waits for a ticket: give the tickets a file of their own"
            )
    sources.add(source)


class IdDefault(ColumnDefault):
    """Ids for a column, made in this process: drawn from a pool, or made from the time.

    It holds plain data only, so that a table with it can be copied and pickled.
    """

    is_callable = True
    has_arg = True
    for_update = False
    inherit_cache = True
    #: What `has_ids` asks for.
    _makes_ids = True
    #: Another object whenever a column gets its ids.
    _last_declared: ClassVar[object] = None

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Create an object of this class; ``ColumnDefault`` would choose a class by its first argument."""
        return object.__new__(cls)

    def apply_to(self, *columns: Column[Any] | InstrumentedAttribute[Any]) -> None:
        """Give existing columns their ids: columns of reflected tables, of automap, or of third-party models.

        It replaces the column's AUTO_INCREMENT, `Identity`, `Sequence` or server default in the model. The tables in
        the database do not change. Each column gets its own declaration, unless it has an equal one. Call it where
        the application starts, before other threads insert.

        Args:
            columns: table columns, or mapped attributes, such as ``Photo.id``.

        Raises:
            TicketArgumentError: a column has another default, is computed, or cannot hold the ids; or it is called
                after ``gc.freeze()``. No column is changed then.
        """
        from . import existing  # noqa: PLC0415  # declaring models needs no ORM

        found = dict.fromkeys(existing.column_of(column) for column in columns)
        taking = [column for column in found if not self._equals(column.default)]
        existing.check_engines_are_known()
        for column in taking:
            existing.check_replaceable(column, self)
            self._check_column(column, column.table)
        for column in taking:
            existing.clear(column)
            self._set_parent_with_dispatch(column)
        existing.forget({column.table for column in taking})

    def _equals(self, other: object) -> bool:
        """Whether another declaration has the same arguments."""
        return type(other) is type(self) and vars(other._copy()) == vars(self._copy())

    # -- what each kind of ids says of itself

    def _check_column(self, column: Column[Any], table: Table) -> None:
        """Check that the column can hold these ids.

        Raises:
            TicketArgumentError: it cannot.
        """
        raise NotImplementedError

    def _allocation_key(self, column: Column[Any]) -> Hashable:
        """The key of the ids' origin: columns with equal keys share a draw."""
        raise NotImplementedError

    def _source_for(self, column: Column[Any]) -> IdSource | None:
        """The pool that issues the ids; None for ids that need no server."""
        raise NotImplementedError

    @classmethod
    def _create_tables(cls, source: Any, columns: Iterable[Column[Any]]) -> None:
        """Create the tables that the ids of some columns need on the ticket servers; none by default.

        Args:
            source: the ticket source that serves the columns.
            columns: columns with defaults of this class.

        Raises:
            TicketError: a server failed.
        """

    def _draw(
        self,
        source: Any,
        columns: Sequence[Column[Any]],
        n: int,
        *,
        alike: Iterable[IdDefault] = (),
        objects: Sequence[object] = (),
    ) -> Iterator[Any]:
        """Draw ``n`` new ids, in order, that each of the columns can hold.

        Args:
            source: the columns' ticket source, as `_source_for` found it.
            columns: the columns that take them, all with one allocation key.
            n: how many.
            alike: the other defaults with that key, which may want larger blocks.
            objects: the objects that take them, in a flush; none in a statement.

        Raises:
            TicketError: there are none.
        """
        raise NotImplementedError

    def _reserve(self, source: Any, column: Column[Any], n: int) -> list[range]:
        """``n`` new ids for the rows of an INSERT ... SELECT, as ranges that the column can hold.

        Args:
            source: the column's ticket source, as `_source_for` found it.
            column: the column that takes them.
            n: how many.

        Raises:
            TicketArgumentError: ids of this kind cannot be counted up by a database.
            TicketError: there are none.
        """
        raise TicketArgumentError(
            f"insert_from_select() into {column}: {self!r} makes ids row by row in this process, so they are no "
            f"tickets: let the SELECT give the column's values, or insert the selected rows one by one"
        )

    # -- the column default

    @property
    def arg(self) -> Any:
        """The function that SQLAlchemy calls with the execution context, once for each row."""
        return self._id_for_row

    def compare_argument(self, argument: object) -> bool:
        """Whether ``argument`` is this very default (SQLAlchemy 2.1 asks, for dataclasses)."""
        return argument is self

    def _set_parent(self, parent: Any, **kw: Any) -> None:
        column: Column[Any] = parent
        if column.onupdate is self:
            raise TicketArgumentError(f"{self!r} cannot be an onupdate: only INSERTs draw tickets")
        if getattr(self, "column", column) is not column:  # one declaration knows one column
            self._copy()._set_parent(column, **kw)
            return
        super()._set_parent(column, **kw)
        IdDefault._last_declared = object()
        if column.autoincrement is True:
            raise TicketArgumentError(
                f"{column!r} has autoincrement=True, with which several shards assign the same ids: omit "
                f"autoincrement"
            )
        # else the migration that is generated from the model would create it AUTO_INCREMENT
        column.autoincrement = False
        event.listen(column, "after_parent_attach", self._check_column)

    def _id_for_row(self, context: object) -> Any:
        # another column's default may call this one
        if not isinstance(context, DefaultExecutionContext) or (
            getattr(context.current_column, "default", None) is not self
        ):
            return self._id_outside_of_statements(context)
        prefetched: Any = context.current_column
        column = _table_column(prefetched)
        by_hand = context.current_parameters.get(prefetched.key)  # type: ignore[union-attr]  # set while defaults are called
        if by_hand is not None:  # in an executemany whose first row has no id
            return by_hand
        drawn: dict[Hashable, Iterator[Any]] = context.__dict__.setdefault("_tickets", {})
        ids = drawn.get(id(column))
        if ids is None:
            key = self._allocation_key(column)
            if key not in drawn:
                drawn[key] = self._draw_for_statement(context, column, key)
            ids = drawn[id(column)] = drawn[key]
        return next(ids)

    def _id_outside_of_statements(self, context: object) -> Any:
        """Draw one id outside of an INSERT, for libraries that call a column's default themselves."""
        source = source_of(self._column())
        known = context if isinstance(context, DefaultExecutionContext) else None
        return next(cast("IdDefault", source.default)._draw_separately(known, [source], 1))

    def _column(self) -> Column[Any]:
        """The column of this default.

        Raises:
            PoolNotAttached: it has no column.
        """
        column: Column[Any] | None = getattr(self, "column", None)
        if getattr(column, "table", None) is None:
            raise PoolNotAttached(
                f"{self!r} belongs to no table, so its pool is unknown: use pool.next_id()"
            )
        return cast("Column[Any]", column)

    def _draw_for_statement(
        self, context: DefaultExecutionContext, column: Column[Any], key: Hashable
    ) -> Iterator[Any]:
        """Draw all ids with this allocation key that the rows of a statement need."""
        refuse_pointing(column)
        compiled = cast("Any", context.compiled)
        inserts = _inserts_of(compiled)
        into = str(column.table)  # the ORM's statements have a copy of the table
        if any(each.select is not None and str(each.table) == into for each in inserts):
            raise TicketArgumentError(
                f"insert().from_select() into {column.table!s} would give one id of {self!r} to"
                " every row: use insert_from_select(connection, table, columns, select), or select an id for each row"
            )
        rows = context.compiled_parameters
        if len(inserts) > 1:
            _refuse_lost(inserts, compiled, rows)
        takers = [c for c in compiled.prefetch if _shares(c, key)]
        needed = sum(row.get(c.key) is None for row in rows for c in takers)
        others = {_table_column(c) for c in takers} - {column}
        return self._draw_separately(context, [column, *others], needed)

    def _draw_separately(
        self, context: DefaultExecutionContext | None, columns: Sequence[Column[Any]], n: int
    ) -> Iterator[Any]:
        source = self._source_for(columns[0])
        if context is not None and source is not None:
            refuse_database_of(source, context.root_connection.engine)
        return self._draw(source, columns, n)


def refuse_pointing(column: Column[Any]) -> None:
    """Refuse to draw for a column that points to a row of another table.

    Raises:
        TicketArgumentError: the column points to another table's row.
    """
    source = source_of(column)
    if source is not column:
        raise TicketArgumentError(
            f"{column.table.name}.{column.name} draws no id, as it points to {source.table.name}.{source.name}:"
            f" first insert the row there, and set {column.name} to its id"
        )


def _table_column(prefetched: Any) -> Any:
    """The table's column, which each row of ``insert().values([...])`` has a stand-in for."""
    return getattr(prefetched, "original", prefetched)


def _shares(prefetched: Any, key: Hashable) -> bool:
    """Whether a column of the statement has that allocation key."""
    default = prefetched.default
    return (
        isinstance(default, IdDefault) and default._allocation_key(_table_column(prefetched)) == key
    )


def _inserts_of(compiled: Any) -> list[Insert]:
    """The INSERTs of a statement, in a CTE or not."""
    if compiled.ctes:
        elements = visitors.iterate(compiled.statement)
        return [element for element in elements if isinstance(element, Insert)]
    state = compiled.dml_compile_state  # the statement itself may wrap the INSERT
    return [state.statement] if state and isinstance(state.statement, Insert) else []


def _refuse_lost(inserts: list[Insert], compiled: Any, rows: Sequence[Any]) -> None:
    """Refuse an INSERT whose defaults SQLAlchemy has forgotten at the statement's next INSERT.

    Raises:
        TicketArgumentError: a column with ids would be NULL.
    """
    listed = {column.key for column in compiled.prefetch}
    lost = [
        column
        for each in inserts
        for column in cast("Any", each.table).c
        if has_ids(column)
        and column.key not in listed
        and any(row.get(column.key, column) is None for row in rows)
    ]
    if lost:
        raise TicketArgumentError(
            f"{lost[0]} would be NULL, as SQLAlchemy sets the defaults of one INSERT of a statement only: give each "
            f"of its INSERTs the ids of pool.next_id(), or execute them one by one"
        )
