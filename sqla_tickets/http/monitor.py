"""The servers' status, read in the background at limited intervals, for the page, readiness and names."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine, Sequence
from typing import Final

from ..concurrency import elapsed, run_in_greenlet
from ..maintenance import operations
from ..maintenance.status import TableStatus
from ..pool import TicketPool
from ..status.measure import measure, with_rates

#: How old an answer may be, and how long a request waits for a newer one when there is an old one.
FRESH_SECONDS: Final = 2.0
PATIENCE_SECONDS: Final = 0.5


class Monitor:
    """The statuses of the sequences, and their names.

    Args:
        pool: a separate pool that draws nothing, as reading a status counts tables as verified.
        sequences: the sequences to serve; empty for all whose tables have metadata.

    Attributes:
        statuses: the latest ones.
        names: the names of the sequences that are served.
    """

    def __init__(self, pool: TicketPool, sequences: Sequence[str]) -> None:
        self._pool, self._sequences = pool, frozenset(sequences)
        self._measuring, self._listing = _Question(self._measure), _Question(self._list)
        self.statuses: list[TableStatus] = []
        self.names: frozenset[str] = self._sequences

    async def refresh(self) -> None:
        """Ask the servers how they are, unless that has just been done."""
        await self._measuring.ask()

    async def refresh_names(self) -> None:
        """Ask the servers for the names, unless that has just been done or the names were given."""
        if not self._sequences:
            await self._listing.ask()

    async def _measure(self, since: float | None) -> None:
        is_given = bool(self._sequences)
        work = functools.partial(measure, [self._pool], self._sequences, with_found=not is_given)
        found = await run_in_greenlet(work)
        self.statuses = (
            found if since is None else with_rates(found, self.statuses, elapsed() - since)
        )

    async def _list(self, since: float | None) -> None:
        # also earlier ones: a draw follows a sequence that was moved or renamed
        work = functools.partial(operations.names, self._pool, with_renamed=True)
        self.names |= await run_in_greenlet(
            work
        )  # a server that is down names none of its sequences

    async def close(self) -> None:
        """End running requests. The pool stays open."""
        for question in (self._measuring, self._listing):
            await question.close()


class _Question:
    """A question to the servers; one caller asks for all, and an answer is good for a while.

    Args:
        work: asks, and keeps the answer; called with the time of the earlier answer, if there is one.
    """

    def __init__(self, work: Callable[[float | None], Coroutine[None, None, None]]) -> None:
        self._work = work
        self._answered_at: float | None = None
        self._asking: asyncio.Task[None] | None = None

    async def ask(self) -> None:
        """Ask, unless that has just been done.

        If there is an earlier answer, it waits only briefly for a new one, as a server may be frozen.
        """
        if self._answered_at is not None and elapsed() - self._answered_at < FRESH_SECONDS:
            return
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._ask())
        patience = None if self._answered_at is None else PATIENCE_SECONDS
        await asyncio.wait([self._asking], timeout=patience)

    async def _ask(self) -> None:
        await self._work(self._answered_at)
        self._answered_at = elapsed()

    async def close(self) -> None:
        """End asking."""
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.wait([self._asking])
