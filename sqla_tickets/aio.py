"""Leaving the event loop free, with whatever driver the ticket servers have.

SQLAlchemy runs an ``AsyncSession`` inside a greenlet of the event loop. Code in there looks
synchronous: an async driver's round trip yields to the loop, a sync driver's would stop it.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeVar

from sqlalchemy.util import await_only, greenlet_spawn
from sqlalchemy.util.concurrency import in_greenlet

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

__all__ = ["a_loop_runs_here", "current_loop", "in_event_loop", "off_the_loop", "pause", "within"]

#: How many draws of an event loop wait for synchronous drivers at the same time.
THREADS: Final = 32

T = TypeVar("T")


def in_event_loop() -> bool:
    """Whether this code runs inside SQLAlchemy's greenlet, on the thread of an event loop."""
    try:
        return bool(in_greenlet())
    except (ImportError, ValueError):  # greenlet is not installed: SQLAlchemy 2.1, 2.0
        return False


def current_loop() -> asyncio.AbstractEventLoop | None:
    """The event loop inside whose greenlet this code runs, if it does."""
    return asyncio.get_running_loop() if in_event_loop() else None


def a_loop_runs_here() -> bool:
    """Whether an event loop runs on this thread, inside of SQLAlchemy's greenlet or not."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def off_the_loop(work: Callable[[], T]) -> T:
    """Run blocking ``work`` in a thread while the event loop goes on.

    The threads are this package's own: the loop's default ones may all be waiting for tickets.
    """
    run = contextvars.copy_context().run
    loop = asyncio.get_running_loop()
    return await_only(loop.run_in_executor(_threads(os.getpid()), run, work))


@functools.lru_cache(maxsize=1)
def _threads(pid: int) -> ThreadPoolExecutor:
    """The threads of this process: none of its parent's runs in a fork."""
    from concurrent.futures import ThreadPoolExecutor

    return ThreadPoolExecutor(THREADS, thread_name_prefix="sqla_tickets")


def within(seconds: float, work: Callable[[], T]) -> T:
    """Do ``work``, which waits in the manner of an async driver, within a time.

    Raises:
        TimeoutError: it took longer, and was cancelled.
    """
    try:
        return await_only(asyncio.wait_for(greenlet_spawn(work), seconds))
    except asyncio.TimeoutError as error:  # another class before Python 3.11
        raise TimeoutError(f"no answer within {seconds} seconds") from error


def pause(seconds: float) -> None:
    """Sleep, in the manner of the caller: the thread, or only this task."""
    if in_event_loop():
        await_only(asyncio.sleep(seconds))
    else:
        time.sleep(seconds)
