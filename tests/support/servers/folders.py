"""Folders for data and sockets, with paths short enough for a Unix socket."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from tests.support.servers.reaper import Reaper

# A Unix socket's path may have 107 bytes; the file's name and the random part need the rest.
_LONGEST = 60


class Folder:
    """A temporary folder that goes away with the test run at the latest."""

    def __init__(self, reaper: Reaper, owner: str | None = None) -> None:
        self._reaper = reaper
        base = tempfile.gettempdir()
        self.path = Path(
            tempfile.mkdtemp(prefix="tickets-", dir=base if len(base) <= _LONGEST else "/tmp")
        )
        self._order = reaper.promise(["rm", "-rf", str(self.path)])
        if owner is not None:
            shutil.chown(self.path, owner)

    def remove(self) -> None:
        """Remove it with all that is in it."""
        shutil.rmtree(self.path, ignore_errors=True)
        self._reaper.withdraw(self._order)
