"""Two shards counted for themselves, and share ids: the rows of one of them get new ids, which are tickets."""

from __future__ import annotations

from sqlalchemy import Engine, Table, bindparam, select, update

from sqla_tickets import TicketPool

__all__ = ["renumber"]


def renumber(table: Table, kept: Engine, changed: Engine, pool: TicketPool) -> int:
    """Give new ids to the rows of `changed` whose ids `kept` has, too; return how many."""
    column = table.c.id
    with kept.connect() as on_kept, changed.connect() as on_changed:
        taken = set(on_kept.scalars(select(column)))
        twice = [old for old in on_changed.scalars(select(column)) if old in taken]
    change = update(table).where(column == bindparam("old")).values(id=bindparam("new"))
    for first in range(0, len(twice), 1000):
        olds = twice[first : first + 1000]
        news = pool.next_ids(table.name, len(olds))
        with changed.begin() as connection:
            pairs = zip(olds, news, strict=True)
            connection.execute(change, [{"old": old, "new": new} for old, new in pairs])
    return len(twice)
