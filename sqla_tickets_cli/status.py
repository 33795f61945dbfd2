"""What ``sqla-tickets status`` tells: how each server stands in each sequence, and who leases node numbers."""

from __future__ import annotations

import contextlib
import datetime as dt
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Final

from sqla_tickets import TicketError, TicketPool, TicketServer, moves
from sqla_tickets.note import LayoutName
from sqla_tickets.statements import largest_ticket
from sqla_tickets.status import NodeLease
from sqla_tickets.survey import last_tickets

from .facts import is_read_only

__all__ = ["LARGEST_IN_JAVASCRIPT", "Node", "Standing", "nodes", "standings"]

#: ``Number.MAX_SAFE_INTEGER``: above it, JavaScript takes two neighbours for one.
LARGEST_IN_JAVASCRIPT: Final = 2**53 - 1


@dataclass(frozen=True, kw_only=True)
class Standing:
    """One sequence on one ticket server.

    Attributes:
        pool: the pool's name.
        sequence: its name; empty where no server answers that could tell of one.
        server: the server's name, without user and password.
        up: whether it answered just now, about this table.
        is_read_only: whether it answers, and takes no writes, so that nothing is drawn from it.
        last_ticket: the largest ticket that its table shows.
        layout: how its table is drawn from.
        stride: of the pool.
        offset: of the server.
        bits: of the table's numbers.
        is_foreign: whether no note stands beside the number: another program has made the table.
        mark: how far the server's peers know that it had come; None where they have not told. A last
            ticket below it is a server that was set back.
        lead: how far it is above the server that is the least far; None when not up.
        rate: tickets a second, all clients together; None when that was not measured.
        left: how many tickets it can still issue.
        runs_out: when that will be at this rate, if within a thousand years.
        left_in_javascript: how many of them are below 2**53; None in a table of 32 bits.
        runs_out_in_javascript: when those are gone at this rate, if within a thousand years.
        error: why it is not up.
    """

    pool: str
    sequence: str = ""
    server: str
    up: bool = False
    is_read_only: bool = False
    last_ticket: int | None = None
    layout: LayoutName | None = None
    stride: int
    offset: int
    bits: int = 64
    is_foreign: bool = False
    mark: int | None = None
    lead: int | None = None
    rate: float | None = None
    left: int | None = None
    runs_out: dt.date | None = None
    left_in_javascript: int | None = None
    runs_out_in_javascript: dt.date | None = None
    error: str | None = None

    @property
    def is_set_back(self) -> bool:
        """Whether the server's peers know of tickets that it does not know of any more."""
        return self.last_ticket is not None and self.last_ticket < (self.mark or 0)

    @property
    def is_well(self) -> bool:
        """Whether nobody has to look after it."""
        return self.up and not self.is_set_back and not self.is_read_only


@dataclass(frozen=True)
class Node(NodeLease):
    """A node number, for ids that are made in a process, which was ever leased from a pool.

    Attributes:
        pool: the pool's name.
    """

    pool: str


def nodes(pools: Sequence[TicketPool]) -> list[Node]:
    """The node numbers of every pool that leases any; nothing is raised for a server that is down."""
    found: list[Node] = []
    for pool in pools:
        with contextlib.suppress(TicketError):  # most pools have no such table
            found += [Node(**asdict(lease), pool=pool.name) for lease in pool.node_leases()]
    return found


def standings(
    pools: Sequence[TicketPool], sequences: Iterable[str] = (), *, over: float = 0.0
) -> list[Standing]:
    """Ask every server about every sequence; nothing is raised for one that is down.

    Args:
        pools: whose servers are asked.
        sequences: more names than are found there, as foreign tables cannot be told from others.
        over: seconds over which the rate is measured; 0 for not at all.
    """
    named = {pool.name: {*sequences, *moves.names(pool)} for pool in pools}
    begin = time.monotonic()
    before: dict[tuple[str, TicketServer], int | TicketError] = {}
    if over:
        for pool in pools:
            before |= last_tickets(pool, named[pool.name])
        time.sleep(over)
    found: list[Standing] = []
    for pool in pools:
        answers = last_tickets(pool, named[pool.name])
        seconds = time.monotonic() - begin
        answering = {server for (_, server), answer in answers.items() if isinstance(answer, int)}
        read_only = {server for server in answering if is_read_only(server)}
        for (name, server), answer in answers.items():
            earlier = before.get((name, server))
            rate = None
            if isinstance(answer, int) and isinstance(earlier, int):
                rate = max(0, answer - earlier) / pool.stride / seconds
            standing = _standing(pool, server, name, answer, rate)
            found.append(replace(standing, is_read_only=standing.up and server in read_only))
        if not answers:
            found += _silent(pool)
    return [replace(s, lead=_lead(s, found)) for s in found]


def _silent(pool: TicketPool) -> list[Standing]:
    """The servers that do not answer, of a pool of which no sequence is known."""
    found: list[Standing] = []
    for server in pool.servers:
        try:
            server.do("", lambda cursor, place: None)
        except TicketError as error:
            found.append(
                Standing(
                    pool=pool.name,
                    server=str(server),
                    stride=pool.stride,
                    offset=server.offset or 0,
                    error=str(error),
                )
            )
    return found


def _standing(
    pool: TicketPool,
    server: TicketServer,
    name: str,
    answer: int | TicketError,
    rate: float | None,
) -> Standing:
    last = answer if isinstance(answer, int) else None
    table = server.table(name)
    bits = table.note.bits if table.note else 64
    if last is not None:
        server.meet(table)
    left = None if last is None else max(0, largest_ticket(bits) - last) // pool.stride
    in_javascript = None
    if last is not None and bits == 64:
        in_javascript = max(0, LARGEST_IN_JAVASCRIPT - last) // pool.stride
    return Standing(
        pool=pool.name,
        sequence=name,
        server=str(server),
        up=last is not None,
        last_ticket=last,
        layout=table.layout.name if table.layout else None,
        stride=pool.stride,
        offset=server.offset or 0,
        bits=bits,
        is_foreign=last is not None and table.note is None,
        mark=table.mark or None,
        rate=rate,
        left=left,
        runs_out=_after(left, rate),
        left_in_javascript=in_javascript,
        runs_out_in_javascript=_after(in_javascript, rate),
        error=None if last is not None else str(answer),
    )


def _after(left: int | None, rate: float | None) -> dt.date | None:
    """The day on which so many tickets are gone."""
    if not left or not rate or left / rate > 1000 * 365.25 * 86400:
        return None
    today = dt.datetime.now(dt.timezone.utc).date()
    return today + dt.timedelta(seconds=left / rate)


def _lead(one: Standing, all_: Iterable[Standing]) -> int | None:
    if one.last_ticket is None:
        return None
    key = one.pool, one.sequence
    numbers = [s.last_ticket for s in all_ if (s.pool, s.sequence) == key]
    return one.last_ticket - min(n for n in numbers if n is not None)
