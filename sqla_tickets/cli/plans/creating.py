"""The plan that creates missing tables, or redirects their clients to where the sequence has moved."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ... import TicketError, TicketPool, TicketServer, TicketTableMissing
from ...dialects import LayoutName
from ...maintenance import operations, redirect_paths
from ...maintenance.status import state_after
from ...maintenance.tombstones import Destination, FoundTable
from ...status.text import EVERY_SHARD
from ...tables.metadata import Tombstone
from .plan import NOT_POSSIBLE, Plan
from .proofs import proof_above, proof_where_accepted


def create(
    pool: TicketPool,
    name: str,
    *,
    layout: LayoutName | None,
    start: int,
    bits: int,
    with_shards: str = EVERY_SHARD,
    pools: Iterable[TicketPool] = (),
) -> Plan:
    """Create missing tables, and verify the others.

    Args:
        pool: the servers' pool.
        name: the sequence's name.
        layout: the layout; None for that of the other servers, or else each server's default.
        start: the smallest ticket of a new table.
        bits: 64 or 32.
        with_shards: the options that name the shards.
        pools: all configured pools, which show where a sequence has moved.

    Raises:
        TicketError: a server failed.
    """
    lines: list[str] = []
    missing: list[TicketServer] = []
    states = _inspected(pool, name)
    to = moved_to(pool, name, list(states.values()), pools)
    ended = [s for s, state in states.items() if operations.has_ended(state)]
    if to is not None and ended:
        return _redirect(pool, name, ended, to)
    above = operations.begins_above(pool, name, start=start)
    begins = f"with no ticket below {start}"
    if above >= start:
        begins = f"above {above}, or higher if tickets are drawn until then"
    for server, state in states.items():
        if state is None:
            missing.append(server)
            lines.append(f"create {name!r} on {server}, {bits} bits, {begins}")
        elif isinstance(state, Tombstone) and not state.end:
            lines.append(f"{NOT_POSSIBLE}: {name!r} on {server} is closed ({state.kind})")
        elif isinstance(state, Tombstone):
            missing.append(server)
            lines.append(f"create {name!r} on {server} {begins}, where it was {state.kind}")
        else:
            at = "which is empty" if state.number is None else f"at {state.number}"
            lines.append(f"verify {name!r} on {server}, {at}")

    def proof(servers: Sequence[TicketServer]) -> str:
        created = [server for server in servers if server in missing]
        if created and above >= start:
            return proof_above(pool, name, above, created)
        return proof_above(pool, name, start - 1, servers)

    def run() -> list[str]:
        pool.create_table(name, layout=layout, start=start, bits=bits)
        return [proof_where_accepted(pool, name, proof, with_shards)]

    return Plan({name: lines}, run, ["run sqla-tickets doctor as the user who draws"])


def _inspected(pool: TicketPool, name: str) -> dict[TicketServer, FoundTable]:
    """The state of each server's table.

    Raises:
        TicketTableMissing: a server has lost its table during a growth, which alone knows where that begins.
        TicketError: a server failed.
    """
    states = operations.table_states(pool, name)
    found = {s: state for s, state in states.items() if not isinstance(state, TicketError)}
    lost = [server for server, state in found.items() if state is None]
    for state in states.values():
        if isinstance(state, TicketError):
            is_growing = state_after(state) == "growing"
            raise lost_in_growth(name, lost[0]) if lost and is_growing else state
    return found


def lost_in_growth(name: str, server: TicketServer) -> TicketTableMissing:
    """The error of a server that has lost its table during a growth."""
    return TicketTableMissing(
        f"there is no ticket table {name!r} on {server}, and the pool grows: first run sqla-tickets grow --add on the old "
        "configuration again, with the same servers"
    )


def _redirect(
    pool: TicketPool, name: str, servers: Sequence[TicketServer], to: Destination
) -> Plan:
    """Redirect clients from servers that lack the tombstone of a sequence that has moved."""
    lines = [redirecting(name, str(server), to) for server in servers]

    def run() -> list[str]:
        operations.redirect(pool, name, to)
        return [
            f"{name!r} leads to {to.sequence!r} of the pool {to.pool!r} on every server of the pool {pool.name!r}"
        ]

    return Plan({name: lines}, run)


def moved_to(
    pool: TicketPool,
    name: str,
    states: Sequence[FoundTable | TicketError],
    pools: Iterable[TicketPool],
) -> Destination | None:
    """Where a sequence has moved, by its tombstones or, where none is left, by its tables in all pools."""
    moved = operations.moved_to(state for state in states if not isinstance(state, TicketError))
    if moved is not None:
        return Destination("moved", moved.pool, moved.sequence)
    if not all(operations.has_ended(s) for s in states if not isinstance(s, TicketError)):
        return None
    found = redirect_paths.find(pools, (pool.name, name))
    return None if found is None else Destination("moved", found[0].name, found[1])


def redirecting(name: str, servers: str, to: Destination) -> str:
    """The step that redirects clients from servers."""
    return f"leave a tombstone on {servers}: {name!r} has moved to {to.sequence!r} of the pool {to.pool!r}"
