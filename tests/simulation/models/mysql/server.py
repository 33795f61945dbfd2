"""The model of a MySQL or MariaDB server; the package `tests.simulation.models` says what it knows and what not."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final

from tests.simulation.models.expressions import Value
from tests.simulation.models.mysql.commands import run
from tests.simulation.models.mysql.session import MySQLSession
from tests.simulation.models.protocol import Login
from tests.simulation.models.sessions import Costs, ModelServer, ModelSession
from tests.simulation.models.storage import TableKey
from tests.simulation.models.table_locks import TableLock, TableWait
from tests.simulation.runtime import Runtime, ServerError

__all__ = ["MySQLServer"]

#: Of the session, unless the server has them as variables of its own.
_SESSION: Final = (
    "auto_increment_increment",
    "auto_increment_offset",
    "autocommit",
    "information_schema_stats_expiry",
    "innodb_lock_wait_timeout",
    "isolation",
    "lock_wait_timeout",
    "sql_mode",
)
_MYSQL_ONLY: Final = ("information_schema_stats_expiry", "server_uuid", "super_read_only")
_MARIADB_MODE: Final = (
    "STRICT_TRANS_TABLES,ERROR_FOR_DIVISION_BY_ZERO,NO_AUTO_CREATE_USER,NO_ENGINE_SUBSTITUTION"
)
_MYSQL_MODE: Final = (
    "ONLY_FULL_GROUP_BY,STRICT_TRANS_TABLES,NO_ZERO_IN_DATE,NO_ZERO_DATE,"
    "ERROR_FOR_DIVISION_BY_ZERO,NO_ENGINE_SUBSTITUTION"
)
_MARIADB_COUNTER_KEPT: Final = (10, 2, 4)
_MYSQL_COUNTER_KEPT: Final = (8, 0)


class MySQLServer(ModelServer):
    """A MySQL or MariaDB server.

    Args:
        runtime: its time, and its turns.
        version: as ``VERSION()`` says it; with "MariaDB" in it, it is one.
        identity: of MySQL the ``server_uuid``, of MariaDB its host, port, number and folder. A copy has the same.
        max_connections: how many sessions it lets in.
        costs: how long it is busy.
        deadlock_chance: of a REPLACE that has waited for a row, beside the deadlocks that are modelled.

    Attributes:
        variables: the global ones.
        locks: the metadata locks of the tables.
        named_locks: those of GET_LOCK, by their names.
        identity: by which clients recognise it.
        keeps_counter: whether AUTO_INCREMENT is on the disk, and follows an UPDATE.
    """

    def __init__(
        self,
        runtime: Runtime,
        version: str = "10.11.19-MariaDB",
        *,
        identity: str = "model 3306 1 /data/",
        max_connections: int = 151,
        costs: Costs | None = None,
        deadlock_chance: float = 0.0,
    ) -> None:
        super().__init__(runtime, max_connections=max_connections, costs=costs)
        self.version, self.identity, self.deadlock_chance = version, identity, deadlock_chance
        self.is_mariadb = "MariaDB" in version
        numbers = tuple(int(n) for n in re.findall(r"\d+", version.partition("-")[0]))
        since = _MARIADB_COUNTER_KEPT if self.is_mariadb else _MYSQL_COUNTER_KEPT
        self.keeps_counter = numbers >= since
        self._has_new_isolation = numbers >= ((11, 1, 1) if self.is_mariadb else (5, 7, 20))
        self.locks: dict[TableKey, TableLock] = {}
        self.named_locks: dict[str, TableLock] = {}
        self._configured: dict[str, Value] = {
            "auto_increment_increment": 1,
            "auto_increment_offset": 1,
            "autocommit": 1,
            "datadir": "/data/",
            "hostname": "model",
            "information_schema_stats_expiry": 86_400,
            "innodb_flush_log_at_trx_commit": 1,
            "innodb_force_recovery": 0,
            "innodb_lock_wait_timeout": 50,
            "innodb_read_only": 0,
            "isolation": "REPEATABLE-READ",
            "log_bin": 0,
            "lock_wait_timeout": 86_400 if self.is_mariadb else 31_536_000,
            "lower_case_table_names": 0,
            "max_connections": max_connections,
            "port": 3306,
            "read_only": 0,
            "server_uuid": identity,
            "sql_mode": _MARIADB_MODE if self.is_mariadb else _MYSQL_MODE,
            "super_read_only": 0,
            "sync_binlog": 1,
        }
        self.variables = dict(self._configured)

    def session_defaults(self) -> Mapping[str, Value]:
        """The variables of a new session."""
        return {name: self.variables[name] for name in _SESSION}

    def has_variable(self, name: str) -> bool:
        """Whether this kind, and this version, has the variable."""
        if name == "tx_isolation":
            return self.is_mariadb or not self._has_new_isolation
        if name == "transaction_isolation":
            return self._has_new_isolation
        return not (self.is_mariadb and name in _MYSQL_ONLY)

    def configure(self, name: str, value: Value) -> None:
        """Set a global variable for good, as a configuration file does."""
        self._configured[name] = value
        self.set_global(name, value)

    def set_global(self, name: str, value: Value) -> None:
        """Set a global variable until the next start."""
        self.variables[name] = value
        if name == "max_connections":
            self.max_connections = int(value or 0)
        elif name == "innodb_flush_log_at_trx_commit":
            self.flushes = value in (1, 3)
            if self.flushes:
                self.store.flush()
        elif name == "super_read_only" and value:
            self.variables["read_only"] = 1

    def _session(self, id_: int, login: Login, hang_up: Callable[[], None]) -> MySQLSession:
        return MySQLSession(self, id_, login, hang_up, run)

    def too_many_connections(self) -> ServerError:
        return ServerError(1040, "Too many connections")

    def victim(self, cycle: list[ModelSession]) -> ModelSession:
        """Of rows, who has changed least; of tables, who reads or writes; of equals, who has come last."""

        def weight(session: ModelSession) -> int:
            if isinstance(session.waiting, TableWait):
                return session.waiting.mode not in ("S", "SH", "SR", "SW")
            return len(session.transaction.changes)

        return min(cycle, key=weight)

    def _started(self) -> None:
        self.locks, self.named_locks = {}, {}
        for name, value in self._configured.items():
            self.variables[name] = value
            self.set_global(name, value)
        for table in self.store.tables.values():
            if not self.keeps_counter:
                table.counter = None
            elif self.is_mariadb and table.counting is not None:
                table.counter = table.persisted + 1
