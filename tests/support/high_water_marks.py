"""The high-water marks that one server keeps of its peers."""

from __future__ import annotations

from sqlalchemy import URL

from sqla_tickets.high_water.statements import MARKS
from tests.support.draws import (
    run,
)

__all__ = ["marks_on"]


def marks_on(url: URL) -> dict[tuple[str, int], int]:
    """What a server knows of the others: marks by sequence and offset."""
    rows = run(url, f"SELECT * FROM {MARKS}")
    return {(str(name), int(str(offset))): int(str(mark)) for name, _, offset, _, mark in rows}
