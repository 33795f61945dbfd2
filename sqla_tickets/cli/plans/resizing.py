# What is protected is hidden from users, not from this package.
# pyright: reportPrivateUsage=false
"""The plans that add servers to a pool, and retire them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from ... import (
    TicketArgumentError,
    TicketPool,
    TicketServer,
    TicketServerError,
    TicketTableError,
)
from ...concurrency import time
from ...maintenance import operations, resize, tombstones
from ...maintenance.handle import handles
from ...maintenance.tombstones import Destination
from ...snowflake import numbering
from ...snowflake.leases import NodeLeases
from ...status.text import EVERY_SHARD, option_of
from ...tables.inspection import ActiveTable
from ...tables.metadata import Tombstone
from ...tables.new_table import stub_of
from ..shards import ShardIds
from .creating import lost_in_growth, moved_to, redirecting
from .plan import Plan
from .proofs import (
    inspect_table,
    inspect_tables,
    next_ticket,
    number_of,
    proof_above,
    server_names,
)

#: How soon `grow --finish` first checks whether clients still draw with the old stride; then after twice that.
FIRST_POLL_SECONDS: Final = 0.25


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
    common += [redirecting(name, "the new servers", to) for name, to in gone.items()]

    def run() -> list[str]:
        proofs: list[str] = []
        for name, to in gone.items():
            operations.redirect(new, name, to)
        for name in names:
            above = resize.begin(pool, new, name, gap=gap, held=on_shards.largest(name))
            begin = min(next_ticket(new, server, name) for server in joining)
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
        to = None if is_here else moved_to(pool, name, states, ())
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
        operations.check_all_servers(new, name)
    found = {name: resize.unfinished(new, name) for name in names}
    for name in names:
        _check_distance(new, name, found[name])
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
    for server, state in inspect_tables(new, name).items():
        if isinstance(state, Tombstone) and state.kind == "converting":
            yield f"open {name!r} on {server}, which an interrupted run has closed"


def _is_finished(new: TicketPool) -> str:
    return f"every server already has the stride {new.stride}"


def _margin(pool: TicketPool) -> str:
    return f"a margin of {pool._marks.margin // pool.stride:,} tickets"


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
    states = {
        server: inspect_table(server, name) for server in new.servers if server not in unfinished
    }
    # an old server's, which an interrupted run closed
    closed = {
        server: state.high_water if state.stride != new.stride else 0
        for server, state in states.items()
        if isinstance(state, Tombstone) and state.kind == "converting"
    }
    lost = [server for server, state in states.items() if state is None]
    if lost and (unfinished or closed):  # `create` waits for the end of a growth
        raise lost_in_growth(name, lost[0])
    joined = [
        n for s, state in states.items() if s not in closed and (n := number_of(s, name, state))
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


def retire_absent(pool: TicketPool, names: Sequence[str], offset: int, on_shards: ShardIds) -> Plan:
    """Retire a server that is gone for good; the others continue above its tickets and every id on the shards.

    Sequences that it never had are left out.
    """
    for handle in (handle for name in names for handle in handles(pool, name)):
        try:
            _ = handle.inspect()  # a shorter list may give a server another's offset
        except TicketServerError:
            resize.check_left_out(pool, offset)
            raise
    steps = {
        name: [
            *_ids_on_shards(on_shards, name),
            *_without(pool, name, offset, marks.absent.get(offset)),
        ]
        for name, marks in resize.marks_of_absent(pool, names, offset).items()
    }

    def run() -> list[str]:
        proofs: list[str] = []
        for name in steps:
            above = resize.retire_absent(pool, name, offset, held=on_shards.largest(name))
            proofs.append(proof_above(pool, name, above, pool.servers))
        return proofs

    following = (
        f"configure {server_names(pool.servers)} with the same stride={pool.stride} in every client and in the migrations",
        "then run sqla-tickets doctor",
    )
    return Plan(steps, run, following)


def _without(pool: TicketPool, name: str, offset: int, mark: int | None) -> Iterator[str]:
    """The steps that retire an absent server; without a mark, an earlier run has done so."""
    if mark is None:
        yield f"{name!r} has retired on the server with the offset {offset}: record it where it is missing"
        return
    yield (
        f"retire {name!r} on the server with the offset {offset}, which has issued tickets up to {mark} and must "
        "never run again"
    )
    margin = f"{_margin(pool)} for those without a mark"
    yield from (f"raise {name!r} on {server} above that and {margin}" for server in pool.servers)


def retire(pool: TicketPool, names: Sequence[str], leaving: int, on_shards: ShardIds) -> Plan:
    """Retire the last servers; the others continue above their tickets and above every id on the shards."""
    if not 1 <= leaving < len(pool.servers):
        raise TicketArgumentError(
            f"{leaving} of the {len(pool.servers)} servers of {pool.name!r} cannot retire: expected 1 to"
            f" {len(pool.servers) - 1}"
        )
    for name in names:
        operations.check_all_servers(pool, name)
        for handle in handles(pool, name):
            # of a pool whose stride is not given, each table is numbered differently
            _ = handle.inspect()
    going, staying = pool.servers[-leaving:], pool.servers[:-leaving]
    steps = {
        name: [
            *_ids_on_shards(on_shards, name),
            *(f"retire {name!r} on {server}" for server in going),
            *(
                f"raise {name!r} on {server} above the retired tables and all marks, with {_margin(pool)}"
                for server in staying
            ),
        ]
        for name in names
    }
    has_nodes = numbering.is_divided(going)
    common = [f"retire the node numbers of {server}" for server in going if has_nodes]
    count = "1 server" if len(staying) == 1 else f"{len(staying)} servers"
    following = (
        f"configure {count} with the same stride={pool.stride} in every client and in the migrations",
        f"then switch off {server_names(going)}",
    )

    def run() -> list[str]:
        proofs: list[str] = []
        for name in names:
            above = resize.retire(pool, name, leaving, held=on_shards.largest(name))
            begin = min(next_ticket(pool, server, name) for server in staying)
            proofs.append(
                f"{', '.join(map(str, going))} never issued a ticket of {name!r} above {above}; new tickets start at "
                f"{begin}"
            )
        numbering.close(going, staying)  # also the tables that an interrupted run closed
        return proofs

    return Plan({**steps, "": common}, run, following)
