"""Ctrl-C in a long loop: it is never lost, and never ends a step half-way."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Iterator
from types import FrameType
from typing import TypeVar

__all__ = ["interruptible"]

Step = TypeVar("Step")


def interruptible(steps: Iterable[Step]) -> Iterator[Step]:
    """Yield each of ``steps``; a Ctrl-C ends the loop after the current step, a second one at once.

    Python drops a KeyboardInterrupt that it raises in a finalizer or in the callback of a weak
    reference, and a flush runs thousands of these. A signal handler that takes a note loses none.
    """
    noted: list[int] = []

    def remember(number: int, frame: FrameType | None) -> None:
        noted.append(number)
        signal.signal(signal.SIGINT, signal.default_int_handler)

    before = signal.signal(signal.SIGINT, remember)
    try:
        for step in steps:
            yield step
            if noted:
                raise KeyboardInterrupt
    finally:
        signal.signal(signal.SIGINT, before)
