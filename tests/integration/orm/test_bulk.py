"""Bulk inserts of the ORM: no flush sees them, the column default draws for each statement."""

from __future__ import annotations

import pytest
from sqlalchemy import BigInteger, String, insert, select
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from sqla_tickets import TicketArgumentError, TicketSequence
from tests.integration.orm.conftest import Serve
from tests.support.counting import Site, many, one


class Base(DeclarativeBase):
    pass


class Photo(Base):
    """A key under another name than its column's."""

    __tablename__ = "photos"
    key: Mapped[int] = mapped_column("id", BigInteger, TicketSequence("photos"), primary_key=True)
    title: Mapped[str | None] = mapped_column(String(50))
    city: Mapped[str | None] = mapped_column(String(50))


class Note(Base):
    """Its key is an ordinary one, its number a ticket."""

    __tablename__ = "notes"
    word: Mapped[str] = mapped_column(String(50), primary_key=True)
    number: Mapped[int] = mapped_column(BigInteger, TicketSequence("numbers"))


ROWS = [{"title": title} for title in "abcde"]
returning = pytest.mark.app_databases("mariadb", "postgresql", "sqlite")


@pytest.fixture
def site(serve: Serve) -> Site:
    return serve(Base.metadata)


def test_insert_of_rows(site: Site) -> None:
    with site.count() as counted, site.session() as session, session.begin():
        session.execute(insert(Photo), ROWS)
    assert counted.draws == {"photos": 1}
    assert counted.tickets == {"photos": 5}
    assert counted.inserts == [many("photos", 5)]
    assert "".join(title for _, title in site.rows(Photo.key, Photo.title)) == "abcde"


def test_insert_of_rows_with_differing_keys(site: Site) -> None:
    """SQLAlchemy sends a statement for each run of rows with the same keys."""
    rows = [{"title": "a"}, {"title": "b", "city": "x"}, {"title": "c"}, {"title": "d"}]
    with site.count() as counted, site.session() as session, session.begin():
        session.execute(insert(Photo), rows)
    assert counted.draws == {"photos": 3}
    assert counted.tickets == {"photos": 4}
    assert [title for _, title in site.rows(Photo.key, Photo.title)] == list("abcd")


def test_insert_of_rows_with_some_ids_set_by_hand(site: Site) -> None:
    rows: list[dict[str, object]]
    rows = [{"title": "a"}, {"title": "b", "key": 1_000_001}, {"title": "c"}]
    with site.count() as counted, site.session() as session, session.begin():
        session.execute(insert(Photo), rows)
    assert counted.draws == counted.tickets == {"photos": 2}
    assert (1_000_001, "b") in site.rows(Photo.key, Photo.title)


def test_insert_of_values(site: Site) -> None:
    with site.count() as counted, site.session() as session, session.begin():
        session.execute(insert(Photo).values(title="a"))
        session.execute(insert(Photo).values(ROWS))
    assert counted.draws == {"photos": 2}
    assert counted.tickets == {"photos": 6}
    assert counted.inserts == [one("photos"), one("photos")]


@returning
def test_insert_that_returns_objects_in_order(site: Site) -> None:
    statement = insert(Photo).returning(Photo, sort_by_parameter_order=True)
    with site.count() as counted, site.session() as session, session.begin():
        photos = session.scalars(statement, ROWS).all()
        keys = [photo.key for photo in photos]
        assert "".join(photo.title or "" for photo in photos) == "abcde"
    assert counted.draws == {"photos": 1}
    assert counted.inserts == [many("photos", 5)]
    assert keys == sorted(keys)


def test_insert_of_selected_rows_is_refused(site: Site) -> None:
    with site.session() as session:
        session.execute(insert(Photo), ROWS)
        copy = insert(Photo).from_select(["title"], select(Photo.title))
        with pytest.raises(
            TicketArgumentError, match=r"one id of TicketSequence\('photos'\) to every row"
        ):
            session.execute(copy)
        session.commit()
    assert len(site.rows(Photo.key)) == 5


def test_selected_rows_are_refused_where_no_key_would_notice(site: Site) -> None:
    with site.session() as session:
        session.execute(insert(Photo), ROWS)
        copy = insert(Note).from_select(["word"], select(Photo.title))
        with pytest.raises(
            TicketArgumentError, match=r"one id of TicketSequence\('numbers'\) to every row"
        ):
            session.execute(copy)


@returning
def test_selected_rows_of_a_from_statement_are_refused(site: Site) -> None:
    with site.session() as session:
        session.execute(insert(Photo), ROWS)
        copied = insert(Note).from_select(["word"], select(Photo.title)).returning(Note)
        with pytest.raises(TicketArgumentError, match=r"one id of .*'numbers'.* to every row"):
            session.scalars(select(Note).from_statement(copied))


def test_save_objects(site: Site) -> None:
    with site.count() as counted, site.session() as session, session.begin():
        session.bulk_save_objects([Photo(title=title) for title in "abcde"])
    assert counted.draws == {"photos": 1}
    assert counted.inserts == [many("photos", 5)]


def test_save_objects_that_receive_their_ids(site: Site) -> None:
    photos = [Photo(title=title) for title in "abcde"]
    with site.count() as counted, site.session() as session, session.begin():
        session.bulk_save_objects(photos, return_defaults=True)
    assert counted.tickets == {"photos": 5}
    # The ids must come back: without RETURNING, SQLAlchemy sends the rows one by one.
    assert counted.draws == {"photos": 1 if site.returning else 5}
    assert [(photo.key, photo.title) for photo in photos] == site.rows(Photo.key, Photo.title)


def test_save_objects_with_some_ids_set_by_hand(site: Site) -> None:
    photos = [Photo(title="a"), Photo(key=1_000_001, title="b"), Photo(key=None, title="c")]
    with site.count() as counted, site.session() as session, session.begin():
        session.bulk_save_objects(photos)
    assert counted.tickets == {"photos": 2}
    assert (1_000_001, "b") in site.rows(Photo.key, Photo.title)


def test_insert_mappings(site: Site) -> None:
    with site.count() as counted, site.session() as session, session.begin():
        session.bulk_insert_mappings(Photo.__mapper__, ROWS)
    assert counted.draws == {"photos": 1}
    assert counted.inserts == [many("photos", 5)]


def test_insert_mappings_with_ids_of_none(site: Site) -> None:
    rows = [{"key": None, "title": title} for title in "abc"]
    with site.count() as counted, site.session() as session, session.begin():
        session.bulk_insert_mappings(Photo.__mapper__, rows)
    assert counted.draws == {"photos": 1}
    assert counted.tickets == {"photos": 3}
    assert counted.inserts == [many("photos", 3)]


def test_objects_and_rows_in_one_transaction(site: Site) -> None:
    with site.count() as counted, site.session() as session, session.begin():
        session.add_all(Photo(title=title) for title in "abc")
        session.execute(insert(Photo), ROWS)
    assert counted.draws == {"photos": 2}
    assert counted.tickets == {"photos": 8}
    assert len(site.rows(Photo.key)) == 8
