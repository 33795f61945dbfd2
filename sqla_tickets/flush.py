"""``before_flush``: the new objects' tickets, drawn at once and set before anything else happens.

With its primary key set, a flush on MySQL is one executemany instead of an INSERT per object, and a
shard chooser sees the id that it chooses by. What this misses (objects that a later listener adds,
bulk and Core statements) gets its tickets from the column default.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable
from operator import attrgetter, itemgetter
from typing import Any, Final, cast

from sqlalchemy import Column, event
from sqlalchemy.exc import UnboundExecutionError
from sqlalchemy.orm import InstanceState, Session, UOWTransaction
from sqlalchemy.orm.attributes import instance_dict, instance_state, set_committed_value

from .default import IdDefault

__all__ = ["assign_tickets", "install"]


class _Attribute:
    """A mapped attribute that takes tickets, and the new objects of one flush that lack theirs."""

    __slots__ = ("column", "declared", "key", "lacking")

    def __init__(self, key: str, column: Column[Any]) -> None:
        self.key, self.column = key, column
        self.declared: IdDefault = column.default  # type: ignore[assignment]  # of no other are there any
        self.lacking: list[InstanceState[Any]] = []


_insert_order = attrgetter("insert_order")
#: The key under which a class manager's ``info`` holds the attributes that take tickets, and their columns.
_INFO: Final = "sqla_tickets"


def install() -> None:
    """Listen to every flush, once, however often this is called."""
    if not event.contains(Session, "before_flush", assign_tickets):
        event.listen(Session, "before_flush", assign_tickets)


def assign_tickets(session: Session, flush_context: UOWTransaction, instances: object) -> None:
    """Draw once per sequence for all new objects of a flush, in the order they were added.

    Raises:
        TicketError: a sequence could not be drawn from. The session stays usable, its new objects
            stay pending, and another flush may succeed.
    """
    in_need = _attributes_in_need(session)
    if len(in_need) == 1:  # most flushes: no time is spent on finding out who shares a sequence
        _refuse_shared_sqlite(session, in_need[0])
        _assign_one(in_need[0])
        return
    streams: defaultdict[Hashable, list[_Attribute]] = defaultdict(list)
    for attribute in in_need:
        streams[attribute.declared.stream_of(attribute.column)].append(attribute)
    for attributes in streams.values():
        _refuse_shared_sqlite(session, attributes[0])
        if len(attributes) == 1:
            _assign_one(attributes[0])
        else:
            _assign(attributes)


def _assign_one(attribute: _Attribute) -> None:
    """Draw for the objects of one class."""
    states, key = attribute.lacking, attribute.key
    if len(states) > 1:
        states.sort(key=_insert_order)
    objects = [state.obj() for state in states]
    tickets = attribute.declared.draw_for([attribute.column], objects)
    for state, new, ticket in zip(states, objects, tickets, strict=True):
        # what set_committed_value() does to an object that is in no database, at a fourth of the price
        instance_dict(new)[key] = ticket
        state.committed_state.pop(key, None)


def _assign(attributes: list[_Attribute]) -> None:
    """Draw from one sequence for several columns; an object's follow one another."""
    wanted = [(s.insert_order or 0, s, a.key) for a in attributes for s in a.lacking]
    wanted.sort(key=itemgetter(0))
    declared = [attribute.declared for attribute in attributes]
    columns = [attribute.column for attribute in attributes]
    objects = [state.obj() for _, state, _ in wanted]
    tickets = declared[0].draw_for(columns, objects, declared[1:])
    for new, (_, _, key), ticket in zip(objects, wanted, tickets, strict=True):
        set_committed_value(new, key, ticket)


def _attributes_in_need(session: Session) -> list[_Attribute]:
    by_class: dict[type[object], list[_Attribute]] = {}
    for instance in cast("Iterable[object]", session.new):
        kind = type(instance)
        attributes = by_class.get(kind)
        if attributes is None:
            attributes = by_class[kind] = _attributes_of(instance_state(instance).manager)
        for attribute in attributes:
            if instance_dict(instance).get(attribute.key) is None:
                attribute.lacking.append(instance_state(instance))
    return [a for attributes in by_class.values() for a in attributes if a.lacking]


def _attributes_of(manager: Any) -> list[_Attribute]:
    """Those of the class of a ``ClassManager``, whose ``info`` has no type and ends with its mapper."""
    info: dict[str, list[tuple[str, Column[Any]]]] = manager.info
    columns = info.get(_INFO)
    if columns is None:
        columns = info[_INFO] = [
            (attribute.key, column)
            for attribute in manager.mapper.column_attrs
            for column in attribute.columns  # under joined inheritance the base table's comes last
            if isinstance(column, Column) and isinstance(column.default, IdDefault)
        ]
    return [_Attribute(key, column) for key, column in columns]


def _refuse_shared_sqlite(session: Session, attribute: _Attribute) -> None:
    pool = attribute.declared.pool_for(attribute.column)
    # A session that chooses binds by itself, as with shards, must not be asked without the ticket.
    if pool is not None and pool.on_sqlite and type(session).get_bind is Session.get_bind:
        try:
            bind = session.get_bind(attribute.lacking[0].mapper)
        except UnboundExecutionError:
            return  # the flush itself will say so
        pool.refuse_database_of(bind.engine)
