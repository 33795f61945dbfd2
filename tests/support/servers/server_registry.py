"""The servers of one test run, each started when a test first asks for it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import cached_property
from typing import TypeVar

from tests.support.servers.base import Server, ServerMissing
from tests.support.servers.galera import Galera
from tests.support.servers.group import Group
from tests.support.servers.haproxy import Front, HAProxy
from tests.support.servers.mariadb import MariaDB, MariaDBTemplate
from tests.support.servers.mysql import MySQL
from tests.support.servers.postgres import PostgreSQL, PostgreSQLStandby
from tests.support.servers.reaper import Reaper

KINDS = ("mariadb", "mysql", "postgresql", "sqlite")
_Kind = TypeVar("_Kind", bound=Server)


class ServerLeftOut(Exception):
    """The one who started this run asked for it without such a server."""


class ServerRegistry:
    """Starts servers, remembers those it could not start, and ends them all.

    Args:
        kinds: The kinds that this run uses.
    """

    def __init__(self, kinds: Collection[str] = KINDS) -> None:
        self._kinds = kinds
        self._reaper = Reaper()
        self._all: list[Server] = []
        self._missing: dict[str, ServerMissing] = {}
        self._mariadb: dict[int, MariaDB] = {}
        self._mysql: dict[int, MySQL] = {}
        self._postgresql: dict[int, PostgreSQL] = {}
        self._galera: Galera | None = None
        self._group: Group | None = None

    def mariadb(self, number: int) -> MariaDB:
        """Return the shared MariaDB server of this number."""
        return _once(self._mariadb, number, self.new_mariadb)

    def mysql(self, number: int) -> MySQL:
        """Return the shared MySQL server of this number."""
        return _once(self._mysql, number, self.new_mysql)

    def postgresql(self) -> PostgreSQL:
        """Return the shared PostgreSQL cluster."""
        return _once(self._postgresql, 0, self.new_postgresql)

    def galera(self) -> Galera:
        """Return the shared Galera cluster, of three nodes."""
        if self._galera is None:
            self._galera = self.new_galera()
        return self._galera

    def new_galera(self) -> Galera:
        """Start another Galera cluster, of three nodes."""
        self._check_kind("mariadb")
        cluster = Galera(self._reaper, self._template)
        self._all += cluster.nodes
        for node in cluster.nodes:
            node.start()
        return cluster

    def group(self) -> Group:
        """Return the shared group of MySQL servers, of two members that take writes."""
        self._check_kind("mysql")
        if self._group is None:
            group = Group(self._reaper)
            self._all += group.members
            group.start()
            self._group = group
        return self._group

    def new_haproxy(self, fronts: Sequence[Front]) -> HAProxy:
        """Start another HAProxy; who asks for it ends it."""
        return HAProxy(self._reaper, fronts)

    def new_mariadb(self, options: Sequence[str] = ()) -> MariaDB:
        """Start another MariaDB server, with some options of `mariadbd`."""
        return self._start("mariadb", lambda: MariaDB(self._reaper, self._template, options))

    def new_mysql(self, options: Sequence[str] = ()) -> MySQL:
        """Start another MySQL server, with some options of `mysqld`."""
        return self._start("mysql", lambda: MySQL(self._reaper, options))

    def new_postgresql(self, options: Sequence[str] = ()) -> PostgreSQL:
        """Start another PostgreSQL cluster, with some options of `postgres`."""
        return self._start("postgresql", lambda: PostgreSQL(self._reaper, options))

    def new_standby(self, primary: PostgreSQL) -> PostgreSQL:
        """Start a replica of a PostgreSQL cluster."""
        return self._start("postgresql", lambda: PostgreSQLStandby(self._reaper, primary))

    def end(self, server: Server) -> None:
        """End one server for good."""
        self._all.remove(server)
        server.close()

    def close(self) -> None:
        """End all servers and remove every trace of them."""
        while self._all:
            self._all.pop().close()
        self._reaper.close()

    @cached_property
    def _template(self) -> MariaDBTemplate:
        return MariaDBTemplate(self._reaper)

    def _start(self, kind: str, make: Callable[[], _Kind]) -> _Kind:
        self._check_kind(kind)
        if kind in self._missing:
            raise self._missing[kind]
        try:
            server = make()
        except ServerMissing as error:
            self._missing[kind] = error
            raise
        self._all.append(server)
        server.start()
        return server

    def _check_kind(self, kind: str) -> None:
        if kind not in self._kinds:
            raise ServerLeftOut(f"this run uses {', '.join(self._kinds)} only (--servers)")


def _once(servers: dict[int, _Kind], number: int, start: Callable[[], _Kind]) -> _Kind:
    if number not in servers:
        servers[number] = start()
    return servers[number]
