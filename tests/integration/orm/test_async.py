"""AsyncSession: the same draws and INSERTs, with a loop that goes on while a ticket is waited for."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pymysql
import pytest
from sqlalchemy import URL, BigInteger, ForeignKey, String, insert, select
from sqlalchemy.ext.asyncio import (
    AsyncEngine,
    AsyncSession,
    async_sessionmaker,
    create_async_engine,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship

from sqla_tickets import AsyncTicketPool, TicketArgumentError, TicketPool, TicketSequence
from tests.support.counting import Inserted, count_inserts, many
from tests.support.drivers import Route, drivers, routes
from tests.support.servers import PASSWORD, USER, MySQLLike, ServerFixtures, plain_client


class Base(DeclarativeBase):
    pass


class Photo(Base):
    __tablename__ = "photos"
    id: Mapped[int] = mapped_column(BigInteger, TicketSequence("photos"), primary_key=True)
    title: Mapped[str | None] = mapped_column(String(50))
    tags: Mapped[list[Tag]] = relationship()


class Tag(Base):
    __tablename__ = "tags"
    id: Mapped[int] = mapped_column(BigInteger, TicketSequence("tags"), primary_key=True)
    photo_id: Mapped[int] = mapped_column(ForeignKey("photos.id"))


Database = Callable[[Route, str], URL]


@pytest.fixture
def database(servers: ServerFixtures, tmp_path: Path) -> Database:
    """An empty database at the end of a route, by a name of the test's own."""

    def create(route: Route, name: str) -> URL:
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        return route.fresh_database(servers, folder, role=None if name == "app" else "migrate")

    return create


FILE = Route("sqlite+aiosqlite", "sqlite")
APPS = [
    FILE,
    Route("mysql+asyncmy", "mysql"),
    Route("mysql+aiomysql", "mariadb"),
    Route("postgresql+asyncpg", "postgresql"),
]


class AsyncSite:
    """An asynchronous application and its ticket servers."""

    def __init__(self, engine: AsyncEngine, pool: AsyncTicketPool) -> None:
        self.engine, self.pool = engine, pool
        self.sessions = async_sessionmaker(engine)
        self.inserts: list[Inserted] = []

    async def set_up(self) -> None:
        async with self.engine.begin() as connection:
            await connection.run_sync(Base.metadata.create_all)
        await self.pool.create_all(Base.metadata)

    async def draws(self) -> Counter[str]:
        draws = Counter[str]()
        for status in await self.pool.status():
            draws[status.sequence] += status.draws
        return draws

    async def ids(self) -> list[int]:
        async with self.sessions() as session:
            return list(await session.scalars(select(Photo.id).order_by(Photo.id)))

    async def close(self) -> None:
        await self.pool.dispose()
        await self.engine.dispose()


async def serve(app: URL, *tickets: URL) -> AsyncIterator[AsyncSite]:
    engine = create_async_engine(app)
    with AsyncTicketPool(list(tickets), hedge=False).attached(Base.metadata) as pool:
        site = AsyncSite(engine, pool)
        try:
            await site.set_up()
            with count_inserts(engine.sync_engine, site.inserts):
                yield site
        finally:
            await site.close()


@pytest.fixture(params=APPS, ids=str)
def app_url(request: pytest.FixtureRequest, database: Database) -> URL:
    return database(request.param, "app")


@pytest.fixture(params=routes("sqlite"), ids=str)
async def site(
    request: pytest.FixtureRequest, app_url: URL, database: Database
) -> AsyncIterator[AsyncSite]:
    tickets = [database(request.param, name) for name in ("one", "two")]
    async for site in serve(app_url, *tickets):
        yield site


@pytest.fixture(params=drivers(), ids=str)
async def ticketed(request: pytest.FixtureRequest, database: Database) -> AsyncIterator[AsyncSite]:
    """An application on SQLite, with every kind of ticket server."""
    tickets = [database(request.param, name) for name in ("one", "two")]
    async for site in serve(database(FILE, "app"), *tickets):
        yield site


async def test_flush(site: AsyncSite) -> None:
    async with site.sessions.begin() as session:
        session.add_all(Photo(title=title, tags=[Tag(), Tag()]) for title in "abcd")
    assert await site.draws() == {"photos": 1, "tags": 1}
    assert site.inserts == [many("photos", 4), many("tags", 8)]
    assert len(await site.ids()) == 4


async def test_bulk(site: AsyncSite) -> None:
    async with site.sessions.begin() as session:
        await session.execute(insert(Photo), [{"title": title} for title in "abcde"])
    assert +await site.draws() == {"photos": 1}
    assert site.inserts == [many("photos", 5)]
    assert len(await site.ids()) == 5


async def test_next_value(site: AsyncSite) -> None:
    sequence = Photo.__table__.c.id.default
    assert isinstance(sequence, TicketSequence)
    async with site.sessions.begin() as session:
        await session.execute(
            insert(Photo).values(id=sequence.next_value()), [{"title": "a"}, {"title": "b"}]
        )
        session.add(Photo(id=sequence.next_value()))
        found = [await session.scalar(select(sequence.next_value())) for _ in range(2)]
    assert +await site.draws() == {"photos": 4}
    assert len({*await site.ids(), *found}) == 5


async def test_core(site: AsyncSite) -> None:
    async with site.engine.begin() as connection:
        await connection.execute(insert(Photo).values(title="a"))
        await connection.execute(insert(Photo), [{"title": title} for title in "abc"])
    assert +await site.draws() == {"photos": 2}
    assert len(await site.ids()) == 4


async def test_the_sequence_itself_can_be_asked(site: AsyncSite) -> None:
    default = Photo.__table__.c.id.default
    assert isinstance(default, TicketSequence)
    async with site.engine.connect() as connection:
        assert isinstance(await connection.run_sync(lambda c: c.scalar(default)), int)
    async with site.sessions() as session:
        assert isinstance(await session.scalar(default), int)
    assert +await site.draws() == {"photos": 2}


async def test_every_kind_of_ticket_server(ticketed: AsyncSite) -> None:
    async with ticketed.sessions.begin() as session:
        session.add_all(Photo(title=title, tags=[Tag(), Tag()]) for title in "abcd")
        await session.flush()
        await session.execute(insert(Photo), [{"title": title} for title in "efg"])
        session.add(Photo(title="h"))
    assert await ticketed.draws() == {"photos": 3, "tags": 1}
    assert len(await ticketed.ids()) == 8


@pytest.mark.every_kind
async def test_tasks_side_by_side(ticketed: AsyncSite) -> None:
    async def work() -> list[int]:
        async with ticketed.sessions() as session:
            photos = [Photo() for _ in range(10)]
            session.add_all(photos)
            # SQLite has one writer: what matters is what is drawn.
            with session.no_autoflush:
                await session.run_sync(lambda s: s.dispatch.before_flush(s, None, None))
            return [photo.id for photo in photos]

    drawn = await asyncio.gather(*(work() for _ in range(20)))
    ids = [key for keys in drawn for key in keys]
    assert len(set(ids)) == 200
    assert 0 < (await ticketed.draws())["photos"] <= 20  # some of the tasks share a draw


async def test_a_sessionmaker_with_a_sync_class_of_its_own(site: AsyncSite) -> None:
    from sqlalchemy.orm import Session

    class Own(Session):
        pass

    async with AsyncSession(site.engine, sync_session_class=Own) as session:
        session.add_all([Photo(title="a"), Photo(title="b")])
        await session.commit()
    assert +await site.draws() == {"photos": 1}
    assert site.inserts == [many("photos", 2)]


@pytest.mark.parametrize("route", drivers("mariadb", "mysql"), ids=str)
async def test_the_loop_goes_on_while_a_ticket_is_waited_for(
    servers: ServerFixtures, database: Database, route: Route
) -> None:
    """Another client has locked the ticket table; it is this very loop that unlocks it."""
    url = database(route, "tickets")
    with blocker(url) as other:
        async for site in serve(database(FILE, "app"), url):
            other.cursor().execute("LOCK TABLES photos WRITE")

            async def work(site: AsyncSite = site) -> None:
                async with site.sessions.begin() as session:
                    session.add(Photo(title="a"))

            task = asyncio.create_task(work())
            machine = servers.shared(route.kind)
            assert isinstance(machine, MySQLLike)
            # A loop that stands still comes here when the draw has been given up.
            while not (task.done() or waits_for_a_lock(machine, url)):  # noqa: ASYNC110  # polls a server
                await asyncio.sleep(0.01)
            assert not task.done()
            other.cursor().execute("UNLOCK TABLES")
            await task
            assert len(await site.ids()) == 1


def blocker(url: URL) -> pymysql.Connection[pymysql.cursors.Cursor]:
    return plain_client(url.set(username=USER, password=PASSWORD))


def waits_for_a_lock(server: MySQLLike, url: URL) -> bool:
    with server.administrator() as cursor:
        cursor.execute(
            "SELECT COUNT(*) FROM information_schema.processlist"
            " WHERE db = %s AND state LIKE 'Waiting for table%%'",
            [url.database],
        )
        row = cursor.fetchone()
    return row is not None and row[0] > 0


#: Every method of a pool that asks a server.
CALLS: dict[str, Callable[[TicketPool], object]] = {
    "next_id": lambda pool: pool.next_id("photos"),
    "next_id from the buffer": lambda pool: pool.next_id(TicketSequence("photos", block=10)),
    "next_ids": lambda pool: pool.next_ids("photos", 3),
    "reserve": lambda pool: pool.reserve("photos", 3),
    "create_table": lambda pool: pool.create_table("photos"),
    "drop_table": lambda pool: pool.drop_table("photos"),
    "create_all": lambda pool: pool.create_all(Base.metadata),
    "raise_above": lambda pool: pool.raise_above("photos", 1000),
    "unquarantine": lambda pool: pool.unquarantine("photos"),
    "status": lambda pool: pool.status(["photos"]),
    "dispose": lambda pool: pool.dispose(),
    "with": lambda pool: pool.__enter__(),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
async def test_async_servers_refuse_synchronous_code(
    database: Database, call: Callable[[TicketPool], object]
) -> None:
    async with AsyncTicketPool([database(FILE, "tickets")]) as pool:
        await pool.create_table("photos")
        for _ in range(2):  # the second one has the others lie ready
            await pool.next_id(TicketSequence("photos", block=10))
        with pytest.raises(TicketArgumentError, match="await an AsyncTicketPool"):
            call(pool.sync_pool)
        assert await pool.next_id("photos") <= 10


def test_async_servers_refuse_program_without_loop(database: Database) -> None:
    with TicketPool([database(FILE, "tickets")]) as pool:  # closes what is left, if no loop runs
        for ask in (lambda: pool.next_id("photos"), pool.status):
            with pytest.raises(TicketArgumentError, match="use a synchronous driver"):
                ask()


@pytest.mark.parametrize("is_disposed", [True, False], ids=["disposed", "left open"])
def test_one_pool_in_several_loops(database: Database, is_disposed: bool) -> None:
    """As with one `asyncio.run()` after another."""
    pool = AsyncTicketPool([database(FILE, name) for name in ("one", "two")])

    async def run() -> list[int]:
        await pool.create_table("photos")
        ids = await pool.next_ids("photos", 3)
        if is_disposed:
            await pool.dispose()
        return ids

    assert len({key for _ in range(3) for key in asyncio.run(run())}) == 9
    pool.sync_pool.dispose()
