"""Work beside the traffic, which no caller waits for: probes, hedges, blocks fetched ahead, marks.

It is done in a daemon thread that ends with it, or, where somebody in an event loop waits for it, in a task
of that loop.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable

from sqlalchemy.util import await_only, greenlet_spawn

from .aio import current_loop

__all__ = ["beside", "wait_for_tasks"]

log = logging.getLogger(__name__)
_tasks: set[asyncio.Task[None]] = set()


def beside(work: Callable[[], None], name: str, *, in_a_task: bool) -> bool:
    """Begin ``work``; False, and a warning, when no thread or task can be started now.

    Args:
        work: what is to be done. It handles its errors by itself.
        name: what the thread or the task is called.
        in_a_task: whether it needs the event loop that this is called on. It may then wait in the
            manner of SQLAlchemy's async drivers.
    """
    try:
        if in_a_task:
            task = asyncio.get_running_loop().create_task(greenlet_spawn(work), name=name)
            _tasks.add(task)  # the loop holds only a weak reference
            task.add_done_callback(_tasks.discard)
        else:
            threading.Thread(target=work, name=name, daemon=True).start()
    except RuntimeError as error:  # at exit, or at a limit
        log.warning("%s is left out: %s", name, error)
        return False
    return True


def wait_for_tasks(seconds: float) -> None:
    """Wait for what was begun in tasks of the event loop that this is called in, for no longer than that.

    A loop that ends beside them would leave their connections open.
    """
    loop = current_loop()
    if loop is not None:
        under_way = [task for task in _tasks if task.get_loop() is loop]
        if under_way:
            await_only(asyncio.wait(under_way, timeout=seconds))
