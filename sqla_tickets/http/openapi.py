"""The OpenAPI document, as data. A test calls the service by it, so that the two stay consistent."""

from __future__ import annotations

from typing import Any, Final

from .. import __version__

_PROBLEM: Final = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}
_RETRY: Final = {
    "Retry-After": {"description": "Seconds to wait.", "schema": {"type": "integer", "minimum": 1}}
}


def _error(description: str, **more: object) -> dict[str, object]:
    return {"description": description, "content": _PROBLEM, **more}


def _text(description: str, content_type: str) -> dict[str, object]:
    content = {content_type: {"schema": {"type": "string"}}}
    return {"description": description, "content": content}


def _state(description: str) -> dict[str, object]:
    schema = {
        "type": "object",
        "required": ["status"],
        "properties": {"status": {"type": "string"}},
    }
    return {"description": description, "content": {"application/json": {"schema": schema}}}


_REFUSED: Final = {
    "401": _error(
        "No valid token.",
        headers={"WWW-Authenticate": {"schema": {"type": "string"}}},
    ),
    "403": _error(
        "The token does not permit this request. Without tokens: a web page sent it, or it names another host."
    ),
}

_SCHEMAS: Final = {
    "Tickets": {
        "type": "object",
        "required": ["sequence", "tickets"],
        "properties": {
            "sequence": {"type": "string"},
            "tickets": {
                "type": "array",
                "minItems": 1,
                "items": {"$ref": "#/components/schemas/Block"},
            },
        },
    },
    "Block": {
        "type": "object",
        "description": "The tickets first, first + step, ... first + (count - 1) * step.",
        "required": ["first", "step", "count"],
        "properties": {
            "first": {
                "description": "A string of decimal digits where the request says numbers=string.",
                "oneOf": [
                    {"type": "integer", "format": "int64", "minimum": 1},
                    {"type": "string", "pattern": "^[1-9][0-9]*$"},
                ],
            },
            "step": {"type": "integer", "minimum": 1},
            "count": {"type": "integer", "minimum": 1},
        },
    },
    "Problem": {
        "type": "object",
        "description": "Problem details of RFC 9457.",
        "required": ["type", "title", "status", "detail", "kind", "next_step"],
        "properties": {
            "type": {"type": "string"},
            "title": {"type": "string"},
            "status": {"type": "integer"},
            "detail": {"type": "string"},
            "kind": {"type": "string", "description": "The kind of problem, for programs."},
            "next_step": {"type": "string", "description": "What to do about it."},
        },
    },
}


def document(most: int) -> dict[str, Any]:
    """The OpenAPI document of the service.

    Args:
        most: how many tickets one request may ask for.
    """
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "sqla-tickets",
            "version": __version__,
            "summary": "Unique numbers from ticket servers.",
        },
        "paths": {
            "/v1/sequences/{name}/tickets": {"post": _tickets(most)},
            "/": _get(
                "status_page",
                "The status of every sequence and server, for people.",
                {"200": _text("The page.", "text/html"), **_REFUSED},
                is_secured=True,
            ),
            "/metrics": _get(
                "metrics",
                "Metrics of this worker, as OpenMetrics or in Prometheus' text format.",
                {
                    "200": {
                        "description": "The metrics, in the format that Accept asks for.",
                        "content": {
                            "text/plain": {"schema": {"type": "string"}},
                            "application/openmetrics-text": {"schema": {"type": "string"}},
                        },
                    },
                    **_REFUSED,
                    "501": _error("The package prometheus_client is not installed."),
                },
                is_secured=True,
            ),
            "/health": _get("health", "Whether the process answers.", {"200": _state("It does.")}),
            "/ready": _get(
                "ready",
                "Whether tickets are issued.",
                {"200": _state("They are."), "503": _error("No sequence has tickets.")},
            ),
            "/openapi.json": _get(
                "document",
                "This document.",
                {
                    "200": {
                        "description": "The document.",
                        "content": {"application/json": {"schema": {"type": "object"}}},
                    }
                },
            ),
        },
        "components": {
            "schemas": _SCHEMAS,
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer"},
                "password": {
                    "type": "http",
                    "scheme": "basic",
                    "description": "The token as the password, with any user name.",
                },
            },
        },
    }


def _get(
    operation: str, summary: str, responses: dict[str, Any], *, is_secured: bool = False
) -> dict[str, Any]:
    security: dict[str, Any] = (
        {"security": [{"token": []}, {"password": []}, {}]} if is_secured else {}
    )
    return {
        "get": {"operationId": operation, "summary": summary, "responses": responses, **security}
    }


def _tickets(most: int) -> dict[str, Any]:
    return {
        "operationId": "tickets",
        "summary": "Draw tickets.",
        "description": "Each request gets new tickets, even a repeated one: tickets whose response was lost are "
        "gaps.",
        "security": [{"token": []}, {}],
        "parameters": [
            {
                "name": "name",
                "in": "path",
                "required": True,
                "description": "The sequence.",
                "schema": {"type": "string", "minLength": 1},
            },
            {
                "name": "n",
                "in": "query",
                "description": "How many tickets.",
                "schema": {"type": "integer", "minimum": 1, "maximum": most, "default": 1},
            },
            {
                "name": "numbers",
                "in": "query",
                "description": "How `first` is written. Without it, tickets above 2**53 - 1 are refused.",
                "schema": {"type": "string", "enum": ["integer", "string"]},
            },
        ],
        "responses": {
            "200": {
                "description": "Exactly n tickets, as blocks.",
                "content": {
                    "application/json": {"schema": {"$ref": "#/components/schemas/Tickets"}}
                },
            },
            "400": _error(
                "A parameter is invalid, unknown or repeated, the request has a body, or a ticket is above 2**53 - 1."
            ),
            **_REFUSED,
            "404": _error("There is no such sequence. None is created."),
            "503": _error("No ticket server issues tickets now.", headers=_RETRY),
            "507": _error("The sequence has no number left."),
        },
    }
