"""`TicketSequence.next_value()`: one ticket for each row, drawn when a statement is executed, or an error."""

from __future__ import annotations

import copy
import pickle
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import (
    BigInteger,
    ClauseElement,
    Column,
    Integer,
    MetaData,
    String,
    Table,
    Uuid,
    bindparam,
    case,
    create_engine,
    delete,
    exists,
    func,
    insert,
    lambda_stmt,
    literal,
    literal_column,
    or_,
    select,
    text,
    true,
    update,
)
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.exc import DBAPIError, StatementError
from sqlalchemy.ext.horizontal_shard import ShardedSession
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column
from sqlalchemy.sql import visitors
from sqlalchemy.types import TypeDecorator

from sqla_tickets import (
    PoolNotAttached,
    TicketArgumentError,
    TicketSequence,
    TicketsExhausted,
)
from tests.integration.orm.conftest import Serve
from tests.support.counting import Site, many, one


class Negative(TypeDecorator[int]):
    """Stores a number with the other sign."""

    impl = BigInteger
    cache_ok = True

    def process_bind_param(self, value: int | None, dialect: object) -> int | None:
        return None if value is None else -value

    def process_result_value(self, value: int | None, dialect: object) -> int | None:
        return None if value is None else -value


class Base(DeclarativeBase):
    pass


class Photo(Base):
    """A key that has tickets, a number that may have, and a mapped name that is not the column's."""

    __tablename__ = "photos"
    key: Mapped[int] = mapped_column("id", BigInteger, TicketSequence("photos"), primary_key=True)
    number: Mapped[int | None] = mapped_column(BigInteger, unique=True)
    title: Mapped[str | None] = mapped_column(String(50))


class Tag(Base):
    """Its tickets are called like the table."""

    __tablename__ = "tags"
    id: Mapped[int] = mapped_column(BigInteger, TicketSequence(), primary_key=True)
    negative: Mapped[int | None] = mapped_column(Negative)
    small: Mapped[int | None] = mapped_column(Integer)


class Word(Base):
    __tablename__ = "words"
    word: Mapped[str] = mapped_column(String(50), primary_key=True)
    number: Mapped[int | None] = mapped_column(BigInteger)


class Area(Base):
    __tablename__ = "areas"
    key: Mapped[Any] = mapped_column(Uuid, primary_key=True)
    spot: Mapped[int] = mapped_column(Integer, primary_key=True)
    number: Mapped[int | None] = mapped_column(BigInteger)


def table_of(mapped: type[Base]) -> Table:
    table = mapped.__table__
    assert isinstance(table, Table)
    return table


def sequence_of(mapped: type[Base]) -> TicketSequence:
    found = [column.default for column in table_of(mapped).c if column.default is not None]
    assert isinstance(found[0], TicketSequence)
    return found[0]


photos, tags, words, areas = map(table_of, (Photo, Tag, Word, Area))
PHOTOS, TAGS = sequence_of(Photo), sequence_of(Tag)
TITLES = [{"title": title} for title in "abc"]


@pytest.fixture
def site(serve: Serve) -> Site:
    return serve(Base.metadata)


def test_insert_of_one_row(site: Site) -> None:
    statement = insert(photos).values(id=PHOTOS.next_value(), title="a")
    with site.count() as counted, site.engine.begin() as connection:
        keys = [connection.execute(statement).inserted_primary_key for _ in range(2)]
    assert counted.draws == counted.tickets == {"photos": 2}
    assert counted.inserts == [one("photos")] * 2
    assert sorted(key[0] for key in keys if key) == [key for key, *_ in site.rows(photos)]


def test_executemany_draws_once_for_all_rows_and_columns(site: Site) -> None:
    statement = insert(photos).values(number=PHOTOS.next_value())
    with site.count() as counted, site.engine.begin() as connection:
        for _ in range(2):
            connection.execute(statement, TITLES)
    assert counted.draws == {"photos": 2}
    assert counted.tickets == {"photos": 12}
    assert counted.inserts == [many("photos", 3)] * 2
    assert len({number for row in site.rows(photos) for number in row[:2]}) == 12


@pytest.mark.app_databases("mariadb", "postgresql", "sqlite")
def test_batches_of_returned_rows(site: Site) -> None:
    statement = insert(photos).values(id=PHOTOS.next_value(), number=PHOTOS.next_value())
    statement = statement.returning(photos.c.id, photos.c.title, sort_by_parameter_order=True)
    rows = [{"title": str(n)} for n in range(2500)]
    with site.count() as counted, site.engine.begin() as connection:
        returned = connection.execute(statement, rows).all()
    assert counted.draws == {"photos": 1}
    assert counted.tickets == {"photos": 5000}
    assert [title for _, title in returned] == [str(n) for n in range(2500)]
    assert len({number for row in site.rows(photos) for number in row[:2]}) == 5000


def test_parameters_set_by_hand_stay(site: Site) -> None:
    statement = insert(photos).values(number=PHOTOS.next_value())
    rows: list[dict[str, Any]] = [{"number": 1_000_001}, {"number": 1_000_003}]
    with site.count() as counted, site.engine.begin() as connection:
        connection.execute(statement, rows)
    assert counted.tickets == {"photos": 2}
    assert [number for _, number, _ in site.rows(photos)] == [1_000_001, 1_000_003]


def test_one_expression_in_two_columns_is_two_tickets(site: Site) -> None:
    value = PHOTOS.next_value()
    with site.engine.begin() as connection:
        connection.execute(insert(photos).values(id=value, number=value))
    [(key, number, _)] = site.rows(photos)
    assert number is not None
    assert key != number


def test_another_sequence_than_the_columns_own(site: Site) -> None:
    with site.count() as counted, site.engine.begin() as connection:
        connection.execute(insert(photos).values(number=TAGS.next_value()), TITLES)
        connection.execute(insert(photos).values(number=TAGS.next_value()))
    assert counted.draws == {"photos": 2, "tags": 2}
    assert counted.tickets == {"photos": 4, "tags": 4}
    assert None not in [number for _, number, _ in site.rows(photos)]


def test_statements_alike_draw_from_their_own_sequences(site: Site) -> None:
    """A compiled statement that was cached would draw from the first one's."""
    with site.count() as counted, site.engine.begin() as connection:
        for sequence in (PHOTOS, TAGS, PHOTOS):
            connection.scalar(select(sequence.next_value()))
    assert counted.tickets == {"photos": 2, "tags": 1}


def test_the_columns_type_stores_the_ticket(site: Site) -> None:
    with site.engine.begin() as connection:
        connection.execute(insert(tags).values(negative=TAGS.next_value()))
        stored = connection.scalar(select(literal_column("negative")).select_from(tags))
    assert stored is not None
    assert stored < 0


def test_a_column_that_is_too_small(site: Site) -> None:
    site.pool.drop_table("photos")
    site.pool.create_table("photos", start=2**31 - 2)
    with site.engine.begin() as connection, pytest.raises(TicketsExhausted, match="small"):
        connection.execute(insert(tags).values(small=PHOTOS.next_value()), [{}, {}, {}])
    assert site.rows(tags) == []


def test_select(site: Site) -> None:
    statement = select(PHOTOS.next_value())
    one = PHOTOS.next_value()
    two = select(one.label("one"), one.label("two"))
    with site.count() as counted, site.engine.begin() as connection:
        found = [connection.scalar(statement) for _ in range(2)]
        row = connection.execute(two).one()
        found += [row.one, row.two, connection.scalar(PHOTOS)]
    assert counted.draws == counted.tickets == {"photos": 5}
    assert len({key for key in found if isinstance(key, int)}) == 5


def test_update_of_one_row(site: Site) -> None:
    with site.engine.begin() as connection:
        connection.execute(insert(photos), TITLES)
    keys = [key for key, *_ in site.rows(photos)]
    with site.count() as counted, site.engine.begin() as connection:
        value = update(photos).values(number=PHOTOS.next_value())
        connection.execute(value.where(photos.c.id == keys[0], photos.c.title == "a"))
        each = value.where(photos.c.id == bindparam("key"))
        connection.execute(each, [{"key": key} for key in keys[1:]])
    assert counted.draws == {"photos": 2}
    assert counted.tickets == {"photos": 3}
    numbers = {number for _, number, _ in site.rows(photos)}
    assert len(numbers - {None, *keys}) == 3


def test_update_by_a_composite_key(site: Site) -> None:
    area = "01890a5d-ac96-774b-bcce-b302099a8057"
    value = update(Area).values(number=PHOTOS.next_value())
    with site.session() as session, session.begin():
        session.execute(insert(Area), [{"key": UUID(area), "spot": n} for n in (1, 2)])
        session.execute(value.where(Area.key == UUID(area), Area.spot == 1))
        with pytest.raises(TicketArgumentError, match="whole primary key"):
            session.execute(value.where(Area.key == UUID(area)))
    assert [row[2] is None for row in site.rows(areas.c.spot, areas.c.key, areas.c.number)] == [
        False,
        True,
    ]


NEXT = PHOTOS.next_value()
ONE = photos.c.id == 1
ALIAS = photos.alias()
SET = update(photos).values(number=NEXT)
REFUSED: dict[str, ClauseElement] = {
    "update_of_all": SET,
    "update_by_another_column": SET.where(photos.c.title == "a"),
    "update_by_either": SET.where(or_(ONE, photos.c.id == 2)),
    "update_by_a_list": SET.where(photos.c.id.in_([1, 2])),
    "update_by_not": SET.where(~ONE),
    "update_by_more": SET.where(photos.c.id > 1),
    "update_by_itself": SET.where(photos.c.id == photos.c.id),
    "update_by_a_subquery": SET.where(photos.c.id == select(ALIAS.c.id).scalar_subquery()),
    "update_by_an_alias": SET.where(ALIAS.c.id == 1),
    "update_by_text_beside_it": SET.where(ONE, text("1 = 1 OR 1 = 1")),
    "update_by_literal_sql_beside_it": SET.where(ONE, literal_column("1 = 1 OR 1 = 1")),
    "update_by_another_table_beside_it": SET.where(ONE, tags.c.id == photos.c.number),
    "update_by_a_string": update(words).values(number=NEXT).where(words.c.word == "a"),
    "update_by_a_float": SET.where(photos.c.id == float(2**53)),
    "update_by_a_number_for_a_uuid": update(areas)
    .values(number=NEXT)
    .where(areas.c.key == literal(0), areas.c.spot == 1),
    "update_where": update(photos).values(number=7).where(photos.c.id == NEXT),
    "update_of_an_expression": update(photos).where(ONE).values(number=NEXT + 1),
    "insert_of_an_expression": insert(photos).values(number=NEXT + 1),
    "insert_of_a_case": insert(photos).values(number=case((true(), NEXT))),
    "insert_of_one_in_two_expressions": insert(photos).values(
        id=literal(0) + NEXT, number=literal(0) + NEXT
    ),
    "insert_of_many_values": insert(photos).values([{"id": NEXT}, {"id": NEXT}]),
    "insert_of_a_subquery": insert(photos).values(number=select(NEXT).scalar_subquery()),
    "insert_from_select": insert(photos).from_select(["id"], select(NEXT)),
    "insert_from_rows": insert(photos).from_select(["id", "title"], select(NEXT, words.c.word)),
    "insert_returning": insert(photos).values(title="a").returning(NEXT),
    "insert_in_a_cte": select(
        insert(photos).values(number=NEXT).returning(photos.c.id).cte("c").c.id
    ),
    "insert_with_a_cte": insert(photos).values(number=NEXT).add_cte(select(words.c.word).cte()),
    "mysql_upsert": mysql.insert(photos).values(id=1).on_duplicate_key_update(number=NEXT),
    "postgresql_upsert": postgresql.insert(photos)
    .values(id=1)
    .on_conflict_do_update(index_elements=["id"], set_={"number": NEXT}),
    "sqlite_upsert": sqlite.insert(photos)
    .values(id=1)
    .on_conflict_do_update(index_elements=["id"], set_={"number": NEXT}),
    "delete": delete(photos).where(photos.c.id == NEXT),
    "select_beside_a_column": select(NEXT, photos.c.id),
    "select_beside_a_function": select(NEXT, func.generate_series(1, 3)),
    "select_beside_a_literal": select(NEXT, literal(1)),
    "select_from": select(NEXT).select_from(photos),
    "select_from_text": select(NEXT).suffix_with("FROM photos"),
    "select_from_a_hint": select(NEXT).with_statement_hint("FROM photos"),
    "select_where": select(photos.c.id).where(photos.c.number == NEXT),
    "select_order_by": select(NEXT).order_by(func.generate_series(1, 3)),
    "select_of_an_expression": select(func.coalesce(NEXT, 1)),
    "select_union": select(NEXT).union_all(select(NEXT)),
    "select_exists": select(exists(select(NEXT))),
    "select_subquery": select(select(NEXT.label("n")).subquery()),
    "select_cte": select(select(NEXT.label("n")).cte()),
    "select_beside_a_cte": select(NEXT).add_cte(select(words.c.word).cte()),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_could_give_one_ticket_to_several_rows(name: str) -> None:
    """It is refused when it is compiled, by whatever dialect, so nothing is sent and nothing drawn."""
    modules: dict[str, Any] = {"mysql": mysql, "postgresql": postgresql, "sqlite": sqlite}
    dialect = modules.get(name.partition("_")[0], modules["sqlite"]).dialect()
    with pytest.raises(TicketArgumentError, match="several rows could get"):
        REFUSED[name].compile(dialect=dialect)


def test_what_is_refused_draws_nothing(site: Site) -> None:
    with site.count() as counted, site.engine.connect() as connection:
        for statement in (SET, select(NEXT).select_from(photos)):
            with pytest.raises(TicketArgumentError, match="whole primary key"):
                connection.execute(statement)
        # What the transaction held before is still there to be committed.
        connection.execute(insert(photos))
        connection.commit()
    assert counted.tickets == {"photos": 1}


def test_defaults_of_columns_are_refused() -> None:
    """An SQL expression as a default is one value for all rows of a statement, or not, as the database has it."""
    own = MetaData()
    table = Table(
        "own",
        own,
        Column("id", BigInteger, TicketSequence("photos"), primary_key=True),
        Column("number", BigInteger, default=PHOTOS.next_value(), onupdate=PHOTOS.next_value()),
    )
    for statement in (
        insert(table).values(id=1),
        update(table).values(id=1).where(table.c.id == 2),
    ):
        with pytest.raises(TicketArgumentError, match="several rows"):
            str(statement)


def test_printing_and_compiling_draw_nothing(site: Site) -> None:
    statements = [
        insert(photos).values(id=PHOTOS.next_value()),
        update(photos).where(ONE).values(number=PHOTOS.next_value()),
        select(PHOTOS.next_value()),
    ]
    with site.count() as counted:
        assert str(PHOTOS.next_value()) == "<next value of TicketSequence('photos')>"
        for statement in statements:
            compiled = statement.compile(site.engine)
            assert "next value" not in str(statement) + repr(statement) + str(compiled)
            assert None in compiled.params.values()
            with pytest.raises(TicketArgumentError, match=r"pool\.next_id"):
                statement.compile(site.engine, compile_kwargs={"literal_binds": True})
    assert not counted.draws


def test_copies_of_a_statement_draw_for_themselves(site: Site) -> None:
    statement = insert(photos).values(id=PHOTOS.next_value())
    copies: list[Any] = [
        statement,
        copy.copy(statement),
        visitors.cloned_traverse(statement, {}, {}),
        lambda_stmt(lambda: insert(photos).values(id=PHOTOS.next_value())),
    ]
    with site.count() as counted, site.engine.begin() as connection:
        for each in copies * 2:
            connection.execute(each)
    assert counted.tickets == {"photos": 8}
    assert len(site.rows(photos)) == 8


def test_pickled_statements_hold_no_ticket_and_no_pool(site: Site) -> None:
    with site.count() as counted, site.engine.begin() as connection:
        for statement in (insert(photos).values(id=NEXT), select(NEXT)):
            again = pickle.loads(pickle.dumps(statement))
            with pytest.raises(PoolNotAttached, match="photos"):
                connection.execute(again)
    assert not counted.draws


def test_threads_share_a_statement(site: Site) -> None:
    statements = [insert(photos).values(id=PHOTOS.next_value()), select(PHOTOS.next_value())]

    def execute(n: int) -> list[int]:
        with site.engine.connect() as connection:
            return [connection.scalar(statements[1]) for _ in range(10)]

    with ThreadPoolExecutor(4) as threads:
        found = [key for keys in threads.map(execute, range(4)) for key in keys]
    assert len(set(found)) == 40


def test_attribute_of_a_new_object(site: Site) -> None:
    new = [Photo(key=PHOTOS.next_value(), number=PHOTOS.next_value()) for _ in range(2)]
    with site.count() as counted, site.session() as session:
        session.add_all(new)
        session.commit()
        held = [(photo.key, photo.number, photo.title) for photo in new]
    assert counted.tickets == {"photos": 4}
    assert sorted(held) == site.rows(photos)
    assert len({number for row in held for number in row[:2]}) == 4


def test_attribute_of_an_object_that_is_there(site: Site) -> None:
    with site.session() as session:
        found = [Photo(title=title) for title in "ab"]
        session.add_all(found)
        session.flush()
        with site.count() as counted:
            for photo in found:
                photo.number = NEXT
            session.flush()
        held = [(photo.key, photo.number, photo.title) for photo in found]
        session.commit()
    assert counted.tickets == {"photos": 2}
    assert sorted(held) == site.rows(photos)


@pytest.mark.parametrize("synchronize", ["auto", "evaluate", "fetch", False])
def test_update_by_the_orm_shows_what_was_stored(site: Site, synchronize: Any) -> None:
    with site.session() as session:
        photo = Photo(title="a")
        session.add(photo)
        session.flush()
        statement = update(Photo).where(Photo.key == photo.key).values(number=PHOTOS.next_value())
        with site.count() as counted:
            session.execute(statement, execution_options={"synchronize_session": synchronize})
        held = photo.number
        session.commit()
        assert counted.tickets == {"photos": 1}
        [(_, number, _)] = site.rows(photos)
        assert held == (None if synchronize is False else number)


def test_bulk_insert_of_the_orm(site: Site) -> None:
    with site.count() as counted, site.session() as session, session.begin():
        session.execute(insert(Photo).values(number=PHOTOS.next_value()), TITLES)
        ticket = session.scalar(select(PHOTOS.next_value()))
    assert counted.tickets == {"photos": 7}
    assert len({number for row in site.rows(photos) for number in row[:2]} - {ticket}) == 6


def test_parameters_that_are_expressions_are_refused(site: Site) -> None:
    """SQLAlchemy gives them to the driver as they are, as any SQL expression."""
    with site.session() as session:
        for rows in ([{"number": NEXT}], [{"number": NEXT}, {"number": NEXT}]):
            with pytest.raises((DBAPIError, StatementError, AttributeError, TypeError)):
                session.execute(insert(Photo), rows)
            session.rollback()
        with pytest.raises((DBAPIError, StatementError, AttributeError, TypeError)):
            session.bulk_save_objects([Photo(number=NEXT)])
        session.rollback()
    assert site.rows(photos) == []


@pytest.mark.app_databases("sqlite")
def test_each_shard_has_a_ticket_of_its_own(site: Site, tmp_path: Any) -> None:
    shards = {name: create_engine(f"sqlite:///{tmp_path / name}.db") for name in "ab"}
    for engine in shards.values():
        Base.metadata.create_all(engine)
        with Session(engine) as session, session.begin():
            session.add(Photo(key=1))
    everywhere = ShardedSession(
        shards=shards,
        shard_chooser=lambda mapper, instance, clause=None: "a",
        identity_chooser=lambda *_, **__: list(shards),
        execute_chooser=lambda _: list(shards),
    )
    with everywhere as session, session.begin():
        value = update(Photo).where(Photo.key == 1).values(number=NEXT)
        session.execute(value, execution_options={"synchronize_session": False})
    numbers: list[int | None] = []
    for engine in shards.values():
        with Session(engine) as session:
            numbers += session.scalars(select(Photo.number))
        engine.dispose()
    assert None not in numbers
    assert len(set(numbers)) == 2
