"""Ticket servers are killed and frozen while clients ask: no ticket is answered twice, and none is refused in vain."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from sqlalchemy import URL

from sqla_tickets import TicketPool
from sqla_tickets.http.monitor import FRESH_SECONDS
from sqla_tickets.maintenance import operations
from tests.integration.http.conftest import Serve
from tests.support.draws import mysql_like, run
from tests.support.http_service import HTTPLoad, repeated, wait_for
from tests.support.servers import ServerFixtures

#: Each takes a second or two on each server.
SLOW_SEQUENCES = 10
MYSQL_LIKE = pytest.mark.ticket_servers("mariadb", "mysql")


@MYSQL_LIKE
def test_killed_server_is_noticed_by_no_client(
    ticket_kind: str,
    pool: TicketPool,
    ticket_urls: list[URL],
    serve: Serve,
    servers: ServerFixtures,
) -> None:
    service = serve(ticket_urls, block=(1, 20))
    with HTTPLoad(service.port, rest=0.005) as load:
        for number in (0, 1):
            server = servers.shared(ticket_kind, number)
            load.wait_for(200)
            server.kill()
            load.wait_for(200)
            server.start()
            load.wait_for(200)
    assert set(load.statuses) == {200}
    assert not load.broken
    assert not repeated(load.tickets)


@MYSQL_LIKE
def test_frozen_server_is_noticed_by_no_client(
    ticket_kind: str,
    pool: TicketPool,
    ticket_urls: list[URL],
    serve: Serve,
    servers: ServerFixtures,
) -> None:
    service = serve(ticket_urls, block=(1, 20))
    with HTTPLoad(service.port, rest=0.005) as load:
        load.wait_for(200)
        server = servers.shared(ticket_kind, 0)
        server.freeze()
        load.wait_for(200)
        server.thaw()
        load.wait_for(200)
    assert set(load.statuses) == {200}
    assert not load.broken
    assert not repeated(load.tickets)


@MYSQL_LIKE
def test_no_server_left_is_503_with_retry_after(
    ticket_kind: str,
    pool: TicketPool,
    ticket_urls: list[URL],
    serve: Serve,
    servers: ServerFixtures,
) -> None:
    """Clients are told nothing of the servers' addresses."""
    service = serve(ticket_urls, block=(1, 1))
    assert service.post().status == 200
    assert service.get("/ready").status == 200
    both = [servers.shared(ticket_kind, number) for number in (0, 1)]
    for server in both:
        server.kill()
    refused = service.post()
    assert refused.status == 503
    assert refused.headers["content-type"] == "application/problem+json"
    assert int(refused.headers["retry-after"]) >= 1
    assert refused.json["kind"] == "unavailable"
    assert "(" not in refused.json["detail"], "a word of this package says nothing to a client"
    assert "send the request again" in refused.json["next_step"].lower()
    assert str(both[0].port) not in refused.body.decode()
    wait_for(lambda: service.get("/ready").status == 503, lambda: "it is ready")
    assert service.get("/health").status == 200
    for server in both:
        server.start()
    wait_for(lambda: service.post().status == 200, lambda: "no tickets after the outage")
    wait_for(lambda: service.get("/ready").status == 200, lambda: "it is not ready")


@MYSQL_LIKE
def test_buffered_tickets_outlive_an_outage(
    ticket_kind: str,
    pool: TicketPool,
    ticket_urls: list[URL],
    serve: Serve,
    servers: ServerFixtures,
) -> None:
    service = serve(ticket_urls, block=(100, 100))
    assert service.post().status == 200
    for number in (0, 1):
        servers.shared(ticket_kind, number).kill()
    assert {service.post().status for _ in range(50)} == {200}
    assert service.get("/ready").status == 200


@pytest.mark.ticket_servers("mariadb")
def test_service_begins_while_no_server_answers(
    ticket_kind: str,
    pool: TicketPool,
    ticket_urls: list[URL],
    serve: Serve,
    servers: ServerFixtures,
) -> None:
    """Nobody is told then that a sequence does not exist."""
    both = [servers.shared(ticket_kind, number) for number in (0, 1)]
    for server in both:
        server.kill()
    service = serve(ticket_urls)
    assert service.post().status == 503
    assert service.get("/").status == 200
    for server in both:
        server.start()
    wait_for(lambda: service.post().status == 200, lambda: "no tickets after the outage")


@pytest.mark.ticket_servers("mariadb")
def test_first_request_is_answered_by_its_deadline(
    ticket_kind: str,
    pool: TicketPool,
    ticket_urls: list[URL],
    serve: Serve,
    servers: ServerFixtures,
) -> None:
    """Whether there is a sequence of that name, a frozen server does not say in time."""
    service = serve(ticket_urls, deadline_seconds=0.3)
    server = servers.shared(ticket_kind, 0)
    server.freeze()
    refused = service.post("nowhere")
    server.thaw()
    assert refused.status == 503
    assert "within 0.3 s" in refused.json["detail"]
    wait_for(lambda: service.post().status == 200, lambda: "no tickets after the outage")


@pytest.mark.ticket_servers("mariadb")
def test_request_is_answered_by_its_deadline(
    ticket_kind: str,
    pool: TicketPool,
    ticket_urls: list[URL],
    serve: Serve,
    servers: ServerFixtures,
) -> None:
    service = serve(ticket_urls, deadline_seconds=0.3, block=(1, 1))
    assert service.post().status == 200
    both = [servers.shared(ticket_kind, number) for number in (0, 1)]
    for server in both:
        server.freeze()
    refused = service.post()
    for server in both:
        server.thaw()
    assert refused.status == 503
    assert "within 0.3 s" in refused.json["detail"]
    wait_for(lambda: service.post().status == 200, lambda: "no tickets after the outage")


@pytest.fixture
def slow(
    ticket_kind: str, pool: TicketPool, ticket_urls: list[URL], servers: ServerFixtures
) -> Iterator[None]:
    """Many other sequences, whose status takes a second each, as another session locks their tables."""
    names = [f"albums{n}" for n in range(SLOW_SEQUENCES)]
    for name in names:
        pool.create_table(name)
    with ExitStack() as stack:
        for number, url in enumerate(ticket_urls):
            cursor = stack.enter_context(mysql_like(servers, ticket_kind, number).administrator())
            tables = ", ".join(f"`{url.database}`.`{name}` WRITE" for name in names)
            cursor.execute(f"LOCK TABLES {tables}")
        yield


@pytest.mark.ticket_servers("mariadb")
def test_first_request_waits_for_names_only(
    slow: None, ticket_urls: list[URL], serve: Serve
) -> None:
    service = serve(ticket_urls, deadline_seconds=SLOW_SEQUENCES / 2)
    assert service.post().status == 200


@pytest.mark.ticket_servers("sqlite")
def test_status_of_named_sequences_lists_no_other(
    pool: TicketPool, ticket_urls: list[URL], serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed: list[TicketPool] = []

    def names(pool: TicketPool, **_: bool) -> set[str]:
        listed.append(pool)
        return set()

    monkeypatch.setattr(operations, "names", names)
    service = serve(ticket_urls, sequences=("photos",))
    assert service.post().status == 200
    assert service.get("/ready").status == 200
    assert not listed


@pytest.mark.ticket_servers("sqlite")
def test_worker_with_quarantined_tables_is_not_ready(
    pool: TicketPool, ticket_urls: list[URL], serve: Serve
) -> None:
    """Repaired tables are well, but this worker draws nothing from them until it starts again."""
    service = serve(ticket_urls, block=(1, 1))
    assert {service.post().status for _ in range(4)} == {200}
    for offset, url in enumerate(ticket_urls, 1):
        run(url, f"UPDATE photos SET id = {offset}")
    wait_for(lambda: service.post().status == 503, lambda: "it draws")
    pool.raise_above("photos", 1_000_000)
    wait_for(lambda: {s.state for s in pool.status()} == {"up"}, lambda: str(pool.status()))
    time.sleep(FRESH_SECONDS)
    assert service.post().status == 503
    assert service.get("/ready").status == 503
    page = service.get("/").body.decode()
    assert "No ids are issued." in page
    assert "QUARANTINED" in page
    assert serve(ticket_urls).get("/ready").status == 200


@pytest.mark.ticket_servers("mariadb")
def test_worker_that_may_not_write_is_not_ready(
    ticket_kind: str,
    pool: TicketPool,
    ticket_urls: list[URL],
    serve: Serve,
    servers: ServerFixtures,
) -> None:
    for number, url in enumerate(ticket_urls):
        with mysql_like(servers, ticket_kind, number).administrator() as cursor:
            cursor.execute(f"REVOKE ALL ON `{url.database}`.* FROM '{url.username}'@'%'")
            cursor.execute(f"GRANT SELECT ON `{url.database}`.* TO '{url.username}'@'%'")
    service = serve(ticket_urls)
    assert service.post().status == 503
    assert service.post().status == 503
    assert service.get("/ready").status == 503
    assert "Ids are issued" not in service.get("/").body.decode()
