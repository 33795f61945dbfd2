"""What a request for tickets is answered."""

from __future__ import annotations

import http.client
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

import pytest
from sqlalchemy import URL, create_engine, inspect

from sqla_tickets import TicketPool
from sqla_tickets.maintenance import operations
from tests.integration.http.conftest import Serve
from tests.support.http_service import call, repeated, tickets_of, wait_for

SQLITE = pytest.mark.ticket_servers("sqlite")
LARGEST_SAFE = 2**53 - 1


@pytest.mark.every_kind
def test_request_gets_exactly_n_tickets(
    pool: TicketPool, ticket_urls: list[URL], serve: Serve
) -> None:
    """They are its own: no other client of the servers gets one of them, through whichever service."""
    services = [serve(ticket_urls, block=block) for block in ((1, 1), (50, 50), (1, 10_000))]
    tickets: list[int] = []
    for n in (1, 100, 3, 1, 1, 250, 1, 10_000, 1):
        for service in services:
            answer = service.post(query=f"?n={n}")
            assert answer.status == 200, answer.body
            assert answer.json["sequence"] == "photos"
            assert len(tickets_of(answer)) == n
            assert answer.headers["content-type"] == "application/json"
            assert answer.headers["cache-control"] == "no-store"
            tickets += tickets_of(answer)
        tickets += pool.next_ids("photos", 2)
    assert not repeated(tickets)


@SQLITE
def test_request_without_n_gets_one_ticket(
    pool: TicketPool, ticket_urls: list[URL], serve: Serve
) -> None:
    service = serve(ticket_urls)
    answer = service.post()
    assert len(tickets_of(answer)) == 1
    assert answer.json["tickets"][0].keys() == {"first", "step", "count"}


@SQLITE
@pytest.mark.parametrize("is_chunked", [False, True])
def test_body_that_would_be_ignored_is_refused(
    pool: TicketPool, ticket_urls: list[URL], serve: Serve, *, is_chunked: bool
) -> None:
    """As ``curl -d n=5`` sends it."""
    service = serve(ticket_urls)
    with closing(http.client.HTTPConnection("127.0.0.1", service.port, timeout=30)) as connection:
        path = "/v1/sequences/photos/tickets"
        for body, status in ((b"n=5", 400), (b"", 200)):
            sent = iter([body]) if is_chunked else body
            connection.request("POST", path, sent, encode_chunked=is_chunked)
            answer = connection.getresponse()
            text = answer.read().decode()
            assert (answer.status, "?n=5" in text) == (status, status == 400)


#: Each announces a body that does not come.
ANNOUNCED = [("Transfer-Encoding", "chunked"), ("Content-Length", "3")]


def announce(port: int, header: tuple[str, str]) -> http.client.HTTPConnection:
    """Send a request whose body does not come; the caller closes the connection."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.putrequest("POST", "/v1/sequences/photos/tickets")
    connection.putheader(*header)
    connection.endheaders()
    return connection


@SQLITE
@pytest.mark.parametrize("header", ANNOUNCED)
def test_body_that_does_not_end_is_refused_by_the_deadline(
    header: tuple[str, str], pool: TicketPool, ticket_urls: list[URL], serve: Serve
) -> None:
    service = serve(ticket_urls, deadline_seconds=0.3)
    with closing(announce(service.port, header)) as connection:
        answer = connection.getresponse()
        assert (answer.status, "?n=5" in answer.read().decode()) == (400, True)


@SQLITE
@pytest.mark.parametrize("header", ANNOUNCED)
def test_client_that_hangs_up_during_its_body_is_no_defect(
    header: tuple[str, str],
    pool: TicketPool,
    ticket_urls: list[URL],
    serve: Serve,
    caplog: pytest.LogCaptureFixture,
) -> None:
    service = serve(ticket_urls)
    assert service.post().status == 200
    announce(service.port, header).close()

    def counted() -> str:
        return service.get("/metrics").body.decode()

    wait_for(lambda: counted().count("sqla_tickets_http_requests_total{") == 2, counted)
    assert 'sqla_tickets_http_requests_total{code="400",sequence="photos"} 1.0' in counted()
    assert "Traceback" not in caplog.text


@SQLITE
@pytest.mark.parametrize("block", [(1, 1), (100, 100)])
def test_request_sent_again_gets_other_tickets(
    block: tuple[int, int], pool: TicketPool, ticket_urls: list[URL], serve: Serve
) -> None:
    service = serve(ticket_urls, block=block)
    tickets = [ticket for _ in range(3) for ticket in tickets_of(service.post(query="?n=5"))]
    assert len(set(tickets)) == 15


@pytest.mark.ticket_servers("mariadb", "mysql", "postgresql")
def test_async_driver_serves_as_well(
    ticket_kind: str, pool: TicketPool, ticket_urls: list[URL], serve: Serve
) -> None:
    driver = "postgresql+asyncpg" if ticket_kind == "postgresql" else "mysql+asyncmy"
    service = serve([url.set(drivername=driver) for url in ticket_urls], block=(10, 10))
    tickets = [ticket for _ in range(30) for ticket in tickets_of(service.post(query="?n=3"))]
    assert len(set(tickets)) == 90
    assert service.get("/ready").status == 200
    assert "Ids are issued." in service.get("/").body.decode()


@SQLITE
@pytest.mark.parametrize("n", ["0", "-1", "21", "1.0", "", "all", "9" * 30, "1_0", "٣"])
def test_n_outside_of_the_limits_is_refused(
    n: str, pool: TicketPool, ticket_urls: list[URL], serve: Serve
) -> None:
    service = serve(ticket_urls, most=20)
    answer = service.post(query=f"?n={quote(n)}")
    assert answer.status == 400
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json["kind"] == "invalid_n"
    assert answer.json["next_step"] == "Ask for 1 to 20 tickets at a time."
    assert len(tickets_of(service.post(query="?n=20"))) == 20


@SQLITE
def test_unknown_sequence_is_404_and_gets_no_table(
    pool: TicketPool, ticket_urls: list[URL], serve: Serve
) -> None:
    service = serve(ticket_urls)
    for name in ("albums", "photos%27", "x%00y", "sqla_tickets_marks", "a%2Fb", "%F0%9F%93%B7"):
        answer = service.post(name)
        assert answer.status == 404, name
        assert answer.json["next_step"], name
    for url in ticket_urls:
        assert set(inspect(create_engine(url)).get_table_names()) <= {
            "photos",
            "sqla_tickets_marks",
        }


@SQLITE
@pytest.mark.parametrize("name", ["a/b", "/", "a/tickets", "a\nb", "@status", "?n=5#"])
def test_any_valid_name_is_served(
    name: str, pool: TicketPool, ticket_urls: list[URL], serve: Serve
) -> None:
    pool.create_table(name)
    service = serve(ticket_urls)
    answer = service.post(quote(name, safe=""))
    assert (answer.status, answer.json["sequence"]) == (200, name)
    label = name.replace("\n", "\\n")
    counted = f'sqla_tickets_http_requests_total{{code="200",sequence="{label}"}} 1.0'
    assert counted in service.get("/metrics").body.decode().splitlines()


@SQLITE
def test_only_named_sequences_are_served(
    pool: TicketPool, ticket_urls: list[URL], serve: Serve
) -> None:
    pool.create_table("albums")
    service = serve(ticket_urls, sequences=("photos", "people"))
    assert service.post("photos").status == 200
    assert service.post("albums").status == 404
    missing = service.post("people")
    assert missing.status == 404
    assert missing.json["next_step"].endswith("sqla-tickets create people")


@SQLITE
def test_sequence_created_later_is_found(
    pool: TicketPool, ticket_urls: list[URL], serve: Serve
) -> None:
    service = serve(ticket_urls)
    assert service.post("albums").status == 404
    pool.create_table("albums")
    wait_for(lambda: service.post("albums").status == 200, lambda: "it is not found")


@SQLITE
def test_sequence_that_has_moved_is_served(
    pool: TicketPool, ticket_urls: list[URL], serve: Serve, tmp_path: Path
) -> None:
    """Also by a service that starts after the move."""
    urls = [URL.create("sqlite", database=str(tmp_path / f"media{n}.db")) for n in range(2)]
    before = pool.next_id("photos")
    with TicketPool(urls, name="media") as media:
        operations.move(pool, "photos", media)
    service = serve(ticket_urls, media=urls)
    assert service.get("/ready").status == 200
    answer = service.post(query="?n=5")
    assert answer.status == 200
    assert min(tickets_of(answer)) > before


@SQLITE
def test_sequence_that_was_renamed_is_served(
    pool: TicketPool, ticket_urls: list[URL], serve: Serve
) -> None:
    """Under either name, also by a service that starts afterwards; the status page has the new one."""
    before = pool.next_id("photos")
    operations.rename(pool, "photos", "pictures")
    service = serve(ticket_urls)
    answers = [service.post(name, "?n=5") for name in ("photos", "pictures")]
    assert [answer.status for answer in answers] == [200, 200]
    tickets = [ticket for answer in answers for ticket in tickets_of(answer)]
    assert min(tickets) > before
    assert len(set(tickets)) == 10
    page = service.get("/").body.decode()
    assert ("pictures" in page, "photos" in page) == (True, False)


@SQLITE
@pytest.mark.parametrize("query", ["N=5", "n=5&n=7", "numbers=string&numbers=string", "n=5&x", "x"])
def test_unknown_or_repeated_parameter_is_refused(
    query: str, pool: TicketPool, ticket_urls: list[URL], serve: Serve
) -> None:
    answer = serve(ticket_urls).post(query=f"?{query}")
    assert (answer.status, answer.json["kind"]) == (400, "invalid_parameters")


@pytest.mark.every_kind
def test_tickets_of_64_bits_are_written_as_the_client_says(
    pool: TicketPool, ticket_urls: list[URL], serve: Serve
) -> None:
    """Unless it has said that it reads them, no client gets a number that its JSON parser may round."""
    service = serve(ticket_urls)
    assert service.post().status == 200
    pool.raise_above("photos", 2**62)
    service = serve(ticket_urls)  # the other one may have tickets buffered
    refused = service.post()
    assert (refused.status, refused.json["kind"]) == (400, "large_numbers")
    text = service.post(query="?numbers=string&n=3")
    assert all(isinstance(block["first"], str) for block in text.json["tickets"])
    whole = service.post(query="?numbers=integer&n=3")
    assert all(isinstance(block["first"], int) for block in whole.json["tickets"])
    tickets = tickets_of(text) + tickets_of(whole)
    assert min(tickets) > 2**62
    assert len(set(tickets)) == 6


@SQLITE
def test_last_safe_number_needs_no_word(
    pool: TicketPool, ticket_urls: list[URL], serve: Serve
) -> None:
    pool.raise_above("photos", LARGEST_SAFE - 6)
    service = serve(ticket_urls, block=(1, 1))
    answers = [service.post() for _ in range(10)]
    sent = [ticket for a in answers if a.status == 200 for ticket in tickets_of(a)]
    assert 1 <= len(sent) <= 6
    assert max(sent) <= LARGEST_SAFE
    assert {a.json["kind"] for a in answers if a.status != 200} == {"large_numbers"}


@SQLITE
def test_sequence_without_numbers_is_507(
    pool: TicketPool, ticket_urls: list[URL], serve: Serve
) -> None:
    pool.raise_above("photos", 2**63 - 5)
    service = serve(ticket_urls, block=(1, 1))
    answers = [service.post(query="?numbers=string") for _ in range(8)]
    assert answers[-1].status == 507
    assert answers[-1].json["kind"] == "exhausted"
    assert "the configuration with all of them" in answers[-1].json["next_step"]


@SQLITE
def test_other_paths_and_methods_are_problems(
    pool: TicketPool, ticket_urls: list[URL], serve: Serve
) -> None:
    service = serve(ticket_urls)
    nowhere = service.get("/nowhere")
    assert (nowhere.status, nowhere.json["title"]) == (404, "Not Found")
    assert nowhere.json["next_step"]
    assert service.get("/health/").status == 404
    assert service.post("").json["kind"] == "not_found"
    by_get = service.get("/v1/sequences/photos/tickets")
    assert (by_get.status, by_get.headers["allow"]) == (405, "POST")


@SQLITE
def test_page_of_another_site_draws_nothing(
    pool: TicketPool, ticket_urls: list[URL], serve: Serve
) -> None:
    """A browser on this machine reaches a service without tokens, whatever page it shows."""
    service = serve(ticket_urls)
    path = "/v1/sequences/photos/tickets"
    answer = call(service.port, path, "POST", {"Origin": "https://elsewhere.example"})
    assert answer.status == 403


@SQLITE
def test_name_that_leads_to_this_machine_draws_nothing(
    pool: TicketPool, ticket_urls: list[URL], serve: Serve
) -> None:
    """A page of another site may give its own name the address 127.0.0.1."""
    service = serve(ticket_urls, is_local=True)
    requests = [("/v1/sequences/photos/tickets", "POST"), ("/", "GET"), ("/metrics", "GET")]
    for path, method in requests:
        for host in ("elsewhere.example", "elsewhere.example:8080", "192.0.2.1", "[", ""):
            assert call(service.port, path, method, {"Host": host}).status == 403, host
        for host in ("localhost", "LOCALHOST:80", "127.0.0.1:8080", "[::1]:8080"):
            assert call(service.port, path, method, {"Host": host}).status == 200, host
