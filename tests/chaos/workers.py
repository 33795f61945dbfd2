"""The processes that draw, started again when they are killed."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from multiprocessing.process import BaseProcess

from tests.chaos.workloads import PATIENCE, Plan, work
from tests.support.draws import from_one_start

__all__ = ["Workers"]


class Workers:
    """One process for each plan."""

    def __init__(self, plans: Sequence[Plan]) -> None:
        self._plans = list(plans)
        self._processes: dict[int, BaseProcess] = {}
        self._starts = 0
        self._lock = threading.RLock()
        self._context = from_one_start()
        self.complaints: list[str] = []
        for index in self.indexes:
            self._start(index)

    @property
    def indexes(self) -> range:
        """What `kill` takes."""
        return range(len(self._plans))

    def kill(self, index: int) -> None:
        """SIGKILL, in the middle of whatever it does, and another one in its place."""
        with self._lock:
            process = self._processes[index]
            _end(process)
            self._start(index)

    def storm(self) -> None:
        """Call for a storm of forks: every process with threads forks some children."""
        self._plans[0].storm.touch()

    def finish(self) -> None:
        """Wait for all to end by themselves, as those do that hang."""
        for index, process in self._processes.items():
            plan = self._plans[index]
            process.join(max(0.0, plan.until - time.monotonic()) + PATIENCE + 10)
            _end(process)
            if process.exitcode:
                self.complaints.append(
                    f"{plan.name} hung or died, exit code {process.exitcode}: see {plan.name}.trace"
                )

    def _start(self, index: int) -> None:
        self._starts += 1
        plan = self._plans[index]
        plan = replace(plan, seed=f"{plan.seed}/{plan.name}/{self._starts}")
        process = self._context.Process(target=work, args=(plan,), daemon=True)
        process.start()
        self._processes[index] = process


def _end(process: BaseProcess) -> None:
    if process.pid is not None and process.is_alive():
        with suppress(ProcessLookupError):  # it has just ended by itself, as its time was over
            os.kill(process.pid, signal.SIGKILL)
    process.join()
