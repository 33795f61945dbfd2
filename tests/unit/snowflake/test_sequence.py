"""What a SnowflakeSequence can be declared with."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
from sqlalchemy import (
    BigInteger,
    Column,
    Integer,
    MetaData,
    String,
    Table,
    create_engine,
    insert,
)

from sqla_tickets import (
    FLAKE,
    SNOWFLAKE,
    SONYFLAKE,
    PoolNotAttached,
    SnowflakeSequence,
    TicketArgumentError,
)


def test_it_is_plain_data() -> None:
    table = Table(
        "photos",
        MetaData(),
        Column("id", BigInteger, SnowflakeSequence(layout=SONYFLAKE, pool="p"), primary_key=True),
    )
    for column in (
        table.to_metadata(MetaData()).c.id,
        pickle.loads(pickle.dumps(table)).c.id,
        copy.copy(table.c.id),
    ):
        assert repr(column.default) == repr(table.c.id.default)
        assert column.autoincrement is False


@pytest.mark.parametrize(
    ("type_", "layout", "advice"),
    [
        (Integer, SNOWFLAKE, "BigInteger"),
        (String, SNOWFLAKE, "BigInteger"),
        (BigInteger, FLAKE, "Uuid"),
    ],
)
def test_columns_that_cannot_hold_it(type_: Any, layout: Any, advice: str) -> None:
    with pytest.raises(TicketArgumentError, match=f"cannot hold the .* use {advice}"):
        Table("t", MetaData(), Column("id", type_, SnowflakeSequence(layout=layout)))


def test_bad_arguments() -> None:
    with pytest.raises(TicketArgumentError, match="expected a string"):
        SnowflakeSequence("")
    with pytest.raises(TicketArgumentError, match="expected a BitLayout"):
        SnowflakeSequence(layout=12)  # type: ignore[arg-type]  # what is tested
    with pytest.raises(TicketArgumentError, match="autoincrement"):
        Table("t", MetaData(), Column("id", BigInteger, SnowflakeSequence(), autoincrement=True))


def test_no_pool_is_attached() -> None:
    table = Table("t", MetaData(), Column("id", BigInteger, SnowflakeSequence()))
    engine = create_engine("sqlite://")
    with engine.begin() as connection:
        table.create(connection)
        with pytest.raises(PoolNotAttached, match="no ticket pool named 'default'"):
            connection.execute(insert(table).values())
