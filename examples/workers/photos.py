"""An application that makes its pool, and draws, when it is imported: before its workers are forked."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable

from sqlalchemy import BigInteger, String, create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from sqla_tickets import TicketPool, TicketSequence


class Base(DeclarativeBase):
    """The application's tables."""


class Photo(Base):
    __tablename__ = "photos"
    id: Mapped[int] = mapped_column(BigInteger, TicketSequence(block=10), primary_key=True)
    title: Mapped[str] = mapped_column(String(100))


engine = create_engine(os.environ["DATABASE_URL"])
tickets = TicketPool(os.environ["TICKET_SERVERS"].split())
tickets.attach(Base.metadata)


def add_photo(title: str) -> int:
    """Save a photo, and return its id."""
    with Session(engine) as session:
        photo = Photo(title=title)
        session.add(photo)
        session.commit()
        return photo.id


# Drawn before the fork: the rest of this block stays with the parent.
first = add_photo("when the application was imported")


def application(
    environ: dict[str, object], start_response: Callable[[str, list[tuple[str, str]]], object]
) -> Iterable[bytes]:
    """A WSGI application that adds a photo for each request."""
    photo = add_photo(str(environ["PATH_INFO"]))
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [f"{os.getpid()} {photo}".encode()]
