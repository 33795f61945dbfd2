"""Random sequences of statements by several connections, and what a server, real or a model, makes of them.

A script is a list of steps. Each is a statement of one connection, or something that is done to the server. After each
step everybody has either got an answer or waits for somebody else, so that a script has one outcome.
"""

from __future__ import annotations

import functools
import re
import threading
import time
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, Final, NamedTuple, Protocol

import greenlet  # type: ignore[import-untyped]  # its stubs are a package of their own
import psycopg
import pymysql

from tests.simulation.models.drivers import PsycopgModule, PyMySQLModule
from tests.simulation.models.protocol import Login, Query
from tests.simulation.models.sessions import ModelServer
from tests.simulation.runtime import Channel, ConnectionLost, ConnectionRefused, Session

__all__ = [
    "Connect",
    "Event",
    "ModelPlayer",
    "Outcome",
    "Player",
    "RealPlayer",
    "Step",
    "StepRuntime",
    "Waits",
    "play",
    "shrunk",
]

#: What a connection got: its results, or its error's code.
Outcome = tuple[Any, ...]
#: Opens a connection of a DBAPI module, in autocommit.
Connect = Callable[[], Any]


class Step(NamedTuple):
    """One step.

    Attributes:
        connection: whose; the target of a KILL, or none of a restart (-1).
        text: the statement, or ``@`` and what is done: ``@kill``, ``@kill query``, ``@close``, ``@restart``,
            ``@crash``, ``@wait`` for all time-outs, ``@admin`` and a statement of the administrator.
    """

    connection: int
    text: str


class Event(NamedTuple):
    """What has happened at a step: a connection got an outcome; None says that it waits."""

    step: int
    connection: int
    outcome: Outcome | None


class Player(Protocol):
    """Plays steps on one server."""

    def send(self, connection: int, text: str) -> None:
        """Begin a statement; a connection that is not there yet is opened."""
        ...

    def settle(self) -> dict[int, Outcome]:
        """Wait until nobody is under way; the outcomes since the last time."""
        ...

    def is_busy(self, connection: int) -> bool:
        """Whether a statement of it has no outcome yet."""
        ...

    def act(self, connection: int, what: str) -> None:
        """Do something to the server, or to a connection."""
        ...

    def close(self) -> None:
        """End all connections."""
        ...


def play(steps: Sequence[Step], player: Player) -> list[Event]:
    """Play a script; statements of a connection that waits are left out."""
    events: list[Event] = []
    for number, step in enumerate(steps):
        if step.text.startswith("@"):
            player.act(step.connection, step.text)
        elif player.is_busy(step.connection):
            continue
        else:
            player.send(step.connection, step.text)
        found = player.settle()
        events += [Event(number, who, found[who]) for who in sorted(found)]
        if not step.text.startswith("@") and step.connection not in found:
            events.append(Event(number, step.connection, None))
    return events


def shrunk(
    steps: Sequence[Step], differs: Callable[[Sequence[Step]], bool], seconds: float
) -> list[Step]:
    """A shorter script that still shows a difference; the last step first, within a time."""
    short, end = list(steps), time.monotonic() + seconds
    for n in range(len(short) - 1, -1, -1):
        shorter = short[:n] + short[n + 1 :]
        if time.monotonic() < end and differs(shorter):
            short = shorter
    return short


# -- one statement


def outcome_of(connection: Any, text: str) -> Outcome:
    """Run a statement, or several in one packet: what each answers, and the error that ends them."""
    results: list[Any] = []
    try:
        with connection.cursor() as cursor:
            cursor.execute(text)
            while True:
                results.append(_result(cursor, text))
                if not cursor.nextset():
                    break
    except Exception as error:  # noqa: BLE001  # it is the outcome
        results.append(_error(error))
    return tuple(results)


_DEFINITIONS: Final = ("ALTER", "CREATE", "DROP", "TRUNCATE")


def _result(cursor: Any, text: str) -> Any:
    if text.startswith(_DEFINITIONS):
        return "done"  # how many rows were copied does not matter
    if cursor.description is None:
        # psycopg says -1 where nothing was counted
        return max(cursor.rowcount, 0), getattr(cursor, "lastrowid", None) or 0
    rows = [tuple(row) for row in cursor.fetchall()]
    if text.startswith("SHOW CREATE TABLE"):
        return [_shape(str(row[1])) for row in rows]
    return rows


def _shape(definition: str) -> str:
    """A definition without what the model leaves out: collations, the names and the layout of CHECKs."""
    definition = re.sub(
        r"CHARACTER SET \w+ |COLLATE \w+ ?|DEFAULT CHARSET=\w+ ?|COLLATE=\w+ ?", "", definition
    )
    definition = re.sub(r"(?:CONSTRAINT `\w+` )?CHECK \((.*)\)", "CHECK", definition)
    return " ".join(re.sub(r",?\s*CHECK", " CHECK", definition).split())


_LOST: Final = (2006, 2013, 1927, 1053, 2003)


def _error(error: Exception) -> Any:
    if isinstance(error, pymysql.err.MySQLError):
        code = error.args[0] if error.args else 0
        lost = code in _LOST or isinstance(error, pymysql.err.InterfaceError)
        return ("lost",) if lost else ("error", code)
    if isinstance(error, psycopg.Error):
        state = error.sqlstate
        return ("error", state) if state and state != "57P01" else ("lost",)
    if isinstance(error, (OSError, ConnectionLost)):
        return ("lost",)
    raise error


# -- a real server


class Waits(Protocol):
    """The connections that wait for a lock, by their numbers on the server."""

    def __call__(self) -> set[int]: ...


class _Worker:
    """A thread with a connection."""

    def __init__(self, connect: Connect) -> None:
        self.connection = connect()
        self.id = _id_of(self.connection)
        self.outcome: Outcome | None = None
        self.is_busy = False
        self._text = ""
        self._go = threading.Semaphore(0)
        threading.Thread(target=self._run, daemon=True).start()

    def send(self, text: str) -> None:
        self._text, self.is_busy, self.outcome = text, True, None
        self._go.release()

    def _run(self) -> None:
        while True:
            self._go.acquire()
            if not self._text:
                return
            self.outcome = outcome_of(self.connection, self._text)

    def close(self) -> None:
        self._text = ""
        self._go.release()


def _id_of(connection: Any) -> int:
    if hasattr(connection, "thread_id"):
        return int(connection.thread_id())
    return int(connection.info.backend_pid)


class RealPlayer:
    """Plays on a real server.

    Args:
        connect: opens a connection.
        waits: tells who waits for a lock.
        kill: ends a connection, or (True) its statement, by its number.
        restart: ends and starts the server; True for a crash.
        administer: sends a statement of the administrator.
        settled: seconds between two looks at those who wait, of which both have to see the same.
    """

    def __init__(
        self,
        connect: Connect,
        waits: Waits,
        kill: Callable[[int, bool], None],
        restart: Callable[[bool], None],
        administer: Callable[[str], None],
        settled: float = 0.002,
    ) -> None:
        self._connect, self._waits, self._kill, self._restart = connect, waits, kill, restart
        self._administer = administer
        self._settled = settled
        self._workers: dict[int, _Worker] = {}
        self._are_lost: list[int] = []

    def send(self, connection: int, text: str) -> None:
        if connection not in self._workers:
            self._workers[connection] = _Worker(self._connect)
        self._workers[connection].send(text)

    def is_busy(self, connection: int) -> bool:
        worker = self._workers.get(connection)
        return worker is not None and worker.is_busy

    def settle(self) -> dict[int, Outcome]:
        found: dict[int, Outcome] = {}
        seen = 0
        end = time.monotonic() + 20
        while True:
            for number, worker in list(self._workers.items()):
                if worker.is_busy and worker.outcome is not None:
                    # MySQL's clean stop interrupts a statement before it hangs up
                    lost = number in self._are_lost
                    worker.outcome = (("lost",),) if lost else worker.outcome
                    found[number], worker.is_busy, seen = worker.outcome, False, 0
                    if ("lost",) in worker.outcome:
                        self._workers.pop(number).close()
            busy = {worker.id for worker in self._workers.values() if worker.is_busy}
            if not busy or seen >= 2:
                self._are_lost.clear()
                return found
            time.sleep(self._settled if seen or not found else 0.001)
            seen = seen + 1 if busy <= self._waits() else 0
            if time.monotonic() > end:
                raise AssertionError(f"{busy} neither wait nor end")

    def act(self, connection: int, what: str) -> None:
        if what in ("@restart", "@crash"):
            self._restart(what == "@crash")
            self._are_lost = [n for n, w in self._workers.items() if w.is_busy]
            for worker in self._workers.values():
                if not worker.is_busy:
                    worker.close()
            self._workers = {n: w for n, w in self._workers.items() if w.is_busy}
            return
        if what.startswith("@admin "):
            self._administer(what.removeprefix("@admin "))
            return
        if what == "@wait":
            end = time.monotonic() + 20
            while any(w.is_busy and w.outcome is None for w in self._workers.values()):
                assert time.monotonic() < end
                time.sleep(0.01)
            return
        if connection not in self._workers:
            return
        worker = self._workers[connection]
        if what == "@close":
            if not worker.is_busy:
                self._workers.pop(connection).close()
                worker.connection.close()
                self._wait_until_gone(worker.id)
            return
        self._kill(worker.id, what == "@kill query")
        if what == "@kill" and not worker.is_busy:
            self._workers.pop(connection).close()
            self._wait_until_gone(worker.id)

    def _wait_until_gone(self, id_: int) -> None:
        """The server notices a moment later."""
        time.sleep(0.02)

    def close(self) -> None:
        for worker in self._workers.values():
            worker.close()
            if not worker.is_busy:
                worker.connection.close()
        self._workers.clear()


# -- a model


class StepRuntime:
    """Time that stands still, and turns that are given by hand."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.time = 1_700_000_000.0
        self.waiting: dict[greenlet.greenlet, tuple[Callable[[], bool], float]] = {}

    def now(self) -> float:
        """The time."""
        return self.time

    def wait_until(self, condition: Callable[[], bool], timeout: float) -> bool:
        """Go back to the player until the condition holds."""
        if condition():
            return True
        me = greenlet.getcurrent()
        self.waiting[me] = (condition, self.time + timeout)
        assert me.parent is not None
        me.parent.switch()
        return condition()

    def notify(self) -> None:
        """The player looks at all conditions after each step."""

    def sleep(self, seconds: float) -> None:
        """Go back to the player until the time has passed."""
        self.wait_until(lambda: False, seconds)

    def resume(self) -> None:
        """Resume the clients that can go on, one after the other, until none can."""
        while True:
            ready = next(
                (
                    who
                    for who, (condition, until) in self.waiting.items()
                    if condition() or self.time >= until
                ),
                None,
            )
            if ready is None:
                return
            del self.waiting[ready]
            ready.switch()

    def pass_time(self) -> None:
        """Go on to the next time-out, as long as there is one."""
        while self.waiting:
            self.time = max(self.time, min(until for _, until in self.waiting.values()))
            self.resume()


class _StepNetwork:
    def __init__(self, server: ModelServer) -> None:
        self._server = server

    def connect(
        self, host: str, port: int | None, request: object, timeout: float | None = None
    ) -> Channel:
        if not self._server.is_running:
            raise ConnectionRefused
        channel = _StepChannel()
        channel.session = self._server.connect(request, channel.hang_up)
        return channel


class _StepChannel:
    session: Session

    def __init__(self) -> None:
        self.is_over = False

    def hang_up(self) -> None:
        self.is_over = True

    def call(self, request: object, timeout: float | None = None) -> object:
        if self.is_over:
            raise ConnectionLost
        return self.session.handle(request)

    def close(self) -> None:
        if not self.is_over:
            self.is_over = True
            self.session.close()


class ModelPlayer:
    """Plays on a model.

    Args:
        make: makes the model for a runtime.
        connect: opens a connection by a DBAPI module.
        seed: of its randomness.
    """

    def __init__(
        self,
        make: Callable[[StepRuntime], ModelServer],
        connect: Callable[[PyMySQLModule | PsycopgModule], Any],
        seed: int = 0,
    ) -> None:
        self.runtime = StepRuntime(seed)
        self.server = make(self.runtime)
        if seed % 2:
            # MySQL serves by "contention-aware transaction scheduling", the others in turn
            self.server.store.pick = self.runtime.random.randrange
        network = _StepNetwork(self.server)
        is_mysql = type(self.server).__name__ == "MySQLServer"
        module = PyMySQLModule(network) if is_mysql else PsycopgModule(network)
        self._open = functools.partial(connect, module)
        self._connections: dict[int, Any] = {}
        self._busy: dict[int, None] = {}
        self._outcomes: dict[int, Outcome] = {}

    def send(self, connection: int, text: str) -> None:
        if connection not in self._connections:
            self._connections[connection] = self._open()
        self._busy[connection] = None

        def run() -> None:
            self._outcomes[connection] = outcome_of(self._connections[connection], text)
            del self._busy[connection]

        greenlet.greenlet(run).switch()

    def is_busy(self, connection: int) -> bool:
        return connection in self._busy

    def settle(self) -> dict[int, Outcome]:
        self.runtime.resume()
        found, self._outcomes = self._outcomes, {}
        for number, outcome in found.items():
            if ("lost",) in outcome:
                self._connections.pop(number, None)
        return found

    def act(self, connection: int, what: str) -> None:
        if what in ("@restart", "@crash"):
            self.server.stop(is_crash=what == "@crash")
            self.runtime.resume()
            self.server.start()
            self._connections = {n: c for n, c in self._connections.items() if n in self._outcomes}
        elif what == "@wait":
            self.runtime.pass_time()
        elif what.startswith("@admin "):
            session = self.server.connect(Login("root"), lambda: None)
            session.handle(Query(what.removeprefix("@admin ")))
            session.close()
        elif connection not in self._connections:
            return
        elif what == "@close":
            if connection not in self._busy:
                self._connections.pop(connection).close()
        else:
            self.server.kill(self._session(connection), query_only=what == "@kill query")
            if what == "@kill" and connection not in self._busy:
                self._connections.pop(connection)

    def _session(self, connection: int) -> int:
        channel: Any = self._connections[connection].channel
        return int(channel.session.id)

    def close(self) -> None:
        """There is nothing to end."""
