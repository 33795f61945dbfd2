"""A photo site whose tables, and ticket tables, are made by migrations."""

from __future__ import annotations

from sqlalchemy import BigInteger, ForeignKey, String
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from sqla_tickets import TicketSequence


class Base(DeclarativeBase):
    """The application's tables."""


class Photo(Base):
    __tablename__ = "photos"
    id: Mapped[int] = mapped_column(BigInteger, TicketSequence(), primary_key=True)
    title: Mapped[str] = mapped_column(String(100))


class Comment(Base):
    __tablename__ = "comments"
    id: Mapped[int] = mapped_column(BigInteger, TicketSequence(), primary_key=True)
    photo_id: Mapped[int] = mapped_column(BigInteger, ForeignKey("photos.id"))
    text: Mapped[str] = mapped_column(String(200))
