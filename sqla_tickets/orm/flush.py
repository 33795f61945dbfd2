# What is protected is hidden from users, not from this package.
# pyright: reportPrivateUsage=false
"""``before_flush``: draws the new objects' tickets at once, and sets them before the flush does anything else.

With its primary keys set, a flush on MySQL is one executemany instead of an INSERT per object. A shard chooser sees
the id that it needs, also of objects that a later listener adds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple, TypeAlias, cast

from sqlalchemy import Column, event
from sqlalchemy.exc import UnboundExecutionError
from sqlalchemy.orm import (
    InstanceState,
    Mapper,
    Session,
    SessionTransaction,
    SessionTransactionOrigin,
)
from sqlalchemy.orm import attributes as orm

from .default import IdDefault, IdSource, refuse_database_of
from .inheritance import draws
from .mappers import ATTRIBUTES, inspect_mapper


class _Attribute(NamedTuple):
    """A mapped attribute that takes ids."""

    key: str
    column: Column[Any]


#: The new objects of a flush that lack an id, in the order that the session has them.
_Lacking: TypeAlias = "list[InstanceState[Any]]"
# ``orm.instance_state`` and its like are looked up at each flush: custom instrumentation replaces them.
_insert_order = attrgetter("insert_order")


def install() -> None:
    """Listen to every flush; later calls do nothing."""
    if not event.contains(Session, "before_flush", assign_tickets):
        event.listen(Session, "before_flush", assign_tickets)
        event.listen(Session, "after_transaction_create", assign_late_tickets)


def assign_late_tickets(session: Session, transaction: SessionTransaction) -> None:
    """Draw for the objects that later ``before_flush`` listeners added.

    A flush begins its subtransaction after all those listeners.
    """
    is_of_flush = transaction.origin is SessionTransactionOrigin.SUBTRANSACTION
    if is_of_flush and len(session.dispatch.before_flush) > 1:  # else nobody could add any
        assign_tickets(session, None, None)


def assign_tickets(session: Session, flush_context: object, instances: object) -> None:
    """Draw once per sequence for all new objects of a flush, in the order they were added.

    Raises:
        TicketError: a sequence could not be drawn from. The session stays usable, its new objects
            stay pending, and another flush may succeed.
    """
    wanted = _find_lacking(session)
    if len(wanted) == 1:  # most flushes: no time is spent on columns that share a sequence
        if wanted[0][1]:
            _assign(session, *wanted)
        return
    streams: defaultdict[Hashable, list[tuple[_Attribute, _Lacking]]] = defaultdict(list)
    for attribute, lacking in wanted:
        default: IdDefault = attribute.column.default  # type: ignore[assignment]  # as below
        if lacking:
            streams[default._allocation_key(attribute.column)].append((attribute, lacking))
    for sharers in streams.values():
        if len(sharers) == 1:
            _assign(session, *sharers)
        else:
            _assign_to_sharers(session, sharers)


def _find_lacking(session: Session) -> list[tuple[_Attribute, _Lacking]]:
    """The attributes that take ids, each with the new objects that lack one, if any."""
    by_class: dict[type[object], list[tuple[_Attribute, _Lacking]]] = {}
    wanted: list[tuple[_Attribute, _Lacking]] = []
    instance_dict, instance_state = orm.instance_dict, orm.instance_state
    for instance in cast("Iterable[object]", session.new):
        pairs = by_class.get(type(instance))
        if pairs is None:
            manager: Any = instance_state(instance).manager  # its ``info`` has no type
            attributes = manager.info.get(ATTRIBUTES)
            if attributes is None:
                attributes = _attributes_of(manager)
            pairs = by_class[type(instance)] = []
            for attribute in attributes:
                pairs.append((attribute, []))
            wanted += pairs
        for attribute, lacking in pairs:
            if instance_dict(instance).get(attribute.key) is None:
                lacking.append(instance_state(instance))
    return wanted


def _attributes_of(manager: Any) -> tuple[_Attribute, ...]:
    """Find the attributes of a class that take ids, and cache them while its mapper lives."""
    mapper: Mapper[Any] = manager.mapper
    for level in mapper.iterate_to_root():
        inspect_mapper(level)
    attributes: list[_Attribute] = []
    for attribute in mapper.column_attrs:
        found = [c for c in attribute.columns if isinstance(c, Column) and draws(c)]
        if found:  # several only where a class is mapped to a join without a foreign key
            first = min(found, key=lambda column: mapper.tables.index(column.table))
            attributes.append(_Attribute(attribute.key, first))
    manager.info[ATTRIBUTES] = tuple(attributes)
    return tuple(attributes)


def _assign(session: Session, wanted: tuple[_Attribute, _Lacking]) -> None:
    """Draw for the objects of one class."""
    (key, column), lacking = wanted
    default: IdDefault = column.default  # type: ignore[assignment]  # `draws` has seen to it
    if len(lacking) > 1:
        lacking.sort(key=_insert_order)
    source = default._source_for(column)
    if source is not None and source._files:
        _refuse_shared_file(session, source, lacking[0])
    objects = [state.obj() for state in lacking]
    tickets = default._draw(source, [column], len(objects), objects=objects)
    instance_dict = orm.instance_dict
    for state, new, ticket in zip(lacking, objects, tickets, strict=True):
        # what set_committed_value() does to an object that is in no database, at a fourth of the price
        instance_dict(new)[key] = ticket
        state.committed_state.pop(key, None)


def _assign_to_sharers(session: Session, sharers: list[tuple[_Attribute, _Lacking]]) -> None:
    """Draw from one sequence for several columns; an object's ids follow one another."""
    wanted = [(s.insert_order or 0, s, a.key) for a, lacking in sharers for s in lacking]
    wanted.sort(key=itemgetter(0))
    columns = [attribute.column for attribute, _ in sharers]
    default, *alike = [cast("IdDefault", column.default) for column in columns]
    source = default._source_for(columns[0])
    if source is not None and source._files:
        _refuse_shared_file(session, source, wanted[0][1])
    objects = [state.obj() for _, state, _ in wanted]
    tickets = default._draw(source, columns, len(objects), alike=alike, objects=objects)
    for new, (_, _, key), ticket in zip(objects, wanted, tickets, strict=True):
        orm.set_committed_value(new, key, ticket)


def _refuse_shared_file(session: Session, source: IdSource, state: InstanceState[Any]) -> None:
    # A session that chooses binds by itself, as with shards, must not be asked without the ticket.
    if type(session).get_bind is not Session.get_bind:
        return
    try:
        bind = session.get_bind(state.mapper)
    except UnboundExecutionError:
        return  # the flush itself will say so
    refuse_database_of(source, bind.engine)
