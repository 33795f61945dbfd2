"""The installed package, with nothing but what it requires, does what the README says on SQLite."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from pathlib import Path

import sqlalchemy
from alembic.operations import Operations
from sqlalchemy import BigInteger, create_engine, select
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

import sqla_tickets
from sqla_tickets import SnowflakeSequence, TicketPool, TicketSequence
from sqla_tickets.testing import servers_in_memory


class Base(DeclarativeBase):
    pass


class Photo(Base):
    __tablename__ = "photos"
    id: Mapped[int] = mapped_column(BigInteger, TicketSequence(), primary_key=True)


class Event(Base):
    __tablename__ = "events"
    id: Mapped[int] = mapped_column(BigInteger, SnowflakeSequence(), primary_key=True)


def inserted(database: str) -> None:
    engine = create_engine(database)
    Base.metadata.create_all(engine)
    with Session(engine) as session:
        session.add_all([*(Photo() for _ in range(100)), *(Event() for _ in range(100))])
        session.commit()
        for model in (Photo, Event):
            ids = session.scalars(select(model.id)).all()
            assert len(set(ids)) == 100, f"{len(set(ids))} ids of {model.__name__} for 100 rows"
    engine.dispose()


def main() -> None:
    home = Path(sqla_tickets.__file__).resolve()
    assert home.is_relative_to(Path(sys.prefix).resolve()), f"not the installed one: {home}"
    assert importlib.metadata.version("sqla-tickets") == sqla_tickets.__version__

    with servers_in_memory(Base.metadata) as pool:
        pool.create_node_table()
        inserted("sqlite://")
    with TicketPool(["sqlite:///one.db", "sqlite:///two.db"]) as pool:
        pool.attach(Base.metadata)
        pool.create_all(Base.metadata)
        pool.create_node_table()
        inserted("sqlite:///app.db")
        assert all(status.up for status in pool.status())

    entry_points = importlib.metadata.entry_points(group="alembic.plugins")
    (plugin,) = (point for point in entry_points if point.name == "sqla_tickets")
    assert plugin.load().__name__ == "alembic_ext.plugin"
    assert hasattr(Operations, "create_ticket_table")

    command = Path(sys.executable).with_name("sqla-tickets")
    done = subprocess.run([command, "status"], check=False, capture_output=True, text=True)
    assert "pip install 'sqla-tickets[cli]'" in done.stderr, done.stderr
    versions = {name: importlib.metadata.version(name) for name in ("alembic", "PyMySQL")}
    print(f"Python {sys.version.split()[0]}, SQLAlchemy {sqlalchemy.__version__}, {versions}: well")


if __name__ == "__main__":
    main()
