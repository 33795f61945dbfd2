from sqlalchemy import BigInteger, String
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from sqla_tickets import TicketSequence


class Base(DeclarativeBase):
    pass


class Photo(Base):
    __tablename__ = "photos"
    id: Mapped[int] = mapped_column(BigInteger, TicketSequence(), primary_key=True)
    title: Mapped[str | None] = mapped_column(String(100))
