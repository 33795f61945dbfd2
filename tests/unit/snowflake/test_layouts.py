"""Layouts of bits encode and decode ids."""

from __future__ import annotations

import random
from datetime import datetime, timedelta, timezone
from uuid import UUID

import pytest
from sqlalchemy import BigInteger, Column

from sqla_tickets import FLAKE, INSTAGRAM, SNOWFLAKE, SONYFLAKE, BitLayout, TicketArgumentError

DISCORD = BitLayout(41, 10, 12, epoch=1420070400000)


LAYOUTS = [SNOWFLAKE, INSTAGRAM, SONYFLAKE, FLAKE]


def utc(*parts: int, ms: int = 0) -> datetime:
    year, month, day, *rest = parts
    hour, minute, second = (*rest, 0, 0, 0)[:3]
    at = datetime(year, month, day, hour, minute, second, tzinfo=timezone.utc)
    return at + timedelta(milliseconds=ms)


# Wikipedia, "Snowflake ID"; Discord's reference, "Snowflakes"; the README of T-PWK/flake-idgen
# (its two fields of five bits are one of ten here); Instagram's "Sharding & IDs at Instagram":
# September 9th, 2011, 5:00 pm of UTC is 1,387,263,000 ms after its epoch; its user 31341 is on shard
# 1341, and its sequence is at 5001, which is 905 modulo 1024; the README of boundary/flake.
VECTORS = [
    (SNOWFLAKE, 1541815603606036480, utc(2022, 6, 28, 16, 7, 40, ms=105), 378, 0),
    (DISCORD, 175928847299117063, utc(2016, 4, 30, 11, 18, 25, ms=796), 1 << 5, 7),
    (BitLayout(41, 10, 12), 0x02308150EC000000, utc(1970, 1, 1, ms=0x8C20543B0), 0, 0),
    (BitLayout(41, 10, 12), 0x02308150EC400003, utc(1970, 1, 1, ms=0x8C20543B1), 0, 3),
    (BitLayout(41, 10, 12), 0x02308300CD461001, utc(1970, 1, 1, ms=0x8C20C0335), 0b11 << 5 | 1, 1),
    (
        INSTAGRAM,
        1387263000 << 23 | 1341 << 10 | 905,
        utc(1970, 1, 1, ms=1314220021721 + 1387263000),
        1341,
        905,
    ),
    (
        FLAKE,
        0x00000134D4212D43109ADD5E0E8F0000,
        utc(1970, 1, 1, ms=0x134D4212D43),
        0x109ADD5E0E8F,
        0,
    ),
    # what the source of Sonyflake computes: elapsed << 24 | sequence << 16 | machine
    (SONYFLAKE, 100 << 24 | 3 << 16 | 0xA00B, utc(2014, 9, 1, 0, 0, 1), 0xA00B, 3),
]


@pytest.mark.parametrize(("layout", "number", "time", "node", "sequence"), VECTORS)
def test_ids_that_others_have_published(
    layout: BitLayout, number: int, time: datetime, node: int, sequence: int
) -> None:
    assert layout.decode(number) == (time, node, sequence)
    assert layout.encode(time, node, sequence) == number


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_id_reads_as_what_it_was_made_of(layout: BitLayout) -> None:
    seed = random.randrange(2**32)
    print("seed", seed)
    chooser = random.Random(seed)
    for _ in range(500):
        milliseconds = chooser.randrange(layout.epoch, 1790000000000) // layout.unit * layout.unit
        time = utc(1970, 1, 1, ms=milliseconds)
        node, sequence = chooser.randrange(layout.nodes), chooser.randrange(1 << layout.sequence)
        number = layout.encode(time, node, sequence)
        assert layout.decode(number) == (time, node, sequence)
        assert (
            layout.id_at(time) <= number < layout.id_at(time + timedelta(milliseconds=layout.unit))
        )


def test_a_run_of_one_tick() -> None:
    for layout in LAYOUTS:
        run = layout._run(1000, 5, 2, 3)
        assert [layout.decode(number)[1:] for number in run] == [(5, 2), (5, 3), (5, 4)]


def test_uuids() -> None:
    now = datetime.now(timezone.utc).replace(microsecond=0)
    assert FLAKE.decode(UUID(int=FLAKE.encode(now, 0xA1B2C3D4E5F6, 9))) == (now, 0xA1B2C3D4E5F6, 9)


def test_when_they_run_out() -> None:
    assert SNOWFLAKE.runs_out_at == utc(2080, 7, 10, 17, 30, 30, ms=209)
    assert INSTAGRAM.runs_out_at.year == 2046  # its 64th bit is the sign of a BIGINT
    assert SONYFLAKE.runs_out_at.year == 2189 - 1
    assert FLAKE.runs_out_at.year == 9999


@pytest.mark.parametrize(
    "arguments",
    [(41, 10, 14), (64, 48, 17), (0, 10, 12), (41, -1, 12), (41, 10, 12, 0), (41.0, 10, 12)],
)
def test_bits_that_do_not_add_up(arguments: tuple[int, ...]) -> None:
    time, node, sequence, unit = (*arguments, 1)[:4]
    with pytest.raises(TicketArgumentError):
        BitLayout(time, node, sequence, unit)


def test_bad_input() -> None:
    now = datetime.now(timezone.utc)
    with pytest.raises(TicketArgumentError, match="in the future"):
        BitLayout(41, 10, 12, epoch=int(now.timestamp() * 1000) + 60_000)
    with pytest.raises(TicketArgumentError, match="node 1024 does not fit"):
        SNOWFLAKE.encode(now, 1024, 0)
    with pytest.raises(TicketArgumentError, match="sequence 4096"):
        SNOWFLAKE.encode(now, 0, 4096)
    with pytest.raises(TicketArgumentError, match="time 2001"):
        SNOWFLAKE.id_at(utc(2001, 1, 1))
    with pytest.raises(TicketArgumentError, match="has no time zone"):
        SNOWFLAKE.id_at(datetime(2022, 1, 1))  # noqa: DTZ001
    with pytest.raises(TicketArgumentError, match="in the future"):
        DISCORD.decode(SNOWFLAKE.encode(now, 1, 1))  # whose epoch is four years before
    with pytest.raises(TicketArgumentError, match="63 bits, found 64"):
        SNOWFLAKE.decode(1 << 63)
    with pytest.raises(TicketArgumentError, match="and a sign"):
        SNOWFLAKE.decode(-1)
    with pytest.raises(TicketArgumentError, match="for UUIDs"):
        FLAKE.time_of(Column("id", BigInteger))
