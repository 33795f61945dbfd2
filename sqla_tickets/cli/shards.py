"""Reads the application's databases: the columns that hold tickets, and their ids in order."""

from __future__ import annotations

import contextlib
import importlib
import shlex
import sys
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

from sqlalchemy import (
    Engine,
    MetaData,
    column,
    create_engine,
    func,
    inspect,
    select,
    table,
)
from sqlalchemy.engine.interfaces import ReflectedColumn
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.pool import NullPool

from .. import TicketArgumentError, TicketError, TicketSequence
from ..connect.engines import shown_address
from ..connect.failures import without_password
from ..dialects import find_dialect
from ..orm.mappers import drawing_columns
from ..orm.sequence import sequence_of
from ..status.text import EVERY_SHARD

#: How many ids one statement reads.
PAGE_IDS: Final = 20_000

#: How a line of a plan begins that names what was not read.
NOT_KNOWN: Final = "NOT KNOWN"
NO_SHARDS: Final = (
    "name the application's databases with --shard, in SQLA_TICKETS_SHARDS (URLs separated by spaces), or as shards in"
    " the configuration file, which is not read if --server or SQLA_TICKETS_SERVERS is given"
)


class ShardError(TicketError):
    """Raised when a shard cannot be read."""


@dataclass(frozen=True)
class TicketColumn:
    """A column whose values are tickets.

    Attributes:
        table: its table's name.
        column: its name.
        sequence: the name of the sequence.
    """

    table: str
    column: str
    sequence: str

    def __str__(self) -> str:
        return f"{self.table}.{self.column}"


class Shard:
    """One database of the application.

    Args:
        url: its URL.

    Attributes:
        is_asked: whether a caller waits for its answer now.
    """

    is_asked = False

    def __init__(self, url: str) -> None:
        self._columns: dict[str, dict[str, ReflectedColumn]] = {}
        try:
            self._engine: Engine = create_engine(
                url, poolclass=NullPool, isolation_level="AUTOCOMMIT"
            )
        except (SQLAlchemyError, ImportError, ValueError) as error:
            raise TicketArgumentError(
                f"the URL of a shard in --shard, SQLA_TICKETS_SHARDS or the configuration is invalid "
                f"({type(error).__name__}): expected a SQLAlchemy URL, such as mysql+pymysql://user@host/database"
            ) from None

    def __str__(self) -> str:
        return shown_address(self._engine.url)

    def keys(self) -> dict[str, str]:
        """The tables with a one-column primary key, and the column's name."""
        with self._errors(), self._engine.connect() as connection:
            found = inspect(connection).get_multi_pk_constraint()
        return {
            name: constraint["constrained_columns"][0]
            for (_, name), constraint in found.items()
            if len(constraint["constrained_columns"]) == 1
        }

    def column(self, where: TicketColumn) -> ReflectedColumn | None:
        """The database's description of a column; None if there is no such column. It is read once."""
        if where.table not in self._columns:
            with self._errors(), self._engine.connect() as connection:
                inspector = inspect(connection)
                there = inspector.has_table(where.table)
                found = inspector.get_columns(where.table) if there else []
            self._columns[where.table] = {column["name"]: column for column in found}
        return self._columns[where.table].get(where.column)

    def counts_by_itself(self, where: TicketColumn) -> bool:
        """Whether the database itself numbers a row without an id."""
        found = self.column(where)
        if found is None:
            return False
        known = find_dialect(self._engine.dialect)
        if known is not None and known.is_embedded:  # INTEGER PRIMARY KEY is the row number
            return (
                str(found["type"]).upper() == "INTEGER"
                and self.keys().get(where.table) == where.column
            )
        is_default = "nextval(" in str(found.get("default") or "")
        return is_default or bool(found.get("identity")) or found.get("autoincrement") is True

    def largest(self, where: TicketColumn) -> int | None:
        """The largest id; None if there is no row, or no such table."""
        bounds = self.bounds(where)
        return bounds and bounds[1]

    def bounds(self, where: TicketColumn) -> tuple[int, int] | None:
        """The smallest and the largest id; None if there is no row, or no such table."""
        if self.column(where) is None:
            return None
        ids, source = _parts(where)
        # two statements, as SQLite uses the index for one end only
        with self._errors(), self._engine.connect() as connection:
            smallest, largest = (
                connection.scalar(select(end(ids)).select_from(source))
                for end in (func.min, func.max)
            )
        return None if smallest is None or largest is None else (smallest, largest)

    def pages(self, where: TicketColumn, above: int | None = None) -> Iterator[list[int]]:
        """The ids in ascending order, many at a time.

        Each page is a separate statement: a cursor open for hours would keep the server from purging old rows, and be
        cut off while another shard is read.
        """
        ids, source = _parts(where)
        ordered = (
            select(ids).select_from(source).where(ids.is_not(None)).order_by(ids).limit(PAGE_IDS)
        )
        with self._errors(), self._engine.connect() as connection:
            while True:
                wanted = ordered if above is None else ordered.where(ids > above)
                page = list(connection.scalars(wanted))
                if page and not isinstance(page[-1], int):
                    raise TicketArgumentError(
                        f"{where} on {self} has values that are not integers: name the columns that hold tickets "
                        f"with --column"
                    )
                is_last = len(page) < PAGE_IDS
                if not is_last:  # the next page begins above the last id, which rows may share
                    alike = select(func.count()).select_from(source).where(ids == page[-1])
                    page += page[-1:] * (connection.scalars(alike).one() - page.count(page[-1]))
                yield page
                if is_last:
                    return
                above = page[-1]

    def having(self, where: TicketColumn, wanted: Sequence[int]) -> Counter[int]:
        """How many rows have each of these ids now."""
        ids, source = _parts(where)
        rows = select(ids, func.count()).select_from(source).where(ids.in_(wanted)).group_by(ids)
        with self._errors(), self._engine.connect() as connection:
            return Counter({row[0]: row[1] for row in connection.execute(rows)})

    @contextlib.contextmanager
    def _errors(self) -> Generator[None]:
        self.is_asked = True
        try:
            yield
        except SQLAlchemyError as error:
            reason = without_password(str(getattr(error, "orig", None) or error), self._engine.url)
            raise ShardError(
                f"the shard {self} cannot be read ({reason}): check its URL, and that its user may SELECT; or name "
                "the others with --shard"
            ) from error
        finally:
            self.is_asked = False


class ShardIds:
    """The ids on the shards, by sequence.

    Args:
        shards: the application's databases; empty where none was named.
        columns: which of their columns hold tickets.
        with_shards: what advice adds to the name of a command that reads the shards.
    """

    def __init__(
        self,
        shards: Sequence[Shard] = (),
        columns: Sequence[TicketColumn] = (),
        with_shards: str = EVERY_SHARD,
    ) -> None:
        self._shards, self._columns, self.with_shards = shards, columns, with_shards

    def __bool__(self) -> bool:
        """Whether any shard was named."""
        return bool(self._shards)

    def _columns_on_shards(self, sequence: str) -> Iterator[tuple[TicketColumn, Shard]]:
        for where in self._columns:
            if where.sequence == sequence:
                yield from ((where, s) for s in self._shards if s.column(where) is not None)

    def knows(self, sequence: str) -> bool:
        """Whether a column with ids of the sequence is known."""
        return any(where.sequence == sequence for where in self._columns)

    def largest_ids(self, sequence: str) -> list[tuple[int, str]]:
        """The largest id of each column on each shard, with its description; asks the shards."""
        found = [
            (s.largest(where), f"the largest {where} on {s}")
            for where, s in self._columns_on_shards(sequence)
        ]
        return [(number, text) for number, text in found if number is not None]

    def largest(self, sequence: str) -> int:
        """The largest id of a sequence on all shards; 0 if there is none. Asks the shards."""
        return max((number for number, _ in self.largest_ids(sequence)), default=0)

    def above(self, sequence: str, number: int) -> Iterator[tuple[int, str]]:
        """The ids above a number, each with its column and shard; asks the shards."""
        for where, shard in self._columns_on_shards(sequence):
            for page in shard.pages(where, number):
                yield from ((i, f"{where} on {shard}") for i in page)

    def auto_increment_columns(self, sequence: str) -> list[str]:
        """The columns, with their shards, that number rows by themselves."""
        return [
            f"{c} on {s}" for c, s in self._columns_on_shards(sequence) if s.counts_by_itself(c)
        ]

    def unknown(self, sequence: str) -> list[str]:
        """Why the sequence's ids on the shards are unknown, as lines of a plan; empty if they are known."""
        what = f"{NOT_KNOWN}: the ids of {sequence!r} on the shards"
        if not self._shards:
            return [f"{what}, as no shard was read; {NO_SHARDS}"]
        if not self.knows(sequence):
            return [f"{what}; name the column with --column TABLE.COLUMN={shlex.quote(sequence)}"]
        return []


def _parts(where: TicketColumn) -> tuple[Any, Any]:
    ids = cast("Any", column(where.column))
    return ids, table(where.table, ids)


def columns_of(
    shards: Sequence[Shard],
    sequences: Iterable[str],
    *,
    named: Sequence[str] = (),
    models: str | None = None,
    pool: str = "default",
    are_needed: bool = True,
) -> list[TicketColumn]:
    """The columns that hold tickets of a pool.

    Args:
        shards: the application's databases.
        sequences: the names of the sequences that are to be found, if no column of theirs is named.
        named: such as ``photos.id`` or ``albums.number=photos``.
        models: ``module:attribute`` of a MetaData or of a declarative base. Without it, the column of a sequence
            for which none is named is the primary key of the table with its name.
        pool: the pool's name: models may have columns of others.
        are_needed: whether there must be any.

    Raises:
        TicketArgumentError: there are none although they are needed, or a column is on no shard.
    """
    found = [_named(text) for text in named]
    if models:
        found += _of_models(models, pool)
    names = sorted(set(sequences) - {where.sequence for where in found})
    if not (found and (models or not names)):
        keys = {name: key for shard in shards for name, key in shard.keys().items()}
        if not (found or names) and are_needed:
            raise TicketArgumentError(
                f"the pool {pool!r} has no sequences: name another pool with --pool, or the column of a table that"
                " another program created with --column photos.id"
            )
        found += [TicketColumn(s, keys[s], s) for s in names if s in keys]
        if not found and are_needed:
            raise TicketArgumentError(
                f"no column that holds tickets of the pool {pool!r} is known: name it with --column "
                f"TABLE.COLUMN={shlex.quote(names[0])} or --models app:Base, or another pool with --pool"
            )
    for where in found:
        if all(shard.column(where) is None for shard in shards):
            raise TicketArgumentError(
                f"no shard has a column {where}: check its spelling, and the shards"
            )
    return list(dict.fromkeys(found))


def _named(text: str) -> TicketColumn:
    column, _, sequence = text.partition("=")
    name, _, key = column.rpartition(".")
    if not name or not key:
        raise TicketArgumentError(
            f"--column {text}: expected table.column or table.column=sequence"
        )
    return TicketColumn(name, key, sequence or name)


def _of_models(text: str, pool: str) -> list[TicketColumn]:
    module, _, attribute = text.partition(":")
    if "" not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        found = getattr(importlib.import_module(module), attribute or "metadata")
    except (ImportError, AttributeError, ValueError) as error:
        raise TicketArgumentError(
            f"--models {text} cannot be imported ({error}): expected MODULE:NAME, importable from this folder"
        ) from error
    metadata = getattr(found, "metadata", found)
    if not isinstance(metadata, MetaData):
        raise TicketArgumentError(f"--models {text}: expected a MetaData or a declarative base")
    return [
        TicketColumn(t.name, c.name, sequence_of(c.default, c))
        for t in metadata.tables.values()
        for c in drawing_columns(t.columns)
        if isinstance(c.default, TicketSequence) and (c.default.pool or "default") == pool
    ]
