"""What takes the place of ``sqla_tickets.concurrency``'s clock, sleep, locks, threads, randomness and process identity."""

from __future__ import annotations

import gc
import importlib
import linecache
import math
import pkgutil
import sys
import threading as real_threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy
from functools import partial
from time import time as real_time
from types import CodeType, FrameType
from typing import Any, Final
from weakref import ref

from sqlalchemy.event import attr

import sqla_tickets
from sqla_tickets import concurrency
from sqla_tickets import pool as pools
from sqla_tickets.connect import ok_packets, sockets
from sqla_tickets.draw import buffer

from .network import insert_over_socket, wire_of
from .world import Task, World

__all__ = ["Event", "Lock", "OwnerMark", "Thread", "installed"]


#: What a lock is called that says that its holder waits: others look at it, and hardly ever wait for it.
_HELD_ACROSS_WAITS: Final = "under_way"
_origins: dict[tuple[CodeType, int], tuple[str, bool]] = {}


def _origin(frame: FrameType) -> tuple[str, bool]:
    """The line that makes a lock, and whether that may be held across a wait: so may SQLAlchemy's own."""
    key = frame.f_code, frame.f_lasti
    found = _origins.get(key)
    if found is None:
        name, number = frame.f_code.co_filename, frame.f_lineno
        line = linecache.getline(name, number).strip()
        is_package = frame.f_globals.get("__name__", "").startswith(f"{sqla_tickets.__name__}.")
        may_be_held = _HELD_ACROSS_WAITS in line or not is_package
        found = _origins[key] = f"{name}:{number}: {line}", may_be_held
    return found


class Lock:
    """``threading.Lock``: first come, first served.

    Attributes:
        made_in: the line that made it.
    """

    __slots__ = (
        "__weakref__",
        "_holder",
        "_is_locked",
        "_may_be_held",
        "_waiting",
        "_world",
        "made_in",
    )

    def __init__(self, world: World) -> None:
        self._world, self._is_locked = world, False
        self._waiting: list[Task] | None = None
        self.made_in, self._may_be_held = _origin(sys._getframe(1))
        self._holder: Task | None = None

    def of_fork(self) -> Lock:
        """What a fork has of it: locked or not, and nobody waits who could release it."""
        new = copy(self)
        new._waiting = new._holder = None
        return new

    def locked(self) -> bool:
        return self._is_locked

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:  # as the real one
        world = self._world
        world.chances_left -= 1  # as `may_switch`, without the call
        if not world.chances_left:
            world.switch()
        if self._is_locked and not world.is_over:
            if not blocking:
                return False
            if not self._wait(timeout):
                return False
        self._is_locked = True
        if not self._may_be_held:
            self._holder = world.task
            world.task.locks.append(self)
        return True

    def _wait(self, timeout: float) -> bool:
        world = self._world
        end = math.inf if timeout < 0 else world.now + timeout
        while self._is_locked:
            if world.now >= end:
                return False
            if self._waiting is None:
                self._waiting = []
            self._waiting.append(world.task)
            world.park(end - world.now, is_short=not self._may_be_held)
            if world.task in self._waiting:
                self._waiting.remove(world.task)
        return True

    def release(self) -> None:
        if not self._is_locked and not self._world.is_over:
            raise RuntimeError("release unlocked lock")
        self._is_locked = False
        holder, self._holder = self._holder, None
        if holder is not None:
            holder.locks.remove(self)
        if self._waiting:
            self._world.wake(self._waiting.pop(0))

    __enter__ = acquire  # of most locks, so without another call

    def __exit__(self, *_: object) -> None:
        self.release()


class Event:
    """``threading.Event``."""

    def __init__(self, world: World) -> None:
        self._world, self._is_set = world, False
        self._waiting: list[Task] = []

    def of_fork(self) -> Event:
        """What a fork has of it: set or not, and nobody waits."""
        new = copy(self)
        new._waiting = []
        return new

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True
        waiting, self._waiting = self._waiting, []
        for task in waiting:
            self._world.wake(task)

    def clear(self) -> None:
        self._is_set = False

    def wait(self, timeout: float | None = None) -> bool:
        if self._is_set:
            return True
        world = self._world
        end = math.inf if timeout is None else world.now + timeout
        task = world.task
        while True:
            self._waiting.append(task)
            world.park(end - world.now)
            if task not in self._waiting:
                return True  # by `set`
            self._waiting.remove(task)
            if world.now >= end:
                return False


class Thread:
    """``threading.Thread``."""

    def __init__(
        self,
        world: World,
        group: None = None,
        target: Callable[..., object] | None = None,
        name: str = "Thread",
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
        *,
        daemon: bool | None = None,
    ) -> None:
        self._world, self.name, self.daemon = world, name, daemon
        self._target = target  # its starter may hold it weakly, and a partial of a partial does not
        self._work = partial(target, *args, **(kwargs or {})) if target is not None else None
        self._task: Task | None = None

    def run(self) -> None:
        if self._work is not None:
            self._work()

    def start(self) -> None:
        self._task = self._world.machine.spawn(self.run, self.name)

    def is_alive(self) -> bool:
        task = self._task
        return task is not None and task.is_alive and task.machine is self._world.machine

    def join(self, timeout: float | None = None) -> None:
        task, world = self._task, self._world
        if task is None or not self.is_alive():
            return
        end = math.inf if timeout is None else world.now + timeout
        task.joined.append(world.task)
        while task.is_alive and world.now < end:
            world.park(end - world.now)


class Timer(Thread):
    """``threading.Timer``."""

    def __init__(self, world: World, interval: float, function: Callable[[], object]) -> None:
        super().__init__(world, name="Timer")
        self._interval, self._function, self._over = interval, function, Event(world)

    def cancel(self) -> None:
        self._over.set()

    def run(self) -> None:
        if not self._over.wait(self._interval):
            self._function()


class _Time:
    """The module ``time``."""

    def __init__(self, world: World) -> None:
        self._world = world

    def monotonic(self) -> float:
        world = self._world
        world.chances_left -= 1  # as `may_switch`, without the call
        if not world.chances_left:
            world.switch()
        return world.machine.monotonic()

    def elapsed(self) -> float:
        return self._world.machine.elapsed()

    def time(self) -> float:
        return self._world.machine.wall()

    def time_ns(self) -> int:
        return int(self._world.machine.wall() * 1e6) * 1000

    def sleep(self, seconds: float) -> None:
        self._world.sleep(seconds)


class _Threading:
    """The module ``threading``."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.Lock = partial(Lock, world)
        self.Event = partial(Event, world)
        self.Thread = partial(Thread, world)
        self.Timer = partial(Timer, world)
        self.RLock = _missing

    def current_thread(self) -> object:
        return self._world.task


def _missing() -> None:
    raise NotImplementedError("the simulation has none")


class OwnerMark:
    """A mark of one simulated process."""

    __slots__ = ("_machine", "_world")

    def __init__(self, world: World) -> None:
        self._world, self._machine = world, world.machine

    def __getitem__(self, index: int) -> int:
        return self._world.machine is self._machine


class _Registry:
    """A ``WeakSet`` of each simulated process, in the order of its additions.

    Args:
        world: with the processes.
        name: of the module's attribute.
    """

    def __init__(self, world: World, name: str) -> None:
        self._world, self._name = world, name

    def _refs(self) -> list[ref[Any]]:
        found = self._world.machine.state.setdefault(self._name, [])
        assert isinstance(found, list)
        return found

    def add(self, one: object) -> None:
        self._refs().append(ref(one))

    def __iter__(self) -> Iterator[Any]:
        return iter([one for each in self._refs() if (one := each()) is not None])


#: Modules of the command line by which an operator works.
_OPERATORS: Final = (
    "sqla_tickets.cli.plans",
    "sqla_tickets.cli.inspection",
    "sqla_tickets.cli.shards",
)
#: What a process keeps in modules: one for each simulated process.
_MODULE_STATE: Final = ((buffer, "_buffers"), (pools, "_pools"))


@contextmanager
def installed(world: World) -> Iterator[None]:
    """Run the package in a world, which takes the place of the real one."""
    _end_real_monitors()
    was_enabled = gc.isenabled()
    gc.collect()  # what is left of an earlier world
    gc.disable()  # it would end what is left of a pool at any moment
    time, threading = _Time(world), _Threading(world)
    stand_ins = {
        id(concurrency.time): time,
        id(concurrency.threading): threading,
        id(concurrency.random): world.random,
        id(concurrency.monotonic): time.monotonic,
        id(real_time): time.time,
        id(concurrency.elapsed): time.elapsed,
        id(concurrency.random_bytes): world.random.randbytes,
        id(concurrency.process_id): lambda: world.machine.number,
        id(concurrency.owner_mark): lambda: OwnerMark(world),
        id(sockets.wire_of): wire_of,
        id(ok_packets.insert_over_socket): insert_over_socket,
    }
    before: list[tuple[object, str, object]] = []
    for module in _modules():
        for name, value in list(vars(module).items()):
            if id(value) in stand_ins:
                before.append((module, name, value))
                setattr(module, name, stand_ins[id(value)])
    # SQLAlchemy holds a lock of this module while a pool connects for the first time
    before.append((attr, "threading", vars(attr)["threading"]))
    setattr(attr, "threading", threading)  # noqa: B010  # another type
    for module, name in _MODULE_STATE:
        before.append((module, name, getattr(module, name)))
        setattr(module, name, _Registry(world, f"{module.__name__}.{name}"))
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
        for where, name, value in before:
            setattr(where, name, value)


def _end_real_monitors() -> None:
    """End the threads that poll the draws of earlier tests' pools: in a world, they would read its clock."""
    for thread in real_threading.enumerate():
        target = vars(thread).get("_target")  # none once its work is done
        if thread.name == "sqla_tickets hedging monitor" and target is not None:
            poller: Any = target.__self__
            monitor = poller._monitor()  # of a pool that may be gone
            for server in monitor._servers if monitor is not None else ():
                server.in_flight.clear()  # else it polls for ever what a test has left
            poller.end()
            thread.join(timeout=10)


def _modules() -> list[Any]:
    """Every module of the package that a process of an application has; all are imported."""
    found = []
    for info in pkgutil.walk_packages(sqla_tickets.__path__, "sqla_tickets."):
        if info.name.startswith(_OPERATORS) or not info.name.startswith(
            ("sqla_tickets.cli", "sqla_tickets.contrib", "sqla_tickets.testing")
        ):
            importlib.import_module(info.name)
            found.append(sys.modules[info.name])
    return found
