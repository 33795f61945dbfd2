"""What an operator can set."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field

from ..arguments import BlockBounds
from .tokens import Tokens


@dataclass(frozen=True)
class Settings:
    """The settings of the HTTP service.

    Attributes:
        sequences: the names of those that are served; empty for all whose tables have this package's metadata.
        pool: the name of the pool that draws, where there are several.
        block: the least and the most tickets that one draw takes; each worker buffers what no request asked for.
        most: how many tickets one request may ask for.
        deadline_seconds: how long one request waits for tickets.
        tokens: who may do what; without any, everybody may do everything.
        is_status_public: whether the status page and the metrics need no token.
        is_local: whether only programs of this machine may ask. Then the name in ``Host`` has to be its own, so that
            no page of another site reaches the service by a name that leads to 127.0.0.1. Tokens make it superfluous.
        workers: how many processes there are; with several, the metrics tell them apart.
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


def is_loopback(host: str) -> bool:
    """Whether a name or an address is that of this machine for itself."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
