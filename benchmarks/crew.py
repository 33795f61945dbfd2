"""Processes that draw at once, started once for all rounds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing.connection import Connection

from benchmarks.harness import rate_of
from benchmarks.peers import PEERS, Draw
from benchmarks.place import Place
from tests.drawing.tools import from_one_start

__all__ = ["Crew", "crew"]


class Crew:
    """Some processes, each with its own connections."""

    def __init__(self, pipes: list[Connection[object, object]]) -> None:
        self._pipes = pipes

    def rate(self, peer: str, processes: int, seconds: float) -> float:
        """The sum of the rates at which the first so many processes drew from a peer at once."""
        for pipe in self._pipes[:processes]:
            pipe.send((peer, seconds))
        return sum(float(str(pipe.recv())) for pipe in self._pipes[:processes])


@contextmanager
def crew(place: Place, size: int) -> Iterator[Crew]:
    """So many processes for a while."""
    context = from_one_start()
    pipes: list[Connection[object, object]] = []
    processes = []
    for _ in range(size):
        near, far = context.Pipe()
        process = context.Process(target=_work, args=(far, place), daemon=True)
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


def _work(pipe: Connection[float, tuple[str, float]], place: Place) -> None:
    draws: dict[str, Draw] = {}
    with ExitStack() as stack, suppress(EOFError):
        while True:
            name, seconds = pipe.recv()
            if name not in draws:
                draws[name] = stack.enter_context(PEERS[name].open(place))
                with suppress(Exception):  # a deadlock of two clients, say
                    draws[name]()
            pipe.send(rate_of(draws[name], seconds, PEERS[name].batch))
