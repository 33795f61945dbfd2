"""A photo site in a few lines: ids from two ticket servers, rows on two shards."""

from __future__ import annotations

import os
from typing import Any

from fastapi import FastAPI, HTTPException
from sqlalchemy import BigInteger, String, create_engine, select
from sqlalchemy.ext.horizontal_shard import ShardedSession
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from sqla_tickets import TicketPool, TicketSequence


class Base(DeclarativeBase):
    pass


class Photo(Base):
    __tablename__ = "photos"
    id: Mapped[int] = mapped_column(BigInteger, TicketSequence(), primary_key=True)
    title: Mapped[str] = mapped_column(String(100))


tickets = TicketPool([os.environ["TICKET1"], os.environ["TICKET2"]])
tickets.attach(Base.metadata)
shards = {
    name: create_engine(os.environ[name], pool_pre_ping=True) for name in ("SHARD1", "SHARD2")
}


def shard_of(photo_id: int) -> str:
    # not photo_id % 2: each shard gets photos of both ticket servers
    return list(shards)[photo_id // 2 % len(shards)]


def of_object(mapper: Any, instance: Any, clause: Any = None) -> str:
    return shard_of(instance.id)


def of_key(mapper: Any, primary_key: Any, **kw: Any) -> list[str]:
    return [shard_of(primary_key[0])]


def of_statement(state: Any) -> list[str]:
    return list(shards)


def open_session() -> ShardedSession:
    return ShardedSession(
        shards=shards,
        shard_chooser=of_object,
        identity_chooser=of_key,
        execute_chooser=of_statement,
    )


app = FastAPI()


@app.post("/photos", status_code=201)
def post_photo(title: str) -> dict[str, int | str]:
    with open_session() as session:
        photo = Photo(title=title)
        session.add(photo)
        session.commit()
        return {"id": photo.id, "shard": shard_of(photo.id)}


@app.get("/photos/{photo_id}")
def get_photo(photo_id: int) -> dict[str, int | str]:
    with open_session() as session:
        photo = session.get(Photo, photo_id, identity_token=shard_of(photo_id))
        if photo is None:
            raise HTTPException(404)
        return {"id": photo.id, "title": photo.title}


@app.get("/photos")
def list_photos() -> list[int]:
    with open_session() as session:
        return sorted(session.scalars(select(Photo.id)))


@app.get("/health")
def health() -> dict[str, str]:
    """The state of each ticket server; the site goes on while one of them is up."""
    states: dict[str, str] = {status.server: status.state for status in tickets.status()}
    if "up" not in states.values():
        raise HTTPException(503, states)
    return states
