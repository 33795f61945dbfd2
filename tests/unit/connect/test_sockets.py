"""The socket under a connection: what is none is not taken for one, and the driver's stays as it was."""

from __future__ import annotations

import os
import socket
from typing import Any, cast

import pytest

from sqla_tickets.connect.sockets import SocketWire, socket_of


def test_what_is_no_socket_is_not_taken_for_one() -> None:
    with open(os.devnull) as file:
        assert socket_of(cast("Any", file)) is None
    assert socket_of(cast("Any", object())) is None


@pytest.mark.parametrize("blocks", [True, False])
def test_an_application_s_default_timeout_does_not_reach_the_driver_s_socket(
    *, blocks: bool
) -> None:
    here, there = socket.socketpair()
    with here, there:
        here.setblocking(blocks)
        usual = socket.getdefaulttimeout()
        socket.setdefaulttimeout(10)
        try:
            wire = SocketWire(here.fileno())
            assert wire.socket.gettimeout() is None
            wire.close()
        finally:
            socket.setdefaulttimeout(usual)
        assert os.get_blocking(here.fileno()) is blocks
