"""The settings of the HTTP service."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field

from ..arguments import BlockBounds
from ..errors import TicketArgumentError
from ..pool import TicketPool
from .tokens import Tokens


@dataclass(frozen=True)
class Settings:
    """The settings of the HTTP service.

    Attributes:
        sequences: the names of the sequences to serve; empty for all whose tables have this package's metadata.
        pool: the name of the pool that draws.
        block: the least and the most tickets of one draw; each worker buffers the rest.
        most: how many tickets one request may ask for.
        deadline_seconds: how long one request waits for tickets, and before that for the end of an empty body.
        tokens: the tokens and what they permit; without any, everyone may do everything.
        is_status_public: whether the status page and the metrics need no token.
        is_local: whether only programs on this machine may connect. Then ``Host`` must name this machine, so that no
            web page reaches the service by a name that leads to 127.0.0.1. With tokens this is not needed.
        workers: the number of processes; with several, metrics have a label for each.
    """

    sequences: tuple[str, ...] = ()
    pool: str = "default"
    block: BlockBounds = (1, 10_000)
    most: int = 10_000
    deadline_seconds: float = 10.0
    tokens: Tokens = field(default_factory=Tokens)
    is_status_public: bool = False
    is_local: bool = False
    workers: int = 1

    def pool_of(self, pools: Mapping[str, TicketPool]) -> TicketPool:
        """The pool that draws.

        Raises:
            TicketArgumentError: there is no pool of that name.
        """
        if self.pool in pools:
            return pools[self.pool]
        found = ", ".join(map(repr, sorted(pools))) or "no pool"
        raise TicketArgumentError(
            f"the service draws from the pool {self.pool!r}, and load_pools() returned {found}: give"
            f" Settings(pool=...) the name of a pool that it returns"
        )


def is_loopback(host: str) -> bool:
    """Whether a name or an address is a loopback one."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
