"""Error responses: problem details of RFC 9457, each with the next step."""

from __future__ import annotations

import http
import json
import logging
from collections.abc import Mapping
from typing import Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from ..errors import TicketError, TicketsExhausted, TicketTableMissing

log = logging.getLogger(__name__)

#: When a client should try again after 503.
RETRY_AFTER_SECONDS: Final = 1
_NEXT_STEPS: Final = {
    404: "See the paths in /openapi.json.",
    405: "See the methods in /openapi.json.",
}


class Problem(HTTPException):
    """A response that says what is wrong and what to do next.

    Args:
        status: the HTTP status.
        kind: the kind of problem, for programs.
        detail: what is wrong with this request.
        next_step: what to do about it.
        headers: more headers.
    """

    def __init__(
        self,
        status: int,
        kind: str,
        detail: str,
        next_step: str,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(status, detail, headers)
        self.kind, self.next_step = kind, next_step


def after(error: TicketError, sequence: str) -> Problem:
    """The problem for an error of the pool. Clients are not told the servers' addresses: the log has them."""
    log.warning("no tickets of %r: %s", sequence, error)
    if isinstance(error, TicketTableMissing):
        return Problem(
            404,
            "unknown_sequence",
            f"No ticket server has a table for the sequence {sequence!r}.",
            f"Have an operator create it: sqla-tickets create {sequence}",
        )
    if isinstance(error, TicketsExhausted):
        return Problem(
            507,
            "exhausted",
            f"The sequence {sequence!r} has no number left.",
            "Have an operator give it wider numbers: sqla-tickets status shows what is left.",
        )
    return unavailable(
        f"No ticket server issues tickets of the sequence {sequence!r} now ({error.kind})."
    )


def unavailable(detail: str) -> Problem:
    """The problem that is over in a moment, or after an operator's work."""
    return Problem(
        503,
        "unavailable",
        detail,
        f"Send the request again in {RETRY_AFTER_SECONDS} s. If that lasts, the status page says what to do.",
        {"Retry-After": str(RETRY_AFTER_SECONDS)},
    )


async def respond(request: Request, error: Exception) -> Response:
    """The response for a problem, or for a path or method that there is not."""
    assert isinstance(error, HTTPException)
    title = http.HTTPStatus(error.status_code).phrase
    problem = {
        "type": "about:blank",
        "title": title,
        "status": error.status_code,
        "detail": error.detail,
        "kind": getattr(error, "kind", title.lower().replace(" ", "_")),
        "next_step": getattr(error, "next_step", _NEXT_STEPS.get(error.status_code, "")),
    }
    return Response(
        json.dumps(problem), error.status_code, error.headers, "application/problem+json"
    )


async def respond_to_a_defect(request: Request, error: Exception) -> Response:
    """The response for what nobody has foreseen; the server's log has the traceback."""
    return await respond(
        request,
        Problem(500, "internal", "The service failed.", "Have an operator read the service's log."),
    )
