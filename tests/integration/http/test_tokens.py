"""Who may draw what, and see what."""

from __future__ import annotations

import base64
import logging

import pytest
from sqlalchemy import URL

from sqla_tickets import TicketArgumentError, TicketPool
from sqla_tickets.http import Settings, Tokens
from sqla_tickets.http.server import Listener
from tests.integration.http.conftest import Serve
from tests.support.http_service import call

pytestmark = pytest.mark.ticket_servers("sqlite")

OF_PHOTOS, OF_ALL, OF_STATUS = "p" * 32, "a" * 32, "s" * 32
TEXT = f"""
# the website
{OF_PHOTOS} photos people
{OF_ALL} *   # batch
{OF_STATUS} @status
"""
TOKENS = Tokens.parse(TEXT, "tokens")


def test_token_draws_from_its_sequences_only(
    pool: TicketPool, ticket_urls: list[URL], serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    pool.create_table("albums")
    service = serve(ticket_urls, tokens=TOKENS)
    expected = {
        ("photos", OF_PHOTOS): 200,
        ("albums", OF_PHOTOS): 403,
        ("nowhere", OF_PHOTOS): 403,  # which tells nothing of what is there
        ("albums", OF_ALL): 200,
        ("nowhere", OF_ALL): 404,
        ("photos", OF_STATUS): 403,
        ("photos", OF_PHOTOS[:-1]): 401,
        ("photos", f"{OF_PHOTOS}p"): 401,
        ("photos", ""): 401,
    }
    found = {(name, token): service.post(name, token=token).status for name, token in expected}
    assert found == expected
    assert service.post("photos").headers["www-authenticate"].startswith("Bearer")
    for token in (OF_PHOTOS, OF_ALL, OF_STATUS):
        assert token not in caplog.text


def test_password_of_a_browser_draws_nothing(
    pool: TicketPool, ticket_urls: list[URL], serve: Serve
) -> None:
    """A browser that has shown the status page sends it with the form of any site."""
    service = serve(ticket_urls, tokens=TOKENS)
    password = base64.b64encode(f"anyone:{OF_ALL}".encode()).decode()
    headers = {"Authorization": f"Basic {password}"}
    assert service.get("/", **headers).status == 200
    pool.create_table("@status")
    for name in ("photos", "@status"):
        answer = call(service.port, f"/v1/sequences/{name}/tickets", "POST", headers)
        assert answer.status == 401
        assert answer.headers["www-authenticate"].startswith("Bearer")


def test_scope_of_the_status_draws_nothing(
    pool: TicketPool, ticket_urls: list[URL], serve: Serve
) -> None:
    """A sequence may have the scope's name."""
    pool.create_table("@status")
    service = serve(ticket_urls, tokens=TOKENS)
    assert service.post("@status", token=OF_STATUS).status == 403
    assert service.post("@status", token=OF_ALL).status == 200


@pytest.mark.parametrize("path", ["/", "/metrics"])
def test_status_needs_a_token_for_it(
    path: str, pool: TicketPool, ticket_urls: list[URL], serve: Serve
) -> None:
    service = serve(ticket_urls, tokens=TOKENS)
    assert service.get(path).status == 401
    assert service.get(path).headers["www-authenticate"].startswith("Basic")
    assert service.get(path, OF_PHOTOS).status == 403
    assert service.get(path, OF_STATUS).status == 200
    password = base64.b64encode(f"anyone:{OF_STATUS}".encode()).decode()
    assert service.get(path, Authorization=f"Basic {password}").status == 200
    for nonsense in ("Basic", "Basic !", "Basic /w==", "Basic \xe9", "Bearer", "Digest x", ""):
        assert service.get(path, Authorization=nonsense).status == 401


def test_public_status_needs_none(pool: TicketPool, ticket_urls: list[URL], serve: Serve) -> None:
    service = serve(ticket_urls, tokens=TOKENS, is_status_public=True)
    assert [service.get(path).status for path in ("/", "/metrics")] == [200, 200]
    assert service.post().status == 401


def test_probes_and_document_need_none(
    pool: TicketPool, ticket_urls: list[URL], serve: Serve
) -> None:
    service = serve(ticket_urls, tokens=TOKENS)
    assert [service.get(p).status for p in ("/health", "/ready", "/openapi.json")] == [200] * 3


@pytest.mark.parametrize(
    "text",
    [
        "",
        "# none",
        "short photos",
        OF_ALL,
        f"{OF_ALL}%%% photos",
        f"{OF_ALL} photos\nx y",
        f"{OF_ALL} photos,people",
        f"{OF_ALL} photos, people",
        f"# revoked; {OF_ALL} *",
    ],
)
def test_invalid_tokens_are_refused_and_not_shown(text: str) -> None:
    with pytest.raises(TicketArgumentError) as refused:
        Tokens.parse(text, "tokens.txt")
    assert "tokens.txt" in str(refused.value)
    assert OF_ALL not in str(refused.value)


def test_variable_has_tokens_in_one_line() -> None:
    assert Tokens.parse(f"{OF_PHOTOS} photos; {OF_ALL} *", "VARIABLE").scopes.keys() <= (
        TOKENS.scopes.keys()
    )


@pytest.mark.parametrize(
    ("line", "scopes"),
    [
        (f"# revoked 2026-11-01; {OF_ALL} *", None),
        (f"\t#{OF_ALL} *", None),
        (f"{OF_ALL} photos # people; {OF_ALL} *", {"photos"}),
        (f"{OF_ALL} photos#old", {"photos#old"}),
        (f"{OF_ALL} photos #old", {"photos"}),
    ],
)
def test_comment_grants_nothing(line: str, scopes: set[str] | None) -> None:
    tokens = Tokens.parse(f"{OF_PHOTOS} photos\n{line}\n", "tokens.txt")
    assert tokens.scopes_of(f"Bearer {OF_ALL}") == scopes


def test_tokens_are_kept_as_digests() -> None:
    assert OF_PHOTOS not in repr(TOKENS)


@pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.1", "::", "example.org", ""])
def test_other_address_without_tokens_is_refused(host: str) -> None:
    with pytest.raises(TicketArgumentError, match="--tokens FILE"):
        Listener(host).check(Settings())
    Listener(host).check(Settings(tokens=TOKENS))
    Listener(host, is_open=True).check(Settings())


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "127.1.2.3"])
def test_loopback_needs_no_tokens(host: str) -> None:
    Listener(host).check(Settings())
