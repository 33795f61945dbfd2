"""The socket under a driver's connection, so that a silent one can be cut while a thread waits on it.

No two drivers keep it in the same place, and none promises where: what is found is taken only when
it is an open socket.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from typing import Any, Final

from sqlalchemy.engine.interfaces import DBAPIConnection

__all__ = ["socket_of"]

_PLACES: Final[tuple[Callable[[Any], int], ...]] = (
    lambda c: c.fileno(),  # mysqlclient, psycopg, psycopg2
    lambda c: c._sock.fileno(),  # PyMySQL
    lambda c: c._socket.sock.fileno(),  # mysql-connector; its C extension shows none
    lambda c: c._get_socket(),  # mariadb; whoever asks it for `socket` closes it one day
    lambda c: c._transport.get_extra_info("socket").fileno(),  # asyncmy, asyncpg
    lambda c: c._writer.get_extra_info("socket").fileno(),  # aiomysql
)


def socket_of(dbapi_connection: DBAPIConnection) -> int | None:
    """The file descriptor of a connection's socket, with or without TLS.

    It is the driver's own. Duplicate it (``os.dup``) before another thread acts on it: its number
    may be somebody else's as soon as the driver has closed it.

    Args:
        dbapi_connection: a driver's connection, or SQLAlchemy's adapter around an async driver's.

    Returns:
        None where there is none, or it cannot be found: SQLite, a closed connection, a driver that
        hides it.
    """
    connection = getattr(dbapi_connection, "driver_connection", dbapi_connection)
    for place in _PLACES:
        try:
            found = place(connection)
            if stat.S_ISSOCK(os.fstat(found).st_mode):
                return found
        except Exception:  # noqa: BLE001, S112  # another driver, or one that has closed it
            continue
    return None
