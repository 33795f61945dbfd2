"""Asking a server that failed whether it is back, beside the traffic and never in it.

A probe is the only one that waits for a server which keeps silent; it ends by itself after the
server's time-outs.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from .beside import beside
from .errors import TicketError

if TYPE_CHECKING:
    from .server import TicketServer

__all__ = ["probe"]

log = logging.getLogger(__name__)


def probe(server: TicketServer) -> None:
    """Begin to ask the server, unless it is being asked; its breaker closes when it answers."""
    if not server.probing.acquire(blocking=False):
        return
    server.breaker.postpone()
    name = f"sqla_tickets probe of {server}"
    # never a task: an event loop may end with the draw that has begun the probe, and end the probe
    if not beside(lambda: _ask(server), name, in_a_task=False):
        server.probing.release()


def _ask(server: TicketServer) -> None:
    try:
        server.say_hello()
        log.info("%s answers again", server)
    except TicketError as error:
        log.info("still no ticket server: %s", error)
    finally:
        server.probing.release()
