"""Redirects: the path of a moved sequence, from tombstone to tombstone, to its pool of today.

During a move the redirects form a circle: the source is closed, the target not open yet.
That lasts for a moment, and a draw waits until it is over.
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
    """One draw from wherever a sequence is now, and where that is: a pool, and the name there.

    Args:
        origin: the pool, and the name there, where it was.
        draw: draws from a pool's own servers.
        resolve: the pool that a tombstone of a pool's names; it raises where there is no such pool.

    Raises:
        TicketTableMoved: its pool is not attached where this one is, or its move does not end.
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
