"""Health checks: probes that check in the background whether a failed server is back.

Only a probe waits for an unresponsive server, at most for the server's time-outs. It uses an idle connection if there
is one, as opening one costs both sides as much as dozens of draws. If that gives no answer, the probe opens a new
one. A connection may stay dead although the server is back, so a probe that has waited for a while does not block the
next one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial

from sqlalchemy.util import greenlet_spawn

from ..concurrency import in_background, time, within
from ..dialects import ErrorKind
from ..errors import TicketError, TicketServerError
from .access import ServerAccess
from .probes import Probe
from .timing import TIMING

log = logging.getLogger(__name__)


def probe(
    server: ServerAccess, stale: float = TIMING.stale_probe_seconds, *, timestamp: int = 0
) -> None:
    """Begin to probe the server, unless a probe is running; its breaker closes when it answers.

    Args:
        server: a server that has failed, or is unresponsive.
        stale: seconds after which the first probe no longer delays the next one.
        timestamp: of the background call that it is for, so that `dispose` closes its connection; 0 for none.
    """
    afresh = server.probes.are_under_way
    begun = server.probes.begin(stale, server.connections.connecting_since)
    if begun is None:
        return
    server.breaker.postpone()
    name = f"sqla_tickets probe of {server}"
    # never a task: an event loop may end with the draw that began the probe, and end the probe, too
    ask = partial(_ask, server, begun, afresh)
    if not in_background(ask, name, in_a_task=False, timestamp=timestamp):
        server.probes.ended(begun)
        server.breaker.timed_out = False  # no probe can run, so a forced trial must find out


def _ask(server: ServerAccess, begun: Probe, afresh: bool) -> None:
    probes, returns = server.probes, server.returns
    was_well = server.breaker.reason is None
    try:
        _say_hello(server, lambda: probes.counts(begun, server.alive_at), afresh=afresh)
        probes.answered(begun)
        if server.returns > returns:
            log.info("%s answers again", server)
        else:  # it was only slow, and no failure was logged
            log.debug("%s answers", server)
    except TicketError as error:
        reason = server.breaker.reason
        if reason is None:  # a later probe finds out
            log.debug("%s", error)
        elif was_well:
            log.warning("a ticket server has failed, and draws pass it over: %s", reason)
        else:
            log.info("the server is still down: %s", reason)
    finally:
        probes.ended(begun)


def _say_hello(server: ServerAccess, counts: Callable[[], bool], *, afresh: bool) -> None:
    """Check that the server answers; closes its breaker.

    Called in a thread that has no event loop.

    Args:
        server: the server to ask.
        counts: whether a failure counts; it does not if a later probe may still be answered.
        afresh: whether to open a new connection even if one is idle.

    Raises:
        TicketError: the server does not answer.
    """
    try:
        if server.is_async:
            asyncio.run(greenlet_spawn(_hello_in_a_loop, server))
        elif (
            afresh
            or server.is_duplicate
            or not server.connections.idle_one_answers(TIMING.ping_seconds)
        ):
            server.connections.keep_spare(server.recognised(server.connections.open()))
    except TicketError:
        raise
    except Exception as error:
        kind, is_last = server.context.dialect.error_kind(error), counts()
        if kind not in (
            ErrorKind.DISCONNECTED,
            ErrorKind.TIMEOUT,
        ):  # it refuses, so it is alive
            server.alive_at = time.monotonic()
        if not is_last:
            raise TicketServerError(f"a later probe of {server} is running") from error
        raise server.failed(None, kind, error) from error
    server.alive_at = time.monotonic()
    server.is_alive_again()


def _hello_in_a_loop(server: ServerAccess) -> None:
    """Open a connection that no other event loop can use, and close it."""
    probes = server.probes
    connections, probes.connections = probes.connections, None
    if connections is None:
        connections = server.new_connections()
    try:
        connection = within(server.timeouts.cancel_seconds, connections.open)
        try:
            server.recognise(connection)
        finally:
            connections.discard(connection)
    finally:
        probes.connections = connections
