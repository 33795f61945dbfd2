"""The package's one place for clock, sleep, locks, events, background work, randomness and process identity.

Every module takes ``time``, ``threading``, ``random`` and ``process_id`` from here, so that a simulation can take their place.

SQLAlchemy runs an ``AsyncSession`` inside a greenlet of the event loop. Code in it looks synchronous: an async
driver's round trip yields to the loop, but a sync driver's would block it.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import logging
import mmap
import os
import random
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Hashable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import count
from typing import Any, Final, Generic, Protocol, TypeVar
from weakref import ref

from sqlalchemy.util import await_only, greenlet_spawn
from sqlalchemy.util.concurrency import in_greenlet

__all__ = [
    "OwnerMark",
    "SharedCall",
    "SingleFlight",
    "TaskEvent",
    "WeakRegistry",
    "background_call",
    "begin_task",
    "begun",
    "current_loop",
    "elapsed",
    "has_running_loop",
    "in_background",
    "in_event_loop",
    "in_time",
    "monotonic",
    "off_the_loop",
    "owner_mark",
    "pause",
    "per_process",
    "process_id",
    "random",
    "random_bytes",
    "run_in_greenlet",
    "running_loop",
    "threading",
    "time",
    "timestamps",
    "wait_for_tasks",
    "wall",
    "within",
]

log = logging.getLogger(__name__)
K = TypeVar("K", bound=Hashable)
T = TypeVar("T")
_tasks: set[asyncio.Task[None]] = set()

# -- time

#: The clock that time-outs and ages are measured with, in seconds, for where a draw is quick.
monotonic: Callable[[], float] = time.monotonic


def wall() -> int:
    """Microseconds since 1970, by this machine's clock."""
    return time.time_ns() // 1000


#: Seconds since some moment; on Linux, those that the machine was suspended for count, too.
elapsed: Callable[[], float] = time.monotonic
if hasattr(time, "CLOCK_BOOTTIME"):
    elapsed = partial(time.clock_gettime, time.CLOCK_BOOTTIME)

# -- randomness

#: So many bytes from the system: forks made by C, and processes that seed ``random``, do not get the same.
random_bytes: Callable[[int], bytes] = os.urandom

# -- processes

#: The number of this process, by the system.
process_id: Callable[[], int] = os.getpid


def per_process(make: Callable[[], T]) -> Callable[[], T]:
    """Call ``make`` once in each process, since an inherited object may need the parent's threads."""

    @functools.lru_cache(maxsize=1)
    def of_process(pid: int) -> T:
        return make()

    return lambda: of_process(process_id())


# A system call per ticket would cost more than the ticket, so the kernel is asked to wipe a page of memory in
# every child: servers written in C (uWSGI) fork below Python, where no hook runs.

_MADV_WIPEONFORK: Final = 18  # Linux 4.14, <asm-generic/mman-common.h>
_NO_ADVICE: Final = -1


class OwnerMark(Protocol):
    """Memory whose byte 0 is not 0 in the process that made it, and 0 in its forks."""

    def __getitem__(self, index: int, /) -> int:
        """Return the byte."""
        ...


_mark: OwnerMark = b"\0" if hasattr(os, "fork") else b"\1"


def owner_mark() -> OwnerMark:
    """The mark of this process, read in a few nanoseconds where the system can wipe memory.

    All objects of the process share one mark, as each mark is a page of memory, which a draw would have to load.
    """
    global _mark  # noqa: PLW0603  # one for each process
    mark = _mark
    if not mark[0]:
        mark = _mark = _wiped() or _Pid()
    return mark


def _wiped() -> mmap.mmap | None:
    if sys.platform != "linux":
        return None
    page = mmap.mmap(-1, mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    try:
        page.madvise(_MADV_WIPEONFORK)
    except OSError:
        return None
    try:
        page.madvise(_NO_ADVICE)
    except OSError:
        page[0] = 1
        return page
    return None  # emulators take any advice, and follow none


class _Pid:
    """The same mark, by a process id that is read each time."""

    def __init__(self) -> None:
        self._pid = os.getpid()

    def __getitem__(self, index: int, /) -> int:
        return int(os.getpid() == self._pid)


# -- event loops


#: The event loop that runs on this thread, or None: the quick way to see that there is none.
running_loop: Callable[[], asyncio.AbstractEventLoop | None] = asyncio._get_running_loop


def in_event_loop() -> bool:
    """Whether this code runs inside SQLAlchemy's greenlet, on the thread of an event loop."""
    # a free-threaded interpreter may crash when a thread that asked greenlet 3.5.6 ends
    if running_loop() is None:
        return False
    try:
        return bool(in_greenlet())
    except (ImportError, ValueError):  # greenlet is not installed: SQLAlchemy 2.1, 2.0
        return False
    except RuntimeError:  # the interpreter ends
        return False


def current_loop() -> asyncio.AbstractEventLoop | None:
    """The event loop whose greenlet runs this code, if any."""
    return running_loop() if in_event_loop() else None


def has_running_loop() -> bool:
    """Whether an event loop runs on this thread, in SQLAlchemy's greenlet or not."""
    return running_loop() is not None


def off_the_loop(work: Callable[[], T]) -> T:
    """Run blocking ``work`` in a thread while the event loop continues.

    The threads are this package's own, since the loop's default ones may all wait for tickets.
    """
    run = contextvars.copy_context().run
    loop = asyncio.get_running_loop()
    return await_only(loop.run_in_executor(_threads(), run, work))


@per_process
def _threads() -> ThreadPoolExecutor:
    """The threads in which event loops wait for synchronous drivers; a fork has its own."""
    return ThreadPoolExecutor(max_workers=32, thread_name_prefix="sqla_tickets")


def within(seconds: float, work: Callable[[], T]) -> T:
    """Do ``work``, which waits as an async driver does, within a time limit.

    Raises:
        TimeoutError: it took longer, and was cancelled.
    """
    return await_only(in_time(greenlet_spawn(work), seconds))


async def in_time(work: Coroutine[Any, Any, T], seconds: float) -> T:
    """The same as `asyncio.wait_for`, which before Python 3.12 can lose a cancellation when ``work`` has just ended.

    Raises:
        TimeoutError: it took longer, and was cancelled.
    """
    task = asyncio.ensure_future(work)
    # retrieves an error that comes too late, so that asyncio does not log it
    task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
    try:
        await asyncio.wait([task], timeout=seconds)
        if task.done():
            return task.result()
        raise TimeoutError(f"no answer within {seconds} seconds")
    finally:
        if task.cancel():
            await asyncio.wait([task])


class TaskEvent:
    """A `threading.Event` for one task, in SQLAlchemy's greenlet; only its event loop's thread may use it.

    A time limit for `asyncio.Event` would take a task of its own, and `asyncio.wait` wakes one turn of the loop later.
    """

    def __init__(self) -> None:
        self._is_set = False
        self._waiter: asyncio.Future[None] | None = None

    def is_set(self) -> bool:
        """Whether it is set."""
        return self._is_set

    def set(self) -> None:
        """Set it, and wake the task that waits."""
        self._is_set = True
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until it is set, for at most ``seconds``; returns whether it is."""
        if self._is_set:
            return True
        loop = asyncio.get_running_loop()
        self._waiter = loop.create_future()
        timer = None if seconds is None else loop.call_later(seconds, self._wake)
        try:
            await_only(self._waiter)
        finally:
            if timer is not None:
                timer.cancel()
        return self._is_set


async def run_in_greenlet(work: Callable[[], T]) -> T:
    """Do synchronous ``work`` in SQLAlchemy's greenlet, and raise a cancellation that a driver has lost.

    Drivers that use `asyncio.wait_for` can lose one before Python 3.12; Python 3.10 cannot detect that.
    """
    task = asyncio.current_task()
    cancellations = getattr(task, "cancelling", lambda: 0)
    before = cancellations()
    done = await greenlet_spawn(work)
    if cancellations() > before:
        raise asyncio.CancelledError
    return done


def pause(seconds: float) -> None:
    """Sleep, blocking the thread or only this task, as the caller needs."""
    if in_event_loop():
        await_only(asyncio.sleep(seconds))
    else:
        time.sleep(seconds)


# -- work in the background

#: Logical timestamps: each is later than those before it.
timestamps: Iterator[int] = count(1)


class _Begun:
    """The start of a background call, which the tasks and threads that it starts inherit.

    Attributes:
        timestamp: its logical timestamp; 0 after its end, as work that a listener started may continue.
    """

    __slots__ = ("timestamp",)

    def __init__(self, timestamp: int) -> None:
        self.timestamp = timestamp


_NONE: Final = _Begun(0)
#: The background call that this thread or task makes.
background_call: contextvars.ContextVar[_Begun]
background_call = contextvars.ContextVar("sqla_tickets_background_call", default=_NONE)


def begun() -> int:
    """The logical timestamp of this background call's start; outside of one, a new timestamp.

    A nested background call has the outer one's timestamp, so that `dispose` closes the connections of both.
    """
    return background_call.get().timestamp or next(timestamps)


class WeakRegistry(Generic[T]):
    """A registry of running work, which keeps an entry while its starter or its thread holds it.

    So work that an interrupt kept from starting does not stay registered. A ``WeakSet`` cannot be iterated while
    other threads add to it.

    Attributes:
        refs: the registered work; empty if nothing runs.
    """

    def __init__(self) -> None:
        self.refs: set[ref[T]] = set()

    def add(self, one: T) -> None:
        """Register running work."""
        self.refs.add(ref(one, self.refs.discard))

    def discard(self, one: T) -> None:
        """Remove work that has ended, even if it is still held elsewhere."""
        self.refs.discard(ref(one))

    def __iter__(self) -> Iterator[T]:
        return iter([one for each in list(self.refs) if (one := each()) is not None])


class SharedCall:
    """A call that one caller makes, and concurrent callers wait for.

    Attributes:
        under_way: a lock that the caller holds, in a ``with``, until the call is over, even after an interrupt.
        is_done: whether the call was completed.
    """

    def __init__(self) -> None:
        self.under_way, self.is_done = threading.Lock(), False
        self._loop = current_loop()

    @property
    def is_over(self) -> bool:
        """Whether no caller makes it any more; a task of a closed event loop never continues."""
        is_in_closed_loop = self._loop is not None and self._loop.is_closed()
        return is_in_closed_loop or not self.under_way.locked()

    @property
    def is_suspended(self) -> bool:
        """Whether it cannot go on while this caller waits: its event loop has stopped, or the caller blocks it."""
        loop = self._loop
        if loop is None:
            return False
        return not loop.is_running() or (loop is running_loop() and not in_event_loop())


class SingleFlight(Generic[K]):
    """Single-flight calls: one for each key at a time."""

    def __init__(self) -> None:
        self._doing: dict[K, SharedCall] = {}
        self._lock = threading.Lock()

    def of(self, what: K, own: SharedCall) -> SharedCall:
        """The running call, or else the caller's ``own``, whose lock it holds."""
        with self._lock:
            doing = self._doing.get(what)
            if doing is None or doing.is_over:
                doing = self._doing[what] = own
            return doing


def in_background(
    work: Callable[[], None], name: str, *, in_a_task: bool, timestamp: int = 0
) -> bool:
    """Begin ``work``; logs a warning and returns False if no thread or task can be started.

    Args:
        work: the work, which handles its own errors.
        name: the name of the thread or task.
        in_a_task: whether it needs the current event loop. It may then wait as SQLAlchemy's async drivers do.
        timestamp: the start of the call that it belongs to; 0 for the caller's.
    """
    call = partial(_run_as_begun, timestamp or begun(), work)
    try:
        if in_a_task:
            _ = begin_task(call, name)
        else:
            threading.Thread(target=call, name=name, daemon=True).start()
    except RuntimeError as error:  # at exit, or at a limit
        log.warning("%s could not be started: %s", name, error)
        return False
    return True


def begin_task(work: Callable[[], None], name: str) -> asyncio.Task[None]:
    """Begin ``work`` in a task of the current event loop, for which `wait_for_tasks` waits.

    The loop's task factory may run a task at once, in the caller's greenlet: the two would get each other's answers.
    """
    loop = asyncio.get_running_loop()
    task: asyncio.Task[None] = asyncio.Task(greenlet_spawn(work), loop=loop, name=name)
    _tasks.add(task)  # the loop holds only a weak reference
    task.add_done_callback(_tasks.discard)
    return task


def _run_as_begun(timestamp: int, work: Callable[[], None]) -> None:
    call = _Begun(timestamp)
    background_call.set(call)
    try:
        work()
    finally:
        call.timestamp = 0


def wait_for_tasks(seconds: float) -> None:
    """Wait for background tasks of the current event loop, within a time limit.

    If the loop ended before them, their connections would stay open.
    """
    loop = current_loop()
    if loop is not None:
        under_way = [task for task in list(_tasks) if task.get_loop() is loop]
        if under_way:
            await_only(asyncio.wait(under_way, timeout=seconds))
