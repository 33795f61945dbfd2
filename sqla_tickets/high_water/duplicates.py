"""Finds addresses of a pool that lead to one server or cluster: one failure sets back both, with their marks."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from ..connect.identity import Identity
from ..draw.access import ServerAccess

log = logging.getLogger("sqla_tickets.high_water.service")


class DuplicateServers:
    """Compares the servers of a pool by the identities that their connections show; addresses may differ.

    Args:
        servers: the pool's servers.
    """

    def __init__(self, servers: Sequence[ServerAccess]) -> None:
        self._servers, self._is_reported = servers, False

    def report(self, server: ServerAccess) -> None:
        """Log once that a server is a duplicate of another one of the pool.

        Of two members of one cluster, only the one with the smaller offset issues tickets from now on.
        """
        if server.identity is None:
            return
        for other in self._servers:
            if other is server:
                continue
            if server.identity.shares_cluster(other.identity):
                self._log_once(
                    logging.ERROR,
                    f"{server} and {other} are members of one cluster, and count as one ticket server: the one with the "
                    "larger offset issues no tickets",
                )
                if other.offset > server.offset:
                    other.verify_again()
            elif server.is_also(other):
                self._log_once(
                    logging.WARNING,
                    f"{server} and {other} are one server: when it fails, both offsets fail. Replace one of"
                    " them with a server on another machine",
                )

    def _log_once(self, level: int, message: str) -> None:
        if not self._is_reported:
            self._is_reported = True
            log.log(level, "%s", message)

    def same_server(self, server: ServerAccess, identity: Identity | None) -> ServerAccess | None:
        """The other server of the pool that a connection of this one really reaches, if any."""
        others = (other for other in self._servers if other is not server)
        return next((other for other in others if server.is_also(other, identity)), None)

    def first_of_cluster(
        self, server: ServerAccess, identity: Identity | None
    ) -> ServerAccess | None:
        """The pool's server with a smaller offset in this server's cluster, if any."""
        if identity is not None and identity.cluster is not None:
            for other in self._servers:
                if other.offset < server.offset and identity.shares_cluster(other.identity):
                    return other
        return None
