"""Relationships: what a cascade brings along is drawn for with the rest, and foreign keys follow."""

from __future__ import annotations

import pytest
from sqlalchemy import BigInteger, Column, ForeignKey, String, Table, insert
from sqlalchemy.orm import (
    DeclarativeBase,
    Mapped,
    WriteOnlyMapped,
    mapped_column,
    relationship,
)

from sqla_tickets import TicketSequence
from tests.integration.orm.conftest import Serve
from tests.support.counting import Site, many, one


class Base(DeclarativeBase):
    pass


class Owner(Base):
    __tablename__ = "owners"
    id: Mapped[int] = mapped_column(BigInteger, TicketSequence(), primary_key=True)
    photos: Mapped[list[Photo]] = relationship(back_populates="owner", cascade="all, delete-orphan")
    visits: WriteOnlyMapped[Visit] = relationship()


# A table without a class, whose rows have tickets of their own.
pins = Table(
    "pins",
    Base.metadata,
    Column("id", BigInteger, TicketSequence(), primary_key=True),
    Column("photo_id", ForeignKey("photos.id")),
    Column("board_id", ForeignKey("boards.id")),
)


class Photo(Base):
    __tablename__ = "photos"
    id: Mapped[int] = mapped_column(BigInteger, TicketSequence(), primary_key=True)
    owner_id: Mapped[int | None] = mapped_column(ForeignKey("owners.id"))
    original_id: Mapped[int | None] = mapped_column(ForeignKey("photos.id"))
    owner: Mapped[Owner | None] = relationship(back_populates="photos")
    original: Mapped[Photo | None] = relationship(back_populates="copies", remote_side="Photo.id")
    copies: Mapped[list[Photo]] = relationship(back_populates="original")
    tags: Mapped[list[Tagging]] = relationship(back_populates="photo")
    boards: Mapped[list[Board]] = relationship(secondary=pins)


class Word(Base):
    __tablename__ = "words"
    id: Mapped[int] = mapped_column(BigInteger, TicketSequence(), primary_key=True)
    text: Mapped[str] = mapped_column(String(50))


class Tagging(Base):
    """An association object: keyed by what it joins, with a ticket of its own besides."""

    __tablename__ = "taggings"
    photo_id: Mapped[int] = mapped_column(ForeignKey("photos.id"), primary_key=True)
    word_id: Mapped[int] = mapped_column(ForeignKey("words.id"), primary_key=True)
    number: Mapped[int] = mapped_column(BigInteger, TicketSequence("tagging_numbers"))
    photo: Mapped[Photo] = relationship(back_populates="tags")
    word: Mapped[Word] = relationship()


class Board(Base):
    __tablename__ = "boards"
    id: Mapped[int] = mapped_column(BigInteger, TicketSequence(), primary_key=True)


class Visit(Base):
    __tablename__ = "visits"
    id: Mapped[int] = mapped_column(BigInteger, TicketSequence(), primary_key=True)
    owner_id: Mapped[int] = mapped_column(ForeignKey("owners.id"))


@pytest.fixture
def site(serve: Serve) -> Site:
    return serve(Base.metadata)


def test_a_cascade(site: Site) -> None:
    owners = [Owner(photos=[Photo() for _ in range(3)]) for _ in range(4)]
    with site.count() as counted, site.session() as session, session.begin():
        session.add_all(owners)
    assert counted.draws == {"owners": 1, "photos": 1}
    assert counted.tickets == {"owners": 4, "photos": 12}
    assert counted.inserts == [many("owners", 4), many("photos", 12)]
    owned = site.rows(Photo.owner_id, Photo.id)
    assert len({owner for owner, _ in owned}) == 4
    assert len({photo for _, photo in owned}) == 12


def test_a_cascade_from_the_many_side(site: Site) -> None:
    with site.count() as counted, site.session() as session, session.begin():
        owner = Owner()
        session.add_all([Photo(owner=owner), Photo(owner=owner), Photo()])
    assert counted.draws == {"owners": 1, "photos": 1}
    assert counted.tickets == {"owners": 1, "photos": 3}
    assert counted.inserts[0] == one("owners")


def test_a_tree_of_one_table(site: Site) -> None:
    tree = Photo(copies=[Photo(copies=[Photo(), Photo()]), Photo()])
    with site.count() as counted, site.session() as session, session.begin():
        session.add(tree)
        session.flush()
        assert [copy.original_id for copy in tree.copies] == [tree.id] * 2
    assert counted.draws == {"photos": 1}
    assert counted.tickets == {"photos": 5}
    # One INSERT per generation: the parents' rows must be there first.
    assert [inserted.sets for inserted in counted.inserts] == [1, 2, 2]
    assert len(site.rows(Photo.id)) == 5


def test_association_objects(site: Site) -> None:
    words = [Word(text=text) for text in "ab"]
    photos = [Photo(tags=[Tagging(word=word) for word in words]) for _ in range(3)]
    with site.count() as counted, site.session() as session, session.begin():
        session.add_all(photos)
    assert counted.draws == {"photos": 1, "words": 1, "tagging_numbers": 1}
    assert counted.tickets == {"photos": 3, "words": 2, "tagging_numbers": 6}
    assert many("taggings", 6) in counted.inserts
    assert len({number for _, number in site.rows(Tagging.photo_id, Tagging.number)}) == 6


def test_a_secondary_table_with_ids_of_its_own(site: Site) -> None:
    """Its rows belong to no object: the column default draws, once for all of them."""
    boards = [Board(), Board()]
    with site.count() as counted, site.session() as session, session.begin():
        session.add_all(Photo(boards=boards) for _ in range(3))
    assert counted.draws == {"photos": 1, "boards": 1, "pins": 1}
    assert counted.tickets == {"photos": 3, "boards": 2, "pins": 6}
    assert many("pins", 6) in counted.inserts
    assert len(site.rows(pins.c.id)) == 6


def test_a_write_only_collection(site: Site) -> None:
    with site.count() as counted, site.session() as session, session.begin():
        owner = Owner()
        owner.visits.add_all([Visit() for _ in range(3)])
        session.add(owner)
        session.flush()
        session.execute(insert(Visit), [{"owner_id": owner.id} for _ in range(4)])
    assert counted.draws == {"owners": 1, "visits": 2}
    assert counted.tickets == {"owners": 1, "visits": 7}


def test_an_orphan_is_not_inserted(site: Site) -> None:
    with site.count() as counted, site.session() as session, session.begin():
        owner = Owner()
        session.add(owner)
        session.flush()
        owner.photos.append(lost := Photo())
        owner.photos.remove(lost)
        owner.photos.append(Photo())
    assert counted.tickets == {"owners": 1, "photos": 1}
    assert len(site.rows(Photo.id)) == 1
