"""One draw, against the statements that it consists of."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable

import pymysql
from pymysql.cursors import Cursor
from sqlalchemy import URL, Engine, create_engine, text

from benchmarks.harness import ROUNDS, Figure, Side, compare
from sqla_tickets import TicketPool

DRAWS = 100


def run(kind: str, pool: TicketPool) -> None:
    """Compare single draws and blocks on the first server of the pool."""
    url = pool.servers[0].engine.url
    engine = create_engine(url)
    cursor = _bare_cursor(url)
    _one_draw(kind, pool, engine, cursor)
    _blocks(kind, pool)
    engine.dispose()


def _one_draw(kind: str, pool: TicketPool, engine: Engine, cursor: Cursor) -> None:
    pool.create_table("replaced", layout="replace")
    pool.create_table("counted", layout="counter")

    def flickr() -> None:
        with engine.begin() as connection:
            connection.execute(text("REPLACE INTO replaced (stub) VALUES ('a')"))
            connection.execute(text("SELECT LAST_INSERT_ID()")).scalar_one()

    def bare_replace() -> None:
        cursor.execute("REPLACE INTO replaced (stub) VALUES ('a')")
        assert cursor.lastrowid

    def bare_update() -> None:
        cursor.execute("UPDATE counted SET id = LAST_INSERT_ID(id + 2) WHERE stub = 'c'")
        assert cursor.lastrowid

    compare(
        f"One draw, {kind}",
        "draws",
        [
            Side("next_id, replace layout", _times(lambda: pool.next_id("replaced"))),
            Side("Flickr's two statements, Engine", _times(flickr)),
            Side("REPLACE, bare cursor", _times(bare_replace)),
            Side("next_id, counter layout", _times(lambda: pool.next_id("counted"))),
            Side("UPDATE, bare cursor", _times(bare_update)),
        ],
        [
            Figure("next_id, replace layout", "Flickr's two statements, Engine", 1.8),
            Figure("next_id, replace layout", "REPLACE, bare cursor", 0.75),
            Figure("next_id, counter layout", "UPDATE, bare cursor", 0.75),
        ],
        rounds=3 * ROUNDS,
    )


def _blocks(kind: str, pool: TicketPool) -> None:
    compare(
        f"reserve(n), counter layout, {kind}",
        "draws",
        [
            Side("n = 1,000,000", _times(lambda: pool.reserve("counted", 1_000_000))),
            Side("n = 1", _times(lambda: pool.reserve("counted", 1))),
        ],
        [Figure("n = 1,000,000", "n = 1", 1 / 1.5)],
        rounds=3 * ROUNDS,
    )
    for n in (1, 1_000_000):
        tracemalloc.start()
        pool.reserve("counted", n)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        print(f"\nreserve({n:,}): {peak:,} bytes of memory at its peak")


def _times(draw: Callable[[], object]) -> Callable[[], int]:
    def work() -> int:
        for _ in range(DRAWS):
            draw()
        return DRAWS

    return work


def _bare_cursor(url: URL) -> Cursor:
    connection = pymysql.connect(
        host=url.host,
        port=url.port or 3306,
        user=url.username,
        password=str(url.password or ""),
        database=url.database,
        autocommit=True,
    )
    return connection.cursor()
