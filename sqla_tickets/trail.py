"""Following a sequence that has moved, from tombstone to tombstone, to where it is drawn from now.

While a move is under way the trail leads in a circle: the source is closed, the target not open yet.
That lasts for moments, which a draw waits out.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Final

from .aio import pause
from .errors import TicketTableError, TicketTableMoved

if TYPE_CHECKING:
    from .pool import TicketPool

__all__ = ["draw"]

log = logging.getLogger(__name__)

#: How many seconds a draw waits for a move to end.
PATIENCE: Final = 5.0
#: How many it waits before it looks again, at first and later.
_SOON: Final = 0.005
_LATER: Final = 0.05


def draw(pool: TicketPool, name: str, n: int) -> list[range]:
    """One draw from wherever the sequence is.

    Raises:
        TicketTableMoved: its pool is not attached where this one is, or its move does not end.
        TicketError: as ``pool.draw_here``.
    """
    known = pool.trails.get(name)
    if known is None:
        try:
            return pool.draw_here(name, n)
        except TicketTableMoved as moved:
            log.info("following the sequence %r: %s", name, moved)
    elif known[0].serves_beside(pool):
        try:
            return known[0].draw_here(known[1], n)
        except TicketTableError:  # it has moved on
            pass
    pool.trails.pop(name, None)
    return _follow(pool, name, n)


def _follow(pool: TicketPool, name: str, n: int) -> list[range]:
    end, wait = time.monotonic() + PATIENCE, _SOON
    while True:
        here, there = pool, name
        seen: set[tuple[TicketPool, str]] = set()
        while True:
            seen.add((here, there))
            try:
                drawn = here.draw_here(there, n)
            except TicketTableMoved as moved:
                here, there = here.neighbour(moved), moved.sequence
                if (here, there) not in seen:
                    continue
                if time.monotonic() > end:
                    raise
                break
            if here is not pool or there != name:
                pool.trails[name] = here, there
            return drawn
        pause(wait)
        wait = min(2 * wait, _LATER)
