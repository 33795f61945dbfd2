"""Processes that draw at once, started once for all rounds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import chain
from multiprocessing.connection import Connection

from benchmarks.harness import rate_of, waits_of
from benchmarks.peers import PEERS, Draw
from benchmarks.testbed import Testbed
from tests.support.draws import from_one_start

__all__ = ["Crew", "crew"]


class Crew:
    """Some processes, each with its own connections."""

    def __init__(self, pipes: list[Connection[tuple[str, float, bool], list[float]]]) -> None:
        self._pipes = pipes

    def rate(self, peer: str, processes: int, seconds: float) -> float:
        """The sum of the rates at which the first so many processes drew from a peer at once."""
        return sum(rate for [rate] in self._ask(peer, processes, seconds, is_timed=False))

    def waits(self, peer: str, processes: int, seconds: float) -> list[float]:
        """What each draw of the first so many processes took, in seconds, the shortest first."""
        return sorted(chain.from_iterable(self._ask(peer, processes, seconds, is_timed=True)))

    def _ask(
        self, peer: str, processes: int, seconds: float, *, is_timed: bool
    ) -> list[list[float]]:
        for pipe in self._pipes[:processes]:
            pipe.send((peer, seconds, is_timed))
        return [pipe.recv() for pipe in self._pipes[:processes]]


@contextmanager
def crew(testbed: Testbed, size: int) -> Iterator[Crew]:
    """So many processes for a while."""
    context = from_one_start()
    pipes: list[Connection[tuple[str, float, bool], list[float]]] = []
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


def _work(pipe: Connection[list[float], tuple[str, float, bool]], testbed: Testbed) -> None:
    draws: dict[str, Draw] = {}
    with ExitStack() as stack, suppress(EOFError):
        while True:
            name, seconds, is_timed = pipe.recv()
            if name not in draws:
                draws[name] = stack.enter_context(PEERS[name].open(testbed))
                with suppress(Exception):  # a deadlock of two clients, say
                    draws[name]()
            draw = draws[name]
            pipe.send(
                waits_of(draw, seconds) if is_timed else [rate_of(draw, seconds, PEERS[name].batch)]
            )
