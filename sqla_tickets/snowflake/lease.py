"""``Lease``: a node number that this process leases, and the lease's end."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from .. import concurrency as clock
from ..concurrency import WeakRegistry, random_bytes
from .timing import TIMING

if TYPE_CHECKING:
    from ..draw.server import TicketServer
    from .lease_table import Claim


class Lease:
    """A leased node number, as its owner knows it.

    Attributes:
        node: the number.
        bits: the node bits of the layouts that it is for.
        server: the server that leases it.
        token: the token by which the server knows the lease until it is renewed.
        next_token: the token after the next renewal; the server may already have it while a renewal runs, or if its
            answer was lost.
        next_horizon: the horizon that the same renewal asks for.
        since: ids have times after this one, in microseconds since 1970.
        horizon: no id has a time after this one, in microseconds since 1970.
        published_horizon: the horizon that the other servers have stored.
        deadline: when its owner stops, by `clock.elapsed`.
        renew_at: when it is renewed, by `clock.elapsed`.
        replace_at: when its owner takes another number, by `clock.elapsed`.
        ended: whether it is known to have ended.
        renewals: the renewals that are under way now, at most one.
    """

    def __init__(self, node: int, bits: int, server: TicketServer, token: str, since: int) -> None:
        self.node, self.bits, self.server, self.token, self.since = node, bits, server, token, since
        self.next_token, self.published_horizon = token, since
        self.horizon, self.deadline, self.renew_at, self.replace_at = since, 0.0, 0.0, 0.0
        self.next_horizon = since
        self.ended = False
        self.renewals = WeakRegistry[Callable[[], None]]()

    def __repr__(self) -> str:
        return f"<lease of node {self.node} on {self.server}>"

    def new_token(self, horizon: int) -> str:
        """The token of the next renewal, which asks for a horizon; the same until an answer comes."""
        # first: a thread that sees the token must see the horizon, too
        self.next_horizon = max(self.next_horizon, horizon)
        if self.next_token == self.token:
            self.next_token = random_bytes(16).hex()
        return self.next_token

    def granted(self, asked: float, seconds: float, claim: Claim) -> None:
        """Record a grant or a renewal that was requested at ``asked``."""
        self.horizon = max(self.horizon, claim.horizon)
        self.renew_at = asked + seconds * TIMING.renewed_part
        self.replace_at = asked + seconds * TIMING.replaced_part
        self.deadline = max(self.deadline, asked + seconds * TIMING.used_part)
        self.token = claim.token  # the last: until then the renewal is under way

    @property
    def is_live(self) -> bool:
        """Whether its owner may make ids."""
        return not self.ended and clock.elapsed() < self.deadline
