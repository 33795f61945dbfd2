"""Waiting for a connection that another draw gives back, where a process has enough of them open.

A server lets in a hundred connections or two, for all its clients. Hundreds of tasks that draw at once do not
open one each: the rest of them queue, and a draw takes a millisecond.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Final
from weakref import ref

from sqlalchemy.util import await_only

if TYPE_CHECKING:
    from .connections import Connection
    from .opening import Opening
    from .server import TicketServer

__all__ = ["KEPT", "Stock", "Turn"]


#: How many connections a process keeps to one server; draws beyond wait for one to be given back.
KEPT: Final = 16
#: Seconds after which a server that let in no more is asked again.
FULL: Final = 1.0
#: How many are opened at once: each takes several round trips, and a draw but one.
AT_ONCE: Final = 4


class Turn:
    """A draw's place in the queue, as a `Flight` boards it.

    Args:
        server: whose connections they are.
        in_a_task: whether a task of an event loop waits, and not a thread.
    """

    #: Seconds that it is given at least: a few draws of those before.
    patience: Final = 0.05

    def __init__(self, server: TicketServer, *, in_a_task: bool) -> None:
        self._server = server
        self._over = asyncio.Event() if in_a_task else threading.Event()
        self._lock = threading.Lock()
        self._wanted = True
        self._connection: Connection | None = None

    @property
    def can_be_cut(self) -> bool:
        """Whether those before get no answer, so that it may be better to ask another server."""
        return bool(self._server.silent)

    @property
    def has_answer(self) -> bool:
        """Whether it has come."""
        return self._over.is_set()

    def hand(self, connection: Connection | None) -> bool:
        """Give a connection to whoever waits, or None for it to open one.

        Returns:
            False when nobody waits any more.
        """
        with self._lock:
            if not self._wanted or self._over.is_set():
                return False
            self._connection = connection
            self._over.set()
            return True

    def cut(self) -> None:
        """Let whoever waits go on without one."""
        self._over.set()

    def wait(self, seconds: float) -> bool:
        """Wait for no longer than that; whether the turn has come, or was cut."""
        if not isinstance(self._over, asyncio.Event):
            return self._over.wait(seconds)
        try:
            await_only(asyncio.wait_for(self._over.wait(), seconds))
        except asyncio.TimeoutError:  # another class before Python 3.11
            return False
        return True

    def leave(self) -> Connection | None:
        """Wait no longer; returns what has been given."""
        with self._lock:
            self._wanted = False
            connection, self._connection = self._connection, None
            return connection


class Stock(deque["Connection"]):
    """The idle connections of all threads, or of one event loop; and how many there are in all.

    Attributes:
        coming: those that are being opened now, whether somebody waits for them or not.
        full_until: when it may be worth to open another one, by ``time.monotonic()``.
        turns: of those that wait for one, the first first.
    """

    def __init__(self) -> None:
        super().__init__()
        # not a WeakSet, which cannot be gone through while other threads add to it
        self._made: set[ref[Connection]] = set()
        self.coming: set[Opening] = set()
        self.turns: deque[Turn] = deque()
        self.full_until = 0.0

    def has_made(self, connection: Connection) -> None:
        """Count a connection, idle or not, until it is closed. Whoever loses it does not count it."""
        self._made.add(ref(connection, self._made.discard))

    def has_room(self) -> bool:
        """Whether another one is to be opened for a draw that finds none idle."""
        there = self._open()
        if there and time.monotonic() < self.full_until:
            return False
        coming = list(self.coming)
        waited_for = sum(opening.is_waited_for for opening in coming)
        return waited_for < AT_ONCE and len(coming) + there < KEPT

    def can_do_without(self) -> bool:
        """Whether there are others to wait for, now that the server lets in no more."""
        self.full_until = time.monotonic() + FULL
        return bool(self._open())

    def _open(self) -> int:
        made = [connection() for connection in list(self._made)]
        return sum(connection is not None and not connection.is_closed for connection in made)

    def serve(self) -> None:
        """Give what is idle to those who wait."""
        while self.turns:
            try:
                connection = self.pop()
            except IndexError:
                return
            try:
                taken = self.turns.popleft().hand(connection)
            except IndexError:  # others were faster
                taken = False
            if not taken:
                self.append(connection)

    def replace(self) -> None:
        """Let the first of those who wait open a connection, where there is room for one."""
        with suppress(IndexError):
            while self.turns and self.has_room() and not self.turns.popleft().hand(None):
                pass
