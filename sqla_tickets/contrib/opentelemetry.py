"""OpenTelemetry spans of draws (``pip install 'sqla-tickets[opentelemetry]'``).

::

    from sqla_tickets.contrib.opentelemetry import trace_draws

    trace_draws(tickets)  # or trace_draws(), for every pool

Each request to a ticket server has a span, in the trace that needs the tickets: a draw that fails over has two, and
so has a hedged draw. Buffered tickets have none. The attributes have the names of OpenTelemetry's "Semantic
conventions for database client spans"; the others begin with ``sqla_tickets.``.
"""

from __future__ import annotations

from collections.abc import Callable

from opentelemetry import trace
from opentelemetry.util.types import AttributeValue
from sqlalchemy import event

from ..concurrency import time
from ..dialects import dialect_of
from ..errors import TicketError
from ..events import Draw
from ..pool import TicketPool

__all__ = ["trace_draws"]


def trace_draws(
    target: TicketPool | type[TicketPool] = TicketPool,
    *,
    tracer_provider: trace.TracerProvider | None = None,
) -> Callable[[Draw], None]:
    """Record a span for every draw from now on.

    Args:
        target: a pool, or the class for all pools.
        tracer_provider: a tracer provider; by default OpenTelemetry's global one.

    Returns:
        The listener, for ``event.remove(target, "drawn", listener)``.
    """
    tracer = trace.get_tracer("sqla_tickets", tracer_provider=tracer_provider)

    def make_span(draw: Draw) -> None:
        end = time.time_ns()
        span = tracer.start_span(
            f"draw {draw.sequence}",
            kind=trace.SpanKind.CLIENT,
            attributes=_attributes(draw),
            start_time=end - int(draw.seconds * 1e9),
        )
        if draw.error is not None:
            _record(span, draw.error)
        span.end(end)

    event.listen(target, "drawn", make_span)
    return make_span


def _attributes(draw: Draw) -> dict[str, AttributeValue]:
    url = draw.server.engine.url
    found: dict[str, AttributeValue | None] = {
        "db.system.name": dialect_of(draw.server.engine.dialect).kind,
        "db.namespace": url.database,
        "db.collection.name": draw.sequence,
        "db.operation.name": "draw",
        "db.query.summary": f"draw {draw.sequence}",
        "server.address": url.host,
        "server.port": url.port,
        "sqla_tickets.pool": draw.pool,
        "sqla_tickets.sequence": draw.sequence,
        "sqla_tickets.offset": draw.server.offset,
        "sqla_tickets.wanted": draw.wanted,
        "sqla_tickets.drawn": draw.tickets,
        "sqla_tickets.hedge": draw.is_hedge,
    }
    return {name: value for name, value in found.items() if value is not None}


def _record(span: trace.Span, error: BaseException) -> None:
    name = type(error).__name__
    kind = error.kind if isinstance(error, TicketError) else name
    span.set_attribute("error.type", kind)
    # without the stack, which ends with the driver's own words: they may hold a password
    span.add_event("exception", {"exception.type": name, "exception.message": str(error)})
    span.set_status(trace.Status(trace.StatusCode.ERROR, str(error)))
