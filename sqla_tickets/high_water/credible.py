"""Judges which high-water marks can be true."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from ..draw.table_state import PeerServer
from ..tables.new_table import largest_ticket
from .statements import GAP_NUMBERS, MARKS

#: No mark is larger, whatever its table can hold.
LARGEST: Final = largest_ticket(64)

#: A mark this many tickets above all others cannot be true: joined servers begin half as far above, and the other
#: half is for tickets issued since the backup.
FAR_TICKETS: Final = 2 * GAP_NUMBERS

#: The numbers that each server shows of a sequence: its table's, and those of servers that joined; None where
#: unknown.
Shown = Mapping[PeerServer, list[int | None]]


def is_far(number: int, stride: int, known: int) -> bool:
    """Whether a mark is so far above every other known number that it needs support to be believed."""
    return number > known + FAR_TICKETS * stride


def is_credible(
    number: int,
    stride: int,
    *,
    own: int,
    peer: PeerServer,
    shown: Shown,
    others: Iterable[int],
) -> bool:
    """Whether a mark can be true.

    A true mark may be far above its table, since the server may have been restored. So a mark is refused only if it
    can be verified and nothing supports it. A table that has used up its numbers proves nothing: any client can raise
    it to its end. How much the table itself can hold proves nothing, either: a backup may be older than a widening.

    Args:
        number: the mark.
        stride: the pool's stride.
        own: the largest number that its table is known to have reached, without marks.
        peer: the server that keeps the mark. While it cannot show its own table, nobody can verify it.
        shown: what the servers show.
        others: the marks of the sequence that other servers keep.
    """
    of_peer = shown.get(peer, [None])
    numbers = [*others, *(n for each in shown.values() for n in each if n is not None)]
    support = max((n for n in numbers if n + stride <= LARGEST), default=0)
    if not is_far(number, stride, max(own, support)):
        return number <= LARGEST
    return None in of_peer and number + stride <= LARGEST


def refutation(peer: PeerServer, server: PeerServer, name: str, number: int) -> str:
    """The message about a mark that cannot be true.

    Args:
        peer: the server that keeps it.
        server: the server that the mark is about.
        name: the sequence's name.
        number: the mark.
    """
    return (
        f"{peer} has a mark of {name!r} at {number} for {server}, which cannot be true: no other table or mark is "
        f"within {FAR_TICKETS} tickets of it. The mark is ignored. Delete it on {peer}: DELETE FROM {MARKS} "
        f"WHERE sequence = '{name}' AND mark = {number}. Then find the client that wrote it, and what else that client can write"
    )
