"""What a time-out inside of `logging` leaves behind."""

from __future__ import annotations

import logging

__all__ = ["release_locks"]


def release_locks() -> None:
    """Give back the locks of ``logging`` that this thread holds.

    Before Python 3.13, a time-out that strikes inside of ``logging`` leaves them taken, and every other thread
    that logs waits for ever.
    """
    handlers = [reference() for reference in vars(logging)["_handlerList"]]
    for lock in (vars(logging)["_lock"], *(each.lock for each in handlers if each is not None)):
        while lock is not None and lock._is_owned():
            lock.release()
