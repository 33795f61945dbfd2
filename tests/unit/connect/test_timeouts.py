"""The one file about the time-outs of a draw says what the code does, and README and handbook say the same."""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path

from sqla_tickets.concurrency import _threads
from sqla_tickets.connect import timeouts
from sqla_tickets.connect.timeouts import Timeouts
from sqla_tickets.draw.timing import TIMING
from sqla_tickets.high_water.timing import TIMING as MARKS

ROOT = Path(__file__).parents[3]
BOUND = "a draw takes at most *servers x (`timeout` + `lock_wait`)*"
EXCEPTIONS = (
    "a retried server, a shared draw, another task's block, the peers' marks, a sequence that is being moved, and a free "
    "thread"
)


def text_of(path: str) -> str:
    return " ".join((ROOT / path).read_text(encoding="utf-8").split())


def test_numbers_of_the_text_are_those_of_the_code() -> None:
    text = " ".join(str(timeouts.__doc__).split())
    assert f"{Timeouts().draw_seconds:g} seconds for each server" in text
    assert f"{MARKS.lead_wait_seconds:g} seconds for a draw that is far ahead" in text
    assert "share: ``timeout`` + ``lock_wait``:" in text
    assert "another task draws: a quarter of a second" in text
    assert 0.2 < TIMING.refill_wait_seconds * TIMING.refills_waited_for <= 0.25
    assert f"being moved: {TIMING.move_seconds:g} seconds" in text
    assert f"{_threads()._max_workers} tasks draw at once" in text
    assert (TIMING.max_queues, TIMING.queue_seconds) == (3, 0.5)  # in words
    assert MARKS.patience_seconds == 1


def test_handbook_says_how_long_a_caller_shares_one_draw() -> None:
    text = text_of("docs/understand/how-a-draw-works.md")
    assert f"at most {TIMING.shared_wait_seconds:g} seconds, or twice the time" in text
    assert TIMING.shared_wait_times == 2  # in words


def test_every_function_that_the_text_names_exists() -> None:
    text = re.sub(r"\s+", " ", str(timeouts.__doc__))
    named = re.findall(r"`([a-z_.]+)`[,:] ((?:(?:, |, with )?``\w+``)+)", text)
    assert len(named) == 12
    for module, names in named:
        source = inspect.getsource(importlib.import_module(f"sqla_tickets.{module}"))
        if module == "dialects":
            source = (ROOT / "sqla_tickets/dialects/base.py").read_text(encoding="utf-8")
        for name in re.findall(r"\w+", names):
            assert re.search(rf"\b{name}\b", source), (module, name)


def test_readme_and_handbook_have_the_same_bound_and_exceptions() -> None:
    for path in ("README.md", "docs/understand/how-a-draw-works.md"):
        text = text_of(path)
        assert BOUND.lower() in text.lower(), path
        assert EXCEPTIONS in text, path
