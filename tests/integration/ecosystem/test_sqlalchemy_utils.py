"""SQLAlchemy-Utils: defaults at once, generic relationships, and its functions on keys."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import BigInteger, String, create_engine, select
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from sqla_tickets import TicketSequence
from tests.integration.ecosystem.conftest import Tickets

utils: Any = pytest.importorskip("sqlalchemy_utils")


class Base(DeclarativeBase):
    pass


@utils.generic_repr("id")
class Photo(Base):
    __tablename__ = "photos"
    id: Mapped[int] = mapped_column(BigInteger, TicketSequence(), primary_key=True)
    title: Mapped[str] = mapped_column(String(50), default="untitled")


class Event(Base):
    __tablename__ = "events"
    id: Mapped[int] = mapped_column(BigInteger, TicketSequence(), primary_key=True)
    object_type: Mapped[str] = mapped_column(String(50))
    object_id: Mapped[int] = mapped_column(BigInteger)
    object = utils.generic_relationship("object_type", "object_id")


class Instant(Base):
    __tablename__ = "instants"
    id: Mapped[int] = mapped_column(BigInteger, TicketSequence(), primary_key=True)
    title: Mapped[str] = mapped_column(String(50), default="untitled")


def test_instant_defaults_are_tickets(tickets: Tickets) -> None:
    """A new object has its ticket before it is in a session, and the flush leaves it as it is."""
    tickets.serve(Base.metadata)
    engine = create_engine("sqlite://")
    Base.metadata.create_all(engine)
    utils.force_instant_defaults(Instant)
    with Session(engine) as session:
        made = [Instant() for _ in range(10)]
        ids = [each.id for each in made]
        tickets.assert_issued(ids, "instants")
        assert {each.title for each in made} == {"untitled"}
        session.add_all(made)
        session.commit()
        assert sorted(session.scalars(select(Instant.id))) == sorted(ids)


def test_generic_relationships_point_to_tickets(tickets: Tickets) -> None:
    tickets.serve(Base.metadata)
    engine = create_engine("sqlite://")
    Base.metadata.create_all(engine)
    with Session(engine) as session:
        photos = [Photo() for _ in range(10)]
        session.add_all(photos)
        session.flush()
        session.add_all(Event(object=photo) for photo in photos)
        session.commit()
        tickets.assert_issued(session.scalars(select(Photo.id)), "photos")
        tickets.assert_issued(session.scalars(select(Event.id)), "events")
        event = session.scalars(select(Event).filter_by(object=photos[3])).one()
        assert event.object is photos[3]
        assert repr(photos[3]) == f"Photo(id={photos[3].id})"
        assert utils.identity(photos[3]) == (photos[3].id,)
        assert list(utils.get_primary_keys(Photo)) == ["id"]
