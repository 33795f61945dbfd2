"""``NodeLeases``: the node numbers that a pool's servers lease, as users see them."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Final

from ..errors import NoTicketServer, TicketError
from . import lease_table, numbering
from .allocator import allocator_of
from .lease_table import Row

if TYPE_CHECKING:
    from ..pool import TicketPool

log = logging.getLogger(__name__)

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)


@dataclass(frozen=True)
class NodeLease:
    """One node number that was ever leased, as `NodeLeases.status` tells it.

    Attributes:
        node: the number.
        server: the server that leases it, without user and password.
        holder: host and process of its owner, or of its last one.
        is_live: whether it has an owner whose lease has not ended by the server's clock.
        expires: when the lease ends, or has ended, by the server's clock.
        horizon: the latest time that an id of this number may have.
    """

    node: int
    server: str
    holder: str
    is_live: bool
    expires: datetime
    horizon: datetime


class NodeLeases:
    """The node numbers that the servers of a pool lease to processes, for ids that sort by time.

    A process has its lease from its first id on: ``NodeLeases(pool, duration=...)`` before that chooses for how
    long. Without it a lease lasts 60 seconds.

    Args:
        pool: whose servers lease them.
        duration: how long a lease lasts, in seconds; at most a year. A process goes on for so long when every server is
            down, at most; and the number of a process that was killed is out of use, at least. None: as it
            was chosen before.

    Raises:
        TicketArgumentError: no number of seconds, or another one than was chosen before.
    """

    def __init__(self, pool: TicketPool, *, duration: float | None = None) -> None:
        self._pool, self._allocator = pool, allocator_of(pool, duration)

    @property
    def duration(self) -> float:
        """The seconds that a lease lasts."""
        return self._allocator.seconds

    def create_table(self) -> None:
        """Create the table of node numbers on every server, and divide the numbers between them; idempotent.

        When the pool has grown, run it with the new list of servers.

        Raises:
            TicketTableError: a table has another server's numbers.
            TicketError: a server failed. Call it again when that is repaired.
        """
        for server in self._pool.servers:
            server.do(lease_table.NAME, lease_table.create)
        numbering.divide(self._pool.servers, self._pool.stride)

    def status(self) -> list[NodeLease]:
        """One record per node number that was ever leased; every server is asked now.

        Raises:
            NoTicketServer: none answers, or none has the table.
        """
        found: list[NodeLease] = []
        failures: dict[str, TicketError] = {}
        for server in self._pool.servers:
            try:
                rows = numbering.ask(server, lease_table.all_rows)
            except TicketError as error:
                failures[str(server)] = error
                log.warning("its node numbers are missing here: %s", error)
            else:
                found += [_as_lease(row, str(server)) for row in rows]
        if len(failures) == len(self._pool.servers):
            reasons = "; ".join(map(str, failures.values()))
            message = f"no ticket server of {self._pool.name!r} tells its node numbers: {reasons}"
            raise NoTicketServer(message, failures)
        return sorted(found, key=lambda lease: lease.node)

    def release(self) -> None:
        """Give the numbers of this process back, so that others need not wait for the end of its leases.

        ``pool.dispose()`` does the same. It skips a server that does not answer: its leases end by
        themselves.
        """
        self._allocator.release()


def _as_lease(row: Row, server: str) -> NodeLease:
    return NodeLease(
        node=row.node,
        server=server,
        holder=row.holder,
        is_live=row.owner != "" and row.expires >= row.now,
        expires=_time(row.expires),
        horizon=_time(row.horizon),
    )


def _time(microseconds: int) -> datetime:
    """A time since 1970; the latest that there is for what is beyond, as any client may have written it."""
    try:
        return _EPOCH + timedelta(microseconds=microseconds)
    except OverflowError:
        return datetime.max.replace(tzinfo=timezone.utc)
