"""What ``pool.status()`` tells: one record per sequence and server."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from .health import BreakerState
from .note import LayoutName

__all__ = ["NodeLease", "TicketStatus"]


@dataclass(frozen=True)
class TicketStatus:
    """One sequence on one ticket server.

    Attributes:
        sequence: its name.
        server: the server's name, without user and password.
        up: whether the server answered just now, about this table.
        last_ticket: the largest ticket that its table shows, whoever drew it; None when not up.
        layout: as found; None before that.
        stride: as noted beside the number; None for a foreign table.
        offset: as noted beside the number; None for a foreign table.
        capacity_left: how many tickets this server can still issue, below 2**63 or, in a table of 32
            bits, 2**32; None when not up.
        in_hand: how many tickets of the sequence this process holds, from whichever server.
        draws: how many draws of this process the table has answered.
        errors: how many it has failed.
        breaker: whether this process asks it at the moment.
        error: why it is not up, or not asked.
    """

    sequence: str
    server: str
    up: bool
    last_ticket: int | None
    layout: LayoutName | None
    stride: int | None
    offset: int | None
    capacity_left: int | None
    in_hand: int
    draws: int
    errors: int
    breaker: BreakerState
    error: str | None


@dataclass(frozen=True)
class NodeLease:
    """One node number that was ever leased, as ``pool.node_leases()`` tells it.

    Attributes:
        node: the number.
        server: that leases it, without user and password.
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
