"""The plan that moves a sequence to another pool."""

from __future__ import annotations

from ... import TicketPool, TicketTableError
from ...dialects import LayoutName
from ...maintenance import operations
from ...maintenance.handle import handles
from ...tables.inspection import ActiveTable
from ...tables.metadata import Tombstone
from .plan import Plan
from .proofs import inspect_table, next_ticket


def move(source: TicketPool, name: str, target: TicketPool) -> Plan:
    """Move a sequence to the servers of another pool.

    Raises:
        TicketError: it cannot move.
    """
    transfer = operations.check_move(source, name, target)
    if transfer is not None and transfer.takes_back:
        return _taken_back(source, name, target)
    here = ", ".join(map(str, source.servers))
    there = ", ".join(map(str, target.servers))
    lines = [
        f"create {name!r} on {there}, closed until the last step",
        f"close {name!r} on {here}: a tombstone leads to the pool {target.name!r}",
        f"open {name!r} on {there}, above the highest ticket of all servers",
    ]
    if transfer is not None:
        lines += _conversion(source, name, target)
    else:
        lines = [f"{name!r} is already in the pool {target.name!r}: no table is closed or opened"]

    def run() -> list[str]:
        operations.move(source, name, target)
        tombstones = [inspect_table(server, name) for server in source.servers]
        high = max((t.high_water for t in tombstones if isinstance(t, Tombstone)), default=0)
        closed = f"no ticket of {name!r} on {here} is above {high}, and none follows"
        if operations.moved_to(inspect_table(server, name) for server in target.servers):
            return [f"{closed}; it has gone on from the pool {target.name!r}"]
        begin = min(next_ticket(target, server, name) for server in target.servers)
        if begin <= high:
            raise TicketTableError(
                f"{name!r} in the pool {target.name!r}: expected a next ticket above {high}, found {begin}."
                " Before any client draws, run sqla-tickets restore for that pool, and then this again"
            )
        return [f"{closed}; new tickets start at {begin}"]

    following = (
        f"name the pool {target.name!r} in the models, and deploy that everywhere",
        f"keep {here} until no client is redirected from there",
    )
    return Plan({name: lines}, run, following, can_be_undone=True)


def _taken_back(source: TicketPool, name: str, target: TicketPool) -> Plan:
    """Take back a move that was interrupted before it closed a table."""
    line = (
        f"take back the interrupted move to the pool {source.name!r}, which closed no table: a tombstone there leads to "
        f"the pool {target.name!r}"
    )

    def run() -> list[str]:
        operations.move(source, name, target)
        return [f"{name!r} stays in the pool {target.name!r}, and was never closed"]

    return Plan({name: [line]}, run, can_be_undone=True)


def _conversion(source: TicketPool, name: str, target: TicketPool) -> list[str]:
    """The step of a sequence whose layout the new servers cannot have."""
    states = operations.table_states(source, name).values()
    layouts: list[LayoutName] = [s.layout for s in states if isinstance(s, ActiveTable)]
    layout = layouts[0] if layouts else None
    lacking = [handle for handle in handles(target, name) if handle.layout_for(layout) != layout]
    new = lacking[0].server.context.dialect.layouts[0] if lacking else ""
    return [f"convert {name!r} from {layout!r} to {new!r}, also for a later move back"] * bool(new)
