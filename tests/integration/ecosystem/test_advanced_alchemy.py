"""advanced-alchemy: its bases with tickets for keys, its repositories and services."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from sqlalchemy import BigInteger, ForeignKey, create_engine
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Mapped, Session, mapped_column, relationship

from sqla_tickets import TicketSequence
from tests.integration.ecosystem.conftest import Tickets

pytest.importorskip("advanced_alchemy")
from advanced_alchemy import base, repository, service

metadata = base.orm_registry.metadata


class TicketBase(base.DefaultBase):
    """Beside its bases for UUIDs: tables named like their classes, and a ticket for a key."""

    __abstract__ = True
    id: Mapped[int] = mapped_column(BigInteger, TicketSequence(), primary_key=True, sort_order=-100)


class Author(TicketBase):
    name: Mapped[str]
    books: Mapped[list[Book]] = relationship(lazy="selectin")


class Book(base.BigIntAuditBase):
    """Its own base has a Sequence: the class overrides it."""

    id: Mapped[int] = mapped_column(  # pyright: ignore[reportIncompatibleVariableOverride]
        BigInteger, TicketSequence(), primary_key=True
    )
    title: Mapped[str]
    author_id: Mapped[int] = mapped_column(ForeignKey("author.id"))


class Authors(service.SQLAlchemySyncRepositoryService[Author]):
    class Repository(repository.SQLAlchemySyncRepository[Author]):
        model_type = Author

    repository_type = Repository


class AsyncBooks(repository.SQLAlchemyAsyncRepository[Book]):
    model_type = Book


class AsyncAuthors(repository.SQLAlchemyAsyncRepository[Author]):
    model_type = Author


@pytest.fixture
async def session(tmp_path: Path) -> AsyncIterator[AsyncSession]:
    engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path}/app.db")
    async with engine.begin() as connection:
        await connection.run_sync(metadata.create_all)
    async with AsyncSession(engine, expire_on_commit=False) as session:
        yield session
    await engine.dispose()


def test_service_creates_and_upserts(tickets: Tickets) -> None:
    tickets.serve(metadata)
    engine = create_engine("sqlite://")
    metadata.create_all(engine)
    with Session(engine) as session:
        authors = Authors(session=session)
        one = authors.create({"name": "Agatha"}, auto_commit=True)
        authors.create_many([{"name": f"{n}"} for n in range(10)], auto_commit=True)
        authors.upsert({"id": one.id, "name": "Agatha Christie"}, auto_commit=True)
        authors.upsert_many([Author(name="new"), Author(id=one.id, name="A. C.")])
        found, _ = authors.get_or_upsert(name="Arthur")
        session.commit()
        everyone, count = authors.get_many_and_count()
        assert count == 13
        assert {author.name for author in everyone if author.id in (one.id, found.id)} == {
            "A. C.",
            "Arthur",
        }
        tickets.assert_issued([author.id for author in everyone], "author")


async def test_repository_adds_many_with_one_draw(tickets: Tickets, session: AsyncSession) -> None:
    tickets.serve(metadata)
    author = await AsyncAuthors(session=session).add(Author(name="Agatha"))
    books = AsyncBooks(session=session)
    await books.add_many([Book(title=f"{n}", author_id=author.id) for n in range(20)])
    await session.commit()
    assert sum(s.draws for s in tickets.pool.status() if s.sequence == "book") == 1
    tickets.assert_issued([book.id for book in await books.get_many()], "book")
