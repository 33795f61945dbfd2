"""A segment allocator in the manner of Meituan's Leaf: one row, raised by a step, and two segments in memory.

tech.meituan.com/2017/04/21/mt-leaf.html: the next segment is fetched by another thread when a tenth of the current
one is used.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from sqlalchemy import Engine, create_engine, text

from benchmarks.testbed import Testbed

__all__ = ["segments"]

_CREATE = "CREATE TABLE IF NOT EXISTS leaf_alloc (biz_tag varchar(128) PRIMARY KEY, max_id bigint NOT NULL, step int NOT NULL)"
_ROW = "INSERT INTO leaf_alloc VALUES ('photos', 1, :step)"
_RAISE = "UPDATE leaf_alloc SET max_id = max_id + step WHERE biz_tag = 'photos'"
_READ = "SELECT max_id, step FROM leaf_alloc WHERE biz_tag = 'photos'"


class _Segments:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lock = threading.Lock()
        self._next: list[range] = []
        self._fetching: threading.Thread | None = None
        self._use(self._fetch())

    def _fetch(self) -> range:
        with self._engine.begin() as connection:
            connection.execute(text(_RAISE))
            last, step = connection.execute(text(_READ)).one()
        return range(last - step, last)

    def _use(self, segment: range) -> None:
        self._ids, self._left, self._soon = iter(segment), len(segment), len(segment) * 9 // 10

    def next_id(self) -> int:
        with self._lock:
            if not self._left:
                if self._fetching is not None:
                    self._fetching.join()
                    self._fetching = None
                self._use(self._next.pop() if self._next else self._fetch())
            self._left -= 1
            if self._left < self._soon and self._fetching is None:
                self._fetching = threading.Thread(target=lambda: self._next.append(self._fetch()))
                self._fetching.start()
            return next(self._ids)

    def close(self) -> None:
        if self._fetching is not None:
            self._fetching.join()


@contextmanager
def segments(testbed: Testbed) -> Iterator[Callable[[], int]]:
    engine = create_engine(testbed.tickets[0])
    with engine.begin() as connection:
        connection.execute(text(_CREATE))
        if connection.execute(text(_READ)).first() is None:
            connection.execute(text(_ROW), {"step": 1000})
    allocator = _Segments(engine)
    yield allocator.next_id
    allocator.close()
    engine.dispose()
