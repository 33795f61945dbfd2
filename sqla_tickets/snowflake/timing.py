"""The time limits of ids and leases, in one place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Timing:
    """The times of ids and of leases; those of a lease are parts of its duration.

    Attributes:
        clock_wait_seconds: for how long a clock is waited for that has stepped back.
        backdated_microseconds: how old the time of an id may be when it is made, for as many as are needed
            at once.
        late_microseconds: the same for one or a few, once a tick had too few: a process that gets the
            processor back late would else lose the ticks that began before.
        lease_seconds: how long a lease lasts by default.
        renewed_part: when it is renewed.
        replaced_part: when a number of another server is taken, since it could not be renewed.
        used_part: when its owner stops: the clocks of two machines may differ by the rest.
        retry_part: how long an owner waits before it tries again.
        waits_in_vain: how often a lease may be over before it can be used.
        claims: how often a number is tried for while other processes are quicker.
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
