"""What every test server can do, whether it is a local process or a container."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import ClassVar

from sqlalchemy import URL

from sqla_tickets.dialects import Role

USER = "tickets"
# Unlike any other word of the tests, so that a test may search messages and logs for it.
PASSWORD = "hush-4711"
# Longer than any healthy start on a loaded machine; only a broken one waits it out.
START_SECONDS = 90.0


class ServerMissing(Exception):
    """This machine cannot start such a server; the message says what to install."""


class ServerFailed(Exception):
    """A server that should have started, or stopped, did not."""


class Server(ABC):
    """One database server of the tests' own."""

    kind: ClassVar[str]
    default_driver: ClassVar[str]
    root: ClassVar[str]
    host: str = "127.0.0.1"
    port: int

    @abstractmethod
    def start(self) -> None:
        """Start it, for the first time or again on the same data, and wait until it answers."""

    @abstractmethod
    def stop(self) -> None:
        """Shut it down cleanly."""

    @abstractmethod
    def kill(self) -> None:
        """End it as a power cut would: SIGKILL, nothing flushed, nobody told."""

    @abstractmethod
    def freeze(self) -> None:
        """Make it hang: connections stay open and nothing answers."""

    @abstractmethod
    def thaw(self) -> None:
        """Let a frozen server go on."""

    @abstractmethod
    def close(self) -> None:
        """End it and throw its data away."""

    @property
    @abstractmethod
    def alive(self) -> bool:
        """Whether it runs; a frozen server does."""

    @property
    @abstractmethod
    def frozen(self) -> bool:
        """Whether `freeze` was called and `thaw` was not."""

    @abstractmethod
    def promise(self, command: Sequence[str]) -> int:
        """Have a command run when the tests end without `withdraw`, before its data is removed."""

    @abstractmethod
    def withdraw(self, order: int) -> None:
        """Take back what `promise` returned."""

    @abstractmethod
    def create_database(self, name: str, role: Role | None = None) -> None:
        """Create an empty database.

        Args:
            name: Of the database.
            role: What the user of `url` may do there: `None`, as its owner, everything.
        """

    @abstractmethod
    def drop_database(self, name: str) -> None:
        """Drop a database, and with it whatever connections a test left open to it."""

    def url(
        self, database: str | None = None, *, driver: str | None = None, user: str = USER
    ) -> URL:
        """Return the address of one of its databases.

        Args:
            database: The database; `None` for none in particular.
            driver: A driver (`"asyncmy"`) or a whole drivername (`"mariadb+asyncmy"`).
            user: `USER`, or `root` of this kind of server for the administrator.
        """
        drivername = driver or self.default_driver
        if "+" not in drivername:
            drivername = f"{self.default_driver.split('+')[0]}+{drivername}"
        return URL.create(drivername, user, PASSWORD, self.host, self.port, database)

    def revive(self) -> None:
        """Bring it back to running, whatever a test did to it."""
        if self.frozen:
            self.thaw()
        if not self.alive:
            self.start()


def wait_until(answers: Callable[[], bool], failed: Callable[[], str | None]) -> None:
    """Wait until a starting server answers.

    Args:
        answers: Whether it does.
        failed: Why it never will, if that is already certain.

    Raises:
        ServerFailed: It gave up, or the time is over.
    """
    deadline = time.monotonic() + START_SECONDS
    while not answers():
        reason = failed()
        if reason is None and time.monotonic() > deadline:
            reason = f"no answer within {START_SECONDS:.0f} seconds"
        if reason is not None:
            raise ServerFailed(reason)
        time.sleep(0.05)
