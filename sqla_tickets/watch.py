"""Watching the draws under way, so that none waits for a server that keeps silent.

A driver that waits for an answer can only be reached through its socket. So a thread of the pool looks
at all draws every few milliseconds while there are any. Of those that have waited for longer than is
usual, and whose answer does not even lie in the socket, it sends a *hedge*: the same draw to another
server, whose answer wins when it is the first; the loser's ticket is a gap. A token bucket keeps hedges
to a small share of the draws.

When a server gives no answer to anybody, only the eldest draw goes on waiting for it, without a hedge
at most until its time-out. All others are sent to the next server at once, and a probe asks the silent one
for a sign of life.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from .aio import current_loop
from .beside import beside
from .choice import least_busy
from .engines import LOCK_WAIT
from .errors import TicketError
from .flight import Cut, Flight
from .probes import probe

if TYPE_CHECKING:
    from .events import Moments
    from .server import TicketServer

__all__ = ["Watch"]

log = logging.getLogger(__name__)

#: Seconds from one look at the draws under way to the next, at least and at most ...
TICK, LONGEST_TICK = 0.003, 0.025
#: ... and this part of what a draw is given anyway: on a busy machine, looks would take its time from the draws.
PART: Final = 0.25
#: Seconds without any draw after which the watch falls asleep until the next one: to wake it costs two looks.
DOZE: Final = 0.02
#: Seconds that every draw is given, however quick the others were.
FLOOR: Final = 0.01
#: Seconds that every draw is given while too few have been measured.
FIRST: Final = 0.1
#: How many draws are remembered, and how many are too few.
REMEMBERED, FEW = 512, 20
#: A draw is overdue when it takes so many times as long as this share of the others.
TIMES, SHARE = 1.5, 0.99
#: A server lags while one of its draws has taken so many times the median.
LAGS: Final = 4.0
#: Hedges per draw in the long run, and how many at once after a quiet time.
HEDGES_PER_DRAW, MOST_HEDGES = 0.03, 10.0
#: Seconds beyond the time-outs of the driver and of the server's locks before a draw is cut off.
GRACE: Final = 0.25
#: Turns of an event loop after which an answer that had come in would have been read.
TURNS: Final = 4


class Watch:
    """The draws under way on the servers of one pool.

    Args:
        servers: of the pool.
        hedge: whether an overdue draw is sent to another server, too.
        moments: who is told of draws and hedges.
    """

    def __init__(self, servers: Sequence[TicketServer], *, hedge: bool, moments: Moments) -> None:
        self._servers, self._hedges, self._moments = servers, hedge, moments
        #: Seconds that no draw is given more than, however slow the others were.
        self._most = min(server.timeout for server in servers) / 2
        self.forget_parent()

    def forget_parent(self) -> None:
        """In a fork: the watching thread, and the draws that it saw, are the parent's."""
        self._awake = threading.Event()
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None
        self._durations: deque[float] = deque(maxlen=REMEMBERED)
        self._tokens = MOST_HEDGES
        self._patience, self._usual, self._measured_at = FIRST, FIRST, 0.0
        self._last_seen = 0.0

    def __del__(self) -> None:
        self._awake.set()  # the thread sees that nobody is there

    # -- what a draw does

    def draw(self, flight: Flight) -> list[range]:
        """Send a draw to its server, and watch it until it ends, in whatever way.

        Raises:
            TicketError: as `TicketServer.draw`.
        """
        server = flight.server
        try:
            server.flights.add(flight)
            if not self._awake.is_set():
                self._wake_up()
            drawn = server.answer(flight)
            # of a draw that failed, the time would tell of time-outs, and not of what is usual
            self._durations.append(time.monotonic() - flight.since)
            return drawn
        finally:
            server.forget(flight)
            if self._tokens < MOST_HEDGES:
                self._tokens += HEDGES_PER_DRAW

    # -- the thread

    def _wake_up(self) -> None:
        with self._starting:
            self._awake.set()
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(
                    target=_keep_watch,
                    args=(weakref.ref(self), self._awake),
                    name="sqla_tickets watch",
                    daemon=True,
                )
                try:
                    self._thread.start()
                except RuntimeError as error:  # at exit, or at a limit
                    self._thread = None
                    self._awake.clear()
                    log.warning("draws are not watched: %s", error)

    def close(self) -> None:
        """End the thread, until the next draw."""
        with self._starting:
            thread, self._thread = self._thread, None
            self._awake, awake = threading.Event(), self._awake
            awake.set()
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout=1)

    def is_kept_by(self, thread: threading.Thread) -> bool:
        """Whether this is the thread that watches, and not one that was left behind."""
        return self._thread is thread

    def look(self) -> float:
        """See to every draw that is overdue; fall asleep when there have been none for a while.

        Returns:
            Seconds until it is to be looked again.
        """
        now = time.monotonic()
        patience = self._measure(now)
        for server in self._servers:
            flights = list(server.flights)
            if flights:
                self._last_seen = now
            slow = [flight for flight in flights if flight.waits(self._usual, now)]
            server.lagging = bool(slow)
            late = [flight for flight in slow if now - flight.since > patience]
            late.sort(key=_age)
            for flight in late:
                self._see_to(flight, late[0])
            for flight in flights:
                if flight.loop is not None and flight.loop.is_closed():
                    server.forget(flight)  # nobody else will ever
        if any(server.silent for server in self._servers):
            self._look_for_others()
        if now - self._last_seen > DOZE:
            self._awake.clear()
            if any(server.flights for server in self._servers):  # one has just begun
                self._awake.set()
        return min(max(TICK, PART * min(self._usual, patience)), LONGEST_TICK)

    def _look_for_others(self) -> None:
        """Where a server keeps silent, one that nobody was to ask yet may be back, or not have heard a probe."""
        for server in self._servers:
            if server.breaker.is_due_in_need or server.probes.are_awaited(server.alive_at):
                probe(server)

    def _measure(self, now: float) -> float:
        """How long a draw may take: by what the last ones took, measured a few times a second."""
        if now - self._measured_at > 0.1:
            self._measured_at = now
            durations = sorted(list(self._durations))  # noqa: C414  # others append meanwhile
            if len(durations) >= FEW:
                usual = max(2 * TICK, LAGS * durations[len(durations) // 2])
                patience = max(FLOOR, TIMES * durations[int(len(durations) * SHARE)])
                self._usual, self._patience = min(usual, self._most), min(patience, self._most)
        return self._patience

    # -- what is done about an overdue draw

    def _see_to(self, flight: Flight, eldest: Flight) -> None:
        if flight.loop is None:
            self._act(flight, eldest)
        elif not flight.is_looked_at and self._action(flight, eldest):
            flight.is_looked_at = True  # a busy loop is not given more to do by every look
            with contextlib.suppress(RuntimeError):  # the loop was closed
                flight.loop.call_soon_threadsafe(self._act_later, flight, eldest, TURNS)

    def _act_later(self, flight: Flight, eldest: Flight, turns: int) -> None:
        """Let a loop that was busy read what has come in, before a server is called silent."""
        if turns and flight.loop is not None:
            flight.loop.call_soon(self._act_later, flight, eldest, turns - 1)
        else:
            flight.is_looked_at = False
            self._act(flight, eldest)

    def _act(self, flight: Flight, eldest: Flight) -> None:
        while action := self._action(flight, eldest):
            action()

    def _action(self, flight: Flight, eldest: Flight) -> Callable[[], object] | None:
        """What is to be done next about a draw; None while it is only to be waited for."""
        server, name, now = flight.server, flight.table.name, time.monotonic()
        if not flight.waits(self._patience, now):
            return None
        if now - flight.since > server.timeout + LOCK_WAIT + GRACE:
            return partial(flight.cut, Cut.TIMED_OUT)
        silent = now - max(flight.table.answered, flight.since) > self._patience
        if silent and not flight.suspected:
            return partial(self._suspect, flight)
        elsewhere = least_busy(self._servers, name, (server,))
        if elsewhere is None and silent:
            elsewhere = self._left_alone(server, name)
        if elsewhere is None:
            return None
        suspect = elsewhere.is_suspect(name)
        if suspect and not (silent and elsewhere.is_alive):
            return None  # it would wait there, too
        is_better = silent and not suspect
        if is_better and elsewhere.is_well(name) and self._may_release(flight, eldest):
            return partial(flight.cut, Cut.RELEASED)
        # beside a silent server, one draw more is no burden for one that answers
        if self._may_hedge(flight) and (is_better or self._tokens >= 1):
            return partial(self._hedge, flight, elsewhere)
        return None

    def _left_alone(self, server: TicketServer, name: str) -> TicketServer | None:
        """Another server that is well, whose table of that name has failed lately, and may be well again."""
        others = [s for s in self._servers if s is not server and s.breaker.is_closed]
        return next((s for s in others if s.not_to_be_asked(name) is None), None)

    def _suspect(self, flight: Flight) -> None:
        """See that others are asked before this server, until it gives a sign of life."""
        server = flight.server
        server.silent.add(flight)
        if flight not in server.flights:  # it has ended meanwhile
            server.silent.discard(flight)
        flight.suspected = True
        probe(server)

    def _may_release(self, flight: Flight, eldest: Flight) -> bool:
        return flight is not eldest and not flight.is_hedge and not flight.is_patient

    def _may_hedge(self, flight: Flight) -> bool:
        return self._hedges and not flight.hedged and not flight.is_hedge

    def _hedge(self, flight: Flight, server: TicketServer) -> None:
        flight.hedged = True
        self._tokens -= 1
        name = f"sqla_tickets hedge of {flight.table.name!r} on {server}"
        beside(lambda: self._draw_too(flight, server), name, in_a_task=flight.loop is not None)
        log.info("%s is overdue: asking %s, too", flight.server, server)

    def _draw_too(self, flight: Flight, server: TicketServer) -> None:
        name, n, was_well = flight.table.name, flight.n, server.is_well(flight.table.name)
        own = Flight(server, server.table(name), n, current_loop())
        own.is_hedge, own.context = True, flight.context
        try:
            drawn = self._moments.draw(own, self.draw)
            if flight.cut(Cut.BEATEN, drawn):
                self._moments.tell("hedged", name, server, "won")
            else:
                self._moments.tell("hedged", name, server, "lost")
                self._moments.discarded(name, sum(map(len, drawn)), "hedge")
        except TicketError as error:
            self._moments.tell("hedged", name, server, "failed")
            flight.hedged = server.is_well(name) or not was_well  # then it would only say so again
            log.info("a hedge has failed, too: %s", error)


def _keep_watch(watch: Callable[[], Watch | None], awake: threading.Event) -> None:
    thread = threading.current_thread()
    while True:
        awake.wait()
        there, tick = watch(), LONGEST_TICK
        if there is None or not there.is_kept_by(thread):
            return
        try:
            tick = there.look()
        except Exception:
            with contextlib.suppress(Exception):  # it may be a handler of the log's that fails
                log.exception("the draws under way could not be looked at")
        del there
        time.sleep(tick)


def _age(flight: Flight) -> float:
    return flight.since
