"""A ticket server that takes time: processors, locks of rows and tables, and a disk.

The answers are the toy server's. How long they take is computed when a statement arrives, as all queues are
first come, first served.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Final, Literal

from ..runtime import Runtime, ServerError, Session
from ..toy import IDENTITY, Answer, ToyServer
from ..world import World

__all__ = ["LAYOUTS", "CapacityServer", "Cores", "Layout", "Profile", "Usage"]

Layout = Literal["counter", "replace"]
LAYOUTS: Final[tuple[Layout, ...]] = ("counter", "replace")


@dataclass(frozen=True)
class Profile:
    """What the machine of one server can do.

    Attributes:
        cores: that work at the same time.
        read_seconds: of a core for a statement that reads.
        write_seconds: of a core for a statement that writes one row.
        replace_seconds: of a core for one REPLACE, which writes two B-trees.
        lock_tables_seconds: of a core for LOCK TABLES and UNLOCK TABLES, and what they close and open.
        contended_seconds: more of a core for a REPLACE that finds its row locked: InnoDB looks for deadlocks, and the
            client tries again.
        connect_seconds: of a core for a new connection.
        flush_seconds: of the disk, the median of a log-normal distribution.
        flush_sigma: of that distribution.
        max_connections: that it lets in.
        lock_wait_seconds: after which a wait for a lock ends with an error.
    """

    cores: int = 4
    read_seconds: float = 0.00006
    write_seconds: float = 0.00010
    replace_seconds: float = 0.00016
    lock_tables_seconds: float = 0.00040
    contended_seconds: float = 0.00025
    connect_seconds: float = 0.00030
    flush_seconds: float = 0.0005
    flush_sigma: float = 0.5
    max_connections: int = 100_000
    lock_wait_seconds: float = 1.0

    def flush(self, random: Random) -> float:
        """What one flush to the disk takes, in seconds."""
        if not self.flush_seconds:
            return 0.0
        return self.flush_seconds * math.exp(random.gauss(0, self.flush_sigma))


class Cores:
    """Processors that take work in the order in which it comes.

    Args:
        number: of them.

    Attributes:
        busy_seconds: that they have worked, in all.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self._free = [0.0] * number
        self.busy_seconds = 0.0

    def take(self, now: float, seconds: float) -> float:
        """Do work as soon as a processor is free; when that ends."""
        end = max(now, self._free[0]) + seconds
        heapq.heapreplace(self._free, end)
        self.busy_seconds += seconds
        return end


@dataclass
class Usage:
    """What clients have asked of one server.

    Attributes:
        statements: how many, by what they are.
        open: how many are open now.
        most: how many were open at most.
    """

    statements: Counter[str] = field(default_factory=Counter)
    open: int = 0
    most: int = 0


class CapacityServer(ToyServer):
    """A toy server whose statements take time.

    Args:
        world: that it is part of.
        name: of the server.
        runtime: of its host.
        profile: of its machine.
        layout: of the ticket tables whose times it takes.
        cores: its processors; None for those of its profile.
    """

    def __init__(
        self,
        world: World,
        name: str,
        runtime: Runtime,
        profile: Profile,
        layout: Layout,
        cores: Cores | None = None,
    ) -> None:
        super().__init__(name, runtime)
        self.profile, self.layout, self.usage = profile, layout, Usage()
        self._world = world
        self._shared_cores = cores
        self._begin()

    def _begin(self) -> None:
        self.cores = self._shared_cores or Cores(self.profile.cores)
        #: When the lock of each table's hot rows is free.
        self._lock_free: dict[str, float] = {}
        self._flush_began = self._flush_ends = 0.0

    def stop(self, *, is_crash: bool) -> None:
        super().stop(is_crash=is_crash)
        self.usage.open = 0

    def start(self) -> None:
        super().start()
        busy = self.cores.busy_seconds
        self._begin()
        self.cores.busy_seconds = busy

    def connect(self, request: object, hang_up: Callable[[], None]) -> Session:
        usage = self.usage
        self._work(self.profile.connect_seconds)
        if usage.open >= self.profile.max_connections:
            raise ServerError(1040, "too many connections")
        usage.open += 1
        usage.most = max(usage.most, usage.open)
        return CapacitySession(self)

    def serve(self, statement: str, parameters: tuple[object, ...]) -> Answer:
        """Do one statement, in its time."""
        kind = _kind_of(statement)
        self.usage.statements[kind] += 1
        profile = self.profile
        if kind == "draw":
            is_block = self.layout == "replace" and bool(parameters)
            if is_block:  # LOCK TABLES, two REPLACEs with a flush each, UNLOCK TABLES
                seconds = 2 * profile.replace_seconds + profile.lock_tables_seconds
                self._hold("tickets", seconds, flushes=2)
            elif self.layout == "replace":
                is_locked = self._lock_free.get("tickets", 0.0) > self._world.now
                more = profile.contended_seconds if is_locked else 0.0
                self._hold("tickets", profile.replace_seconds + more)
            else:
                self._hold("tickets", profile.write_seconds)
            answer = self.run(statement, parameters)
            if not is_block:
                self._flush()
            return answer
        if kind == "write marks":
            self._hold("marks", profile.write_seconds)
            before = self._data.total_changes
            answer = self.run(statement, parameters)
            if self._data.total_changes > before:
                self._flush()
            return answer
        self._work(profile.read_seconds)
        return self.run(statement, parameters)

    # -- time

    def _spread(self, seconds: float) -> float:
        return seconds * (0.5 + self._runtime.random.random())

    def _sleep_until(self, when: float) -> None:
        now = self._world.now
        if when > now:
            self._runtime.sleep(when - now)

    def _work(self, seconds: float) -> None:
        self._sleep_until(self.cores.take(self._world.now, self._spread(seconds)))

    def _hold(self, lock: str, seconds: float, flushes: int = 0) -> None:
        """Work with a lock held; with flushes where the lock is kept over them."""
        now, seconds = self._world.now, self._spread(seconds)
        free = self._lock_free.get(lock, 0.0)
        if free > now + self.profile.lock_wait_seconds:
            self._sleep_until(now + self.profile.lock_wait_seconds)
            raise ServerError(1, "database is locked")
        end = max(self.cores.take(now, seconds), free + seconds)
        for _ in range(flushes):
            end += self.profile.flush(self._runtime.random)
        self._lock_free[lock] = end
        self._sleep_until(end)

    def _flush(self) -> None:
        """Wait until the log is on the disk; one flush is for all that have come before it begins."""
        now = self._world.now
        if now > self._flush_began:
            self._flush_began = max(now, self._flush_ends)
            self._flush_ends = self._flush_began + self.profile.flush(self._runtime.random)
        self._sleep_until(self._flush_ends)


class CapacitySession:
    """One connection."""

    def __init__(self, server: CapacityServer) -> None:
        self._server = server

    def handle(self, request: object) -> object:
        assert isinstance(request, tuple)
        return self._server.serve(*request)

    def close(self) -> None:
        self._server.usage.open -= 1


def _kind_of(statement: str) -> str:
    if statement.startswith(("INSERT INTO sqla_tickets_marks", "UPDATE `sqla_tickets_marks`")):
        return "write marks"
    if statement.startswith("UPDATE"):
        return "draw"
    if "FROM sqla_tickets_marks" in statement:
        return "read marks"
    return "identity" if statement == IDENTITY else "other"
