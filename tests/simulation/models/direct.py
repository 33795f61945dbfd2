"""Models without the simulated world: under real threads, in real time, over a network that loses nothing."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from random import Random

from tests.simulation.runtime import (
    Channel,
    ConnectionLost,
    ConnectionRefused,
    Server,
    Session,
)

__all__ = ["DirectNetwork", "ThreadRuntime"]


class ThreadRuntime:
    """Real time, and one thread at a time within each server.

    Args:
        seed: of the randomness.

    Attributes:
        random: the randomness.
        lock: held by the thread that runs.
    """

    def __init__(self, seed: int = 0) -> None:
        self.random = Random(seed)
        self.lock = threading.Condition()

    def now(self) -> float:
        """Seconds since 1970."""
        return time.time()

    def wait_until(self, condition: Callable[[], bool], timeout: float) -> bool:
        """Let other threads go on until a condition holds."""
        return self.lock.wait_for(condition, min(timeout, threading.TIMEOUT_MAX))

    def notify(self) -> None:
        """Have all conditions looked at again."""
        with self.lock:
            self.lock.notify_all()

    def sleep(self, seconds: float) -> None:
        """Let other threads go on for so long."""
        self.lock.wait_for(lambda: False, seconds)


class DirectNetwork:
    """A network without distances: each request is done by the client's own thread.

    Args:
        servers: by host and port.
    """

    def __init__(self, servers: dict[tuple[str, int | None], tuple[Server, ThreadRuntime]]) -> None:
        self.servers = servers

    def connect(
        self, host: str, port: int | None, request: object, timeout: float | None = None
    ) -> Channel:
        """Open a connection."""
        if (host, port) not in self.servers:
            raise ConnectionRefused(f"nobody listens at {host}:{port}")
        server, runtime = self.servers[host, port]
        channel = _DirectChannel(runtime)
        with runtime.lock:
            channel.session = server.connect(request, channel.hang_up)
        return channel


class _DirectChannel:
    session: Session

    def __init__(self, runtime: ThreadRuntime) -> None:
        self._runtime, self._is_over = runtime, False

    def hang_up(self) -> None:
        """The server has ended the connection."""
        self._is_over = True

    def call(self, request: object, timeout: float | None = None) -> object:
        """Have a request done."""
        with self._runtime.lock:
            if self._is_over:
                raise ConnectionLost("the connection has ended")
            return self.session.handle(request)

    def close(self) -> None:
        """End the connection."""
        with self._runtime.lock:
            if not self._is_over:
                self._is_over = True
                self.session.close()
