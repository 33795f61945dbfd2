"""Ids without a round trip: UUIDs, this project's Snowflakes, and the packages of PyPI that make Snowflake's and Sonyflake's."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from benchmarks.testbed import Testbed
from sqla_tickets import NodeLeases, SnowflakeGenerator, TicketPool

__all__ = [
    "UUID7",
    "leased",
    "new_uuid7",
    "snowflake",
    "sonyflake",
    "toolkit",
    "uuid4",
    "uuid7",
]


#: What is imported for UUIDs of version 7.
UUID7 = "uuid" if sys.version_info >= (3, 14) else "uuid_utils"


def new_uuid7() -> Callable[[], uuid.UUID]:
    """Python's own from 3.14 on, before that the quickest package that makes Python's UUIDs."""
    if sys.version_info >= (3, 14):
        return uuid.uuid7
    from uuid_utils import compat

    return compat.uuid7


@contextmanager
def uuid4(testbed: Testbed) -> Iterator[Callable[[], uuid.UUID]]:
    yield uuid.uuid4


@contextmanager
def uuid7(testbed: Testbed) -> Iterator[Callable[[], uuid.UUID]]:
    yield new_uuid7()


@contextmanager
def leased(testbed: Testbed) -> Iterator[Callable[[], int]]:
    """This project's, with a node number leased from the ticket servers."""
    with TicketPool(list(testbed.tickets)) as pool:
        NodeLeases(pool).create_table()
        yield SnowflakeGenerator(pool, "photos").next_id


@contextmanager
def snowflake(testbed: Testbed) -> Iterator[Callable[[], int]]:
    """snowflake-id. Its ``next()`` is None when the 4,096 of a millisecond are used up."""
    from snowflake import SnowflakeGenerator  # type: ignore[import-untyped]  # it has no types

    generator = SnowflakeGenerator(42)

    def draw() -> int:
        found: int | None = None
        while found is None:
            found = next(generator)
        return found

    yield draw


@contextmanager
def toolkit(testbed: Testbed) -> Iterator[Callable[[], int]]:
    """snowflake-id-toolkit, which takes a lock, as threads may share it."""
    from snowflake_id_toolkit import TwitterSnowflakeIDGenerator

    yield TwitterSnowflakeIDGenerator(42).generate_next_id


@contextmanager
def sonyflake(testbed: Testbed) -> Iterator[Callable[[], int]]:
    """sonyflake-py, which sleeps when the 256 of ten milliseconds are used up."""
    from sonyflake import SonyFlake

    generator = SonyFlake(machine_id=lambda: 42)
    assert generator is not None
    yield generator.next_id
