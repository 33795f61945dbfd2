"""Servers in memory, for the tests of an application."""

from __future__ import annotations

import pytest
from sqlalchemy import BigInteger, Column, MetaData, Table, create_engine, insert, select

from sqla_tickets import NoTicketPool, TicketPool, TicketSequence, TicketTableMissing
from sqla_tickets.testing import servers_in_memory


@pytest.fixture
def metadata() -> MetaData:
    metadata = MetaData()
    Table("photos", metadata, Column("id", BigInteger, TicketSequence(), primary_key=True))
    other = TicketSequence(pool="media")
    Table("films", metadata, Column("id", BigInteger, other, primary_key=True))
    return metadata


def inserted(metadata: MetaData, table: str = "photos", rows: int = 3) -> list[int]:
    engine = create_engine("sqlite://")
    with engine.begin() as connection:
        metadata.create_all(connection)
        connection.execute(insert(metadata.tables[table]), [{}] * rows)
        found = list(connection.scalars(select(metadata.tables[table].c.id)))
    engine.dispose()
    return found


def test_they_serve_for_a_while(metadata: MetaData) -> None:
    with servers_in_memory(metadata) as pool:
        first = inserted(metadata)
        assert len(set(first)) == 3
        assert [s.last_ticket for s in pool.status() if s.sequence == "photos"]
    with pytest.raises(NoTicketPool):
        inserted(metadata)
    with servers_in_memory(metadata):
        assert inserted(metadata) == first


def test_the_pool_that_was_there_comes_back(metadata: MetaData) -> None:
    with TicketPool(["sqlite://"], stride=16) as before:
        before.attach(metadata)
        with servers_in_memory(metadata, servers=3, stride=16):
            inserted(metadata)
        with pytest.raises(TicketTableMissing):
            inserted(metadata)
        before.create_all(metadata)
        assert inserted(metadata, rows=2) == [17, 33]


def test_pools_of_other_names(metadata: MetaData) -> None:
    with servers_in_memory(metadata), servers_in_memory(metadata, name="media", servers=1):
        assert inserted(metadata, "films") == [2, 3, 4]
        assert len(inserted(metadata)) == 3
