"""Inheritance: a hierarchy draws from its base's sequence, in one draw for all its classes."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import BigInteger, ForeignKey, String, insert, select
from sqlalchemy.ext.declarative import ConcreteBase
from sqlalchemy.orm import DeclarativeBase, Mapped, column_property, mapped_column

from sqla_tickets import TicketSequence
from tests.integration.orm.conftest import Serve
from tests.support.counting import Site, many


def named(identity: str, **options: object) -> dict[str, object]:
    """A class's arguments to its mapper."""
    return {"polymorphic_identity": identity, **options}


class Base(DeclarativeBase):
    pass


class Media(Base):
    __tablename__ = "media"
    id: Mapped[int] = mapped_column(BigInteger, TicketSequence(), primary_key=True)
    kind: Mapped[str] = mapped_column(String(20))
    __mapper_args__: Any = named("media", polymorphic_on="kind")


class Photo(Media):
    """Joined: a table of its own, with a number of its own."""

    __tablename__ = "photos"
    id: Mapped[int] = mapped_column(ForeignKey("media.id"), primary_key=True)
    number: Mapped[int] = mapped_column(BigInteger, TicketSequence("photo_numbers"))
    title: Mapped[str | None] = mapped_column(String(50))
    __mapper_args__: Any = named("photo")


class Video(Media):
    """Joined, under an attribute of another name."""

    __tablename__ = "videos"
    media_id: Mapped[int] = mapped_column(ForeignKey("media.id"), primary_key=True)
    __mapper_args__: Any = named("video")


class Panorama(Photo):
    """Joined twice."""

    __tablename__ = "panoramas"
    id: Mapped[int] = mapped_column(ForeignKey("photos.id"), primary_key=True)
    __mapper_args__: Any = named("panorama")


class Portrait(Photo):
    """In its parent's table."""

    __mapper_args__: Any = named("portrait")


class Page(ConcreteBase, Base):
    """Concrete: each class has all in a table of its own, and both have one sequence."""

    __tablename__ = "pages"
    id: Mapped[int] = mapped_column(BigInteger, TicketSequence("page_ids"), primary_key=True)
    title: Mapped[str | None] = mapped_column(String(50))
    __mapper_args__: Any = named("page", concrete=True)


class Article(Page):
    __tablename__ = "articles"
    id: Mapped[int] = mapped_column(BigInteger, TicketSequence("page_ids"), primary_key=True)
    title: Mapped[str | None] = mapped_column(String(50))
    __mapper_args__: Any = named("article", concrete=True)


class Account(Base):
    """Mapped to a join of two tables."""

    __tablename__ = "accounts"
    id: Mapped[int] = mapped_column(BigInteger, TicketSequence(), primary_key=True)


class Address(Base):
    __tablename__ = "addresses"
    id: Mapped[int] = mapped_column(BigInteger, TicketSequence(), primary_key=True)
    account_id: Mapped[int] = mapped_column(ForeignKey("accounts.id"))


class Customer(Base):
    __table__ = Account.__table__.join(Address.__table__)
    id = column_property(Account.__table__.c.id, Address.__table__.c.account_id)
    address_id = Address.__table__.c.id


@pytest.fixture
def site(serve: Serve) -> Site:
    return serve(Base.metadata)


def test_joined(site: Site) -> None:
    with site.count() as counted, site.session() as session, session.begin():
        session.add_all(Photo(title=title) for title in "abcd")
    assert counted.draws == {"media": 1, "photo_numbers": 1}
    assert counted.tickets == {"media": 4, "photo_numbers": 4}
    assert counted.inserts == [many("media", 4), many("photos", 4)]
    assert len(site.rows(Photo.id, Photo.number)) == 4


def test_joined_under_another_attribute(site: Site) -> None:
    with site.count() as counted, site.session() as session, session.begin():
        session.add_all(Video() for _ in range(4))
    assert counted.draws == {"media": 1}
    assert counted.inserts == [many("media", 4), many("videos", 4)]
    assert len(site.rows(Video.media_id)) == 4


def test_single_table(site: Site) -> None:
    with site.count() as counted, site.session() as session, session.begin():
        session.add_all(Portrait(title=title) for title in "abcd")
    assert counted.draws == {"media": 1, "photo_numbers": 1}
    assert counted.inserts == [many("media", 4), many("photos", 4)]


def test_classes_of_one_hierarchy_in_the_order_they_were_added(site: Site) -> None:
    media = [kind() for _ in range(3) for kind in (Media, Panorama, Video, Photo, Portrait)]
    with site.count() as counted, site.session() as session, session.begin():
        session.add_all(media)
        session.flush()
        ids = [each.id for each in media]
    assert counted.draws == {"media": 1, "photo_numbers": 1}
    assert counted.tickets == {"media": 15, "photo_numbers": 9}
    assert ids == sorted(ids)
    with site.session() as session:
        found = session.scalars(select(Media).order_by(Media.id)).all()
        assert [type(each) for each in found] == [type(each) for each in media]


def test_ids_set_by_hand_in_a_hierarchy(site: Site) -> None:
    with site.count() as counted, site.session() as session, session.begin():
        session.add_all([Photo(id=1_000_001), Photo(), Panorama(id=1_000_003, number=7)])
    assert counted.tickets == {"media": 1, "photo_numbers": 2}
    assert site.rows(Panorama.id, Panorama.number) == [(1_000_003, 7)]


def test_concrete_tables_share_a_sequence(site: Site) -> None:
    with site.count() as counted, site.session() as session, session.begin():
        session.add_all([Page(title="a"), Article(title="b"), Page(title="c")])
    assert counted.draws == {"page_ids": 1}
    assert counted.tickets == {"page_ids": 3}
    pages = {key for (key,) in site.rows(Page.__table__.c.id)}
    assert len(pages) == 2
    assert not pages & {key for (key,) in site.rows(Article.__table__.c.id)}


def test_bulk_insert_of_a_hierarchy(site: Site) -> None:
    rows = [{"title": title} for title in "abcd"]
    with site.count() as counted, site.session() as session, session.begin():
        session.execute(insert(Photo), rows)
    assert counted.tickets == {"media": 4, "photo_numbers": 4}
    # No flush sees these rows: without RETURNING the base's ids come one by one.
    assert counted.draws == {"media": 1 if site.returning else 4, "photo_numbers": 1}
    assert len(site.rows(Photo.id)) == 4


def test_bulk_insert_of_a_hierarchy_with_ids_reserved(site: Site) -> None:
    with site.count() as counted, site.session() as session, session.begin():
        ids = site.pool.next_ids("media", 4)
        rows = [{"id": key, "title": title} for key, title in zip(ids, "abcd", strict=True)]
        session.execute(insert(Photo), rows)
    assert counted.draws == {"media": 1, "photo_numbers": 1}
    assert counted.inserts == [many("media", 4), many("photos", 4)]
    assert [key for (key,) in site.rows(Photo.id)] == ids


def test_a_class_mapped_to_a_join(site: Site) -> None:
    with site.count() as counted, site.session() as session, session.begin():
        session.add_all(Customer() for _ in range(3))
    assert counted.draws == {"accounts": 1, "addresses": 1}
    assert counted.inserts == [many("accounts", 3), many("addresses", 3)]
    joined = site.rows(Address.__table__.c.account_id)
    assert joined == site.rows(Account.__table__.c.id)
