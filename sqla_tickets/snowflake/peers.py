"""``PeerHorizons``: the other servers' records of a node number's horizon.

A server that is set back to an older state has forgotten the horizon; its peers have not.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from .. import concurrency as clock
from ..errors import TicketError
from ..tables.context import StatementContext
from . import lease_table, numbering
from .lease import Lease
from .lease_table import Claim, Told

if TYPE_CHECKING:
    from ..draw.server import TicketServer

log = logging.getLogger(__name__)


class PeerHorizons:
    """Writes a number's horizon to its server's peers, and reads it there.

    Args:
        servers: all servers of the pool.
    """

    def __init__(self, servers: Sequence[TicketServer]) -> None:
        self._servers = servers
        self._refuted: set[TicketServer] = set()

    def known(self, lease: Lease) -> int:
        """The latest horizon of the number on another server."""
        return self.ask(lease, lambda context: lease_table.known_horizon(context, lease.node)) or 0

    def ask(self, lease: Lease, question: Callable[[StatementContext], Told]) -> int | None:
        """Ask the peers; returns the latest credible horizon, or 0; None if there are peers, and none has answered."""
        known = 0 if len(self._servers) == 1 else None
        for peer in self._of(lease):
            with contextlib.suppress(TicketError):  # what it knows cannot be known now
                told = numbering.ask(peer, question)
                if self._is_credible(told):
                    known = max(known or 0, told.horizon)
                elif peer not in self._refuted:
                    self._refuted.add(peer)
                    self._report(peer, lease.node, told.horizon)
        return known

    def _is_credible(self, told: Told) -> bool:
        """Whether a horizon can be true by this machine's clock, or by the clock of the peer that has it."""
        return told.horizon <= max(told.now, clock.wall()) + lease_table.MOST_AHEAD

    def _report(self, peer: TicketServer, node: int, horizon: int) -> None:
        log.error(
            "%s records for node %d a horizon of %d (microseconds since 1970), which cannot be true: it is more than a "
            "year and two days from now. All such rows are ignored. Find the client that wrote them, and delete "
            "them on that server: DELETE FROM %s WHERE horizon > %d",
            peer,
            node,
            horizon,
            lease_table.NAME,
            clock.wall() + lease_table.MOST_AHEAD,
        )

    def publish(self, lease: Lease, claim: Claim) -> None:
        """Write the horizon of a renewal to the peers; skips a peer that does not answer."""
        for peer in self._of(lease):
            try:
                numbering.ask(peer, lease_table.record_horizon, lease.node, claim)
            except TicketError as error:
                log.info("%s has no record of the horizon of %r: %s", peer, lease, error)

    def take_back(self, lease: Lease, latest: int) -> bool:
        """Lower the horizon on every peer to ``latest``; returns whether all of them have done so.

        A peer without a record may still get one, as the network may delay the write.
        """
        peers = self._of(lease)
        for peer in peers:
            try:
                if not numbering.ask(
                    peer, lease_table.take_back, lease.node, lease.horizon, latest
                ):
                    return False
            except TicketError as error:
                log.info("%s has not lowered the horizon of %r: %s", peer, lease, error)
                return False
        return len(peers) == len(self._servers) - 1

    def _of(self, lease: Lease) -> list[TicketServer]:
        # a half-open circuit, too: without draws, nothing closes it
        return [s for s in self._servers if s is not lease.server and s.breaker.state != "open"]
