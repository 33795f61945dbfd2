"""Litestar: advanced-alchemy's plugin, and DTOs that are made of the models."""

from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import BigInteger, select
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Mapped, mapped_column

from sqla_tickets import TicketSequence
from tests.integration.ecosystem.conftest import Tickets

pytest.importorskip("advanced_alchemy")
pytest.importorskip("litestar.di")
from advanced_alchemy import base
from advanced_alchemy.extensions.litestar import (
    SQLAlchemyAsyncConfig,
    SQLAlchemyDTO,
    SQLAlchemyDTOConfig,
    SQLAlchemyPlugin,
)
from litestar import Litestar, get, post
from litestar.di import NamedDependency
from litestar.params import JSONBody
from litestar.testing import TestClient

metadata = base.orm_registry.metadata


class Photo(base.DefaultBase):
    __tablename__ = "photos"
    id: Mapped[int] = mapped_column(BigInteger, TicketSequence(), primary_key=True)
    title: Mapped[str]


PhotoDTO = SQLAlchemyDTO[Photo]


class NewPhotoDTO(SQLAlchemyDTO[Photo]):
    """A client gives no id."""

    config = SQLAlchemyDTOConfig(exclude={"id"})


async def save(photo: Photo, session: AsyncSession) -> Photo:
    session.add(photo)
    await session.flush()
    return photo


@post("/photos", dto=NewPhotoDTO, return_dto=PhotoDTO)
async def create(data: JSONBody[Photo], db_session: NamedDependency[AsyncSession]) -> Photo:
    return await save(data, db_session)


@post("/with-id", dto=PhotoDTO)
async def create_with_id(data: JSONBody[Photo], db_session: NamedDependency[AsyncSession]) -> Photo:
    return await save(data, db_session)


@get("/photos", return_dto=PhotoDTO)
async def read(db_session: NamedDependency[AsyncSession]) -> list[Photo]:
    return list(await db_session.scalars(select(Photo)))


def client_of(folder: Path) -> TestClient[Any]:
    config = SQLAlchemyAsyncConfig(
        connection_string=f"sqlite+aiosqlite:///{folder}/app.db",
        metadata=metadata,
        create_all=True,
        before_send_handler="autocommit",
    )
    return TestClient(Litestar([create, create_with_id, read], plugins=[SQLAlchemyPlugin(config)]))


def test_data_without_an_id_get_tickets(tickets: Tickets, tmp_path: Path) -> None:
    tickets.serve(metadata)
    with client_of(tmp_path) as client:
        answers = [client.post("/photos", json={"title": f"{n}"}) for n in range(10)]
        assert {answer.status_code for answer in answers} == {201}, answers[0].text
        # It calls the column's default for an id that was left out.
        answers += [client.post("/with-id", json={"title": f"{n}"}) for n in range(10)]
        assert {answer.status_code for answer in answers} == {201}, answers[-1].text
        ids = [answer.json()["id"] for answer in answers]
        assert sorted(photo["id"] for photo in client.get("/photos").json()) == sorted(ids)
    tickets.assert_issued(ids, "photos")


def test_id_of_a_client_stays(tickets: Tickets, tmp_path: Path) -> None:
    tickets.serve(metadata)
    with client_of(tmp_path) as client:
        assert client.post("/with-id", json={"id": 7, "title": "seven"}).json()["id"] == 7
