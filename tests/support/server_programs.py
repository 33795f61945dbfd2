"""Server programs of Python's that a test runs, such as gunicorn and Celery's workers."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

#: Seconds that one may take to end.
BOUND_SECONDS = 120


@contextmanager
def running(
    command: Sequence[str], environment: dict[str, str], log: Path, cwd: Path | None = None
) -> Iterator[None]:
    """Run a server program of Python's; it must end by itself when it is asked to."""
    with (
        log.open("w") as output,
        subprocess.Popen(
            [sys.executable, "-m", *command],
            env=environment,
            cwd=cwd,
            stdout=output,
            stderr=output,
        ) as server,
    ):
        try:
            yield
        except BaseException:
            print(log.read_text())
            raise
        finally:
            server.terminate()
            try:
                server.wait(BOUND_SECONDS)
            except subprocess.TimeoutExpired:
                server.kill()
                raise
    assert "Traceback" not in log.read_text()
