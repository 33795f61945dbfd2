"""Clocks of processes that step: libfaketime, and the file that says by how much."""

from __future__ import annotations

import glob
import time
from pathlib import Path

from tests.support.servers.base import ServerMissing

__all__ = ["Clock"]

LIBRARIES = (
    "/usr/lib/*/faketime/libfaketimeMT.so.1",
    "/usr/lib*/faketime/libfaketimeMT.so.1",
)


class Clock:
    """The clock of the processes that are started with its `environment`; monotonic ones go on as they are.

    Args:
        file: Where the offset is written, readable for the user who runs the process.

    Raises:
        ServerMissing: libfaketime is not installed.
    """

    def __init__(self, file: Path) -> None:
        self._library = library()
        self._file = file
        self.step(0)

    @property
    def environment(self) -> dict[str, str]:
        """What a process needs to have this clock."""
        return {
            "LD_PRELOAD": str(self._library),
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }

    def step(self, seconds: float) -> None:
        """Set it so many seconds off the machine's."""
        self._write(f"{seconds:+}")

    def stand_still(self) -> None:
        """Stop it at this second."""
        self._write(time.strftime("%Y-%m-%d %H:%M:%S"))

    def _write(self, how: str) -> None:
        fresh = self._file.with_suffix(".new")
        fresh.write_text(how)
        fresh.chmod(0o644)
        fresh.replace(self._file)


def library() -> Path:
    """Where libfaketime is.

    Raises:
        ServerMissing: it is not installed.
    """
    for pattern in LIBRARIES:
        for found in glob.glob(pattern):
            return Path(found)
    raise ServerMissing("libfaketime is not installed (Debian: apt-get install faketime)")
