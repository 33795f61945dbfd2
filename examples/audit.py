"""Proves that no id of a table is there twice, over all shards."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from heapq import merge
from itertools import repeat

from sqlalchemy import Engine, Table, select

__all__ = ["Audit", "audit"]


@dataclass
class Audit:
    """The ids of one table on all shards.

    Attributes:
        table: its name.
        rows: how many rows there are.
        duplicates: how many of them have an id that came before.
        residues: how many ids each ticket server has issued, by its offset.
        shards: how many rows each shard has.
    """

    table: str
    rows: int = 0
    duplicates: int = 0
    residues: Counter[int] = field(default_factory=Counter)
    shards: Counter[str] = field(default_factory=Counter)


def audit(table: Table, shards: Mapping[str, Engine], stride: int) -> Audit:
    """Read all ids of a table in order, from all shards at once, and count equal neighbours."""
    found = Audit(table.name)
    ids = select(table.c.id).order_by(table.c.id).execution_options(yield_per=10_000)
    with ExitStack() as until_read:
        connections = {name: until_read.enter_context(shards[name].connect()) for name in shards}
        streams = [zip(connections[name].scalars(ids), repeat(name)) for name in shards]
        before = None
        for id_, shard in merge(*streams):
            found.rows += 1
            found.duplicates += id_ == before
            found.residues[(id_ - 1) % stride + 1] += 1
            found.shards[shard] += 1
            before = id_
    return found
