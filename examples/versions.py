"""A history of photos by SQLAlchemy-Continuum: python examples/versions.py."""

from __future__ import annotations

from typing import Any, ClassVar

from sqlalchemy import BigInteger, String, create_engine, select
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, configure_mappers, mapped_column
from sqlalchemy_continuum import (  # type: ignore[import-untyped]  # it has no types
    make_versioned,
    version_class,
)

from sqla_tickets import TicketSequence
from sqla_tickets.testing import servers_in_memory

make_versioned(user_cls=None)  # pyright: ignore[reportArgumentType]


class Base(DeclarativeBase):
    """The application's tables."""


class Photo(Base):
    __versioned__: ClassVar[dict[str, object]] = {}
    __tablename__ = "photos"
    # Its name is that of the copy in photos_version, too: versions need no ticket table.
    id: Mapped[int] = mapped_column(BigInteger, TicketSequence("photos"), primary_key=True)
    title: Mapped[str] = mapped_column(String(100))


configure_mappers()  # makes the classes of the versions


def main() -> None:
    engine = create_engine("sqlite://")
    Base.metadata.create_all(engine)
    with servers_in_memory(Base.metadata) as tickets, Session(engine) as session:
        session.add_all(photos := [Photo(title=f"{n}") for n in range(10)])
        session.commit()
        photos[3].title = "three"
        session.delete(photos[4])
        session.commit()
        print("sequences", *sorted(tickets.declared_sequences()))
        history: Any = version_class(Photo)
        titles = select(history.title).filter_by(id=photos[3].id).order_by(history.transaction_id)
        print("history", *session.scalars(titles))
        deleted = session.scalars(select(history).filter_by(operation_type=2)).one()
        deleted.previous.revert()
        session.commit()
        restored = session.scalars(select(Photo).filter_by(title="4")).one()
        ids = [photo.id for photo in session.scalars(select(Photo))]
        print("restored with its id", restored.id == deleted.id)
        print("photos", len(ids), "ids", len(set(ids)))


if __name__ == "__main__":
    main()
