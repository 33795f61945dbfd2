"""An application that makes its pool when it is imported and draws at once, before it is forked."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TypedDict

from sqla_tickets import TicketPool, TicketSequence
from sqla_tickets.draw import hedging
from sqla_tickets.draw.timing import TIMING

#: Seconds: a server on a loaded machine is slow, which is no error of a fork's.
PATIENCE = 30.0
#: The same for its monitor, which falls asleep after them.
seconds = float(os.environ.get("PATIENCE", PATIENCE))
patient = replace(TIMING, first_patience_seconds=seconds, least_patience_seconds=seconds)
hedging.__dict__.update(TIMING=patient)
PHOTOS = TicketSequence("photos", block=10)


class Answer(TypedDict):
    """What a process drew, and what had been drawn where its application was imported."""

    pid: int
    ids: list[int]
    errors: int
    imported_by: int
    before: list[int]


pool = TicketPool(os.environ["TICKET_URLS"].split(), timeout=PATIENCE)
imported_by = os.getpid()
# One draw from each server: idle connections, and the rest of a buffered block.
before = pool.next_ids(PHOTOS, 3) + pool.next_ids(PHOTOS, 8)


def draw() -> Answer:
    """Draw from both servers."""
    ids: list[int] = []
    while len(ids) < 28 or len({ticket % 2 for ticket in ids}) < 2:
        ids += pool.next_ids(PHOTOS, 7)
    errors = sum(record.errors for record in pool.status())
    return Answer(pid=os.getpid(), ids=ids, errors=errors, imported_by=imported_by, before=before)


def application(
    environ: dict[str, object], start_response: Callable[[str, list[tuple[str, str]]], object]
) -> Iterable[bytes]:
    """The same by WSGI."""
    start_response("200 OK", [("Content-Type", "application/json")])
    return [json.dumps(draw()).encode()]
