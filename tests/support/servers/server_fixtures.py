"""What one test takes from the registry of servers, and how it is given back."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

import pytest
from sqlalchemy import URL

from sqla_tickets.dialects import Role
from tests.support.servers.base import Server, ServerMissing
from tests.support.servers.clocks import Clock
from tests.support.servers.galera import Galera
from tests.support.servers.group import Group
from tests.support.servers.haproxy import CHECKER, Front, HAProxy
from tests.support.servers.mariadb import MariaDB
from tests.support.servers.mysql import MySQL
from tests.support.servers.mysqllike import MySQLLike
from tests.support.servers.postgres import PostgreSQL
from tests.support.servers.server_registry import ServerLeftOut, ServerRegistry

_Kind = TypeVar("_Kind", bound=Server)
_T = TypeVar("_T")
_numbers = itertools.count(1)


class ServerFixtures:
    """The servers of one test, which it may stop, kill and freeze as it likes.

    A server that this machine lacks skips the test, or fails it if all are required.

    Args:
        server_registry: The servers of the whole run.
        require_all: Whether a missing server is a failure.
    """

    def __init__(self, server_registry: ServerRegistry, *, require_all: bool) -> None:
        self._server_registry = server_registry
        self._require_all = require_all
        self._lent: list[Server] = []
        self._own: list[Server] = []
        self._proxies: list[HAProxy] = []
        self._databases: list[tuple[Server, str]] = []

    def mariadb(self, number: int = 0) -> MariaDB:
        """Return the shared MariaDB server of this number."""
        return self._lend(lambda: self._server_registry.mariadb(number))

    def mysql(self, number: int = 0) -> MySQL:
        """Return the shared MySQL server of this number."""
        return self._lend(lambda: self._server_registry.mysql(number))

    def postgresql(self) -> PostgreSQL:
        """Return the shared PostgreSQL cluster."""
        return self._lend(self._server_registry.postgresql)

    def galera(self) -> Galera:
        """Return the shared Galera cluster, of three nodes."""
        cluster = self._or_skip(self._server_registry.galera)
        self._lent += [node for node in cluster.nodes if node not in self._lent]
        return cluster

    def new_galera(self) -> Galera:
        """Start a Galera cluster of the test's own, of three nodes."""
        cluster = self._or_skip(self._server_registry.new_galera)
        self._own += cluster.nodes
        return cluster

    def group(self) -> Group:
        """Return the shared group of MySQL servers, of two members that take writes."""
        group = self._or_skip(self._server_registry.group)
        self._lent += [member for member in group.members if member not in self._lent]
        return group

    def new_haproxy(self, *fronts: Front, checked: Iterable[MySQLLike]) -> HAProxy:
        """Start HAProxy with some fronts; it says hello to the servers that are checked."""
        for server in checked:
            with server.administrator() as cursor:
                cursor.execute(f"CREATE USER IF NOT EXISTS '{CHECKER}'@'%'")
        haproxy = self._or_skip(lambda: self._server_registry.new_haproxy(fronts))
        self._proxies.append(haproxy)
        return haproxy

    def new_mariadb(self, *options: str) -> MariaDB:
        """Start a MariaDB server of the test's own, with options of `mariadbd`."""
        return self._take(lambda: self._server_registry.new_mariadb(options))

    def new_mysql(self, *options: str) -> MySQL:
        """Start a MySQL server of the test's own, with options of `mysqld`."""
        return self._take(lambda: self._server_registry.new_mysql(options))

    def new_postgresql(self, *options: str) -> PostgreSQL:
        """Start a PostgreSQL cluster of the test's own, with options of `postgres`."""
        return self._take(lambda: self._server_registry.new_postgresql(options))

    def clock(self, file: Path) -> Clock:
        """Return a clock that steps, for processes that are started with its environment."""
        return self._or_skip(lambda: Clock(file))

    def new_standby(self, primary: PostgreSQL) -> PostgreSQL:
        """Start a replica of a PostgreSQL cluster, which keeps what the cluster has now."""
        return self._take(lambda: self._server_registry.new_standby(primary))

    def shared(self, kind: str, number: int = 0) -> Server:
        """Return a shared server by its kind; PostgreSQL has one for all numbers."""
        start: dict[str, Callable[[], Server]] = {
            "mariadb": lambda: self.mariadb(number),
            "mysql": lambda: self.mysql(number),
            "postgresql": self.postgresql,
        }
        return start[kind]()

    def fresh_database(self, server: Server, role: Role | None = "migrate") -> URL:
        """Create an empty database for this test alone and return its address.

        Args:
            server: Where.
            role: What its user may do there, by the least grants, of which those of "migrate" have
                those of "draw" in them; `None`, for an application's database, everything.
        """
        name = f"t{os.getpid()}_{next(_numbers)}"
        server.create_database(name, role)
        self._databases.append((server, name))
        return server.url(name)

    def give_back(self) -> None:
        """Undo what the test did: servers run again, databases are gone."""
        while self._proxies:
            self._proxies.pop().close()
        for server in self._lent:
            server.revive()
        while self._databases:
            server, name = self._databases.pop()
            if server in self._lent:
                server.drop_database(name)
        while self._own:
            self._server_registry.end(self._own.pop())

    def _lend(self, get: Callable[[], _Kind]) -> _Kind:
        server = self._or_skip(get)
        if server not in self._lent:
            self._lent.append(server)
        return server

    def _take(self, start: Callable[[], _Kind]) -> _Kind:
        server = self._or_skip(start)
        self._own.append(server)
        return server

    def _or_skip(self, get: Callable[[], _T]) -> _T:
        try:
            return get()
        except ServerLeftOut as left_out:
            pytest.skip(str(left_out))
        except ServerMissing as missing:
            if self._require_all:
                pytest.fail(str(missing), pytrace=False)
            pytest.skip(str(missing))
