"""A relay to a server that forgets connections, as a firewall does with idle ones."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

__all__ = ["Relay", "relay_to"]


class Relay:
    """What connects to `port` is connected to the target.

    Attributes:
        port: where clients find it.
        deaf: whether it swallows all that is sent.
        down: whether it ends new connections at once; those that there are end with `hang_up`.
        lines: how many connections there were.
    """

    def __init__(self, target: int) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        self.port: int = self._listener.getsockname()[1]
        self._ends: list[socket.socket] = []
        self.lines, self._forgotten = 0, -1
        self.deaf = self.down = False
        threading.Thread(target=self._accept, daemon=True).start()

    def forget(self) -> None:
        """Swallow without a word what is sent on any connection that there is now."""
        self._forgotten = self.lines - 1

    def hang_up(self) -> None:
        """End the connections that there are."""
        for end in self._ends:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End all connections, and let nobody in."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self.hang_up()
        for end in (self._listener, *self._ends):
            end.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                if self.down:
                    self.lines += 1
                    near.close()
                    continue
                far = socket.create_connection(("127.0.0.1", self._target))
                self._ends += near, far
                number, self.lines = self.lines, self.lines + 1
                for ends in ((near, far), (far, near)):
                    threading.Thread(target=self._pump, args=(number, *ends), daemon=True).start()

    def _pump(self, number: int, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                if number > self._forgotten and not self.deaf:
                    sink.sendall(data)
        if number > self._forgotten:  # else the other end is not told that this one has gone
            with suppress(OSError):
                sink.shutdown(socket.SHUT_RDWR)


@contextmanager
def relay_to(target: int | None) -> Iterator[Relay]:
    """A relay for a while."""
    assert target is not None
    relay = Relay(target)
    try:
        yield relay
    finally:
        relay.close()
