"""Each model is held against the real server: the same random statements of several connections, the same outcomes.

A difference is the model's fault. The message has the seed, and the shortest script found that shows it.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Sequence
from random import Random
from typing import Any

import pytest
from sqlalchemy import make_url

from tests.simulation.models.random_scripts import (
    MAKERS,
    Kind,
    random_script,
    script_of_draws,
)
from tests.simulation.models.real import model_player, real_player
from tests.simulation.models.scripts import Event, Step, play, shrunk
from tests.support.servers import Server, ServerFixtures

pytestmark = [
    pytest.mark.every_case,
    pytest.mark.ticket_servers("mariadb", "mysql", "postgresql"),
]

#: Of random scripts of each sort, which take a few seconds each.
SEEDS = 3
_SHRINKING_SECONDS = 60.0
#: In how many orders those go on who are let go at once.
ORDERS = 40


class Comparison:
    """A real server, and what makes models of its version."""

    def __init__(self, kind: Kind, servers: ServerFixtures) -> None:
        self.kind: Kind = kind
        self._servers = servers
        self.server: Server = servers.shared(kind)

    def version(self) -> str:
        question = "SHOW server_version" if self.kind == "postgresql" else "SELECT VERSION()"
        administrator: Any = self.server
        with administrator.administrator() as cursor:
            cursor.execute(question)
            return str(cursor.fetchone()[0])

    def events(
        self, steps: Sequence[Step], deadlock_seconds: float = 3600
    ) -> tuple[list[Event], list[Event]]:
        """What has happened on the server, and what comes nearest to it on the model."""
        url = make_url(self._servers.fresh_database(self.server, None))
        database = str(url.database)
        player = real_player(self.server, database, deadlock_seconds)
        with contextlib.closing(player):
            real = play(steps, player)
        # who of two that are let go at once is quicker is left to chance, on both sides
        models = (
            play(steps, model_player(self.kind, self.version(), database, deadlock_seconds, seed))
            for seed in range(ORDERS)
        )
        first = next(models)
        return real, next((model for model in (first, *models) if model == real), first)

    def check(self, steps: Sequence[Step], seed: int, *, shrinks: bool = True) -> None:
        real, model = self.events(steps)
        if real == model:
            return

        # by chance, the shortest script need not differ when it is played once more
        differences = [(real, model)]

        def differs(shorter: Sequence[Step]) -> bool:
            found = self.events(shorter)
            if found[0] == found[1]:
                return False
            differences.append(found)
            return True

        short = shrunk(steps, differs, _SHRINKING_SECONDS) if shrinks else steps
        pairs = itertools.zip_longest(*differences[-1])
        first = next(pair for pair in pairs if pair[0] != pair[1])
        script = "\n".join(f"  {step.connection}: {step.text}" for step in short)
        pytest.fail(f"seed {seed}:\n{script}\nserver: {first[0]}\nmodel:  {first[1]}")


@pytest.fixture
def comparison(ticket_kind: Kind, servers: ServerFixtures) -> Comparison:
    return Comparison(ticket_kind, servers)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_draws_and_locks_have_the_same_outcomes(comparison: Comparison, seed: int) -> None:
    comparison.check(script_of_draws(comparison.kind, Random(seed)), seed)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_everything_has_the_same_outcomes(comparison: Comparison, seed: int) -> None:
    comparison.check(random_script(comparison.kind, Random(seed)), seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(SEEDS))
def test_restarts_have_the_same_outcomes(comparison: Comparison, seed: int) -> None:
    comparison.check(random_script(comparison.kind, Random(seed), restarts=True), seed)


def _begin(kind: Kind, *seconds: int) -> list[Step]:
    """Connections that wait for locks for so many seconds, and the tables."""
    maker = MAKERS[kind](Random(0), kind)
    begun = [Step(number, maker.session(each)) for number, each in enumerate(seconds)]
    return begun + [Step(0, text) for text in maker.creation()]


def _row(kind: Kind, table: str) -> str:
    """A statement that locks a table's row until the end of the transaction."""
    stub = "a" if kind != "postgresql" and table == "photos" else "c"
    return f"SELECT id FROM {table} WHERE stub = '{stub}' FOR UPDATE"


def _lock(kind: Kind, table: str) -> list[str]:
    """Statements that lock a table."""
    if kind == "postgresql":
        return ["BEGIN", f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE"]
    return [f"LOCK TABLES {table} WRITE"]


def _draw(kind: Kind, table: str) -> str:
    """A draw."""
    if kind == "postgresql":
        return f"UPDATE {table} SET id = id + 2 WHERE stub = 'c' RETURNING id"
    if table == "photos":
        return "REPLACE INTO photos (stub) VALUES ('a')"
    return "UPDATE albums SET id = LAST_INSERT_ID(id + 2) WHERE stub = 'c'"


@pytest.mark.parametrize("table", ["photos", "albums"])
@pytest.mark.parametrize("what", ["row", "table"])
def test_waits_end_with_the_same_errors(comparison: Comparison, table: str, what: str) -> None:
    kind = comparison.kind
    held = ["BEGIN", _row(kind, table)] if what == "row" else _lock(kind, table)
    comparison.check(
        [
            *_begin(kind, 50, 1, 1),
            *(Step(0, text) for text in held),
            Step(1, _draw(kind, table)),
            Step(2, f"SELECT id FROM {table}"),
            Step(-1, "@wait"),
            Step(1, f"SELECT id FROM {table}"),
            Step(-1, "@wait"),
        ],
        0,
    )


@pytest.mark.ticket_servers("mariadb", "mysql")
def test_queue_for_a_row_is_the_same(comparison: Comparison) -> None:
    """One holds the queue, one waits for it in vain and draws nevertheless, one waits until it is free."""
    kind = comparison.kind
    join, leave = (
        f"DO {function}(CONCAT('sqla_tickets 0 ', CRC32(CONCAT(DATABASE(), '.photos')))"
        for function in ("GET_LOCK", "RELEASE_LOCK")
    )
    queued = f"{join}, @@innodb_lock_wait_timeout); {_draw(kind, 'photos')}; {leave})"
    comparison.check(
        [
            *_begin(kind, 50, 1, 50),
            Step(0, queued),
            Step(0, f"{join}, @@innodb_lock_wait_timeout)"),
            Step(1, queued),
            Step(-1, "@wait"),
            Step(2, queued),
            Step(0, _draw(kind, "photos")),
            Step(0, f"{leave})"),
            Step(-1, "@wait"),
            Step(1, queued),
            Step(0, "BEGIN"),
            Step(0, _row(kind, "photos")),
            Step(1, queued),
            Step(-1, "@wait"),
            Step(0, "COMMIT"),
        ],
        0,
        shrinks=False,
    )


def test_deadlock_ends_one_of_two(comparison: Comparison) -> None:
    kind = comparison.kind
    real, model = (
        sorted(repr(event.outcome) for event in events)
        for events in comparison.events(
            [
                *_begin(kind, 50, 50),
                Step(0, "BEGIN"),
                Step(0, _row(kind, "photos")),
                Step(1, "BEGIN"),
                Step(1, _row(kind, "albums")),
                Step(0, _draw(kind, "albums")),
                Step(1, _draw(kind, "photos")),
                Step(-1, "@wait"),
                Step(0, "COMMIT"),
                Step(1, "COMMIT"),
            ],
            deadlock_seconds=1,
        )
    )
    assert real == model


@pytest.mark.ticket_servers("mariadb", "mysql")
def test_read_only_server_refuses_the_same(comparison: Comparison) -> None:
    kind = comparison.kind
    comparison.check(
        [
            *_begin(kind, 50, 50),
            Step(-1, "@admin SET GLOBAL read_only = 1"),
            *(Step(0, _draw(kind, table)) for table in ("photos", "albums")),
            Step(0, "LOCK TABLES photos WRITE"),
            Step(0, "LOCK TABLES photos READ"),
            Step(0, "UNLOCK TABLES"),
            Step(0, "SELECT id FROM photos"),
            Step(0, _row(kind, "photos")),
            Step(0, "ALTER TABLE photos COMMENT='changed'"),
            Step(0, "DROP TABLE IF EXISTS photos"),
            Step(0, "SHOW GLOBAL VARIABLES WHERE Variable_name IN ('read_only')"),
            Step(-1, "@admin SET GLOBAL read_only = 0"),
            *(Step(0, _draw(kind, table)) for table in ("photos", "albums")),
        ],
        0,
        shrinks=False,
    )
