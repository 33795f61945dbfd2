"""Measures for ``sqla-tickets status``: rates, when the numbers run out, and the leases of node numbers."""

from __future__ import annotations

import contextlib
import datetime as dt
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Final

from ..concurrency import time
from ..errors import TicketError
from ..maintenance import operations
from ..maintenance.status import TableStatus, ask_tables, state_after
from ..pool import TicketPool
from ..snowflake.leases import NodeLease, NodeLeases

#: ``Number.MAX_SAFE_INTEGER``: above it, JavaScript takes two neighbours for one.
LARGEST_IN_JAVASCRIPT: Final = 2**53 - 1
#: An end that is further away is not told: a thousand years.
FARTHEST_END_SECONDS: Final = 1000 * 365.25 * 86400


@dataclass(frozen=True)
class Node(NodeLease):
    """A node number that was ever leased from a pool, for ids made in a process.

    Attributes:
        pool: the pool's name.
    """

    pool: str


def nodes(pools: Sequence[TicketPool]) -> list[Node]:
    """The node numbers of every pool that leases any; a server that is down raises no error."""
    found: list[Node] = []
    for pool in pools:
        with contextlib.suppress(TicketError):  # most pools have no such table
            found += [Node(**asdict(lease), pool=pool.name) for lease in NodeLeases(pool).status()]
    return found


def measure(
    pools: Sequence[TicketPool],
    sequences: Iterable[str] = (),
    *,
    over: float = 0.0,
    with_found: bool = True,
) -> list[TableStatus]:
    """Ask every server about every sequence; a server that is down raises no error.

    Args:
        pools: the pools whose servers are asked.
        sequences: the names of foreign tables, which cannot be found by metadata.
        over: how long to measure the rate, in seconds; 0 to measure none.
        with_found: whether to ask about all tables with metadata, too.
    """
    named = {pool: {*sequences} for pool in pools}
    if with_found:
        for pool in pools:
            named[pool] |= operations.names(pool, with_moved=True)
    begin = time.monotonic()
    earlier: list[TableStatus] = []
    if over:
        earlier = [s for pool in pools for s in ask_tables(pool, named[pool])]
        time.sleep(over)
    found: list[TableStatus] = []
    for pool in pools:
        asked = ask_tables(pool, named[pool], ask_peers=True)
        found += with_rates(asked, earlier, time.monotonic() - begin)
        if not asked:
            found += _unreachable(pool)
    return found


def with_rates(
    statuses: Iterable[TableStatus], earlier: Iterable[TableStatus], seconds: float
) -> list[TableStatus]:
    """The statuses with the rates since earlier ones, if there are any.

    Args:
        statuses: the present statuses.
        earlier: earlier statuses of the same tables.
        seconds: the time between the two.
    """
    before = {(s.pool, s.sequence, s.server): s.last_ticket for s in earlier}
    return [_with_rate(s, before.get((s.pool, s.sequence, s.server)), seconds) for s in statuses]


def _with_rate(status: TableStatus, before: int | None, seconds: float) -> TableStatus:
    if before is None or status.last_ticket is None:
        return status
    return replace(status, rate=max(0, status.last_ticket - before) / status.stride / seconds)


def _unreachable(pool: TicketPool) -> list[TableStatus]:
    """The statuses of servers that do not answer, for a pool without known sequences."""
    found: list[TableStatus] = []
    for server in pool.servers:
        try:
            server.do("", lambda context: None)
        except TicketError as error:
            found.append(
                TableStatus(
                    pool=pool.name,
                    server=str(server),
                    stride=pool.stride,
                    offset=server.context.offset,
                    state=state_after(error),
                    error=str(error),
                )
            )
    return found


def runs_out(status: TableStatus) -> dt.date | None:
    """When the server has no ticket left at this rate, if within a thousand years."""
    return _day_after(status.capacity_left, status.rate)


def left_in_javascript(status: TableStatus) -> int | None:
    """How many tickets below 2**53 are left; None for a table of 32 bits, or if it is not up."""
    if status.last_ticket is None or status.largest <= LARGEST_IN_JAVASCRIPT:
        return None
    return max(0, LARGEST_IN_JAVASCRIPT - status.last_ticket) // status.stride


def runs_out_in_javascript(status: TableStatus) -> dt.date | None:
    """When no ticket below 2**53 is left at this rate, if within a thousand years."""
    return _day_after(left_in_javascript(status), status.rate)


def _day_after(left: int | None, rate: float | None) -> dt.date | None:
    """The day when that many tickets are used up."""
    if not left or not rate or left / rate > FARTHEST_END_SECONDS:
        return None
    today = dt.datetime.now(dt.timezone.utc).date()
    return today + dt.timedelta(seconds=left / rate)


def as_record(status: TableStatus) -> dict[str, object]:
    """The fields of a status, and values derived from them, for JSON."""
    return {
        **asdict(status),
        "bits": status.bits,
        "capacity_left": status.capacity_left,
        "runs_out": runs_out(status),
        "left_in_javascript": left_in_javascript(status),
        "runs_out_in_javascript": runs_out_in_javascript(status),
    }
