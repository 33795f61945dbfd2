"""One process that has imported `alembic` and this package, and runs each command in a fork of itself.

To import them takes ten times as long as most commands do.
"""

from __future__ import annotations

import functools
import gc
import importlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import IO, NamedTuple

__all__ = ["alembic"]


class Answer(NamedTuple):
    """How a command ended, and what it printed."""

    code: int
    text: str


def alembic(arguments: Sequence[str], folder: Path, environment: dict[str, str]) -> Answer:
    """Run ``alembic`` in a folder, as ``python -W error -m alembic`` does."""
    return _server().run(arguments, folder, environment)


class _Server:
    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-W", "error", "-m", __name__],
            cwd=Path(__file__).parents[2],
            env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._lock = threading.Lock()

    def run(self, arguments: Sequence[str], folder: Path, environment: dict[str, str]) -> Answer:
        printed = folder / ".printed"
        request = [list(arguments), str(folder), environment, str(printed)]
        with self._lock:
            print(json.dumps(request), file=self._stream(self._process.stdin), flush=True)
            code = self._stream(self._process.stdout).readline()
        assert code, "the process that runs the commands has ended"
        text = printed.read_text()
        printed.unlink()
        return Answer(int(code), text)

    @staticmethod
    def _stream(stream: IO[str] | None) -> IO[str]:
        assert stream is not None
        return stream


@functools.cache
def _server() -> _Server:
    return _Server()


def _serve() -> None:
    """Answer each request with the exit code of a fork; in the fork, run the command."""
    from alembic.config import main

    for module in ("alembic_ext", "logging.config", "psycopg", "pymysql", "sqlalchemy.ext.asyncio"):
        importlib.import_module(module)
    for dialect in ("mysql", "postgresql", "sqlite"):
        importlib.import_module(f"sqlalchemy.dialects.{dialect}")
    gc.freeze()  # what a fork leaves untouched costs it nothing, not at its end, either
    while request := sys.stdin.readline():
        child = os.fork()
        if child == 0:
            main(prog="alembic", argv=_become(*json.loads(request)))
            return
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def _become(
    arguments: list[str], folder: str, environment: dict[str, str], printed: str
) -> list[str]:
    os.chdir(folder)
    sys.path.insert(0, folder)
    os.environ.clear()
    os.environ.update(environment)
    nothing = os.open(os.devnull, os.O_RDONLY)
    output = os.open(printed, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for ours, theirs in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(ours, theirs)
    return arguments


if __name__ == "__main__":
    _serve()
