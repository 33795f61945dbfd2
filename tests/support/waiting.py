"""A wait for input that works with any number of open files: ``select.select`` ends at the descriptor 1,023."""

from __future__ import annotations

import math
import select
from typing import Protocol


class _HasFileno(Protocol):
    def fileno(self) -> int: ...


def has_input(file: int | _HasFileno, seconds: float) -> bool:
    """Whether a file has something to read, or has ended, within this time."""
    poll = select.poll()
    poll.register(file, select.POLLIN)
    return bool(poll.poll(math.ceil(1000 * seconds)))
