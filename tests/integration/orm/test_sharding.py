"""ShardedSession: the id is there when the shard is chosen, and no other shard has it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import (
    URL,
    BigInteger,
    Engine,
    ForeignKey,
    String,
    create_engine,
    event,
    insert,
    select,
)
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.ext.horizontal_shard import ShardedSession
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, relationship

from sqla_tickets import AsyncTicketPool, TicketPool, TicketSequence, TicketTableMissing
from tests.support.counting import Inserted, Site, count_inserts, many

Shards = dict[str, Engine]


class Base(DeclarativeBase):
    pass


class Photo(Base):
    __tablename__ = "photos"
    id: Mapped[int] = mapped_column(BigInteger, TicketSequence("photos"), primary_key=True)
    title: Mapped[str | None] = mapped_column(String(50))
    tags: Mapped[list[Tag]] = relationship(back_populates="photo")


class Tag(Base):
    __tablename__ = "tags"
    id: Mapped[int] = mapped_column(BigInteger, TicketSequence("tags"), primary_key=True)
    photo_id: Mapped[int] = mapped_column(ForeignKey("photos.id"))
    photo: Mapped[Photo] = relationship(back_populates="tags")


@pytest.fixture
def shards(shard_urls: list[URL]) -> Iterator[Shards]:
    engines = {f"shard{n}": create_engine(url) for n, url in enumerate(shard_urls)}
    yield engines
    for engine in engines.values():
        engine.dispose()


@pytest.fixture
def site(shards: Shards, tickets: TicketPool) -> Iterator[Site]:
    Base.metadata.create_all(shards["shard1"])
    yield Site(shards["shard0"], tickets, Base.metadata)
    tickets.detach(Base.metadata)


def shard_of(key: int) -> str:
    """Four neighbouring tickets of one server live together."""
    return f"shard{key // 8 % 2}"


def shards_of_key(mapper: object, primary_key: Any, **_: object) -> list[str]:
    return [shard_of(primary_key[0])]


def session_over(
    shards: Shards, chosen_by: list[int], otherwise: str | None = None
) -> ShardedSession:
    """A session that notes the ids it chose shards by, and may have one for objects without."""

    def choose(mapper: object, instance: Any, clause: object = None) -> str:
        key: Any = instance.photo.id if isinstance(instance, Tag) else instance.id
        chosen_by.append(key)
        if key is None:
            assert otherwise, "asked for the shard of an object that has no id yet"
            return otherwise
        return shard_of(key)

    return ShardedSession(
        shards=shards,
        shard_chooser=choose,
        identity_chooser=shards_of_key,
        execute_chooser=lambda context: list(shards),
    )


@pytest.mark.parametrize("otherwise", ["shard0", "shard1"])
def test_the_chooser_never_sees_an_object_without_its_id(
    site: Site, shards: Shards, otherwise: str
) -> None:
    """A session remembers the first answer: one such question would misplace a row for good."""
    chosen_by: list[int] = []
    with session_over(shards, chosen_by, otherwise) as session, session.begin():
        session.add_all(Photo() for _ in range(8))
    assert None not in chosen_by
    for name, engine in shards.items():
        assert {shard_of(key) for key in rows_of(engine)} == {name}


def test_the_shard_is_chosen_by_the_ticket(site: Site, shards: Shards) -> None:
    photos = [Photo(title=str(n), tags=[Tag(), Tag()]) for n in range(20)]
    chosen_by: list[int] = []
    elsewhere: list[Inserted] = []
    with (
        site.count() as counted,
        count_inserts(shards["shard1"], elsewhere),
        session_over(shards, chosen_by) as session,
        session.begin(),
    ):
        session.add_all(photos)
        session.flush()
        ids = [photo.id for photo in photos]
    assert counted.draws == {"photos": 1, "tags": 1}
    assert counted.tickets == {"photos": 20, "tags": 40}
    assert set(chosen_by) == set(ids)
    found = {name: rows_of(engine) for name, engine in shards.items()}
    assert all(shard_of(key) == name for name, keys in found.items() for key in keys)
    assert sorted(found["shard0"] + found["shard1"]) == ids
    assert found["shard0"]
    assert found["shard1"]
    # Runs of rows for one shard go together.
    assert sum(each.sets for each in counted.inserts + elsewhere) == 60
    assert many("photos", 4) in counted.inserts + elsewhere


def rows_of(engine: Engine) -> list[int]:
    with engine.connect() as connection:
        return list(connection.scalars(select(Photo.id).order_by(Photo.id)))


def test_objects_are_found_by_their_tickets(site: Site, shards: Shards) -> None:
    photos = [Photo(title=str(n)) for n in range(20)]
    with session_over(shards, []) as session, session.begin():
        session.add_all(photos)
        session.flush()
        titles = {photo.id: photo.title for photo in photos}
    with session_over(shards, []) as session:
        for key, title in titles.items():
            photo = session.get(Photo, key)
            assert photo is not None
            assert photo.title == title


def test_merge_finds_what_is_there(site: Site, shards: Shards) -> None:
    with session_over(shards, []) as session, session.begin():
        session.add(photo := Photo(title="a"))
        session.flush()
        key = photo.id
    with site.count() as counted, session_over(shards, []) as session, session.begin():
        session.merge(Photo(id=key, title="b"))
    assert not counted.draws
    assert rows_of(shards[shard_of(key)]) == [key]


def test_rows_in_bulk_shard_by_shard(site: Site, shards: Shards) -> None:
    """`insert()` of rows knows no shards: reserve the ids, then send each shard its own."""
    with site.count() as counted:
        ids = site.pool.next_ids("photos", 100)
        for name, engine in shards.items():
            rows = [{"id": key, "title": "a"} for key in ids if shard_of(key) == name]
            with Session(engine) as session, session.begin():
                session.execute(insert(Photo), rows)
    assert counted.draws == {"photos": 1}
    assert sorted(key for engine in shards.values() for key in rows_of(engine)) == sorted(ids)


def test_no_shard_repeats_what_another_has(site: Site, shards: Shards) -> None:
    for engine in shards.values():
        with Session(engine) as session, session.begin():
            session.add_all(Photo() for _ in range(10))
            session.flush()
            session.execute(insert(Photo), [{"title": "a"}] * 10)
    first, second = (set(rows_of(engine)) for engine in shards.values())
    assert len(first) == len(second) == 20
    assert not first & second


def test_a_failed_draw_chooses_no_shard(site: Site, shards: Shards) -> None:
    site.pool.drop_table("photos")
    chosen_by: list[int] = []
    with session_over(shards, chosen_by) as session:
        session.add(Photo(title="a"))
        with pytest.raises(TicketTableMissing):
            session.commit()
        assert not chosen_by
        site.pool.create_table("photos", start=1000)
        session.commit()
    assert chosen_by
    assert sum(len(rows_of(engine)) for engine in shards.values()) == 1


def test_sharded_flush_gives_late_objects_their_ids(site: Site, shards: Shards) -> None:
    """A ``before_flush`` listener adds them after the tickets of the others are drawn."""
    chosen_by: list[int] = []
    with site.count() as counted, session_over(shards, chosen_by, "shard0") as session:
        event.listen(session, "before_flush", add_photo)
        session.add_all(Photo() for _ in range(8))
        session.commit()
    assert counted.tickets == {"photos": 9}
    assert None not in chosen_by
    assert sum(len(rows_of(engine)) for engine in shards.values()) == 9
    for name, engine in shards.items():
        assert {shard_of(key) for key in rows_of(engine)} <= {name}


def add_photo(session: Session, context: object, instances: object) -> None:
    session.add(Photo(title="late"))


def add_tag(session: Session, context: object, instances: object) -> None:
    for photo in [each for each in session.new if isinstance(each, Photo)]:
        photo.tags.append(Tag())


def test_sharded_flush_without_late_id_can_be_repeated(site: Site, shards: Shards) -> None:
    site.pool.drop_table("tags")
    with session_over(shards, []) as session:
        event.listen(session, "before_flush", add_tag, once=True)
        session.add(photo := Photo())
        with pytest.raises(TicketTableMissing):
            session.flush()
        site.pool.create_table("tags", start=1000)
        session.commit()
        assert rows_of(shards[shard_of(photo.id)]) == [photo.id]
        assert session.scalars(select(Tag.photo_id)).all() == [photo.id]


async def test_async_session_with_async_tickets(tmp_path: Path) -> None:
    """All drivers are async: the shard is chosen by an id that was drawn in the session's greenlet."""

    def url(name: str) -> str:
        return f"sqlite+aiosqlite:///{tmp_path}/{name}.db"

    engines = {name: create_async_engine(url(name)) for name in ("shard0", "shard1")}
    chosen_by: list[int] = []
    own = session_over({name: engine.sync_engine for name, engine in engines.items()}, chosen_by)
    sessions = async_sessionmaker(
        sync_session_class=ShardedSession,
        expire_on_commit=False,
        shards={name: engine.sync_engine for name, engine in engines.items()},
        shard_chooser=own.shard_chooser,
        identity_chooser=own.identity_chooser,
        execute_chooser=own.execute_chooser,
    )
    async with AsyncTicketPool([url("one"), url("two")]) as pool:
        await pool.create_all(Base.metadata)
        for engine in engines.values():
            async with engine.begin() as connection:
                await connection.run_sync(Base.metadata.create_all)
        with pool.attached(Base.metadata):
            async with sessions.begin() as session:
                photos = [Photo(title=str(n), tags=[Tag()]) for n in range(40)]
                session.add_all(photos)
        assert None not in chosen_by
        async with sessions() as session:
            assert len((await session.scalars(select(Tag))).all()) == 40
            for photo in photos:
                found = await session.get(Photo, photo.id)
                assert found is not None
                assert found.title == photo.title
        assert sum(status.draws for status in await pool.status()) == 2
    for name, engine in engines.items():
        async with engine.connect() as connection:
            keys = list(await connection.scalars(select(Photo.id)))
        await engine.dispose()
        assert keys
        assert {shard_of(key) for key in keys} == {name}
