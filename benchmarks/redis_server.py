"""Redis as a local process, as durable as the databases that it is compared with."""

from __future__ import annotations

import socket

from sqla_tickets.dialects import Role
from tests.support.servers.binaries import find_program
from tests.support.servers.process import ProcessServer
from tests.support.servers.reaper import Reaper

__all__ = ["Redis"]


class Redis(ProcessServer):
    """A Redis that has each command on disk before it answers (``appendfsync always``)."""

    kind = "redis"
    default_driver = "redis"
    root = "default"

    def __init__(self, reaper: Reaper) -> None:
        hint = "install it (Debian: apt-get install redis-server)"
        self._program = find_program(["redis-server", "valkey-server"], hint)
        super().__init__(reaper)

    def command(self) -> list[str]:
        settings = {
            "port": str(self.port),
            "bind": self.host,
            "dir": str(self.folder),
            "appendonly": "yes",
            "appendfsync": "always",
            "save": "",
        }
        words = [word for name, value in settings.items() for word in (f"--{name}", value)]
        return [str(self._program), *words]

    def answers(self) -> bool:
        try:
            with socket.create_connection((self.host, self.port), timeout=1) as connection:
                connection.sendall(b"PING\r\n")
                return connection.recv(5) == b"+PONG"
        except OSError:
            return False

    def create_database(self, name: str, role: Role | None = None) -> None:
        """Redis has its databases from the start."""

    def drop_database(self, name: str) -> None:
        """They cannot be dropped."""
