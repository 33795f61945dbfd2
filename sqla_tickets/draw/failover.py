"""Fail-over: the order in which a draw tries the servers: the least loaded first, equals in rotation."""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Iterator, Sequence
from functools import partial
from itertools import count
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from ..concurrency import pause, random, random_bytes, time
from ..dialects import ErrorKind
from ..errors import (
    Crowded,
    Deadlocked,
    DrawAbandoned,
    NoTicketServer,
    StaleConnection,
    TicketArgumentError,
    TicketError,
    TicketIntegrityError,
    TicketServerError,
    TicketsExhausted,
    TicketTableError,
    TicketTableMissing,
    TicketTableMoved,
    reasons_of,
)
from .health_check import probe
from .shared import SharedDraws
from .timing import TIMING

if TYPE_CHECKING:
    from ..events import Dispatcher
    from .server import TicketServer

log = logging.getLogger(__name__)
_in_flight: Final = attrgetter("in_flight")


def _are_in_flight(servers: Sequence[TicketServer]) -> bool:
    """Whether a draw is in flight whose caller waits for it."""
    return any(len(server.in_flight) > len(server.detached) for server in servers)


def random_start() -> int:
    """A random start of a sequence's rotation, so that processes that draw once reach all servers.

    It does not use ``random``, which repeats itself in processes that seed it, and in forks made by C.
    """
    return int.from_bytes(random_bytes(4), "big")


class Failover:
    """Draws from the servers of one pool: from a healthy one, and from the next one if it fails.

    Args:
        pool: its name.
        servers: the pool's servers.
        events: the dispatcher, for each fail-over to another server.
        random_start: the number of the server that a sequence's first draw begins with, modulo the number of servers.
    """

    def __init__(
        self,
        pool: str,
        servers: Sequence[TicketServer],
        events: Dispatcher,
        random_start: Callable[[], int],
    ) -> None:
        self._pool, self._servers, self._events = pool, servers, events
        self._random_start = random_start
        self.reinit_after_fork()

    def reinit_after_fork(self) -> None:
        """In a fork: begin the rotation at another random server, and share no draw of the parent."""
        self._rotations: dict[str, Callable[[], int]] = {}
        self._shared = SharedDraws(self._events.discarded, partial(_are_in_flight, self._servers))

    def draw(self, name: str, n: int) -> list[range]:
        """Up to ``n`` tickets, at least one, from the first server that answers.

        Raises:
            TicketTableMoved: the sequence has left these servers, or has not arrived yet.
            TicketError: no server has given a ticket.
        """
        next_start = self._rotations.get(name) or self._rotations.setdefault(
            name, count(self._random_start()).__next__
        )
        servers, began = self._servers, time.monotonic()
        start = next_start() % len(servers)
        first = servers[start]
        failures: dict[TicketServer, TicketError] = {}
        table = first.tables.get(name)
        is_first_choice = (
            table is not None
            and table.quarantine is None
            and table.breaker.reason is None
            and first.breaker.reason is None
            and (not first.in_flight or self._is_least_loaded(first))
            and not first.probes.under_way.refs
        )
        if (first.in_flight or not is_first_choice) and self._is_to_share(name, n):
            return self._share(first, name, n)
        try:
            if is_first_choice:
                try:
                    blocks = first.draw_at_once(name, n, began)
                    if blocks is None and not first.connections.are_lent:
                        blocks = first.draw(name, n)
                    if blocks is not None:
                        return blocks
                except TicketArgumentError:
                    raise
                except TicketError as error:
                    failures[first] = error
                    self._log_failure(first, name, error, was_well=True)
            return self._draw_elsewhere(name, n, start, began, failures)
        finally:
            if self._shared.waiting:
                self._shared.let_next_begin()

    def _share(self, first: TicketServer, name: str, n: int) -> list[range]:
        """Up to ``n`` tickets from a draw that other callers share.

        If that takes long, they share another one: if each drew for itself, a busy process, or a busy server, would
        become slower still.
        """
        left = first.timeouts.draw_seconds
        until = time.monotonic() + left
        longest = max(TIMING.shared_wait_seconds, TIMING.shared_wait_times * first.patience)
        while True:
            blocks = self._shared.draw(name, n, self._draw_unshared, min(longest, left))
            if blocks is not None:
                return blocks
            left = until - time.monotonic()
            if left <= 0 or not self._is_to_share(name, n):
                return self._draw_unshared(name, n)

    def _draw_unshared(self, name: str, n: int) -> list[range]:
        """The same as `draw`, however many draws are in flight."""
        try:
            # an interrupted draw may go on in a fork, whose rotations are new
            start = self._rotations.get(name, self._random_start)() % len(self._servers)
            return self._draw_elsewhere(name, n, start, time.monotonic(), {})
        finally:
            if self._shared.waiting:
                self._shared.let_next_begin()

    def _is_to_share(self, name: str, n: int) -> bool:
        """Whether a draw is small, and even the server that it would go to has many in flight."""
        # nearly the same as `_are_in_flight`, without the call
        if n > TIMING.most_in_a_share or not any(map(_in_flight, self._servers)):
            return False
        well = plan(self._servers, name)
        return bool(well) and len(well[0].in_flight) >= TIMING.shared_from

    def _is_least_loaded(self, server: TicketServer) -> bool:
        """Whether a server that draws wait for answers them, and no other server has fewer in flight."""
        load = len(server.in_flight)
        return not server.unresponsive and all(len(s.in_flight) >= load for s in self._servers)

    def _draw_elsewhere(
        self, name: str, n: int, start: int, began: float, failures: dict[TicketServer, TicketError]
    ) -> list[range]:
        failed = next(iter(failures), None)
        for server in servers_to_try(self._servers, name, start, began, failures):
            if failed is not None and not isinstance(failures[failed], Deadlocked):
                self._events.dispatch_event("failed_over", name, failed, failures[failed])
            was_well = server.breaker.reason is None
            try:
                stays = isinstance(failures.get(server), Deadlocked)
                is_patient = server in failures and not stays
                return server.draw(name, n, is_patient=is_patient, stays=stays)
            except TicketArgumentError:
                raise
            except TicketError as error:
                failures[server], failed = error, server
                self._log_failure(server, name, error, was_well=was_well)
        raise self._none_left(name, failures)

    def _log_failure(
        self, server: TicketServer, name: str, error: TicketError, *, was_well: bool
    ) -> None:
        # a busy table has many deadlocks, and a sequence that has moved is followed
        if isinstance(error, (Deadlocked, TicketTableMoved)):
            return
        is_news = was_well  # else it was logged before
        table = server.table(name).breaker
        if (
            is_news and not table.is_closed
        ):  # each retry of a table that does not fit finds the same
            is_news = table.is_news(error)
        level = logging.WARNING if is_news else logging.INFO
        log.log(level, "a draw has failed, and goes on to the next ticket server: %s", error)

    def _none_left(self, name: str, failures: dict[TicketServer, TicketError]) -> TicketError:
        reasons = reasons_of(failures.values())
        message = f"no ticket server of {self._pool!r} can issue a ticket of {name!r}: {reasons}"
        for failure in failures.values():
            if isinstance(failure, TicketTableMoved):
                return failure
        classes: tuple[type[TicketError], ...]
        classes = (TicketTableMissing, TicketTableError, TicketsExhausted, TicketIntegrityError)
        for error_class in classes:
            if all(isinstance(failure, error_class) for failure in failures.values()):
                error = error_class(message)
                kinds = {failure.kind for failure in failures.values()}
                if len(kinds) == 1:
                    error.kind = kinds.pop()
                return error
        return NoTicketServer(message, {str(server): e for server, e in failures.items()})


def servers_to_try(
    servers: Sequence[TicketServer],
    name: str,
    start: int,
    began: float,
    failures: dict[TicketServer, TicketError],
) -> Iterator[TicketServer]:
    """Yield the servers that a draw of ``name`` tries in turn, until one answers.

    1. The healthy ones, by their load; once more, those where a deadlock has ended the draw. 2. Those that failed
    before, but fail fast. 3. Those that this draw has tried and that deserve a second try: the draw left too early, an
    idle connection was dead (a firewall may have cut all of them), or they have answered others since. 4. The
    unresponsive ones, once they answer a probe. 5. Those whose tables serve a queue of others: the draw joins the
    queue again.

    Args:
        servers: the pool's servers.
        name: the sequence's name.
        start: the index of the first one among equals.
        began: when the draw began, by ``time.monotonic()``.
        failures: this draw's failures so far; the caller adds one before it takes the next server. Servers
            that are not asked at all are added.
    """
    ring = [*servers[start:], *servers[:start]]
    for server in ring:
        if server.breaker.reason is not None and server.breaker.state == "half_open":
            probe(server)
    while well := _healthy(ring, name, failures) if failures else plan(ring, name):
        if well[0] in failures:
            # spreads retries, guards no secret
            pause(random.uniform(0, TIMING.deadlock_pause_seconds))
        yield well[0]
    for server in ring:
        if server.breaker.timed_out:
            probe(server, TIMING.stale_forced_probe_seconds)
    left_out: list[TicketServer] = []
    polls = _polls(_last_poll(servers, began))
    yield from _forced_trials(ring, name, failures, left_out, polls)
    for server in ring:
        if _is_to_be_asked_again(server, name, failures[server]):
            yield server
    unresponsive = [server for server in ring if server in left_out or server.breaker.timed_out]
    yield from _coming_back(unresponsive, name, polls)
    for _ in range(TIMING.max_queues):
        now = time.monotonic()
        for server in ring:
            if _is_a_queue(server, name, failures[server], began):
                yield server
        began = now


def _healthy(
    ring: Sequence[TicketServer], name: str, failures: dict[TicketServer, TicketError]
) -> list[TicketServer]:
    """The healthy servers; those where a deadlock has ended the draw come before those that seem unresponsive."""
    tried = [server for server, error in failures.items() if not isinstance(error, Deadlocked)]
    well = plan(ring, name, tried)
    return sorted(well, key=lambda server: (server.is_unresponsive(name), server in failures))


def _last_poll(servers: Sequence[TicketServer], began: float) -> float:
    """The time until which a draw waits for probes, by ``time.monotonic()``.

    It is only a moment, so that a server that has hung for long delays no draw. If all servers failed less than a
    time-out ago, it is the rest of that time-out, since a thawed server has much to catch up with.
    """
    timeouts = [server.timeouts.timeout_seconds for server in servers]
    failed = [
        server.breaker.opened_at - server.breaker.timed_out * server.timeouts.timeout_seconds
        for server in servers
    ]
    last = max(time.monotonic() + TIMING.probe_wait_seconds, max(failed) + max(timeouts))
    return min(last, began + sum(timeouts))


def _polls(end: float) -> Iterator[float]:
    """Yield the times at which a draw polls the running probes, with pauses, until its time is over."""
    began = now = time.monotonic()
    while now < end:
        yield now
        # the longer it has waited, the longer it pauses: many draws may wait here
        pause(max(TIMING.probe_pause_seconds, TIMING.probe_pause_part * (now - began)))
        now = time.monotonic()


def _forced_trials(
    ring: Sequence[TicketServer],
    name: str,
    failures: dict[TicketServer, TicketError],
    left_out: list[TicketServer],
    polls: Iterator[float],
) -> Iterator[TicketServer]:
    """Failed servers that fail quickly; the unresponsive ones are left out.

    Clients whose draws fail at once try again at once. If each draw opened a connection, a server that is down could
    hardly start again. So one draw asks for all draws that came here before it.
    """
    # a result from while this draw waited for another server may be outdated
    since = time.monotonic()
    rest = [server for server in ring if server not in failures]
    while rest:
        may_wait = next(polls, None) is not None
        for server in list(rest):
            reason, found = server.not_to_be_asked(name), server.breaker.shared_result(since)
            if reason is not None:
                left_out.append(server)
                failures[server] = reason
            elif found is not None:
                failures[server] = found
            elif may_wait and not server.breaker.admits_trial():
                continue
            else:
                asked_at = time.monotonic()
                yield server
                server.breaker.share_result(asked_at, failures[server])
            rest.remove(server)


def _is_to_be_asked_again(server: TicketServer, name: str, failure: TicketError) -> bool:
    if server.not_to_be_asked(name) is not None:
        return False
    if isinstance(failure, (DrawAbandoned, StaleConnection)):
        return True
    if (
        failure.kind == ErrorKind.TOO_MANY_CONNECTIONS.word
    ):  # which opens no breaker while others are open
        return False
    # the failure opened a breaker, so the server has answered another draw since
    is_well = server.breaker.is_closed and server.table(name).reason is None
    return is_well and isinstance(failure, TicketServerError)


def _is_a_queue(server: TicketServer, name: str, failure: TicketError, since: float) -> bool:
    """Whether the table that a draw waited for in vain serves other clients, of any process."""
    # in a queue, too, a connection that was idle may have been cut off
    are_served = isinstance(failure, (Crowded, StaleConnection)) or (
        failure.kind == ErrorKind.LOCK_TIMEOUT.word and server.table(name).answered > since
    )
    # a full server serves the connections that are open
    are_served = are_served or (
        failure.kind == ErrorKind.TOO_MANY_CONNECTIONS.word and server.breaker.is_closed
    )
    return are_served and server.not_to_be_asked(name) is None


def _coming_back(
    unresponsive: list[TicketServer], name: str, polls: Iterator[float]
) -> Iterator[TicketServer]:
    """Yield the unresponsive servers that answer a probe in time, as their answers arrive.

    The table's breaker is ignored: it may be open because the server was unresponsive.
    """
    while unresponsive:
        is_last = next(polls, None) is None
        for server in list(unresponsive):
            if server.breaker.timed_out:
                probe(server, TIMING.stale_forced_probe_seconds)
                continue
            unresponsive.remove(server)
            if server.not_to_be_asked(name) is None:
                yield server
        if is_last:
            return


def plan(
    servers: Sequence[TicketServer], name: str, tried: Container[TicketServer] = ()
) -> list[TicketServer]:
    """The servers whose circuits admit a draw of a sequence, the least loaded first.

    It asks no server, waits for none and changes nothing. The circuit of a server must be closed, as its trials are
    probes. The circuit of a table may be half-open, as a table's error costs no wait.

    Args:
        servers: the pool's servers; among equals the first comes first.
        name: the sequence's name.
        tried: the servers to leave out.
    """
    well: list[TicketServer] = []
    for server in servers:
        if server.breaker.reason is not None or server in tried:
            continue
        table = server.tables.get(name)
        if table is not None and table.quarantine is not None:
            continue
        if table is None or table.breaker.reason is None or table.breaker.state == "half_open":
            well.append(server)
    if len(well) > 1:
        well.sort(key=lambda server: server.load(name))
    return well
