"""What changes ticket servers: each as a plan in words, and the doing, which ends with a proof."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from sqla_tickets import (
    TicketArgumentError,
    TicketError,
    TicketPool,
    TicketServer,
    TicketTableError,
    growth,
    moves,
    tombstones,
)
from sqla_tickets.note import LayoutName, Tombstone
from sqla_tickets.tombstones import Live, State

from .shards import Shard, TicketColumn

__all__ = ["Plan", "create", "grow", "move", "raise_", "restore", "retire", "widen"]


@dataclass(frozen=True)
class Plan:
    """What is going to be done.

    Attributes:
        words: one line for each step.
        run: does it, and returns what holds from now on, as read from the servers. It can be called
            again after an error: what was done is kept.
    """

    words: Sequence[str]
    run: Callable[[], str]


def raise_(pool: TicketPool, name: str, above: int) -> Plan:
    """See that every server's next ticket is above a number."""
    words: list[str] = []
    for server, state in _survey(pool, name).items():
        number = _number(server, name, state)
        stays = number > above
        doing = "stays" if stays else f"is raised above {above}"
        words.append(f"{name!r} on {server} stands at {number}: it {doing}")

    def run() -> str:
        pool.raise_above(name, above)
        return _proof_above(pool, name, above)

    return Plan(words, run)


def create(
    pool: TicketPool, name: str, *, layout: LayoutName | None, start: int, bits: int
) -> Plan:
    """Create the tables that are missing, and verify the others."""
    words: list[str] = []
    for server, state in moves.survey(pool, name).items():
        if isinstance(state, TicketError):
            raise state
        if state is None:
            words.append(f"create {name!r} on {server}, {bits} bits, with tickets from {start} on")
        elif isinstance(state, Tombstone):
            words.append(f"{name!r} on {server} is {state.kind}, at {state.high_water}: above that")
        else:
            words.append(f"{name!r} on {server} is there, at {state.number}: it is verified")

    def run() -> str:
        pool.create_table(name, layout=layout, start=start, bits=bits)
        return _proof_above(pool, name, start - 1)

    return Plan(words, run)


def move(source: TicketPool, name: str, target: TicketPool) -> Plan:
    """Move a sequence to the servers of another pool."""
    here = ", ".join(map(str, source.servers))
    there = ", ".join(map(str, target.servers))
    words = [
        f"close {name!r} on {there}, where nobody draws yet",
        f"close {name!r} on {here}: a tombstone leads to the pool {target.name!r}",
        f"open {name!r} on {there}, above the highest ticket of all of them",
    ]

    def run() -> str:
        moves.move(source, name, target)
        graves = [_look(server, name) for server in source.servers]
        high = max(grave.high_water for grave in graves if isinstance(grave, Tombstone))
        begin = min(_next(target, server, name) for server in target.servers)
        if begin <= high:
            raise TicketTableError(f"{name!r}: {begin} is next in {target.name!r}, below {high}")
        return (
            f"no number above {high} was ever issued by {here}; new tickets of {name!r} start at"
            f" {begin}"
        )

    return Plan(words, run)


# -- a server that came back from a backup


def restore(
    pool: TicketPool,
    name: str,
    shards: Sequence[Shard],
    columns: Sequence[TicketColumn],
    *,
    offset: int | None,
    margin: int,
) -> Plan:
    """Raise servers above whatever may have been issued, as far as anybody knows of it.

    Raises:
        TicketArgumentError: nobody knows, as those who could tell do not answer.
    """
    servers = [s for s in pool.servers if offset in (None, s.offset)]
    if not servers:
        raise TicketArgumentError(f"{pool.name!r} has no server of the offset {offset}")
    states = moves.survey(pool, name)
    kept = {server: pool.marks.kept_by(server, name) for server in pool.servers}
    known = [told for server, state in states.items() for told in _told_by(server, state, kept)]
    ids = [told for column in columns for told in _told_by_shards(shards, column)]
    known += ids
    if not known:
        raise TicketArgumentError(
            f"nothing is known of {name!r}: name the application's databases with --shard"
        )
    silent = [s for s, state in states.items() if isinstance(state, TicketError) or kept[s] is None]
    if silent and not ids and not any(_mark_of(server, kept) for server in servers):
        raise TicketArgumentError(
            f"who could tell what {_listed(servers)} had issued of {name!r} cannot be asked:"
            f" {_listed(silent)}. Mend that first, or name all of the application's databases with"
            " --shard"
        )
    highest, origin = max(known)
    words = [f"{text}: {number}" for number, text in known]
    words += [f"NOT KNOWN: what {server} could tell, which cannot be asked" for server in silent]
    if shards and not columns:
        words.append(
            f"NOT KNOWN: which ids of {name!r} are on the shards; name the column with --column"
            f" TABLE.COLUMN={name}"
        )
    words.append(f"the highest is {highest}, {origin}; {margin} more for what nobody has told")
    words += [f"raise {name!r} on {server} above {highest + margin}" for server in servers]

    def run() -> str:
        above = highest + margin
        for server in servers:
            server.do(
                name, lambda cursor, place: tombstones.raise_above(cursor, place, name, above)
            )
        return _proof_above(pool, name, above, servers)

    return Plan(words, run)


#: By server, the marks of its peers that it keeps; None of one that cannot be asked.
Kept = Mapping[TicketServer, "Mapping[int, int] | None"]


def _told_by(
    server: TicketServer, state: State | TicketError, kept: Kept
) -> Iterator[tuple[int, str]]:
    """What a server shows, and what its peers have written down of it."""
    if isinstance(state, Live) and state.number is not None:
        yield state.number, f"the number on {server}"
    mark = _mark_of(server, kept)
    if mark:
        yield mark, f"what its peers have of {server}"


def _mark_of(server: TicketServer, kept: Kept) -> int:
    return max((marks.get(server.offset or 0, 0) for marks in kept.values() if marks), default=0)


def _told_by_shards(shards: Sequence[Shard], column: TicketColumn) -> Iterator[tuple[int, str]]:
    for shard in shards:
        largest = shard.largest(column)
        if largest is not None:
            yield largest, f"the largest {column} on {shard}"


def _listed(servers: Iterable[TicketServer]) -> str:
    return ", ".join(map(str, servers))


# -- more servers, and fewer


def grow(pool: TicketPool, names: Sequence[str], new: TicketPool, gap: int) -> Plan:
    """Let servers join."""
    joining = new.servers[len(pool.servers) :]
    widens = new.stride != pool.stride
    words = [f"open {name!r} on {server}" for name in names for server in joining]
    if widens:
        words += [
            (
                f"they begin {gap} above the others, which keep their stride of {pool.stride} until all"
                f" clients have the new configuration: {_configuration(new)}"
            ),
            "then: sqla-tickets grow --finish",
        ]
    else:
        words.append(f"then give the clients the new configuration: {_configuration(new)}")

    def run() -> str:
        proofs: list[str] = []
        for name in names:
            above = growth.open_beside(pool, new, name, gap=gap)
            begin = min(_next(new, server, name) for server in joining)
            proofs.append(
                f"no server that joins issues a ticket of {name!r} that is {above} or below; theirs"
                f" start at {begin}"
            )
        return "; ".join(proofs)

    return Plan(words, run)


def _configuration(pool: TicketPool) -> str:
    return f"{len(pool.servers)} servers in this order, stride {pool.stride}"


def widen(new: TicketPool, names: Sequence[str], quiet: float) -> Plan:
    """End a growth: the old servers get the new stride."""
    narrow = {name: growth.narrow(new, name) for name in names}
    words = [
        f"see for {quiet:g} s that nobody draws {name!r} from {server}, which has the old stride, at"
        f" {number}"
        for name, servers in narrow.items()
        for server, number in servers.items()
    ]
    words += [
        f"give {name!r} on {server} the stride {new.stride}"
        for name, servers in narrow.items()
        for server in servers
    ]

    def run() -> str:
        _check_quiet(new, narrow, quiet)
        proofs: list[str] = []
        for name in names:
            _check_distance(new, name, narrow[name])
            ended = growth.widen(new, name)
            if ended:
                proofs.append(
                    f"with the old stride no ticket of {name!r} above {max(ended)} was issued; all"
                    f" {len(new.servers)} servers have the stride {new.stride}"
                )
        return "; ".join(proofs) or f"every server has the stride {new.stride} already"

    return Plan(words or ["nothing is left to do, or a conversion to be ended"], run)


def _check_quiet(new: TicketPool, before: dict[str, dict[TicketServer, int]], quiet: float) -> None:
    if any(before.values()):
        time.sleep(quiet)
    for name, servers in before.items():
        for server, number in growth.narrow(new, name).items():
            if number != servers.get(server, number):
                raise TicketTableError(
                    f"somebody still draws {name!r} from {server} with the old configuration: it went"
                    f" from {servers[server]} to {number} in {quiet:g} s. Give every client the new"
                    " configuration first, and end those that have the old one"
                )


def _check_distance(new: TicketPool, name: str, narrow: dict[TicketServer, int]) -> None:
    """See that no old server has come so far as where those that joined began; by then it would be too late."""
    joined = [s for s in new.servers if s not in narrow]
    numbers = [n for s in joined if (n := _number(s, name, _look(s, name)))]
    began = new.marks.joined_above(name) or min(numbers, default=0)
    if narrow and (not numbers or max(narrow.values()) >= began):
        raise TicketTableError(
            f"{name!r}: the servers of the old stride stand at {max(narrow.values())}, and those that"
            f" joined began at {began}: the gap is used up. Stop all clients, raise {name!r}"
            " above all of them, and audit the shards before they are let in again"
        )


def retire(pool: TicketPool, names: Sequence[str], leaving: int) -> Plan:
    """Let the last servers go."""
    if not 1 <= leaving < len(pool.servers):
        raise TicketArgumentError(
            f"{leaving} of the {len(pool.servers)} servers of {pool.name!r} cannot retire"
        )
    going, staying = pool.servers[-leaving:], pool.servers[:-leaving]
    words = [f"close {name!r} on {server}" for name in names for server in going]
    words += [f"raise {name!r} on {server} above them" for name in names for server in staying]
    words.append(
        f"the stride stays {pool.stride}: configure {len(staying)} servers with stride={pool.stride},"
        " before or after this"
    )

    def run() -> str:
        proofs: list[str] = []
        for name in names:
            high = growth.retire(pool, name, leaving)
            begin = min(_next(pool, server, name) for server in staying)
            proofs.append(
                f"no number above {high} was ever issued of {name!r} by"
                f" {', '.join(map(str, going))}; new tickets start at {begin}"
            )
        return "; ".join(proofs)

    return Plan(words, run)


# -- what the servers show


def _survey(pool: TicketPool, name: str) -> dict[TicketServer, State]:
    return {server: _look(server, name) for server in pool.servers}


def _look(server: TicketServer, name: str) -> State:
    return server.do(name, lambda cursor, place: tombstones.look(cursor, place, name))


def _number(server: TicketServer, name: str, state: State) -> int:
    if not isinstance(state, Live):
        raise TicketTableError(
            f"there is no ticket table {name!r} on {server} that can be drawn from: found {state}"
        )
    return state.number or 0


def _next(pool: TicketPool, server: TicketServer, name: str) -> int:
    """No ticket from now on is below."""
    return _number(server, name, _look(server, name)) + pool.stride


def _proof_above(
    pool: TicketPool, name: str, above: int, servers: Sequence[TicketServer] | None = None
) -> str:
    begins = {server: _next(pool, server, name) for server in servers or pool.servers}
    for server, begin in begins.items():
        if begin <= above:
            raise TicketTableError(
                f"{name!r} on {server} was to be above {above}, and its next ticket is {begin}: does"
                " somebody set it back?"
            )
    told = ", ".join(f"{begin} on {server}" for server, begin in begins.items())
    return f"no ticket of {name!r} from now on is {above} or below: the next are {told}"


DEFAULT_MARGIN: Final = moves.MARGIN
