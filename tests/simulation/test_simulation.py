"""Whole simulations, short ones: `make simulate` runs long ones."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from .scenario import simulate


@pytest.mark.parametrize("seed", [1, 2, 4])
def test_no_promise_is_broken(seed: int) -> None:
    outcome = simulate(seed, seconds=8.0, processes=4)
    assert not outcome.broken_promises
    assert outcome.draws > 100


def test_one_seed_gives_one_schedule_in_any_process() -> None:
    """Whatever Python's own hashes are seeded with."""
    program = (
        "from tests.simulation.scenario import simulate;"
        " print(simulate(5, seconds=3.0, processes=4).digest)"
    )
    printed = {
        subprocess.run(  # this Python
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(printed) == 1


def test_seed_that_takes_too_long_has_failed() -> None:
    (promise,) = simulate(1, seconds=8.0, processes=4, limit_seconds=0.0).broken_promises
    assert promise.kind == "unfinished"
