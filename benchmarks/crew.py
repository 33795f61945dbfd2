"""Processes that draw at once, started once for all rounds."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import chain
from multiprocessing.connection import Connection
from typing import Literal

import psutil

from benchmarks.harness import draws_of, rate_of
from benchmarks.peers import PEERS, Draw
from benchmarks.testbed import Testbed
from tests.support.draws import from_one_start

__all__ = ["Crew", "crew"]

#: What a process is asked: a rate, the draws one by one, or what a peer took of its memory.
Question = Literal["rate", "draws", "memory"]
#: When a draw began, by ``time.monotonic()``, and what it took, in seconds. One without a beginning is another number.
Answer = list[tuple[float, float]]


class Crew:
    """Some processes, each with its own connections."""

    def __init__(self, pipes: list[Connection[tuple[str, float, Question], Answer]]) -> None:
        self._pipes = pipes

    def open(self, peer: str) -> None:
        """Have each process open its connections, one after the other: all at once would be a rush of its own."""
        self.memory(peer)
        for pipe in self._pipes[1:]:
            pipe.send((peer, 0.0, "draws"))
            pipe.recv()

    def rate(self, peer: str, processes: int, seconds: float) -> float:
        """The sum of the rates at which the first so many processes drew from a peer at once."""
        return sum(rate for [(_, rate)] in self._ask(peer, processes, seconds, "rate"))

    def draws(self, peer: str, processes: int, seconds: float) -> Answer:
        """When each draw of the first so many processes began, and what it took, in seconds."""
        return list(chain.from_iterable(self._ask(peer, processes, seconds, "draws")))

    def waits(self, peer: str, processes: int, seconds: float) -> list[float]:
        """What each draw of the first so many processes took, in seconds, the shortest first."""
        return sorted(took for _, took in self.draws(peer, processes, seconds))

    def memory(self, peer: str) -> int:
        """The bytes that the first process had more of its own after it had opened a peer and drawn once."""
        [[(_, taken)]] = self._ask(peer, 1, 0.0, "memory")
        return int(taken)

    def _ask(self, peer: str, processes: int, seconds: float, what: Question) -> list[Answer]:
        for pipe in self._pipes[:processes]:
            pipe.send((peer, seconds, what))
        return [pipe.recv() for pipe in self._pipes[:processes]]


@contextmanager
def crew(testbed: Testbed, size: int) -> Iterator[Crew]:
    """So many processes for a while."""
    context = from_one_start()
    pipes: list[Connection[tuple[str, float, Question], Answer]] = []
    processes = []
    for _ in range(size):
        near, far = context.Pipe()
        process = context.Process(target=_work, args=(far, testbed), daemon=True)
        process.start()
        far.close()
        pipes.append(near)
        processes.append(process)
    try:
        yield Crew(pipes)
    finally:
        for pipe in pipes:
            pipe.close()
        for process in processes:
            process.join(10)
            if process.is_alive():
                process.kill()


def _work(pipe: Connection[Answer, tuple[str, float, Question]], testbed: Testbed) -> None:
    draws: dict[str, Draw] = {}
    memory: dict[str, int] = {}
    with ExitStack() as stack, suppress(EOFError):
        while True:
            name, seconds, what = pipe.recv()
            if name not in draws:
                if what == "memory":
                    with suppress(Exception), PEERS[name].open(testbed) as draw:
                        draw()  # which imports what it needs: that counts for neither side
                    memory[name] = -_own_memory()
                draws[name] = stack.enter_context(PEERS[name].open(testbed))
                with suppress(Exception):  # a deadlock of two clients, say
                    draws[name]()
                if what == "memory":
                    memory[name] += _own_memory()
            draw = draws[name]
            if what == "rate":
                pipe.send([(0.0, rate_of(draw, seconds, PEERS[name].batch))])
            elif what == "draws":
                pipe.send(draws_of(draw, seconds, time.monotonic))
            else:
                pipe.send([(0.0, memory[name])])


def _own_memory() -> int:
    """The bytes that this process shares with no other one."""
    gc.collect()
    return int(psutil.Process().memory_full_info().uss)
