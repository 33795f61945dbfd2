"""Processes and threads that draw when they are told to, and stop half-way when they are told to."""

from __future__ import annotations

import math
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
from sqla_tickets.sequence import Bounds
from tests.drawing.scripted import Gate, Moment, Server, gated

__all__ = ["Clock", "Flight", "Fork", "Order", "Process", "View", "WatchedPool"]

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
        self.on_sqlite = False
        self.clock, self.is_deaf = clock, False
        self.fetches: list[Callable[[], None]] = []
        self.drawn: defaultdict[str, dict[int, float]] = defaultdict(dict)
        self.faults: list[str] = []
        self.given: defaultdict[tuple[str, int], int] = defaultdict(int)
        self._quarantined: set[tuple[str, int]] = set()

    def draw_here(self, name: str, n: int) -> list[range]:
        """Draw, and see that each server's tickets are larger than those given before it began."""
        before = dict(self.given)
        try:
            blocks = super().draw_here(name, n)
        finally:
            self._see_what_is_quarantined()
        for block in blocks:
            place = (block[0] - 1) % self.stride
            last = before.get((name, place), 0)
            if block[0] <= last:
                self.faults.append(f"{block} of server {place} was given after {last}")
            self.given[name, place] = max(block[-1], self.given[name, place])
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
            (name, place)
            for place, server in enumerate(self.servers)
            for name in server.known_sequences()
            if server.table(name).breaker.state == "quarantined"
        }
        if quarantined != self._quarantined:  # then nothing in hand is trusted
            self._quarantined = quarantined
            self.drawn.clear()

    def forget_parent(self) -> None:
        """As it is, unless it is not called."""
        if self.is_deaf:
            self.is_deaf = False
        else:
            super().forget_parent()


@dataclass
class Order:
    """What a process is told to do: to draw, or to carry its fetches out when ``n`` is 0."""

    sequence: str
    n: int = 0
    block: int | Bounds = 1
    one_by_one: bool = False


@dataclass
class View:
    """What came of an order, and what the process knows of the servers then, in their order.

    Attributes:
        ids: the tickets that it was given.
        error: why they are not all.
        faults: the promises that were broken.
        high_waters: the largest tickets that the process has met.
        quarantined: which servers it does not draw from any more.
    """

    ids: list[int]
    error: str
    faults: list[str]
    high_waters: list[int]
    quarantined: list[bool]


def perform(pool: WatchedPool, order: Order) -> View:
    ids: list[int] = []
    oldest = pool.clock.now - pool.block_age
    error, sequence = "", TicketSequence(order.sequence, block=order.block)
    if order.n == 0:
        fetches, pool.fetches = pool.fetches, []
        for fetch in fetches:
            fetch()
    try:
        if order.one_by_one:
            for _ in range(order.n):
                ids.append(pool.next_id(sequence))
                pool.see_that_it_may_leave(order.sequence, ids[-1], -math.inf)
        elif order.n:
            ids += chain.from_iterable(pool.reserve(sequence, order.n))
            for ticket in ids:
                pool.see_that_it_may_leave(order.sequence, ticket, oldest)
    except TicketError as failure:
        error = f"{type(failure).__name__}: {failure}"
    faults, pool.faults = pool.faults, []
    return View(ids, error, faults, *known(pool, order.sequence))


def known(pool: TicketPool, sequence: str) -> tuple[list[int], list[bool]]:
    tables = [server.table(sequence) for server in pool.servers]
    quarantined = [table.breaker.state == "quarantined" for table in tables]
    return [table.high_water for table in tables], quarantined


class Process:
    """A process that draws: this one.

    Attributes:
        violated: the tables that have given it a ticket which it knows to be old.
    """

    def __init__(self, pool: WatchedPool, servers: Sequence[Server]) -> None:
        self.pool, self.servers = pool, servers
        self.violated: set[tuple[str, int]] = set()

    def perform(self, order: Order) -> View:
        """Do as it is told."""
        return perform(self.pool, order)

    def known(self, sequence: str) -> tuple[list[int], list[bool]]:
        """The largest tickets that it has met, and which servers it has quarantined."""
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
        self.violated |= parent.violated
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
                healths, self.pool.clock.now, order = told
                for server, health in zip(self.servers, healths, strict=True):
                    server.health = health
                pipe.send(perform(self.pool, order))
        finally:
            os._exit(0)

    def perform(self, order: Order) -> View:
        healths = [server.health for server in self.servers]
        self._pipe.send((healths, self.pool.clock.now, order))
        assert self._pipe.poll(BOUND), "the child hangs"
        view: View = self._pipe.recv()
        self._known[order.sequence] = view.high_waters, view.quarantined
        return view

    def known(self, sequence: str) -> tuple[list[int], list[bool]]:
        return self._known[sequence]

    def end(self) -> None:
        """End it."""
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        self._pipe.close()


class Flight:
    """A thread of this process that does as it is told, and stops half-way in its first draw.

    Attributes:
        gate: where it stops.
    """

    def __init__(self, process: Process, order: Order, moment: Moment) -> None:
        self.order, self._process = order, process
        self._view: View | None = None
        self.gate = Gate(moment)
        self._thread = threading.Thread(target=self._perform, daemon=True)
        self._thread.start()
        assert self.gate.reached.wait(BOUND), "the draw hangs before its gate"

    def _perform(self) -> None:
        try:
            with gated(self.gate):
                self._view = self._process.perform(self.order)
        finally:
            self.gate.reached.set()

    def land(self) -> View:
        """Let it go on to its end."""
        self.gate.open.set()
        self._thread.join(BOUND)
        assert self._view is not None, "the draw hangs, or its thread has died"
        return self._view
