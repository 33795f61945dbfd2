"""What MariaDB and MySQL have in common for a test."""

from __future__ import annotations

import contextlib
import time
from abc import abstractmethod
from collections.abc import Iterator
from pathlib import Path

import pymysql
from pymysql.constants import ER
from pymysql.cursors import Cursor
from sqlalchemy import URL

from sqla_tickets.dialects import Role
from sqla_tickets.tables.grants import grants
from tests.support.servers.base import PASSWORD, USER, Server
from tests.support.servers.binaries import find_program


class MySQLLike(Server):
    """A server that speaks MySQL's protocol."""

    default_driver = "mysql+pymysql"
    root = "root"

    @property
    def inner_address(self) -> tuple[str, int]:
        """Where another server of its kind finds it."""
        return self.host, self.port

    @property
    @abstractmethod
    def data(self) -> Path | None:
        """Where its data is on this machine; None where that is out of reach."""

    @abstractmethod
    def copy_data(self) -> None:
        """Copy the data of a stopped server, as a backup would."""

    @abstractmethod
    def restore_data(self) -> None:
        """Replace the data of a stopped server by the copy."""

    def create_database(self, name: str, role: Role | None = None) -> None:
        with self.administrator() as cursor:
            cursor.execute(f"CREATE DATABASE `{name}`")
            if role is None:
                cursor.execute(f"GRANT ALL ON `{name}`.* TO '{USER}'@'%'")
        if role is not None:
            self.grant(role, USER, name)

    def create_user(self, name: str, role: Role, database: str) -> None:
        """Create a user with `PASSWORD` who may do there what the role needs, and no more."""
        with self.administrator() as cursor:
            cursor.execute(f"CREATE USER '{name}'@'%' IDENTIFIED BY '{PASSWORD}'")
        self.grant(role, name, database)

    def drop_user(self, name: str, database: str) -> None:
        """Undo `create_user`."""
        with self.administrator() as cursor:
            cursor.execute(f"DROP USER IF EXISTS '{name}'@'%'")

    def grant(self, role: Role, user: str, database: str) -> None:
        """Give a user the least privileges of a role on a database."""
        kind = "mariadb" if self.kind == "mariadb" else "mysql"
        with self.administrator() as cursor:
            for statement in grants(kind, role, user=user, database=database):
                cursor.execute(statement)

    def drop_database(self, name: str) -> None:
        with self.administrator() as cursor:
            # A transaction that a test left open would hold the tables' locks.
            cursor.execute("SELECT id FROM information_schema.processlist WHERE db = %s", [name])
            for (connection,) in cursor.fetchall():
                # It may have ended by itself since.
                with contextlib.suppress(pymysql.err.OperationalError):
                    cursor.execute(f"KILL {connection}")
            cursor.execute(f"DROP DATABASE IF EXISTS `{name}`")

    @contextlib.contextmanager
    def administrator(self) -> Iterator[Cursor]:
        """Yield a cursor of the administrator's, in autocommit, for settings and grants."""
        with self._connect_as_root() as connection, connection.cursor() as cursor:
            yield cursor

    def _connect_as_root(self, read_timeout: float | None = None) -> pymysql.Connection[Cursor]:
        deadline = time.monotonic() + 60
        while True:
            try:
                return pymysql.connect(
                    host=self.host,
                    port=self.port,
                    user=self.root,
                    password=PASSWORD,
                    autocommit=True,
                    connect_timeout=5,
                    read_timeout=read_timeout,
                )
            except pymysql.err.OperationalError as error:
                # those of clients that were killed are there until the server notices
                if error.args[0] != ER.CON_COUNT_ERROR or time.monotonic() > deadline:
                    raise
            time.sleep(0.1)

    def answers(self) -> bool:
        """Return whether it takes connections; a frozen server opens them, and says nothing."""
        try:
            with self._connect_as_root(read_timeout=2) as connection, connection.cursor() as cursor:
                cursor.execute("SELECT 1")
        except pymysql.err.MySQLError:
            return False
        return True

    def client(self, database: str) -> list[str]:
        """Return the command line of `mariadb`, the command-line client, on a database.

        Statements are taken from standard input; add `-e STATEMENT` to give one.

        Raises:
            ServerMissing: The client is not installed.
        """
        hint = "install MariaDB's client (Debian: apt-get install mariadb-client)"
        program = find_program(["mariadb", "mysql"], hint)
        return [
            str(program),
            "--no-defaults",
            f"--host={self.host}",
            f"--port={self.port}",
            "--protocol=tcp",
            f"--user={USER}",
            f"--password={PASSWORD}",
            "--batch",
            "--skip-column-names",
            database,
        ]


def plain_client(url: URL, *, autocommit: bool = True) -> pymysql.Connection[Cursor]:
    """A connection of PyMySQL's with nothing of this package."""
    return pymysql.connect(
        host=url.host,
        port=url.port or 0,
        user=url.username,
        password=url.password or "",
        database=url.database,
        autocommit=autocommit,
    )
