# What is protected is hidden from users, not from this package.
# pyright: reportPrivateUsage=false
"""The plan that raises restored servers above every recorded ticket."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final

from ... import (
    TicketArgumentError,
    TicketError,
    TicketPool,
    TicketServer,
    TicketServerError,
    TicketTableError,
)
from ...dialects import ErrorKind
from ...draw.access import ServerAccess
from ...high_water.timing import TIMING
from ...maintenance import operations, tombstones
from ...maintenance.status import State
from ...maintenance.tombstones import FoundTable
from ...status.text import EVERY_SHARD, named
from ...tables.inspection import ActiveTable
from ...tables.metadata import Tombstone
from ..shards import NOT_KNOWN, ShardIds
from .plan import NOT_POSSIBLE, PartlyDone, Plan, impossible
from .proofs import proof_above, server_names

#: Each server's marks of its peers; None for a server that does not answer.
Kept = Mapping[TicketServer, "Mapping[int, int] | None"]
#: The advice to a user who may only read.
_OTHER_USER: Final = (
    "Give --server for every server (or SQLA_TICKETS_SERVERS) with the user of the migrations, or grant this user what"
    " the command 'sqla-tickets grants migrate' prints"
)


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
    try:
        operations.check_none_absent(pool, name)
    except TicketTableError as error:
        return impossible(name, error)
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
    if unread := [server for server in unanswered if server not in servers]:
        following.append(
            f"{server_names(unread)} did not show high-water marks, and may not have stored the new one: run this again"
            " when each server of the pool answers"
        )
    following += _after_restore(name, {_set_back(s, states[s], kept, pool.stride) for s in servers})
    return Plan(
        {name: lines},
        lambda: [_restore(pool, name, servers, above)],
        following,
        [f"run sqla-tickets create {named(name, pool.name)}, which begins above the peers' marks"]
        * bool(missing),
        is_possible=not all(line.startswith(NOT_POSSIBLE) for line in raising),
    )


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
    for _, _, text in pool._marks.of(name).verified().refuted:
        raise TicketTableError(text)
    # larger ids are of the servers that joined
    ids = [(n, text) for n, text in on_shards.largest_ids(name) if not joined or n <= joined]
    known = [n for server, state in states.items() for n in _known_tickets(server, state, kept)]
    if not known and not ids:
        for state in states.values():
            if isinstance(state, TicketTableError):  # as of a wrong stride, which hides all marks
                raise state
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
        reason, fix = f"{server_names(unanswered)} cannot be asked", "Repair that first, or name"
    elif len(pool.servers) == 1:
        reason, fix = "it has no peer", "Name"
    else:
        return
    raise TicketArgumentError(
        f"it is not known how far {server_names(servers)} issued {name!r}: {reason}. {fix}"
        f" {_missing_shards(on_shards)}"
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
                "servers: one of them has a backup from before a change. Repeat the sequence's last move, rename or "
                "migration, which changes the table on all servers"
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


def _restoring(name: str, server: TicketServer, state: FoundTable | TicketError, above: int) -> str:
    """The step on a server, or why it is impossible."""
    if state is None:
        return (
            f"{NOT_POSSIBLE}: {server} has no ticket table {name!r}: first run sqla-tickets create"
        )
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
        proof = proof_above(pool, name, above, raised)
    if failures:
        raise PartlyDone("; ".join(failures), proof)
    return proof


def _not_restored(server: TicketServer, error: TicketError) -> str:
    """Why a server cannot be raised, and what an operator can do."""
    if error.kind == ErrorKind.READ_ONLY.word:
        return (
            f"{server} takes no writes: make it writable under an address that no client has, and run this again with"
            " that address"
        )
    if error.kind == ErrorKind.ACCESS_DENIED.word and isinstance(error, TicketTableError):
        return f"{str(error).rpartition(': ')[0]}. {_OTHER_USER}"
    return str(error)


def _not_marked(peer: ServerAccess, raised: Sequence[TicketServer], kind: ErrorKind) -> str:
    """What is missing if a peer does not know how far servers were raised."""
    fix = f"Make {peer} writable, and run this again"
    if kind is ErrorKind.ACCESS_DENIED:
        fix = _OTHER_USER
    return (
        f"{peer} did not store the new high-water mark of {server_names(raised)} ({kind.value}), so it cannot show a later"
        f" set-back. {fix}"
    )


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
