"""A photo site over shards: all the code that an application needs for ids from ticket servers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from sqlalchemy import BigInteger, Engine, ForeignKey, String
from sqlalchemy.ext.horizontal_shard import ShardedSession
from sqlalchemy.orm import (
    DeclarativeBase,
    Mapped,
    Mapper,
    ORMExecuteState,
    mapped_column,
    relationship,
)

from sqla_tickets import TicketSequence

# [model]
# A primary key whose tickets come from the sequence named after its table.
TicketId = Annotated[int, mapped_column(BigInteger, TicketSequence(), primary_key=True)]
PhotoId = Annotated[int, mapped_column(BigInteger, ForeignKey("photos.id"), index=True)]


class Base(DeclarativeBase):
    """The application's tables; every shard has all of them."""


class Photo(Base):
    __tablename__ = "photos"
    id: Mapped[TicketId]
    title: Mapped[str] = mapped_column(String(100))
    tags: Mapped[list[Tag]] = relationship(back_populates="photo")
    comments: Mapped[list[Comment]] = relationship(back_populates="photo")


class Tag(Base):
    __tablename__ = "tags"
    id: Mapped[TicketId]
    photo_id: Mapped[PhotoId]
    photo: Mapped[Photo] = relationship(back_populates="tags")
    word: Mapped[str] = mapped_column(String(50))


class Comment(Base):
    __tablename__ = "comments"
    id: Mapped[TicketId]
    photo_id: Mapped[PhotoId]
    photo: Mapped[Photo] = relationship(back_populates="comments")
    text: Mapped[str] = mapped_column(String(200))


# [shards]
#: How many neighbouring ids live together. A flush sends one INSERT per table and run of rows for
#: one shard; and `id % 2` would put all photos of one ticket server on one shard.
RUN = 1000


class Shards:
    """Finds the shard of a photo, with its tags and comments, by its id alone.

    Args:
        engines: the shards by name. Their number never changes, as it has placed every id.
    """

    def __init__(self, engines: Mapping[str, Engine]) -> None:
        self.engines = dict(engines)
        self.names = list(engines)

    def session(self) -> ShardedSession:
        """A session over all shards."""
        return ShardedSession(
            shard_chooser=self._of_new_object,
            identity_chooser=self._of_primary_key,
            execute_chooser=self._of_statement,
            shards=self.engines,
        )

    def of_photo(self, photo_id: int) -> str:
        """The name of the shard that a photo lives on."""
        return self.names[photo_id // RUN % len(self.names)]

    def _of_new_object(self, mapper: Mapper[Any] | None, instance: Any, clause: Any = None) -> str:
        photo = instance if isinstance(instance, Photo) else instance.photo
        return self.of_photo(photo.id)

    def _of_primary_key(self, mapper: Mapper[Any], primary_key: Any, **kw: Any) -> list[str]:
        return [self.of_photo(primary_key[0])] if mapper.class_ is Photo else self.names

    def _of_statement(self, state: ORMExecuteState) -> list[str]:
        return self.names
