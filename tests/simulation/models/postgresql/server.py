"""The model of a PostgreSQL server; the package `tests.simulation.models` says what it knows and what not."""

from __future__ import annotations

import itertools
from collections.abc import Callable

from tests.simulation.models.expressions import Value
from tests.simulation.models.postgresql.commands import run
from tests.simulation.models.postgresql.session import CONFLICTS, PostgreSQLSession
from tests.simulation.models.protocol import Login
from tests.simulation.models.sessions import Costs, ModelServer, ModelSession
from tests.simulation.models.storage import Row, Table, TableKey
from tests.simulation.models.table_locks import TableLock
from tests.simulation.runtime import Runtime, ServerError

__all__ = ["PostgreSQLServer"]


class PostgreSQLServer(ModelServer):
    """A PostgreSQL server.

    Args:
        runtime: its time, and its turns.
        version: of the release.
        identity: its system identifier; a copy has the same.
        max_connections: how many sessions it lets in.
        costs: how long it is busy.

    Attributes:
        variables: of new sessions.
        is_standby: whether it follows another server, and takes no writes.
        deadlock_timeout: seconds that a session waits before it looks for a deadlock.
        version: as ``version()`` says it.
        identity: by which clients recognise it.
    """

    detects_across = True

    def __init__(
        self,
        runtime: Runtime,
        version: str = "15.14",
        *,
        identity: str = "7000000000000000000",
        max_connections: int = 100,
        costs: Costs | None = None,
    ) -> None:
        super().__init__(runtime, max_connections=max_connections, costs=costs)
        self.version = f"PostgreSQL {version} on x86_64-pc-linux-gnu"
        self.identity, self.is_standby, self.deadlock_timeout = identity, False, 1.0
        self.variables: dict[str, Value] = {
            "default_transaction_read_only": "off",
            "lock_timeout": 0,
            "standard_conforming_strings": "on",
            "synchronous_commit": "on",
        }
        self._locks: dict[int, TableLock] = {}
        self._names: dict[TableKey, Row] = {}
        self._oids = itertools.count(16_384)

    def lock_of(self, table: Table) -> TableLock:
        """The lock of a table."""
        lock = self._locks.get(table.oid)
        if lock is None:
            lock = self._locks[table.oid] = TableLock(CONFLICTS, CONFLICTS, is_fair=True)
        return lock

    def name_row(self, key: TableKey) -> Row:
        """The row of the catalog that only one session can insert at a time."""
        return self._names.setdefault(key, Row(0, None))

    def new_oid(self) -> int:
        """A number for a new table."""
        return next(self._oids)

    def _session(self, id_: int, login: Login, hang_up: Callable[[], None]) -> PostgreSQLSession:
        return PostgreSQLSession(self, id_, login, hang_up, run)

    def too_many_connections(self) -> ServerError:
        return ServerError("53300", "sorry, too many clients already")

    def victim(self, cycle: list[ModelSession]) -> ModelSession:
        """The one that has found the deadlock."""
        return cycle[0]

    def _started(self) -> None:
        self._locks, self._names = {}, {}
