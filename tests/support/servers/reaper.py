"""Clean-up that happens even when the test run is killed.

A child process waits for the end of its standard input, which comes when this process ends in
whatever way, and then runs the orders that were not withdrawn. Run as a script it is that child.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Sequence


class Reaper:
    """The orders to carry out when this process has ended."""

    def __init__(self) -> None:
        self._number = 0
        # A session of its own: Ctrl-C in the terminal must not reach it.
        self._child = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, text=True, start_new_session=True
        )

    def promise(self, command: Sequence[str]) -> int:
        """Have a command run at the end; returns what `withdraw` takes."""
        self._number += 1
        self._send({"number": self._number, "command": list(command)})
        return self._number

    def withdraw(self, number: int) -> None:
        """Take an order back: what it was for is gone."""
        self._send({"number": number})

    def close(self) -> None:
        """Carry out what is left, now."""
        assert self._child.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._child.stdin.close()
        self._child.wait()

    def _send(self, order: dict[str, object]) -> None:
        assert self._child.stdin is not None
        self._child.stdin.write(json.dumps(order) + "\n")
        self._child.stdin.flush()


def _serve() -> None:
    orders: dict[int, list[str]] = {}
    for line in sys.stdin:
        order = json.loads(line)
        if "command" in order:
            orders[order["number"]] = order["command"]
        else:
            orders.pop(order["number"], None)
    for number in sorted(orders, reverse=True):
        subprocess.run(orders[number], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


if __name__ == "__main__":
    _serve()
