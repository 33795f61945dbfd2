"""The table "How many draws" of docs/guide/inserting.md: one test for each of its rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from types import MappingProxyType
from typing import Any, TypeVar, cast

import pytest
from sqlalchemy import (
    BigInteger,
    Column,
    Executable,
    ForeignKey,
    Integer,
    MetaData,
    String,
    Table,
    event,
    insert,
    literal,
    select,
    text,
    update,
)
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship

from sqla_tickets import TicketArgumentError, TicketSequence, insert_from_select
from tests.integration.orm.conftest import Serve
from tests.support.counting import Site, many, one

Test = TypeVar("Test", bound=Callable[..., None])


def row(way: str, promise: str) -> Callable[[Test], Test]:
    """Mark the test of a row of the table; tests/docs compares the marks with the page.

    Args:
        way: what is done.
        promise: what the page says of it.
    """
    return lambda test: test


class Base(DeclarativeBase):
    pass


class Photo(Base):
    __tablename__ = "photos"
    id: Mapped[int] = mapped_column(BigInteger, TicketSequence("photos"), primary_key=True)
    title: Mapped[str | None] = mapped_column(String(50), unique=True)
    city: Mapped[str | None] = mapped_column(String(50))
    number: Mapped[int | None] = mapped_column(BigInteger)
    comments: Mapped[list[Comment]] = relationship()


class Comment(Base):
    __tablename__ = "comments"
    id: Mapped[int] = mapped_column(BigInteger, TicketSequence(), primary_key=True)
    photo_id: Mapped[int] = mapped_column(ForeignKey("photos.id"))


class Person(Base):
    __tablename__ = "people"
    id: Mapped[int] = mapped_column(BigInteger, TicketSequence(), primary_key=True)
    kind: Mapped[str] = mapped_column(String(10))
    __mapper_args__: Any = MappingProxyType(
        {"polymorphic_on": "kind", "polymorphic_identity": "person"}
    )


class Engineer(Person):
    __tablename__ = "engineers"
    id: Mapped[int] = mapped_column(BigInteger, ForeignKey("people.id"), primary_key=True)
    __mapper_args__: Any = MappingProxyType({"polymorphic_identity": "engineer"})


class Word(Base):
    """Its key is a string."""

    __tablename__ = "words"
    word: Mapped[str] = mapped_column(String(50), primary_key=True)
    number: Mapped[int | None] = mapped_column(BigInteger)


photos = cast("Table", Photo.__table__)
SEQUENCE = cast("TicketSequence", photos.c.id.default)
TITLES = [{"title": title} for title in "abcde"]
#: Three runs of rows with the same keys.
RUNS: list[dict[str, Any]] = [
    {"title": "a"},
    {"title": "b", "city": None},
    {"title": "c", "city": "x"},
    {"title": "d"},
]


@pytest.fixture
def site(serve: Serve) -> Site:
    return serve(Base.metadata)


def ids_of(site: Site) -> dict[str, int]:
    """The ids of the photos by their titles."""
    return dict(site.rows(Photo.title, Photo.id))


@contextmanager
def count_updates(site: Site) -> Iterator[list[str]]:
    """The UPDATEs that the application's database is sent."""
    sent: list[str] = []

    def record(conn: Any, cursor: Any, statement: str, *_: Any) -> None:
        if statement.startswith("UPDATE"):
            sent.append(statement)

    event.listen(site.engine, "before_cursor_execute", record)
    try:
        yield sent
    finally:
        event.remove(site.engine, "before_cursor_execute", record)


def upsert(site: Site, number: Any) -> Any:
    """An INSERT of a photo, or else the UPDATE of its number."""
    dialects: Any = {"postgresql": postgresql, "sqlite": sqlite}
    module = dialects.get(site.engine.dialect.name)
    if module is None:
        return mysql.insert(photos).on_duplicate_key_update(number=number)
    statement = module.insert(photos)
    return statement.on_conflict_do_update(index_elements=["title"], set_={"number": number})


@row("`session.add`, `add_all`, cascades, inheritance", "one draw per sequence and flush")
def test_flush(site: Site) -> None:
    with site.count() as counted, site.session() as session, session.begin():
        session.add(Photo(title="a", comments=[Comment(), Comment()]))
        session.add_all(Photo(title=title, comments=[Comment()]) for title in "bcd")
        session.add_all([Person(), Engineer(), Engineer()])
        session.flush()
        assert counted.draws == {}
        session.add_all([Photo(title="e"), Photo(title="f")])
    assert counted.draws == {"photos": 2, "comments": 1, "people": 1}
    assert counted.tickets == {"photos": 6, "comments": 5, "people": 3}
    ids = ids_of(site)
    assert ids["a"] < ids["b"] < ids["c"] < ids["d"]


@row(
    "`session.execute(insert(Photo), rows)`, `bulk_save_objects`, `bulk_insert_mappings`",
    "one draw per run of rows of one class with the same keys. Without `render_nulls`, a None counts as a missing key. On"
    " MySQL, one draw per row if SQLAlchemy needs the ids: `return_defaults`, joined inheritance",
)
@pytest.mark.parametrize("way", ["execute", "objects", "mappings"])
def test_bulk_insert(site: Site, way: str) -> None:
    with site.count() as counted, site.session() as session, session.begin():
        if way == "execute":
            session.execute(insert(Photo), RUNS)
        elif way == "objects":
            session.bulk_save_objects([Photo(**row) for row in RUNS])
        else:
            session.bulk_insert_mappings(Photo.__mapper__, RUNS)
    assert counted.draws == {"photos": 3}
    assert counted.tickets == {"photos": 4}
    assert [sent.sets for sent in counted.inserts] == [2, 1, 1]
    assert len(set(ids_of(site).values())) == 4


def test_bulk_insert_of_several_classes(site: Site) -> None:
    with site.count() as counted, site.session() as session, session.begin():
        session.bulk_save_objects([Photo(), Photo(), Person(), Photo()])
    assert counted.draws == {"photos": 2, "people": 1}
    assert counted.tickets == {"photos": 3, "people": 1}


def test_bulk_insert_with_render_nulls(site: Site) -> None:
    rows: list[dict[str, Any]] = [{"city": "x"}, {"city": None}, {"city": "y"}]
    with site.count() as counted, site.session() as session, session.begin():
        session.execute(insert(Photo), rows, execution_options={"render_nulls": True})
        session.bulk_insert_mappings(Photo.__mapper__, rows, render_nulls=True)
    assert counted.draws == {"photos": 2}
    assert counted.tickets == {"photos": 6}


def test_bulk_insert_that_needs_the_ids(site: Site) -> None:
    new = [Photo(title=title) for title in "abc"]
    with site.count() as counted, site.session() as session, session.begin():
        session.bulk_save_objects(new, return_defaults=True)
        session.execute(insert(Engineer), [{}, {}, {}])
    assert counted.tickets == {"photos": 3, "people": 3}
    draws = 1 if site.returning else 3
    assert counted.draws == {"photos": draws, "people": draws}
    assert {photo.title: photo.id for photo in new} == ids_of(site)


@row(
    "`connection.execute(insert(photos), rows)`, `insert(photos).values([...])`",
    "one draw per statement",
)
def test_core_insert(site: Site) -> None:
    with site.count() as counted, site.engine.begin() as connection:
        connection.execute(insert(photos), TITLES)
        connection.execute(insert(photos).values([{"title": f"{n}"} for n in range(7)]))
    assert counted.draws == {"photos": 2}
    assert counted.tickets == {"photos": 12}
    assert counted.inserts == [many("photos", 5), one("photos")]
    assert len(set(ids_of(site).values())) == 12


@row("`session.merge` in a loop", "one draw per `merge`, because each flushes the one before")
def test_merge_in_a_loop(site: Site) -> None:
    with site.count() as counted, site.session() as session, session.begin():
        for title in "abc":
            session.merge(Photo(title=title))
    assert counted.draws == counted.tickets == {"photos": 3}
    assert counted.inserts == [one("photos")] * 3


@row(
    "upserts",
    "a ticket per row; if the row exists, its ticket is a gap, and `inserted_primary_key` may name that ticket",
)
def test_upsert(site: Site) -> None:
    with site.engine.begin() as connection:
        connection.execute(insert(photos).values(title="b"))
    before = ids_of(site)["b"]
    with site.count() as counted, site.engine.begin() as connection:
        connection.execute(upsert(site, text("7")), TITLES)
        offered = connection.execute(upsert(site, text("8")).values(title="b").inline())
    assert counted.draws == {"photos": 2}
    assert counted.tickets == {"photos": 6}
    assert ids_of(site)["b"] == before
    assert sorted(ids_of(site)) == list("abcde")
    assert offered.inserted_primary_key is not None
    assert offered.inserted_primary_key[0] not in ids_of(site).values()


@row(
    "`insert().values(id=sequence.next_value())`, executed for one row or a list of rows",
    "one draw per statement",
)
def test_insert_of_next_value(site: Site) -> None:
    statement = insert(photos).values(id=SEQUENCE.next_value(), number=SEQUENCE.next_value())
    with site.count() as counted, site.engine.begin() as connection:
        connection.execute(statement)
        connection.execute(statement, TITLES)
    assert counted.draws == {"photos": 2}
    assert counted.tickets == {"photos": 12}
    assert len({n for row in site.rows(Photo.id, Photo.number) for n in row}) == 12


@row(
    "`photo.number = sequence.next_value()` in the ORM",
    "one draw per object, each with its own INSERT or UPDATE",
)
def test_attribute_of_next_value(site: Site) -> None:
    new = [Photo(id=n, title=f"{n}", number=SEQUENCE.next_value()) for n in (-1, -2, -3)]
    with site.count() as counted, count_updates(site) as updates, site.session() as session:
        session.add_all(new)
        session.flush()
        for photo in new[:2]:
            photo.number = SEQUENCE.next_value()
        session.commit()
    assert counted.draws == counted.tickets == {"photos": 5}
    assert counted.inserts == [one("photos")] * 3
    assert len(updates) == 2
    assert len({number for (number,) in site.rows(Photo.number)}) == 3


@row(
    "`update().values(number=sequence.next_value())`, if its WHERE only compares the whole primary key with values",
    "one draw per statement; if no row is found, the ticket is a gap. Only for integer or UUID keys: in MySQL,"
    " many strings equal 0",
)
def test_update_of_next_value(site: Site) -> None:
    with site.engine.begin() as connection:
        connection.execute(insert(photos), [{"id": n, "title": f"{n}"} for n in (1, 2)])
    value = update(photos).values(number=SEQUENCE.next_value())
    with site.count() as counted, site.engine.begin() as connection:
        for key in (1, 2, 3):
            found = connection.execute(value.where(photos.c.id == key)).rowcount
            assert found == (0 if key == 3 else 1)
        by_string = update(Word).values(number=SEQUENCE.next_value()).where(Word.word == "a")
        with pytest.raises(TicketArgumentError, match="integers or UUIDs"):
            connection.execute(by_string)
    assert counted.draws == counted.tickets == {"photos": 3}
    assert None not in [number for (number,) in site.rows(Photo.number)]


@row(
    "`select(sequence.next_value())` with nothing else, `connection.scalar(sequence)`",
    "one draw per ticket",
)
def test_select_of_next_value(site: Site) -> None:
    two = select(SEQUENCE.next_value().label("a"), SEQUENCE.next_value().label("b"))
    with site.count() as counted, site.engine.connect() as connection:
        found = [connection.scalar(select(SEQUENCE.next_value())), connection.scalar(SEQUENCE)]
        found += connection.execute(two).one()
    assert counted.draws == counted.tickets == {"photos": 4}
    assert len(set(found)) == 4


@row(
    "`sequence.next_value()` elsewhere: other UPDATEs, `values([...])`, the update of an upsert, RETURNING, subqueries,"
    " expressions",
    "refused: one ticket could be stored in many rows",
)
def test_next_value_elsewhere(site: Site) -> None:
    ticket = SEQUENCE.next_value()
    refused: dict[str, Executable] = {
        "update": update(photos).values(number=ticket),
        "values": insert(photos).values([{"number": ticket}, {"number": ticket}]),
        "upsert": upsert(site, ticket).values(title="a"),
        "returning": insert(photos).values(title="a").returning(ticket),
        "subquery": insert(photos).values(number=select(ticket).scalar_subquery()),
        "expression": insert(photos).values(number=ticket + 1),
        "select": select(ticket, photos.c.id),
    }
    with site.count() as counted, site.engine.begin() as connection:
        for statement in refused.values():
            with pytest.raises(TicketArgumentError, match="which several rows could get here"):
                connection.execute(statement)
    assert not counted.draws
    assert ids_of(site) == {}


@row(
    "`insert_from_select(session, Photo, columns, select)`",
    "one draw per statement, one more for [over a hundred rows](#rows-of-a-select)",
)
@pytest.mark.parametrize(("rows", "draws"), [(100, 1), (101, 2)])
def test_rows_of_a_select(site: Site, rows: int, draws: int) -> None:
    with site.session() as session, session.begin():
        session.execute(insert(Word), [{"word": f"{n}"} for n in range(rows)])
        with site.count() as counted:
            assert insert_from_select(session, Photo, ["title"], select(Word.word)) == rows
    assert counted.draws == {"photos": draws}
    assert counted.inserts == [one("photos")]
    assert len(set(ids_of(site).values())) == rows


@row(
    "`insert().from_select()` without the id",
    "refused: one value for many rows would be a duplicate",
)
def test_from_select(site: Site) -> None:
    copy = insert(photos).from_select(["title"], select(Word.word))
    with site.count() as counted, site.engine.begin() as connection:
        connection.execute(insert(Word), [{"word": "a"}, {"word": "b"}])
        with pytest.raises(TicketArgumentError, match="use insert_from_select"):
            connection.execute(copy)
        rows = select(literal(7), Word.word).where(Word.word == "a")
        connection.execute(insert(photos).from_select(["id", "title"], rows))
    assert not counted.draws
    assert ids_of(site) == {"a": 7}


@row(
    "several INSERTs in one statement, by CTEs on PostgreSQL",
    "refused, or NULL for some ids, as SQLAlchemy sets the defaults of one INSERT only: give every row an id of"
    " `pool.next_id()`",
)
@pytest.mark.app_databases("postgresql", "sqlite")
def test_several_inserts_in_one_statement(site: Site) -> None:
    """SQLite knows no such statement, but what it is sent for the ids is the same."""
    inner = insert(Word).values(word="b").cte("inner")
    outer = insert(photos).values(title="a").add_cte(inner)
    sent: list[Any] = []

    @event.listens_for(site.engine, "before_cursor_execute")
    def record(
        conn: Any, cursor: Any, statement: str, parameters: Any, context: Any, _: Any
    ) -> None:
        sent.append(context.compiled_parameters[0]["id"])

    with site.count() as counted, site.engine.connect() as connection:
        with pytest.raises(DBAPIError):
            connection.execute(outer)
        connection.rollback()
        number = site.pool.next_id("photos")
        is_known = site.engine.dialect.name == "postgresql"
        with nullcontext() if is_known else pytest.raises(DBAPIError):
            connection.execute(outer.values(id=number))
            connection.commit()
    event.remove(site.engine, "before_cursor_execute", record)
    assert sent == [None, number]
    assert counted.draws == {"photos": 1}
    assert ids_of(site) == ({"a": number} if is_known else {})


@row(
    '`{"id": None}` in `values()` or the first row of a Core insert, `text()`, other programs',
    "no draw: the database gets what you wrote",
)
def test_what_draws_nothing(site: Site) -> None:
    rows: list[dict[str, Any]] = [{"id": None, "title": "a"}, {"id": 9, "title": "d"}]
    nulls: list[tuple[Any, Any]] = [
        (insert(photos), rows),
        (insert(photos), rows[0]),
        (insert(photos).values(id=None), None),
        (insert(photos).values(rows[::-1]), None),
    ]
    with site.count() as counted:
        for statement, parameters in nulls:
            with site.engine.connect() as connection, pytest.raises(DBAPIError, match=r"(?i)null"):
                connection.execute(statement, parameters)
        with site.engine.begin() as connection:
            connection.execute(text("INSERT INTO photos (id, title) VALUES (7, 'b')"))
            driver: Any = connection.connection.dbapi_connection
            driver.cursor().execute("INSERT INTO photos (id, title) VALUES (8, 'c')")
    assert not counted.draws
    assert ids_of(site) == {"b": 7, "c": 8}


def test_none_in_rows_that_do_not_choose_the_columns(site: Site) -> None:
    """SQLAlchemy takes those of a list from its first row, and those of the ORM's from what is not None."""
    later: list[dict[str, Any]] = [{"title": "a"}, {"id": None, "title": "b"}]
    with site.count() as counted, site.session() as session, session.begin():
        session.connection().execute(insert(photos), later)
        session.execute(insert(Photo), [{"id": None, "title": "c"}])
    assert counted.draws == {"photos": 2}
    assert counted.tickets == {"photos": 3}
    assert len(set(ids_of(site).values())) == 3


def test_null_for_keys_that_number_themselves(serve: Serve) -> None:
    """The other two kinds of key of which the page warns."""
    own = MetaData()
    table = Table("own", own, Column("id", Integer, TicketSequence(), primary_key=True))
    site = serve(own)
    if site.engine.dialect.name == "mysql":
        with site.engine.begin() as connection:
            connection.execute(text("ALTER TABLE own MODIFY id INTEGER NOT NULL AUTO_INCREMENT"))
    numbers_itself = site.engine.dialect.name != "postgresql"
    with (
        site.count() as counted,
        nullcontext() if numbers_itself else pytest.raises(DBAPIError, match=r"(?i)null"),
        site.engine.begin() as connection,
    ):
        connection.execute(insert(table).values(id=None))
    assert not counted.draws
    assert site.rows(table.c.id) == ([(1,)] if numbers_itself else [])


@pytest.mark.app_databases("mysql", "mariadb")
def test_column_that_is_smaller_than_the_model_says(site: Site) -> None:
    site.pool.drop_table("people")
    site.pool.create_table("people", start=2**31 + 10)
    with site.engine.begin() as connection:
        connection.execute(text("DROP TABLE engineers"))
        connection.execute(text("ALTER TABLE people MODIFY id INTEGER NOT NULL"))
    statement = insert(Person.__table__).values(kind="person")  # type: ignore[arg-type]  # it is a table
    with site.engine.connect() as connection, pytest.raises(DBAPIError, match="Out of range"):
        connection.execute(statement)
    with site.engine.begin() as connection:
        connection.execute(text("SET SESSION sql_mode = ''"))
        connection.execute(statement)
    assert site.rows(Person.id) == [(2**31 - 1,)]
