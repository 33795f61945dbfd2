"""Processes of several threads that draw until they are told to stop."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event

from sqlalchemy import URL

from sqla_tickets import TicketError, TicketPool
from tests.support.draws import assert_unique, from_one_start
from tests.support.high_water_marks import marks_on

__all__ = ["Load", "StartLoad", "publish_marks"]

THREADS = 3
#: Draws of one thread, at most.
MOST = 20_000
#: Seconds between two draws of one thread: a server is asked by many, not by one at full speed.
REST = 0.004
#: Seconds after which something hangs, on the slowest machine.
BOUND = 150.0
#: Seconds after which a process ends by itself.
LIFE = 500.0


class Load:
    """Processes that draw from ``photos``, each by its own list of URLs.

    Args:
        of_processes: for each process, the URLs of its pool.
    """

    def __init__(self, of_processes: Sequence[Sequence[URL]]) -> None:
        context = from_one_start()
        self._stop = context.Event()
        self._counts = [
            context.Array("q", len(urls), lock=False)  # one thread tells for all
            for urls in of_processes
        ]
        self._pipes: list[Connection] = []
        self._processes = []
        for urls, counts in zip(of_processes, self._counts, strict=True):
            texts = [url.render_as_string(hide_password=False) for url in urls]
            near, far = context.Pipe()
            process = context.Process(
                target=_draw, args=(texts, self._stop, counts, far), daemon=True
            )
            process.start()
            far.close()
            self._pipes.append(near)
            self._processes.append(process)

    def wait_for(self, offset: int, n: int = 20) -> None:
        """Wait until every process has drawn ``n`` more tickets of this offset's server."""
        goals = [counts[offset - 1] + n for counts in self._counts]
        end = time.monotonic() + BOUND
        while any(c[offset - 1] < goal for c, goal in zip(self._counts, goals, strict=True)):
            assert time.monotonic() < end, f"{[list(c) for c in self._counts]}, expected {goals}"
            assert all(process.is_alive() for process in self._processes)
            time.sleep(0.02)

    def finish(self) -> list[int]:
        """Have all stop, and return what they have drawn: no id twice, and no draw that failed."""
        self._stop.set()
        ids: list[int] = []
        failures: list[str] = []
        for pipe, process in zip(self._pipes, self._processes, strict=True):
            assert pipe.poll(BOUND), "a process hangs"
            drawn, failed = pipe.recv()
            ids += drawn
            failures += failed
            process.join(BOUND)
        assert failures == []
        assert_unique(ids)
        return ids

    def kill(self) -> None:
        """End what still runs."""
        for process in self._processes:
            if process.is_alive():
                process.kill()
            process.join()


def publish_marks(pool: TicketPool, peer: URL, *sequences: str) -> None:
    """Wait until a peer knows how far the first server of a pool has issued what the pool has drawn."""
    first = pool.servers[0]
    end = time.monotonic() + BOUND
    while any(
        marks_on(peer).get((name, 1), 0) < first.table(name).high_water for name in sequences
    ):
        assert time.monotonic() < end, f"{marks_on(peer)}"
        pool._marks.begin_to_write(first)
        time.sleep(0.1)


def _draw(texts: Sequence[str], stop: Event, counts: list[int], pipe: Connection) -> None:
    ids: list[int] = []
    failures: list[str] = []
    end = time.monotonic() + LIFE
    with TicketPool(texts) as pool:

        def draw(thread: int) -> None:
            for number in range(MOST):
                if stop.is_set() or time.monotonic() > end:
                    return
                try:
                    drawn = pool.next_ids("photos", 1 + (number + thread) % 3)
                except TicketError as error:
                    failures.append(str(error))
                else:
                    ids.extend(drawn)
                    with telling:
                        for ticket in drawn:
                            counts[(ticket - 1) % len(texts)] += 1
                time.sleep(REST)

        telling = threading.Lock()
        threads = [threading.Thread(target=draw, args=(n,)) for n in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    pipe.send((ids, failures))


#: Start processes that draw, each with a list of URLs of its own, until the test has ended.
StartLoad = Callable[..., Load]
