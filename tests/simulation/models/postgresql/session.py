"""A session of a PostgreSQL server: transactions, in which tables are created and dropped, too, and locks."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final, Literal

from tests.simulation.models.expressions import SyntaxNotModelled, Value, Values
from tests.simulation.models.protocol import Answer, Login, Query
from tests.simulation.models.sessions import Interrupt, ModelSession
from tests.simulation.models.storage import FLUSHED_EACH_SECONDS, LockWait, Table, TableKey
from tests.simulation.models.table_locks import Matrix, TableLock, TableWait
from tests.simulation.runtime import ServerError

if TYPE_CHECKING:
    from tests.simulation.models.postgresql.server import PostgreSQLServer

__all__ = ["CONFLICTS", "Mode", "PostgreSQLSession", "Run"]

Mode = Literal[
    "ACCESS SHARE", "ROW SHARE", "ROW EXCLUSIVE", "SHARE UPDATE EXCLUSIVE", "ACCESS EXCLUSIVE"
]
_ALL: Final = frozenset(
    {"ACCESS SHARE", "ROW SHARE", "ROW EXCLUSIVE", "SHARE UPDATE EXCLUSIVE", "ACCESS EXCLUSIVE"}
)
#: Manual, "Conflicting Lock Modes".
CONFLICTS: Final[Matrix] = {
    "ACCESS SHARE": frozenset({"ACCESS EXCLUSIVE"}),
    "ROW SHARE": frozenset({"ACCESS EXCLUSIVE"}),
    "ROW EXCLUSIVE": frozenset({"ACCESS EXCLUSIVE"}),
    "SHARE UPDATE EXCLUSIVE": frozenset({"SHARE UPDATE EXCLUSIVE", "ACCESS EXCLUSIVE"}),
    "ACCESS EXCLUSIVE": _ALL,
}
#: Runs a request.
Run = Callable[["PostgreSQLSession", Query], Answer]


class PostgreSQLSession(ModelSession):
    """One client.

    Attributes:
        server: the server.
        variables: those of the session.
        state: whether a transaction of the client's is open, or has failed.
    """

    def __init__(
        self,
        server: PostgreSQLServer,
        id_: int,
        login: Login,
        hang_up: Callable[[], None],
        run: Run,
    ) -> None:
        super().__init__(server, id_, login, hang_up)
        self.server, self._run = server, run
        self.variables: dict[str, Value] = dict(server.variables)
        self.state: Literal["idle", "open", "failed"] = "idle"
        self._of_transaction: dict[str, Value] = {}
        # what the transaction has created, dropped (None) and commented on
        self._tables: dict[TableKey, Table | None] = {}
        self._comments: dict[int, str] = {}

    def _handle(self, request: object) -> Answer:
        assert isinstance(request, Query)
        self.spend(self.server.costs.statement)
        return self._run(self, request)

    def variable(self, name: str) -> Value:
        """A variable, as SET LOCAL, SET or the server have it."""
        return self._of_transaction.get(name, self.variables.get(name))

    def set_variable(self, name: str, value: Value, *, is_local: bool) -> None:
        """Set a variable; a local one until the end of the transaction."""
        if not is_local:
            self.variables[name] = value
            self._of_transaction.pop(name, None)
        elif self.state == "open":
            self._of_transaction[name] = value

    def lock_seconds(self) -> float:
        """How long a lock is waited for."""
        milliseconds = float(self.variable("lock_timeout") or 0)
        return milliseconds / 1000 if milliseconds else math.inf

    # -- errors

    def lock_timeout(self) -> ServerError:
        return ServerError("55P03", "canceling statement due to lock timeout")

    def interrupted(self, interrupt: Interrupt) -> Exception:
        if interrupt == "victim":
            return ServerError("40P01", "deadlock detected")
        if interrupt == "query":
            return ServerError("57014", "canceling statement due to user request")
        return ServerError("57P01", "terminating connection due to administrator command")

    def _wait(self, wait: LockWait | TableWait, seconds: float) -> None:
        """It looks for a deadlock when it has waited for a while, and gives up itself."""
        patience = self.server.deadlock_timeout
        if seconds < patience or not self._wait_until_granted(wait, patience):
            if seconds >= patience and self.cycle():
                self.interrupt = "victim"
                return
            self._wait_until_granted(wait, seconds - patience if seconds >= patience else seconds)

    # -- tables

    def key_of(self, name: str) -> TableKey:
        """The key of a table of the database."""
        return self.login.database or self.login.user, name

    def find(self, name: str) -> Table | None:
        """A table that this session can see."""
        key = self.key_of(name)
        if key in self._tables:
            return self._tables[key]
        return self.store.tables.get(key)

    def visible_tables(self) -> list[Table]:
        """All tables that this session can see, by name."""
        known: dict[TableKey, Table | None] = {**self.store.tables, **self._tables}
        database = self.key_of("")[0]
        return [t for key, t in sorted(known.items()) if t is not None and key[0] == database]

    def comment_of(self, table: Table) -> str:
        """A table's comment, as this session sees it."""
        return self._comments.get(table.oid, table.comment)

    def table(self, name: str, mode: Mode) -> Table:
        """A table, locked until the end of the transaction.

        Raises:
            ServerError: it is not there, or cannot be had.
            SyntaxNotModelled: it is a system catalog.
        """
        while True:
            table = self.find(name)
            if table is None and name.startswith("pg_"):
                raise SyntaxNotModelled(f"the catalog {name}")
            if table is None:
                raise ServerError("42P01", f'relation "{name}" does not exist')
            lock = self.server.lock_of(table)
            self.lock_table(lock, mode, self.lock_seconds())
            if self.find(name) is table:
                return table
            # it was dropped, and another one may have its name
            self.release_table(lock, mode)

    def check_writable(self, what: str) -> None:
        """Refuse a write that the server, or the transaction, does not take.

        Raises:
            ServerError: it is read-only.
        """
        if self.server.is_standby or self.variable("default_transaction_read_only") == "on":
            raise ServerError("25006", f"cannot execute {what} in a read-only transaction")

    def create(self, table: Table) -> None:
        """Create a table, which others see from the commit on.

        Raises:
            ServerError: there is one, or another session creates one at this moment.
        """
        if self.find(table.key[1]) is not None:
            raise ServerError("42P07", f'relation "{table.key[1]}" already exists')
        waited = self.lock_row(self.server.name_row(table.key), self.lock_seconds())
        if waited and table.key in self.store.tables and table.key not in self._tables:
            raise ServerError(
                "23505",
                'duplicate key value violates unique constraint "pg_type_typname_nsp_index"',
            )
        self._tables[table.key] = table
        self.lock_table(self.server.lock_of(table), "ACCESS EXCLUSIVE", math.inf)

    def drop(self, table: Table) -> None:
        """Drop a table that is locked."""
        self._tables[table.key] = None

    def replace(self, table: Table, new: Table) -> None:
        """Give a table that is locked another definition, or another name."""
        self._tables[table.key] = None
        self._tables[new.key] = new

    def comment(self, table: Table, text: str) -> None:
        """Write a table's comment."""
        self._comments[table.oid] = text

    # -- transactions

    @contextlib.contextmanager
    def statement(self) -> Iterator[None]:
        """One statement: without a transaction of the client's it is one itself.

        Raises:
            ServerError: the transaction has failed before, or what is raised within.
        """
        self._check_alive()
        try:
            yield
            if self.state == "idle":
                self._commit()
        except Exception:
            if self.interrupt != "stopped":
                # a transaction that has failed holds no locks until its ROLLBACK
                state = self.state
                self.roll_back()
                self.state = "idle" if state == "idle" else "failed"
            raise

    def _check_alive(self) -> None:
        if self.state == "failed":
            raise ServerError(
                "25P02",
                "current transaction is aborted, commands ignored until end of transaction block",
            )

    def begin(self) -> None:
        """BEGIN; within a transaction it does nothing."""
        self._check_alive()
        if self.state == "idle":
            self.state = "open"

    def commit_or_roll_back(self) -> None:
        """COMMIT: after an error it is a ROLLBACK."""
        if self.state == "failed":
            self.roll_back()
        else:
            self.state = "idle"
            self._commit()

    def _commit(self) -> None:
        changed_tables = bool(self._tables or self._comments)
        for key, table in self._tables.items():
            if table is None:
                self.store.tables.pop(key, None)
            else:
                self.store.tables[key] = table
        for table in self.store.tables.values():
            if table.oid in self._comments:
                table.comment = self._comments[table.oid]
        changed_rows = self.store.commit(self.transaction, self.runtime.now())
        self._forget()
        if changed_tables:
            self.store.flush()
        if changed_rows and self.variable("synchronous_commit") != "off":
            # unlike InnoDB, it gives locks up only when the disk has it
            self.make_durable()
        elif changed_rows:
            self.store.flush_before(self.runtime.now() - FLUSHED_EACH_SECONDS)
        self.release_all()

    def roll_back(self) -> None:
        """ROLLBACK."""
        self.state = "idle"
        self.store.rollback(self.transaction)
        self._forget()
        self.release_all()

    def _forget(self) -> None:
        self._tables, self._comments, self._of_transaction = {}, {}, {}

    def lock_of(self, table: Table) -> TableLock:
        """The lock of a table."""
        return self.server.lock_of(table)

    # -- reads

    def visible(self, table: Table) -> list[Values]:
        """The rows that a SELECT without locks sees: READ COMMITTED."""
        seen = [row.seen_by(self.transaction) for row in table.rows.values()]
        return [values for values in seen if values is not None]
