"""Where the work is done: the servers of one run, as addresses that another process can use."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from sqlalchemy import URL, create_engine, make_url, text

from benchmarks.delay import Delay
from benchmarks.redis_server import Redis
from sqla_tickets.note import LayoutName
from tests.servers import Fleet
from tests.servers.base import Server, ServerMissing
from tests.servers.guardian import Guardian

__all__ = ["Place", "delayed", "open_place", "redis_port"]

#: What a server takes from a machine by its own default; the tests' are smaller.
OPTIONS = {
    "mariadb": ("--innodb-buffer-pool-size=128M", "--innodb-log-file-size=96M"),
    "mysql": ("--innodb-buffer-pool-size=128M",),
}


@dataclass(frozen=True)
class Place:
    """Servers of one kind.

    Attributes:
        kind: ``mariadb``, ``mysql``, ``postgresql`` or ``sqlite``.
        version: what they call themselves.
        tickets: the addresses of the two ticket databases.
        app: the address of the application's database.
        redis: the port of a Redis; None where there is none.
    """

    kind: str
    version: str
    tickets: tuple[str, str]
    app: str
    redis: int | None

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
    guardian = Guardian()
    try:
        server = Redis(guardian)
        try:
            server.start()
            yield server.port
        finally:
            server.close()
    finally:
        guardian.close()


def open_place(kind: str, fleet: Fleet, folder: Path, redis: int | None) -> Place:
    """Start the servers of a kind.

    Raises:
        ServerMissing: this machine has none.
    """
    if kind == "sqlite":
        files = [f"sqlite:///{folder}/{name}.db" for name in ("one", "two", "app")]
        return Place(kind, _version(files[2]), (files[0], files[1]), files[2], redis)
    servers = [_start(kind, fleet), _start(kind, fleet)]
    for server in servers:
        server.create_database("bench_tickets")
    servers[0].create_database("bench_app")
    first, second = (_text(server.url("bench_tickets")) for server in servers)
    app = _text(servers[0].url("bench_app"))
    return Place(kind, _version(app), (first, second), app, redis)


def _start(kind: str, fleet: Fleet) -> Server:
    if kind == "mariadb":
        return fleet.new_mariadb(OPTIONS[kind])
    if kind == "mysql":
        return fleet.new_mysql(OPTIONS[kind])
    if kind == "postgresql":
        return fleet.new_postgresql(("--fsync=on",))
    raise ServerMissing(f"there is no kind of server called {kind!r}")


@contextlib.contextmanager
def delayed(place: Place, milliseconds: float) -> Iterator[Place]:
    """The same servers at the other end of a network whose round trip takes some time."""
    with contextlib.ExitStack() as stack:

        def away(address: str) -> str:
            url = make_url(address)
            assert url.host is not None
            assert url.port is not None
            delay = stack.enter_context(Delay(url.port, milliseconds / 1000, host=url.host))
            return _text(url.set(host="127.0.0.1", port=delay.port))

        first, second = map(away, place.tickets)
        yield replace(place, tickets=(first, second), app=away(place.app), redis=None)


def _text(url: URL) -> str:
    return url.render_as_string(hide_password=False)


def _version(address: str) -> str:
    engine = create_engine(address)
    function = "sqlite_version()" if engine.dialect.name == "sqlite" else "VERSION()"
    with engine.connect() as connection:
        found = str(connection.execute(text(f"SELECT {function}")).scalar_one())
    engine.dispose()
    return found.removeprefix("PostgreSQL ").split(" ")[0].split("-")[0]
