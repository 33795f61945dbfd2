"""Servers that are set back, and pools that notice."""

from __future__ import annotations

import logging

import pytest

from sqla_tickets import (
    TicketPool,
)
from sqla_tickets.dialects import LayoutName
from tests.support.draws import (
    FLICKRS_TABLE,
    residues,
)

__all__ = ["SET_BACK", "assert_quarantined"]

# Statements by which a table's number goes back to 1, each as it happens in operations.
SET_BACK: dict[str, tuple[LayoutName, list[str]]] = {
    "rows deleted and the counter altered": (
        "replace",
        ["DELETE FROM photos", "ALTER TABLE photos AUTO_INCREMENT = 1"],
    ),
    "truncated": ("replace", ["TRUNCATE TABLE photos"]),
    "truncated and given a row": (
        "replace",
        ["TRUNCATE TABLE photos", "REPLACE INTO photos (id, stub) VALUES (1, 'a')"],
    ),
    "restored from a dump": (
        "replace",
        [
            "DROP TABLE photos",
            FLICKRS_TABLE.format(name="photos", engine="InnoDB"),
            "INSERT INTO photos VALUES (1, 'a')",
        ],
    ),
    "counter row lowered": ("counter", ["UPDATE photos SET id = 1"]),
    "counter row restored": (
        "counter",
        ["DELETE FROM photos", "INSERT INTO photos (stub, id) VALUES ('c', 1)"],
    ),
}


def assert_quarantined(
    pool: TicketPool, caplog: pytest.LogCaptureFixture, *words: str, offset: int = 1
) -> None:
    """The log says so, critically and once; the status says so; the other server goes on."""
    critical = [r.getMessage() for r in caplog.records if r.levelno == logging.CRITICAL]
    assert len(critical) == 1
    for word in (
        "'photos'",
        f"(offset {offset})",
        "This process has quarantined the table",
        *words,
    ):
        assert word in critical[0]
    (record,) = [r for r in pool.status() if r.server == str(pool.servers[offset - 1])]
    assert record.breaker == "quarantined"
    assert record.error is not None
    assert residues(pool.next_ids("photos", 1)[0] for _ in range(6)) == {(offset + 1) % 2}
