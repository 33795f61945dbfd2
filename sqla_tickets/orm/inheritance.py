"""Distinguishes columns that draw ids from columns that point to a row with an id.

The key of a joined subclass is the id of a row of the base's table. A sequence of its own would give the same object
a second id. Foreign keys show most such columns; mappers show those that are joined without a foreign key.
"""

from __future__ import annotations

from typing import Any, Final
from weakref import WeakKeyDictionary, ref

from sqlalchemy import Column
from sqlalchemy.exc import NoReferenceError

#: By a column with ids: the column that it points to by its mapper. A concrete class's points to none.
_mapped: Final[WeakKeyDictionary[Column[Any], ref[Column[Any]] | None]] = WeakKeyDictionary()


def has_ids(column: object) -> bool:
    """Whether this is a column with an `IdDefault`."""
    return getattr(getattr(column, "default", None), "_makes_ids", False)


def draws(column: Any) -> bool:
    """Whether a column draws ids of its own, by foreign keys and the mappers inspected so far."""
    return has_ids(column) and source_of(column) is column


def record_base(column: Column[Any], base: Column[Any] | None) -> None:
    """Record that ``column`` points to ``base`` by its mapper, or to None, as in a concrete class."""
    _mapped[column] = None if base is None else ref(base)


def source_of(column: Column[Any]) -> Column[Any]:
    """The column that draws the ids of ``column``: itself, or the base table's.

    A key points when its mapper or its foreign keys lead to a column that has an `IdDefault`. Keys that lead
    to each other in a circle draw for themselves.
    """
    bases = _bases(column)
    if not bases:
        return column
    found: list[Column[Any]] = []
    while bases:
        base = bases.pop()
        if all(base is not each for each in found):
            found.append(base)
            bases += _bases(base)
    if any(base is column for base in found):
        return column
    return next((base for base in reversed(found) if has_ids(base)), column)


def _bases(column: Column[Any]) -> list[Column[Any]]:
    try:
        mapped = _mapped[column]
    except KeyError:
        return _referenced(column) if column.primary_key and column.foreign_keys else []
    base = None if mapped is None else mapped()
    return [] if base is None else [base]


def _referenced(column: Column[Any]) -> list[Column[Any]]:
    found: list[Column[Any]] = []
    for key in column.foreign_keys:
        try:
            found.append(key.column)
        except NoReferenceError:  # to a table that is not declared yet
            continue
    return found
