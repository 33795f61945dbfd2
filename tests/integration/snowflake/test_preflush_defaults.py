"""UUIDs and other values of Python's, set before the flush."""

from __future__ import annotations

import itertools
import pickle
import subprocess
import sys
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import (
    URL,
    BigInteger,
    Column,
    Engine,
    MetaData,
    String,
    Table,
    Uuid,
    create_engine,
    event,
    insert,
    select,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from sqla_tickets import PreflushDefault, TicketArgumentError, UUIDSequence
from tests.support.draws import PATIENCE, in_fork

counter = itertools.count(1)


def next_word() -> str:
    return f"word {next(counter):06}"


class Base(DeclarativeBase):
    pass


class Photo(Base):
    __tablename__ = "photos"
    id: Mapped[UUID] = mapped_column(Uuid, UUIDSequence(), primary_key=True)
    number: Mapped[str] = mapped_column(String(20), PreflushDefault(next_word))
    text: Mapped[str] = mapped_column(Uuid(as_uuid=False), UUIDSequence())


@pytest.fixture
def app(app_url: URL) -> Iterator[Engine]:
    engine = create_engine(app_url)
    Base.metadata.create_all(engine)
    yield engine
    engine.dispose()


def test_a_flush_is_one_executemany_and_ids_are_known_before(app: Engine) -> None:
    sent: list[bool] = []

    @event.listens_for(app, "before_cursor_execute")
    def count(
        connection: Any, cursor: Any, statement: str, parameters: Any, context: Any, many: bool
    ) -> None:
        if statement.startswith("INSERT"):
            sent.append(many)

    with Session(app) as session:
        photos = [Photo() for _ in range(300)]
        session.add_all(photos)
        session.commit()
        found = session.scalars(select(Photo).order_by(Photo.number)).all()
        assert [photo.id for photo in found] == sorted(photo.id for photo in photos)
        assert {photo.id.version for photo in photos} == {7}
        assert all(UUID(photo.text).version == 7 for photo in photos)
    assert sent == [True]


def test_core(app: Engine) -> None:
    with app.begin() as connection:
        connection.execute(insert(Photo), [{}, {}, {}])
        connection.execute(insert(Photo).values([{"number": "a"}, {"number": "b"}]))
        assert len(set(connection.scalars(select(Photo.id)))) == 5


def test_a_fork_makes_others() -> None:
    sequence = UUIDSequence()
    column = Table("t", MetaData(), Column("id", Uuid, sequence)).c.id
    mine = {str(made) for made in sequence._draw(None, [column], 100)}
    theirs = in_fork(lambda: " ".join(map(str, sequence._draw(None, [column], 100)))).split()
    mine |= {str(made) for made in sequence._draw(None, [column], 100)}
    assert len(theirs) == 100
    assert mine.isdisjoint(theirs)


# As a program written in C forks that has Python inside: nobody tells Python of it.
FORKED_BY_C = """
import ctypes, os, threading, time
from sqlalchemy import Column, MetaData, Table, Uuid
from sqla_tickets import UUIDSequence
sequence = UUIDSequence()
column = Table("t", MetaData(), Column("id", Uuid, sequence)).c.id
def make():
    time.sleep(0.01)  # in one tick of the clock, UUIDs only count
    return str(*sequence._draw(None, [column], 1))
make()
child = ctypes.PyDLL(None).fork()
other = threading.Thread(target=make)  # each thread has its own random numbers
other.start()
other.join()
os.write(1, make()[19:].encode() + b" ")  # without the time
if child == 0:
    os._exit(0)
os.waitpid(child, 0)
"""


def test_uuids_of_a_fork_that_python_is_not_told_of_differ() -> None:
    command = [sys.executable, "-c", FORKED_BY_C]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    assert (done.returncode, done.stderr) == (0, "")
    first, second = done.stdout.split()
    assert first != second


def test_it_is_plain_data() -> None:
    table = Table(
        "photos",
        MetaData(),
        Column("id", Uuid, UUIDSequence(), primary_key=True),
        Column("word", String(20), PreflushDefault(next_word)),
    )
    for copied in (table.to_metadata(MetaData()), pickle.loads(pickle.dumps(table))):
        assert repr(copied.c.id.default) == "UUIDSequence()"
        assert repr(copied.c.word.default) == "PreflushDefault(next_word)"


UNPICKLED = """
import pickle, sys
from sqlalchemy import create_engine, event
from sqlalchemy.orm import Session, registry
mapped = registry(metadata=pickle.load(sys.stdin.buffer))
Photo = type("Photo", (), {})
mapped.map_imperatively(Photo, mapped.metadata.tables["photos"])
engine = create_engine("sqlite://")
mapped.metadata.create_all(engine)
event.listen(Photo, "before_insert", lambda mapper, connection, photo: print(photo.id.version))
with Session(engine) as session, session.begin():
    session.add(Photo())
"""


def test_ids_are_known_before_the_flush_of_a_pickled_metadata() -> None:
    """In a process that has declared none itself."""
    metadata = MetaData()
    Table("photos", metadata, Column("id", Uuid, UUIDSequence(), primary_key=True))
    command = [sys.executable, "-c", UNPICKLED]
    done = subprocess.run(
        command, input=pickle.dumps(metadata), capture_output=True, timeout=PATIENCE
    )
    assert (done.stdout, done.stderr) == (b"7\n", b"")


def test_bad_input(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TicketArgumentError, match="use Uuid"):
        Table("t", MetaData(), Column("id", BigInteger, UUIDSequence()))
    with pytest.raises(TicketArgumentError, match="expected a function"):
        PreflushDefault(7)  # type: ignore[arg-type]  # what is tested
    if sys.version_info < (3, 14):
        monkeypatch.setitem(sys.modules, "uuid_utils.compat", None)
        with pytest.raises(TicketArgumentError, match=r"pip install sqla-tickets\[uuid7\]"):
            UUIDSequence()
