"""Taking a ticket server away and bringing it back, in a way that its clients cannot tell from real."""

from __future__ import annotations

import contextlib
import select
import socket
import socketserver
import threading
from pathlib import Path
from typing import Any, Protocol

from sqlalchemy import URL

__all__ = ["CutLine", "MovedFile", "Outage", "outage_of"]


class Outage(Protocol):
    """A ticket server that can be taken away.

    Attributes:
        url: where its clients find it.
        how: what happens when it is taken away, for the screen.
    """

    url: URL
    how: str

    @property
    def on(self) -> bool:
        """Whether it is away."""
        ...

    def begin(self) -> None:
        """Take the server away."""

    def end(self) -> None:
        """Bring it back, as it was; nothing when it is there."""

    def close(self) -> None:
        """Leave nothing behind."""


def outage_of(url: URL) -> Outage:
    """The outage that can be arranged for the server at ``url``."""
    return MovedFile(url) if url.get_backend_name() == "sqlite" else CutLine(url)


class MovedFile:
    """A SQLite file is moved away, and a folder put in its place: no connection can write to it."""

    def __init__(self, url: URL) -> None:
        self.url = url
        self.how = "its file was moved away"
        self._file = Path(url.database or "")
        self._away = self._file.with_name(self._file.name + ".away")

    @property
    def on(self) -> bool:
        return self._away.exists()

    def begin(self) -> None:
        self._file.rename(self._away)
        self._file.mkdir()

    def end(self) -> None:
        if self.on:
            self._file.rmdir()
            self._away.rename(self._file)

    def close(self) -> None:
        self.end()


class CutLine:
    """A server behind a relay on loopback, whose line is cut: the server itself never notices."""

    def __init__(self, url: URL) -> None:
        self.how, self.on = "the line to it was cut", False
        self._target = (url.host or "127.0.0.1", url.port or _default_port(url))
        self._relay = _Relay(("127.0.0.1", 0), self._target)
        self.url = url.set(host="127.0.0.1", port=self._relay.server_address[1])

    def begin(self) -> None:
        self._relay.cut()
        self.on = True

    def end(self) -> None:
        if self.on:
            self._relay = _Relay(("127.0.0.1", self.url.port or 0), self._target)
            self.on = False

    def close(self) -> None:
        self._relay.cut()


def _default_port(url: URL) -> int:
    return 5432 if url.get_backend_name() == "postgresql" else 3306


class _Relay(socketserver.ThreadingTCPServer):
    """Passes on, in both directions, what comes in."""

    allow_reuse_address = True
    daemon_threads = True

    def __init__(self, address: tuple[str, int], target: tuple[str, int]) -> None:
        super().__init__(address, _Line)
        self.target = target
        self.lines: set[socket.socket] = set()
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()

    def cut(self) -> None:
        """Refuse new connections, and end those that are open."""
        self.shutdown()
        self.server_close()
        for line in list(self.lines):
            with contextlib.suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)

    def process_request(self, request: Any, client_address: Any) -> None:
        self.lines.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self.lines.discard(request)
        super().shutdown_request(request)


class _Line(socketserver.BaseRequestHandler):
    """One connection."""

    request: socket.socket

    def handle(self) -> None:
        assert isinstance(self.server, _Relay)
        with contextlib.suppress(OSError), socket.create_connection(self.server.target) as far:
            ends = {self.request: far, far: self.request}
            for end in ends:
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while self._pass_on(ends):
                pass

    @staticmethod
    def _pass_on(ends: dict[socket.socket, socket.socket]) -> bool:
        for end in select.select(list(ends), [], [])[0]:
            data = end.recv(65536)
            if not data:
                return False
            ends[end].sendall(data)
        return True
