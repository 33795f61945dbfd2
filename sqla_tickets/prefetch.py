"""Drawing for the hand: a block when there is nothing in hand, and the next one ahead of its need.

The next block is fetched beside the traffic as soon as half of a block is left, one fetch at a time for each
sequence. No thread waits for it: who finds the hand empty draws by himself, and the block that arrives late
is kept as well. Tasks of one event loop, of which hundreds may be there at once, share what is on its way.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING

from . import trail
from .aio import a_loop_runs_here
from .beside import beside
from .clock import elapsed
from .errors import TicketError, TicketsExhausted
from .hand import Block, Stream, divide

if TYPE_CHECKING:
    from .pool import TicketPool
    from .sequence import Bounds

__all__ = ["draw", "fetch"]

log = logging.getLogger(__name__)


def draw(pool: TicketPool, name: str, stream: Stream, needed: int, bounds: Bounds) -> list[Block]:
    """One draw of what is needed, or of a block when that is more, whose rest is put in hand.

    Args:
        pool: that serves the sequence.
        name: of the sequence.
        stream: what is in hand of it.
        needed: how many tickets; 0 when all are for the hand.
        bounds: of a block.

    Raises:
        TicketError: as ``pool.draw_here``.
    """
    began = elapsed()
    if needed >= bounds[1]:
        return _aged(pool, trail.draw(pool, name, needed), began)
    n = max(needed, stream.order(*bounds, pool.block_lasts))
    with stream.arrivals.expected(n - needed):
        try:
            drawn = trail.draw(pool, name, n)
        except TicketsExhausted:  # less than a block may still be left
            drawn = trail.draw(pool, name, needed or 1)
        stream.has_arrived(elapsed() - began)
        blocks, left = divide(_aged(pool, drawn, began), needed)
        stream.put(left)
    return blocks


def _aged(pool: TicketPool, drawn: Iterable[range], began: float) -> list[Block]:
    return [Block(tickets, began + pool.block_age) for tickets in drawn]


def fetch(pool: TicketPool, name: str, stream: Stream, bounds: Bounds) -> None:
    """Begin to fetch the next block when there is little left in hand.

    Not from SQLite: it does not survive a fork while a thread is inside of it.
    """
    if not stream.begin_fetch():
        return
    drawn_from, _ = pool.trails.get(name, (pool, name))
    in_a_task = any(server.engine.dialect.is_async for server in drawn_from.servers)
    work = partial(_fetch, pool, name, stream, bounds)
    title = f"sqla_tickets block of {name!r}"
    cannot = drawn_from.on_sqlite or (in_a_task and not a_loop_runs_here())
    if cannot or not beside(work, title, in_a_task=in_a_task):
        stream.end_fetch(failed=True)


def _fetch(pool: TicketPool, name: str, stream: Stream, bounds: Bounds) -> None:
    failed = True
    try:
        draw(pool, name, stream, 0, bounds)
        failed = False
    except TicketError as error:
        log.info("the next block of %r is not fetched ahead: %s", name, error)
    finally:
        stream.end_fetch(failed=failed)
