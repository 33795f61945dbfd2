"""Outages of a ticket server, which its clients cannot tell from real ones."""

from __future__ import annotations

import contextlib
import select
import socket
import socketserver
import threading
from pathlib import Path
from typing import Any, Protocol

from sqlalchemy import URL

__all__ = ["ClosedConnections", "MovedFile", "Outage", "outage_of"]


class Outage(Protocol):
    """A ticket server that can fail.

    Attributes:
        url: where its clients find it.
        how: what the outage does, for the screen.
    """

    url: URL
    how: str

    @property
    def on(self) -> bool:
        """Whether the server is down."""
        ...

    def begin(self) -> None:
        """Begin the outage."""

    def end(self) -> None:
        """End the outage, if there is one."""

    def close(self) -> None:
        """Remove whatever the outage needed."""


def outage_of(url: URL) -> Outage:
    """The kind of outage that is possible for the server at ``url``."""
    return MovedFile(url) if url.get_backend_name() == "sqlite" else ClosedConnections(url)


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


class ClosedConnections:
    """A server behind a TCP proxy on loopback, which closes its connections: the server keeps running."""

    def __init__(self, url: URL) -> None:
        self.how, self.on = "its connections were closed", False
        self._target = (url.host or "127.0.0.1", url.port or _default_port(url))
        self._proxy = _Proxy(("127.0.0.1", 0), self._target)
        self.url = url.set(host="127.0.0.1", port=self._proxy.server_address[1])

    def begin(self) -> None:
        self._proxy.close_all()
        self.on = True

    def end(self) -> None:
        if self.on:
            self._proxy = _Proxy(("127.0.0.1", self.url.port or 0), self._target)
            self.on = False

    def close(self) -> None:
        self._proxy.close_all()


def _default_port(url: URL) -> int:
    return 5432 if url.get_backend_name() == "postgresql" else 3306


class _Proxy(socketserver.ThreadingTCPServer):
    """Forwards bytes in both directions."""

    allow_reuse_address = True
    daemon_threads = True

    def __init__(self, address: tuple[str, int], target: tuple[str, int]) -> None:
        super().__init__(address, _Connection)
        self.target = target
        self.connections: set[socket.socket] = set()
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()

    def close_all(self) -> None:
        """Refuse new connections, and close the open ones."""
        self.shutdown()
        self.server_close()
        for connection in list(self.connections):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def process_request(self, request: Any, client_address: Any) -> None:
        self.connections.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self.connections.discard(request)
        super().shutdown_request(request)


class _Connection(socketserver.BaseRequestHandler):
    """One connection."""

    request: socket.socket

    def handle(self) -> None:
        assert isinstance(self.server, _Proxy)
        with contextlib.suppress(OSError), socket.create_connection(self.server.target) as far:
            ends = {self.request: far, far: self.request}
            for end in ends:
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while self._forward(ends):
                pass

    @staticmethod
    def _forward(ends: dict[socket.socket, socket.socket]) -> bool:
        for end in select.select(list(ends), [], [])[0]:
            data = end.recv(65536)
            if not data:
                return False
            ends[end].sendall(data)
        return True
