"""Where the work is done: the servers of one run, as addresses that another process can use."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from sqlalchemy import URL, create_engine, make_url, text

from benchmarks.redis_server import Redis
from sqla_tickets.dialects import LayoutName
from tests.support.servers import ServerRegistry
from tests.support.servers.base import Server, ServerMissing
from tests.support.servers.reaper import Reaper
from tests.support.tcp_proxy import Fault, TcpProxy

__all__ = ["Testbed", "delayed", "open_testbed", "redis_port"]

#: What a server takes from a machine by its own default, as the tests' are smaller; and room for 64 processes.
OPTIONS = {
    "mariadb": (
        "--innodb-buffer-pool-size=128M",
        "--innodb-log-file-size=96M",
        "--max-connections=400",
    ),
    "mysql": ("--innodb-buffer-pool-size=128M", "--max-connections=400"),
}


_MORE = 8


@dataclass(frozen=True)
class Testbed:
    """Servers of one kind.

    Attributes:
        kind: ``mariadb``, ``mysql``, ``postgresql`` or ``sqlite``.
        version: what they call themselves.
        tickets: the addresses of the ticket databases, each on a server of its own.
        app: the address of the application's database.
        redis: the port of a Redis; None where there is none.
        more: the addresses of eight more ticket databases, on these servers in turn.
    """

    kind: str
    version: str
    tickets: tuple[str, ...]
    app: str
    redis: int | None
    more: tuple[str, ...] = ()

    @property
    def layouts(self) -> list[LayoutName]:
        """How a ticket table can look here."""
        return ["counter", "replace"] if self.speaks_mysql else ["counter"]

    @property
    def speaks_mysql(self) -> bool:
        return self.kind in ("mariadb", "mysql")


@contextlib.contextmanager
def redis_port() -> Iterator[int]:
    """A Redis that writes each command to disk before it answers.

    Raises:
        ServerMissing: none is installed.
    """
    reaper = Reaper()
    try:
        server = Redis(reaper)
        try:
            server.start()
            yield server.port
        finally:
            server.close()
    finally:
        reaper.close()


def open_testbed(
    kind: str, server_registry: ServerRegistry, folder: Path, redis: int | None
) -> Testbed:
    """Start the servers of a kind.

    Raises:
        ServerMissing: this machine has none.
    """
    if kind == "sqlite":
        files = [f"sqlite:///{folder}/{name}.db" for name in ("one", "two", "app")]
        return Testbed(kind, _version(files[2]), (files[0], files[1]), files[2], redis)
    servers = [_start(kind, server_registry), _start(kind, server_registry)]
    for server in servers:
        server.create_database("bench_tickets")
    servers[0].create_database("bench_app")
    more: list[str] = []
    for number in range(_MORE):
        server, name = servers[number % len(servers)], f"bench_more_{number}"
        server.create_database(name)
        more.append(_text(server.url(name)))
    first, second = (_text(server.url("bench_tickets")) for server in servers)
    app = _text(servers[0].url("bench_app"))
    return Testbed(kind, _version(app), (first, second), app, redis, tuple(more))


def _start(kind: str, server_registry: ServerRegistry) -> Server:
    if kind == "mariadb":
        return server_registry.new_mariadb(OPTIONS[kind])
    if kind == "mysql":
        return server_registry.new_mysql(OPTIONS[kind])
    if kind == "postgresql":
        return server_registry.new_postgresql(("--fsync=on",))
    raise ServerMissing(f"there is no kind of server called {kind!r}")


@contextlib.contextmanager
def delayed(testbed: Testbed, milliseconds: float) -> Iterator[Testbed]:
    """The same servers at the other end of a network whose round trip takes some time."""
    with contextlib.ExitStack() as stack:

        def away(address: str) -> str:
            url = make_url(address)
            assert url.host is not None
            assert url.port is not None
            delay = stack.enter_context(
                TcpProxy(url.port, Fault("delay", milliseconds / 1000), url.host)
            )
            return _text(url.set(host="127.0.0.1", port=delay.port))

        first, second = map(away, testbed.tickets)
        yield replace(testbed, tickets=(first, second), app=away(testbed.app), redis=None)


def _text(url: URL) -> str:
    return url.render_as_string(hide_password=False)


def _version(address: str) -> str:
    engine = create_engine(address)
    function = "sqlite_version()" if engine.dialect.name == "sqlite" else "VERSION()"
    with engine.connect() as connection:
        found = str(connection.execute(text(f"SELECT {function}")).scalar_one())
    engine.dispose()
    return found.removeprefix("PostgreSQL ").split(" ")[0].split("-")[0]
