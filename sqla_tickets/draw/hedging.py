"""The hedging monitor: it finds overdue requests in flight, and sends them to another server, too.

A driver that waits for an answer can only be reached through its socket. So a thread of the pool polls the requests in
flight. A request is overdue when it has waited longer than usual, and no answer is in its socket. The monitor then
sends a *hedge*: the same draw to another server. The first answer wins; the loser's ticket is a gap.

A draw that reads its own socket notices by itself when it is overdue: each poll of each process takes processor time
from the draws. It sends the hedge in its own thread, as another one would run later on a busy machine. If the hedge
wins, the request is *detached*. The monitor waits for its late answer, which shows that the server is alive, and then
keeps the connection: a new one would cost a busy server more than the draw. If the draw cannot hedge, it wakes the
monitor.

When a server answers no request at all, only the oldest one keeps waiting, until its time-out, and is hedged. All
others fail over to the next server at once, and a probe pings one whose draw was given up.

All of this costs a server in trouble more than the draw did, and a busy server looks like a frozen one. So a budget
of tokens pays for it. A suspicion costs a token; a hedge that wins in time returns it, and so do many draws. Each
missing token doubles the patience of a draw, up to the longest of the last draws. Without tokens, a draw waits for
its server. A process begins with one: many that start at once are slow, and none knows yet what is usual.

After a burst of draws, the same thread closes idle connections that no draw has needed for a while.
"""

from __future__ import annotations

import contextlib
import logging
import math
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from ..concurrency import begun, in_background, threading, time, timestamps
from ..errors import TicketError
from .blocks import count
from .failover import plan
from .health_check import probe
from .slow_path import CancelReason
from .timing import TIMING

if TYPE_CHECKING:
    from ..events import Dispatcher
    from .server import InFlightRequest, TicketServer

__all__ = ["HedgingMonitor"]

log = logging.getLogger(__name__)

#: Sends an overdue request to another server, too, for a number of tokens.
_Hedge: TypeAlias = "Callable[[InFlightRequest, TicketServer, int], None]"


class HedgingMonitor:
    """The requests in flight on the servers of one pool.

    Args:
        servers: the pool's servers.
        hedge: whether an overdue draw is sent to another server, too.
        events: the dispatcher, for hedges.

    Attributes:
        poller: its thread.
        durations: how long the last answered draws took, in seconds; each draw appends its own.
        ended: how many draws have ended since the last measurement.
        patience: after how many seconds a draw is overdue.
        measure_at: when it is to be measured again, by ``time.monotonic()``.
    """

    def __init__(self, servers: Sequence[TicketServer], *, hedge: bool, events: Dispatcher) -> None:
        self._servers, self._hedges, self._events = servers, hedge, events
        #: The longest patience of a draw in seconds, however slow the other draws were.
        self._most = min(server.timeouts.timeout_seconds for server in servers) / 2
        self.reinit_after_fork()

    def reinit_after_fork(self) -> None:
        """In a fork: forget the monitor's thread and its requests, which are the parent's."""
        self._starting = threading.Lock()
        self.poller = _Poller(self)
        self.durations: deque[float] = deque(maxlen=TIMING.remembered_draws)
        self._tokens, self.ended = TIMING.first_tokens, 0
        self._usual = self.patience = TIMING.first_patience_seconds
        self.measure_at = 0.0
        self._next_poll, self._lags = math.inf, False
        self._last_seen = self._closed_at = 0.0
        self._stopped_at = 0

    def __del__(self) -> None:
        self.poller.awake.set()  # the thread sees that there is no request

    # -- the thread

    def wake_up(self) -> None:
        """Wake the monitor's thread, since a request is in flight.

        It is not started for a background call that began before `close`: time-outs end that call.
        """
        try:
            with self._starting:
                poller = before = self.poller
                if not before.goes_on:
                    if begun() < self._stopped_at:
                        return
                    poller = self.poller = _Poller(self)
                    before.end()  # if an interrupt came while it started or ended
                    poller.thread.start()
                self._next_poll = math.inf
                poller.awake.set()
                poller.is_awake = True  # the last: an interrupt may come before
        except RuntimeError as error:  # at exit, or at a limit
            # without the lock, as a logging handler may draw, or wait for one that does
            log.warning("no thread polls the draws, so none is hedged: %s", error)

    def fall_asleep(self, poller: _Poller) -> None:
        """Record that a thread polls no requests; draws that begin later call `wake_up`."""
        with self._starting:
            poller.awake.clear()
            poller.is_awake = False

    def close(self) -> None:
        """Stop the thread until the next draw; it polls the requests that are in flight until they end."""
        for server in self._servers:
            server.close_detached()
        with self._starting:
            self._stopped_at = next(timestamps)
            poller = self.poller
            if not poller.thread.is_alive():
                return
            poller.is_awake = False  # the first: the thread sees the requests that have read True
            poller.end()
            self.poller = _Poller(self)
        if poller.thread is not threading.current_thread() and not self.has_draws:
            with contextlib.suppress(RuntimeError):  # Python 3.14, at exit
                poller.thread.join(timeout=1)

    def poll(self) -> float:
        """Handle every overdue request.

        Returns:
            Seconds until the next poll.
        """
        now = time.monotonic()
        # This process got no processor time, so no server is blamed until the next poll, which may be late, too.
        self._lags = not self._lags and now - self._next_poll > TIMING.lag_seconds
        if now > self.measure_at:
            self.measure(now)
        patience = self.patience
        # a draw that begins now is overdue at the next poll
        tick = max(TIMING.tick_seconds, min(patience, TIMING.measure_seconds))
        if self._lags:
            tick = min(2 * tick, TIMING.measure_seconds)  # polls cost what the draws lack
        are_some_unresponsive = False
        for server in self._servers:
            for request in list(server.detached):
                self._poll_detached(request, now)
            in_flight = list(server.in_flight)
            if any(request.is_polled for request in in_flight):
                self._last_seen = now
            requests = [request for request in in_flight if request.is_to_be_polled(now)]
            if any(now - request.since > patience for request in requests):
                _remove_ended(server, server.in_flight)
                self._handle_late(requests, now, patience)
                tick = min(tick, TIMING.late_tick_seconds)
            if server.unresponsive:
                are_some_unresponsive = True
                _remove_ended(server, server.unresponsive)
        if are_some_unresponsive:
            self._probe_others()
        if now - self._closed_at > TIMING.unused_seconds:
            self.close_unused()
        self._next_poll = now + tick
        return tick

    def _handle_late(self, requests: list[InFlightRequest], now: float, patience: float) -> None:
        """Handle those requests on one server that have waited for longer than ``patience`` seconds."""
        requests = sorted(requests, key=_age)
        late = [r for r in requests if not self._lags and not r.is_over and r.waits(patience, now)]
        for request in late:
            self._handle(request, late[0])

    def _poll_detached(self, request: InFlightRequest, now: float) -> None:
        """End a detached request if its answer has come, or is no longer needed."""
        server, waited = request.server, now - request.since
        timeout = server.timeouts.timeout_seconds
        if not request.is_ready and waited > TIMING.ask_again_part * timeout:
            probe(server, timestamp=request.begun)
            if server.alive_at > request.since:  # so only this connection is slow, or lost
                request.cancel(CancelReason.LOST_HEDGE)
            elif waited > timeout:
                request.cancel(CancelReason.TIMED_OUT)
        if request.is_ready:
            server.settle(request)

    def rest(self) -> bool:
        """Do what has waited for a pause of the draws; returns whether more may be left."""
        may_write_more = self._servers[0].write_last_marks()
        return self.close_unused() or may_write_more

    def close_unused(self) -> bool:
        """Close connections that no draw has needed for a while; returns whether more may be closed later."""
        self._closed_at = time.monotonic()
        may_close_more = [server.connections.close_unused() for server in self._servers]
        return any(may_close_more)

    @property
    def is_idle(self) -> bool:
        """Whether there have been no draws that it must poll for a while."""
        return (
            time.monotonic() - self._last_seen > TIMING.monitor_idle_seconds and not self.has_draws
        )

    @property
    def has_draws(self) -> bool:
        """Whether a request is in flight that it must poll."""
        return any(request.is_polled for s in self._servers for request in list(s.in_flight))

    def needs(self, ended: _Poller) -> bool:
        """Whether only a thread that `close` has ended polls the requests in flight."""
        poller = self.poller
        return poller is not ended and not poller.is_awake and self.has_draws

    def _probe_others(self) -> None:
        """Probe servers whose circuits are open while one is unresponsive: they may be back, or missed a probe."""
        for server in self._servers:
            if server.breaker.is_due_for_forced_trial or server.probes.are_awaited(server.alive_at):
                probe(server)

    def check(self, now: float) -> None:
        """Measure, and wake the thread if a request is late that an interrupt kept from ending, or from being polled.

        Draws call it: the first ones of a process each, then a few times a second; less often where few end, and it
        would cost more than they do.
        """
        are_few = self.ended < TIMING.few_draws <= len(self.durations)
        self.measure(now)
        if are_few:
            self.measure_at = now + TIMING.slow_measure_seconds
        if not self.poller.is_awake and self._has_late(now):
            self.wake_up()

    def measure(self, now: float) -> None:
        """Set the patience of draws, a few times a second, by the durations of the last draws and the tokens left."""
        self._events.read_log_level()
        ended, self.ended = self.ended, 0
        self._earn(TIMING.tokens_per_draw * ended)
        durations = sorted(self.durations.copy())  # in one step, as other threads append
        longest = self._most
        self.measure_at = now  # until enough were answered, no draw knows what is usual
        if len(durations) >= TIMING.few_draws:
            self.measure_at = now + TIMING.measure_seconds
            long = durations[int(len(durations) * TIMING.overdue_share)]
            self._usual = max(TIMING.least_patience_seconds, TIMING.overdue_times * long)
            longest = max(self._usual, durations[-1])
        missing = TIMING.most_tokens - self._tokens
        self.patience = min(self._most, longest, self._usual * 2**missing)

    def _has_late(self, now: float) -> bool:
        in_flight = [request for server in self._servers for request in list(server.in_flight)]
        return any(now - r.since > self.patience + TIMING.tick_seconds for r in in_flight)

    def _earn(self, tokens: float) -> None:
        self._tokens = min(TIMING.most_tokens, self._tokens + tokens)

    # -- an overdue draw

    def hedge(self, request: InFlightRequest) -> None:
        """Handle an overdue request in its own thread: another server's answer detaches it."""
        try:
            while action := self._action(request, request, self._hedge_here):
                action()
        except Exception:
            with contextlib.suppress(Exception):  # a logging handler may be what fails
                log.exception("an overdue draw could not be sent to another server")

    def _handle(self, request: InFlightRequest, oldest: InFlightRequest) -> None:
        if request.loop is None:
            self._act(request, oldest)
        elif not request.is_scheduled and self._action(request, oldest, self._hedge):
            request.is_scheduled = True  # a poll must not add work to a busy loop every time
            with contextlib.suppress(RuntimeError):  # the loop was closed
                request.loop.call_soon_threadsafe(
                    self._act_later, request, oldest, TIMING.loop_iterations
                )

    def _act_later(
        self, request: InFlightRequest, oldest: InFlightRequest, iterations: int
    ) -> None:
        """Let a busy loop read its sockets before a server counts as unresponsive."""
        if iterations and request.loop is not None:
            request.loop.call_soon(self._act_later, request, oldest, iterations - 1)
        else:
            request.is_scheduled = False
            self._act(request, oldest)

    def _act(self, request: InFlightRequest, oldest: InFlightRequest) -> None:
        while action := self._action(request, oldest, self._hedge):
            action()

    def _action(
        self, request: InFlightRequest, oldest: InFlightRequest, hedge: _Hedge
    ) -> Callable[[], object] | None:
        """The next action for an overdue request; None while it keeps waiting."""
        server, name, now = request.server, request.table.name, time.monotonic()
        if not request.waits(self.patience, now):
            return None
        unheard = now - max(request.since, server.alive_at)
        if unheard > server.timeouts.timeout_seconds or now > request.deadline:
            return partial(request.cancel, CancelReason.TIMED_OUT)
        if unheard > TIMING.ask_again_part * server.timeouts.timeout_seconds:
            # it may wait for a lock; then the server answers the probe
            probe(server, timestamp=request.begun)
        if request.is_late_hedge:  # its server is not to blame
            return partial(request.cancel, CancelReason.CALLER_GONE)
        no_answers = now - max(request.table.answered, request.since) > self.patience
        if no_answers and not request.is_unanswered:
            is_paid = bool(server.unresponsive) or self._tokens >= 1
            return partial(self._mark_unresponsive, request) if is_paid else None
        elsewhere = next(iter(plan(self._servers, name, (server,))), None)
        if elsewhere is None and no_answers:
            elsewhere = self._recovering_elsewhere(server, name)
        if elsewhere is None:
            return None
        others_wait = elsewhere.is_unresponsive(name)
        if others_wait and not (no_answers and elsewhere.is_alive):
            return None  # the hedge would wait there, too
        is_better = no_answers and not others_wait
        if is_better and elsewhere.is_well(name) and self._may_release(request, oldest):
            return partial(request.cancel, CancelReason.FAILED_OVER)
        is_paid = is_better and request is oldest  # by the suspicion
        if self._may_hedge(request) and (is_paid or self._tokens >= 1):
            return partial(hedge, request, elsewhere, 0 if is_paid else 1)
        return None

    def _recovering_elsewhere(self, server: TicketServer, name: str) -> TicketServer | None:
        """Another healthy server, whose table failed lately and may have recovered."""
        others = [s for s in self._servers if s is not server and s.breaker.is_closed]
        return next((s for s in others if s.not_to_be_asked(name) is None), None)

    def _mark_unresponsive(self, request: InFlightRequest) -> None:
        """Mark a server unresponsive, so that draws prefer others until it answers."""
        server = request.server
        if not server.unresponsive:
            self._tokens -= 1
        server.unresponsive.add(request)
        if request not in server.in_flight:  # it has ended
            server.unresponsive.discard(request)
        request.is_unanswered = True

    def _may_release(self, request: InFlightRequest, oldest: InFlightRequest) -> bool:
        waits_elsewhere = request.is_hedge or request.waits_for_hedge
        return request is not oldest and not waits_elsewhere and not request.is_patient

    def _may_hedge(self, request: InFlightRequest) -> bool:
        return self._hedges and not request.hedged and not request.is_hedge

    def _hedge(self, request: InFlightRequest, server: TicketServer, tokens: int) -> None:
        """Begin a hedge in the background."""

        def draw_too() -> None:
            self._draw_too(request, server)

        request.hedged = True
        self._tokens -= tokens
        name = f"sqla_tickets hedge of {request.table.name!r} on {server}"
        in_a_task = request.loop is not None
        in_background(draw_too, name, in_a_task=in_a_task, timestamp=request.begun)
        _log_hedge(request, server)

    def _hedge_here(self, request: InFlightRequest, server: TicketServer, tokens: int) -> None:
        """Hedge a request in its own thread, or in the background if something has to be found out first."""
        request.hedged = request.waits_for_hedge = True
        self._tokens -= tokens  # before other threads look, and before it earns one
        try:
            is_sent = self._draw_too(request, server)
        finally:
            request.waits_for_hedge = False
        if is_sent:
            _log_hedge(request, server)
        else:
            self._hedge(request, server, 0)

    def _draw_too(self, request: InFlightRequest, server: TicketServer) -> bool:
        """Draw from another server; returns False if that has to be done in the background."""
        name, n, was_well = request.table.name, request.n, server.is_well(request.table.name)
        began = time.monotonic()
        try:
            if request.waits_for_hedge:
                quick = server.draw_at_once(name, n, began, request)
                if quick is None:
                    return False
                drawn, has_won = quick, request.detach(quick)
            else:
                drawn = server.draw(name, n, hedge_of=request)
                has_won = request.cancel(CancelReason.LOST_HEDGE, drawn)
            if has_won:
                if time.monotonic() - began < self._usual:  # else the other server is as slow
                    self._earn(1)
                self._events.dispatch_event("hedged", name, server, "won")
            else:
                self._events.dispatch_event("hedged", name, server, "lost")
                self._events.discarded(name, count(drawn), "hedge")
        except TicketError as error:
            self._events.dispatch_event("hedged", name, server, "failed")
            # else the log would only repeat itself
            request.hedged = server.is_well(name) or not was_well
            log.info("a hedge failed: %s", error)
        return True


class _Poller:
    """The thread of a monitor, from its first draw to its end; a later thread has its own event.

    Attributes:
        awake: set while the thread polls the requests; the thread clears it at its end.
        is_awake: the same for draws, which read it without a call. Each thread has its own, so that a fork or an
            interrupt in `HedgingMonitor.wake_up` leaves none that is set where no thread polls.
        thread: started by the first draw.
    """

    def __init__(self, monitor: HedgingMonitor) -> None:
        self._monitor: Callable[[], HedgingMonitor | None] = weakref.ref(monitor)
        self._over = threading.Event()
        #: How long it sleeps at most; None if only a draw wakes it.
        self._sleep_seconds: float | None = None
        self.awake, self.is_awake = threading.Event(), False
        self.thread = threading.Thread(
            target=self._run, name="sqla_tickets hedging monitor", daemon=True
        )

    @property
    def is_resting(self) -> bool:
        """Whether it sleeps, or has not begun, and only `HedgingMonitor.wake_up` ends that."""
        return self._sleep_seconds is None and not self.is_awake

    @property
    def goes_on(self) -> bool:
        """Whether it has begun, and has not been asked to end."""
        return not self._over.is_set() and self.thread.is_alive()

    def end(self) -> None:
        """Ask the thread to end, asleep or not; a second call does no harm."""
        self._over.set()
        self.awake.set()

    def _run(self) -> None:
        try:
            while self._poll_once():
                pass
        finally:
            self._over.set()  # whatever has ended it, only another thread can go on
            monitor = self._monitor()
            if monitor is not None:
                monitor.fall_asleep(self)
            # an interrupt came before `close` had put the next one in its place, and then a draw
            if monitor is not None and monitor.poller is self and monitor.has_draws:
                monitor.wake_up()

    def _poll_once(self) -> bool:
        is_awake = self.awake.is_set() or self.awake.wait(self._sleep_seconds)
        monitor, tick, is_over = self._monitor(), TIMING.late_tick_seconds, self._over.is_set()
        if monitor is None or (is_over and not monitor.needs(self)):
            return False
        try:
            if is_awake:
                tick, self._sleep_seconds = monitor.poll(), TIMING.unused_seconds
            else:
                self._sleep_seconds = None  # first: what begins meanwhile wakes it
                if monitor.rest():
                    self._sleep_seconds = TIMING.unused_seconds
        except Exception:
            with contextlib.suppress(Exception):  # a logging handler may be what fails
                log.exception("the requests in flight could not be polled")
        if is_awake and monitor.is_idle:
            monitor.fall_asleep(self)
            if monitor.has_draws or self._over.is_set():  # only just
                self.awake.set()
        del monitor
        if is_over:
            time.sleep(min(tick, TIMING.late_tick_seconds))
        else:
            self._over.wait(tick)
        return True


def _remove_ended(server: TicketServer, requests: set[InFlightRequest]) -> None:
    """Remove the requests of draws that are over: an interrupt kept other code from doing so."""
    for request in list(requests):
        if request.is_over:
            server.remove(request)


def _log_hedge(request: InFlightRequest, server: TicketServer) -> None:
    log.info("a draw from %s is overdue, and was sent to %s, too", request.server, server)


def _age(request: InFlightRequest) -> float:
    return request.since
