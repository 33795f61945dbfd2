"""The work, part by part."""

from __future__ import annotations

from benchmarks.parts import (
    costs,
    drawing,
    index,
    inserting,
    parallel,
    profile,
    scale,
    selecting,
    snowflakes,
    tasks,
)
from benchmarks.run import Part

__all__ = ["PARTS"]

SERVERS = ("mariadb", "mysql", "postgresql")
PARTS = {
    part.name: part
    for part in (
        Part("draw", "one id at a time from a server", drawing.single),
        Part("buffered", "ids without a round trip each", drawing.buffered, ("mariadb", "mysql")),
        Part("blocks", "reserve() of 1 to 10,000,000", drawing.blocks),
        Part("threads", "one id at a time in 1 to 64 threads", parallel.threads, SERVERS),
        Part("processes", "one id at a time in 1 to 8 processes", parallel.processes, SERVERS),
        Part(
            "scale",
            "rate and tail of 1 to 64 processes, 256 threads and tasks against bare cursors",
            scale.crowds,
            ("mariadb", "mysql"),
        ),
        Part(
            "sequences",
            "one thread that draws from 1 to 10,000 sequences",
            scale.sequences,
            ("mariadb", "mysql"),
        ),
        Part(
            "servers",
            "one thread that draws from 1 to 8 ticket servers",
            scale.servers,
            ("mariadb", "mysql"),
        ),
        Part("flush", "ORM flush of 1 to 100,000 rows", inserting.flushes),
        Part("snowflakes", "ids that sort by time, and flushes with them", snowflakes.snowflakes),
        Part("children", "ORM flush of parents with children", inserting.children),
        Part("core", "Core executemany", inserting.core),
        Part("selecting", "INSERT ... SELECT", selecting.selecting),
        Part("transactions", "transactions of a single row", inserting.transactions),
        Part("tasks", "single rows from 1 to 500 asyncio tasks", tasks.single_rows),
        Part(
            "delay", "draws, flush and transactions over a network", inserting.over_network, SERVERS
        ),
        Part("costs", "importing it, and its listener", costs.costs, ("sqlite",)),
        Part(
            "profile",
            "where the time of a draw and of a row goes",
            profile.profile,
            ("mariadb", "mysql"),
        ),
        Part(
            "index",
            "size and insert rate of large tables by their keys",
            index.index,
            ("mariadb", "mysql"),
            by_default=False,
        ),
    )
}
