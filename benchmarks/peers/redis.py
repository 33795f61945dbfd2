"""Redis as a counter, through redis-py: one command for each id, and one for each thousand."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from benchmarks.testbed import Testbed

__all__ = ["incr", "incrby"]


@contextmanager
def incr(testbed: Testbed) -> Iterator[Callable[[], object]]:
    import redis

    with redis.Redis(port=testbed.redis or 0) as client:
        yield partial(client.incr, "photos")


@contextmanager
def incrby(testbed: Testbed) -> Iterator[Callable[[], object]]:
    """``INCRBY`` returns the last of a thousand, which are handed out here."""
    import redis

    lock, ids = threading.Lock(), iter(range(0))
    with redis.Redis(port=testbed.redis or 0) as client:

        def draw() -> int:
            nonlocal ids
            with lock:
                found = next(ids, None)
                if found is None:
                    last = int(str(client.incrby("photo_blocks", 1000)))
                    ids = iter(range(last - 998, last + 1))
                    found = last - 999
                return found

        yield draw
