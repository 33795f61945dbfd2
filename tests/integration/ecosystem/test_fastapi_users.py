"""fastapi-users: users whose keys are tickets, registered and logged in by its own routes."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import BigInteger
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from sqla_tickets import TicketSequence
from tests.integration.ecosystem.conftest import Tickets

users_db: Any = pytest.importorskip(
    "fastapi_users_db_sqlalchemy", reason="its 7.0.0 wants SQLAlchemy below 2.1"
)
pytest.importorskip("fastapi_users")
from fastapi import Depends, FastAPI  # noqa: E402
from fastapi.testclient import TestClient  # noqa: E402
from fastapi_users import BaseUserManager, FastAPIUsers, IntegerIDMixin, schemas  # noqa: E402
from fastapi_users.authentication import (  # noqa: E402
    AuthenticationBackend,
    BearerTransport,
    JWTStrategy,
)

SECRET = "of this test, and long enough for a signature"


class Base(DeclarativeBase):
    pass


class User(users_db.SQLAlchemyBaseUserTable[int], Base):  # type: ignore[misc]  # not installed with SQLAlchemy 2.1
    id: Mapped[int] = mapped_column(BigInteger, TicketSequence("users"), primary_key=True)


class UserManager(IntegerIDMixin, BaseUserManager[User, int]):
    reset_password_token_secret = SECRET
    verification_token_secret = SECRET


def create_app(database: str) -> FastAPI:
    engine = create_async_engine(database)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with engine.begin() as connection:
            await connection.run_sync(Base.metadata.create_all)
        yield
        await engine.dispose()

    async def manager() -> AsyncIterator[UserManager]:
        async with AsyncSession(engine, expire_on_commit=False) as session:
            yield UserManager(users_db.SQLAlchemyUserDatabase(session, User))

    def strategy() -> JWTStrategy[User, int]:
        return JWTStrategy(secret=SECRET, lifetime_seconds=3600)

    backend = AuthenticationBackend("jwt", BearerTransport("auth/login"), strategy)
    users = FastAPIUsers[User, int](manager, [backend])
    app = FastAPI(lifespan=lifespan)
    app.include_router(users.get_auth_router(backend), prefix="/auth")
    app.include_router(
        users.get_register_router(schemas.BaseUser[int], schemas.BaseUserCreate), prefix="/auth"
    )

    @app.get("/me")
    async def me(user: User = Depends(users.current_user())) -> int:  # noqa: B008
        return user.id

    return app


def test_users_are_registered_and_logged_in(tickets: Tickets, tmp_path: Path) -> None:
    tickets.serve(Base.metadata)
    with TestClient(create_app(f"sqlite+aiosqlite:///{tmp_path}/app.db")) as client:
        ids = []
        for n in range(4):
            account = {"email": f"{n}@example.org", "password": f"a secret {n}"}
            ids.append(client.post("/auth/register", json=account).json()["id"])
        answer = client.post(
            "/auth/login", data={"username": "2@example.org", "password": "a secret 2"}
        )
        token = answer.json()["access_token"]
        assert client.get("/me", headers={"Authorization": f"Bearer {token}"}).json() == ids[2]
    tickets.assert_issued(ids, "users")
