"""Ports that stay a server's own while it is down."""

from __future__ import annotations

import os
import random
import socket

# Below the range from which Linux and macOS take the ports of outgoing connections: none of those
# can sit on the port of a killed server when it starts again.
_RANGE = range(20_000, 32_000)
_given: set[int] = set()
_random = random.Random(os.urandom(8))


def free_port() -> int:
    """Return a TCP port that nothing listens on and that no other caller was given."""
    while True:
        port = _random.choice(_RANGE)
        if port not in _given and _bindable(port):
            _given.add(port)
            return port


def _bindable(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("0.0.0.0", port))
        except OSError:
            return False
    return True
