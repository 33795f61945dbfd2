"""A server that is a process of this machine."""

from __future__ import annotations

import contextlib
import os
import pwd
import signal
import subprocess
import sys
import time
from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path

import psutil

from tests.support.servers.base import Server, ServerFailed, ServerMissing, wait_until
from tests.support.servers.folders import Folder
from tests.support.servers.ports import free_port
from tests.support.servers.reaper import Reaper

_STOP_SECONDS = 60.0
# With its children, which may be frozen and would not notice.
_KILL_TREE = """\
import sys, psutil
server = psutil.Process(int(sys.argv[1]))
for process in [server, *server.children(recursive=True)]:
    process.kill()
"""


class ProcessServer(Server):
    """A server started from its program on a folder of its own.

    Attributes:
        port: Its TCP port, the same after each start.
        folder: Where its data, socket and log are.
        environment: What its next start has in its environment beside this process's own.
    """

    stop_signal = signal.SIGTERM

    def __init__(self, reaper: Reaper, owner: str | None = None) -> None:
        self._reaper = reaper
        self._owner = owner
        self._folder = Folder(reaper, owner)
        self._process: subprocess.Popen[bytes] | None = None
        self._order = 0
        self._frozen = False
        self.environment: dict[str, str] = {}
        self.port = free_port()

    @property
    def folder(self) -> Path:
        """Where its data, socket and log are."""
        return self._folder.path

    @property
    def pid(self) -> int:
        """The process id.

        Raises:
            ServerFailed: It does not run.
        """
        if self._process is None or self._process.poll() is not None:
            raise ServerFailed(f"this {self.kind} server does not run")
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def frozen(self) -> bool:
        return self._frozen

    @abstractmethod
    def command(self) -> list[str]:
        """Return the program and its options."""

    @abstractmethod
    def answers(self) -> bool:
        """Return whether it takes connections."""

    def start(self) -> None:
        if self.alive:
            return
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self.command(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **self.environment},
                start_new_session=True,
                user=self._owner,
            )
        self._order = self._reaper.promise(
            [sys.executable, "-c", _KILL_TREE, str(self._process.pid)]
        )
        wait_until(self.answers, self._death)

    def stop(self) -> None:
        self._end(self.stop_signal)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def freeze(self) -> None:
        # From the parent down, so that it cannot start another child meanwhile.
        for process in self._tree():
            process.suspend()
        self._frozen = True

    def thaw(self) -> None:
        for process in reversed(self._tree()):
            process.resume()
        self._frozen = False

    def close(self) -> None:
        if self.alive:
            self.kill()
        self._folder.remove()

    def promise(self, command: Sequence[str]) -> int:
        return self._reaper.promise(command)

    def withdraw(self, order: int) -> None:
        self._reaper.withdraw(order)

    @property
    def _log(self) -> Path:
        return self.folder / "log"

    def _tree(self) -> list[psutil.Process]:
        parent = psutil.Process(self.pid)
        return [parent, *parent.children(recursive=True)]

    def _end(self, number: signal.Signals) -> None:
        assert self._process is not None
        parent, *children = self._tree()
        parent.send_signal(number)
        if number == signal.SIGKILL:
            for child in children:
                _kill_if_there(child)
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            raise ServerFailed(f"{self.kind} did not stop: {self._last_words()}") from None
        self._reaper.withdraw(self._order)
        self._frozen = False

    def _death(self) -> str | None:
        if self.alive:
            return None
        return f"{self.kind} ended while starting: {self._last_words()}"

    def _last_words(self) -> str:
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-15:])


def _kill_if_there(process: psutil.Process) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        process.kill()
    while _runs(process):
        time.sleep(0.01)


def _runs(process: psutil.Process) -> bool:
    # An orphan whose new parent reaps nothing stays a zombie for good.
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def unprivileged(user: str, program: str) -> str | None:
    """Whom to run a program as that refuses to be root's; None where nobody is root.

    What rsync is sent by root, it receives as nobody: that is why Galera does.

    Raises:
        ServerMissing: there is no such user.
    """
    if os.geteuid() != 0:
        return None
    for name in (user, "nobody"):
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name).pw_name
    raise ServerMissing(f"{program} does not run as root: add a user named {user}")
