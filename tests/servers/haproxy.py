"""HAProxy in front of ticket servers, as a local process."""

from __future__ import annotations

import contextlib
import socket
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.servers.base import ServerFailed, wait_until
from tests.servers.binaries import find_program
from tests.servers.folders import Folder
from tests.servers.guardian import Guardian
from tests.servers.ports import free_port

HOST = "127.0.0.1"
# A user without a password and without a right: the check says hello and goes.
CHECKER = "haproxy"
_GENERAL = """\
global
    maxconn 1000
defaults
    mode tcp
    timeout connect 2s
    timeout client 5m
    timeout server 5m
    timeout check 2s
    option redispatch
"""


@dataclass(frozen=True)
class Front:
    """One port for clients.

    Attributes:
        targets: the ports of the servers behind it. The first takes all; the others, in their order,
            what the ones before cannot.
        is_balanced: whether they take turns instead, connection by connection.
        port: where clients find it.
    """

    targets: Sequence[int]
    is_balanced: bool = False
    port: int = field(default_factory=free_port)

    def lines(self) -> list[str]:
        """Its section of the configuration."""
        lines = [
            f"listen front{self.port}",
            f"    bind {HOST}:{self.port}",
            "    balance roundrobin" if self.is_balanced else "    balance first",
            f"    option mysql-check user {CHECKER}",
            # a connection to a server that is out would keep its client there
            "    default-server check inter 300ms fall 2 rise 2 on-marked-down shutdown-sessions",
        ]
        for number, target in enumerate(self.targets):
            backup = "" if self.is_balanced or number == 0 else " backup"
            lines.append(f"    server s{number} {HOST}:{target}{backup}")
        return lines


class HAProxy:
    """A process with some fronts."""

    def __init__(self, guardian: Guardian, fronts: Sequence[Front]) -> None:
        program = find_program(["haproxy"], "install HAProxy (Debian: apt-get install haproxy)")
        self._guardian, self._folder = guardian, Folder(guardian)
        path, log = self._folder.path / "haproxy.cfg", self._folder.path / "log"
        path.write_text(_GENERAL + "\n".join(line for f in fronts for line in f.lines()) + "\n")
        with log.open("wb") as file:
            self._process = subprocess.Popen(
                [str(program), "-db", "-f", str(path)],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )
        self._order = guardian.promise(["kill", "-9", str(self._process.pid)])
        try:
            wait_until(
                lambda: all(_listens(front.port) for front in fronts),
                lambda: log.read_text() if self._process.poll() is not None else None,
            )
        except ServerFailed:
            self.close()
            raise

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait()
        self._guardian.withdraw(self._order)
        self._folder.remove()


def _listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection((HOST, port), timeout=5):
        return True
    return False
