"""marshmallow-sqlalchemy: schemas of models, which load new objects and old ones."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import BigInteger, ForeignKey, create_engine, select
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, relationship

from sqla_tickets import TicketSequence
from tests.integration.ecosystem.conftest import Tickets

marshmallow: Any = pytest.importorskip("marshmallow_sqlalchemy")
fields: Any = pytest.importorskip("marshmallow_sqlalchemy.fields")


class Base(DeclarativeBase):
    pass


class Book(Base):
    __tablename__ = "books"
    id: Mapped[int] = mapped_column(BigInteger, TicketSequence(), primary_key=True)
    title: Mapped[str]
    author_id: Mapped[int] = mapped_column(ForeignKey("authors.id"))


class Author(Base):
    __tablename__ = "authors"
    id: Mapped[int] = mapped_column(BigInteger, TicketSequence(), primary_key=True)
    name: Mapped[str]
    books: Mapped[list[Book]] = relationship()


class BookSchema(marshmallow.SQLAlchemyAutoSchema):  # type: ignore[misc]  # what it loads depends on its Meta
    class Meta:
        model = Book
        load_instance = True


class AuthorSchema(marshmallow.SQLAlchemyAutoSchema):  # type: ignore[misc]  # what it loads depends on its Meta
    class Meta:
        model = Author
        load_instance = True

    books = fields.Nested(BookSchema, many=True)


def test_schemas_load_and_dump(tickets: Tickets) -> None:
    tickets.serve(Base.metadata)
    engine = create_engine("sqlite://")
    Base.metadata.create_all(engine)
    schema = AuthorSchema()
    assert not schema.fields["id"].required
    with Session(engine) as session:
        data = [{"name": f"{n}", "books": [{"title": "a"}, {"title": "b"}]} for n in range(10)]
        session.add_all(schema.load(data, session=session, many=True))
        session.commit()
        tickets.assert_issued(session.scalars(select(Author.id)), "authors")
        tickets.assert_issued(session.scalars(select(Book.id)), "books")
        assert sum(status.draws for status in tickets.pool.status()) == 2
        dumped = schema.dump(session.scalars(select(Author)).first())
        dumped["name"] = "changed"
        changed = schema.load(dumped, session=session)
        session.commit()
        assert changed.id == dumped["id"]
        assert session.query(Author).count() == 10
