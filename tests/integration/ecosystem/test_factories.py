"""factory_boy and polyfactory: objects that are made for tests get tickets when they are flushed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import BigInteger, ForeignKey, create_engine, select
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import (
    DeclarativeBase,
    Mapped,
    Session,
    mapped_column,
    relationship,
    scoped_session,
    sessionmaker,
)

from sqla_tickets import TicketSequence
from tests.integration.ecosystem.conftest import FIRST, Tickets

pytest.importorskip("polyfactory")
from polyfactory.factories.sqlalchemy_factory import SQLAlchemyFactory

factory: Any = pytest.importorskip("factory")
alchemy: Any = pytest.importorskip("factory.alchemy")


class Base(DeclarativeBase):
    pass


class User(Base):
    __tablename__ = "users"
    id: Mapped[int] = mapped_column(BigInteger, TicketSequence(), primary_key=True)
    name: Mapped[str]


class Photo(Base):
    __tablename__ = "photos"
    id: Mapped[int] = mapped_column(BigInteger, TicketSequence(), primary_key=True)
    user_id: Mapped[int] = mapped_column(ForeignKey("users.id"))
    title: Mapped[str]
    user: Mapped[User] = relationship()


@pytest.fixture
def session(tickets: Tickets) -> Iterator[Session]:
    tickets.serve(Base.metadata)
    engine = create_engine("sqlite://")
    Base.metadata.create_all(engine)
    with Session(engine) as session:
        yield session


@pytest.mark.parametrize(("persistence", "draws"), [(None, 2), ("flush", 20), ("commit", 20)])
def test_factory_boy(
    tickets: Tickets, session: Session, persistence: str | None, draws: int
) -> None:
    """Where the factory flushes each object, each has a draw; where the test does, all have one."""
    scoped = scoped_session(sessionmaker(session.get_bind()))

    class UserFactory(alchemy.SQLAlchemyModelFactory):  # type: ignore[misc]  # its types are not complete
        class Meta:
            model = User
            sqlalchemy_session = scoped
            sqlalchemy_session_persistence = persistence

        name = factory.Faker("name")

    class PhotoFactory(alchemy.SQLAlchemyModelFactory):  # type: ignore[misc]  # its types are not complete
        class Meta:
            model = Photo
            sqlalchemy_session = scoped
            sqlalchemy_session_persistence = persistence

        title = factory.Sequence(lambda n: f"Photo {n}")
        user = factory.SubFactory(UserFactory)

    photos = PhotoFactory.create_batch(10)
    scoped.commit()
    tickets.assert_issued([photo.id for photo in photos], "photos")
    tickets.assert_issued([photo.user_id for photo in photos], "users")
    assert sum(status.draws for status in tickets.pool.status()) == draws
    assert not PhotoFactory.build().id
    scoped.remove()


def test_polyfactory(tickets: Tickets, session: Session) -> None:
    class PhotoFactory(SQLAlchemyFactory[Photo]):
        __model__ = Photo
        __set_primary_key__ = False
        __set_relationships__ = True

    PhotoFactory.__session__ = session
    one, *photos = [PhotoFactory.create_sync(), *PhotoFactory.create_batch_sync(10)]
    tickets.assert_issued([photo.id for photo in (one, *photos)], "photos")
    users = [photo.user_id for photo in (one, *photos)]
    assert len(set(users)) == 11


def test_polyfactory_invents_keys_by_itself(tickets: Tickets, session: Session) -> None:
    """Its default: a number at random, which counts as one that was set by hand."""

    class UserFactory(SQLAlchemyFactory[User]):
        __model__ = User

    UserFactory.__session__ = session
    assert UserFactory.create_sync().id < FIRST


@pytest.fixture
async def async_session(tickets: Tickets, tmp_path: Path) -> AsyncIterator[AsyncSession]:
    tickets.serve(Base.metadata)
    engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path}/app.db")
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
    async with AsyncSession(engine, expire_on_commit=False) as session:
        yield session
    await engine.dispose()


async def test_polyfactory_of_an_async_session(
    tickets: Tickets, async_session: AsyncSession
) -> None:
    class UserFactory(SQLAlchemyFactory[User]):
        __model__ = User
        __set_primary_key__ = False

    UserFactory.__async_session__ = async_session
    await UserFactory.create_batch_async(10)
    tickets.assert_issued(await async_session.scalars(select(User.id)), "users")
