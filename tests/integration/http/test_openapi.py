"""The OpenAPI document says what the service does: requests that follow from it are answered as it says."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import Case, GenerationMode
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from sqlalchemy import URL
from starlette.routing import Route

from sqla_tickets import TicketPool
from sqla_tickets.http import Settings, create_app
from sqla_tickets.http.openapi import document
from tests.integration.http.conftest import Serve, load_pools

MODES = [GenerationMode("positive"), GenerationMode("negative")]
CHECKS = [status_code_conformance, content_type_conformance, response_schema_conformance]
MADE_UP = settings(
    max_examples=20,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)

pytestmark = pytest.mark.ticket_servers("sqlite")


def test_document_has_every_path_and_method() -> None:
    app = create_app(functools.partial(load_pools, []))
    routes = {
        (route.path_format, method.lower())
        for route in app.routes
        if isinstance(route, Route)
        for method in (route.methods or set()) - {"HEAD"}
    }
    described = {(path, method) for path, item in document(7)["paths"].items() for method in item}
    assert described == routes


def test_document_has_the_limit_of_the_settings(
    pool: TicketPool, ticket_urls: list[URL], serve: Serve
) -> None:
    found = serve(ticket_urls, most=77).get("/openapi.json").json
    (n,) = (
        parameter
        for parameter in found["paths"]["/v1/sequences/{name}/tickets"]["post"]["parameters"]
        if parameter["name"] == "n"
    )
    assert n["schema"]["maximum"] == Settings(most=77).most == 77


@pytest.mark.parametrize("name", ["photos", None])
def test_responses_are_as_the_document_says(
    name: str | None, pool: TicketPool, ticket_urls: list[URL], serve: Serve
) -> None:
    """Requests that are made up from the document, for a sequence that is there, or for any name."""
    service = serve(ticket_urls, most=50)
    schema = schemathesis.openapi.from_url(f"http://127.0.0.1:{service.port}/openapi.json")
    asked: set[int] = set()

    def check(case: Case[Any]) -> None:
        if name and "name" in case.path_parameters:
            case.path_parameters["name"] = name
        response = case.call()
        asked.add(response.status_code)
        case.validate_response(response, checks=CHECKS)

    for mode in MODES:
        for result in schema.get_all_operations():
            assert isinstance(result, Ok)
            operation = result.ok()
            if mode is GenerationMode.NEGATIVE and not operation.query:
                continue
            strategy = operation.as_strategy(generation_mode=mode)
            MADE_UP(given(strategy)(check))()
    assert asked >= {200, 400}
