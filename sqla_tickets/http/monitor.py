"""The servers' status, read in the background at limited intervals, for the page, readiness and names."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
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
        self._asked_at: float | None = None
        self._asking: asyncio.Task[None] | None = None
        self.statuses: list[TableStatus] = []
        self.names: frozenset[str] = self._sequences

    async def refresh(self) -> None:
        """Ask the servers, unless that has just been done; one caller asks for all.

        If there is an earlier answer, it waits only briefly for a new one, as a server may be frozen.
        """
        if self._asked_at is not None and elapsed() - self._asked_at < FRESH_SECONDS:
            return
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._ask())
        patience = None if self._asked_at is None else PATIENCE_SECONDS
        await asyncio.wait([self._asking], timeout=patience)

    async def _ask(self) -> None:
        found = await run_in_greenlet(self._measure)
        now = elapsed()
        if self._asked_at is not None:
            found = with_rates(found, self.statuses, now - self._asked_at)
        self.statuses, self._asked_at = found, now

    def _measure(self) -> list[TableStatus]:
        pool = self._pool
        # also earlier ones: a draw follows a sequence that was moved or renamed
        names = self._sequences or operations.names(pool, with_renamed=True)
        found = measure([pool], self._sequences)
        # a server that is down names none of its sequences
        self.names = frozenset(names) if self._sequences else self.names | names
        return [s for s in found if not s.sequence or s.sequence in self.names]

    async def close(self) -> None:
        """End running requests. The pool stays open."""
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.wait([self._asking])
