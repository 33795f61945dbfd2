"""The time limits of ids and leases, in one place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Timing:
    """Times of ids and leases; the parts are fractions of a lease's duration.

    Attributes:
        clock_wait_seconds: how long to wait for a clock that has stepped back.
        backdated_microseconds: how old the time of an id may be in a call for many ids.
        late_microseconds: the same in a call for one or a few ids, after a tick had too few. Else a process that gets
            processor time late would lose earlier ticks.
        lease_seconds: how long a lease lasts by default.
        renewed_part: when a lease is renewed.
        replaced_part: when its owner takes a number of another server, if it could not be renewed.
        used_part: when its owner stops; the rest is for differences between the clocks of two machines.
        retry_part: how long an owner waits before it tries again.
        waits_in_vain: how often a renewed lease may have ended before its first use.
        claims: how often to try for a number while other processes are quicker.
    """

    clock_wait_seconds: float = 1.0
    backdated_microseconds: int = 1_000_000
    late_microseconds: int = 50_000
    lease_seconds: float = 60.0
    renewed_part: float = 1 / 3
    replaced_part: float = 0.6
    used_part: float = 0.9
    retry_part: float = 1 / 20
    waits_in_vain: int = 20
    claims: int = 200


TIMING: Final = Timing()
