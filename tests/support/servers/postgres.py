"""PostgreSQL as a local process on a cluster of its own."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import psycopg
from psycopg import sql

from sqla_tickets.dialects import Role
from sqla_tickets.tables.grants import grants
from tests.support.servers.base import PASSWORD, USER, ServerFailed
from tests.support.servers.binaries import postgres_folder
from tests.support.servers.process import ProcessServer, unprivileged
from tests.support.servers.reaper import Reaper

# The first release that can copy the files of a new database instead of logging them.
_WITH_STRATEGIES = 150000


def _kept(password: str) -> str:
    """A password as a server keeps it, after one round instead of 4096: a login takes a third of the time."""
    salt = os.urandom(16)
    salted = hashlib.pbkdf2_hmac("sha256", password.encode(), salt, 1)
    client, server = (
        hmac.digest(salted, b"%s Key" % who, "sha256") for who in (b"Client", b"Server")
    )
    parts = (salt, hashlib.sha256(client).digest(), server)
    return "SCRAM-SHA-256$1:{}${}:{}".format(*(base64.b64encode(part).decode() for part in parts))


class PostgreSQL(ProcessServer):
    """A PostgreSQL cluster with its stock settings, and small."""

    kind = "postgresql"
    default_driver = "postgresql+psycopg"
    root = "postgres"
    # "Fast shutdown": SIGTERM would wait for every client to leave.
    stop_signal = signal.SIGINT

    def __init__(self, reaper: Reaper, options: Sequence[str] = ()) -> None:
        self._programs = postgres_folder()
        self._options = list(options)
        super().__init__(reaper, unprivileged("postgres", "PostgreSQL"))
        self._install()

    def command(self) -> list[str]:
        settings = {
            "port": str(self.port),
            "listen_addresses": self.host,
            "unix_socket_directories": str(self.folder),
            "shared_buffers": "16MB",
            # A killed process loses nothing without it, and new databases come quicker.
            "fsync": "off",
        }
        options = [f"--{name}={value}" for name, value in settings.items()]
        return [str(self._programs / "postgres"), "-D", str(self._data), *options, *self._options]

    def answers(self) -> bool:
        try:
            with self.administrator() as cursor:
                cursor.execute("SELECT 1")
        except psycopg.OperationalError:
            return False
        return True

    def create_database(self, name: str, role: Role | None = None) -> None:
        with self.administrator() as cursor:
            owner = USER if role is None else self.root
            create = sql.SQL("CREATE DATABASE {} OWNER {}")
            if cursor.connection.info.server_version >= _WITH_STRATEGIES:
                # half the work, where nothing is flushed
                create = sql.SQL("CREATE DATABASE {} OWNER {} STRATEGY FILE_COPY")
            cursor.execute(create.format(sql.Identifier(name), sql.Identifier(owner)))
        if role is not None:
            self.grant(role, USER, name)

    def create_user(self, name: str, role: Role, database: str) -> None:
        """Create a user with `PASSWORD` who may do there what the role needs, and no more."""
        with self.administrator() as cursor:
            create = sql.SQL("CREATE ROLE {} LOGIN PASSWORD {}")
            cursor.execute(create.format(sql.Identifier(name), _kept(PASSWORD)))
        self.grant(role, name, database)

    def drop_user(self, name: str, database: str) -> None:
        """Undo `create_user`."""
        with self.administrator(database) as cursor:
            for statement in ("DROP OWNED BY {}", "DROP ROLE {}"):
                cursor.execute(sql.SQL(statement).format(sql.Identifier(name)))

    def grant(self, role: Role, user: str, database: str) -> None:
        """Give a user the least privileges of a role on a database."""
        with self.administrator(database) as cursor:
            for statement in grants("postgresql", role, user=user, database=database, owner=USER):
                cursor.execute(statement.encode())

    def drop_database(self, name: str) -> None:
        with self.administrator() as cursor:
            drop = sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)")
            cursor.execute(drop.format(sql.Identifier(name)))

    @contextlib.contextmanager
    def administrator(self, database: str = "postgres") -> Iterator[psycopg.Cursor]:
        """Yield a cursor of the superuser's, in autocommit."""
        connection = psycopg.connect(
            host=self.host,
            port=self.port,
            user=self.root,
            password=PASSWORD,
            dbname=database,
            autocommit=True,
            connect_timeout=5,
        )
        with contextlib.closing(connection), connection.cursor() as cursor:
            yield cursor

    @property
    def _data(self) -> Path:
        return self.folder / "data"

    def _install(self) -> None:
        password = self.folder / "password"
        password.write_text(_kept(PASSWORD))
        done = subprocess.run(
            [
                str(self._programs / "initdb"),
                f"--pgdata={self._data}",
                f"--username={self.root}",
                f"--pwfile={password}",
                "--auth=scram-sha-256",
                "--encoding=UTF8",
                "--locale=C",
                "--no-sync",
            ],
            capture_output=True,
            text=True,
            user=self._owner,
        )
        if done.returncode:
            raise ServerFailed(f"initdb: {done.stdout}{done.stderr}")
        self._create_user()

    def _create_user(self) -> None:
        # In single-user mode, so that the first start already serves everybody.
        subprocess.run(
            [str(self._programs / "postgres"), "--single", "-D", str(self._data), "postgres"],
            input=f"CREATE ROLE {USER} LOGIN PASSWORD '{_kept(PASSWORD)}'",
            capture_output=True,
            text=True,
            check=True,
            user=self._owner,
        )


class PostgreSQLStandby(PostgreSQL):
    """A replica of another cluster, in recovery for as long as that one is the primary."""

    def __init__(self, reaper: Reaper, primary: PostgreSQL) -> None:
        self._primary = primary
        super().__init__(reaper)

    def _install(self) -> None:
        done = subprocess.run(
            [
                str(self._programs / "pg_basebackup"),
                f"--pgdata={self._data}",
                f"--dbname=host={self._primary.host} port={self._primary.port} user={self.root}",
                "--write-recovery-conf",
                "--checkpoint=fast",
                "--no-sync",
            ],
            capture_output=True,
            text=True,
            user=self._owner,
            env={**os.environ, "PGPASSWORD": PASSWORD},
        )
        if done.returncode:
            raise ServerFailed(f"pg_basebackup: {done.stdout}{done.stderr}")
