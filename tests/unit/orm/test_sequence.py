"""What a TicketSequence can be declared with, and what a column makes of it."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
from sqlalchemy import (
    BigInteger,
    Column,
    DateTime,
    Enum,
    Float,
    ForeignKey,
    Identity,
    Integer,
    MetaData,
    Numeric,
    SmallInteger,
    String,
    Table,
    TypeDecorator,
    Uuid,
)
from sqlalchemy.dialects import mysql, postgresql
from sqlalchemy.exc import ArgumentError
from sqlalchemy.orm import (
    DeclarativeBase,
    Mapped,
    mapped_column,
)

from sqla_tickets import TicketArgumentError, TicketSequence

FULL = TicketSequence("photos", pool="eu", block=50)


@pytest.mark.parametrize(
    ("sequence", "text"),
    [
        (TicketSequence(), "TicketSequence()"),
        (TicketSequence("photos"), "TicketSequence('photos')"),
        (FULL, "TicketSequence('photos', pool='eu', block=50)"),
        (TicketSequence(pool="eu"), "TicketSequence(pool='eu')"),
        (TicketSequence(block=(5, 50)), "TicketSequence(block=(5, 50))"),
    ],
)
def test_it_reads_as_it_is_written(sequence: TicketSequence, text: str) -> None:
    assert repr(sequence) == text
    again = eval(text)
    assert plain(again) == plain(sequence)


def plain(sequence: TicketSequence) -> tuple[str | None, str | None, int | tuple[int, int]]:
    return sequence.name, sequence.pool, sequence.block


@pytest.mark.parametrize(
    "duplicate", [pickle.dumps, copy.copy, copy.deepcopy], ids=["pickle", "copy", "deepcopy"]
)
@pytest.mark.parametrize("sequence", [FULL, TicketSequence("photos", block=(5, 50))])
def test_a_sequence_can_be_copied(duplicate: Any, sequence: TicketSequence) -> None:
    made = duplicate(sequence)
    again = pickle.loads(made) if isinstance(made, bytes) else made
    assert type(again) is TicketSequence
    assert plain(again) == plain(sequence)


class Encoded(TypeDecorator[int]):
    """Integers behind a type of the application's own."""

    impl = BigInteger
    cache_ok = True


@pytest.mark.parametrize(
    "type_",
    [
        BigInteger(),
        Integer(),
        SmallInteger(),
        BigInteger().with_variant(Integer(), "sqlite"),
        Numeric(20, 0),
        mysql.BIGINT(unsigned=True),
        mysql.INTEGER(unsigned=True),
        postgresql.BIGINT(),
        Encoded(),
    ],
    ids=repr,
)
def test_types_that_hold_integers(type_: Any) -> None:
    table = Table("t", MetaData(), Column("id", type_, TicketSequence(), primary_key=True))
    assert isinstance(table.c.id.default, TicketSequence)


@pytest.mark.parametrize(
    "type_", [String(20), Uuid(), DateTime(), Float(), Numeric(20, 2), Enum("a")], ids=repr
)
def test_types_that_hold_none(type_: Any) -> None:
    with pytest.raises(TicketArgumentError, match=r"t\.id .*BigInteger"):
        Table("t", MetaData(), Column("id", type_, TicketSequence(), primary_key=True))


def test_a_class_with_a_type_that_holds_none() -> None:
    class Own(DeclarativeBase):
        pass

    with pytest.raises(TicketArgumentError, match="BigInteger"):

        class Photo(Own):
            __tablename__ = "photos"
            id: Mapped[str] = mapped_column(TicketSequence(), primary_key=True)


def test_the_type_of_a_foreign_key_is_not_known_yet() -> None:
    metadata = MetaData()
    Table("a", metadata, Column("id", BigInteger, TicketSequence(), primary_key=True))
    b = Table("b", metadata, Column("id", ForeignKey("a.id"), TicketSequence(), primary_key=True))
    assert isinstance(b.c.id.type, BigInteger)


@pytest.mark.parametrize("name", ["", "  ", 7, b"photos"])
def test_names_that_are_none(name: Any) -> None:
    with pytest.raises(TicketArgumentError, match="valid sequence name"):
        TicketSequence(name)


PAIRS = [(0, 5), (5, 2), (5,), (1, 2, 3), [1, 5], (1, "5"), (True, 5), ((1, 2), (3, 4))]


@pytest.mark.parametrize("block", [0, -1, 1.5, "2", True, None, *PAIRS], ids=repr)
def test_blocks_that_are_none(block: Any) -> None:
    with pytest.raises(TicketArgumentError, match="block"):
        TicketSequence("photos", block=block)


def test_it_is_no_onupdate() -> None:
    """An id that changes with each update is not meant."""
    with pytest.raises(TicketArgumentError, match="onupdate"):
        Column("id", BigInteger, onupdate=TicketSequence("photos"))
    declared = TicketSequence("photos")
    Column("id", BigInteger, declared)
    with pytest.raises(TicketArgumentError, match="onupdate"):
        Column("id", BigInteger, onupdate=declared)


def test_autoincrement_as_well() -> None:
    with pytest.raises(TicketArgumentError, match="autoincrement"):
        Column("id", BigInteger, TicketSequence(), primary_key=True, autoincrement=True)


def test_an_identity_as_well() -> None:
    with pytest.raises(ArgumentError, match="Identity"):
        Column("id", BigInteger, TicketSequence(), Identity(), primary_key=True)
