"""HAProxy in front of ticket servers, as a local process."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.servers.base import ServerFailed, wait_until
from tests.support.servers.binaries import find_program
from tests.support.servers.folders import Folder
from tests.support.servers.ports import free_port
from tests.support.servers.reaper import Reaper

HOST = "127.0.0.1"
# A user without a password and without a right: the check says hello and goes.
CHECKER = "haproxy"
#: What docs/operate/deploy.md advises for a node of a Galera cluster; HAProxy gives it the addresses of both sides.
GALERA_CHECK = """\
#!/bin/sh
found=$(mariadb --no-defaults --host="$3" --port="$4" --user=haproxy --connect-timeout=1 \\
    --batch --skip-column-names -e "SHOW GLOBAL STATUS LIKE 'wsrep_ready'")
test "${found#*ready}" = "$(printf '\\tON')"
"""
_GENERAL = """\
global
    maxconn 1000
    external-check
    insecure-fork-wanted
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
        is_galera: whether they are nodes of a Galera cluster, which are asked whether they are ready.
        port: where clients find it.
    """

    targets: Sequence[int]
    is_balanced: bool = False
    is_galera: bool = False
    port: int = field(default_factory=free_port)

    def lines(self, script: Path) -> list[str]:
        """Its section of the configuration.

        Args:
            script: that checks a node of a Galera cluster.
        """
        check = [f"    option mysql-check user {CHECKER}"]
        if self.is_galera:
            path = os.environ["PATH"]
            check = [
                "    option external-check",
                f'    external-check path "{path}"',
                f"    external-check command {script}",
            ]
        lines = [
            f"listen front{self.port}",
            f"    bind {HOST}:{self.port}",
            "    balance roundrobin" if self.is_balanced else "    balance first",
            *check,
            # a connection to a server that is out would keep its client there
            "    default-server check inter 300ms fall 2 rise 2 on-marked-down shutdown-sessions",
        ]
        for number, target in enumerate(self.targets):
            backup = "" if self.is_balanced or number == 0 else " backup"
            lines.append(f"    server s{number} {HOST}:{target}{backup}")
        return lines


class HAProxy:
    """A process with some fronts."""

    def __init__(self, reaper: Reaper, fronts: Sequence[Front]) -> None:
        program = find_program(["haproxy"], "install HAProxy (Debian: apt-get install haproxy)")
        self._reaper, self._folder = reaper, Folder(reaper)
        path, log = self._folder.path / "haproxy.cfg", self._folder.path / "log"
        script = self._folder.path / "galera-ready"
        script.write_text(GALERA_CHECK)
        script.chmod(0o755)
        lines = [line for front in fronts for line in front.lines(script)]
        path.write_text(_GENERAL + "\n".join(lines) + "\n")
        with log.open("wb") as file:
            self._process = subprocess.Popen(
                [str(program), "-db", "-f", str(path)],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )
        self._order = reaper.promise(["kill", "-9", str(self._process.pid)])
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
        self._reaper.withdraw(self._order)
        self._folder.remove()


def _listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection((HOST, port), timeout=5):
        return True
    return False
