"""Which ticket server is asked next: the one with the least to do, in turn among equals."""

from __future__ import annotations

import time
from collections.abc import Container, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from .aio import pause
from .errors import GivenUp, StaleConnection, TicketError, TicketServerError
from .probes import STALE_IN_NEED, probe

if TYPE_CHECKING:
    from .server import TicketServer

__all__ = ["in_turn", "least_busy"]

#: How often a draw that no server has answered looks at those that are being probed, and after so many
#: seconds each: on a machine that is busy they are more, as a probe takes longer there, too.
LOOKS, PAUSE = 40, 0.005
#: How often more a draw joins the queue for a ticket table, when no other server answers.
QUEUES: Final = 3


def in_turn(
    servers: Sequence[TicketServer],
    name: str,
    turn: int,
    began: float,
    failures: dict[TicketServer, TicketError],
) -> Iterator[TicketServer]:
    """The servers that a draw of ``name`` is sent to, one after the other, until one answers.

    First those that are well, then those that have failed before and say so quickly, then those
    that were not waited for, or of which only a connection was found dead, as a firewall may have cut
    what was idle on all, and those that have answered others since. At last those that kept silent, when
    the probe that asks them is answered.

    Args:
        servers: of the pool.
        name: of the sequence.
        turn: which of them comes first among equals.
        began: when the draw did, by ``time.monotonic()``.
        failures: of this draw so far; whoever takes the next server has put the last one in. What is
            not asked at all is added.
    """
    ring = [*servers[turn:], *servers[:turn]]
    for server in ring:
        if server.breaker.is_due:
            probe(server)
    while (next_one := least_busy(ring, name, failures)) is not None:
        yield next_one
    for server in ring:
        if server.breaker.slow:
            probe(server, STALE_IN_NEED)
    left_out: list[TicketServer] = []
    looks = iter(range(LOOKS))
    yield from _last_hopes(ring, name, failures, left_out, looks)
    for server in ring:
        if _is_to_be_asked_again(server, name, failures[server]):
            yield server
    silent = [server for server in ring if server in left_out or server.breaker.slow]
    yield from _coming_back(silent, name, looks)
    for _ in range(QUEUES):
        now = time.monotonic()
        for server in ring:
            is_queue = failures[server].kind == "busy" and server.table(name).answered > began
            if is_queue and server.not_to_be_asked(name) is None:
                yield server
        began = now


def _last_hopes(
    ring: Sequence[TicketServer],
    name: str,
    failures: dict[TicketServer, TicketError],
    left_out: list[TicketServer],
    looks: Iterator[int],
) -> Iterator[TicketServer]:
    """Those that have failed, and say so quickly; those that keep silent are left out.

    Clients that fail at once come back at once. If each draw of theirs opened a connection to a server that is
    down, they would take it the time to start again: so one asks for all that have come here before.
    """
    since = time.monotonic()  # what was found while this draw waited for another server may be over
    rest = [server for server in ring if server not in failures]
    while rest:
        may_wait = next(looks, None) is not None
        for server in list(rest):
            reason, found = server.not_to_be_asked(name), server.breaker.found_since(since)
            if reason is not None:
                left_out.append(server)
                failures[server] = reason
            elif found is not None:
                failures[server] = found
            elif may_wait and not server.breaker.admits_one():
                continue
            else:
                asked_at = time.monotonic()
                yield server
                server.breaker.has_found(asked_at, failures[server])
            rest.remove(server)
        if rest:
            pause(PAUSE)


def _is_to_be_asked_again(server: TicketServer, name: str, failure: TicketError) -> bool:
    if server.not_to_be_asked(name) is not None:
        return False
    if isinstance(failure, (GivenUp, StaleConnection)):
        return True
    # the failure has opened a breaker: then the server has answered somebody since
    is_well = server.breaker.is_closed and server.table(name).breaker.is_closed
    return is_well and isinstance(failure, TicketServerError)


def _coming_back(
    silent: list[TicketServer], name: str, looks: Iterator[int]
) -> Iterator[TicketServer]:
    """Of the servers that kept silent, those whose probes are answered soon, as they are.

    What was held against the table is asked of the draw: its breaker may be open for the server's silence.
    """
    while True:
        for server in list(silent):
            if server.not_to_be_asked(name) is None:
                silent.remove(server)
                yield server
            elif server.breaker.slow:
                probe(server, STALE_IN_NEED)
        are_awaited = any(server.probes.are_under_way for server in silent)
        if not are_awaited or next(looks, None) is None:
            return
        pause(PAUSE)


def least_busy(
    ring: Sequence[TicketServer], name: str, tried: Container[TicketServer]
) -> TicketServer | None:
    """Of the servers that are well and were not tried, the first with the least to do."""
    well = [server for server in ring if server not in tried and server.is_well(name)]
    return (
        min(well, key=lambda server: server.load(name)) if len(well) > 1 else next(iter(well), None)
    )
