"""Redirects: the path of a moved sequence, from tombstone to tombstone, to its present pool.

During a move the redirects form a circle for a moment: the source is closed, and the target is not open yet. A draw
waits until that is over.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TypeVar

from ..concurrency import pause, time
from ..errors import TicketTableMoved
from .timing import TIMING

P = TypeVar("P", bound=Hashable)


def follow(
    origin: tuple[P, str],
    draw: Callable[[P, str], list[range]],
    resolve: Callable[[P, TicketTableMoved], P],
) -> tuple[list[range], tuple[P, str]]:
    """Draw a sequence from its present pool; returns the blocks, that pool, and the name there.

    Args:
        origin: the pool that the caller names, and the sequence's name there.
        draw: draws from a pool's own servers.
        resolve: finds the pool that a tombstone names; raises if there is none.

    Raises:
        TicketTableMoved: its pool is not attached to the same MetaData, or its move does not end.
        TicketError: as ``draw`` raises it.
    """
    end, wait = time.monotonic() + TIMING.move_seconds, TIMING.redirect_pause_seconds
    while True:
        at = origin
        seen = set[tuple[P, str]]()
        while at not in seen:
            seen.add(at)
            try:
                return draw(*at), at
            except TicketTableMoved as moved:
                at = resolve(at[0], moved), moved.sequence
                if at in seen and time.monotonic() > end:
                    raise
        pause(wait)
        wait = min(2 * wait, TIMING.longest_redirect_pause_seconds)
