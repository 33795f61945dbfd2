"""Ctrl-C in a long loop, that neither gets lost nor stops in the middle of a step."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Iterator
from types import FrameType
from typing import TypeVar

__all__ = ["interruptible"]

Step = TypeVar("Step")


def interruptible(steps: Iterable[Step]) -> Iterator[Step]:
    """Yield each of ``steps``; a Ctrl-C ends the loop after the step it meets, a second one at once.

    Python drops a KeyboardInterrupt that it raises in a finalizer or in the callback of a weak
    reference, and a flush runs thousands of these. A note is never dropped.
    """
    noted: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        noted.append(number)
        signal.signal(signal.SIGINT, signal.default_int_handler)

    before = signal.signal(signal.SIGINT, note)
    try:
        for step in steps:
            yield step
            if noted:
                raise KeyboardInterrupt
    finally:
        signal.signal(signal.SIGINT, before)
