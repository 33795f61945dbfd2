"""Shards that go up and down one history in any order, and share the ticket servers."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest
from alembic.operations.ops import MigrateOperation
from alembic.util import CommandError
from sqlalchemy import URL, MetaData

from alembic_ext.operations import (
    CreateTicketTableOp,
    DropTicketTableOp,
    MoveTicketTableOp,
    RaiseTicketTableOp,
    RenameTicketTableOp,
)
from sqla_tickets import TicketError, TicketPool
from sqla_tickets.draw import redirects
from tests.support.fault_injection import KillAtChange, StatementCounter
from tests.support.migration_contexts import operations
from tests.support.timing import set_timing

SHARDS = 3
STEPS = 30
#: One sequence, by all of its names and places.
HISTORY: list[MigrateOperation] = [
    CreateTicketTableOp("a"),
    RenameTicketTableOp("a", "b"),
    RaiseTicketTableOp("b", above=100),
    MoveTicketTableOp("b", to="media"),
    RenameTicketTableOp("b", "c", pool="media"),
    MoveTicketTableOp("c", to="archive", pool="media"),
]
#: A shard that is behind, or ahead, is told so.
EXPECTED = "has gone to|has moved|create it|create the table|run (that|the) migration again|drop it"
PLACES = [("default", "a"), ("default", "b"), ("media", "b"), ("media", "c"), ("archive", "c")]


class Site:
    """Some shards, each at a revision of its own, and all tickets that were ever drawn."""

    def __init__(self, folder: Path) -> None:
        self._urls = {
            name: [URL.create("sqlite", database=f"{folder}/{name}{n}.db") for n in (1, 2)]
            for name in ("default", "media", "archive")
        }
        self._metadata = MetaData()
        self._pools = self._on(StatementCounter())
        for pool in self._pools.values():
            pool.attach(self._metadata)
        self.at = [0] * SHARDS
        self.drawn: list[int] = []
        self._broken_off: dict[int, int] = {}

    def _on(self, statements: StatementCounter) -> dict[str, TicketPool]:
        return {
            name: TicketPool([statements.engine(url) for url in urls], name=name)
            for name, urls in self._urls.items()
        }

    def step(self, shard: int, direction: int, dies_at: int = 0) -> bool:
        """Upgrade or downgrade a shard; but first comes what broke off there before."""
        direction = self._broken_off.get(shard, direction)
        revision = self.at[shard] + min(direction, 0)
        if not 0 <= revision < len(HISTORY):
            return False
        op = HISTORY[revision] if direction > 0 else HISTORY[revision].reverse()
        if isinstance(op, DropTicketTableOp):
            op.force = True
        ended = self.run(op, dies_at)
        if ended is None:
            self._broken_off[shard] = direction
            return False
        self._broken_off.pop(shard, None)
        self.at[shard] += direction if ended else 0
        return ended

    def run(self, op: MigrateOperation, dies_at: int = 0) -> bool | None:
        """Run an operation, in a process that may die at a change.

        Returns:
            Whether it was done; None when it broke off.
        """
        pools = self._on(KillAtChange(dies_at) if dies_at else StatementCounter())
        try:
            with operations(*pools.values()) as running:
                running.invoke(op)
        except CommandError as error:
            if "closed database" in str(error):
                return None
            if not re.search(EXPECTED, str(error)):
                raise
            return False
        return True

    def draw(self) -> int:
        """Draw by every name, as clients of every age do; how many of them got tickets."""
        served = 0
        for pool, name in PLACES:
            try:
                self.drawn += self._pools[pool].next_ids(name, 2)
                served += 1
            except TicketError:
                continue
        assert len(set(self.drawn)) == len(self.drawn)
        return served


@pytest.mark.parametrize("seed", [0, 1, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("deaths", [0.0, 0.3])
def test_no_order_makes_a_ticket_come_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deaths: float, seed: int
) -> None:
    set_timing(monkeypatch, redirects, move_seconds=0.0)
    site, dice = Site(tmp_path), random.Random(seed)
    for _ in range(STEPS):
        dies_at = dice.randint(1, 6) if dice.random() < deaths else 0
        site.step(dice.randrange(SHARDS), dice.choice([1, 1, 1, -1, -1]), dies_at)
        site.draw()
    site.run(HISTORY[0])  # a shard that went down to the bottom has dropped it for all
    while min(site.at) < len(HISTORY):
        steps = [site.step(shard, 1) for shard in range(SHARDS)]
        assert any(steps), site.at
    assert site.draw() == len(PLACES)
