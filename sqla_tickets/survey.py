"""What servers show of many sequences, where one that keeps silent is not waited for each time."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from .errors import TicketError, TicketServerError

if TYPE_CHECKING:
    from .pool import TicketPool
    from .server import TicketServer

__all__ = ["last_tickets"]


def last_tickets(
    pool: TicketPool, names: Iterable[str]
) -> dict[tuple[str, TicketServer], int | TicketError]:
    """The largest ticket that each server shows of each sequence, or why that is not known.

    A server that has failed for good counts as failed for the sequences that come after, too.
    """
    found: dict[tuple[str, TicketServer], int | TicketError] = {}
    failed: dict[TicketServer, TicketError] = {}
    for name in sorted(names):
        for server in pool.servers:
            server.table(name)  # it is known from now on, whatever comes of it
            found[name, server] = failed.get(server) or _last_ticket(server, name)
            answer = found[name, server]
            if isinstance(answer, TicketServerError) and not server.breaker.is_closed:
                failed[server] = answer  # else it is about the table
    return found


def _last_ticket(server: TicketServer, name: str) -> int | TicketError:
    try:
        return server.last_ticket(name)
    except TicketError as error:
        return error
