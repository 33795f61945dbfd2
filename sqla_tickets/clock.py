"""The two clocks: one says which time it is and may step, the other how much of it has passed."""

from __future__ import annotations

import time

__all__ = ["elapsed", "wall"]


def wall() -> int:
    """Microseconds since 1970, as this machine believes."""
    return time.time_ns() // 1000


if hasattr(time, "CLOCK_BOOTTIME"):

    def elapsed() -> float:
        """Seconds since some moment; those that the machine was suspended for count, too."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)

else:
    elapsed = time.monotonic
