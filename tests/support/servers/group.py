"""A group of MySQL servers (Group Replication): containers of this machine that agree on every commit."""

from __future__ import annotations

from tests.support.servers.base import wait_until
from tests.support.servers.mysql import MySQL
from tests.support.servers.ports import free_port
from tests.support.servers.reaper import Reaper

_NAME = "6c3cd0c3-0d58-4d4f-8d7c-0a1e4d1a8f1b"
_USER, _PASSWORD = "replica", "replica-4711"
_READY = "SELECT COUNT(*) FROM performance_schema.replication_group_members WHERE MEMBER_STATE = 'ONLINE'"


class Group:
    """A group in which every member takes writes.

    Attributes:
        members: its members, which are not started yet.
    """

    def __init__(self, reaper: Reaper, size: int = 2) -> None:
        ports = [free_port() for _ in range(size)]
        seeds = ",".join(f"127.0.0.1:{port}" for port in ports)
        self.members = [
            MySQL(reaper, _options(number, port, seeds)) for number, port in enumerate(ports, 1)
        ]

    def start(self) -> None:
        """Start the members, and have them form the group, the first one as its beginning."""
        for number, member in enumerate(self.members):
            member.start()
            with member.administrator() as cursor:
                cursor.execute("SET SESSION sql_log_bin = 0")
                cursor.execute(f"CREATE USER {_USER}@'%' IDENTIFIED BY '{_PASSWORD}'")
                cursor.execute(f"GRANT REPLICATION SLAVE, BACKUP_ADMIN ON *.* TO {_USER}@'%'")
                cursor.execute("SET SESSION sql_log_bin = 1")
                cursor.execute("RESET BINARY LOGS AND GTIDS")
                cursor.execute(
                    f"CHANGE REPLICATION SOURCE TO SOURCE_USER = '{_USER}', SOURCE_PASSWORD ="
                    f" '{_PASSWORD}' FOR CHANNEL 'group_replication_recovery'"
                )
                cursor.execute(f"SET GLOBAL group_replication_bootstrap_group = {int(not number)}")
                cursor.execute("START GROUP_REPLICATION")
                cursor.execute("SET GLOBAL group_replication_bootstrap_group = 0")
        wait_until(lambda: all(self._size(m) == len(self.members) for m in self.members), _alive)

    @staticmethod
    def _size(member: MySQL) -> int:
        with member.administrator() as cursor:
            cursor.execute(_READY)
            ((count,),) = cursor.fetchall()
            return int(count)


def _alive() -> None:
    return None


def _options(number: int, port: int, seeds: str) -> list[str]:
    name = "--loose-group-replication-"
    return [
        f"--server-id={number}",
        "--log-bin=binlog",
        "--gtid-mode=ON",
        "--enforce-gtid-consistency=ON",
        "--plugin-load-add=group_replication.so",
        "--report-host=127.0.0.1",
        f"{name}group-name={_NAME}",
        f"{name}local-address=127.0.0.1:{port}",
        f"{name}group-seeds={seeds}",
        f"{name}start-on-boot=OFF",
        f"{name}recovery-get-public-key=ON",
        f"{name}single-primary-mode=OFF",
        f"{name}enforce-update-everywhere-checks=ON",
    ]
