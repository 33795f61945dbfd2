"""sqladmin: rows that are added by its forms."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import BigInteger, create_engine, select
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from sqla_tickets import TicketSequence
from tests.integration.ecosystem.conftest import Tickets

pytest.importorskip("sqladmin")
pytest.importorskip("httpx")
from sqladmin import Admin, ModelView
from starlette.applications import Starlette
from starlette.testclient import TestClient


class Base(DeclarativeBase):
    pass


class Photo(Base):
    __tablename__ = "photos"
    id: Mapped[int] = mapped_column(BigInteger, TicketSequence(), primary_key=True)
    title: Mapped[str]


class PhotoAdmin(ModelView, model=Photo):
    column_list = (Photo.id, Photo.title)


def test_forms_create_and_edit_rows(tickets: Tickets, tmp_path: Path) -> None:
    tickets.serve(Base.metadata)
    engine = create_engine(f"sqlite:///{tmp_path}/app.db")
    Base.metadata.create_all(engine)
    app = Starlette()
    Admin(app, engine).add_view(PhotoAdmin)
    with TestClient(app) as client:
        for n in range(5):
            assert client.get("/admin/photo/create").status_code == 200
            client.post("/admin/photo/create", data={"title": f"Photo {n}"})
        with Session(engine) as session:
            ids = list(session.scalars(select(Photo.id).order_by(Photo.id)))
        tickets.assert_issued(ids, "photos")
        assert len(ids) == 5
        assert sum(status.draws for status in tickets.pool.status()) == 5  # none for a form
        client.post(f"/admin/photo/edit/{ids[0]}", data={"title": "changed"})
        assert "changed" in client.get("/admin/photo/list").text
        with Session(engine) as session:
            assert list(session.scalars(select(Photo.id).order_by(Photo.id))) == ids
    engine.dispose()
