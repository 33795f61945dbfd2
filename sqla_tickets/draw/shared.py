"""Shared draws: callers that come while many draws are in flight get their tickets from one draw.

A hundred tickets cost one round trip, as one ticket does. So a process with hundreds of threads or tasks need not send
hundreds of draws at once, each of which waits for a connection, for the server and for the interpreter. The first
caller that comes while many draws are in flight leads a shared draw: it waits until one of them has ended. The callers
that come in that time follow it. The leader draws for all, and it alone divides the tickets. Where the callers are
tasks, the leader is a task of its own, since any of them may be cancelled.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from sqlalchemy.util import await_only

from ..concurrency import TaskEvent, begin_task, current_loop, threading
from ..errors import NoTicketServer, TicketError, TicketsExhausted, copy_of
from .blocks import DrawBlocks, count, split
from .timing import TIMING

if TYPE_CHECKING:
    from ..events import DiscardReason

__all__ = ["SharedDraws"]


class _Key(NamedTuple):
    """What followers and their leader have in common.

    Attributes:
        sequence: the sequence's name.
        loop: the event loop, if they are tasks.
    """

    sequence: str
    loop: asyncio.AbstractEventLoop | None


class _ThreadEvent:
    """An event for one thread, which a signal handler may set while that thread is just waiting; a wait that ends resets it."""

    def __init__(self) -> None:
        self._under_way = threading.Lock()
        self._under_way.acquire()

    def set(self) -> None:
        """Set it, and wake the thread that waits."""
        with suppress(RuntimeError):  # it is set
            self._under_way.release()

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until it is set, for at most ``seconds``; returns whether it is."""
        return self._under_way.acquire(timeout=-1 if seconds is None else seconds)


def _event_of(loop: asyncio.AbstractEventLoop | None) -> _ThreadEvent | TaskEvent:
    return _ThreadEvent() if loop is None else TaskEvent()


class _Share:
    """A caller's part of a shared draw.

    Args:
        n: how many tickets it wants.
        loop: the event loop, if it is a task.

    Attributes:
        over: set when the draw has ended.
        tickets: its tickets; none before the draw has ended, or if it has failed.
        errors: why the draw has failed, if it has.
    """

    __slots__ = ("_unsettled", "errors", "n", "over", "tickets")

    def __init__(self, n: int, loop: asyncio.AbstractEventLoop | None) -> None:
        self.n, self.over, self._unsettled = n, _event_of(loop), [None]
        self.tickets: list[range] = []
        self.errors: list[TicketError] = []

    @property
    def waits(self) -> bool:
        """Whether its caller still waits for tickets."""
        return bool(self._unsettled)

    def settle(self) -> bool:
        """True once: for the leader, who then sets the tickets, or for the caller, who then leaves without any."""
        try:
            self._unsettled.pop()
        except IndexError:
            return False
        return True


class _SharedDraw:
    """A draw for several callers: threads, or tasks of one event loop.

    Attributes:
        key: what its callers have in common.
        shares: the parts of all callers, the leader's first.
        may_begin: set when another draw has ended.
        was_offered: whether others were let follow.
        is_over: whether it has ended, so that no more callers are woken.
    """

    __slots__ = ("is_over", "key", "may_begin", "shares", "was_offered")

    def __init__(self, key: _Key, leader: _Share) -> None:
        self.key, self.shares, self.may_begin = key, [leader], _event_of(key.loop)
        self.was_offered = self.is_over = False

    def let_begin(self) -> bool:
        """Let it begin; returns whether it can. Any thread may call this."""
        if self.key.loop is None:
            self.may_begin.set()
            return True
        try:
            self.key.loop.call_soon_threadsafe(self.may_begin.set)
        except RuntimeError:  # the loop has ended
            return False
        return True


class SharedDraws:
    """The shared draws of one pool.

    Args:
        discarded: called with a sequence, the number of tickets whose callers have left, and the reason.
        are_in_flight: whether draws are in flight, whose end lets the next one begin.

    Attributes:
        waiting: those that have not begun, in order of arrival.
    """

    def __init__(
        self,
        discarded: Callable[[str, int, DiscardReason], object],
        are_in_flight: Callable[[], bool],
    ) -> None:
        self._discarded, self._are_in_flight = discarded, are_in_flight
        self.waiting: Final[deque[_SharedDraw]] = deque()
        self._open: dict[_Key, _SharedDraw] = {}

    def draw(self, name: str, n: int, draw: DrawBlocks, longest_wait: float) -> list[range] | None:
        """Up to ``n`` tickets from a shared draw; None if the caller must draw for itself.

        Args:
            name: the sequence's name.
            n: how many tickets are wanted.
            draw: draws for all, if this caller leads.
            longest_wait: for how many seconds this caller waits at most for the draw to begin, and again for its end.

        Raises:
            TicketError: as ``draw`` raises it, for all of its callers.
        """
        loop = current_loop()
        key, share = _Key(name, loop), _Share(n, loop)
        shared = self._open.get(key)
        try:
            if shared is not None and len(shared.shares) < TIMING.most_shares:
                self._follow(shared, share, longest_wait)
            elif loop is None:
                self._lead(_SharedDraw(key, share), draw, longest_wait)
            else:
                self._lead_in_task(_SharedDraw(key, share), draw, longest_wait)
        except BaseException:
            if not share.settle():
                self._discarded(name, count(share.tickets), "shared")
            raise
        if share.errors:
            raise share.errors.pop()
        return share.tickets or None

    def _follow(self, shared: _SharedDraw, share: _Share, longest_wait: float) -> None:
        shared.shares.append(share)
        # a leader that began before that divides its tickets without this caller
        if shared.is_over or share.over.wait(longest_wait):
            return
        # its leader is held up, perhaps by the signal handler that calls this
        self._let_none_follow(shared)
        if not share.settle():
            share.over.wait(longest_wait)  # it is just dividing them

    def _lead(self, shared: _SharedDraw, draw: DrawBlocks, longest_wait: float) -> None:
        unused = 0
        try:
            self._offer(shared)
            if self._are_in_flight():  # they may all have ended since
                shared.may_begin.wait(longest_wait)
            self._close(shared)
            if shares := [share for share in shared.shares if share.waits]:
                unused = divide(_drawn_for(shares, shared, draw), shares)
        finally:
            self._end(shared)
        self._discarded(shared.key.sequence, unused, "shared")

    def _lead_in_task(self, shared: _SharedDraw, draw: DrawBlocks, longest_wait: float) -> None:
        """Lead in a task of its own, so that the cancellation of one caller does not end the draw of all."""
        lead = partial(self._lead, shared, draw, longest_wait)
        task = begin_task(lead, f"sqla_tickets shared draw of {shared.key.sequence}")
        task.add_done_callback(partial(self._has_ended, shared))
        self._offer(shared)
        try:
            shared.shares[0].over.wait()
            if not task.done():  # a listener of discarded tickets waits
                await_only(asyncio.wait([task]))
            if not task.cancelled():  # else the caller draws for itself
                task.result()
        finally:
            del task  # its error would refer to itself

    def _has_ended(self, shared: _SharedDraw, task: asyncio.Task[None]) -> None:
        self._end(shared)  # it may have been cancelled or interrupted before it could
        if not task.cancelled():
            task.exception()  # the caller that began it may have left

    def _offer(self, shared: _SharedDraw) -> None:
        """Let others follow, and let the end of another draw begin it."""
        if not shared.was_offered:
            shared.was_offered = True
            self._forget_ended_loops()
            self._open[shared.key] = shared
            self.waiting.append(shared)

    def _let_none_follow(self, shared: _SharedDraw) -> None:
        if self._open.get(shared.key) is shared:
            self._open.pop(shared.key, None)

    def _close(self, shared: _SharedDraw) -> None:
        """Let no more callers follow, and no other draw begin it."""
        self._let_none_follow(shared)
        with suppress(ValueError, IndexError):  # another draw lets it begin
            self.waiting.remove(shared)

    def _end(self, shared: _SharedDraw) -> None:
        """Wake all followers, and let no more callers follow."""
        self._close(shared)
        shared.is_over = True
        for share in shared.shares:
            share.over.set()

    def _forget_ended_loops(self) -> None:
        """Forget draws of event loops that were closed in the middle, where no leader goes on."""
        for key in list(self._open):
            if key.loop is not None and key.loop.is_closed():
                self._open.pop(key, None)

    def let_next_begin(self) -> None:
        """A draw has ended: let the first one that waits begin."""
        with suppress(IndexError):
            while not self.waiting.popleft().let_begin():
                pass


def _drawn_for(shares: Sequence[_Share], shared: _SharedDraw, draw: DrawBlocks) -> list[range]:
    """The tickets for the callers that wait; an error is given to all followers, too, unless a smaller draw may succeed."""
    name = shared.key.sequence
    try:
        return draw(name, sum(share.n for share in shares))
    except TicketError as error:
        if not _is_exhausted(error):  # the followers' own draws would ask the same servers
            for share in shared.shares[1:]:
                if share.settle():
                    share.errors.append(copy_of(error))
            raise
        if len(shares) == 1:
            raise
    return draw(name, shares[0].n)  # fewer may be left


def _is_exhausted(error: TicketError) -> bool:
    """Whether a server had too few tickets left."""
    failures = error.failures.values() if isinstance(error, NoTicketServer) else [error]
    return any(isinstance(failure, TicketsExhausted) for failure in failures)


def divide(blocks: Sequence[range], shares: Sequence[_Share]) -> int:
    """Give the tickets to the callers that still wait, in the order in which they came; returns how many are left."""
    left = list(blocks)
    for share in shares:
        if left and share.settle():
            share.tickets, left = split(left, share.n)
    return count(left)
