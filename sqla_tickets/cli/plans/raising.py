"""The plan that raises a sequence above a number, and above every id on the shards."""

from __future__ import annotations

import functools
from typing import Final

from ... import TicketPool, TicketTableError
from ...maintenance import operations
from ...tables.new_table import seed
from ..inspection import high_waters, inspect_pool
from ..shards import ShardIds
from .plan import NOT_FINISHED, PartlyDone, Plan
from .proofs import (
    inspect_tables,
    number_of,
    proof_above,
    proof_where_accepted,
    refused_tables,
    why_refused,
)

#: The number of attempts to raise a sequence above new ids on the shards.
MAX_RAISES: Final = 3


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
    lines += [f"{NOT_FINISHED}: {where} still assigns its own numbers" for where in counting]
    until_then = ", or higher if ids are inserted until then" if on_shards else ""
    for server, state in inspect_tables(pool, name).items():
        number = number_of(server, name, state)
        action = "stays" if number > highest else f"is raised above {highest}{until_then}"
        lines.append(f"{name!r} on {server} is at {number}: it {action}")
    operations.check_raise(pool, name, highest)
    lines += [
        f"NOT ENOUGH for {status.server}: {why_refused(status, on_shards.with_shards)}"
        for status in refused_tables(pool, name)
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
        proof = functools.partial(proof_above, pool, name, raised)
        with_shards = on_shards.with_shards
        if counting:
            raise PartlyDone(
                f"{', '.join(counting)} still assigns its own numbers, above the tickets. Remove AUTO_INCREMENT, "
                f"then run this again.",
                proof_where_accepted(pool, name, proof, with_shards),
            )
        if not on_shards.knows(name):
            return [proof_where_accepted(pool, name, proof, with_shards)]
        return [
            proof_where_accepted(
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
        f"{name!r}: ids that no ticket server issued keep appearing on the shards, such as {strays[0][0]} in "
        f"{strays[0][1]}. Stop their writer, remove AUTO_INCREMENT from the shards, and raise the "
        f"sequence again"
    )


def _strays(pool: TicketPool, name: str, above: int, on_shards: ShardIds) -> list[tuple[int, str]]:
    """The ids on the shards above a number that no server of the pool issued."""
    found = list(on_shards.above(name, above))
    # asked after reading the ids, as an id is inserted after its ticket is issued
    issued = high_waters(inspect_pool(pool, [name], with_found=False), name) if found else {}
    return [(i, w) for i, w in found if i > (issued.get(i % pool.stride or pool.stride) or above)]
