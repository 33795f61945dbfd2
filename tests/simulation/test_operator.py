"""Short worlds with operators: `make simulate ARGS="--page any"` runs long ones."""

from __future__ import annotations

from functools import partial

import pytest

from .maintained import MaintainedScenario
from .procedures import PAGES
from .scenario import Outcome, simulate


def play(seed: int, page: str, seconds: float = 4.0) -> Outcome:
    scenario = partial(MaintainedScenario, page=page)
    return simulate(seed, seconds=seconds, processes=3, scenario_type=scenario)


@pytest.mark.parametrize("page", PAGES)
def test_no_promise_is_broken_while_an_operator_works(page: str) -> None:
    outcome = play(2 if page == "change" else 1, page)
    assert not outcome.broken_promises
    assert outcome.draws > 20


def test_one_seed_gives_one_schedule_with_operators() -> None:
    assert play(2, "move", 3.0).digest == play(2, "move", 3.0).digest
