"""The status of ticket tables: one record for each sequence and server, and one loop that asks for it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, Protocol

from ..dialects import LayoutName
from ..draw.server import TicketServer
from ..draw.table_state import TableState, TicketTable
from ..errors import TicketError, TicketServerError
from ..tables.context import StatementContext
from ..tables.new_table import largest_ticket
from .handle import Servers

#: The state of a sequence's table on one server; each state has its own remedy.
State = Literal[
    "up",
    "busy",
    "down",
    "no database",
    "no login",
    "read-only",
    "set back",
    "quarantined",
    "used up",
    "no table",
    "retired",
    "growing",
    "unfit",
    "moved",
    "closed",
]
#: The state by the kind of error; any other error is one of the table or the configuration.
_STATES: Final[dict[str, State]] = {
    "disconnected": "down",
    "timeout": "down",
    "database_missing": "no database",
    "abandoned": "busy",
    "deadlock": "busy",
    "killed": "busy",
    "lock_timeout": "busy",
    "overloaded": "busy",
    "too_many_connections": "busy",
    "read_only": "read-only",
    "duplicate_number": "quarantined",
    "regression": "quarantined",
    "residue": "quarantined",
    "exhausted": "used up",
    "table_missing": "no table",
    "retired": "retired",
    "growing": "growing",
    "moved": "moved",
    "closed": "closed",
}


@dataclass(frozen=True, kw_only=True)
class TableStatus:
    """The status of one sequence on one ticket server.

    Attributes:
        pool: the pool's name.
        sequence: its name; empty if no server that answers names a sequence.
        server: the server's name, without user and password.
        stride: the pool's stride.
        offset: the server's offset.
        state: ``"up"``, or why no ticket is drawn from it; ``"down"`` if the server does not answer.
        up: whether the server has just answered about this table.
        is_read_only: whether it answers but takes no writes, so that nothing is drawn from it.
        last_ticket: the largest ticket that its table shows, of any client; None when not up.
        lead: how far ``last_ticket`` is above the lowest server's; None when not up.
        high_water_mark: the largest ticket that the server's peers know of; None if none reported a mark. If the last
            ticket is below it, the server was set back.
        largest: the largest ticket that the table's column can hold.
        ends_at: the largest ticket that may be returned: ``largest``, or where servers with a larger stride joined.
        layout: the table's layout; None before it was inspected.
        is_foreign: whether the table has no metadata: another program created it.
        has_moved: whether a server of the pool shows that the sequence has moved to another pool. That server's state is
            ``"closed"`` while another one still issues tickets, else ``"moved"``.
        rate: tickets a second of all clients together; None if it was not measured.
        buffered: how many tickets of the sequence this process has buffered, from any server.
        draws: how many draws of this process the table has answered.
        errors: how many draws of this process have failed on it.
        breaker: the state of the server's or the table's circuit breaker in this process, whichever is worse.
        error: why it is not up, or was not asked.
    """

    pool: str
    sequence: str = ""
    server: str
    stride: int
    offset: int
    state: State
    up: bool = False
    is_read_only: bool = False
    last_ticket: int | None = None
    lead: int | None = None
    high_water_mark: int | None = None
    largest: int = largest_ticket(64)
    ends_at: int = largest_ticket(64)
    layout: LayoutName | None = None
    is_foreign: bool = False
    has_moved: bool = False
    rate: float | None = None
    buffered: int = 0
    draws: int = 0
    errors: int = 0
    breaker: TableState = "closed"
    error: str | None = None

    @property
    def capacity_left(self) -> int | None:
        """How many tickets the server can still issue; None when not up."""
        if self.last_ticket is None:
            return None
        return max(0, self.ends_at - self.last_ticket) // self.stride

    @property
    def bits(self) -> int:
        """The bits of the table's numbers, by the type of its column: 31 for a signed one of 32."""
        return 64 if self.largest == largest_ticket(64) else self.largest.bit_length()

    @property
    def is_set_back(self) -> bool:
        """Whether the server has forgotten tickets that its peers know of."""
        return self.last_ticket is not None and _is_refused(
            self.last_ticket, self.stride, self.high_water_mark or 0
        )

    @property
    def is_well(self) -> bool:
        """Whether it needs nothing from an operator."""
        return self.state in ("up", "moved")


class StatusPool(Servers, Protocol):
    """The source of a status; a `TicketPool` is one."""

    def buffered(self, sequence: str) -> int:
        """How many tickets of the sequence this process has buffered."""
        ...


def ask_tables(
    pool: StatusPool, sequences: Iterable[str], *, ask_peers: bool = False
) -> list[TableStatus]:
    """Ask every server for the status of sequences; a server that is down raises no error.

    A server that has failed is not asked about further sequences.

    Args:
        pool: the pool whose servers are asked.
        sequences: their names.
        ask_peers: whether to read the high-water marks, too. The tables then count as verified, so do not use this
            with a pool that draws.

    Raises:
        TicketArgumentError: a server has an async driver, but the caller is synchronous code.
    """
    for server in pool.servers:
        server.check_caller()
    found: list[TableStatus] = []
    failed: dict[TicketServer, TicketError] = {}
    read_only: dict[TicketServer, bool] = {}
    for name in sorted(sequences):
        asked: list[tuple[TicketServer, TicketTable, int | TicketError]] = []
        for server in pool.servers:
            table = server.table(name)  # it is known from now on, whatever comes of it
            last = failed.get(server) or _last_ticket(server, name)
            if isinstance(last, int):
                if server not in read_only:
                    read_only[server] = is_read_only(server)
                if ask_peers:
                    server.ask_peers(table)
                    if last < table.largest_mark:  # clients may have drawn since it was read
                        last = _last_ticket(server, name)
            elif isinstance(last, TicketServerError) and not server.breaker.is_closed:
                failed[server] = last  # else it is about the table
                if ask_peers:
                    server.ask_peers(table)
            asked.append((server, table, last))
        # when all have answered, as any of them may show where servers joined
        found += [_status(pool, *answer, read_only.get(answer[0], False)) for answer in asked]
    return _closed_in_part(_compared(found))


def known_tables(pool: StatusPool) -> list[TableStatus]:
    """The state of each table, as this process knows it, without asking any server.

    ``last_ticket`` is the largest that it has seen; ``up`` and ``error`` describe its last attempt.
    """
    found: list[TableStatus] = []
    for server in pool.servers:
        for table in server.known_tables():
            if table.name and (table.fence or table.errors):
                reason = server.breaker.reason or table.reason
                status = _status(pool, server, table, reason or table.fence, False)
                found.append(replace(status, last_ticket=table.fence))
    return _compared(found)


def _last_ticket(server: TicketServer, name: str) -> int | TicketError:
    try:
        return server.last_ticket(name)
    except TicketError as error:
        return error


def _status(
    pool: StatusPool,
    server: TicketServer,
    table: TicketTable,
    last: int | TicketError,
    read_only: bool,
) -> TableStatus:
    up = isinstance(last, int)
    state = _state(server, table, last, read_only)
    reason = table.quarantine or server.breaker.reason or table.breaker.reason
    error = reason if up else last
    if up and state == "used up":
        error = table.exhausted(server, 1)
    return TableStatus(
        pool=pool.name,
        sequence=table.name,
        server=str(server),
        stride=pool.stride,
        offset=server.context.offset,
        state=state,
        up=up,
        is_read_only=up and read_only,
        last_ticket=last if isinstance(last, int) else None,
        high_water_mark=table.largest_mark or None,
        largest=table.largest,
        ends_at=table.ends_at,
        layout=table.layout.name if table.layout else None,
        is_foreign=up and table.metadata is None,
        buffered=pool.buffered(table.name),
        draws=table.draws,
        errors=table.errors,
        breaker="open" if table.state == "closed" and reason else table.state,
        error=None if error is None else str(error),
    )


def state_after(error: TicketError) -> State:
    """The state of a table after an error."""
    if error.kind == "access_denied" and isinstance(error, TicketServerError):
        return "no login"  # else a privilege on the table is missing
    return _STATES.get(error.kind, "unfit")


def _state(
    server: TicketServer, table: TicketTable, last: int | TicketError, read_only: bool
) -> State:
    if isinstance(last, TicketError):
        return state_after(last)
    if table.quarantine is not None:
        return state_after(table.quarantine)
    if _is_refused(last, table.stride, table.largest_mark):
        # after a client has noticed, the peers' marks are above all that it has issued
        return "quarantined" if server.is_raised_fence(table.largest_mark) else "set back"
    if read_only:
        return "read-only"
    return "used up" if last + table.stride > table.ends_at else "up"


def _is_refused(last: int, stride: int, mark: int) -> bool:
    """Whether a table's next ticket is not above its peers' mark."""
    return last + stride <= mark


def _compared(statuses: Sequence[TableStatus]) -> list[TableStatus]:
    """The statuses of one pool, with what follows from those of the other servers."""
    last = [(s.sequence, s.last_ticket) for s in statuses if s.last_ticket is not None]
    least = {name: min(n for other, n in last if other == name) for name, _ in last}
    moved = {s.sequence for s in statuses if s.state == "moved"}
    return [
        replace(
            s,
            lead=None if s.last_ticket is None else s.last_ticket - least[s.sequence],
            has_moved=s.sequence in moved,
        )
        for s in statuses
    ]


def _closed_in_part(statuses: Sequence[TableStatus]) -> list[TableStatus]:
    """The statuses, where a server from which a sequence has moved is closed while another one is drawn from.

    Its backup is older than the sequence's way back, or the move is under way.
    """
    is_up = {s.sequence for s in statuses if s.state == "up"}
    return [
        replace(s, state="closed") if s.state == "moved" and s.sequence in is_up else s
        for s in statuses
    ]


def is_read_only(server: TicketServer) -> bool:
    """Whether a server answers but takes no writes: by a variable, or as a standby."""
    question = server.context.dialect.read_only()
    if question is None:
        return False

    def ask(context: StatementContext) -> bool:
        return any(str(value).upper() not in ("OFF", "0") for _, value in context.rows(question))

    try:
        return server.do("", ask)
    except TicketError:
        return False
