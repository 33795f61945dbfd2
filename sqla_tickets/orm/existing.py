# SQLAlchemy forgets its memos by itself when a column is declared, and has no public call for a default that comes later.
# pyright: reportPrivateUsage=false
"""Existing columns: their replaceable defaults, and SQLAlchemy's caches for their tables.

A statement that was compiled before a column got its ids leaves the id to the database. So the caches of tables and
mappers are cleared, and the compiled statements of every engine.
"""

from __future__ import annotations

import gc
from collections.abc import Set as AbstractSet
from typing import Any, cast

from sqlalchemy import Column, Engine, Sequence, Table

from ..errors import TicketArgumentError
from .mappers import ATTRIBUTES, every_mapper, inspect_mappers


def column_of(given: object) -> Column[Any]:
    """The table column of an argument: a column, or a mapped attribute.

    Raises:
        TicketArgumentError: it is something else, or an attribute of several columns.
    """
    columns: list[object] = list(getattr(getattr(given, "property", None), "columns", [given]))
    if len(columns) > 1:
        raise TicketArgumentError(
            f"{given} has several columns, {', '.join(map(str, columns))}: name the one that draws, such as "
            f"Base.__table__.c.id"
        )
    column = columns[0]
    table: object = getattr(column, "table", None)
    if not isinstance(column, Column) or not isinstance(table, Table):
        raise TicketArgumentError(
            f"expected a table column, such as photos.c.id, or a mapped attribute, such as Photo.id; found {given!r}"
        )
    return cast(
        "Column[Any]", cast("Any", table).c[column.key]
    )  # an expression has a copy of the column


def check_replaceable(column: Column[Any], declared: object) -> None:
    """Check that only the database, if anything, sets the column's value.

    Raises:
        TicketArgumentError: the application sets it, or it is computed.
    """
    default, where = column.default, f"{column.table.name}.{column.name}"
    if default is not None and not isinstance(default, Sequence):
        raise TicketArgumentError(
            f"{where} cannot draw from {declared!r}, as it has the default {default!r}: expected no default, or a "
            f"server default. If nothing else needs the default, set `column.default = None` first"
        )
    if column.computed is not None:
        raise TicketArgumentError(
            f"{where} cannot draw from {declared!r}, because the database computes the column: expected a column that "
            f"an INSERT sets"
        )


def check_engines_are_known() -> None:
    """Check that the garbage collector lists all objects.

    Raises:
        TicketArgumentError: some are frozen, and engines with compiled statements may be among them.
    """
    if getattr(gc, "get_freeze_count", int)():
        raise TicketArgumentError(
            "apply_to() must find every engine to clear its compiled statements, and gc.freeze() hides engines: call "
            "apply_to() before gc.freeze(), or gc.unfreeze() first"
        )


def clear(column: Column[Any]) -> None:
    """Remove the column's database default, in the model only."""
    column.default = column.server_default = column.identity = None
    column.autoincrement = False
    column._reset_memoizations()  # it remembers a default that was removed by hand
    if column.primary_key and "sqlite_autoincrement" in column.table.dialect_kwargs:
        column.table.dialect_kwargs["sqlite_autoincrement"] = False


def forget(tables: AbstractSet[Table]) -> None:
    """Clear SQLAlchemy's caches for these tables, and all compiled statements."""
    for table in tables:
        vars(table).pop("_sentinel_column_characteristics", None)
        vars(table.primary_key).pop("_autoincrement_column", None)
    for mapper in every_mapper():
        if not tables.isdisjoint(mapper.tables):
            manager: Any = mapper.class_manager  # its ``info`` has no type
            manager.info.pop(ATTRIBUTES, None)
            mapper._expire_memoizations()
    inspect_mappers()
    for engine in _engines():
        engine.clear_compiled_cache()


def _engines() -> list[Engine]:
    """All engines; SQLAlchemy keeps no list of them, but the garbage collector does."""
    # the type, as a proxy's `__class__` may be anything
    return [found for found in gc.get_objects() if issubclass(type(found), Engine)]
