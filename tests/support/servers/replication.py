"""Asynchronous replication by GTID from one server of the tests to another, of the same kind."""

from __future__ import annotations

import time

from tests.support.servers.base import START_SECONDS, ServerFailed
from tests.support.servers.mysqllike import MySQLLike
from tests.support.servers.server_fixtures import ServerFixtures

_USER, _PASSWORD = "replica", "replica-4711"
_OPTIONS = {
    "mariadb": ("--log-bin=binlog", "--log-slave-updates"),
    "mysql": ("--log-bin=binlog", "--gtid-mode=ON", "--enforce-gtid-consistency=ON"),
}


class Replication:
    """A source and a replica, read-only, that has all that it has, from the beginning on.

    Attributes:
        source: whose writes are taken over.
        replica: that takes them over.
        read_only: the variable that keeps others from writing to the replica.
        more_privileges: what this kind of server asks of who looks at a replica.
    """

    def __init__(self, servers: ServerFixtures, kind: str) -> None:
        start = servers.new_mysql if kind == "mysql" else servers.new_mariadb
        self.source: MySQLLike = start("--server-id=1", *_OPTIONS[kind])
        self.replica: MySQLLike = start("--server-id=2", *_OPTIONS[kind])
        self._is_mariadb = kind == "mariadb"
        self.read_only = "read_only" if self._is_mariadb else "super_read_only"
        self.more_privileges = ("SLAVE MONITOR",) if self._is_mariadb else ()
        self._begin()

    def _begin(self) -> None:
        reset = "RESET MASTER" if self._is_mariadb else "RESET BINARY LOGS AND GTIDS"
        for server in (self.source, self.replica):
            with server.administrator() as cursor:
                cursor.execute(reset)
        with self.source.administrator() as cursor:
            cursor.execute(f"CREATE USER {_USER}@'%' IDENTIFIED BY '{_PASSWORD}'")
            cursor.execute(f"GRANT REPLICATION SLAVE ON *.* TO {_USER}@'%'")
        host, port = self.source.inner_address
        word = "MASTER" if self._is_mariadb else "SOURCE"
        change = "MASTER" if self._is_mariadb else "REPLICATION SOURCE"
        by_gtid = (
            "MASTER_USE_GTID = slave_pos"
            if self._is_mariadb
            else "SOURCE_AUTO_POSITION = 1, GET_SOURCE_PUBLIC_KEY = 1"
        )
        with self.replica.administrator() as cursor:
            cursor.execute(
                f"CHANGE {change} TO {word}_HOST = '{host}', {word}_PORT = {port},"
                f" {word}_USER = '{_USER}', {word}_PASSWORD = '{_PASSWORD}', {by_gtid},"
                f" {word}_CONNECT_RETRY = 1"
            )
            cursor.execute("START REPLICA")
            cursor.execute(f"SET GLOBAL {self.read_only} = ON")
        self.wait()

    def wait(self) -> None:
        """Wait until the replica has everything."""
        variable = "gtid_binlog_pos" if self._is_mariadb else "gtid_executed"
        waiting = "MASTER_GTID_WAIT" if self._is_mariadb else "WAIT_FOR_EXECUTED_GTID_SET"
        with self.source.administrator() as cursor:
            cursor.execute(f"SELECT @@GLOBAL.{variable}")
            ((position,),) = cursor.fetchall()
        end = time.monotonic() + START_SECONDS
        with self.replica.administrator() as cursor:
            while time.monotonic() < end:
                cursor.execute(f"SELECT {waiting}(%s, 5)", [position])
                if cursor.fetchall() == ((0,),):
                    return
        raise ServerFailed(f"the replica did not come to {position}")

    def hold_back(self) -> None:
        """Have the replica lag from here on."""
        with self.replica.administrator() as cursor:
            cursor.execute("STOP REPLICA SQL_THREAD")

    def promote(self) -> None:
        """Kill the source, and make the replica a server of its own, with what it has."""
        self.source.kill()
        with self.replica.administrator() as cursor:
            cursor.execute("STOP REPLICA")
            cursor.execute("RESET REPLICA ALL")
            cursor.execute("SET GLOBAL read_only = OFF")
