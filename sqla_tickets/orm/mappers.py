"""Finds, by mappers, the columns with ids that point to the base's table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final, cast

from sqlalchemy import BinaryExpression, Column, Table
from sqlalchemy.orm import ColumnProperty, Mapper, mapperlib
from sqlalchemy.orm.exc import UnmappedColumnError
from sqlalchemy.sql import operators, visitors

from .inheritance import draws, has_ids, record_base

#: The key under which a class manager's ``info`` holds the attributes that take ids.
ATTRIBUTES: Final = "sqla_tickets"


def drawing_columns(columns: Iterable[Any]) -> list[Column[Any]]:
    """Which of these columns draw ids of their own. Only this function decides which sequences are needed."""
    inspect_mappers()
    return [column for column in columns if draws(column)]


def inspect_mappers() -> None:
    """Inspect all mappers, without configuring them."""
    for mapper in every_mapper():
        inspect_mapper(mapper)


def every_mapper() -> Iterator[Mapper[Any]]:
    """All mappers; this configures none."""
    all_registries: Any = getattr(mapperlib, "_all_registries", set)
    for known in all_registries():
        for manager in list(known._managers):
            if (
                manager.is_mapped
            ):  # not of a class whose mapping has failed, at which `registry.mappers` raises
                yield manager.mapper


def inspect_mapper(mapper: Mapper[Any]) -> None:
    """Record which columns of a class's own table its mapper joins to the base's columns."""
    parent, table = mapper.inherits, mapper.local_table
    if parent is None or not isinstance(table, Table) or table in parent.tables:
        return
    columns: Iterable[Column[Any]] = cast("Any", table).columns
    for column in filter(has_ids, columns):
        if mapper.concrete:
            record_base(column, None)
            continue
        for other in (*_of_same_attribute(mapper, column), *_joined_to(mapper, column)):
            if other.table in parent.tables and has_ids(other):
                record_base(column, other)


def _of_same_attribute(mapper: Mapper[Any], column: Column[Any]) -> list[Column[Any]]:
    try:
        attribute = mapper.get_property_by_column(column)
    except UnmappedColumnError:  # the class leaves it out
        return []
    columns = attribute.columns if isinstance(attribute, ColumnProperty) else []
    return [each for each in columns if isinstance(each, Column)]


def _joined_to(mapper: Mapper[Any], column: Column[Any]) -> Iterator[Column[Any]]:
    """The columns that the join to the base's table equates with this one."""
    assert mapper.inherits is not None  # its table would be the base's
    if mapper.inherit_condition is None:
        return
    for each in visitors.iterate(mapper.inherit_condition):
        if isinstance(each, BinaryExpression) and each.operator is operators.eq:
            for one, other in ((each.left, each.right), (each.right, each.left)):
                if column.table.c.corresponding_column(one) is column:
                    found = (t.c.corresponding_column(other) for t in mapper.inherits.tables)
                    yield from (base for base in found if isinstance(base, Column))
