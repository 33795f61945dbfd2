"""A network between a client and a server of this machine: each reply comes some time later.

The chaos tests' proxy sleeps in asyncio, to the millisecond, and before each piece of a reply. This one has a
clock of microseconds, and lets what follows travel behind what was sent before it, as a wire does.
"""

from __future__ import annotations

import heapq
import itertools
import multiprocessing
import select
import socket
import time
from contextlib import suppress
from multiprocessing.connection import Connection

from typing_extensions import Self

__all__ = ["Delay"]

#: ``select()``, whose time-out is exact to the microsecond, knows no more sockets.
MOST = 1000


class Delay:
    """A relay to one port, in a process of its own.

    Args:
        target: the port that it leads to.
        seconds: how much later each reply comes.
        host: the target's.

    Attributes:
        port: where clients find it.
    """

    def __init__(self, target: int, seconds: float, *, host: str = "127.0.0.1") -> None:
        context = multiprocessing.get_context("forkserver")
        self._pipe, far = context.Pipe()
        self._process = context.Process(
            target=_serve, args=(far, host, target, seconds), daemon=True
        )
        self._process.start()
        far.close()
        self.port = int(self._pipe.recv())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pipe.close()
        self._process.join(5)
        if self._process.is_alive():
            self._process.kill()


class _Line:
    """What was sent in one direction, and when it is to arrive."""

    def __init__(self, source: socket.socket, sink: socket.socket, seconds: float) -> None:
        self.source, self.sink, self.seconds = source, sink, seconds


def _serve(pipe: Connection[object, object], host: str, target: int, seconds: float) -> None:
    listener = socket.create_server(("127.0.0.1", 0), backlog=512)
    pipe.send(listener.getsockname()[1])
    lines: dict[socket.socket, _Line] = {}
    under_way: list[tuple[float, int, _Line, bytes]] = []
    number = itertools.count()
    sources: list[Connection[object, object] | socket.socket]
    while True:
        sources = [pipe, listener, *lines]
        wait = max(0.0, under_way[0][0] - time.monotonic()) if under_way else None
        ready, _, _ = select.select(sources, [], [], wait)
        if pipe in ready:  # its other end was closed
            return
        if listener in ready and len(lines) < MOST:
            near, _ = listener.accept()
            far = socket.create_connection((host, target))
            for end in (near, far):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            lines[near], lines[far] = _Line(near, far, 0.0), _Line(far, near, seconds)
        for source in ready:
            line = lines.get(source) if isinstance(source, socket.socket) else None
            if line is None:
                continue
            data = _read(line.source)
            if not data:
                lines.pop(line.source, None)
            if line.seconds:
                due = time.monotonic() + line.seconds
                heapq.heappush(under_way, (due, next(number), line, data))
            else:
                _deliver(line, data)
        while under_way and under_way[0][0] <= time.monotonic():
            _deliver(*heapq.heappop(under_way)[2:])


def _read(source: socket.socket) -> bytes:
    try:
        return source.recv(1 << 18)
    except OSError:
        return b""


def _deliver(line: _Line, data: bytes) -> None:
    with suppress(OSError):
        if data:
            line.sink.sendall(data)
        else:
            line.sink.shutdown(socket.SHUT_WR)
