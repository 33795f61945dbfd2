"""What a model of a database server and the world around it know of each other.

A model is a synchronous state machine. It has no thread, no clock and no randomness of its own, and holds all of
its state in plain Python objects. So the same model runs in the simulation in virtual time, and under real threads
beside a real server.

* **The server's side.** `Server.connect` lets a client in and returns a `Session`. `Session.handle` does one request
  to its end and returns its answer. One request of a session runs at a time; requests of several sessions of a
  server take turns: control passes to another one only within `Runtime.wait_until` and `Runtime.sleep`, so that the
  code between two waits is atomic. A statement that waits for a lock puts itself into the model's own queue and
  calls ``runtime.wait_until(lambda: self.is_granted or self.is_killed, timeout)``; a client that gives a lock up grants it
  to the first of that queue and calls ``runtime.notify()``.
* **The client's side.** A model's DBAPI module gets a `Network`. Its ``connect(host=...)`` calls `Network.connect`, and
  ``cursor.execute`` calls `Channel.call`. Its connections keep their channel in ``channel``. Requests and answers are any objects; the network looks into none. They
  share no mutable state between both sides. The DBAPI module turns `ServerError`, `ConnectionLost` and `AnswerTimeout` into
  its driver's errors.
* **The world** decides how long a request and its answer travel, whether they arrive, and what a client sees of a
  server that dies. A request that has arrived is done to its end even if its client is dead. The answer may be lost.
  `Session.close` is called once, when the server learns that its client has gone, and never while `handle` runs.
* Seconds are floats, and ``now()`` is the server's own clock. No model calls ``time``, ``threading`` or ``random``, no
  model goes through a set of objects that have no order (their hashes differ from run to run), and none relies on
  ``__del__``.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Protocol

__all__ = [
    "AnswerTimeout",
    "Channel",
    "ConnectionLost",
    "ConnectionRefused",
    "Network",
    "Runtime",
    "Server",
    "ServerError",
    "Session",
]


class ServerError(Exception):
    """What a server answers in place of a result.

    Args:
        code: its number (MySQL) or its SQLSTATE (PostgreSQL).
        message: its text.
    """

    def __init__(self, code: int | str, message: str) -> None:
        super().__init__(code, message)
        self.code, self.message = code, message


class ConnectionLost(Exception):
    """The connection has ended: a request may have been done, and there is no answer.

    A client gets it from `Network.connect` and `Channel.call`. A `Session` raises it where the server hangs up
    without an answer: it was killed, or the server dies.
    """


class ConnectionRefused(ConnectionLost):
    """Nobody listens at the address."""


class AnswerTimeout(Exception):
    """Nothing came within the client's time-out. The connection is of no more use, and the client closes it."""


class Runtime(Protocol):
    """Time, waiting and randomness for the model of one server."""

    @property
    def random(self) -> Random:
        """The one source of randomness."""
        ...

    def now(self) -> float:
        """Seconds since 1970 by the server's clock."""
        ...

    def wait_until(self, condition: Callable[[], bool], timeout: float) -> bool:
        """Let other sessions of this server go on until a condition holds.

        Args:
            condition: without side effects; looked at now and after each `notify`.
            timeout: seconds; infinity is allowed.

        Returns:
            Whether it holds; False once the time is over.
        """
        ...

    def notify(self) -> None:
        """Some state has changed: look at the conditions again, in the order in which their waits began."""
        ...

    def sleep(self, seconds: float) -> None:
        """Take so long for work that holds what is held: a flush to the disk."""
        ...


class Session(Protocol):
    """One connection, as its server sees it."""

    def handle(self, request: object) -> object:
        """Do one request, and return its answer.

        Raises:
            ServerError: that is the answer.
            ConnectionLost: the server hangs up without one.
        """
        ...

    def close(self) -> None:
        """The client has gone: roll back, release what is held."""
        ...


class Server(Protocol):
    """The model of one server, which outlives its starts."""

    def connect(self, request: object, hang_up: Callable[[], None]) -> Session:
        """Let a client in.

        Args:
            request: what the client's DBAPI module has sent: user, database, flags.
            hang_up: ends the connection from the server's side, also between two requests, as KILL does. The
                session's `handle`, where one waits, then raises `ConnectionLost` by itself.

        Raises:
            ServerError: it does not let the client in: too many connections, wrong password.
        """
        ...

    def stop(self, *, is_crash: bool) -> None:
        """End all sessions without `Session.close`; their waits raise `ConnectionLost`.

        Args:
            is_crash: whether what was not durable yet is lost.
        """
        ...

    def start(self) -> None:
        """Start with what is durable: a new uptime, and whatever this version's restart does to its counters."""
        ...

    def image(self) -> object:
        """A copy of what is durable now, for `restore`; other code does not look into it."""
        ...

    def restore(self, image: object) -> None:
        """Take an older copy for its data. Called while it is stopped."""
        ...


class Channel(Protocol):
    """One connection, as its client's DBAPI module sees it."""

    def call(self, request: object, timeout: float | None = None) -> object:
        """Send a request to `Session.handle`, and wait for its answer.

        Args:
            request: for the session.
            timeout: seconds without an answer; None waits for ever.

        Raises:
            ServerError: as the server answered.
            ConnectionLost: the connection has ended, from whichever side, before or while it was used.
            AnswerTimeout: nothing came in time.
        """
        ...

    def close(self) -> None:
        """End the connection, without waiting. To do so twice does no harm."""
        ...


class Network(Protocol):
    """How a client's DBAPI module reaches the server behind an address."""

    def connect(
        self, host: str, port: int | None, request: object, timeout: float | None = None
    ) -> Channel:
        """Open a connection, and wait until `Server.connect` has let it in.

        Args:
            host: of the URL.
            port: of the URL; None where it says nothing.
            request: for `Server.connect`.
            timeout: seconds for all of it; None waits for ever.

        Raises:
            ServerError: the server refused it.
            ConnectionLost: nobody listens there, or the connection was lost.
            AnswerTimeout: nothing came in time.
        """
        ...
