"""Blocks of tickets: ascending ranges with the pool's stride, as a ticket server issues them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeAlias

__all__ = ["DrawBlocks", "count", "split"]

#: Draws up to a number of tickets of a sequence, at least one.
DrawBlocks: TypeAlias = "Callable[[str, int], list[range]]"


def count(blocks: Iterable[range]) -> int:
    """The number of tickets in some blocks."""
    return sum(map(len, blocks))


def split(blocks: Iterable[range], n: int) -> tuple[list[range], list[range]]:
    """The first ``n`` tickets of some blocks, and the rest."""
    first: list[range] = []
    rest: list[range] = []
    for tickets in blocks:
        if tickets[:n]:
            first.append(tickets[:n])
        if tickets[n:]:
            rest.append(tickets[n:])
        n = max(0, n - len(tickets))
    return first, rest
