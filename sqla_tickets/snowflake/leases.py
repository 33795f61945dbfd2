"""``NodeLeases``: the node numbers that a pool's servers lease, as users see them."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Final

from ..errors import NoTicketServer, TicketError, reasons_of
from . import lease_table, numbering
from .allocator import allocator_of
from .lease_table import Row

if TYPE_CHECKING:
    from ..pool import TicketPool

log = logging.getLogger(__name__)

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)


@dataclass(frozen=True)
class NodeLease:
    """A node number that was ever leased, in the result of `NodeLeases.status`.

    Attributes:
        node: the number.
        server: the server that leases it, without user and password.
        holder: host and process of its present or last owner.
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

    A process takes its lease with its first id. To choose the duration, call ``NodeLeases(pool, duration=...)``
    before that; by default a lease lasts 60 seconds.

    Args:
        pool: the pool whose servers lease them.
        duration: how long a lease lasts, in seconds; at most a year. If all servers are down, a process goes on for
            at most that long. The number of a killed process is unused for at least that long. None keeps the
            duration chosen before.

    Raises:
        TicketArgumentError: the duration is invalid, or differs from the one chosen before.
    """

    def __init__(self, pool: TicketPool, *, duration: float | None = None) -> None:
        self._pool, self._allocator = pool, allocator_of(pool, duration)

    @property
    def duration(self) -> float:
        """How long a lease lasts, in seconds."""
        return self._allocator.seconds

    def create_table(self) -> None:
        """Create the table of node numbers on every server, and divide the numbers between them; idempotent.

        After the pool has grown, run it with the new list of servers.

        Raises:
            TicketTableError: a table has another server's numbers.
            TicketError: a server failed. Call it again when that is repaired.
        """
        for server in self._pool.servers:
            server.do(lease_table.NAME, lease_table.create)
        numbering.divide(self._pool.servers, self._pool.stride)

    def status(self) -> list[NodeLease]:
        """Ask every server; returns one record for each node number that was ever leased.

        Raises:
            NoTicketServer: no server answers, or no server has the table.
        """
        found: list[NodeLease] = []
        failures: dict[str, TicketError] = {}
        for server in self._pool.servers:
            try:
                rows = numbering.ask(server, lease_table.all_rows)
            except TicketError as error:
                failures[str(server)] = error
                log.warning("the node numbers of this server are missing: %s", error)
            else:
                found += [_as_lease(row, str(server)) for row in rows]
        if len(failures) == len(self._pool.servers):
            reasons = reasons_of(failures.values())
            message = f"no ticket server of {self._pool.name!r} shows its node numbers: {reasons}"
            raise NoTicketServer(message, failures)
        return sorted(found, key=lambda lease: lease.node)

    def release(self) -> None:
        """Give this process's numbers back, so that other processes need not wait for the end of its leases.

        ``pool.dispose()`` does the same. It skips a server that does not answer, whose leases end by themselves.
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
    """A time since 1970; an impossibly late one becomes the latest possible time."""
    try:
        return _EPOCH + timedelta(microseconds=microseconds)
    except OverflowError:
        return datetime.max.replace(tzinfo=timezone.utc)
