"""Noticing a fork without asking the system, also one that Python was not told of.

Servers written in C (uWSGI) fork below Python: no hook runs in the child. A system call per ticket would
cost more than the ticket, so the kernel is asked to wipe a page of memory in every child.
"""

from __future__ import annotations

import mmap
import os
import sys
from typing import Final, Protocol

__all__ = ["Mark", "mark"]

_MADV_WIPEONFORK: Final = 18  # Linux 4.14, <asm-generic/mman-common.h>
_NO_ADVICE: Final = -1


class Mark(Protocol):
    """Memory whose byte 0 is not 0 in the process that made it, and 0 in its forks."""

    def __getitem__(self, index: int, /) -> int:
        """Return the byte."""
        ...


def mark() -> Mark:
    """A mark of this process, read in a few nanoseconds where the system can wipe memory."""
    if not hasattr(os, "fork"):
        return b"\1"
    return _wiped() or _Pid()


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
    """The same by asking for the process id each time."""

    def __init__(self) -> None:
        self._pid = os.getpid()

    def __getitem__(self, index: int, /) -> int:
        return int(os.getpid() == self._pid)
