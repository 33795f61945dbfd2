"""ORM: one draw per sequence and flush, one executemany per table, on every database."""

from __future__ import annotations

import threading
from contextlib import nullcontext
from types import MappingProxyType
from typing import Any

import pytest
import sqlalchemy
from sqlalchemy import BigInteger, Connection, String, event, func, insert, select
from sqlalchemy.exc import IntegrityError, SADeprecationWarning
from sqlalchemy.orm import (
    DeclarativeBase,
    Mapped,
    Mapper,
    Session,
    deferred,
    make_transient,
    mapped_column,
    scoped_session,
    sessionmaker,
)

from sqla_tickets import TicketSequence
from tests.integration.orm.conftest import Serve
from tests.support.counting import Site, many, one

SQLALCHEMY = tuple(int(part) for part in sqlalchemy.__version__.split(".")[:2])


class Base(DeclarativeBase):
    pass


class Photo(Base):
    __tablename__ = "photos"
    id: Mapped[int] = mapped_column(BigInteger, TicketSequence("photos"), primary_key=True)
    title: Mapped[str | None] = mapped_column(String(50))


class Order(Base):
    """An attribute that is called otherwise than its column, and numbers that are no keys."""

    __tablename__ = "orders"
    number: Mapped[int] = mapped_column("id", BigInteger, TicketSequence(), primary_key=True)
    invoice: Mapped[int] = mapped_column(BigInteger, TicketSequence("papers"))
    receipt: Mapped[int] = deferred(mapped_column("rcpt", BigInteger, TicketSequence("papers")))


class Note(Base):
    """Its key is an ordinary one, its number a ticket."""

    __tablename__ = "notes"
    word: Mapped[str] = mapped_column(String(50), primary_key=True)
    number: Mapped[int] = mapped_column(BigInteger, TicketSequence("numbers"), unique=True)


class Stamp(Base):
    __tablename__ = "stamps"
    id: Mapped[int] = mapped_column(BigInteger, TicketSequence(block=10), primary_key=True)


class Unnumbered(Base):
    """The table of `Note`, without its number."""

    __table__ = Note.__table__
    __mapper_args__: Any = MappingProxyType({"exclude_properties": ["number"]})
    word: Mapped[str]


@pytest.fixture
def site(serve: Serve) -> Site:
    return serve(Base.metadata)


def test_one_object(site: Site) -> None:
    with site.count() as counted, site.session() as session, session.begin():
        session.add(Photo(title="a"))
    assert counted.draws == counted.tickets == {"photos": 1}
    assert counted.inserts == [one("photos")]


def test_many_objects(site: Site) -> None:
    with site.count() as counted, site.session() as session, session.begin():
        session.add_all(Photo(title=title) for title in "abcde")
    assert counted.draws == {"photos": 1}
    assert counted.tickets == {"photos": 5}
    assert counted.inserts == [many("photos", 5)]


def test_objects_know_their_ids_in_the_order_they_were_added(site: Site) -> None:
    photos = [Photo(title=title) for title in "edcba"]
    with site.session() as session, session.begin():
        session.add_all(photos)
        session.flush()
        ids = [photo.id for photo in photos]
    assert ids == sorted(ids)
    assert site.rows(Photo.id, Photo.title) == list(zip(ids, "edcba", strict=True))


def test_expunged_objects_do_not_disturb_the_order(site: Site) -> None:
    photos = [Photo(title=str(n)) for n in range(6)]
    with site.count() as counted, site.session() as session, session.begin():
        session.add_all(photos[:4])
        session.expunge(photos[1])
        session.add_all(photos[4:])
        session.flush()
        ids = [photo.id for photo in photos if photo is not photos[1]]
    assert ids == sorted(ids)
    assert counted.tickets == {"photos": 5}


def test_ids_set_by_hand_among_others(site: Site) -> None:
    photos = [Photo(title="a"), Photo(id=0, title="b"), Photo(title="c"), Photo(id=None)]
    with site.count() as counted, site.session() as session, session.begin():
        session.add_all(photos)
        session.flush()
        assert photos[1].id == 0
        assert photos[0].id < photos[2].id < photos[3].id
    assert counted.draws == {"photos": 1}
    assert counted.tickets == {"photos": 3}
    assert counted.inserts == [many("photos", 4)]


@pytest.mark.app_databases("mariadb", "postgresql", "sqlite")  # it takes RETURNING to learn the id
def test_ids_that_are_expressions_stay(site: Site) -> None:
    with site.count() as counted, site.session() as session, session.begin():
        session.add(Photo(id=func.abs(-7), title="a"))
    assert not counted.draws
    assert site.rows(Photo.id) == [(7,)]


def test_several_ticket_columns_and_names_unlike_the_attributes(site: Site) -> None:
    orders = [Order() for _ in range(3)]
    with site.count() as counted, site.session() as session, session.begin():
        session.add_all(orders)
        session.flush()
        papers = [n for order in orders for n in (order.invoice, order.receipt)]
    assert counted.draws == {"orders": 1, "papers": 1}
    assert counted.tickets == {"orders": 3, "papers": 6}
    assert counted.inserts == [many("orders", 3)]
    assert len(set(papers)) == 6


def test_a_ticket_that_is_no_primary_key(site: Site) -> None:
    with site.count() as counted, site.session() as session, session.begin():
        session.add_all([Note(word="a"), Note(word="b", number=1_000_001), Note(word="c")])
    assert counted.draws == {"numbers": 1}
    assert counted.tickets == {"numbers": 2}
    assert counted.inserts == [many("notes", 3)]
    assert ("b", 1_000_001) in site.rows(Note.word, Note.number)


def test_nothing_is_drawn_for_objects_that_are_there(site: Site) -> None:
    with site.session() as session, session.begin():
        session.add(Photo(title="a"))
    with site.count() as counted, site.session() as session, session.begin():
        photo = session.scalars(select(Photo)).one()
        photo.title = "b"
        session.flush()
        session.delete(photo)
    assert not counted.draws


def test_a_flush_of_several_classes_and_a_second_flush(site: Site) -> None:
    with site.count() as counted, site.session() as session, session.begin():
        session.add_all([Photo(), Order(), Note(word="a"), Photo(), Order()])
        session.flush()
        session.add(Photo())
    assert counted.draws == {"photos": 2, "orders": 1, "papers": 1, "numbers": 1}
    assert counted.tickets == {"photos": 3, "orders": 2, "papers": 4, "numbers": 1}


def test_merge_of_something_new(site: Site) -> None:
    with site.count() as counted, site.session() as session, session.begin():
        merged = session.merge(Photo(title="a"))
        session.flush()
        assert merged.id
    assert counted.draws == counted.tickets == {"photos": 1}


def test_merge_of_something_known_draws_nothing(site: Site) -> None:
    with site.session() as session, session.begin():
        session.add(Photo(id=7, title="a"))
    with site.count() as counted, site.session() as session, session.begin():
        session.merge(Photo(id=7, title="b"))
        session.merge(Photo(id=8, title="c"))
    assert not counted.draws
    assert site.rows(Photo.id, Photo.title) == [(7, "b"), (8, "c")]


def test_merge_in_a_loop_flushes_each_before_the_next(site: Site) -> None:
    with site.count() as counted, site.session() as session, session.begin():
        for title in "abc":
            session.merge(Photo(title=title))
    assert counted.tickets == {"photos": 3}
    # merge() itself autoflushes: each flush draws for what the one before it has left.
    assert counted.draws == {"photos": len(counted.inserts)}


def test_merge_without_autoflush_draws_once(site: Site) -> None:
    with (
        site.count() as counted,
        site.session() as session,
        session.begin(),
        session.no_autoflush,
    ):
        for title in "abc":
            session.merge(Photo(title=title))
    assert counted.draws == {"photos": 1}
    assert counted.inserts == [many("photos", 3)]


def test_merge_all(site: Site) -> None:
    if not hasattr(Session, "merge_all"):
        pytest.skip("Session.merge_all came with SQLAlchemy 2.1")
    with site.count() as counted, site.session() as session, session.begin():
        session.merge_all([Photo(title=title) for title in "abc"])
    assert counted.draws == {"photos": 1}
    assert counted.inserts == [many("photos", 3)]


def test_objects_that_a_later_listener_adds(site: Site) -> None:
    """They get their tickets after all listeners, in one more draw."""
    with site.count() as counted, site.session() as session, session.begin():

        @event.listens_for(session, "before_flush")
        def audit(session: Session, *_: object) -> None:
            session.add_all([Note(word=f"audit {n}") for n in range(len(session.new))])
            session.add(Photo(title="audit"))

        session.add_all([Photo(title="a"), Photo(title="b")])
    assert counted.draws == {"photos": 2, "numbers": 1}
    assert counted.tickets == {"photos": 3, "numbers": 2}
    assert len(site.rows(Photo.id)) == 3
    assert len(site.rows(Note.number)) == 2


def test_rows_that_a_mapper_event_inserts(site: Site) -> None:
    def log(mapper: Mapper[Any], connection: Connection, photo: Photo) -> None:
        connection.execute(insert(Note).values(word=photo.title))

    event.listen(Photo, "after_insert", log)
    try:
        with site.count() as counted, site.session() as session, session.begin():
            session.add_all([Photo(title="a"), Photo(title="b")])
    finally:
        event.remove(Photo, "after_insert", log)
    assert counted.tickets == {"photos": 2, "numbers": 2}
    assert counted.draws == {"photos": 1, "numbers": 2}


def test_a_buffered_block_serves_later_flushes(site: Site) -> None:
    with site.count() as counted, site.session() as session, session.begin():
        for _ in range(2):  # at the third the next block would be fetched
            session.add_all([Stamp(), Stamp()])
            session.flush()
    assert counted.draws == {"stamps": 1}
    assert counted.tickets == {"stamps": 10}
    assert len(site.rows(Stamp.id)) == 4


def test_a_copy_of_an_object_gets_an_id_of_its_own(site: Site) -> None:
    with site.session() as session, session.begin():
        session.add(photo := Photo(title="a"))
        session.flush()
        first = photo.id
        make_transient(photo)
        photo.id = None  # type: ignore[assignment]
        session.add(photo)
        session.flush()
        make_transient(photo)
        del photo.id
        session.add(photo)
    assert [title for _, title in site.rows(Photo.id, Photo.title)] == ["a", "a", "a"]
    assert (first,) in site.rows(Photo.id)


def test_a_ticket_column_that_is_not_mapped(site: Site) -> None:
    """No attribute could hold the number: the column default draws for it."""
    with site.count() as counted, site.session() as session, session.begin():
        session.add_all([Unnumbered(word="a"), Unnumbered(word="b")])
    assert counted.tickets == {"numbers": 2}
    assert len(site.rows(Note.number)) == 2


@pytest.mark.app_databases("mysql", "sqlite")
def test_twenty_thousand_objects_take_one_draw(site: Site) -> None:
    with site.count() as counted, site.session() as session, session.begin():
        session.add_all(Photo() for _ in range(20_000))
    assert counted.draws == {"photos": 1}
    assert counted.tickets == {"photos": 20_000}
    assert counted.inserts == [many("photos", 20_000)]


@pytest.mark.app_databases("mariadb", "mysql", "postgresql")  # pysqlite's savepoints need events
def test_a_session_bound_to_a_connection(site: Site) -> None:
    """As test suites do it, which roll everything back."""
    with (
        site.count() as counted,
        site.engine.connect() as connection,
        connection.begin() as transaction,
    ):
        with Session(connection, join_transaction_mode="create_savepoint") as session:
            session.add_all([Photo(title="a"), Photo(title="b")])
            session.commit()
        transaction.rollback()
    assert counted.draws == {"photos": 1}
    assert site.rows(Photo.id) == []


def test_sessions_of_every_make(site: Site) -> None:
    class Own(Session):
        pass

    makers: list[Any] = [
        sessionmaker(site.engine),
        sessionmaker(site.engine, class_=Own),
        scoped_session(sessionmaker(site.engine)),
        lambda: Session(binds={Photo: site.engine}),
        lambda: Own(binds={Base: site.engine}),
    ]
    for make in makers:
        session = make()
        with site.count() as counted:
            session.add_all([Photo(title="a"), Photo(title="b")])
            session.commit()
            session.close()
        assert counted.draws == {"photos": 1}
        assert counted.inserts == [many("photos", 2)]


def test_a_flush_of_some_objects_only(site: Site) -> None:
    photos = [Photo(title=title) for title in "abc"]
    with site.count() as counted, site.session() as session, session.begin():
        session.add_all(photos)
        with pytest.warns(SADeprecationWarning) if SQLALCHEMY >= (2, 1) else nullcontext():
            session.flush([photos[0]])
    assert counted.draws == {"photos": 1}
    assert counted.tickets == {"photos": 3}
    assert len(site.rows(Photo.id)) == 3


def test_a_ticket_that_was_used_by_hand_is_refused_by_the_key(site: Site) -> None:
    with site.session() as session, session.begin():
        session.add(Photo(title="a"))
    (used,) = site.rows(Photo.id)
    with site.session() as session:
        session.add(Photo(id=used[0], title="b"))
        with pytest.raises(IntegrityError):
            session.commit()


@pytest.mark.app_databases("mariadb", "mysql", "postgresql")
def test_sessions_of_many_threads(site: Site) -> None:
    def work() -> None:
        for _ in range(5):
            with site.session() as session, session.begin():
                session.add_all(Photo() for _ in range(10))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(site.rows(Photo.id)) == 8 * 5 * 10
