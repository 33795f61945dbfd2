"""What is no socket is not taken for one."""

from __future__ import annotations

import os
from typing import Any, cast

from sqla_tickets.connect.sockets import socket_of


def test_what_is_no_socket_is_not_taken_for_one() -> None:
    with open(os.devnull) as file:
        assert socket_of(cast("Any", file)) is None
    assert socket_of(cast("Any", object())) is None
