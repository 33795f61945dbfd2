"""Values that no argument can have are refused where they are given."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import MetaData

from sqla_tickets import (
    NodeLeases,
    ServerSpec,
    TicketArgumentError,
    TicketPool,
    TicketSequence,
)
from sqla_tickets.connect.timeouts import Timeouts

#: Python writes no number of so many digits.
TOO_LONG: Any = pytest.param(10**5000, id="too long")


NO_NAMES = ["a\0b", "a\ud800b", "", " ", None, 5, b"photos", ["photos"], "a%(b"]


@pytest.mark.parametrize(
    "value", [math.nan, math.inf, -math.inf, "1", None, 0, -2, True, 1e300, [1.0], TOO_LONG]
)
@pytest.mark.parametrize("argument", ["timeout", "lock_wait"])
def test_seconds_that_are_none_are_refused(argument: str, value: object) -> None:
    with pytest.raises(TicketArgumentError, match=rf"'default'.*{argument}=.*seconds above 0"):
        TicketPool(["sqlite://"], **{argument: value})  # type: ignore[arg-type]  # what is tested


@pytest.mark.parametrize("seconds", [1, 0.05, 2.5])
def test_seconds_of_either_type_are_taken(seconds: float) -> None:
    pool = TicketPool(["sqlite://"], timeout=seconds, lock_wait=seconds, block_max_age=math.inf)
    assert pool.servers[0].timeouts == Timeouts(seconds, seconds)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, "1", 0, -2, True, 1e300, [1.0]])
def test_lease_without_seconds_is_refused(value: object) -> None:
    with pytest.raises(TicketArgumentError, match=r"'default'.*duration=.*seconds above 0"):
        NodeLeases(TicketPool(["sqlite://"]), duration=value)  # type: ignore[arg-type]  # as above


def test_lease_of_two_durations_is_refused() -> None:
    pool = TicketPool(["sqlite://"])
    NodeLeases(pool, duration=5)
    assert NodeLeases(pool).duration == 5
    with pytest.raises(TicketArgumentError, match=r"duration=6.*already last 5 seconds"):
        NodeLeases(pool, duration=6)


@pytest.mark.parametrize("offset", ["1", [1], 1.5, True, 0, -1, 65536, TOO_LONG])
def test_offset_that_is_none_is_refused(offset: int) -> None:
    with pytest.raises(TicketArgumentError, match=r"offset=.*1 to 65535"):
        ServerSpec("sqlite://", offset=offset)


class Base:
    """What is often given in the place of its MetaData."""

    metadata = MetaData()


@pytest.mark.parametrize("given", [None, 5, "metadata", Base])
def test_attach_of_what_is_no_metadata_is_refused(given: MetaData) -> None:
    pool = TicketPool(["sqlite://"])
    calls: list[Callable[[MetaData], object]] = [pool.attach, pool.detach, pool.create_all]
    for call in calls:
        with pytest.raises(TicketArgumentError, match=r"'default'.*MetaData.*Base\.metadata"):
            call(given)
    with pytest.raises(TicketArgumentError, match="MetaData"), pool.attached(given):
        pass


@pytest.mark.parametrize("name", [name for name in NO_NAMES if name is not None])
def test_name_that_is_none_is_no_declaration(name: str) -> None:
    with pytest.raises(TicketArgumentError, match="sequence"):
        TicketSequence(name)
