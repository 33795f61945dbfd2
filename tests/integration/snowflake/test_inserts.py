"""`SnowflakeSequence` where ids are assigned: flushes, executemany, bulk statements, shard choosers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import (
    URL,
    BigInteger,
    Engine,
    String,
    Uuid,
    create_engine,
    event,
    insert,
    select,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from sqla_tickets import (
    FLAKE,
    SNOWFLAKE,
    SONYFLAKE,
    SnowflakeGenerator,
    SnowflakeSequence,
    TicketArgumentError,
    TicketPool,
    TicketSequence,
)


class Base(DeclarativeBase):
    pass


class Photo(Base):
    __tablename__ = "photos"
    id: Mapped[int] = mapped_column(BigInteger, SnowflakeSequence(), primary_key=True)
    title: Mapped[str] = mapped_column(String(20))


class Event(Base):
    __tablename__ = "events"
    id: Mapped[UUID] = mapped_column(Uuid, SnowflakeSequence(layout=FLAKE), primary_key=True)
    number: Mapped[int] = mapped_column(BigInteger, TicketSequence("numbers"))
    text: Mapped[str] = mapped_column(
        Uuid(as_uuid=False), SnowflakeSequence("events", layout=FLAKE)
    )


@pytest.fixture
def app(app_url: URL, pool: TicketPool) -> Iterator[Engine]:
    engine = create_engine(app_url)
    Base.metadata.create_all(engine)
    pool.create_all(Base.metadata)
    with pool.attached(Base.metadata):
        yield engine
    engine.dispose()


def statements(engine: Engine) -> list[bool]:
    """Whether each INSERT went as an executemany, from now on."""
    sent: list[bool] = []

    @event.listens_for(engine, "before_cursor_execute")
    def count(
        connection: Any, cursor: Any, statement: str, parameters: Any, context: Any, many: bool
    ) -> None:
        if statement.startswith("INSERT"):
            sent.append(many)

    return sent


def test_a_flush_is_one_executemany(app: Engine) -> None:
    sent = statements(app)
    with Session(app) as session:
        photos = [Photo(title=str(n)) for n in range(100)]
        session.add_all(photos)
        session.flush()
        ids = [photo.id for photo in photos]
        session.commit()
        assert [p.title for p in session.scalars(select(Photo).order_by(Photo.id))] == [
            str(n) for n in range(100)
        ]
    assert sent == [True]
    assert ids == sorted(set(ids))
    assert {SNOWFLAKE.decode(number).node for number in ids} <= {0, 1}


def test_more_than_a_tick_holds(app: Engine) -> None:
    with Session(app) as session:
        photos = [Photo(title="x") for _ in range(10_000)]
        session.add_all(photos)
        session.flush()
        ids = [photo.id for photo in photos]
        session.rollback()
    assert ids == sorted(set(ids))


def test_core_statements(app: Engine) -> None:
    photos = Base.metadata.tables["photos"]
    with app.begin() as connection:
        connection.execute(insert(photos), [{"title": str(n)} for n in range(50)])
        connection.execute(insert(photos).values([{"title": "a"}, {"title": "b"}]))
        one = connection.execute(insert(photos).values(title="c")).inserted_primary_key
        ids = list(connection.scalars(select(photos.c.id)))
    assert len(set(ids)) == 53
    assert one is not None
    assert one[0] == max(ids)


def test_by_hand_stays(app: Engine) -> None:
    with Session(app) as session:
        session.add_all([Photo(id=7, title="mine"), Photo(title="theirs")])
        session.commit()
        assert session.scalars(select(Photo.id).order_by(Photo.id)).first() == 7


def test_uuids_next_to_tickets(app: Engine) -> None:
    with Session(app) as session:
        session.add_all(Event() for _ in range(20))
        session.commit()
        events = session.scalars(select(Event).order_by(Event.number)).all()
        assert len({FLAKE.decode(each.id) for each in events}) == 20
        assert [each.number for each in events] == sorted({each.number for each in events})


def test_columns_of_one_sequence_get_ids_of_their_own_types(app: Engine) -> None:
    with Session(app) as session, session.begin():
        session.add_all([Event(), Event()])
        session.execute(insert(Event), [{}, {}])
        session.execute(insert(Event).values([{}, {}]))
        events = session.scalars(select(Event)).all()
        ids = {number for each in events for number in (each.id, UUID(each.text))}
    assert len(events) == 6
    assert len(ids) == 12


def test_selected_rows_are_refused(app: Engine) -> None:
    photos = Base.metadata.tables["photos"]
    with app.begin() as connection, pytest.raises(TicketArgumentError, match="to every row"):
        connection.execute(insert(photos).from_select(["title"], select(photos.c.title)))


@pytest.mark.app_databases("sqlite")
def test_an_event_loop_goes_on_while_a_tick_is_full(app: Engine, pool: TicketPool) -> None:
    from sqlalchemy.util import greenlet_spawn

    made = SnowflakeGenerator(pool, "photos", SONYFLAKE)  # 256 in 10 ms
    made.next_id()

    async def together() -> list[list[int]]:
        tasks = [greenlet_spawn(made.next_ids, 2000) for _ in range(3)]
        return list(await asyncio.gather(*tasks))

    lists = asyncio.run(together())
    assert all(ids == sorted(ids) for ids in lists)
    assert len({number for ids in lists for number in ids}) == 6000
