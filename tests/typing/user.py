"""What type checkers say to a user: each `assert_type` is one answer, each ignored error one refusal."""

# pyright: strict
# pyright: reportUnnecessaryTypeIgnoreComment=true

from __future__ import annotations

from typing import Annotated

from sqlalchemy import BigInteger, Column, MetaData, Table
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from typing_extensions import assert_type

from alembic_ext import create_ticket_table, next_tickets
from sqla_tickets import (
    SNOWFLAKE,
    AsyncTicketPool,
    BitLayout,
    Decoded,
    NodeLease,
    NodeLeases,
    SnowflakeGenerator,
    SnowflakeSequence,
    TableStatus,
    TicketError,
    TicketPool,
    TicketSequence,
    TicketServer,
)
from sqla_tickets.tables.grants import grants
from sqla_tickets.testing import servers_at, servers_in_memory

TicketKey = Annotated[int, mapped_column(BigInteger, TicketSequence(), primary_key=True)]


class Base(DeclarativeBase):
    pass


class Photo(Base):
    __tablename__ = "photos"
    id: Mapped[int] = mapped_column(BigInteger, TicketSequence("photos"), primary_key=True)
    title: Mapped[str]


class Album(Base):
    __tablename__ = "albums"
    id: Mapped[TicketKey]


class Event(Base):
    __tablename__ = "events"
    id: Mapped[int] = mapped_column(BigInteger, SnowflakeSequence(), primary_key=True)


films = Table(
    "films",
    MetaData(),
    Column("id", BigInteger, TicketSequence(block=(10, 1000)), primary_key=True),
)


def declare(photo: Photo, album: Album, event: Event) -> None:
    assert_type(photo.id, int)
    assert_type(album.id, int)
    assert_type(event.id, int)


def draw(pool: TicketPool) -> None:
    sequence = TicketSequence("photos", block=100)
    assert_type(pool.next_id("photos"), int)
    assert_type(pool.next_id(sequence), int)
    assert_type(pool.next_ids(sequence, 3), list[int])
    assert_type(pool.reserve("photos", 3), list[range])
    assert_type(pool.status(["photos"]), list[TableStatus])
    assert_type(pool.status()[0].last_ticket, int | None)
    assert_type(NodeLeases(pool).status(), list[NodeLease])
    assert_type(pool.servers, tuple[TicketServer, ...])
    assert_type(pool.stride, int)
    sequence.apply_to(films.c.id, Album.id)
    pool.create_table("people", layout="counter", start=1000)
    try:
        pool.attach(Base.metadata, films.metadata)
    except TicketError as error:
        assert_type(str(error), str)


async def draw_in_a_task(servers: list[str]) -> None:
    async with AsyncTicketPool(servers, stride=4, timeout=0.5) as pool:
        assert_type(pool, AsyncTicketPool)
        assert_type(pool.sync_pool, TicketPool)
        await pool.create_table("people", layout="counter", start=1000)
        await pool.create_all(Base.metadata)
        assert_type(await pool.next_id(TicketSequence("photos", block=100)), int)
        assert_type(await pool.next_ids("photos", 3), list[int])
        assert_type(await pool.reserve("photos", n=3), list[range])
        assert_type(await pool.status(["photos"]), list[TableStatus])
        assert_type(pool.buffered("photos"), int)
        with pool.attached(Base.metadata) as attached:
            assert_type(attached, AsyncTicketPool)


def sort_by_time(pool: TicketPool) -> None:
    made = SnowflakeGenerator(pool, "events", BitLayout(41, 10, 12))
    assert_type(made, SnowflakeGenerator)
    assert_type(made.next_id(), int)
    assert_type(SNOWFLAKE.decode(made.next_id()), Decoded)


def test_with_servers_in_memory() -> None:
    with servers_in_memory(Base.metadata, films.metadata, stride=16) as pool:
        assert_type(pool, TicketPool)
    with servers_at(["mysql+pymysql://tests@ticket1/"], Base.metadata) as real:
        assert_type(real, TicketPool)


def upgrade() -> None:
    create_ticket_table("photos")
    assert_type(next_tickets("photos", 10), list[int])
    assert_type(grants("mysql", "draw", user="tickets", database="tickets"), list[str])


async def mistakes(pool: TicketPool, awaited: AsyncTicketPool) -> None:
    """Each is told: an ignored error that is none is an error itself."""
    AsyncTicketPool(["sqlite://"], strides=4)  # type: ignore[call-arg]
    await awaited.next_id(7)  # type: ignore[arg-type]
    await awaited.create_table("people", layout="rows")  # type: ignore[arg-type]
    pool.next_id(7)  # type: ignore[arg-type]
    pool.create_table("people", layout="rows")  # type: ignore[arg-type]
    TicketSequence("photos", block="many")  # type: ignore[arg-type]
    TicketSequence("photos").apply_to("photos.id")  # type: ignore[arg-type]
    grants("mysql", "drop", user="a", database="b")  # type: ignore[arg-type]
