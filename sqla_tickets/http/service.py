"""The service behind the routes: a pool that draws, and the sequences that it serves."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import replace

import anyio
from sqlalchemy import MetaData

from ..concurrency import run_in_greenlet
from ..errors import TicketError
from ..maintenance.status import TableStatus, known_tables
from ..orm.sequence import TicketSequence
from ..pool import TicketPool
from ..status.text import is_drawn_from
from . import problems
from .monitor import Monitor
from .settings import Settings


class Service:
    """Tickets of one pool for HTTP requests.

    Args:
        pools: the pools by name; one draws, and its sequences may move to the others.
        monitor: the monitor of the same servers.
        settings: the service's settings.
    """

    def __init__(
        self, pools: Mapping[str, TicketPool], monitor: Monitor, settings: Settings
    ) -> None:
        self.pool, self.monitor, self._settings = settings.pool_of(pools), monitor, settings
        self._metadata = MetaData()  # by which a pool finds the others
        for each in pools.values():
            each.attach(self._metadata)
        self._sequences: dict[str, TicketSequence] = {}
        #: Whether buffered tickets need no greenlet, which a pool of async drivers insists on.
        self._needs_no_wait = not any(s.is_async for s in self.pool.servers)

    async def reserve(self, name: str, n: int) -> list[range]:
        """Tickets of a sequence.

        Raises:
            Problem: the sequence is unknown, or no tickets came in time.
        """
        sequence = self._sequences.get(name)
        try:
            if sequence and self._needs_no_wait and self.pool.buffered(name) >= n:
                if n == 1:
                    ticket = self.pool.next_id(sequence)  # quicker than a block of one
                    return [range(ticket, ticket + 1)]
                return self.pool.reserve(sequence, n)
            with anyio.fail_after(self._settings.deadline_seconds):
                sequence = sequence or await self._known(name)
                return await run_in_greenlet(functools.partial(self.pool.reserve, sequence, n))
        except TicketError as error:
            raise problems.after(error, name) from error
        except TimeoutError as error:
            raise problems.unavailable(
                f"No tickets of the sequence {name!r} arrived within {self._settings.deadline_seconds:g} s."
            ) from error

    async def _known(self, name: str) -> TicketSequence:
        """The sequence of that name. It finds a new table within `FRESH_SECONDS`, and creates none."""
        if name not in self.monitor.names:
            await self.monitor.refresh_names()
        if not self.monitor.names:
            await self.monitor.refresh()
            if any(not s.up for s in self.monitor.statuses):
                raise problems.unavailable("No ticket server answers, so no sequence is known yet.")
        if name not in self.monitor.names:
            raise problems.Problem(
                404,
                "unknown_sequence",
                f"This service has no sequence {name!r}.",
                "Check the name, or ask an operator to run sqla-tickets create NAME, or sqla-tickets serve "
                "--sequence NAME",
            )
        sequence = TicketSequence(name, block=self._settings.block)
        self._sequences[name] = sequence
        return sequence

    async def statuses(self) -> list[TableStatus]:
        """The status of every sequence on every server, as this worker draws from them."""
        await self.monitor.refresh()
        refused = self._refused()
        return [
            _as_refused(s, refused.get((s.sequence, s.server)) if s.state == "up" else None)
            for s in self.monitor.statuses
        ]

    def _refused(self) -> dict[tuple[str, str], TableStatus]:
        """The tables that this worker has drawn from and does not ask now, by sequence and server."""
        names = {
            (table.name, str(server))
            for server in self.pool.servers
            for table in server.known_tables()
            if table.quarantine or "open" in (server.breaker.state, table.breaker.state)
        }
        known = {(s.sequence, s.server): s for s in known_tables(self.pool)}
        return {name: known[name] for name in names & known.keys()}

    async def is_ready(self) -> bool:
        """Whether any sequence has tickets here, buffered ones, or a redirect."""
        return any(is_drawn_from(s) or s.state == "moved" for s in await self.statuses()) or any(
            map(self.pool.buffered, self._sequences)
        )


def _as_refused(found: TableStatus, own: TableStatus | None) -> TableStatus:
    """The status that the monitor found, with the reason why this worker does not ask the table, if there is one."""
    if own is None:
        return found
    mark = max(found.high_water_mark or 0, own.last_ticket or 0)
    return replace(found, state=own.state, error=own.error, high_water_mark=mark or None)
