"""FastAPI: a pool that lives as long as the application, an `AsyncSession` for each request."""

from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated

import pytest
from sqlalchemy import BigInteger, select
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from sqla_tickets import AsyncTicketPool, TicketSequence
from tests.integration.ecosystem.conftest import Tickets

pytest.importorskip("fastapi")
pytest.importorskip("httpx")
from fastapi import Depends, FastAPI, HTTPException
from fastapi.testclient import TestClient
from pydantic import BaseModel


class Base(DeclarativeBase):
    pass


class Photo(Base):
    __tablename__ = "photos"
    id: Mapped[int] = mapped_column(BigInteger, TicketSequence(block=5), primary_key=True)
    title: Mapped[str]


class PhotoIn(BaseModel):
    title: str


def create_app(database: str, servers: list[str]) -> FastAPI:
    engine = create_async_engine(database)
    make_session = async_sessionmaker(engine, expire_on_commit=False)
    pool = AsyncTicketPool(servers, stride=4)
    pool.attach(Base.metadata)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with pool:
            async with engine.begin() as connection:
                await connection.run_sync(Base.metadata.create_all)
            yield
        await engine.dispose()

    async def session() -> AsyncIterator[AsyncSession]:
        async with make_session() as session:
            yield session

    app = FastAPI(lifespan=lifespan)

    @app.post("/photos")
    async def create(
        photo: PhotoIn, session: Annotated[AsyncSession, Depends(session)]
    ) -> dict[str, int]:
        created = Photo(title=photo.title)
        session.add(created)
        await session.commit()
        return {"id": created.id}

    @app.get("/photos")
    async def read(session: Annotated[AsyncSession, Depends(session)]) -> list[int]:
        return list(await session.scalars(select(Photo.id)))

    @app.get("/health")
    async def health() -> dict[str, str]:
        up = [status for status in await pool.status() if status.up]
        if not up:
            raise HTTPException(503, "no ticket server answers")
        return {status.server: status.state for status in up}

    return app


def test_requests_to_an_application(tickets: Tickets, tmp_path: Path) -> None:
    tickets.serve(Base.metadata)
    servers = [url.replace("sqlite:", "sqlite+aiosqlite:") for url in tickets.urls]
    ids: list[int] = []
    for _ in range(2):  # an application that was started again
        with TestClient(create_app(f"sqlite+aiosqlite:///{tmp_path}/app.db", servers)) as client:
            with ThreadPoolExecutor(4) as threads:
                answers = threads.map(
                    lambda n: client.post("/photos", json={"title": f"{n}"}).json(), range(20)
                )
                ids += [answer["id"] for answer in answers]
            assert set(client.get("/health").json().values()) == {"up"}
            assert sorted(client.get("/photos").json()) == sorted(ids)
    tickets.assert_issued(ids, "photos")


def test_health_without_servers_is_503(tickets: Tickets, tmp_path: Path) -> None:
    tickets.serve(Base.metadata)
    servers = [f"sqlite+aiosqlite:///{tmp_path}/nowhere/{n}.db" for n in (1, 2)]
    with TestClient(create_app(f"sqlite+aiosqlite:///{tmp_path}/app.db", servers)) as client:
        assert client.get("/health").status_code == 503
