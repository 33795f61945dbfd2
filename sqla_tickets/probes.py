"""Asking a server that failed whether it is back, beside the traffic and never in it.

A probe is the only one that waits for a server which keeps silent. It runs in a thread that ends by
itself after the server's time-outs, or in a task of the event loop where the driver is async.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from sqlalchemy.util import greenlet_spawn

from .errors import TicketError

if TYPE_CHECKING:
    from .server import TicketServer

__all__ = ["probe"]

log = logging.getLogger(__name__)
_tasks: set[asyncio.Task[None]] = set()


def probe(server: TicketServer) -> None:
    """Begin to ask the server, unless it is being asked; its breaker closes when it answers."""
    if not server.probing.acquire(blocking=False):
        return
    server.breaker.postpone()
    try:
        if server.engine.dialect.is_async:
            _in_a_task(greenlet_spawn(_ask, server))
        else:
            name = f"sqla_tickets probe of {server}"
            threading.Thread(target=_ask, args=(server,), name=name, daemon=True).start()
    except RuntimeError as error:  # no thread can be started now: at exit, or at a limit
        server.probing.release()
        log.warning("%s is not asked whether it is back: %s", server, error)


def _in_a_task(work: Coroutine[Any, Any, None]) -> None:
    task = asyncio.get_running_loop().create_task(work)
    _tasks.add(task)  # the loop holds only a weak reference
    task.add_done_callback(_tasks.discard)


def _ask(server: TicketServer) -> None:
    try:
        server.say_hello()
        log.info("%s answers again", server)
    except TicketError as error:
        log.info("still no ticket server: %s", error)
    finally:
        server.probing.release()
