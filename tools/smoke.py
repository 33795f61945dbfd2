"""The installed package, with nothing but what it requires, inserts rows on SQLite; `make dist` runs it."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from pathlib import Path

from alembic.operations import Operations
from sqlalchemy import BigInteger, create_engine, select
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

import sqla_tickets
from sqla_tickets import NodeLeases, SnowflakeSequence, TicketSequence
from sqla_tickets.testing import servers_in_memory


class Base(DeclarativeBase):
    pass


class Photo(Base):
    __tablename__ = "photos"
    id: Mapped[int] = mapped_column(BigInteger, TicketSequence(), primary_key=True)


class Event(Base):
    __tablename__ = "events"
    id: Mapped[int] = mapped_column(BigInteger, SnowflakeSequence(), primary_key=True)


home = Path(sqla_tickets.__file__)
assert home.parent.parent.name == "site-packages", f"not the installed one: {home}"
assert home.with_name("py.typed").exists()
assert importlib.metadata.version("sqla-tickets") == sqla_tickets.__version__

engine = create_engine("sqlite://")
Base.metadata.create_all(engine)
with servers_in_memory(Base.metadata) as pool, Session(engine) as session:
    NodeLeases(pool).create_table()
    session.add_all([*(Photo() for _ in range(100)), *(Event() for _ in range(100))])
    session.commit()
    for model in (Photo, Event):
        assert len(set(session.scalars(select(model.id)))) == 100

(plugin,) = importlib.metadata.entry_points(group="alembic.plugins", name="sqla_tickets")
plugin.load()
assert hasattr(Operations, "create_ticket_table")
command = Path(sys.prefix, "bin", "sqla-tickets")
done = subprocess.run([command, "status"], check=False, capture_output=True, text=True)
assert "pip install 'sqla-tickets[cli]'" in done.stderr, done.stderr
versions = {name: importlib.metadata.version(name) for name in ("SQLAlchemy", "alembic", "PyMySQL")}
print(f"Python {sys.version.split()[0]}, {versions}: well")
