"""What the servers of all kinds have in common: sessions, waits, deadlocks, starts and ends."""

from __future__ import annotations

import abc
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Literal

from tests.simulation.models.expressions import Value
from tests.simulation.models.protocol import Login
from tests.simulation.models.storage import (
    FLUSHED_EACH_SECONDS,
    Image,
    LockWait,
    Row,
    Store,
    Transaction,
)
from tests.simulation.models.table_locks import TableLock, TableWait
from tests.simulation.runtime import ConnectionLost, Runtime, ServerError

__all__ = ["Costs", "ModelDefect", "ModelServer", "ModelSession"]

#: What ends a wait before its lock is granted: a KILL of the statement or of the session, the end of the server, or
#: the choice of this session to break a deadlock.
Interrupt = Literal["query", "connection", "stopped", "victim"]


#: Seconds, by chance.
Cost = Callable[[Random], float]


@dataclass(frozen=True)
class Costs:
    """How long a server is busy, in seconds; None for no time, and no other session's turn.

    Attributes:
        statement: for a statement, before it takes any lock.
        number: between the number that AUTO_INCREMENT has given and the lock of the row.
        write: while a row is locked and changed, before the commit; with a binary log, its flush.
        flush: for a flush to the disk, while row locks are given up already, and those of tables are not.
    """

    statement: Cost | None = None
    number: Cost | None = None
    write: Cost | None = None
    flush: Cost | None = None


class ModelDefect(BaseException):
    """A model has failed at a request: mend it. No `Exception`, for no client is to take it for a server's error."""


class ModelSession(abc.ABC):
    """One client of a server.

    Attributes:
        id: the number by which it is killed.
        login: what the client has said.
        waiting: for what it waits, if it does.
        transaction: of the client, or of the statement.
        last_insert_id: what ``LAST_INSERT_ID()`` returns.
    """

    def __init__(
        self, server: ModelServer, id_: int, login: Login, hang_up: Callable[[], None]
    ) -> None:
        self._server, self.id, self.login, self._hang_up = server, id_, login, hang_up
        self.runtime, self.store = server.runtime, server.store
        self.waiting: LockWait | TableWait | None = None
        self.interrupt: Interrupt | None = None
        self.is_busy = self._is_closed = False
        self.transaction = Transaction(self)
        self.last_insert_id = 0
        self.table_locks: list[TableLock] = []

    def microseconds(self) -> int:
        """The server's clock."""
        return round(self.runtime.now() * 1_000_000)

    def set_last_insert_id(self, value: Value) -> Value:
        """``LAST_INSERT_ID(value)``; only MySQL has it."""
        raise NotImplementedError

    # -- requests

    def handle(self, request: object) -> object:
        """Do one request."""
        if self._is_closed or self.interrupt is not None:
            raise ConnectionLost("the session has ended")
        self.is_busy = True
        try:
            return self._handle(request)
        except (ServerError, ConnectionLost):
            raise
        except Exception as error:
            raise ModelDefect(f"{request}") from error
        finally:
            self.is_busy = False
            # both are set by other sessions while this one waits
            if self.interrupt in ("query", "victim"):
                self.interrupt = None
            elif self.interrupt is not None:
                self.close()

    @abc.abstractmethod
    def _handle(self, request: object) -> object:
        """Do one request; an interrupt may have come at any wait."""

    def close(self) -> None:
        """The client has gone: roll back, and release what is held. To do so twice does no harm."""
        if self._is_closed:
            return
        self._is_closed = True
        # after a restart the number may be another session's
        if self._server.sessions.get(self.id) is self:
            del self._server.sessions[self.id]
        if self.interrupt != "stopped":
            self.store.rollback(self.transaction)
            self.release_all()

    def release_all(self) -> None:
        """Give up every lock, of rows and of tables."""
        served = self.store.end(self.transaction)
        for lock in self.table_locks:
            served = lock.release(self) or served
        self.table_locks.clear()
        if served:
            self.runtime.notify()

    def end(self, interrupt: Interrupt) -> None:
        """End what the session does, from another one; or its connection, if it does nothing."""
        if self.is_busy or interrupt == "stopped":
            self.interrupt = interrupt
            self.runtime.notify()
        elif interrupt == "connection":
            self.close()
        if interrupt == "connection":
            self._hang_up()

    def spend(self, cost: Cost | None) -> None:
        """Take a time, in which others may go on.

        Raises:
            ConnectionLost: the server has ended in that time.
        """
        if cost is not None:
            self.runtime.sleep(cost(self.runtime.random))
            if self.interrupt == "stopped":
                raise ConnectionLost("the server has ended")

    # -- the end of a transaction

    def commit(self) -> None:
        """Let everybody see the changes, give up the locks of rows, and wait until all is durable.

        Raises:
            ConnectionLost: the server has ended before that.
        """
        changed = self.store.commit(self.transaction, self.runtime.now())
        if self.store.end(self.transaction):
            self.runtime.notify()
        if changed:
            self.make_durable()

    def make_durable(self) -> None:
        """Wait until what was committed up to now is on the disk, if the server does so for each commit.

        Raises:
            ConnectionLost: the server has ended before that.
        """
        server, store = self._server, self.store
        if not server.flushes:
            store.flush_before(self.runtime.now() - FLUSHED_EACH_SECONDS)
            return
        up_to = store.position
        self.spend(server.costs.flush)
        store.flush(up_to)

    # -- waits

    def lock_row(self, row: Row, seconds: float, *, with_gap: bool = False) -> bool:
        """Take the lock of a row; whether that had to be waited for.

        Raises:
            ServerError: a deadlock, a time-out, a KILL.
            ConnectionLost: the session has ended.
        """
        transaction = self.transaction
        if row.owner is transaction:
            return False
        if row.owner is None:
            row.owner = transaction
            transaction.locked.append(row)
            return False
        wait = LockWait(transaction, row, with_gap)
        row.waits.append(wait)
        self.wait(wait, seconds)
        return True

    def lock_table(self, lock: TableLock, mode: str, seconds: float) -> None:
        """Take the lock of a table, until `release_table` or `release_all`.

        Raises:
            ServerError: a deadlock, a time-out, a KILL.
            ConnectionLost: the session has ended.
        """
        wait = lock.request(self, mode)
        if wait is not None:
            self.wait(wait, seconds)
        self.table_locks.append(lock)

    def release_table(self, lock: TableLock, mode: str | None = None) -> None:
        """Give up the lock of a table."""
        self.table_locks.remove(lock)
        if lock.release(self, mode):
            self.runtime.notify()

    def wait(self, wait: LockWait | TableWait, seconds: float) -> None:
        """Wait for a lock.

        Raises:
            ServerError: a deadlock, a time-out, a KILL.
            ConnectionLost: the session has ended.
        """
        self.waiting = wait
        try:
            self._wait(wait, seconds)
        finally:
            self.waiting = None
        if wait.is_granted and self.interrupt in (None, "victim"):
            self.interrupt = None
            return
        if self.interrupt == "stopped":
            raise ConnectionLost("the server has ended")
        if isinstance(wait, LockWait):
            if not wait.is_granted and wait in wait.row.waits:
                wait.row.waits.remove(wait)
        elif wait.is_granted:
            wait.lock.release(self, wait.mode)
        else:
            wait.lock.withdraw(wait)
        self.runtime.notify()
        if self.interrupt is None:
            raise self.lock_timeout()
        raise self.interrupted(self.interrupt)

    def _wait(self, wait: LockWait | TableWait, seconds: float) -> None:
        self._break_deadlock()
        self._wait_until_granted(wait, seconds)

    def _wait_until_granted(self, wait: LockWait | TableWait, seconds: float) -> bool:
        return self.runtime.wait_until(
            lambda: wait.is_granted or self.interrupt is not None, seconds
        )

    def _break_deadlock(self) -> None:
        cycle = self.cycle()
        if cycle:
            victim = self._server.victim(cycle)
            victim.interrupt = "victim"
            self.runtime.notify()

    def cycle(self) -> list[ModelSession]:
        """The sessions that wait for each other, this one among them; empty where there is no such circle."""
        seen: dict[ModelSession, None] = {}

        def path_from(session: ModelSession) -> list[ModelSession]:
            seen[session] = None
            waiting = session.waiting
            if waiting is None or waiting.is_granted or session.interrupt is not None:
                return []
            if not self._server.detects_across and type(waiting) is not type(self.waiting):
                return []
            for blocker in waiting.blockers():
                assert isinstance(blocker, ModelSession)
                if blocker is self:
                    return [session]
                if blocker not in seen and (found := path_from(blocker)):
                    return [session, *found]
            return []

        return path_from(self)

    @abc.abstractmethod
    def lock_timeout(self) -> ServerError:
        """The error of a wait that took too long."""

    @abc.abstractmethod
    def interrupted(self, interrupt: Interrupt) -> Exception:
        """The error of a wait that was ended by another session."""


class ModelServer(abc.ABC):
    """A server, which outlives its starts.

    Args:
        runtime: its time, and its turns.
        max_connections: how many sessions it lets in.
        costs: how long it is busy.

    Attributes:
        runtime: its time, and its turns.
        max_connections: how many sessions it lets in; an administrator is let in beyond that.
        costs: how long it is busy.
        flushes: whether a commit is durable before it is acknowledged. What was committed in the last second
            before a crash may be lost otherwise, the latest first.
        store: the tables.
        sessions: by their numbers.
        started_at: by its own clock, in seconds since 1970.
        is_running: whether it takes connections.
        lost: how many commits, and steps of counters, its crashes have lost. Only those that were not acknowledged,
            while it `flushes`.
        detects_across: whether a deadlock is found in which some wait for rows and others for tables.
    """

    detects_across = False

    def __init__(
        self, runtime: Runtime, *, max_connections: int = 151, costs: Costs | None = None
    ) -> None:
        self.runtime, self.max_connections, self.costs = runtime, max_connections, costs or Costs()
        self.flushes = True
        self.store = Store({})
        self.sessions: dict[int, ModelSession] = {}
        self.started_at = runtime.now()
        self.is_running = True
        self.lost = 0
        self._next_id = 1
        self._disk: Image = {}

    def connect(self, request: object, hang_up: Callable[[], None]) -> ModelSession:
        """Let a client in."""
        if not self.is_running:
            raise ConnectionLost("the server does not run")
        assert isinstance(request, Login)
        is_admin = request.user in ("root", "postgres")
        if len(self.sessions) >= self.max_connections + is_admin:
            raise self.too_many_connections()
        session = self._session(self._next_id, request, hang_up)
        self.sessions[self._next_id] = session
        self._next_id += 1
        return session

    @abc.abstractmethod
    def _session(self, id_: int, login: Login, hang_up: Callable[[], None]) -> ModelSession:
        """A session for a client that is let in."""

    @abc.abstractmethod
    def too_many_connections(self) -> ServerError:
        """The error for a client that is one too many."""

    @abc.abstractmethod
    def victim(self, cycle: list[ModelSession]) -> ModelSession:
        """Which of some sessions that wait for each other has to give up. The last one to wait comes first."""

    def kill(self, id_: int, *, query_only: bool = False) -> bool:
        """End a session, or only what it does now; False where there is none."""
        session = self.sessions.get(id_)
        if session is None:
            return False
        if session.is_busy or not query_only:
            session.end("query" if query_only else "connection")
        return True

    # -- starts and ends

    def stop(self, *, is_crash: bool) -> None:
        """End all sessions; after a crash, what was not durable is lost."""
        lost = 0
        if is_crash:
            if not self.flushes:
                self.store.flush_before(self.runtime.now() - FLUSHED_EACH_SECONDS)
            lost = self.runtime.random.randint(0, self.store.unflushed)
        self.lost += lost
        self._disk = self.store.image(lost)
        self.is_running = False
        for session in list(self.sessions.values()):
            session.end("stopped")
        self.sessions.clear()

    def start(self) -> None:
        """Start with what is durable."""
        self.store = Store(self._disk, self.store.pick)
        self.started_at = self.runtime.now()
        self.is_running = True
        self._next_id = 1
        self._started()

    @abc.abstractmethod
    def _started(self) -> None:
        """Do whatever this version does to its tables at a start."""

    def image(self) -> object:
        """A copy of what is durable now."""
        return self.store.image(self.store.unflushed) if self.is_running else self._disk

    def image_before(self, image: object, name: str, number: int, stride: int) -> object:
        """An image with another number in a ticket table: that comes next, after one that is less by the stride."""
        assert isinstance(image, dict)
        found = dict(image)
        for key, saved in image.items():
            if key[1] == name and len(saved.rows) == 1:
                ((serial, values),) = saved.rows.items()
                before = list(values)
                before[saved.table.positions["id"]] = number - stride
                counter = None if saved.counter is None else number
                found[key] = saved._replace(
                    rows={serial: tuple(before)}, counter=counter, persisted=number - stride
                )
        return found

    def restore(self, image: object) -> None:
        """Take an older copy for its data."""
        assert isinstance(image, dict)
        self._disk = image
