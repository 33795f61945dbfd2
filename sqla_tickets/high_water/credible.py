"""Which high-water marks can be true."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from ..draw.table_state import PeerServer
from .statements import GAP_NUMBERS, MARKS

#: So many tickets above all others a mark cannot be true: servers that joined stand so far above, and as much again
#: was issued since the backup.
FAR_TICKETS: Final = 2 * GAP_NUMBERS

#: The numbers that each server shows of a sequence: of its table, and of servers that joined; None where it cannot tell.
Shown = Mapping[PeerServer, list[int | None]]


def is_far(number: int, stride: int, known: int) -> bool:
    """Whether a mark is so high above what is known otherwise that it needs support to be believed."""
    return number > known + FAR_TICKETS * stride


def is_credible(
    number: int,
    stride: int,
    *,
    own: int,
    largest: int,
    peer: PeerServer,
    shown: Shown,
    others: Iterable[int],
) -> bool:
    """Whether a mark can be true.

    A true mark may stand far above its table: that is what a restored server looks like. So only a mark
    that nothing supports is not believed, and one that cannot be verified is. A table that has used its numbers
    up proves nothing: any client can raise it to its end.

    Args:
        number: the mark.
        stride: the pool's stride.
        own: how far the table that it is about is known to have come, by itself.
        largest: ticket that its table can hold.
        peer: the server that keeps the mark. While it cannot show its own table, nobody can verify it.
        shown: what the servers show.
        others: the marks of the sequence that other servers keep.
    """
    of_peer = shown.get(peer, [None])
    numbers = [*others, *(n for each in shown.values() for n in each if n is not None)]
    support = max((n for n in numbers if n + stride <= largest), default=0)
    if not is_far(number, stride, max(own, support)):
        return number <= largest
    return None in of_peer and number + stride <= largest


def refutation(peer: PeerServer, server: PeerServer, name: str, number: int) -> str:
    """The message about a mark that cannot be true.

    Args:
        peer: the server that keeps it.
        server: the server that the mark is about.
        name: the sequence's name.
        number: the mark.
    """
    return (
        f"{peer} says that {name!r} has come to {number} on {server}, which cannot be true: no other"
        f" table or mark is within {FAR_TICKETS} tickets of it. It is ignored. Delete it on {peer}: DELETE"
        f" FROM {MARKS} WHERE sequence = '{name}'. Then find out who wrote it, and what else that client"
        " could write"
    )
