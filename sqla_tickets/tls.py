"""PyMySQL without the price that it pays for encryption before each connection.

Where a URL says nothing of TLS, PyMySQL (from 1.2 on) encrypts if the server can, and verifies
nobody. All the same it first reads the system's certificates: 20 ms of CPU, when every thread needs
a new connection at once because a server has died. And a process that forks meanwhile leaves its
child a lock of OpenSSL's that nobody will release: the child's first connection never comes.
"""

from __future__ import annotations

import functools
import os
import ssl
from typing import Any

__all__ = ["LightPyMySQL"]


class LightPyMySQL:
    """The module ``pymysql``, for ``create_engine(module=...)``, with connections that start lighter."""

    def __init__(self) -> None:
        import pymysql  # noqa: PLC0415  # another driver may be in use
        from pymysql.connections import Connection  # noqa: PLC0415

        class LightConnection(Connection):
            def _create_ssl_ctx(self, sslp: Any) -> ssl.SSLContext:
                if sslp:  # the URL has something to say
                    return super()._create_ssl_ctx(sslp)  # type: ignore[misc,no-any-return]  # not in its stubs
                return _verifies_nobody(os.getpid())

        self._pymysql = pymysql
        self.connect = LightConnection

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pymysql, name)


@functools.lru_cache(maxsize=1)
def _verifies_nobody(pid: int) -> ssl.SSLContext:
    """What PyMySQL makes of no options, without the certificates; one for each process."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
