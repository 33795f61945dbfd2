"""The buffer of each sequence: tickets that were drawn but not yet used, and their refill.

Each ticket leaves the buffer once. A lock guards its blocks, which are ranges; it is held for a few instructions, and
never during a draw. The next tickets are `Ready` one by one in a deque, whose ``popleft()`` is thread-safe, also on
free-threaded builds.

A background thread or task fetches the next block when half of a block is left, one fetch at a time for each
sequence. No thread waits for it: a thread that finds the buffer empty draws for itself, and the buffer keeps a late
block. Tasks of one event loop share a refill in flight.
"""

from __future__ import annotations

import asyncio
import logging
import math
from bisect import insort
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias
from weakref import WeakSet

from sqlalchemy.util import await_only

from ..arguments import BlockBounds
from ..concurrency import current_loop, elapsed, in_event_loop, owner_mark, threading
from ..errors import TicketError, TicketsExhausted
from .blocks import DrawBlocks, count, split
from .timing import TIMING

if TYPE_CHECKING:
    from ..events import DiscardReason

log = logging.getLogger(__name__)

#: Begins to fetch a block of a sequence in the background; False if that is impossible.
BeginFetch: TypeAlias = "Callable[[str, Callable[[], None]], bool]"


class Block(NamedTuple):
    """Tickets, and the time when they become too old, by `elapsed`."""

    tickets: range
    expires: float


def _tickets_in(blocks: Iterable[Block]) -> int:
    return count([tickets for tickets, _ in blocks])


def _ignore(*_: object) -> None:
    pass


class _Refill:
    """A block that is being drawn.

    Attributes:
        loop: whose tasks may wait for it.
        spare: how many of its tickets no task waits for yet.
        over: set when the block has come, or when its draw has failed or taken too long.
        has_failed: whether its draw has failed.
    """

    __slots__ = ("_timer", "has_failed", "loop", "over", "spare")
    _timer: asyncio.TimerHandle

    def __init__(self, loop: asyncio.AbstractEventLoop, spare: int) -> None:
        self.loop, self.spare, self.over = loop, spare, asyncio.Event()
        self.has_failed = False
        self._count_down(TIMING.refill_loop_iterations)

    def _count_down(self, iterations: int) -> None:
        if iterations:
            self._timer = self.loop.call_later(
                TIMING.refill_wait_seconds / TIMING.refill_loop_iterations,
                self._count_down,
                iterations - 1,
            )
        else:
            self.end()

    def end(self) -> None:
        """Let the waiting tasks check the buffer."""
        self._timer.cancel()
        self.spare = 0
        self.over.set()


class SharedRefills:
    """The refills of one buffer that tasks of an event loop share.

    Hundreds of tasks may find the buffer empty before the first of them has its answer. Each would draw a block and
    need only a ticket or two of it. So one task draws a block, and as many tasks as it can serve wait for it. Threads
    draw for themselves, as each of them waits for an answer anyway.
    """

    __slots__ = ("_under_way",)

    def __init__(self) -> None:
        self._under_way: list[_Refill] = []

    @contextmanager
    def refill(self, spare: int) -> Generator[None]:
        """A context in which a task draws a block and buffers it.

        Args:
            spare: how many of its tickets are for other tasks.
        """
        loop = current_loop()
        if loop is None:
            yield
            return
        refill = _Refill(loop, spare)
        self._under_way.append(refill)
        try:
            yield
        except BaseException:
            refill.has_failed = True
            raise
        finally:
            self._under_way.remove(refill)
            refill.end()

    def wait_for(self, n: int) -> bool:
        """Wait until a block with so many spare tickets has come; False if none is on its way, or its draw fails."""
        loop = current_loop() if self._under_way else None
        for refill in tuple(self._under_way):
            if refill.loop is loop and refill.spare >= n:
                refill.spare -= n
                await_only(refill.over.wait())
                return not refill.has_failed
        return False


class Ready:
    """The next tickets of a sequence, which threads take one by one without a lock.

    Check `until` before popping a ticket, and afterwards that this process owns it, as it may have been forked.

    Attributes:
        expires: when they become too old, by `elapsed`.
        pop: takes the next ticket, or raises ``IndexError`` when there is none.
        tickets: all of one block.
        until: the time after which `SequenceBuffer.make_ready` must be called: they are too old, or a fetch is due.
    """

    __slots__ = ("_step", "expires", "pop", "tickets", "until")

    def __init__(self, block: Block) -> None:
        self.tickets, self._step = deque(block.tickets), block.tickets.step
        self.pop, self.expires, self.until = self.tickets.popleft, block.expires, block.expires

    def take(self, n: int) -> list[Block]:
        """Take up to ``n`` tickets, except those that other threads pop at the same time."""
        taken: list[range] = []
        with suppress(IndexError):
            for _ in range(n):
                ticket = self.pop()
                if taken and ticket == taken[-1].stop:
                    taken[-1] = range(taken[-1].start, ticket + self._step, self._step)
                else:
                    taken.append(range(ticket, ticket + self._step, self._step))
        return [Block(tickets, self.expires) for tickets in taken]


_NONE: Final = Block(range(0), 0.0)
_expiry = attrgetter("expires")


class SequenceBuffer:
    """The buffered tickets of one sequence.

    Args:
        discarded: called with the number of dropped tickets, and the reason.

    Attributes:
        blocks: the blocks after the ready tickets, the oldest first: taking one does not check later ones.
        is_low: whether the last `make_ready` found that a fetch may be due.
        is_open: False once this buffer is dropped; it then discards late blocks.
        ready: the next tickets.
        refills: the refills on their way to this buffer.
    """

    __slots__ = (
        "_arrived",
        "_discarded",
        "_lock",
        "_no_fetch_before",
        "_size",
        "_sized_at",
        "_took",
        "blocks",
        "is_low",
        "is_open",
        "ready",
        "refills",
    )

    def __init__(
        self,
        discarded: Callable[[int, DiscardReason], object] = _ignore,
    ) -> None:
        self._lock, self._discarded, self.is_open = threading.Lock(), discarded, True
        self.refills = SharedRefills()
        self.ready, self.blocks = Ready(_NONE), list[Block]()
        self._size = 0
        self._sized_at = self._took = self._no_fetch_before = 0.0
        self._arrived = self.is_low = False

    # -- taking

    def take(self, n: int) -> list[Block]:
        """Take up to ``n`` tickets, the oldest first."""
        with self._lock:
            dropped = self._drop_the_old()
            taken = self.ready.take(n)
            missing = n - _tickets_in(taken)
            while missing > 0 and self.blocks:
                taken.append(self._split_oldest(missing))
                missing -= len(taken[-1].tickets)
        if dropped:
            self._discarded(dropped, "age")
        return taken

    def _split_oldest(self, most: int) -> Block:
        """Take at most ``most`` tickets of the oldest block."""
        tickets, expires = oldest = self.blocks[0]
        if len(tickets) > most:
            self.blocks[0] = Block(tickets[most:], expires)
            return Block(tickets[:most], expires)
        del self.blocks[0]
        return oldest

    def make_ready(self) -> bool:
        """Make tickets ready, none of them too old; False when there are none.

        They last until half of a block is left. Then a fetch is due, and `is_low` is set.
        """
        if not self.ready.tickets and not self.blocks:
            return False
        with self._lock:
            dropped, spare = self._drop_the_old(), self._spare()
            self.is_low = spare <= 0
            if not self.ready.tickets and self.blocks:
                most = TIMING.ready_tickets
                self.ready = Ready(self._split_oldest(most if self.is_low else min(spare, most)))
            self._check_again(self._no_fetch_before if self.is_low else math.inf)
            is_ready = bool(self.ready.tickets)
        if dropped:
            self._discarded(dropped, "age")
        return is_ready

    def _check_again(self, at: float) -> None:
        """Schedule the next `make_ready` for a time, or for when the ready tickets expire."""
        self.ready.until = min(self.ready.expires, at)

    def put(self, blocks: Sequence[Block]) -> None:
        """Keep blocks, or discard them after `close`."""
        with self._lock:
            is_open = self.is_open
            for block in blocks if is_open else ():
                insort(self.blocks, block, key=_expiry)
        if not is_open:
            self._discarded(_tickets_in(blocks), "dropped")

    def count(self) -> int:
        """How many tickets are buffered."""
        with self._lock:
            dropped = self._drop_the_old()
            left = self._count()
        self._discarded(dropped, "age")
        return left

    def _count(self) -> int:
        return len(self.ready.tickets) + _tickets_in(self.blocks)

    def _spare(self) -> int:
        """How many tickets there are besides the last half of a block."""
        return self._count() - self._size // 2

    def _drop_the_old(self) -> int:
        """Drop the tickets that are too old; returns how many."""
        now, dropped = elapsed(), 0
        if self.ready.expires <= now:
            dropped += len(self.ready.tickets)
            self.ready.tickets.clear()
        while self.blocks and self.blocks[0].expires <= now:
            dropped += len(self.blocks.pop(0).tickets)
        return dropped

    def close(self) -> None:
        """Drop all tickets, and discard later ones."""
        with self._lock:
            dropped, self.is_open = self._count(), False
            self.ready.tickets.clear()
            self.blocks.clear()
        self._discarded(dropped, "dropped")

    # -- drawing

    def next_block_size(self, least: int, most: int, duration: float) -> int:
        """How many tickets to draw for the buffer now.

        Leaf's rule, within the bounds: twice as many as last time if those lasted less than ``duration`` seconds, and
        half as many if they lasted more than twice that. While tickets are used up within the time of a few draws, a
        fixed size is multiplied too, up to `Timing.blocks_at_once` and `Timing.tickets_at_once`.
        """
        now = elapsed()
        with self._lock:
            if least == most:
                most = max(least, min(TIMING.blocks_at_once * least, TIMING.tickets_at_once))
                duration = TIMING.times_its_draw * self._took
            lasted = now - self._sized_at
            # others draw at this moment, too: the time since the last draw says nothing
            if not self._arrived:
                pass
            elif lasted < duration:
                self._size *= 2
            elif lasted > 2 * duration:
                self._size //= 2
            if self._arrived or not self._size:
                self._arrived, self._sized_at = False, now
            self._size = min(max(self._size, least), most)
            return self._size

    def has_refilled(self, took: float) -> None:
        """Record how many seconds a draw for the buffer took."""
        with self._lock:
            self._arrived, self._took = True, took

    def begin_fetch(self) -> bool:
        """Claim the next fetch: True if little is left, and no fetch is under way."""
        now = elapsed()
        with self._lock:
            if now < self._no_fetch_before or self._spare() > 0:
                return False
            self._wait_with_fetch(now + TIMING.lost_fetch_seconds)
            return True

    def end_fetch(self, *, failed: bool) -> None:
        """Allow the next fetch; after a failure, only after a pause."""
        with self._lock:
            self._wait_with_fetch(elapsed() + TIMING.failed_fetch_seconds if failed else 0.0)

    def _wait_with_fetch(self, until: float) -> None:
        self._no_fetch_before = until
        self._check_again(until)


class _OfTasks:
    """The buffers of a pool that only tasks may draw from; others find none, so that each of their calls is refused."""

    __slots__ = ("_sequences",)

    def __init__(self, sequences: dict[str, SequenceBuffer]) -> None:
        self._sequences = sequences

    def __getitem__(self, name: str, /) -> SequenceBuffer:
        if not in_event_loop():
            raise KeyError(name)
        return self._sequences[name]


class Buffer:
    """The buffered tickets of one process; a fork begins with an empty buffer.

    It knows nothing of servers: its caller passes the function that fills it.

    Args:
        discarded: called with the sequence, the number of dropped tickets, and the reason.
        duration: seconds that a block should last, where its size is not fixed.
        max_age: seconds after which the rest of a block is dropped.
        needs_loop: whether only a task may take tickets, since the driver is async.

    Attributes:
        sequences: each sequence's buffer, by name.
        direct: the buffers, by name, whose ready tickets this caller may pop: all or none.
        is_owner_process: its byte 0 is 1, and 0 in a fork, where the system wipes it. It is read after a ticket is
            popped, so that a fork between the two does not use the parent's ticket.
    """

    def __init__(
        self,
        discarded: Callable[[str, int, DiscardReason], object],
        duration: float,
        max_age: float,
        *,
        needs_loop: bool = False,
    ) -> None:
        self.is_owner_process, self._discarded = owner_mark(), discarded
        self._duration, self._max_age = duration, max_age
        self.sequences: dict[str, SequenceBuffer] = {}
        self.direct = _OfTasks(self.sequences) if needs_loop else self.sequences
        _buffers.add(self)

    def sequence(self, name: str) -> SequenceBuffer:
        """The buffered tickets of a sequence."""
        buffered = self.sequences.get(name)
        if buffered is None:
            new = SequenceBuffer(partial(self._discarded, name))
            buffered = self.sequences.setdefault(name, new)
        return buffered

    # -- taking

    def take(
        self, name: str, n: int, bounds: BlockBounds, draw: DrawBlocks, begin_fetch: BeginFetch
    ) -> list[range] | None:
        """Take exactly ``n`` tickets; None if the buffer was reset or this is a fork, and the drawn tickets are discarded.

        Args:
            name: the sequence's name.
            n: how many tickets.
            bounds: the smallest and the largest size of a block.
            draw: fills the buffer.
            begin_fetch: fills the buffer in the background.

        Raises:
            TicketError: as ``draw`` raises it.
        """
        buffered = self.sequences.get(name) or self.sequence(name)
        was_buffered = False
        if n >= bounds[1] and not buffered.ready.tickets and not buffered.blocks:
            drawn = draw(name, n)  # bypass the buffer: it is empty, and a whole block is wanted
            if len(drawn) > 1 or len(drawn[0]) < n:
                blocks = self._aged(drawn, elapsed())
                drawn, _ = self._draw_missing(name, buffered, n, bounds, draw, blocks)
        else:
            blocks = buffered.take(n)
            drawn, was_buffered = self._draw_missing(name, buffered, n, bounds, draw, blocks)
        if was_buffered and bounds != (1, 1) and buffered.is_open and self.is_owner_process[0]:
            self._fetch(name, buffered, bounds, draw, begin_fetch)
        if buffered.is_open and self.is_owner_process[0]:
            return drawn
        if self.is_owner_process[0]:  # in a fork these are the parent's
            self._discarded(name, n, "dropped")
        return None

    def _draw_missing(
        self,
        name: str,
        buffered: SequenceBuffer,
        n: int,
        bounds: BlockBounds,
        draw: DrawBlocks,
        blocks: list[Block],
    ) -> tuple[list[range], bool]:
        """Draw the tickets that some blocks lack; returns whether any of their tickets was buffered."""
        taken = total = _tickets_in(blocks)
        try:
            for _ in range(TIMING.refills_waited_for):
                missing = n - total
                if not 0 < missing < bounds[1] or not buffered.refills.wait_for(missing):
                    break
                blocks += buffered.take(missing)
                taken = total = _tickets_in(blocks)
            while total < n:
                drawn = self._draw_block(name, buffered, n - total, bounds, draw)
                blocks += drawn
                total += _tickets_in(drawn)
        except BaseException:
            if self.is_owner_process[0]:
                buffered.put(blocks)  # no caller has seen these
            raise
        return [block.tickets for block in blocks], bool(taken)

    def take_one(
        self, name: str, bounds: BlockBounds, draw: DrawBlocks, begin_fetch: BeginFetch
    ) -> int | None:
        """Take a buffered ticket, or one of a refill that tasks share; None if there is none, or it is the parent's."""
        buffered = self.sequence(name)
        for _ in range(TIMING.refills_waited_for):
            if not buffered.ready.tickets or elapsed() >= buffered.ready.until:
                if not buffered.make_ready():
                    if buffered.refills.wait_for(1):
                        continue
                    break
                if buffered.is_low:
                    self._fetch(name, buffered, bounds, draw, begin_fetch)
            try:
                ticket = buffered.ready.pop()
            except IndexError:  # others were faster
                continue
            return ticket if self.is_owner_process[0] else None
        return None

    # -- filling

    def _draw_block(
        self,
        name: str,
        buffered: SequenceBuffer,
        needed: int,
        bounds: BlockBounds,
        draw: DrawBlocks,
    ) -> list[Block]:
        """Draw the missing tickets or a whole block, whichever is more, and buffer the rest."""
        began = elapsed()
        if needed >= bounds[1]:
            return self._aged(draw(name, needed), began)
        n = max(needed, buffered.next_block_size(*bounds, self._duration))
        with buffered.refills.refill(n - needed):
            try:
                drawn = draw(name, n)
            except TicketsExhausted:  # part of a block may still be left
                drawn = draw(name, needed or 1)
            buffered.has_refilled(elapsed() - began)
            needed_now, spare = split(drawn, needed)
            buffered.put(self._aged(spare, began))
        return self._aged(needed_now, began)

    def _aged(self, drawn: Iterable[range], began: float) -> list[Block]:
        return [Block(tickets, began + self._max_age) for tickets in drawn]

    def _fetch(
        self,
        name: str,
        buffered: SequenceBuffer,
        bounds: BlockBounds,
        draw: DrawBlocks,
        begin_fetch: BeginFetch,
    ) -> None:
        """Begin to fetch the next block if little is left."""
        if not buffered.begin_fetch():
            return

        def fetch() -> None:
            failed = True
            try:
                self._draw_block(name, buffered, 0, bounds, draw)
                failed = False
            except TicketError as error:
                log.info("the next block of %r is not fetched ahead: %s", name, error)
            finally:
                buffered.end_fetch(failed=failed)

        if not begin_fetch(name, fetch):
            buffered.end_fetch(failed=True)

    # -- counting and dropping

    def count(self, name: str) -> int:
        """How many tickets of a sequence are buffered."""
        buffered = self.sequences.get(name)
        return buffered.count() if buffered else 0

    def drop(self, name: str) -> None:
        """Drop a sequence's buffered tickets, and those on their way to the buffer."""
        buffered = self.sequences.pop(name, None)
        if buffered is not None:
            buffered.close()

    def drop_all(self) -> None:
        """Drop the buffered tickets of all sequences."""
        for name in list(self.sequences):
            self.drop(name)


_buffers: WeakSet[Buffer] = WeakSet()


def drop_everything() -> None:
    """Drop the buffered tickets of every pool of this process.

    A server that repeats numbers seldom has only one bad table, and blocks do not record the pool and the name that
    drew them.
    """
    while True:
        try:
            buffers = list(_buffers)
            break
        except RuntimeError:  # another thread has just created a pool
            pass
    for buffer in buffers:
        if buffer.is_owner_process[0]:
            buffer.drop_all()
