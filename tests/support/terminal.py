"""Programs in a terminal of their own, as a person sees them."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.waiting import has_input


@contextmanager
def in_a_terminal(
    command: list[str], columns: int = 400
) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """Run a command in a terminal of its own, wide enough for long names; the end of a person."""
    here, there = pty.openpty()
    fcntl.ioctl(there, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    # the first terminal that the leader of a session opens becomes its own, with Ctrl-C and a hang-up
    # when these tests are killed; which a shell, and `nohup`, let what they run ignore
    own = (
        "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL);"
        "signal.signal(signal.SIGHUP, signal.SIG_DFL); os.open(os.ttyname(0), os.O_RDWR);"
        "os.execv(sys.argv[1], sys.argv[1:])"
    )
    environment = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "NO_COLOR")}
    process = subprocess.Popen(
        [sys.executable, "-c", own, *command],
        stdin=there,
        stdout=there,
        stderr=there,
        env={**environment, "TERM": "xterm"},
        start_new_session=True,
    )
    os.close(there)
    try:
        yield process, here
    finally:
        process.kill()
        process.wait()
        os.close(here)


def read_until(terminal: int, wanted: str) -> str:
    """What a terminal shows, up to what is waited for."""
    seen, deadline = b"", time.monotonic() + 60
    while wanted.encode() not in seen:
        assert time.monotonic() < deadline, f"never: {wanted!r} in {seen[-3000:]!r}"
        if has_input(terminal, 1):
            seen += os.read(terminal, 65536)
    return seen.decode(errors="replace")
