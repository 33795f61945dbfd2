"""Processes and threads that draw when they are told to, and stop half-way when they are told to."""

from __future__ import annotations

import os
import signal
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from time import monotonic

from sqla_tickets import TicketError, TicketPool, TicketSequence
from sqla_tickets.arguments import BlockBounds
from tests.support.fake_driver import Gate, Moment, Server, gated

__all__ = ["Clock", "Command", "Fork", "PausedDraw", "Process", "View", "WatchedPool"]

#: Seconds after which something hangs.
BOUND = 60


class Clock:
    """The time that breakers and blocks go by."""

    def __init__(self) -> None:
        self.now = monotonic()

    def monotonic(self) -> float:
        """What stands in for ``time.monotonic()``."""
        return self.now

    def pause(self, seconds: float) -> None:
        """What stands in for waiting."""
        self.now += seconds


class WatchedPool(TicketPool):
    """A pool that fetches blocks ahead when it is told to, and checks what each draw is given.

    Attributes:
        clock: that it goes by.
        fetches: those that have begun, and not been carried out.
        drawn: when each ticket was drawn, by sequence, unless it must not be used any more.
        given: the largest ticket of each sequence and server that a draw was given.
        faults: the promises that were broken.
        is_deaf: whether the next fork is one that Python is not told of.
    """

    def __init__(self, servers: Sequence[Server], stride: int, clock: Clock) -> None:
        super().__init__([server.engine() for server in servers], stride=stride)
        # its forks happen while no thread is inside of SQLite
        self._on_sqlite = False
        self.clock, self.is_deaf = clock, False
        self.fetches: list[Callable[[], None]] = []
        self.drawn: defaultdict[str, dict[int, float]] = defaultdict(dict)
        self.faults: list[str] = []
        self.given: defaultdict[tuple[str, int], int] = defaultdict(int)
        self._quarantined: set[tuple[str, int]] = set()

    def _draw(self, name: str, n: int) -> list[range]:
        """Draw, and see that each server's tickets are larger than those given before it began."""
        before = dict(self.given)
        try:
            blocks = super()._draw(name, n)
        finally:
            self._see_what_is_quarantined()
        for block in blocks:
            index = (block[0] - 1) % self.stride
            last = before.get((name, index), 0)
            if block[0] <= last:
                self.faults.append(f"{block} of server {index} was given after {last}")
            self.given[name, index] = max(block[-1], self.given[name, index])
            self.drawn[name].update(dict.fromkeys(block, self.clock.now))
        return blocks

    def see_that_it_may_leave(self, name: str, ticket: int, oldest: float) -> None:
        """A ticket is one of this process's draws, not too old, and of no time before a quarantine."""
        drawn_at = self.drawn[name].get(ticket)
        if drawn_at is None:
            self.faults.append(f"{ticket} is not from a draw of this process that is to be trusted")
        elif drawn_at < oldest:
            self.faults.append(f"{ticket} was drawn {self.clock.now - drawn_at} seconds ago")

    def _see_what_is_quarantined(self) -> None:
        quarantined = {
            (name, index)
            for index, server in enumerate(self.servers)
            for name in server.known_sequences()
            if server.table(name).state == "quarantined"
        }
        if quarantined != self._quarantined:  # then nothing buffered is trusted
            self._quarantined = quarantined
            self.drawn.clear()

    def _reinit_after_fork(self) -> None:
        """As it is, unless it is not called."""
        if self.is_deaf:
            self.is_deaf = False
        else:
            super()._reinit_after_fork()


@dataclass
class Command:
    """What a process is told to do: to draw, or to carry its fetches out when ``n`` is 0."""

    sequence: str
    n: int = 0
    block: int | BlockBounds = 1
    one_by_one: bool = False


@dataclass
class View:
    """What came of an order, and what the process knows of the servers then, in their order.

    Attributes:
        ids: the tickets that it was given.
        error: why they are not all.
        faults: the promises that were broken.
        high_waters: the largest tickets that the process has met, or that the tables' rows have shown to it.
        quarantined: which servers it does not draw from any more.
    """

    ids: list[int]
    error: str
    faults: list[str]
    high_waters: list[int]
    quarantined: list[bool]


def perform(pool: WatchedPool, command: Command) -> View:
    ids: list[int] = []
    oldest = pool.clock.now - pool.block_max_age
    error, sequence = "", TicketSequence(command.sequence, block=command.block)
    if command.n == 0:
        fetches, pool.fetches = pool.fetches, []
        for fetch in fetches:
            fetch()
    try:
        if command.one_by_one:
            for _ in range(command.n):
                ids.append(pool.next_id(sequence))
                pool.see_that_it_may_leave(command.sequence, ids[-1], oldest)
        elif command.n:
            ids += chain.from_iterable(pool.reserve(sequence, command.n))
            for ticket in ids:
                pool.see_that_it_may_leave(command.sequence, ticket, oldest)
    except TicketError as failure:
        error = f"{type(failure).__name__}: {failure}"
    faults, pool.faults = pool.faults, []
    return View(ids, error, faults, *known(pool, command.sequence))


def known(pool: TicketPool, sequence: str) -> tuple[list[int], list[bool]]:
    tables = [server.table(sequence) for server in pool.servers]
    quarantined = [table.state == "quarantined" for table in tables]
    return [table.fence for table in tables], quarantined


class Process:
    """A process that draws: this one.

    Attributes:
        quarantined: the tables that have given it a ticket which it knows to be old.
    """

    def __init__(self, pool: WatchedPool, servers: Sequence[Server]) -> None:
        self.pool, self.servers = pool, servers
        self.quarantined: set[tuple[str, int]] = set()

    def perform(self, command: Command) -> View:
        """Do as it is told."""
        return perform(self.pool, command)

    def known(self, sequence: str) -> tuple[list[int], list[bool]]:
        """The largest tickets that it has met, or was shown, and which servers it has quarantined."""
        return known(self.pool, sequence)


class Fork(Process):
    """A child of this process.

    Args:
        parent: this process.
        sequences: all there are.
        is_told: whether Python runs its hooks in the child.
    """

    def __init__(self, parent: Process, sequences: Sequence[str], *, is_told: bool) -> None:
        super().__init__(parent.pool, parent.servers)
        self.quarantined |= parent.quarantined
        self._known = {sequence: parent.known(sequence) for sequence in sequences}
        self._pipe, pipe = Pipe()
        self.pool.is_deaf = not is_told
        self._pid = os.fork()
        if self._pid == 0:
            self._serve(pipe)
        self.pool.is_deaf = False
        pipe.close()

    def _serve(self, pipe: Connection) -> None:
        try:
            self._pipe.close()
            self.pool.drawn.clear()
            self.pool.fetches.clear()
            while (told := pipe.recv()) is not None:
                healths, self.pool.clock.now, command = told
                for server, health in zip(self.servers, healths, strict=True):
                    server.health = health
                pipe.send(perform(self.pool, command))
        finally:
            os._exit(0)

    def perform(self, command: Command) -> View:
        healths = [server.health for server in self.servers]
        self._pipe.send((healths, self.pool.clock.now, command))
        assert self._pipe.poll(BOUND), "the child hangs"
        view: View = self._pipe.recv()
        self._known[command.sequence] = view.high_waters, view.quarantined
        return view

    def known(self, sequence: str) -> tuple[list[int], list[bool]]:
        return self._known[sequence]

    def end(self) -> None:
        """End it."""
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        self._pipe.close()


class PausedDraw:
    """A thread of this process that does as it is told, and stops half-way in its first draw.

    Attributes:
        gate: where it stops.
    """

    def __init__(self, process: Process, command: Command, moment: Moment) -> None:
        self.command, self._process = command, process
        self._view: View | None = None
        self.gate = Gate(moment)
        self._thread = threading.Thread(target=self._perform, daemon=True)
        self._thread.start()
        assert self.gate.reached.wait(BOUND), "the draw hangs before its gate"

    def _perform(self) -> None:
        try:
            with gated(self.gate):
                self._view = self._process.perform(self.command)
        finally:
            self.gate.reached.set()

    def finish(self) -> View:
        """Let it go on to its end."""
        self.gate.open.set()
        self._thread.join(BOUND)
        assert self._view is not None, "the draw hangs, or its thread has died"
        return self._view
