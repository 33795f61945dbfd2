"""OpenTelemetry's spans of draws: what they tell, whose children they are, and what they keep to themselves."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from sqlalchemy import URL, BigInteger, event
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from sqla_tickets import NoTicketServer, TicketPool, TicketSequence
from sqla_tickets.contrib.opentelemetry import trace_draws
from tests.integration.draw.test_hedging import locked
from tests.support.draws import OpenPool, draw_from, fresh_pair, run
from tests.support.servers import PASSWORD, ServerFixtures

SQLITE = pytest.mark.ticket_servers("sqlite")


class Traces:
    """Spans that have ended, in memory."""

    def __init__(self) -> None:
        self.exporter, self.provider = InMemorySpanExporter(), TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracer = self.provider.get_tracer("tests")

    @property
    def draws(self) -> list[ReadableSpan]:
        return [span for span in self.exporter.get_finished_spans() if span.name[:5] == "draw "]


@pytest.fixture
def traces() -> Iterator[Traces]:
    traces = Traces()
    yield traces
    traces.provider.shutdown()


def attributes(span: ReadableSpan) -> dict[str, object]:
    return dict(span.attributes or {})


@pytest.mark.ticket_servers("mariadb", "postgresql", "sqlite")
def test_a_span_of_each_draw(
    pool: TicketPool, ticket_urls: list[URL], traces: Traces, ticket_kind: str
) -> None:
    trace_draws(pool, tracer_provider=traces.provider)
    with traces.tracer.start_as_current_span("request") as request:
        tickets = pool.next_ids("photos", 7)
    (span,) = traces.draws
    server = next(s for s in pool.servers if s.offset == (tickets[0] - 1) % 2 + 1)
    url = server.engine.url
    assert (span.name, span.kind) == ("draw photos", SpanKind.CLIENT)
    assert span.status.status_code is StatusCode.UNSET
    wanted = {
        "db.system.name": ticket_kind,
        "db.namespace": url.database,
        "db.collection.name": "photos",
        "db.operation.name": "draw",
        "db.query.summary": "draw photos",
        "server.address": url.host,
        "server.port": url.port,
        "sqla_tickets.pool": "default",
        "sqla_tickets.sequence": "photos",
        "sqla_tickets.offset": server.offset,
        "sqla_tickets.wanted": 7,
        "sqla_tickets.drawn": 7,
        "sqla_tickets.hedge": False,
    }
    assert attributes(span) == {name: value for name, value in wanted.items() if value is not None}
    assert span.parent is not None
    assert span.parent.span_id == request.get_span_context().span_id
    (around,) = (s for s in traces.exporter.get_finished_spans() if s.name == "request")
    times = [around.start_time, span.start_time, span.end_time, around.end_time]
    assert times == sorted(t for t in times if t is not None)


@SQLITE
def test_it_ends_with_the_listener(pool: TicketPool, traces: Traces) -> None:
    listener = trace_draws(pool, tracer_provider=traces.provider)
    pool.next_id("photos")
    event.remove(pool, "drawn", listener)
    pool.next_id("photos")
    assert len(traces.draws) == 1


@pytest.mark.ticket_servers("mariadb")
def test_errors_are_told_and_passwords_are_not(
    pool: TicketPool, traces: Traces, servers: ServerFixtures, ticket_urls: list[URL]
) -> None:
    draw_from(pool, 1)
    trace_draws(pool, tracer_provider=traces.provider)
    servers.mariadb(0).kill()
    run(ticket_urls[1], "DROP TABLE photos")
    with pytest.raises(NoTicketServer):
        pool.next_id("photos")
    for span in traces.draws:
        kind = "table_missing" if attributes(span)["sqla_tickets.offset"] == 2 else "disconnected"
        assert attributes(span)["error.type"] == kind
        assert attributes(span)["sqla_tickets.drawn"] == 0
        assert span.status.status_code is StatusCode.ERROR
        (told,) = span.events
        assert told.name == "exception"
        assert str((told.attributes or {})["exception.message"]) == span.status.description
        assert PASSWORD not in span.to_json()
    assert {attributes(span)["error.type"] for span in traces.draws} == {
        "table_missing",
        "disconnected",
    }


@pytest.mark.ticket_servers("mariadb")
def test_a_hedge_is_in_the_trace_of_the_draw_that_it_repeats(
    servers: ServerFixtures, open_pool: OpenPool, traces: Traces
) -> None:
    server, _, urls = fresh_pair(servers, "mariadb")
    pool = open_pool(urls, hedge=True)
    pool.create_table("photos")
    draw_from(pool, 1)
    draw_from(pool, 2)
    trace_draws(pool, tracer_provider=traces.provider)
    hedges: list[ReadableSpan] = []
    with traces.tracer.start_as_current_span("request") as request, locked(server, urls[0]):
        for _ in range(20):  # where nobody looks in time, the lock ends the draw
            pool.next_id("photos")
            hedges = [s for s in traces.draws if attributes(s)["sqla_tickets.hedge"]]
            if hedges:
                break
            pool.servers[0].table("photos").release()
    assert hedges
    for span in traces.draws:
        assert span.parent is not None
        assert span.parent.span_id == request.get_span_context().span_id


@pytest.mark.parametrize("driver", ["sqlite", "sqlite+aiosqlite"])
async def test_draws_of_an_async_session(tmp_path: Path, traces: Traces, driver: str) -> None:
    class Base(DeclarativeBase):
        pass

    class Photo(Base):
        __tablename__ = "photos"
        id: Mapped[int] = mapped_column(BigInteger, TicketSequence("photos"), primary_key=True)

    files = [str(tmp_path / f"tickets{n}.db") for n in (1, 2)]
    with TicketPool([URL.create("sqlite", database=file) for file in files]) as pool:
        pool.create_table("photos")
    engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path / 'app.db'}")
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
    pool = TicketPool([URL.create(driver, database=file) for file in files])
    trace_draws(pool, tracer_provider=traces.provider)
    with pool.attached(Base.metadata), traces.tracer.start_as_current_span("request") as request:
        async with AsyncSession(engine) as session:
            session.add_all([Photo() for _ in range(3)])
            await session.commit()
        await engine.dispose()
    (span,) = traces.draws
    assert attributes(span)["sqla_tickets.drawn"] == 3
    assert attributes(span)["db.system.name"] == "sqlite"
    assert span.parent is not None
    assert span.parent.span_id == request.get_span_context().span_id
    async with engine.connect() as connection:
        await connection.run_sync(lambda _: pool.dispose())
    await engine.dispose()
