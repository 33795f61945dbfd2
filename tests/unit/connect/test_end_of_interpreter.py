"""The end of a program whose modules the interpreter has emptied before it collects a pool, as a free-threaded one does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import gc, sys
from sqla_tickets import TicketPool
from sqla_tickets.connect import pool as module

pool = TicketPool([f"sqlite:///{sys.argv[1]}"])
pool.create_table("photos")
pool.next_id("photos")
names = vars(module)
names.update(dict.fromkeys(names.keys() - {"__builtins__"}))
del pool
gc.collect()
"""


def test_connections_collected_in_an_emptied_module_raise_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "one.db")]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    assert not ended.stderr
