"""The two clocks: one says which time it is and may step, the other how much of it has passed."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

__all__ = ["elapsed", "wall"]


def wall() -> int:
    """Microseconds since 1970, as this machine believes."""
    return time.time_ns() // 1000


#: Seconds since some moment; on Linux, those that the machine was suspended for count, too.
elapsed: Callable[[], float] = time.monotonic
if hasattr(time, "CLOCK_BOOTTIME"):
    elapsed = partial(time.clock_gettime, time.CLOCK_BOOTTIME)
