"""ORM ``add_all`` and commit of many rows: tickets, AUTO_INCREMENT, and ids that cost nothing."""

from __future__ import annotations

import itertools

from sqlalchemy import URL, BigInteger, String, create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from benchmarks.harness import Figure, Side, compare
from sqla_tickets import TicketPool, TicketSequence

ROWS = 10_000


class Base(DeclarativeBase):
    pass


class WithTickets(Base):
    __tablename__ = "with_tickets"
    id: Mapped[int] = mapped_column(BigInteger, TicketSequence("photos"), primary_key=True)
    title: Mapped[str] = mapped_column(String(50))


class WithAutoIncrement(Base):
    __tablename__ = "with_auto_increment"
    id: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    title: Mapped[str] = mapped_column(String(50))


class WithRange(Base):
    __tablename__ = "with_range"
    id: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    title: Mapped[str] = mapped_column(String(50))


def run(kind: str, pool: TicketPool, app: URL) -> None:
    """Compare the three on one application database."""
    engine = create_engine(app)
    Base.metadata.create_all(engine)
    pool.attach(Base.metadata)
    ids = itertools.count(1)

    def flush(rows: list[Base]) -> int:
        with Session(engine) as session:
            session.add_all(rows)
            session.commit()
        return len(rows)

    compare(
        f"ORM add_all of {ROWS:,} rows and commit, {kind}",
        "rows",
        [
            Side("TicketSequence", lambda: flush([WithTickets(title="t") for _ in range(ROWS)])),
            Side(
                "AUTO_INCREMENT", lambda: flush([WithAutoIncrement(title="t") for _ in range(ROWS)])
            ),
            Side(
                "ids from a range",
                lambda: flush([WithRange(id=next(ids), title="t") for _ in range(ROWS)]),
            ),
        ],
        [
            Figure("TicketSequence", "AUTO_INCREMENT", 4.5),
            Figure("TicketSequence", "ids from a range", 0.95),
        ],
    )
    engine.dispose()
