"""`BitLayout` against ids that others have published, in Python and in SQL."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest
from sqlalchemy import BigInteger, Column, MetaData, Table, create_engine, insert, select
from sqlalchemy.engine import URL

from sqla_tickets import SNOWFLAKE, SONYFLAKE, BitLayout, NodeLeases, SnowflakeGenerator, TicketPool

pytestmark = pytest.mark.every_case


def utc(*parts: int, ms: int = 0) -> datetime:
    year, month, day, *rest = parts
    hour, minute, second = (*rest, 0, 0, 0)[:3]
    at = datetime(year, month, day, hour, minute, second, tzinfo=timezone.utc)
    return at + timedelta(milliseconds=ms)


@pytest.mark.parametrize("layout", [SNOWFLAKE, SONYFLAKE], ids=["snowflake", "sonyflake"])
def test_the_same_in_sql(app_url: URL, layout: BitLayout) -> None:
    table = Table(
        "photos", MetaData(), Column("id", BigInteger, primary_key=True, autoincrement=False)
    )
    time = utc(2024, 2, 29, 23, 59, 59, ms=120)
    engine = create_engine(app_url)
    with engine.begin() as connection:
        table.create(connection)
        for node in (0, 700):
            connection.execute(insert(table), {"id": layout.encode(time, node, 7)})
        parts = (layout.time_of, layout.node_of, layout.sequence_of)
        statement = select(*(part(table.c.id) for part in parts)).where(
            table.c.id >= layout.id_at(time)
        )
        rows = connection.execute(statement.order_by(table.c.id)).all()
        assert [tuple(row) for row in rows] == [(time.replace(tzinfo=None), n, 7) for n in (0, 700)]
        late = layout.time_of(table.c.id) > time.replace(tzinfo=None)
        assert connection.scalar(select(table.c.id).where(late)) is None
    engine.dispose()


def test_sequence_has_more_numbers_than_are_prepared(ticket_urls: list[URL]) -> None:
    """More of them than Python can count in a `range`."""
    layout = BitLayout(48, 16, 64, unit=100)
    with TicketPool(ticket_urls) as pool:
        NodeLeases(pool).create_table()
        made = SnowflakeGenerator(pool, "photos", layout)
        ids = [made.next_id() for _ in range(10_000)]
        ids += [*made.next_ids(3), made.next_id()]
    assert ids == sorted({*ids})


@pytest.mark.parametrize("node", [63, 80])
def test_more_node_bits_than_a_server_can_hold(ticket_urls: list[URL], node: int) -> None:
    layout = BitLayout(42, node, 86 - node)
    with TicketPool(ticket_urls) as pool:
        NodeLeases(pool).create_table()
        ids = SnowflakeGenerator(pool, "photos", layout).next_ids(3)
    assert len({*ids}) == 3
    assert {layout.decode(number).node for number in ids} <= {0, 1}
