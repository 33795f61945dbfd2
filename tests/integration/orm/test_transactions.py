"""Transactions: a ticket is taken for good, whatever becomes of the row; errors leave a way on."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import BigInteger, String, event, insert, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from sqla_tickets import TicketSequence, TicketTableMissing
from tests.integration.orm.conftest import Serve
from tests.support.counting import Site, many


class Base(DeclarativeBase):
    pass


class Photo(Base):
    __tablename__ = "photos"
    id: Mapped[int] = mapped_column(BigInteger, TicketSequence("photos"), primary_key=True)
    title: Mapped[str | None] = mapped_column(String(50), unique=True)


class Tag(Base):
    __tablename__ = "tags"
    id: Mapped[int] = mapped_column(BigInteger, TicketSequence("tags"), primary_key=True)
    word: Mapped[str | None] = mapped_column(String(50))


@pytest.fixture
def site(serve: Serve) -> Site:
    site = serve(Base.metadata)
    if site.engine.dialect.name == "sqlite":
        _let_sqlalchemy_begin(site)
    return site


def _let_sqlalchemy_begin(site: Site) -> None:
    """Savepoints under pysqlite, as SQLAlchemy's documentation has it."""

    @event.listens_for(site.engine, "connect")
    def leave_it(connection: Any, record: object) -> None:
        connection.isolation_level = None

    @event.listens_for(site.engine, "begin")
    def begin(connection: Any) -> None:
        connection.exec_driver_sql("BEGIN")

    site.engine.dispose()


def test_a_rollback_leaves_a_gap(site: Site) -> None:
    photo = Photo(title="a")
    with site.session() as session:
        session.add(photo)
        session.flush()
        lost = photo.id
        session.rollback()
        session.add(Photo(title="b"))
        session.commit()
    ((key,),) = site.rows(Photo.id)
    assert key != lost


def test_a_savepoint_that_is_rolled_back_leaves_a_gap(site: Site) -> None:
    with site.count() as counted, site.session() as session, session.begin():
        session.add(Photo(title="a"))
        with session.begin_nested() as savepoint:
            session.add_all([Photo(title="b"), Photo(title="c")])
            session.flush()
            savepoint.rollback()
        with session.begin_nested():
            session.add(Photo(title="d"))
    assert counted.draws == {"photos": 3}
    assert counted.tickets == {"photos": 4}
    assert [title for _, title in site.rows(Photo.id, Photo.title)] == ["a", "d"]


def test_a_row_that_is_refused_and_mended(site: Site) -> None:
    with site.session() as session, session.begin():
        session.add(Photo(title="a"))
    photos = [Photo(title="b"), Photo(title="a")]
    with site.count() as counted, site.session() as session:
        session.add_all(photos)
        with pytest.raises(IntegrityError):
            session.commit()
        session.rollback()
        photos[1].title = "c"
        session.add_all(photos)
        session.commit()
    # The ids that the objects were given never reached a table: they serve the second time.
    assert counted.tickets == {"photos": 2}
    assert [title for _, title in site.rows(Photo.id, Photo.title)] == ["a", "b", "c"]


def test_autoflush_of_a_query(site: Site) -> None:
    with site.count() as counted, site.session() as session, session.begin():
        session.add_all([Photo(title="b"), Photo(title="a")])
        found = session.scalars(select(Photo).order_by(Photo.id)).all()
        assert [photo.title for photo in found] == ["b", "a"]
        session.add(Photo(title="c"))
        assert session.get(Photo, found[0].id) is found[0]  # from the identity map: no flush
        assert not session.scalars(select(Tag)).all()
    assert counted.draws == {"photos": 2}
    assert counted.tickets == {"photos": 3}


def test_an_id_is_known_to_what_is_flushed_in_the_same_transaction(site: Site) -> None:
    with site.session() as session, session.begin():
        session.add(photo := Photo(title="a"))
        session.flush()
        assert session.get(Photo, photo.id) is photo
        session.expire(photo)
        assert photo.title == "a"


def test_a_draw_that_fails_leaves_the_session_as_it_was(site: Site) -> None:
    """Even the ids that other sequences have given by then stay with their objects."""
    site.pool.drop_table("tags")
    with site.session() as session:
        session.add_all([Photo(title="a"), Tag(word="a"), Photo(title="b")])
        with pytest.raises(TicketTableMissing, match=r"'tags'.*create_table"):
            session.commit()
        assert session.is_active
        assert len(session.new) == 3
        site.pool.create_table("tags")
        session.commit()
    assert len(site.rows(Photo.id)) == 2
    assert len(site.rows(Tag.id)) == 1


def test_a_draw_that_fails_does_not_undo_what_was_flushed_before(site: Site) -> None:
    site.pool.drop_table("tags")
    with site.session() as session:
        session.add(Photo(title="a"))
        session.flush()
        session.add(Tag(word="a"))
        with pytest.raises(TicketTableMissing):
            session.flush()
        session.expunge_all()
        session.commit()
    assert len(site.rows(Photo.id)) == 1


def test_a_default_that_fails_does_not_undo_the_transaction(site: Site) -> None:
    site.pool.drop_table("tags")
    with site.engine.begin() as connection:
        connection.execute(insert(Photo).values(title="a"))
        with pytest.raises(TicketTableMissing):
            connection.execute(insert(Tag), [{"word": "a"}, {"word": "b"}])
        assert not connection.invalidated
        site.pool.create_table("tags")
        connection.execute(insert(Tag), [{"word": "a"}, {"word": "b"}])
    assert len(site.rows(Photo.id)) == 1
    assert len(site.rows(Tag.id)) == 2


@pytest.mark.app_databases("mariadb", "mysql", "postgresql")  # SQLite has one writer at a time
def test_tickets_are_drawn_outside_of_the_transaction(site: Site) -> None:
    """Two transactions that are open at the same time do not wait for each other."""
    with site.count() as counted, site.session() as first, site.session() as second:
        first.add_all([Photo(title="a"), Photo(title="b")])
        first.flush()
        second.add_all([Photo(title="c"), Photo(title="d")])
        second.commit()
        first.commit()
    assert counted.draws == {"photos": 2}
    assert counted.inserts == [many("photos", 2)] * 2
    assert len(site.rows(Photo.id)) == 4


@pytest.mark.app_databases("mariadb", "mysql")  # PostgreSQL has it switched off
def test_two_phases(site: Site) -> None:
    with site.count() as counted, site.session() as session:
        session.twophase = True
        session.add_all([Photo(title="a"), Photo(title="b")])
        session.commit()
    assert counted.draws == {"photos": 1}
    assert len(site.rows(Photo.id)) == 2
