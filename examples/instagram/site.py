"""The site: its models, where their rows live, and how its requests find them while shards move.

A logical shard is a schema. Its number is in every id, so it never changes; the server that has the schema does.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from sqlalchemy import BigInteger, Engine, FetchedValue, ForeignKey, String, text
from sqlalchemy.exc import ProgrammingError
from sqlalchemy.ext.horizontal_shard import ShardedSession
from sqlalchemy.orm import (
    DeclarativeBase,
    Mapped,
    Mapper,
    ORMExecuteState,
    Session,
    mapped_column,
    relationship,
)

from sqla_tickets import INSTAGRAM, SnowflakeSequence, TicketPool

#: For ever, as every user's shard follows from it. INSTAGRAM has bits for 8,192.
SHARDS = 2000
#: PostgreSQL's codes for a table, and a schema, that is not there.
GONE = {"42P01", "3F000"}

T = TypeVar("T")


def shard_of_user(user: int) -> int:
    """The logical shard of a user, and of all that is hers."""
    return user % SHARDS


def shard_of_photo(photo: Photo) -> int:
    """The logical shard that a new photo's id is made for."""
    return shard_of_user(photo.user)


def schema_of(shard: int) -> str:
    """What a logical shard is called on its server."""
    return f"shard{shard:04}"


# [models]
class Base(DeclarativeBase):
    """Every logical shard has all of these tables, in a schema of its own."""


class Photo(Base):
    """Its id is made in the process, before the flush."""

    __tablename__ = "photos"
    id: Mapped[int] = mapped_column(
        BigInteger, SnowflakeSequence(layout=INSTAGRAM, shard=shard_of_photo), primary_key=True
    )
    user: Mapped[int] = mapped_column(BigInteger)
    title: Mapped[str] = mapped_column(String(100))
    likes: Mapped[list[Like]] = relationship(back_populates="photo")


class Like(Base):
    """Its id is made by the shard's own function in PostgreSQL."""

    __tablename__ = "likes"
    id: Mapped[int] = mapped_column(BigInteger, FetchedValue(), primary_key=True)
    photo_id: Mapped[int] = mapped_column(BigInteger, ForeignKey(Photo.id))
    by: Mapped[int] = mapped_column(BigInteger)
    photo: Mapped[Photo] = relationship(back_populates="likes")


# [choosers]
def _of_new_object(mapper: Mapper[Any] | None, instance: Any, clause: Any = None) -> str:
    photo = instance if isinstance(instance, Photo) else instance.photo
    return schema_of(INSTAGRAM.shard_of(photo.id))


def _of_primary_key(mapper: Mapper[Any], primary_key: Any, **kw: Any) -> list[str]:
    return [schema_of(INSTAGRAM.shard_of(primary_key[0]))]


def _of_statement(state: ORMExecuteState) -> list[str]:
    if state.lazy_loaded_from is not None:
        return [str(state.lazy_loaded_from.identity_token)]
    raise ValueError("name a shard with set_shard_id(): there are thousands to ask")


def find(session: Session, kind: type[T], number: int) -> T | None:
    """A photo, or a like, by its id alone: ``session.get()`` would ask for the shard of its statement."""
    return session.get(kind, number, identity_token=schema_of(INSTAGRAM.shard_of(number)))


# [site]
class Site:
    """The logical shards, wherever they are.

    Args:
        servers: by name.
        tickets: lease the numbers of processes.
    """

    def __init__(self, servers: Mapping[str, Engine], tickets: TicketPool) -> None:
        tickets.attach(Base.metadata)
        self._servers = servers
        self._homes: dict[str, Engine] = {}

    def run(self, work: Callable[[Session], T], seconds: float = 60.0) -> T:
        """Do ``work`` in a session and commit; once more when its shard has moved meanwhile.

        Nothing was committed then: a statement has found no table.

        Raises:
            ProgrammingError: the shard was nowhere for so long.
        """
        end = time.monotonic() + seconds
        while True:
            try:
                with self._session() as session:
                    done = work(session)
                    session.commit()
                    return done
            except ProgrammingError as error:
                if getattr(error.orig, "sqlstate", "") not in GONE or time.monotonic() > end:
                    raise
            self._homes = {}
            time.sleep(random.uniform(0.005, 0.02))

    def _session(self) -> ShardedSession:
        if not self._homes:
            self._homes = self._found()
        return ShardedSession(
            shard_chooser=_of_new_object,
            identity_chooser=_of_primary_key,
            execute_chooser=_of_statement,
            shards=self._homes,
            expire_on_commit=False,
        )

    def _found(self) -> dict[str, Engine]:
        """Which server has which shard: the servers themselves say it. Where it is not, it fails, and is asked again."""
        found: dict[str, Engine] = dict.fromkeys(
            map(schema_of, range(SHARDS)), next(iter(self._servers.values()))
        )
        for server in self._servers.values():
            with server.connect() as connection:
                for schema in connection.scalars(
                    text("SELECT nspname FROM pg_namespace WHERE nspname ~ '^shard[0-9]{4}$'")
                ):
                    found[schema] = server
        return {
            schema: server.execution_options(schema_translate_map={None: schema})
            for schema, server in found.items()
        }
