"""What other libraries do with defaults and with classes."""

from __future__ import annotations

import subprocess
import sys

import pytest
from sqlalchemy import BigInteger, Column, MetaData, String, Table, Uuid, insert

from sqla_tickets import SnowflakeSequence, TicketPool, TicketSequence, UUIDSequence
from tests.integration.orm.conftest import Serve


class Anything:
    """It has whatever it is asked for, as a proxy or a mock has."""

    def __getattr__(self, name: str) -> object:
        return self


@pytest.mark.parametrize("given", [None, {}, [], "photo", 7, Anything(), object()])
def test_default_called_outside_of_statements_gives_one_id(
    given: object, tickets: TicketPool
) -> None:
    """Data transfer objects call it with a dict, form builders with None, instant defaults with the object."""
    metadata = MetaData()
    photos = Table(
        "photos",
        metadata,
        Column("id", BigInteger, TicketSequence(), primary_key=True),
        Column("block", BigInteger, TicketSequence("blocks", block=10)),
        Column("snowflake", BigInteger, SnowflakeSequence()),
        Column("uuid", Uuid, UUIDSequence()),
    )
    with tickets.attached(metadata):
        tickets.create_all(metadata)
        for column in photos.columns:
            drawn = [column.default.arg(given) for _ in range(5)]  # type: ignore[union-attr]  # each has one
            assert len(set(drawn)) == 5


@pytest.mark.app_databases("sqlite")
def test_default_called_by_another_columns_default_gives_one_id(serve: Serve) -> None:
    """It gets the context of a statement whose ids are drawn for other columns."""
    batches = TicketSequence("batches")
    metadata = MetaData()
    Table("batches", metadata, Column("id", BigInteger, batches, primary_key=True))
    photos = Table(
        "photos",
        metadata,
        Column("id", BigInteger, TicketSequence(), primary_key=True),
        Column("batch", BigInteger, default=batches.arg),
        Column("title", String(50)),
    )
    site = serve(metadata)
    with site.count() as counted, site.engine.begin() as connection:
        connection.execute(insert(photos), [{"title": title} for title in "abc"])
        connection.execute(insert(photos).values([{"title": title} for title in "abc"]))
    assert counted.draws == {"photos": 2, "batches": 6}
    assert len({batch for _, batch, _ in site.rows(photos)}) == 6


INSTRUMENTED = """
from sqlalchemy import BigInteger, Column, Integer, MetaData, Table, create_engine
from sqlalchemy.orm import Session, registry
from sqla_tickets import TicketPool, TicketSequence

mappers = registry()
pool = TicketPool(["sqlite://", "sqlite://"])
pool.attach(mappers.metadata)

from sqlalchemy.ext.instrumentation import InstrumentationManager

class Manager(InstrumentationManager):
    def install_state(self, class_, instance, state):
        instance.__dict__["_state"] = state

    def remove_state(self, class_, instance):
        del instance.__dict__["_state"]

    def state_getter(self, class_):
        return lambda instance: instance.__dict__["_state"]

class Foreign:
    __sa_instrumentation_manager__ = Manager

class Photo:
    __sa_instrumentation_manager__ = Manager

class Tag:
    pass

foreign = Table("foreign", mappers.metadata, Column("id", Integer, primary_key=True))
photos = Table("photos", mappers.metadata, Column("id", BigInteger, TicketSequence(), primary_key=True))
tags = Table("tags", mappers.metadata, Column("id", BigInteger, TicketSequence("photos"), primary_key=True))
for kind, table in ((Foreign, foreign), (Photo, photos), (Tag, tags)):
    mappers.map_imperatively(kind, table)
engine = create_engine("sqlite://")
mappers.metadata.create_all(engine)
pool.create_all(mappers.metadata)
for kinds in ([Foreign], [Photo, Photo], [Tag], [Foreign, Photo, Tag, Photo]):
    with Session(engine) as session, session.begin():
        session.add_all(kind() for kind in kinds)
with Session(engine) as session:
    ids = [each.id for kind in (Photo, Tag) for each in session.query(kind)]
    print(session.query(Foreign).count(), len(ids), len(set(ids)))
"""


def test_flush_of_classes_with_custom_instrumentation() -> None:
    """SQLAlchemy then replaces the functions that find an object's state, in the whole process."""
    done = subprocess.run(
        [sys.executable, "-c", INSTRUMENTED], capture_output=True, text=True, timeout=60
    )
    assert (done.stdout, done.stderr) == ("2 6 6\n", "")
