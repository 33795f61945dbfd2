"""Blocks on their way to the hand, and the tasks of an event loop that share one of them.

Hundreds of tasks may find the hand empty before the first of them has its answer. Each would draw a block,
of which it needs a ticket or two: so as many of them as a block will do for wait for the one that draws it.
Threads draw for themselves, as each of them waits for an answer anyway.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

from sqlalchemy.util import await_only

from .aio import current_loop

__all__ = ["WAITS", "Arrivals"]

#: Seconds after which tasks wait for a block no longer, as its server may keep silent: the first of them draws another one.
PATIENCE: Final = 0.03
#: For how many blocks a task waits, one after the other, before it draws for itself.
WAITS: Final = 8
#: In how many turns of the event loop they pass, at least: while it is busy, it is not the server that is slow.
TURNS: Final = 10


class _Arrival:
    """One block.

    Attributes:
        loop: whose tasks may wait for it.
        spare: how many of its tickets nobody waits for yet.
        over: set when it has come, when its draw has failed, or has taken too long.
        has_failed: whether its draw has.
    """

    __slots__ = ("_timer", "has_failed", "loop", "over", "spare")
    _timer: asyncio.TimerHandle

    def __init__(self, loop: asyncio.AbstractEventLoop, spare: int) -> None:
        self.loop, self.spare, self.over = loop, spare, asyncio.Event()
        self.has_failed = False
        self._be_patient(TURNS)

    def _be_patient(self, turns: int) -> None:
        if turns:
            self._timer = self.loop.call_later(PATIENCE / TURNS, self._be_patient, turns - 1)
        else:
            self.end()

    def end(self) -> None:
        """Let those who wait look at what is in hand."""
        self._timer.cancel()
        self.spare = 0
        self.over.set()


class Arrivals:
    """The blocks of one sequence that are on their way, in every event loop."""

    __slots__ = ("_coming",)

    def __init__(self) -> None:
        self._coming: list[_Arrival] = []

    @contextmanager
    def expected(self, spare: int) -> Generator[None]:
        """Draw a block inside of this, and put it in hand.

        Args:
            spare: how many of its tickets are for others.
        """
        loop = current_loop()
        if loop is None:
            yield
            return
        arrival = _Arrival(loop, spare)
        self._coming.append(arrival)
        try:
            yield
        except BaseException:
            arrival.has_failed = True
            raise
        finally:
            self._coming.remove(arrival)
            arrival.end()

    def wait_for(self, n: int) -> bool:
        """Wait until a block has come that has so many tickets to spare; False where none is on its way, or fails."""
        loop = current_loop() if self._coming else None
        for arrival in tuple(self._coming):
            if arrival.loop is loop and arrival.spare >= n:
                arrival.spare -= n
                await_only(arrival.over.wait())
                return not arrival.has_failed
        return False
