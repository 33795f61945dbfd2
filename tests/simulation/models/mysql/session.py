"""A session of a MySQL or MariaDB server: variables, transactions, locks of tables and rows."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final, Literal

from tests.simulation.models.expressions import Value, Values
from tests.simulation.models.protocol import Answer, Login, Query
from tests.simulation.models.sessions import Interrupt, ModelSession
from tests.simulation.models.storage import Table, TableKey, Transaction
from tests.simulation.models.table_locks import Matrix, TableLock
from tests.simulation.runtime import ConnectionLost, ServerError

if TYPE_CHECKING:
    from tests.simulation.models.mysql.server import MySQLServer

__all__ = ["HELD_FIRST", "PENDING_FIRST", "Mode", "MySQLSession", "Run"]

#: A metadata lock: of a client that needs the table to stay (S), looks at it without waiting for others in the queue (SH),
#: reads (SR), writes (SW), is about to change its definition (SU), has it by LOCK TABLES READ (SRO) or WRITE (SNRW), or
#: changes its definition (X).
Mode = Literal["S", "SH", "SR", "SW", "SU", "SRO", "SNRW", "X"]
# MySQL's sql/mdl.cc, "Compatibility matrices": LOCK TABLES ... WRITE goes before reads and writes that ask later.
_ALL: Final = ("S", "SH", "SR", "SW", "SU", "SRO", "SNRW", "X")
HELD_FIRST: Final[Matrix] = {
    "S": frozenset({"X"}),
    "SH": frozenset({"X"}),
    "SR": frozenset({"SNRW", "X"}),
    "SW": frozenset({"SRO", "SNRW", "X"}),
    "SU": frozenset({"SU", "SNRW", "X"}),
    "SRO": frozenset({"SW", "SNRW", "X"}),
    "SNRW": frozenset({"SR", "SW", "SU", "SRO", "SNRW", "X"}),
    "X": frozenset(_ALL),
}
PENDING_FIRST: Final[Matrix] = {
    "S": frozenset({"X"}),
    "SH": frozenset(),
    "SR": frozenset({"SNRW", "X"}),
    "SW": frozenset({"SNRW", "X"}),
    "SU": frozenset({"X"}),
    "SRO": frozenset({"SW", "SNRW", "X"}),
    "SNRW": frozenset({"X"}),
    "X": frozenset(),
}

#: The lock of a name: GET_LOCK serves those that wait for it in turn.
_NAMED: Final[Matrix] = {"X": frozenset({"X"})}

#: Runs a request, which may be several statements.
Run = Callable[["MySQLSession", Query], Answer]


class MySQLSession(ModelSession):
    """One client.

    Attributes:
        server: the server.
        variables: those of the session.
        database: the one in use.
        is_in_transaction: whether the client has begun one, by itself or by its first statement without autocommit.
        locked_tables: what LOCK TABLES holds: READ or WRITE by the tables' keys.
        named_locks: what GET_LOCK holds, by their names.
        generated_id: what the statement has put into the OK packet.
    """

    def __init__(
        self, server: MySQLServer, id_: int, login: Login, hang_up: Callable[[], None], run: Run
    ) -> None:
        super().__init__(server, id_, login, hang_up)
        self.server, self._run = server, run
        self.variables: dict[str, Value] = dict(server.session_defaults())
        if login.autocommit is not None:
            self.variables["autocommit"] = int(login.autocommit)
        self.database = login.database
        self.is_in_transaction = False
        self.locked_tables: dict[TableKey, Literal["READ", "WRITE"]] = {}
        self.named_locks: dict[str, TableLock] = {}
        self.generated_id = 0
        self._snapshot: dict[TableKey, dict[int, Values]] | None = None

    def _handle(self, request: object) -> Answer:
        assert isinstance(request, Query)
        self.spend(self.server.costs.statement)
        return self._run(self, request)

    def set_last_insert_id(self, value: Value) -> Value:
        self.last_insert_id = self.generated_id = int(value or 0)
        return value

    @property
    def is_admin(self) -> bool:
        """Whether its user may do what other users may not."""
        return self.login.user == "root"

    def seconds(self, name: Literal["lock_wait_timeout", "innodb_lock_wait_timeout"]) -> float:
        """A variable that is a time-out."""
        found = float(self.variables[name] or 0)
        return found if found < 31_536_000 else math.inf

    # -- errors

    def lock_timeout(self) -> ServerError:
        return ServerError(1205, "Lock wait timeout exceeded; try restarting transaction")

    def interrupted(self, interrupt: Interrupt) -> Exception:
        if interrupt == "victim":
            return ServerError(
                1213, "Deadlock found when trying to get lock; try restarting transaction"
            )
        if interrupt == "query":
            return ServerError(1317, "Query execution was interrupted")
        return ConnectionLost("the session was killed")

    # -- tables

    def key_of(self, name: str) -> TableKey:
        """The key of a table of the database in use."""
        if self.database is None:
            raise ServerError(1046, "No database selected")
        return self.database, name

    def missing(self, key: TableKey) -> ServerError:
        """The error for a table that is not there."""
        return ServerError(1146, f"Table '{key[0]}.{key[1]}' doesn't exist")

    def not_locked(self, name: str) -> ServerError:
        """The error for a table that LOCK TABLES has left out."""
        return ServerError(1100, f"Table '{name}' was not locked with LOCK TABLES")

    def metadata_lock(self, key: TableKey, mode: Mode) -> TableLock:
        """Take a metadata lock, and return it.

        Raises:
            ServerError: a deadlock, a time-out, a KILL.
        """
        locks = self.server.locks
        lock = locks.get(key)
        if lock is None:
            lock = locks[key] = TableLock(HELD_FIRST, PENDING_FIRST)
        self.lock_table(lock, mode, self.seconds("lock_wait_timeout"))
        return lock

    def table(self, name: str, *, writes: bool) -> Table:
        """A table that a statement reads or writes, locked for as long as it has to be.

        Raises:
            ServerError: it is not there, or cannot be had.
        """
        key = self.key_of(name)
        if self.locked_tables:
            held = self.locked_tables.get(key)
            if held is None:
                raise self.not_locked(name)
            if writes and held == "READ":
                raise ServerError(
                    1099, f"Table '{name}' was locked with a READ lock and can't be updated"
                )
        else:
            self.metadata_lock(key, "SW" if writes else "SR")
        table = self.store.tables.get(key)
        if table is None:
            raise self.missing(key)
        return table

    def check_writable(self) -> None:
        """Refuse a write that the server does not take.

        Raises:
            ServerError: it is read-only.
        """
        variables = self.server.variables
        if variables["super_read_only"] or (variables["read_only"] and not self.is_admin):
            option = "--super-read-only" if variables["super_read_only"] else "--read-only"
            program = "MariaDB" if self.server.is_mariadb else "MySQL"
            raise ServerError(
                1290,
                f"The {program} server is running with the {option} option so it cannot execute this statement",
            )

    # -- names

    def lock_name(self, name: str) -> None:
        """GET_LOCK, in a DO, which goes on without the lock after its time-out; after a KILL QUERY only on MariaDB.

        Raises:
            ServerError: a KILL QUERY.
            ConnectionLost: the session has ended.
        """
        lock = self.server.named_locks.setdefault(name, TableLock(_NAMED, _NAMED, is_fair=True))
        wait = lock.request(self, "X")
        if wait is not None:
            try:
                self.wait(wait, self.seconds("innodb_lock_wait_timeout"))
            except ServerError as error:
                if error.code == 1317 and not self.server.is_mariadb:
                    raise
                self.interrupt = None
                return
        self.named_locks[name] = lock

    def release_name(self, name: str) -> None:
        """RELEASE_LOCK."""
        lock = self.named_locks.pop(name, None)
        if lock is not None and lock.release(self):
            self.runtime.notify()

    def release_all(self) -> None:
        """Give up the names, too."""
        for name in list(self.named_locks):
            self.release_name(name)
        super().release_all()

    # -- transactions

    def begin(self) -> None:
        """START TRANSACTION: what was open before is committed, and LOCK TABLES is given up."""
        self.commit_all()
        if self.locked_tables:
            self.unlock_tables()
        self.is_in_transaction = True

    def before_statement(self) -> int:
        """Note where the changes of a statement begin, for `after_statement`."""
        if not self.variables["autocommit"]:
            self.is_in_transaction = True
        self.generated_id = 0
        return len(self.transaction.changes)

    def after_statement(self) -> None:
        """A statement was done: without a transaction of the client's it is committed."""
        if self.is_in_transaction:
            return
        self.commit()
        self._release_tables()

    def failed_statement(self, begun: int, error: Exception) -> None:
        """Take a statement back; after a deadlock, the transaction."""
        if self.interrupt == "stopped":
            return
        if isinstance(error, ServerError) and error.code == 1213:
            begun, self.is_in_transaction = 0, False
        self.store.rollback(self.transaction, begun)
        if not self.is_in_transaction:
            self._end_transaction()

    def commit_all(self) -> None:
        """COMMIT, or what commits by the way."""
        self.is_in_transaction = False
        self.commit()
        self._release_tables()

    def roll_back_all(self) -> None:
        """ROLLBACK."""
        self.is_in_transaction = False
        self.store.rollback(self.transaction)
        self._end_transaction()

    def _end_transaction(self) -> None:
        if self.store.end(self.transaction):
            self.runtime.notify()
        self._release_tables()

    def _release_tables(self) -> None:
        """Give up the metadata locks of a transaction; those of LOCK TABLES stay."""
        self._snapshot = None
        if not self.locked_tables and self.table_locks:
            served = False
            for lock in self.table_locks:
                served = lock.release(self) or served
            self.table_locks.clear()
            if served:
                self.runtime.notify()

    def lock_tables(self, wanted: dict[TableKey, Literal["READ", "WRITE"]]) -> None:
        """LOCK TABLES: all that was locked before is given up, and what was open is committed."""
        self.commit_all()
        if self.locked_tables:
            self.unlock_tables()
        try:
            # in the order of their names, so that two clients do not lock each other out
            for key in sorted(wanted):
                self.metadata_lock(key, "SNRW" if wanted[key] == "WRITE" else "SRO")
                if key not in self.store.tables:
                    raise self.missing(key)
                if wanted[key] == "WRITE":
                    self.check_writable()
        except (ServerError, ConnectionLost):
            if self.interrupt != "stopped":
                self._release_tables()
            raise
        self.locked_tables = wanted

    def unlock_tables(self) -> None:
        """UNLOCK TABLES: commits, too, if there was something locked."""
        if self.locked_tables:
            self.locked_tables = {}
            self.commit_all()

    @contextlib.contextmanager
    def changing_definitions(self) -> Iterator[None]:
        """A statement that changes tables: it commits before and after, and is done whole or not at all.

        Raises:
            ServerError: the server is read-only, or what is raised within.
        """
        self.commit_all()
        self.check_writable()
        begun = self.before_statement()
        try:
            yield
        except Exception as error:
            self.failed_statement(begun, error)
            raise
        self.commit_all()

    # -- reads

    def visible(self, table: Table) -> list[Values]:
        """The rows that a SELECT without locks sees."""
        transaction: Transaction = self.transaction
        level = self.variables["isolation"] if self.is_in_transaction else "READ-COMMITTED"
        if level == "READ-UNCOMMITTED":
            return [row.values for row in table.rows.values() if row.values is not None]
        if level == "READ-COMMITTED":
            seen = [row.seen_by(transaction) for row in table.rows.values()]
            return [values for values in seen if values is not None]
        if self._snapshot is None:
            image = self.store.image()
            self._snapshot = {key: saved.rows for key, saved in image.items()}
        rows: dict[int, Values | None] = dict(self._snapshot.get(table.key, {}))
        for row in table.rows.values():
            if row.changed_by is transaction:
                rows[row.serial] = row.values
        return [values for values in rows.values() if values is not None]
