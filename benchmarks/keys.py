"""Models that differ in nothing but where their primary keys come from."""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from itertools import count, islice
from typing import Any

from sqlalchemy import BigInteger, Column, ForeignKey, Integer, Sequence, String, Table, Uuid
from sqlalchemy.orm import DeclarativeBase, relationship

from benchmarks.peers import PEERS, is_installed
from benchmarks.peers.in_process import UUID7, new_uuid7
from benchmarks.testbed import Testbed
from sqla_tickets import (
    SNOWFLAKE,
    NodeLeases,
    SnowflakeSequence,
    TicketPool,
    TicketSequence,
    UUIDSequence,
)

__all__ = ["Models", "auto_increment_key", "keys_of", "models", "range_models", "ticket_models"]

#: A primary key's column, for the table of that name.
NewKey = Callable[[str], "Column[Any]"]
#: SQLite counts by itself in a column of this very type only.
Big = BigInteger().with_variant(Integer, "sqlite")


def _nothing(n: int) -> None:
    """What is to be done where ids are not made before."""


@dataclass(frozen=True)
class Models:
    """Mapped classes with one kind of key: a photo alone, and an album with its tracks.

    Attributes:
        ids: what the application sets; None where something else sees to it.
        make_ready: has so many ids made, before the clock starts.
    """

    photo: type[Any]
    album: type[Any]
    track: type[Any]
    base: type[DeclarativeBase]
    ids: Iterator[Any] | None = None
    make_ready: Callable[[int], object] = _nothing

    def photos(self, n: int) -> list[object]:
        """New objects, in no session; with their ids where these cost nothing."""
        if self.ids is not None:
            return [self.photo(id=number, title="t") for number in islice(self.ids, n)]
        return [self.photo(title="t") for _ in range(n)]

    def albums(self, n: int, tracks: int) -> list[object]:
        """New parents, each with so many children."""
        if self.ids is not None:
            ids = self.ids
            return [
                self.album(
                    id=next(ids),
                    title="a",
                    tracks=[self.track(id=number, title="t") for number in islice(ids, tracks)],
                )
                for _ in range(n)
            ]
        return [
            self.album(title="a", tracks=[self.track(title="t") for _ in range(tracks)])
            for _ in range(n)
        ]


def models(prefix: str, new_key: NewKey, **options: Any) -> Models:
    """Mapped classes whose tables have names of their own."""

    class Base(DeclarativeBase):
        pass

    def table(name: str, *columns: Column[Any]) -> Table:
        name = f"{prefix}_{name}"
        return Table(name, Base.metadata, new_key(name), title(), *columns, **options)

    def title() -> Column[Any]:
        return Column("title", String(50))

    class Photo(Base):
        __table__ = table("photos")

    class Track(Base):
        __table__ = table("tracks", Column("album_id", ForeignKey(f"{prefix}_albums.id")))

    class Album(Base):
        __table__ = table("albums")
        tracks = relationship(Track)

    return Models(Photo, Album, Track, Base)


def ticket_models(
    prefix: str, pool: TicketPool, block: int = 1, *, layout: Any = None, create: bool = True
) -> Models:
    """Mapped classes that draw tickets, with or without new tables for these."""
    for name in ("photos", "tracks", "albums") if create else ():
        pool.create_table(f"{prefix}_{name}", layout=layout)

    def new_key(name: str) -> Column[Any]:
        return Column("id", BigInteger, TicketSequence(name, block=block), primary_key=True)

    made = models(prefix, new_key)
    pool.attach(made.base.metadata)
    return made


def snowflake_models(prefix: str, pool: TicketPool) -> Models:
    """Mapped classes whose keys are Snowflakes with a leased node number."""
    NodeLeases(pool).create_table()
    made = models(
        prefix, lambda name: Column("id", BigInteger, SnowflakeSequence(name), primary_key=True)
    )
    pool.attach(made.base.metadata)
    return made


def range_models(prefix: str) -> Models:
    """Mapped classes whose keys the application counts."""
    made = models(prefix, lambda _: Column("id", BigInteger, primary_key=True))
    return replace(made, ids=count(1))


def auto_increment_key(name: str) -> Column[Any]:
    """What SQLAlchemy makes AUTO_INCREMENT, or SERIAL."""
    return Column("id", Big, primary_key=True)


def _key_by_hand(name: str) -> Column[Any]:
    """What the application sets, and no server counts."""
    return Column("id", BigInteger, primary_key=True, autoincrement=False)


@contextmanager
def keys_of(testbed: Testbed, *names: str) -> Iterator[dict[str, Models]]:
    """Those of some kinds of keys that can be had at a place, by their names and in that order."""
    with ExitStack() as stack:
        pool = stack.enter_context(TicketPool(list(testbed.tickets)))
        found: dict[str, Models] = {}
        for number, name in enumerate(names):
            made = _made(f"k{number}", name, testbed, pool, stack)
            if made is not None:
                found[name] = made
        yield found


def _made(
    prefix: str, name: str, testbed: Testbed, pool: TicketPool, stack: ExitStack
) -> Models | None:
    if name == "TicketSequence":
        return ticket_models(prefix, pool)
    if name == "TicketSequence, block=100":
        return ticket_models(prefix, pool, 100)
    if name == "TicketSequence, block=1, counter":
        return ticket_models(prefix, pool, layout="counter")
    if name == "TicketSequence, block=1, replace":
        return ticket_models(prefix, pool, layout="replace") if testbed.speaks_mysql else None
    if name == "AUTO_INCREMENT":
        return models(prefix, auto_increment_key)
    if name == "AUTO_INCREMENT, no RETURNING":
        if testbed.kind != "mariadb":
            return None
        return models(prefix, auto_increment_key, implicit_returning=False)
    if name == "Sequence":
        return models(prefix, _sequence_key(testbed)) if testbed.kind in _WITH_SEQUENCES else None
    if name == "ids from a range":
        return range_models(prefix)
    if name == "SnowflakeSequence":
        return snowflake_models(prefix, pool)
    if name in _OF_UUID7 and not is_installed(UUID7):
        return None
    if name == "Snowflakes made before":
        first = SNOWFLAKE.id_at(datetime.now(timezone.utc))
        return _made_before(prefix, BigInteger(), count(first).__next__)
    if name == "UUIDs made before":
        return _made_before(prefix, Uuid(), new_uuid7())
    if name == "uuid7() by hand":
        made = models(prefix, lambda _: Column("id", Uuid, primary_key=True))
        return replace(made, ids=iter(new_uuid7(), None))
    if name == "UUIDSequence":
        return models(prefix, lambda _: Column("id", Uuid, UUIDSequence(), primary_key=True))
    if name in _DEFAULTS:
        default, type_ = _DEFAULTS[name]()
        return models(prefix, lambda _: Column("id", type_, default=default, primary_key=True))
    peer = PEERS[_BY_HAND.get(name, name)]
    if not peer.is_at(testbed):
        return None
    draw = stack.enter_context(peer.open(testbed))
    if name in _BY_HAND:
        return replace(models(prefix, _key_by_hand), ids=iter(draw, None))
    return models(prefix, lambda _: Column("id", BigInteger, default=draw, primary_key=True))


#: What the application draws with a bare cursor before it makes the object: no library could do it with less.
_BY_HAND = {
    "counter, drawn by hand": "UPDATE, bare cursor",
    "replace, drawn by hand": "REPLACE, bare cursor",
}
_OF_UUID7 = ("UUIDv7", "UUIDSequence", "uuid7() by hand", "UUIDs made before")
_WITH_SEQUENCES = ("mariadb", "postgresql")


def _made_before(prefix: str, type_: Any, make: Callable[[], object]) -> Models:
    """Mapped classes whose ids lie ready; the column is as `IdDefault` has it."""
    ready: deque[object] = deque()
    made = models(prefix, lambda _: Column("id", type_, primary_key=True, autoincrement=False))
    return replace(
        made,
        ids=iter(ready.popleft, None),
        make_ready=lambda n: ready.extend(make() for _ in range(n)),
    )


def _sequence_key(testbed: Testbed) -> NewKey:
    cache = 1000 if testbed.kind == "mariadb" else None

    def new_key(name: str) -> Column[Any]:
        return Column("id", BigInteger, Sequence(f"{name}_seq", cache=cache), primary_key=True)

    return new_key


#: What makes keys in this process, and the type of their columns.
_DEFAULTS: dict[str, Callable[[], tuple[Callable[[], object], Any]]] = {
    "UUIDv4": lambda: (uuid.uuid4, Uuid()),
    "UUIDv7": lambda: (new_uuid7(), Uuid()),
}
