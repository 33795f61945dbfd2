"""Error responses: problem details of RFC 9457, each with the next step."""

from __future__ import annotations

import http
import json
import logging
import shlex
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
    """The problem for an error of the pool. It hides the servers' addresses, which are in the log."""
    log.warning("no tickets of %r: %s", sequence, error)
    if isinstance(error, TicketTableMissing):
        return Problem(
            404,
            "unknown_sequence",
            f"No ticket server has a table for the sequence {sequence!r}.",
            f"Ask an operator to run sqla-tickets create {shlex.quote(sequence)}",
        )
    if isinstance(error, TicketsExhausted):
        return Problem(
            507,
            "exhausted",
            f"The sequence {sequence!r} has no number left.",
            "Ask an operator to widen its numbers; sqla-tickets status shows how many are left. If servers have joined"
            " its pool, the service needs the configuration with all of them.",
        )
    return unavailable(f"No ticket server issues tickets of the sequence {sequence!r} now.")


def unavailable(detail: str) -> Problem:
    """A temporary problem: it ends by itself, or after an operator's repair."""
    return Problem(
        503,
        "unavailable",
        detail,
        f"Send the request again in {RETRY_AFTER_SECONDS} s. If it keeps failing, see the status page.",
        {"Retry-After": str(RETRY_AFTER_SECONDS)},
    )


async def respond(request: Request, error: Exception) -> Response:
    """The response for a problem, or for an unknown path or method."""
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
    """The response for an unexpected error; the server's log has the traceback."""
    return await respond(
        request,
        Problem(
            500, "internal", "The service failed.", "Ask an operator to read the service's log."
        ),
    )
