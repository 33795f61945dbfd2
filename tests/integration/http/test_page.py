"""The status page, probes and metrics, for people and for their monitoring."""

from __future__ import annotations

import asyncio
import html
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from sqlalchemy import URL
from starlette.applications import Starlette
from starlette.routing import Mount

from sqla_tickets import TicketArgumentError, TicketPool
from sqla_tickets.http import create_app
from sqla_tickets.maintenance import operations
from tests.integration.http.conftest import Serve, load_pools, serving
from tests.support.command_line import options, run_cli
from tests.support.http_service import call, wait_for
from tests.support.servers import ServerFixtures

SQLITE = pytest.mark.ticket_servers("sqlite")
DOWN = "mysql+pymysql://tickets:hush-4711@127.0.0.1:1/tickets"


def text_of(page: bytes) -> str:
    """What a browser shows, in one line."""
    body = re.sub("<style>.*?</style>|<[^>]*>", " ", page.decode(), flags=re.DOTALL)
    return " ".join(html.unescape(body).split())


@pytest.mark.every_kind
def test_page_has_every_sequence_server_and_rate(
    pool: TicketPool, ticket_urls: list[URL], serve: Serve
) -> None:
    pool.create_table("albums")
    pool.next_ids("photos", 10)
    service = serve(ticket_urls)
    page = service.get("/")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert "2 of 2 ticket servers are UP. Ids are issued." in text_of(page.body)
    for name in ("photos", "albums"):
        assert f"<h2>{name}</h2>" in page.body.decode()
    for server in pool.servers:
        assert str(server).partition("://")[2].removesuffix(
            f" (offset {server.context.offset})"
        ) in (text_of(page.body))
    assert service.post(query="?n=1000").status == 200
    wait_for(
        lambda: bool(re.search(r"[1-9][\d,.]* tickets/s", text_of(service.get("/").body))),
        lambda: text_of(service.get("/").body),
    )


@SQLITE
def test_page_says_what_is_wrong_as_the_command_does(
    pool: TicketPool, ticket_urls: list[URL], serve: Serve
) -> None:
    pool.next_id("photos")
    urls = [ticket_urls[0], URL.create("sqlite", database="/nowhere/b.db")]
    shown = text_of(serve(urls).get("/").body)
    told = run_cli("status", "--over", "0", *options(urls)).text
    assert told.splitlines()[0] in shown
    advice = re.search(r"Do: .*", told)
    assert advice is not None
    assert advice[0].strip() in shown


@SQLITE
def test_page_shows_neither_passwords_nor_markup(
    pool: TicketPool, ticket_urls: list[URL], serve: Serve
) -> None:
    name = "<script>alert(1)</script>&\"'"
    pool.create_table(name)
    page = serve([ticket_urls[0], DOWN]).get("/").body.decode()
    assert "<script" not in page
    assert name in html.unescape(page)
    assert "hush-4711" not in page
    assert "127.0.0.1:1" in page


@SQLITE
def test_page_runs_no_script_and_stands_in_no_frame(
    pool: TicketPool, ticket_urls: list[URL], serve: Serve
) -> None:
    page = serve(ticket_urls).get("/")
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert '<meta http-equiv="refresh" content="5">' in page.body.decode()
    assert page.headers["cache-control"] == "no-store"


@SQLITE
def test_metrics_are_those_of_the_pool_and_of_requests(
    pool: TicketPool, ticket_urls: list[URL], serve: Serve
) -> None:
    service = serve(ticket_urls)
    service.post(query="?n=5")
    for name in ("albums", "people"):
        service.post(name)
    found = service.get("/metrics")
    assert found.headers["content-type"].startswith("text/plain")
    lines = found.body.decode().splitlines()
    assert 'sqla_tickets_http_requests_total{code="200",sequence="photos"} 1.0' in lines
    assert 'sqla_tickets_http_tickets_total{sequence="photos"} 5.0' in lines
    # a name that somebody makes up is no label
    assert 'sqla_tickets_http_requests_total{code="404",sequence=""} 2.0' in lines
    assert any(line.startswith("sqla_tickets_drawn_total{") for line in lines)
    open_metrics = service.get("/metrics", Accept="application/openmetrics-text; version=1.0.0")
    assert open_metrics.headers["content-type"].startswith("application/openmetrics-text")
    assert open_metrics.body.endswith(b"# EOF\n")


@SQLITE
def test_metrics_of_several_workers_name_the_worker(
    pool: TicketPool, ticket_urls: list[URL], serve: Serve
) -> None:
    service = serve(ticket_urls, workers=2)
    service.post()
    lines = service.get("/metrics").body.decode().splitlines()
    assert lines
    assert all('worker="' in line for line in lines if not line.startswith("#"))


@pytest.mark.ticket_servers("mariadb")
def test_frozen_server_delays_no_probe_for_long(
    ticket_kind: str,
    pool: TicketPool,
    ticket_urls: list[URL],
    serve: Serve,
    servers: ServerFixtures,
) -> None:
    """Probes time out soon: the state of a moment ago is better than none."""
    service = serve(ticket_urls)
    assert service.get("/ready").status == 200
    server = servers.shared(ticket_kind, 0)
    server.freeze()
    assert service.get("/ready").status == 200
    wait_for(
        lambda: "1 of 2 ticket servers is DOWN" in text_of(service.get("/").body),
        lambda: text_of(service.get("/").body),
    )
    assert service.get("/ready").status == 200
    server.thaw()


@SQLITE
def test_defect_is_counted_as_500(
    pool: TicketPool, ticket_urls: list[URL], serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = serve(ticket_urls)
    assert service.post().status == 200

    def fail(name: str) -> int:
        raise ZeroDivisionError

    monkeypatch.setattr(TicketPool, "buffered", lambda self, name: fail(name))
    assert service.post().status == 500
    monkeypatch.undo()
    lines = service.get("/metrics").body.decode().splitlines()
    assert 'sqla_tickets_http_requests_total{code="500",sequence="photos"} 1.0' in lines


@SQLITE
def test_metrics_count_draws_of_a_sequence_that_has_moved(
    pool: TicketPool, ticket_urls: list[URL], serve: Serve, tmp_path: Path
) -> None:
    urls = [URL.create("sqlite", database=str(tmp_path / f"media{n}.db")) for n in range(2)]
    with TicketPool(urls, name="media") as media:
        operations.move(pool, "photos", media)
    service = serve(ticket_urls, media=urls)
    assert service.post().status == 200
    drawn = r'^sqla_tickets_drawn_total{pool="media",sequence="photos",.*} [1-9]'
    assert re.search(drawn, service.get("/metrics").body.decode(), re.MULTILINE)


@SQLITE
def test_application_mounted_without_its_lifespan_says_so(
    pool: TicketPool, ticket_urls: list[URL], caplog: pytest.LogCaptureFixture
) -> None:
    app = create_app(lambda: load_pools(ticket_urls))
    path = "/tickets/v1/sequences/photos/tickets"
    with serving(Starlette(routes=[Mount("/tickets", app)])) as running:
        assert call(running.port, path, "POST").status == 500
        assert call(running.port, "/tickets/ready").status == 500
    assert "must enter app.router.lifespan_context(app)" in caplog.text

    @asynccontextmanager
    async def lifespan(parent: Starlette) -> AsyncIterator[None]:
        async with app.router.lifespan_context(app):
            yield

    parent = Starlette(routes=[Mount("/tickets", app)], lifespan=lifespan)
    with serving(parent) as running:
        assert call(running.port, path, "POST").status == 200
        assert call(running.port, "/tickets/ready").status == 200


@SQLITE
@pytest.mark.parametrize(
    ("names", "found"), [(["tickets"], "'tickets'"), (["b", "a"], "'a', 'b'"), ([], "no pool")]
)
def test_pool_that_is_not_there_is_said_at_the_start(
    names: list[str], found: str, ticket_urls: list[URL]
) -> None:
    pools = {name: TicketPool(ticket_urls, name=name) for name in names}
    app = create_app(lambda: pools)

    async def start() -> None:
        async with app.router.lifespan_context(app):
            pass

    with pytest.raises(TicketArgumentError) as refused:
        asyncio.run(start())
    for part in ("'default'", found, "Settings(pool="):
        assert part in str(refused.value)
