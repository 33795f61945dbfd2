"""Virtual time: a scheduler of greenlets that one seed decides, and the machines they run on.

A `Task` is a thread of a `Machine`, which is one operating system process: of a client, or of a server. Exactly one
task runs at a time, until it waits. Time stands still while it runs, and leaps to the next event when all wait.
"""

from __future__ import annotations

import ctypes
import math
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from heapq import heappop, heappush
from itertools import count
from random import Random
from typing import Final, Protocol

import greenlet  # type: ignore[import-untyped]  # it has none

__all__ = ["Machine", "Stalled", "Task", "World"]

#: Two readings of one clock differ by that, in seconds, even where no time passes between.
TICK_SECONDS: Final = 1e-7
#: What a thread waits for a processor at most, in seconds.
SWITCH_SECONDS: Final = 5e-5
#: After so many seconds of real time in which a world's time does not pass, it is ended; and how often it is looked at.
STALL_SECONDS: float = 60.0
STALL_POLLS: Final = 12
_FOR_EVER: Final = math.inf
#: Seconds since 1970 when a world begins.
BEGINNING: Final = 1_700_000_000.0


class Stalled(BaseException):
    """The time of a world does not pass: a task runs, or events follow each other, for ever."""


class HeldLock(Protocol):
    """A lock.

    Attributes:
        made_in: the line that made it.
    """

    made_in: str


class Task:
    """A simulated thread.

    Args:
        machine: that it runs on.
        name: for the trace.
        work: what it does.

    Attributes:
        number: of its waits: an event for an earlier one comes too late.
        was_woken: whether its last wait ended before its time was over.
        is_alive: whether it has begun, and not ended.
        locks: that it holds, and that nothing is to be waited for with.
    """

    __slots__ = (
        "greenlet",
        "is_alive",
        "joined",
        "locks",
        "machine",
        "name",
        "number",
        "order",
        "switch",
        "was_woken",
        "work",
    )

    def __init__(self, machine: Machine, name: str, work: Callable[[], object]) -> None:
        self.machine, self.name, self.work = machine, name, work
        self.number = 0
        self.was_woken = self.is_alive = False
        self.order = 0
        self.joined: list[Task] = []
        self.locks: list[HeldLock] = []
        #: Lets it go on, from the world's own greenlet.
        self.switch: Callable[[], object] = self._begin
        self.greenlet: greenlet.greenlet | None = None

    def _begin(self) -> None:
        self.greenlet = greenlet.greenlet(self._run, self.machine.world.hub)
        self.switch = self.greenlet.switch
        self.switch()

    def start(self) -> None:
        """Begin, a moment later."""
        machine = self.machine
        self.is_alive = True
        self.order = machine.world.count_task()
        machine.tasks[self.order] = self
        machine.world.wake(self)

    def join(self) -> None:
        """Wait until it has ended."""
        while self.is_alive:
            self.joined.append(self.machine.world.task)
            self.machine.world.park()

    def _run(self) -> None:
        try:
            self.work()
        except greenlet.GreenletExit:
            pass
        except Exception as error:  # noqa: BLE001  # a thread's error ends nobody else
            self.machine.world.failed(self, error)
        finally:
            self.is_alive = False
            self.machine.tasks.pop(self.order, None)
            for other in self.joined:
                self.machine.world.wake(other)
            # what it was made of leads back to it, and no garbage is collected while a world runs
            self.work = self.switch = _nothing
            self.greenlet = None


class Machine:
    """One operating system process with clocks of its own.

    Args:
        world: that it is part of.
        name: for the trace.

    Attributes:
        number: of the process.
        tasks: its threads that have begun and not ended.
        is_dead: whether it was killed: none of its threads runs again.
        is_frozen: whether its threads wait for `thaw`, as after SIGSTOP.
        state: of its modules, by their names.
        at_death: what the system does in its place when it dies.
    """

    def __init__(self, world: World, name: str) -> None:
        self.world, self.name = world, name
        self.number = world.count_machine(self)
        self.tasks: dict[int, Task] = {}
        self.is_dead = self.is_frozen = False
        self.state: dict[str, object] = {}
        self.at_death: list[Callable[[], None]] = []
        self._held: list[tuple[Task, int]] = []
        self._at_thaw: list[Callable[[], None]] = []
        self._last = 0.0
        #: Of the clock that counts since some moment: where it began, and its rate.
        self.began, self.rate = world.random.uniform(0, 1e5), 1.0
        #: Seconds that the machine was suspended for: `monotonic` does not count them.
        self.suspended = 0.0
        #: How wrong the wall clock is, in seconds, when it was stepped last, and how far it was ahead at most.
        self.wall_error = self.stepped_at = self.furthest_ahead = 0.0
        self._frozen_at, self._frozen_for = 0.0, 0.0

    def __str__(self) -> str:
        return self.name

    # -- clocks

    def monotonic(self) -> float:
        """Seconds since some moment; no two readings are the same."""
        now = (self.world.now - self.suspended) * self.rate + self.began
        if now <= self._last:
            now = self._last + TICK_SECONDS
        self._last = now
        return now

    def elapsed(self) -> float:
        """The same, with the seconds that the machine was suspended for."""
        return self.world.now * self.rate + self.began

    def wall(self) -> float:
        """Seconds since 1970, as this machine believes."""
        return BEGINNING + self.world.now * self.rate + self.wall_error

    def step_clock(self, seconds: float) -> None:
        """Set the wall clock forwards, or back."""
        self.wall_error += seconds
        self.furthest_ahead = max(self.furthest_ahead, self.wall_error)
        self.stepped_at = self.world.now

    # -- threads

    def spawn(self, work: Callable[[], object], name: str) -> Task:
        """Begin a thread."""
        task = Task(self, name, work)
        task.start()
        return task

    def hold(self, task: Task, number: int) -> None:
        """Let a thread of a frozen process go on when it is thawed."""
        self._held.append((task, number))

    def when_thawed(self, action: Callable[[], None]) -> None:
        """Do this when the process is thawed."""
        self._at_thaw.append(action)

    def freeze(self) -> None:
        """Stop all threads, as SIGSTOP does."""
        self.is_frozen, self._frozen_at = True, self.world.now

    @property
    def frozen_seconds(self) -> float:
        """For how long it was frozen, in all."""
        now = self.world.now - self._frozen_at if self.is_frozen else 0.0
        return self._frozen_for + now

    def thaw(self) -> None:
        """Let them go on."""
        self._frozen_for = self.frozen_seconds
        self.is_frozen = False
        held, self._held = self._held, []
        for task, number in held:
            self.world.resume_later(task, number)
        actions, self._at_thaw = self._at_thaw, []
        for action in actions:
            if not self.is_dead:
                action()

    def die(self) -> None:
        """End at once, as SIGKILL does: nothing of it runs again."""
        if not self.is_dead:
            self.is_dead = True
            for action in self.at_death:
                action()


class World:
    """Virtual time, the tasks in it, and the one source of randomness.

    Args:
        seed: decides everything.
        trace: is told of each event in a line; None for a run that nobody reads.
        preemption: how likely a thread loses the processor where it reads a clock or takes a lock.

    Attributes:
        now: seconds since the world began.
        task: that runs.
        machine: that it runs on.
        digest: of all that has happened so far: equal in two runs of one seed.
        switches: how often a task was switched to.
        chances_left: after how many chances a thread loses the processor, as `may_switch` counts them.
        errors: with which tasks have ended.
        is_over: whether it was closed: what still runs is to end.
        on_wait_with_lock: is told of a task that waits for the network, for a time or for another thread's work while it
            holds a lock, and where that was made.
    """

    def __init__(
        self,
        seed: int,
        *,
        trace: Callable[[str], object] | None = None,
        preemption: float = 0.0,
    ) -> None:
        self.seed, self.random, self.trace, self.preemption = seed, Random(seed), trace, preemption
        self.chance = self.random.random
        self.chances_left = self._chances()
        self.now = 0.0
        self.digest = self.switches = 0
        self.errors: list[tuple[Task, BaseException]] = []
        self.is_over = False
        self.machines: list[Machine] = []
        self.on_wait_with_lock: Callable[[Task, str], object] = lambda task, made_in: None
        self._events: list[tuple[float, int, Task | None, int | Callable[[], object]]] = []
        self._order = count(1).__next__
        self._tasks = count(1).__next__
        self.hub = greenlet.getcurrent()
        self._back: Callable[[], object] = self.hub.switch
        #: What runs while no task does: the nemesis, the network.
        self.outside = Machine(self, "outside")
        self._nobody = Task(self.outside, "hub", lambda: None)
        self.task, self.machine = self._nobody, self.outside

    def count_task(self) -> int:
        """The next number of a task."""
        return self._tasks()

    def count_machine(self, machine: Machine) -> int:
        """Register a machine; its number."""
        self.machines.append(machine)
        return 1000 + len(self.machines)

    def failed(self, task: Task, error: BaseException) -> None:
        """A task has ended with an error that nobody caught."""
        self.errors.append((task, error))
        self.log(f"ended with {error!r}")

    def log(self, text: str, *of: object) -> None:
        """Write a line of the trace: a text, or its format and what that is of, which nobody writes without a trace."""
        if self.trace is not None:
            text = text.format(*of) if of else text
            self.trace(f"{self.now:.6f} {self.machine}/{self.task.name}: {text}")

    # -- waiting

    def at(self, when: float, action: Callable[[], object]) -> None:
        """Do something at a time, outside of all tasks; it must not wait."""
        heappush(self._events, (when, self._order(), None, action))

    def wake(self, task: Task) -> None:
        """Let a task that waits go on, a moment later."""
        task.was_woken = True
        when = self.now + self.chance() * SWITCH_SECONDS
        heappush(self._events, (when, self._order(), task, task.number))

    def resume_later(self, task: Task, number: int) -> None:
        """Let a task end the wait of this number, a moment later."""
        when = self.now + self.chance() * SWITCH_SECONDS
        heappush(self._events, (when, self._order(), task, number))

    def park(self, seconds: float = math.inf, *, is_short: bool = False) -> bool:
        """Wait until another task wakes this one; whether one has, before the time was over.

        Args:
            seconds: that it waits at most.
            is_short: whether it waits for others in its process alone, which do not wait for long.
        """
        if self.is_over:
            raise greenlet.GreenletExit
        task = self.task
        if task.locks and not is_short:
            for lock in task.locks:
                self.on_wait_with_lock(task, lock.made_in)
        assert task is not self._nobody, "what runs outside of all tasks must not wait"
        task.was_woken = False
        if seconds != _FOR_EVER:
            when = self.now + seconds if seconds > 0 else self.now
            heappush(self._events, (when, self._order(), task, task.number))
        self._back()
        return task.was_woken

    def sleep(self, seconds: float) -> None:
        """Wait for so long."""
        end = self.now + seconds
        self.park(seconds)
        while self.now < end:  # something else has woken it
            self.park(end - self.now)

    def may_switch(self) -> None:
        """Let others run, now and then: called where a real thread may lose the processor."""
        self.chances_left -= 1
        if not self.chances_left:
            self.switch()

    def switch(self) -> None:
        """Let others run for a moment."""
        self.chances_left = self._chances()
        if self.task is not self._nobody and not self.is_over:
            self.park(self.random.expovariate(1 / SWITCH_SECONDS), is_short=True)

    def _chances(self) -> float:
        """After how many chances a thread loses the processor, if it does so with `preemption` at each."""
        if self.preemption in (0, 1):
            return 1 if self.preemption else math.inf
        return 1 + int(math.log(1 - self.random.random()) / math.log(1 - self.preemption))

    # -- running

    def run(self, until: float = math.inf) -> None:
        """Let time pass until then, or until nothing is left to happen.

        Raises:
            Stalled: its time did not pass for `STALL_SECONDS` of real time.
        """
        with _watched(self):
            self._run(until)

    def _run(self, until: float) -> None:
        events = self._events
        while events:
            when, order, task, what = event = heappop(events)
            if when > until:
                heappush(events, event)
                self.now = until
                return
            self.now = when
            if task is None:
                what()  # type: ignore[operator]  # it is no number
            elif task.number == what:
                self.resume(task)
            else:
                continue  # it was woken before
            self.digest = hash((self.digest, when, order))

    def resume(self, task: Task) -> None:
        """Run a task now, or when its machine is thawed, until it waits; called outside of all tasks."""
        machine = task.machine
        if machine.is_dead:
            return
        if machine.is_frozen:
            machine.hold(task, task.number)
            return
        task.number += 1
        self.switches += 1
        self.task, self.machine = task, machine
        if self.trace is not None:
            self.log("runs")
        task.switch()
        self.task, self.machine = self._nobody, self.outside

    def close(self) -> None:
        """End whatever waits. Nothing of it does anything any more."""
        self.is_over = True
        for task in _tasks_of(self.machines):
            if task.greenlet is not None and not task.greenlet.dead:
                self.task, self.machine = task, task.machine
                task.greenlet.throw(greenlet.GreenletExit)
        self.task, self.machine = self._nobody, self.outside
        self._events.clear()


@contextmanager
def _watched(world: World) -> Iterator[None]:
    """End a world whose time does not pass, by a real thread; it says where it was."""
    is_over, runner = threading.Event(), threading.get_ident()

    def guard() -> None:
        polls, last = 0, -1.0
        while not is_over.wait(STALL_SECONDS / STALL_POLLS):
            polls = polls + 1 if world.now == last else 0
            last = world.now
            if polls >= STALL_POLLS:
                stack = "".join(traceback.format_stack(sys._current_frames()[runner]))
                where = f"{world.machine}/{world.task.name} after {world.switches} switches"
                print(
                    f"time stands still at {world.now:.6f}, seed {world.seed}, in {where}:\n{stack}"
                )
                world.is_over = True  # no handler of the task's waits
                raise_in = ctypes.pythonapi.PyThreadState_SetAsyncExc
                raise_in(ctypes.c_ulong(runner), ctypes.py_object(Stalled))
                polls = 0

    thread = threading.Thread(target=guard, name="watchdog", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()


def _nothing() -> None:
    pass


def _tasks_of(machines: Iterable[Machine]) -> list[Task]:
    return [task for machine in machines for task in machine.tasks.values()]
