"""Flask-SQLAlchemy: an application factory, a bind with a MetaData of its own, requests in threads."""

# The constructor of `db.Model` is unknown to pyright.
# pyright: reportCallIssue=false
from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import BigInteger
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from sqla_tickets import PoolNotAttached, TicketSequence
from tests.integration.ecosystem.conftest import Tickets

flask = pytest.importorskip("flask")
pytest.importorskip("flask_sqlalchemy")
from flask_sqlalchemy import SQLAlchemy  # noqa: E402

if TYPE_CHECKING:
    from flask import Flask


class Base(DeclarativeBase):
    pass


db = SQLAlchemy(model_class=Base)


class User(db.Model):  # type: ignore[name-defined,misc]  # a property of the extension
    id: Mapped[int] = mapped_column(BigInteger, TicketSequence(), primary_key=True)
    name: Mapped[str]


class Visit(db.Model):  # type: ignore[name-defined,misc]  # a property of the extension
    __bind_key__ = "log"
    id: Mapped[int] = mapped_column(BigInteger, TicketSequence(block=10), primary_key=True)
    user_id: Mapped[int] = mapped_column(BigInteger)


def create_app(folder: Path) -> Flask:
    app: Flask = flask.Flask(__name__, instance_path=str(folder))
    app.config["SQLALCHEMY_DATABASE_URI"] = f"sqlite:///{folder}/app.db"
    app.config["SQLALCHEMY_BINDS"] = {"log": f"sqlite:///{folder}/log.db"}
    db.init_app(app)

    @app.post("/users/<name>")
    def create(name: str) -> dict[str, int]:
        user = User(name=name)
        db.session.add(user)
        db.session.flush()
        visit = Visit(user_id=user.id)
        db.session.add(visit)
        db.session.commit()
        return {"user": user.id, "visit": visit.id}

    with app.app_context():
        db.create_all()
    return app


def test_requests_to_an_application_with_binds(tickets: Tickets, tmp_path: Path) -> None:
    tickets.serve(*db.metadatas.values())
    app = create_app(tmp_path)

    def request(number: int) -> dict[str, int]:
        answer: dict[str, int] = app.test_client().post(f"/users/{number}").get_json()
        return answer

    with ThreadPoolExecutor(4) as threads:
        answers = list(threads.map(request, range(40)))
    tickets.assert_issued([answer["user"] for answer in answers], "user")
    tickets.assert_issued([answer["visit"] for answer in answers], "visit")
    with app.app_context():
        assert {v.user_id for v in db.session.scalars(db.select(Visit))} == {
            user.id for user in db.paginate(db.select(User), per_page=100)
        }


def test_two_applications_share_one_pool(tickets: Tickets, tmp_path: Path) -> None:
    """As tests make one for each test: both are served, and no id is in both."""
    tickets.serve(*db.metadatas.values())
    ids = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        client = create_app(tmp_path / name).test_client()
        ids += [client.post(f"/users/{n}").get_json()["user"] for n in range(10)]
    tickets.assert_issued(ids, "user")


def test_forgotten_bind_is_named(tickets: Tickets, tmp_path: Path) -> None:
    tickets.serve(db.metadata)
    with create_app(tmp_path).app_context():
        db.session.add(Visit(user_id=1))
        with pytest.raises(PoolNotAttached, match=r"visit\.id"):
            db.session.commit()
