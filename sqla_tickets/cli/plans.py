# What is protected is hidden from users, not from this package.
# pyright: reportPrivateUsage=false
"""Plans that change ticket servers: each lists its steps, runs them, and ends with a proof."""

from __future__ import annotations

import functools
import shlex
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from .. import (
    TableStatus,
    TicketArgumentError,
    TicketError,
    TicketPool,
    TicketServer,
    TicketServerError,
    TicketTableError,
    TicketTableMissing,
)
from ..concurrency import time
from ..dialects import ErrorKind, LayoutName
from ..draw.access import ServerAccess
from ..high_water.timing import TIMING
from ..maintenance import operations, redirect_paths, resize, tombstones
from ..maintenance.status import State, ask_tables
from ..maintenance.tombstones import Destination, FoundTable
from ..snowflake import numbering
from ..snowflake.leases import NodeLeases
from ..status.text import EVERY_SHARD, named, option_of, restoration, set_back
from ..tables.inspection import ActiveTable
from ..tables.metadata import Tombstone
from ..tables.new_table import seed, stub_of
from .inspection import high_waters, inspect_pool
from .shards import NOT_KNOWN, ShardIds

#: How the line of a step begins that cannot be done.
NOT_POSSIBLE: Final = "NOT POSSIBLE"
#: The number of attempts to raise a sequence above new ids on the shards.
MAX_RAISES: Final = 3
#: How soon `grow --finish` first checks whether clients still draw with the old stride; then after twice that.
FIRST_POLL_SECONDS: Final = 0.25


@dataclass(frozen=True)
class Plan:
    """A planned change.

    Attributes:
        steps: a line for each step, by sequence; steps for all sequences have an empty name.
        run: makes the change, and returns the guarantees from now on, as read from the servers. It can be called
            again after an error: finished steps are kept.
        following: the operator's next steps when all of every plan is done.
        repairs: the operator's steps for what cannot be done.
        refusal: why it could not be planned; None if it could.
        is_possible: whether some of it can be done.
    """

    steps: Mapping[str, Sequence[str]]
    run: Callable[[], list[str]]
    following: Sequence[str] = ()
    repairs: Sequence[str] = ()
    refusal: TicketError | None = None
    is_possible: bool = True

    @property
    def lines(self) -> list[str]:
        """All steps."""
        return [line for lines in self.steps.values() for line in lines]

    @property
    def is_complete(self) -> bool:
        """Whether every step can be done, as far as is known."""
        return not any(line.startswith(NOT_POSSIBLE) for line in self.lines)


class PartlyDone(TicketError):
    """Raised if some steps of a plan failed.

    Attributes:
        proof: what the finished steps guarantee from now on; empty if nothing.
    """

    def __init__(self, reasons: str, proof: str) -> None:
        super().__init__(reasons)
        self.proof = proof

    def __reduce__(self) -> tuple[type[PartlyDone], tuple[str, str]]:
        return type(self), (str(self), self.proof)


def raise_(pool: TicketPool, name: str, above: int, on_shards: ShardIds) -> Plan:
    """Raise every server above a number and above every id on the shards.

    Raises:
        TicketError: a server cannot be raised.
    """
    largest = on_shards.largest_ids(name)
    highest = max(above, *(number for number, _ in largest), 0)
    lines = [f"{text}: {number}" for number, text in largest]
    lines += on_shards.unknown(name) if on_shards else []
    counting = on_shards.auto_increment_columns(name)
    lines += [
        f"NOT FINISHED: {where} still assigns its own numbers, above the tickets"
        for where in counting
    ]
    until_then = ", or higher if ids are inserted until then" if on_shards else ""
    for server, state in _states(pool, name).items():
        number = _number(server, name, state)
        action = "stays" if number > highest else f"is raised above {highest}{until_then}"
        lines.append(f"{name!r} on {server} is at {number}: it {action}")
    operations.check_raise(pool, name, highest)
    lines += [
        f"NOT ENOUGH for {status.server}: {_why_refused(status, on_shards.with_shards)}"
        for status in _refused(pool, name)
        if seed(highest + 1, pool.stride, status.offset) + pool.stride
        <= (status.high_water_mark or 0)
    ]
    following = (
        f"sqla-tickets audit{on_shards.with_shards}. After a take-over, add --above NUMBER to leave out the ids from"
        " before it"
        if on_shards
        else "restart the clients that have buffered tickets (block=), or wait for their block_max_age"
    )

    def run() -> list[str]:
        raised = _raise_above_strays(pool, name, max(highest, on_shards.largest(name)), on_shards)
        proof = functools.partial(_proof_above, pool, name, raised)
        with_shards = on_shards.with_shards
        if counting:
            raise PartlyDone(
                f"{', '.join(counting)} still assigns its own numbers, above the tickets. Remove AUTO_INCREMENT, "
                f"then run this again.",
                _proof_where_accepted(pool, name, proof, with_shards),
            )
        if not on_shards.knows(name):
            return [_proof_where_accepted(pool, name, proof, with_shards)]
        return [
            _proof_where_accepted(
                pool,
                name,
                lambda servers: (
                    f"all ids above {raised} on the shards are tickets; {proof(servers)}"
                ),
                with_shards,
            )
        ]

    return Plan({name: lines}, run, [following])


def _raise_above_strays(pool: TicketPool, name: str, above: int, on_shards: ShardIds) -> int:
    """Raise a sequence until every id above it is a ticket; returns the number that it was raised above."""
    strays: list[tuple[int, str]] = []
    for _ in range(MAX_RAISES):
        pool.raise_above(name, above)
        strays = _strays(pool, name, above, on_shards)
        if not strays:
            return above
        above = max(number for number, _ in strays)
    raise TicketTableError(
        f"{name!r}: {len(strays)} ids that no ticket server issued have appeared on the shards, such as "
        f"{strays[0][0]} in {strays[0][1]}. Stop their writer, remove AUTO_INCREMENT from the shards, and raise the "
        f"sequence again"
    )


def _strays(pool: TicketPool, name: str, above: int, on_shards: ShardIds) -> list[tuple[int, str]]:
    """The ids on the shards above a number that no server of the pool issued."""
    found = list(on_shards.above(name, above))
    # asked after reading the ids, as an id is inserted after its ticket is issued
    issued = high_waters(inspect_pool(pool, [name], with_found=False), name) if found else {}
    return [(i, w) for i, w in found if i > (issued.get(i % pool.stride or pool.stride) or above)]


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
    states = operations.table_states(pool, name)
    for state in states.values():
        if isinstance(state, TicketError):
            raise state
    to = _moved_to(pool, name, list(states.values()), pools)
    if to is not None and None in states.values():
        return _redirect(pool, name, [s for s, state in states.items() if state is None], to)
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
        elif isinstance(state, ActiveTable):
            lines.append(f"verify {name!r} on {server}, at {state.number}")

    def proof(servers: Sequence[TicketServer]) -> str:
        created = [server for server in servers if server in missing]
        if created and above >= start:
            return _proof_above(pool, name, above, created)
        return _proof_above(pool, name, start - 1, servers)

    def run() -> list[str]:
        pool.create_table(name, layout=layout, start=start, bits=bits)
        return [_proof_where_accepted(pool, name, proof, with_shards)]

    return Plan({name: lines}, run, ["run sqla-tickets doctor as the user who draws"])


def _moved_to(
    pool: TicketPool,
    name: str,
    states: Sequence[FoundTable | TicketError],
    pools: Iterable[TicketPool],
) -> Destination | None:
    """Where a sequence has moved, by its tombstones or, where none is left, by its tables in all pools."""
    moved = operations.moved_to(state for state in states if not isinstance(state, TicketError))
    if moved is not None:
        return Destination("moved", moved.pool, moved.sequence)
    if any(states):
        return None
    found = redirect_paths.find(pools, (pool.name, name))
    return None if found is None else Destination("moved", found[0].name, found[1])


def _redirect(
    pool: TicketPool, name: str, servers: Sequence[TicketServer], to: Destination
) -> Plan:
    """Redirect clients from servers that lack the tombstone of a sequence that has moved."""
    lines = [_redirecting(name, str(server), to) for server in servers]

    def run() -> list[str]:
        operations.redirect(pool, name, to)
        return [
            f"{name!r} leads to {to.sequence!r} of the pool {to.pool!r} on every server of the pool {pool.name!r}"
        ]

    return Plan({name: lines}, run)


def _redirecting(name: str, servers: str, to: Destination) -> str:
    """The step that redirects clients from servers."""
    return f"leave a tombstone on {servers}: {name!r} has moved to {to.sequence!r} of the pool {to.pool!r}"


def move(source: TicketPool, name: str, target: TicketPool) -> Plan:
    """Move a sequence to the servers of another pool.

    Raises:
        TicketError: it cannot move.
    """
    is_to_be_done = operations.check_move(source, name, target)
    here = ", ".join(map(str, source.servers))
    there = ", ".join(map(str, target.servers))
    lines = [
        f"create {name!r} on {there}, closed until the last step",
        f"close {name!r} on {here}: a tombstone leads to the pool {target.name!r}",
        f"open {name!r} on {there}, above the highest ticket of all servers",
    ]
    if not is_to_be_done:
        lines = [f"{name!r} is already in the pool {target.name!r}: no table is closed or opened"]

    def run() -> list[str]:
        operations.move(source, name, target)
        tombstones = [_inspect(server, name) for server in source.servers]
        high = max((t.high_water for t in tombstones if isinstance(t, Tombstone)), default=0)
        closed = f"no ticket of {name!r} on {here} is above {high}, and none follows"
        if operations.moved_to(_inspect(server, name) for server in target.servers):
            return [f"{closed}; it has gone on from the pool {target.name!r}"]
        begin = min(_next_ticket(target, server, name) for server in target.servers)
        if begin <= high:
            raise TicketTableError(
                f"{name!r} in the pool {target.name!r}: expected a next ticket above {high}, found {begin}."
                f" Raise it above {high} before any client draws"
            )
        return [f"{closed}; new tickets start at {begin}"]

    following = (
        f"name the pool {target.name!r} in the models, and deploy that everywhere",
        f"keep {here} until no client is redirected from there",
    )
    return Plan({name: lines}, run, following)


# -- a restored server


def restore(
    pool: TicketPool,
    name: str,
    on_shards: ShardIds,
    *,
    offset: int | None,
    margin: int | None,
) -> Plan:
    """Raise servers above every recorded ticket that they may have issued.

    Args:
        pool: the servers' pool.
        name: the sequence's name.
        on_shards: its ids on the shards.
        offset: the offset of the restored server; None for all.
        margin: how many tickets to add for unrecorded ones; None for as many as may be above a high-water mark.

    Raises:
        TicketArgumentError: nothing is recorded, or the peers with the marks do not answer.
        TicketTableError: a high-water mark cannot be true.
    """
    servers = [s for s in pool.servers if offset in (None, s.offset)]
    if not servers:
        offsets = ", ".join(str(server.offset) for server in pool.servers)
        raise TicketArgumentError(
            f"the pool {pool.name!r} has no server with the offset {offset}: expected one of {offsets}"
        )
    states = operations.table_states(pool, name)
    moved = _moved_in_part(name, states)
    if moved is not None:
        return impossible(name, moved)
    kept = {server: pool._marks.of(name).kept_by(server) for server in pool.servers}
    joined = operations.joined_above(pool, name)
    known, unanswered = _recorded_tickets(pool, name, states, kept, servers, on_shards, joined)
    highest, origin = max(known)
    numbers = pool._marks.margin if margin is None else margin * pool.stride
    above = highest + numbers
    operations.refuse_to_meet(pool, name, above, joined)
    lines = [f"{text}: {number}" for number, text in known]
    lines += [
        f"{NOT_KNOWN}: the high-water marks on {server}, {_why_unknown(states[server])}"
        for server in unanswered
    ]
    unknown = on_shards.unknown(name)
    lines += unknown
    lines.append(
        f"the highest is {highest}, {origin}; the margin for unrecorded tickets is {numbers // pool.stride:,} "
        f"tickets ({numbers:,} numbers)"
    )
    raising = [_restoring(name, server, states[server], above) for server in servers]
    lines += raising
    down = [server for server in servers if isinstance(states[server], TicketError)]
    if offset is None and 0 < len(down) < len(servers):
        lines.append(
            f"this raises the servers that answer; to raise only {down[0]} after its repair, give --offset"
            f" {down[0].offset}"
        )
    missing = [server for server in servers if states[server] is None]
    following = [_not_checked(name, on_shards)] * bool(unknown)
    following += _after_restore(name, {_set_back(s, states[s], kept, pool.stride) for s in servers})
    return Plan(
        {name: lines},
        lambda: [_restore(pool, name, servers, above)],
        following,
        [f"run sqla-tickets create {named(name, pool.name)}, which begins above the peers' marks"]
        * bool(missing),
        is_possible=not all(line.startswith(NOT_POSSIBLE) for line in raising),
    )


def _moved_in_part(
    name: str, states: Mapping[TicketServer, FoundTable | TicketError]
) -> TicketError | None:
    """The error about a sequence that has moved on some servers only, as others have an older backup."""
    if not any(isinstance(state, ActiveTable) for state in states.values()):
        return None
    for server, state in states.items():
        if isinstance(state, Tombstone) and state.kind == "moved":
            return TicketTableError(
                f"{name!r} has become {state.sequence!r} of the pool {state.pool!r} on {server}, and not on the other "
                "servers: a backup is older than that change. Repeat that move, rename or migration, which closes the "
                "table on all servers"
            )
    return None


def _set_back(
    server: TicketServer, state: FoundTable | TicketError, kept: Kept, stride: int
) -> State:
    """Whether a server's table is set back, and a client has noticed."""
    mark = _high_water_mark(server, kept)
    if not isinstance(state, ActiveTable) or (state.number or 0) + stride > mark:
        return "up"
    return "quarantined" if server.is_raised_fence(mark) else "set back"


def _not_checked(name: str, on_shards: ShardIds) -> str:
    """The next step after a restore that read none of the sequence's ids."""
    again = f"the ids of {name!r} on the shards were not checked: run this again"
    column = f"--column TABLE.COLUMN={shlex.quote(name)}"
    if on_shards:
        return f"{again} with {column}"
    return f"{again}{EVERY_SHARD} (and {column}, if the column has another name)"


def _after_restore(name: str, before: Collection[State]) -> list[str]:
    """The operator's next steps, by the servers' states before they were raised.

    A table that was not set back may have been raised by an earlier run, so it is not known whether a client
    noticed.
    """
    steps: list[str] = []
    if before != {"quarantined"}:
        steps.append(
            "if no client has reached the server yet: stop it, and start it under its usual address. No client needs a"
            " restart"
        )
    if before != {"set back"}:
        otherwise = "otherwise: " if steps else ""
        steps.append(
            f"{otherwise}restart each process that has quarantined {name!r}: until then it draws from the other servers. Or call"
            f" pool.unquarantine({name!r}) in it, which logs: drawing again from the ticket table"
        )
        steps.append(
            "sqla-tickets status: a rate/s above 0 (with --wide, if the terminal is narrow) means that at least one"
            " process draws from the server again, not that all do"
        )
    return steps


#: The advice to a user who may only read.
_OTHER_USER: Final = (
    "Give --server for every server (or SQLA_TICKETS_SERVERS) with the user of the migrations, or grant this user what"
    " the command 'sqla-tickets grants migrate' prints"
)


def _restoring(name: str, server: TicketServer, state: FoundTable | TicketError, above: int) -> str:
    """The step on a server, or why it is impossible."""
    if state is None:
        return f"{NOT_POSSIBLE}: {server} has no ticket table {name!r}"
    if isinstance(state, TicketError):
        return f"{NOT_POSSIBLE}: {state}"
    database = server.engine.url.database
    try:
        lacking = server.do(name, tombstones.lacking_privileges, name, database, "draw")
        server.do(name, tombstones.check_raise, name, above)
    except TicketError as error:
        return f"{NOT_POSSIBLE}: {error}"
    if lacking:
        return f"{NOT_POSSIBLE}: this user lacks {', '.join(lacking)} on {server}. {_OTHER_USER}"
    return f"raise {name!r} on {server} above {above}"


def _restore(pool: TicketPool, name: str, servers: Sequence[TicketServer], above: int) -> str:
    """Raise every server that can be raised.

    Raises:
        PartlyDone: some servers cannot be raised.
    """
    failures: list[str] = []
    raised: list[TicketServer] = []
    for server in servers:
        try:
            server.do(name, tombstones.raise_above, name, above)
        except TicketError as error:
            failures.append(_not_restored(server, error))
        else:
            raised.append(server)
    proof = ""
    if raised:
        refused = pool._marks.of(name).write_raised(above, raised)
        failures += [_not_marked(peer, raised, kind) for peer, kind in refused.items()]
        proof = _proof_above(pool, name, above, raised)
    if failures:
        raise PartlyDone("; ".join(failures), proof)
    return proof


def _not_restored(server: TicketServer, error: TicketError) -> str:
    """Why a server cannot be raised, and what an operator can do."""
    if error.kind == ErrorKind.READ_ONLY.name.lower():
        return (
            f"{server} takes no writes: make it writable under an address that no client has, and run this again with"
            " that address"
        )
    if error.kind == ErrorKind.ACCESS_DENIED.name.lower() and isinstance(error, TicketTableError):
        return f"{str(error).rpartition(': ')[0]}. {_OTHER_USER}"
    return str(error)


def _not_marked(peer: ServerAccess, raised: Sequence[TicketServer], kind: ErrorKind) -> str:
    """What is missing if a peer does not know how far servers were raised."""
    fix = f"Make {peer} writable, and run this again"
    if kind is ErrorKind.ACCESS_DENIED:
        fix = _OTHER_USER
    return (
        f"{peer} did not store the new high-water mark of {_names(raised)} ({kind.value}), so it cannot show a later"
        f" set-back. {fix}"
    )


def impossible(name: str, error: TicketError) -> Plan:
    """The plan for a sequence for which nothing can be done."""

    def run() -> list[str]:
        raise error

    return Plan({name: [f"{NOT_POSSIBLE}: {error}"]}, run, refusal=error, is_possible=False)


def _recorded_tickets(
    pool: TicketPool,
    name: str,
    states: Mapping[TicketServer, FoundTable | TicketError],
    kept: Kept,
    servers: Sequence[TicketServer],
    on_shards: ShardIds,
    joined: int,
) -> tuple[list[tuple[int, str]], list[TicketServer]]:
    """The known tickets, each with its origin, and the servers that do not answer."""
    for _, _, text in pool._marks.of(name).refuted():
        raise TicketTableError(text)
    # larger ids are of the servers that joined
    ids = [(n, text) for n, text in on_shards.largest_ids(name) if not joined or n <= joined]
    known = [n for server, state in states.items() for n in _known_tickets(server, state, kept)]
    if not known and not ids:
        raise TicketArgumentError(
            f"no ticket of {name!r} is recorded: name {_missing_shards(on_shards)}"
        )
    unanswered = [
        s for s, state in states.items() if isinstance(state, TicketError) or kept[s] is None
    ]
    raised = [server for server in servers if not isinstance(states[server], TicketError)]
    unmarked = [server for server in raised or servers if not _high_water_mark(server, kept)]
    if not ids and unmarked:
        _refuse_without_peers(pool, name, unmarked, unanswered, on_shards)
    return known + ids, unanswered


def _why_unknown(state: FoundTable | TicketError) -> str:
    """Why a server has shown nothing: it is down, or its table is another pool's."""
    is_up = isinstance(state, TicketError) and not isinstance(state, TicketServerError)
    return "whose ticket table does not fit" if is_up else "which does not answer"


def _missing_shards(on_shards: ShardIds) -> str:
    """What to name if no id of a sequence was found."""
    if on_shards:
        return "the column with its ids with --column, or the shards that are missing with --shard"
    return "all of the application's databases with --shard"


def _refuse_without_peers(
    pool: TicketPool,
    name: str,
    servers: Sequence[TicketServer],
    unanswered: Sequence[TicketServer],
    on_shards: ShardIds,
) -> None:
    """Refuse if no peer has marks of the servers."""
    if unanswered:
        reason, fix = f"{_names(unanswered)} cannot be asked", "Repair that first, or name"
    elif len(pool.servers) == 1:
        reason, fix = "it has no peer", "Name"
    else:
        return
    raise TicketArgumentError(
        f"it is not known how far {_names(servers)} issued {name!r}: {reason}. {fix}"
        f" {_missing_shards(on_shards)}"
    )


#: Each server's marks of its peers; None for a server that does not answer.
Kept = Mapping[TicketServer, "Mapping[int, int] | None"]


def _known_tickets(
    server: TicketServer, state: FoundTable | TicketError, kept: Kept
) -> Iterator[tuple[int, str]]:
    """The known tickets of a server: its number, and its peers' high-water mark."""
    if isinstance(state, ActiveTable) and state.number is not None:
        yield state.number, f"the number on {server}"
    mark = _high_water_mark(server, kept)
    if mark:
        tickets = TIMING.margin_tickets
        more = (
            f", which a client raised by {tickets:,} tickets ({tickets * server.context.stride:,} numbers) when it"
            " noticed that the server was set back"
        )
        yield (
            mark,
            f"the high-water mark of {server}{more if server.is_raised_fence(mark) else ''}",
        )


def _high_water_mark(server: TicketServer, kept: Kept) -> int:
    return max((marks.get(server.offset, 0) for marks in kept.values() if marks), default=0)


def _names(servers: Iterable[TicketServer]) -> str:
    return ", ".join(map(str, servers))


# -- more servers, and fewer


def grow(
    pool: TicketPool, names: Sequence[str], new: TicketPool, gap: int, on_shards: ShardIds
) -> Plan:
    """Add servers that begin above every id on the shards."""
    joining = new.servers[len(pool.servers) :]
    widens = new.stride != pool.stride
    least = pool._marks.margin
    if widens and gap < least:
        raise TicketArgumentError(
            f"--gap {gap} is too small: give at least {least}. Clients may draw half as many numbers before they "
            "read where the new servers begin"
        )
    for server in joining:
        for name in names:
            server.do(name, tombstones.rehearse_creation, name, server.engine.url.database)
    above = {
        name: resize.begins_above(pool, new, name, gap=gap, held=on_shards.largest(name))
        for name in names
    }
    steps = {
        name: [
            *_ids_on_shards(on_shards, name),
            *_void_gap(pool, new, name),
            *(_opening(name, s, above[name]) for s in joining),
        ]
        for name in names
    }
    following = [f"give all clients the new configuration: {_configuration(new)}"]
    if not widens:
        following.insert(
            0,
            "append the new servers to ticket_servers in the configuration file, in the same order; sqla-tickets status "
            f"then shows {len(new.servers)} servers",
        )
    common: list[str] = []
    if widens:
        common.append(
            f"the new servers have the stride {new.stride}, and begin {gap} above the others, which keep the stride "
            f"{pool.stride} for now"
        )
        following.append(
            f"then run sqla-tickets grow --finish{option_of(pool.name)} with the new configuration"
        )
    has_nodes = numbering.is_divided(pool.servers)
    if has_nodes:
        common.append("divide the node numbers between all servers")
    gone = _gone(pool)
    common += [_redirecting(name, "the new servers", to) for name, to in gone.items()]

    def run() -> list[str]:
        proofs: list[str] = []
        for name, to in gone.items():
            operations.redirect(new, name, to)
        for name in names:
            above = resize.begin(pool, new, name, gap=gap, held=on_shards.largest(name))
            begin = min(_next_ticket(new, server, name) for server in joining)
            proofs.append(
                f"every ticket of {name!r} from the new servers is above {above}; the next is {begin}"
            )
        if has_nodes:
            NodeLeases(new).create_table()
        return proofs

    return Plan({**steps, "": common}, run, following)


def _gone(pool: TicketPool) -> dict[str, Destination]:
    """The sequences that have moved or been renamed, and where to."""
    found: dict[str, Destination] = {}
    for name in sorted(operations.names(pool, with_moved=True, with_renamed=True)):
        states = list(operations.table_states(pool, name).values())
        is_here = any(isinstance(state, ActiveTable) for state in states)
        to = None if is_here else _moved_to(pool, name, states, ())
        if to is not None:
            found[name] = to
    return found


def _opening(name: str, server: TicketServer, above: int) -> str:
    return f"open {name!r} on {server} above {above}, or higher if tickets are drawn until then"


def _void_gap(pool: TicketPool, new: TicketPool, name: str) -> Iterator[str]:
    """The step for a sequence whose gap of an earlier run is used up, or has lost the servers above it."""
    found = resize.earlier_gap(pool, new, name)
    if found is not None and found.is_void:
        why = "so the gap is used up" if found.has_joined else "but none has a table"
        yield (
            f"the old servers are at {found.reached}, and the new ones began above {found.above}, {why}: raise "
            f"{name!r} on every server above all numbers, and open a new gap. Until then, no client may draw"
        )


def _ids_on_shards(on_shards: ShardIds, name: str) -> list[str]:
    """The largest ids on the shards, and which of them are unknown."""
    lines = [f"{text}: {number}" for number, text in on_shards.largest_ids(name)]
    return lines + on_shards.unknown(name)


def _configuration(pool: TicketPool) -> str:
    return f"{len(pool.servers)} servers in this order, stride {pool.stride}"


def finish(
    new: TicketPool, names: Sequence[str], quiet: float, with_shards: str = EVERY_SHARD
) -> Plan:
    """End a growth: the old servers get the new stride.

    If only one server has the old stride, it may have come back from a backup that is older than the growth.
    """
    for name in names:
        operations.refuse_during_resize(new, name)
    found = {name: resize.unfinished(new, name) for name in names}
    steps = {name: _end_of_growth(new, name, found[name], quiet) for name in names}
    behind = {server for numbers in found.values() for server in numbers}
    restored = [
        f"if {server} came from a backup: sqla-tickets restore --offset"
        f" {server.offset}{option_of(new.name)}{with_shards}"
        for server in behind
        if len(behind) == 1
    ]

    def run() -> list[str]:
        unfinished = {name: resize.unfinished(new, name) for name in names}
        _check_quiet(new, unfinished, quiet)
        proofs: list[str] = []
        for name in names:
            _check_distance(new, name, unfinished[name])
            ended = resize.finish(new, name)
            if ended:
                proofs.append(
                    f"no ticket of {name!r} above {max(ended)} was issued with the old stride; all "
                    f"{len(new.servers)} servers have the stride {new.stride}"
                )
        return proofs or [_is_finished(new)]

    return Plan(steps, run, [*restored, "run sqla-tickets doctor with the new configuration"])


def _end_of_growth(
    new: TicketPool, name: str, unfinished: dict[TicketServer, int], quiet: float
) -> list[str]:
    """The steps for a sequence's servers that have the old stride, given with their numbers."""
    lines = [
        f"check for {quiet:g} s that no client draws {name!r} from {server}, which has the old stride and is at "
        f"{number}"
        for server, number in unfinished.items()
    ]
    lines += [
        f"give {name!r} on {server} the stride {new.stride}, and rename its column stub to"
        f" {stub_of(new.stride)}: the table then refuses every client with the old configuration"
        for server in unfinished
    ]
    return lines or list(_interrupted(new, name)) or [_is_finished(new)]


def _interrupted(new: TicketPool, name: str) -> Iterator[str]:
    """The steps that an interrupted run has left to do."""
    for server, state in _states(new, name).items():
        if isinstance(state, Tombstone) and state.kind == "converting":
            yield f"open {name!r} on {server}, which an interrupted run has closed"


def _is_finished(new: TicketPool) -> str:
    return f"every server already has the stride {new.stride}"


def _check_quiet(new: TicketPool, before: dict[str, dict[TicketServer, int]], quiet: float) -> None:
    """Refuse as soon as a number rises, within the time."""
    began, pause_seconds = time.monotonic(), FIRST_POLL_SECONDS
    end = began + (quiet if any(before.values()) else 0.0)
    while True:
        time.sleep(max(0.0, min(pause_seconds, end - time.monotonic())))
        pause_seconds *= 2
        is_last = time.monotonic() >= end
        for name, servers in before.items():
            for server, number in resize.unfinished(new, name).items():
                if number != servers.get(server, number):
                    raise TicketTableError(
                        f"a client still draws {name!r} from {server} with the old configuration: the number rose "
                        f"from {servers[server]} to {number} in {time.monotonic() - began:.1f} s. Give every client "
                        "the new configuration or stop it, and run this again"
                    )
        if is_last:
            return


def _check_distance(new: TicketPool, name: str, unfinished: dict[TicketServer, int]) -> None:
    """Refuse if an old server has reached the numbers of the new ones."""
    states = {server: _inspect(server, name) for server in new.servers if server not in unfinished}
    # an old server's, which an interrupted run closed
    closed = {
        server: state.high_water if state.stride != new.stride else 0
        for server, state in states.items()
        if isinstance(state, Tombstone) and state.kind == "converting"
    }
    lost = [server for server, state in states.items() if state is None]
    if lost and (unfinished or closed):  # `create` waits for the end of a growth
        raise TicketTableMissing(
            f"there is no ticket table {name!r} on {lost[0]}, which has joined: first run sqla-tickets grow --add on the"
            " old configuration again, with the same servers"
        )
    joined = [
        n for s, state in states.items() if s not in closed and (n := _number(s, name, state))
    ]
    above = new._marks.of(name).read_joined()
    began = above + 1 if above else min(joined, default=0)
    stand = max([*unfinished.values(), *closed.values()], default=0)
    if stand and (not joined or stand >= began):
        raise TicketTableError(
            f"{name!r}: the gap is used up, as the servers with the old stride are at {stand} and the new ones began "
            f"at {began}: tickets between may have been issued twice. Stop all clients, and run sqla-tickets grow "
            "--add on the old configuration again, with the same servers. It raises every server above all numbers, "
            "and opens a new gap. Then run sqla-tickets audit on the old configuration before any client starts"
        )


def retire(pool: TicketPool, names: Sequence[str], leaving: int, on_shards: ShardIds) -> Plan:
    """Retire the last servers; the others continue above their tickets and above every id on the shards."""
    if not 1 <= leaving < len(pool.servers):
        raise TicketArgumentError(
            f"{leaving} of the {len(pool.servers)} servers of {pool.name!r} cannot retire: expected 1 to"
            f" {len(pool.servers) - 1}"
        )
    for name in names:
        operations.refuse_during_resize(pool, name)
    going, staying = pool.servers[-leaving:], pool.servers[:-leaving]
    steps = {
        name: [
            *_ids_on_shards(on_shards, name),
            *(f"retire {name!r} on {server}" for server in going),
            *(f"raise {name!r} on {server} above the retired tables" for server in staying),
        ]
        for name in names
    }
    has_nodes = numbering.is_divided(going)
    common = [f"retire the node numbers of {server}" for server in going if has_nodes]
    count = "1 server" if len(staying) == 1 else f"{len(staying)} servers"
    following = (
        f"configure {count} with the same stride={pool.stride} in every client",
        f"then switch off {_names(going)}",
    )

    def run() -> list[str]:
        proofs: list[str] = []
        for name in names:
            high = resize.retire(pool, name, leaving, held=on_shards.largest(name))
            begin = min(_next_ticket(pool, server, name) for server in staying)
            proofs.append(
                f"{', '.join(map(str, going))} never issued a ticket of {name!r} above {high}; new tickets start at "
                f"{begin}"
            )
        numbering.close(going, staying)  # also the tables that an interrupted run closed
        return proofs

    return Plan({**steps, "": common}, run, following)


# -- the servers' state


def _states(pool: TicketPool, name: str) -> dict[TicketServer, FoundTable]:
    return {server: _inspect(server, name) for server in pool.servers}


def _inspect(server: TicketServer, name: str) -> FoundTable:
    return server.do(name, tombstones.inspect, name)


def _number(server: TicketServer, name: str, state: FoundTable) -> int:
    if state is None:
        raise TicketTableMissing(
            f"there is no ticket table {name!r} on {server}: first run sqla-tickets create"
            f" {shlex.quote(name)}"
        )
    if isinstance(state, Tombstone):
        advice = (
            "run the migration that closed it again, or name the pool that has the sequence now"
        )
        if state.end:
            advice = (
                "remove that server from the configuration, or run sqla-tickets create"
                f" {shlex.quote(name)}"
            )
        raise TicketTableError(
            f"the ticket table {name!r} on {server} {state.end or f'is closed ({state.kind})'}: {advice}"
        )
    return state.number or 0


def _next_ticket(pool: TicketPool, server: TicketServer, name: str) -> int:
    """The smallest ticket that the server can issue next."""
    return _number(server, name, _inspect(server, name)) + pool.stride


def _proof_above(
    pool: TicketPool, name: str, above: int, servers: Sequence[TicketServer] | None = None
) -> str:
    begins = {server: _next_ticket(pool, server, name) for server in servers or pool.servers}
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
    of_some = "" if len(begins) == len(pool.servers) else f" from {_names(begins)}"
    are = "the next is" if len(begins) == 1 else "the next are"
    return f"from now on, every ticket of {name!r}{of_some} is above {above}: {are} {following}"


def _proof_where_accepted(
    pool: TicketPool,
    name: str,
    proof: Callable[[Sequence[TicketServer]], str],
    with_shards: str,
) -> str:
    """The proof for the servers whose tickets the peers' marks do not refuse.

    Raises:
        PartlyDone: the marks refuse those of some servers.
    """
    refused = {status.server: status for status in _refused(pool, name)}
    accepted = [server for server in pool.servers if str(server) not in refused]
    if refused:
        reasons = (
            f"{server}: {_why_refused(status, with_shards)}" for server, status in refused.items()
        )
        raise PartlyDone(" ".join(reasons), proof(accepted) if accepted else "")
    return proof(accepted)


def _refused(pool: TicketPool, name: str) -> list[TableStatus]:
    """The servers with tickets that their peers' marks refuse."""
    statuses = ask_tables(pool, [name], ask_peers=True)
    return [status for status in statuses if status.state in ("set back", "quarantined")]


def _why_refused(status: TableStatus, with_shards: str) -> str:
    """Why the tickets of a server are refused, and what to do."""
    return f"{set_back(status)} {restoration(status, with_shards)}"
