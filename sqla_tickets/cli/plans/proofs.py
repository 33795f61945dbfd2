"""Proofs of a change: the next tickets, as read from the servers."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Sequence

from ... import TableStatus, TicketPool, TicketServer, TicketTableError, TicketTableMissing
from ...maintenance import tombstones
from ...maintenance.status import ask_tables
from ...maintenance.tombstones import FoundTable
from ...status.text import restoration, set_back
from ...tables.metadata import Tombstone
from .plan import PartlyDone


def inspect_tables(pool: TicketPool, name: str) -> dict[TicketServer, FoundTable]:
    """What each server has as the table of a sequence."""
    return {server: inspect_table(server, name) for server in pool.servers}


def inspect_table(server: TicketServer, name: str) -> FoundTable:
    """What a server has as the table of a sequence."""
    return server.do(name, tombstones.inspect, name)


def number_of(server: TicketServer, name: str, state: FoundTable) -> int:
    """The last ticket of a table.

    Raises:
        TicketTableError: the server has no table that can be drawn from.
    """
    if state is None:
        raise TicketTableMissing(
            f"there is no ticket table {name!r} on {server}: first run sqla-tickets create"
            f" {shlex.quote(name)}"
        )
    if isinstance(state, Tombstone):
        what, advice = f"is closed ({state.kind})", "run the migration that closed it again"
        if state.end:
            what = state.end
            advice = f"remove that server from the configuration, or run sqla-tickets create {shlex.quote(name)}"
        elif state.kind == "moved":
            what = f"has moved to {state.sequence!r} of the pool {state.pool!r}"
            advice = f"name that pool with --pool {shlex.quote(state.pool)}, or finish an interrupted move"
        raise TicketTableError(f"the ticket table {name!r} on {server} {what}: {advice}")
    return state.number or 0


def next_ticket(pool: TicketPool, server: TicketServer, name: str) -> int:
    """The smallest ticket that the server can issue next."""
    return number_of(server, name, inspect_table(server, name)) + pool.stride


def proof_above(
    pool: TicketPool, name: str, above: int, servers: Sequence[TicketServer] | None = None
) -> str:
    """The proof that the next tickets of some servers, or of all, are above a number.

    Raises:
        TicketTableError: a server's next ticket is not.
    """
    begins = {server: next_ticket(pool, server, name) for server in servers or pool.servers}
    for server, begin in begins.items():
        if begin <= above:
            raise TicketTableError(
                f"{name!r} on {server}: expected a next ticket above {above}, found {begin}. Find what sets the "
                f"number back, and run the command again"
            )
    following = ", ".join(
        f"{begin}{f' on {server}' if len(begins) > 1 or len(pool.servers) == 1 else ''}"
        for server, begin in begins.items()
    )
    of_some = "" if len(begins) == len(pool.servers) else f" from {server_names(begins)}"
    are = "the next is" if len(begins) == 1 else "the next are"
    tickets = f"every ticket of {name!r}{of_some} is above {above}"
    if not above:
        tickets = f"tickets of {name!r}{of_some} can be drawn"
    return f"from now on, {tickets}: {are} {following}"


def proof_where_accepted(
    pool: TicketPool,
    name: str,
    proof: Callable[[Sequence[TicketServer]], str],
    with_shards: str,
) -> str:
    """The proof for the servers whose tickets the peers' marks do not refuse.

    Raises:
        PartlyDone: the marks refuse those of some servers.
    """
    refused = {status.server: status for status in refused_tables(pool, name)}
    accepted = [server for server in pool.servers if str(server) not in refused]
    if refused:
        reasons = (
            f"{server}: {why_refused(status, with_shards)}" for server, status in refused.items()
        )
        raise PartlyDone(" ".join(reasons), proof(accepted) if accepted else "")
    return proof(accepted)


def refused_tables(pool: TicketPool, name: str) -> list[TableStatus]:
    """The servers with tickets that their peers' marks refuse."""
    statuses = ask_tables(pool, [name], ask_peers=True)
    return [status for status in statuses if status.state in ("set back", "quarantined")]


def why_refused(status: TableStatus, with_shards: str) -> str:
    """Why the tickets of a server are refused, and what to do."""
    return f"{set_back(status)} {restoration(status, with_shards)}"


def server_names(servers: Iterable[TicketServer]) -> str:
    """The servers as a list in a sentence."""
    return ", ".join(map(str, servers))
