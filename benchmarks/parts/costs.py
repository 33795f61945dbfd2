"""What a program pays that has no tickets: the import, and the listener at each flush."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import partial

from sqlalchemy import create_engine, event
from sqlalchemy.orm import Session
from sqlalchemy.pool import StaticPool

from benchmarks.harness import Comparison, Side, compare, timed
from benchmarks.keys import auto_increment_key, models
from benchmarks.scale import Scale
from benchmarks.testbed import Testbed
from sqla_tickets.orm.flush import assign_tickets

__all__ = ["costs"]

_IMPORT = """
import time
import sqlalchemy.orm
start = time.perf_counter()
{statement}
print(1000 * (time.perf_counter() - start))
"""
#: What a module with models needs, and one that makes a pool.
_IMPORTS = {
    "sqla_tickets": "import sqla_tickets",
    "sqla_tickets, and its TicketPool": "from sqla_tickets import TicketPool",
}


def costs(testbed: Testbed, scale: Scale) -> Iterator[Comparison]:
    """Neither has anything to do with a server."""
    with tempfile.TemporaryDirectory() as folder:
        yield compare(
            "import",
            "",
            "Import after sqlalchemy.orm (less is better)",
            "ms",
            [
                Side(name, partial(_import, statement, folder))
                for name, statement in _IMPORTS.items()
            ],
            rounds=scale.rounds,
        )
    yield _listener(scale)


def _import(statement: str, folder: str) -> float:
    """How long an import takes whose modules were compiled before, as an installed package's are."""
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": folder}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    done = subprocess.run(
        [sys.executable, "-c", _IMPORT.format(statement=statement)],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return float(done.stdout)


def _listener(scale: Scale) -> Comparison:
    """Flushes, never committed, of objects that take no tickets."""
    made = models("plain", auto_increment_key)
    engine = create_engine("sqlite://", poolclass=StaticPool)
    made.base.metadata.create_all(engine)
    rows = min(1_000, scale.rows)

    def flush() -> int:
        with Session(engine) as session:
            session.add_all(made.photos(rows))
            session.flush()
        return rows

    def without() -> int:
        was_there = event.contains(Session, "before_flush", assign_tickets)
        if was_there:
            event.remove(Session, "before_flush", assign_tickets)
        try:
            return flush()
        finally:
            if was_there:
                event.listen(Session, "before_flush", assign_tickets)

    def idle_listener() -> int:
        event.listen(Session, "before_flush", assign_tickets)
        return flush()

    return compare(
        "listener",
        "",
        f"ORM flush of {rows:,} objects without tickets, SQLite in memory",
        "rows/s",
        [Side("listener installed", timed(idle_listener)), Side("no listener", timed(without))],
        rounds=10 * scale.rounds,
    )
