"""SQLAlchemy-Continuum: versions of rows whose keys are tickets."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec

import pytest

from tests.support.projects import REPOSITORY

pytestmark = pytest.mark.skipif(not find_spec("sqlalchemy_continuum"), reason="it is not installed")

#: In a process of its own: the library listens to all sessions, and makes every BIGINT of SQLite an INTEGER.
PROGRAM = """
from sqlalchemy import BigInteger, create_engine, select
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, configure_mappers, mapped_column
from sqlalchemy_continuum import make_versioned, version_class
from sqla_tickets import TicketPool, TicketSequence

make_versioned(user_cls=None)

class Base(DeclarativeBase):
    pass

class Photo(Base):
    __versioned__ = {}
    __tablename__ = "photos"
    id: Mapped[int] = mapped_column(BigInteger, TicketSequence("photos"), primary_key=True)
    title: Mapped[str]

configure_mappers()
pool = TicketPool(["sqlite://", "sqlite://"])
pool.attach(Base.metadata)
print(sorted(pool.declared_sequences()))
pool.create_table("photos", start=10**12)
engine = create_engine("sqlite://")
Base.metadata.create_all(engine)
with Session(engine) as session:
    photos = [Photo(title=f"{n}") for n in range(10)]
    session.add_all(photos)
    session.commit()
    photos[3].title = "three"
    session.commit()
    session.delete(photos[4])
    session.commit()
    ids = [photo.id for photo in session.scalars(select(Photo))]
    print(len(ids), len(set(ids)), min(ids) >= 10**12)
    print([version.title for version in photos[3].versions])
    photos[3].versions[0].revert()
    session.commit()
    print(photos[3].title, len(photos[3].versions.all()))
    Version = version_class(Photo)
    deleted = session.scalars(select(Version).where(Version.operation_type == 2)).one()
    deleted.previous.revert()
    session.commit()
    restored = session.scalars(select(Photo).where(Photo.title == "4")).one()
    print(restored.id == deleted.id, session.query(Photo).count())
"""
PRINTED = """\
['photos']
9 9 True
['3', 'three']
3 3
True 10
"""
#: What the example prints.
EXAMPLE = """\
sequences photos
history 3 three
restored with its id True
photos 10 ids 10
"""


def test_versions_of_rows_with_tickets() -> None:
    """A version keeps its row's ticket; a sequence with a name needs no table for the versions."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert (done.stdout, done.returncode) == (PRINTED, 0), done.stderr


def test_example_of_versions() -> None:
    """`examples/versions.py`, which the recipe quotes."""
    example = REPOSITORY / "examples" / "versions.py"
    done = subprocess.run([sys.executable, example], capture_output=True, text=True)
    assert (done.stdout, done.returncode) == (EXAMPLE, 0), done.stderr


def test_version_table_declares_a_sequence_without_name() -> None:
    """Its columns are copies: without a name, each draws from what is called like its own table."""
    nameless = PROGRAM.replace('TicketSequence("photos")', "TicketSequence()")
    done = subprocess.run([sys.executable, "-c", nameless], capture_output=True, text=True)
    expected = PRINTED.replace("['photos']", "['photos', 'photos_version']")
    assert (done.stdout, done.returncode) == (expected, 0), done.stderr
