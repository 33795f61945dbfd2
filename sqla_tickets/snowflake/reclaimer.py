"""``Reclaimer``: frees the node numbers of processes that ended without giving them back."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from .. import concurrency as clock
from ..tables.context import StatementContext
from . import lease_table, numbering
from .lease_table import Row

if TYPE_CHECKING:
    from ..draw.server import TicketServer

log = logging.getLogger(__name__)


class Reclaimer:
    """Remembers which rows seem abandoned, and since when.

    Args:
        seconds: how long a lease lasts.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        #: By server and number: the version of the row, and when this process saw it first.
        self._seen: dict[tuple[TicketServer, int], tuple[int, float]] = {}

    def expects_some(self, server: TicketServer) -> bool:
        """Whether a number of the server may be free soon."""
        return any(seen_on is server for seen_on, _ in self._seen)

    def reclaim(self, server: TicketServer, limit: int) -> None:
        """Free the numbers whose rows this process has seen unchanged for a whole lease.

        By the server's clock their leases have ended, but that clock may have stepped.

        Raises:
            TicketError: the server failed.
        """
        seen = self._seen

        def work(context: StatementContext) -> list[Row]:
            rows = lease_table.abandoned(context, limit)
            now = clock.elapsed()
            for row in rows:
                fence, since = seen.setdefault((server, row.node), (row.fence, now))
                if fence != row.fence:
                    seen[server, row.node] = (row.fence, now)
                elif now - since > max(row.duration / 1_000_000, self._seconds):
                    if lease_table.free(context, row):
                        log.info("node %d on %s was abandoned by %s", row.node, server, row.holder)
                    seen.pop((server, row.node), None)
            return rows

        expired = {(server, row.node) for row in numbering.ask(server, work)}
        for key in [key for key in list(seen) if key[0] is server and key not in expired]:
            seen.pop(key, None)
