"""An album is copied with its photos and their tags, by three statements, however many rows it has."""

from __future__ import annotations

from typing import Annotated

from sqlalchemy import BigInteger, ForeignKey, String, create_engine, func, literal, select
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from sqla_tickets import TicketPool, TicketSequence, insert_from_select

TicketId = Annotated[int, mapped_column(BigInteger, TicketSequence(), primary_key=True)]


class Base(DeclarativeBase):
    """The tables of one shard."""


class Album(Base):
    __tablename__ = "albums"
    id: Mapped[TicketId]
    title: Mapped[str] = mapped_column(String(100))


class Photo(Base):
    __tablename__ = "photos"
    id: Mapped[TicketId]
    album_id: Mapped[int] = mapped_column(BigInteger, ForeignKey("albums.id"), index=True)
    title: Mapped[str] = mapped_column(String(100))
    copy_of: Mapped[int | None] = mapped_column(BigInteger, index=True)


class Tag(Base):
    __tablename__ = "tags"
    id: Mapped[TicketId]
    photo_id: Mapped[int] = mapped_column(BigInteger, ForeignKey("photos.id"), index=True)
    word: Mapped[str] = mapped_column(String(50))


# [copy]
def copy_album(session: Session, album: Album) -> Album:
    """Copy an album: its photos, which know what they are copies of, and by that their tags."""
    copy = Album(title=f"Copy of {album.title}")
    session.add(copy)
    session.flush()
    photos = select(literal(copy.id), Photo.title, Photo.id).where(Photo.album_id == album.id)
    insert_from_select(session, Photo, ["album_id", "title", "copy_of"], photos.order_by(Photo.id))
    tags = (
        select(Photo.id, Tag.word)
        .join(Tag, Tag.photo_id == Photo.copy_of)
        .where(Photo.album_id == copy.id)
    )
    insert_from_select(session, Tag, ["photo_id", "word"], tags)
    return copy


# [end]
def main() -> None:
    """Copy an album of 1,000 photos, in memory."""
    pool = TicketPool(["sqlite://", "sqlite://"])
    pool.create_all(Base.metadata)
    engine = create_engine("sqlite://")
    Base.metadata.create_all(engine)
    with pool.attached(Base.metadata), Session(engine) as session:
        album = Album(title="Beach")
        session.add(album)
        session.flush()
        photos = [Photo(album_id=album.id, title=f"Wave {n}") for n in range(1_000)]
        session.add_all(photos)
        session.flush()
        session.add_all(Tag(photo_id=photo.id, word="sea") for photo in photos)
        copy = copy_album(session, album)
        session.commit()
        n = session.scalar(
            select(func.count(Tag.id))
            .join(Photo, Photo.id == Tag.photo_id)
            .where(Photo.album_id == copy.id)
        )
        print(f"{copy.title}: {n} photos and tags")
    pool.dispose()
    engine.dispose()


if __name__ == "__main__":
    main()
