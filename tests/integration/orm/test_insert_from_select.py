"""INSERT ... SELECT with tickets: one for each row, in one statement that passes no row through the client."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from sqlalchemy import (
    URL,
    BigInteger,
    Column,
    ForeignKey,
    Integer,
    MetaData,
    SelectBase,
    String,
    Table,
    TypeDecorator,
    UniqueConstraint,
    Uuid,
    bindparam,
    create_engine,
    delete,
    event,
    func,
    insert,
    literal,
    null,
    select,
    text,
    union,
    union_all,
)
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.ext.horizontal_shard import ShardedSession
from sqlalchemy.orm import (
    DeclarativeBase,
    Mapped,
    Session,
    aliased,
    mapped_column,
    scoped_session,
    sessionmaker,
)

import albums
from sqla_tickets import (
    AsyncTicketPool,
    NoTicketServer,
    SnowflakeSequence,
    TicketArgumentError,
    TicketPool,
    TicketSequence,
    TicketsExhausted,
    UUIDSequence,
    insert_from_select,
)
from tests.integration.orm.conftest import Serve
from tests.support.counting import Inserted, Site, count_inserts, one

pytestmark = pytest.mark.every_case

metadata = MetaData()
words = Table(
    "words",
    metadata,
    Column("id", BigInteger, primary_key=True, autoincrement=False),
    Column("word", String(50)),
    Column("length", Integer),
)
photos = Table(
    "photos",
    metadata,
    Column("id", BigInteger, TicketSequence(), primary_key=True),
    Column("title", String(50)),
    Column("stars", Integer),
)
# No primary key of its own name, quoted names, and two columns of one sequence, only one of them unique.
orders = Table(
    "Order by",
    metadata,
    Column("id", BigInteger, TicketSequence("orders"), primary_key=True, key="order_id"),
    Column("select", BigInteger, TicketSequence("papers"), unique=True),
    Column("from %s", BigInteger, TicketSequence("papers")),
    Column("customer", String(50), default=lambda: "nobody"),
    Column("state", String(10), default=func.lower("NEW")),
)
WORDS = ["delta", "alpha", "echo", "bravo", "charlie"]


def named(identity: str, **more: str) -> dict[str, str]:
    return {"polymorphic_identity": identity, **more}


class Base(DeclarativeBase):
    metadata = metadata


class Person(Base):
    __tablename__ = "people"
    number: Mapped[int] = mapped_column("id", BigInteger, TicketSequence(), primary_key=True)
    name: Mapped[str | None] = mapped_column("full_name", String(50))
    kind: Mapped[str] = mapped_column(String(10), default="person")
    __mapper_args__: Any = named("person", polymorphic_on="kind")


class Manager(Person):
    __mapper_args__: Any = named("manager")


class Engineer(Person):
    __tablename__ = "engineers"
    number: Mapped[int] = mapped_column(
        "id", BigInteger, ForeignKey("people.id"), TicketSequence(), primary_key=True
    )
    machine: Mapped[str | None] = mapped_column(String(50))
    __mapper_args__: Any = named("engineer")


@pytest.fixture
def site(serve: Serve) -> Site:
    site = serve(metadata)
    with site.engine.begin() as connection:
        rows = [{"id": n, "word": word, "length": len(word)} for n, word in enumerate(WORDS)]
        connection.execute(insert(words), rows)
    return site


def titles(site: Site) -> list[str]:
    """The titles in the order of their tickets."""
    return [title for _, title in site.rows(photos.c.id, photos.c.title)]


def test_rows_of_a_select_are_one_draw_and_one_statement(site: Site) -> None:
    with site.count() as counted, site.engine.begin() as connection:
        n = insert_from_select(connection, photos, ["title"], select(words.c.word))
    assert n == 5
    assert counted.draws == {"photos": 1}
    assert counted.tickets == {"photos": 5}
    assert counted.inserts == [one("photos")]
    assert sorted(titles(site)) == sorted(WORDS)


ordered = select(words.c.word)
initial = func.substr(words.c.word, 1, 1).label("initial")
ORDERS: dict[str, tuple[SelectBase, str]] = {
    "column": (ordered.order_by(words.c.word), "abcde"),
    "descending": (ordered.order_by(words.c.word.desc()), "edcba"),
    "not selected": (ordered.order_by(words.c.id), "daebc"),
    "expression": (ordered.order_by(-words.c.length, func.upper(words.c.word)), "cabde"),
    "name": (ordered.order_by("word"), "abcde"),
    "label": (select(initial).order_by(initial.desc()), "edcba"),
    "limit": (ordered.order_by(words.c.word.desc()).limit(3).offset(1), "dcb"),
    "distinct": (ordered.distinct().order_by(words.c.word.desc()), "edcba"),
    "union": (union(ordered, select(literal("foxtrot"))).order_by("word"), "abcdef"),
    "join": (
        ordered.join(initials := words.alias(), initials.c.id == words.c.id).order_by(
            initials.c.word.desc()
        ),
        "edcba",
    ),
    "group": (ordered.group_by(words.c.word).order_by(func.max(words.c.id)), "daebc"),
}


@pytest.mark.parametrize("case", ORDERS)
def test_tickets_follow_the_order(site: Site, case: str) -> None:
    rows, expected = ORDERS[case]
    with site.engine.begin() as connection:
        insert_from_select(connection, photos, [photos.c.title], rows)
    assert "".join(title[0] for title in titles(site)) == expected


#: What gives SQL another syntax.
ANSI = ["ANSI", "PIPES_AS_CONCAT,HIGH_NOT_PRECEDENCE"]
SQL_MODES = {"mysql": ANSI, "mariadb": [*ANSI, "ORACLE", "MSSQL", "DB2", "POSTGRESQL"]}


@pytest.mark.app_databases("mysql", "mariadb")
def test_sql_modes(site: Site, app_kind: str) -> None:
    for mode in SQL_MODES[app_kind]:
        engine = create_engine(site.engine.url, connect_args={"sql_mode": mode})
        with engine.begin() as connection:
            in_force = str(connection.scalar(text("SELECT @@sql_mode"))).split(",")
            assert set(mode.split(",")) <= set(in_force)
            connection.execute(delete(photos))
            rows = select(words.c.word).order_by(words.c.id)
            assert insert_from_select(connection, photos, ["title"], rows) == 5
        engine.dispose()
        assert titles(site) == WORDS


cte = select(words.c.word, words.c.length).where(words.c.length > 4).cte("long_words")
SELECTS: dict[str, tuple[SelectBase, list[tuple[str | None, int | None]]]] = {
    "literals": (select(literal("x"), literal(7)), [("x", 7)]),
    "nulls": (select(words.c.word, null()).where(words.c.id == 0), [("delta", None)]),
    "null parameter": (select(literal(None), words.c.id).where(words.c.id == 3), [(None, 3)]),
    "nulls only": (
        select(null(), null()).select_from(words).where(words.c.id < 2).order_by(words.c.id),
        [(None, None)] * 2,
    ),
    "nulls without an order": (
        select(null(), null()).select_from(words).where(words.c.id < 2),
        [(None, None)] * 2,
    ),
    "none": (select(words.c.word, words.c.id).where(words.c.id < 0), []),
    "cte": (select(cte).where(cte.c.word > "d"), [("delta", 5)]),
    "union": (
        union_all(select(null(), literal(1)), select(literal("a"), literal(2))),
        [("a", 2), (None, 1)],
    ),
    "aggregate": (select(func.min(words.c.word), func.count()), [("alpha", 5)]),
    "text": (
        text("SELECT word, length FROM words WHERE id = :id")
        .bindparams(id=4)
        .columns(word=String, length=Integer),
        [("charlie", 7)],
    ),
    "join": (
        select(words.c.word, (other := words.alias()).c.id).join(
            other, words.c.id == other.c.id + 4
        ),
        [("charlie", 0)],
    ),
    "semi-join": (
        select(words.c.word, words.c.id).where(
            words.c.id.in_(select(other.c.id + 4).where(other.c.length > 0))
        ),
        [("charlie", 4)],
    ),
    "window": (
        select(words.c.word, func.rank().over(order_by=words.c.word))
        .limit(1)
        .order_by(words.c.word),
        [("alpha", 1)],
    ),
}


@pytest.mark.parametrize("case", SELECTS)
def test_rows_are_those_of_the_select(site: Site, case: str) -> None:
    rows, expected = SELECTS[case]
    with site.count() as counted, site.engine.begin() as connection:
        n = insert_from_select(connection, photos, ["title", "stars"], rows)
    assert n == len(expected)
    assert counted.tickets == ({"photos": n} if n else {})
    found = site.rows(photos.c.title, photos.c.stars)
    assert sorted(found, key=str) == sorted(expected, key=str)


@pytest.mark.parametrize("name", ["param_1", "ticket_1"])
def test_select_with_a_named_parameter(site: Site, name: str) -> None:
    """SQLAlchemy numbers parameters that have no name, such as those of the tickets."""
    rows = select(words.c.word).where(words.c.length == bindparam(name, 5))
    with site.engine.begin() as connection:
        assert insert_from_select(connection, photos, ["title"], rows.order_by(words.c.id)) == 3
    assert titles(site) == ["delta", "alpha", "bravo"]


def test_table_in_a_sharded_session_is_refused(site: Site) -> None:
    """Its chooser is called with classes."""
    everywhere: Any = lambda *_, **__: "one"  # noqa: E731  # a shard for each of three questions
    session = ShardedSession(everywhere, everywhere, everywhere, {"one": site.engine})
    copy: Any = (["title"], select(words.c.word))
    with session, pytest.raises(TicketArgumentError, match="the connection of a shard"):
        insert_from_select(session, photos, *copy)
    with session, session.begin():
        shard = session.connection(bind_arguments={"shard_id": "one"})
        assert insert_from_select(shard, photos, *copy) == 5


def test_table_is_copied_into_itself(site: Site) -> None:
    with site.engine.begin() as connection:
        insert_from_select(connection, photos, ["title"], select(words.c.word))
        for n in (5, 10, 20):
            own = select(photos.c.title).order_by(photos.c.id)
            assert insert_from_select(connection, photos, ["title"], own) == n
    assert sorted(titles(site)) == sorted(8 * WORDS)


def test_several_ticket_columns_and_defaults(site: Site) -> None:
    with site.count() as counted, site.engine.begin() as connection:
        empty = select(words.c.word).where(words.c.length < 5)
        assert insert_from_select(connection, orders, [orders.c.customer], empty) == 1
        given = select(words.c.id + 1_000_000)
        assert insert_from_select(connection, orders, ["order_id"], given) == 5
    assert counted.tickets == {"orders": 1, "papers": 12}
    found = site.rows(orders)
    papers = [number for order in found for number in order[1:3]]
    assert len(set(papers)) == 12
    assert {order[4] for order in found} == {"new"}
    assert sorted(order[3] for order in found) == ["echo", *5 * ["nobody"]]


def test_session_and_mapped_class(site: Site) -> None:
    with site.session() as session:
        session.add(Person(name="Ada"))
        people = select(Person.name).where(Person.name != "Bob")
        assert insert_from_select(session, Person, [Person.name], people) == 1
        with session.no_autoflush:
            session.add(Person(name="Bob"))
            assert insert_from_select(session, Person, ["name"], people) == 2
        manager = select(literal("Eve"), literal("manager"))
        assert insert_from_select(session, Manager, ["name", "kind"], manager) == 1
        assert session.scalars(select(Manager.name)).all() == ["Eve"]
        session.commit()
        scoped = scoped_session(sessionmaker(site.engine))
        other = aliased(Person)
        insert_from_select(scoped, Person, ["name"], select(other.name).where(other.name == "Bob"))
        scoped.rollback()
        scoped.remove()
    found = [name for _, name in site.rows(Person.number, Person.name)]
    assert sorted(filter(None, found)) == ["Ada", "Ada", "Ada", "Ada", "Bob", "Eve"]


def test_rollback_undoes_it(site: Site) -> None:
    with site.engine.connect() as connection:
        insert_from_select(connection, photos, ["title"], select(words.c.word))
        connection.rollback()
    assert titles(site) == []


@pytest.mark.app_databases("sqlite")
def test_rollback_undoes_it_where_a_cte_is_in_front(site: Site) -> None:
    """The driver of SQLite begins no transaction for a statement that begins with WITH, and counts none of its rows."""
    with site.engine.connect() as connection:
        assert insert_from_select(connection, photos, ["title"], select(cte.c.word)) == 4
        connection.rollback()
        assert insert_from_select(connection, photos, ["title"], select(cte.c.word)) == 4
        assert insert_from_select(connection, photos, ["title"], select(cte.c.word)) == 4
        connection.commit()
    assert len(titles(site)) == 8


def test_tickets_of_several_ranges(serve: Serve) -> None:
    own = MetaData()
    source = Table("source", own, Column("n", Integer), Column("other", Integer))
    table = Table(
        "t",
        own,
        Column("id", BigInteger, TicketSequence(block=(6, 6)), primary_key=True),
        Column("n", Integer),
        Column("other", Integer),
    )
    site = serve(own)
    with site.engine.begin() as connection:
        connection.execute(insert(source), [{"n": n} for n in range(20)])
        buffered = site.pool.next_ids(table.c.id.default, 3)  # type: ignore[arg-type]  # it is one
        rows = select(source.c.n, null()).order_by(source.c.n)
        assert insert_from_select(connection, table, ["n", "other"], rows) == 20
    found = site.rows(table.c.n, table.c.id)
    tickets = [ticket for _, ticket in found]
    assert len({*tickets, *buffered}) == 23
    steps = [later - before for before, later in itertools.pairwise(tickets)]
    assert steps.count(2) == 18  # the rest of the buffered block, and a new one from another server


@pytest.mark.parametrize("label", ["anon_2", "anon_3", "ticket_number", "Ticket_Number_0"])
def test_label_that_the_statement_could_have_given(serve: Serve, label: str) -> None:
    own = MetaData()
    source = Table("source", own, Column("n", Integer), Column("other", Integer))
    sequence = TicketSequence(block=(6, 6))
    table = Table(
        "t", own, Column("id", BigInteger, sequence, primary_key=True), Column("n", Integer)
    )
    site = serve(own)
    rows = select(source.c.n.label(label)).order_by(-source.c.other)
    with site.engine.begin() as connection:
        numbers = [{"n": -n, "other": n} for n in range(20)]
        connection.execute(insert(source), numbers)
        site.pool.next_ids(sequence, 3)  # the rest of a block, and a new one: two ranges
        assert insert_from_select(connection, table, ["n"], rows) == 20
    found = site.rows(table.c.id, table.c.n)
    assert min(ticket for ticket, _ in found) > 0
    assert sorted(n for _, n in found) == sorted(-n for n in range(20))


# -- refused


class Doubled(TypeDecorator[int]):
    impl = BigInteger
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: object) -> Any:
        return None if value is None else 2 * value


REFUSED: dict[str, tuple[Callable[[MetaData], list[Any]], str]] = {
    "not unique": (
        lambda _: [
            Column("id", BigInteger, primary_key=True, default=1),
            Column("n", BigInteger, TicketSequence(), index=True),
        ],
        r"t\.n has no PRIMARY KEY or UNIQUE of its own",
    ),
    "composite": (
        lambda _: [
            Column("a", Integer, primary_key=True, default=1),
            Column("n", BigInteger, TicketSequence(), primary_key=True),
            UniqueConstraint("n", "a"),
        ],
        r"t\.n has no PRIMARY KEY or UNIQUE of its own",
    ),
    "changes tickets": (
        lambda _: [Column("n", Doubled, TicketSequence(), primary_key=True)],
        r"t\.n: the type Doubled\(\) may change",
    ),
    "snowflake": (
        lambda _: [Column("n", BigInteger, SnowflakeSequence(), primary_key=True)],
        r"t\.n: SnowflakeSequence\(\) makes ids row by row",
    ),
    "uuid": (
        lambda _: [
            Column("n", BigInteger, TicketSequence(), primary_key=True),
            Column("u", Uuid, UUIDSequence()),
        ],
        r"t\.u: UUIDSequence\(\) makes ids row by row",
    ),
    "no tickets": (
        lambda _: [Column("n", BigInteger, primary_key=True, autoincrement=False)],
        r"no column .*TicketSequence: use insert\(t\)\.from_select\(\)",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_table_without_safe_tickets_is_refused(serve: Serve, case: str) -> None:
    own = MetaData()
    columns, message = REFUSED[case]
    table = Table("t", own, *columns(own), Column("x", Integer))
    site = serve(own)
    with site.engine.begin() as connection, pytest.raises(TicketArgumentError, match=message):
        insert_from_select(connection, table, ["x"], select(literal(1)))
    assert site.rows(table) == []


@pytest.mark.app_databases("sqlite")
def test_invalid_arguments_are_refused(site: Site) -> None:
    one_row = select(literal("a"))

    def refuses(message: str, connection: Any, table: Any, columns: Any, rows: Any) -> None:
        with pytest.raises(TicketArgumentError, match=message):
            insert_from_select(connection, table, columns, rows)

    with site.session() as session:
        refuses("it has no column other", session, photos, ["other"], one_row)
        refuses(r"it has no column words\.word", session, photos, [words.c.word], one_row)
        refuses("2 columns in the SELECT, found 1", session, photos, ["title", "stars"], one_row)
        refuses("in several tables. Insert into Person", session, Engineer, ["machine"], one_row)
        refuses(r"points to people\.id", session, Engineer.__table__, ["machine"], one_row)
        refuses("a class that is mapped", session, Session, ["machine"], one_row)
        refuses("a class that is mapped", session, "photos", ["title"], one_row)
        refuses(r"Engine: .*engine\.begin\(\)", site.engine, photos, ["title"], one_row)
        order = select(words.c.word).order_by(text("word"))
        refuses("textual ORDER BY word", session, photos, ["title"], order)
        distinct = select(words.c.word).distinct().order_by(words.c.id)
        refuses(r"ORDER BY words\.id, which", session, photos, ["title"], distinct)
        deleted = delete(words).returning(words.c.word).cte()
        refuses(
            "Counting its rows would execute", session, photos, ["title"], select(deleted.c.word)
        )
    assert len(site.rows(words)) == 5


def test_nothing_is_inserted_without_tickets(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    with site.engine.begin() as connection:
        connection.execute(insert(photos).values(title="before"))
        monkeypatch.setattr(site.pool, "reserve", TicketPool(["sqlite:////nowhere/1.db"]).reserve)
        with pytest.raises(NoTicketServer):
            insert_from_select(connection, photos, ["title"], select(words.c.word))
        monkeypatch.undo()
        connection.execute(insert(photos).values(title="after"))
    assert sorted(titles(site)) == ["after", "before"]


def test_tickets_beyond_the_column_are_refused(serve: Serve) -> None:
    own = MetaData()
    table = Table(
        "small",
        own,
        Column("id", Integer, TicketSequence(), primary_key=True),
        Column("x", Integer),
    )
    site = serve(own)
    site.pool.drop_table("small")
    site.pool.create_table("small", start=2**31 - 3)
    rows = union_all(*(select(literal(n)) for n in range(6)))
    sent: list[Inserted] = []
    with (
        count_inserts(site.engine, sent),
        site.engine.begin() as connection,
        pytest.raises(TicketsExhausted, match=r"small\.id can hold"),
    ):
        insert_from_select(connection, table, ["x"], rows)
    assert not sent
    assert site.rows(table) == []


def test_other_constraints_are_not_retried(site: Site) -> None:
    with site.engine.begin() as connection:
        connection.execute(insert(orders).values(order_id=7, customer="before"))
    with site.count() as counted, site.engine.begin() as connection:
        connection.execute(insert(orders).values(order_id=8))
        taken = union_all(select(literal(7)), select(literal(9)))
        with pytest.raises(IntegrityError):
            insert_from_select(connection, orders, ["order_id"], taken)
        connection.execute(insert(orders).values(order_id=10))
    assert len(counted.inserts) == 3
    assert [order[0] for order in site.rows(orders)] == [7, 8, 10]


def test_schemas(serve: Serve, app_kind: str, tmp_path: Path) -> None:
    own = MetaData()
    site = serve(own)
    engine = site.engine
    if app_kind == "sqlite":
        engine = create_engine("sqlite://")
        event.listen(
            engine, "connect", lambda c, _: c.execute(f"ATTACH '{tmp_path}/other.db' AS other")
        )
    table = Table(
        "a table",
        own,
        Column("id", BigInteger, TicketSequence("tables"), primary_key=True),
        Column("x", Integer),
        schema="per_tenant",
    )
    schema = engine.url.database if app_kind in {"mysql", "mariadb"} else "other"
    if app_kind == "postgresql":
        with engine.begin() as connection:
            connection.exec_driver_sql("CREATE SCHEMA other")
    site.pool.create_table("tables")
    translated = engine.execution_options(schema_translate_map={"per_tenant": schema})
    with translated.begin() as connection:
        own.create_all(connection)
        rows = union_all(*(select(literal(n)) for n in range(3)))
        assert insert_from_select(connection, table, ["x"], rows) == 3
        assert len(connection.execute(select(table)).all()) == 3


def test_example_copies_an_album(serve: Serve) -> None:
    site = serve(albums.Base.metadata)
    with site.session() as session:
        album = albums.Album(title="Beach")
        session.add(album)
        session.flush()
        photos = [albums.Photo(album_id=album.id, title=f"Wave {n}") for n in range(10)]
        session.add_all(photos)
        session.flush()
        tags = [(photo, word) for photo in photos for word in ("sea", photo.title)]
        session.add_all(albums.Tag(photo_id=photo.id, word=word) for photo, word in tags)
        copy = albums.copy_album(session, album)
        session.commit()
        found = select(albums.Photo.title, albums.Tag.word).join(
            albums.Tag, albums.Tag.photo_id == albums.Photo.id
        )
        pairs = session.execute(found.where(albums.Photo.album_id == copy.id)).all()
    assert len(pairs) == 20
    assert all(word in ("sea", title) for title, word in pairs)


ASYNC = {
    "sqlite": "sqlite+aiosqlite",
    "mysql": "mysql+asyncmy",
    "mariadb": "mysql+aiomysql",
    "postgresql": "postgresql+asyncpg",
}


async def test_asynchronous_session_and_connection(
    serve: Serve, app_kind: str, app_url: URL, tmp_path: Path
) -> None:
    site = serve(metadata)
    with site.engine.begin() as connection:
        connection.execute(insert(words), [{"id": n, "word": word} for n, word in enumerate(WORDS)])
    # asyncpg does not count the rows that a statement changes, if it streams
    streaming = {"stream_results": True}
    url = app_url.set(drivername=ASYNC[app_kind])
    engine = create_async_engine(url, execution_options=streaming)
    copy: Any = (photos, ["title"], select(words.c.word))
    pool = AsyncTicketPool([f"sqlite+aiosqlite:///{tmp_path}/async{n}.db" for n in (1, 2)])
    await pool.create_table("photos", start=1_000)
    async with pool, AsyncSession(engine) as session:
        with pool.attached(metadata):
            assert await session.run_sync(insert_from_select, *copy) == 5
            with pytest.raises(TicketArgumentError, match=r"run_sync\(insert_from_select"):
                insert_from_select(cast("Session", session), *copy)
        await session.commit()
    async with engine.begin() as async_connection:  # with tickets that a thread waits for
        assert await async_connection.run_sync(insert_from_select, *copy) == 5
    await engine.dispose()
    assert len(titles(site)) == 10
