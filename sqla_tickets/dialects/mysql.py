"""MySQL and MariaDB.

The codes are those of MySQL's "Server Error Message Reference" and "MariaDB Error Codes".
"""

from __future__ import annotations

import contextlib
import math
import re
import ssl
from collections.abc import Generator, Mapping, Sequence
from typing import Any, ClassVar, Final, cast

from sqlalchemy import (
    BigInteger,
    ClauseElement,
    ColumnElement,
    Connection,
    Dialect,
    Executable,
    Insert,
    Select,
    Table,
    case,
    func,
    inspect,
)
from sqlalchemy import text as sql_text
from sqlalchemy.engine.interfaces import DBAPIConnection, DBAPICursor
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler

from ..concurrency import per_process
from ..errors import TicketArgumentError, TicketError
from .base import (
    STUB,
    STUB_VALUES,
    TOMBSTONE_COLUMNS,
    ErrorKind,
    LayoutName,
    Statement,
    TableShape,
    TicketDialect,
    quoted_name,
)
from .facts import Grant, Role, ServerFacts, rows_of

_CLIENT_MULTI_STATEMENTS: Final = 1 << 16  # MySQL manual, C API, mysql_real_connect()
_SEND_PACKETS: Final = ("pymysql", "asyncmy", "aiomysql")
_HAVE_READ_TIMEOUT: Final = ("pymysql", "mysqldb", "mysqlconnector", "mariadbconnector", "asyncmy")
#: Drivers whose time-outs may be parts of a second.
_TAKE_FRACTIONS: Final = ("pymysql", "asyncmy", "aiomysql")
# Of the table's options, which begin a line: a comment may say the same.
_NEXT_NUMBER: Final = re.compile(r"^\)(?: .*?)? ENGINE=\w+ +AUTO_INCREMENT=(\d+)", re.MULTILINE)
# One scan for all; those of Galera's are empty, or missing, elsewhere.
_STATUS: Final = (
    "SELECT {}, UNIX_TIMESTAMP() - MAX(IF(VARIABLE_NAME = 'Uptime', VARIABLE_VALUE, NULL)),"
    " MAX(IF(VARIABLE_NAME = 'wsrep_cluster_state_uuid', VARIABLE_VALUE, NULL)),"
    " CONCAT_WS(' ', MAX(IF(VARIABLE_NAME = 'wsrep_cluster_conf_id', VARIABLE_VALUE, NULL)),"
    " MAX(IF(VARIABLE_NAME = 'wsrep_incoming_addresses', VARIABLE_VALUE, NULL)))"
    " FROM {}.global_status WHERE VARIABLE_NAME IN ('Uptime', 'wsrep_cluster_state_uuid',"
    " 'wsrep_cluster_conf_id', 'wsrep_incoming_addresses')"
)


#: The variable that a count is put into.
_ROWS: Final = "@sqla_tickets_rows"


class _SetRows(Executable, ClauseElement):
    """Puts a count into a session variable, so that InnoDB reads as it does for an INSERT ... SELECT."""

    inherit_cache = False

    def __init__(self, count: Select[Any]) -> None:
        self.count = count


@compiles(_SetRows)
def _write_set_rows(element: _SetRows, compiler: SQLCompiler, **kw: Any) -> str:
    return f"SET {_ROWS} = {compiler.process(element.count.scalar_subquery(), **kw)}"


class MySQL(TicketDialect):
    """MySQL, and servers with its protocol."""

    default_port = 3306
    synchronous_driver = "pymysql"
    read_only_variables = ("super_read_only", "read_only", "innodb_read_only")
    ticket_type = "BIGINT UNSIGNED"
    name_type = "VARCHAR(255) COLLATE utf8mb4_bin"
    # manual, "AUTO_INCREMENT Handling in InnoDB"
    counter_kept_since: ClassVar[tuple[int, ...] | None] = (8, 0)
    replica_takes_writes = True
    has_read_timeout = True
    encryption_advice = "Add ?ssl_ca=FILE to the URL, and REQUIRE SSL to the user."
    now = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))"
    layouts: ClassVar[tuple[LayoutName, ...]] = ("replace", "counter")
    begin = None
    failure_ends_transaction = False
    # a mixed binary log, MariaDB's default, takes the rows then: replicas that got the text could number them otherwise
    insert_limit = 2**63 - 1
    # of 64 clients at one server, 3 at a time get 3,000 tickets a second, with few deadlocks; all at once 400, with many
    queues = 3
    returns_counter = False
    # MySQL manual, "INSERT ... ON DUPLICATE KEY UPDATE": 1 for a new row or one that stays as it is
    rows_per_raised_row = 2
    error_codes: ClassVar[Mapping[int | str, ErrorKind]] = {
        1213: ErrorKind.DEADLOCK,
        3101: ErrorKind.DEADLOCK,  # another member's commit was first, in a group of several primaries
        1060: ErrorKind.DEADLOCK,  # another session makes the same change of the table
        1061: ErrorKind.DEADLOCK,
        1068: ErrorKind.DEADLOCK,
        1091: ErrorKind.DEADLOCK,
        1205: ErrorKind.LOCK_TIMEOUT,
        1040: ErrorKind.TOO_MANY_CONNECTIONS,
        1203: ErrorKind.TOO_MANY_CONNECTIONS,  # max_user_connections
        1049: ErrorKind.DATABASE_MISSING,
        1044: ErrorKind.ACCESS_DENIED,
        1045: ErrorKind.ACCESS_DENIED,
        1142: ErrorKind.ACCESS_DENIED,
        1143: ErrorKind.ACCESS_DENIED,
        167: ErrorKind.EXHAUSTED,  # MariaDB: out of range for an AUTO_INCREMENT column
        1264: ErrorKind.EXHAUSTED,  # out of range value
        1467: ErrorKind.EXHAUSTED,  # failed to read auto-increment value
        1690: ErrorKind.EXHAUSTED,  # BIGINT value is out of range
        3819: ErrorKind.EXHAUSTED,  # MySQL: CHECK of the counter row
        4025: ErrorKind.EXHAUSTED,  # MariaDB: CHECK of the counter row
        4084: ErrorKind.EXHAUSTED,  # MariaDB: sequence has run out
        1062: ErrorKind.DUPLICATE_NUMBER,
        1059: ErrorKind.INVALID_NAME,  # identifier too long
        1103: ErrorKind.INVALID_NAME,  # incorrect table name
        1267: ErrorKind.INVALID_NAME,  # characters that identifiers do not have: MariaDB cannot compare them
        1300: ErrorKind.INVALID_NAME,  # invalid characters
        3854: ErrorKind.INVALID_NAME,  # MySQL: cannot convert them
        1021: ErrorKind.DISK_FULL,
        1114: ErrorKind.DISK_FULL,  # the table is full
        1317: ErrorKind.KILLED,  # query execution was interrupted
        1969: ErrorKind.KILLED,  # MariaDB: max_statement_time
        3024: ErrorKind.KILLED,  # MySQL: max_execution_time
        1146: ErrorKind.TABLE_MISSING,
        1054: ErrorKind.SCHEMA_MISMATCH,  # unknown column
        1364: ErrorKind.SCHEMA_MISMATCH,  # no default value: a REPLACE on a counter row
        1036: ErrorKind.READ_ONLY,  # the table is, by innodb_read_only
        1290: ErrorKind.READ_ONLY,
        1792: ErrorKind.READ_ONLY,
        1836: ErrorKind.READ_ONLY,
        1874: ErrorKind.READ_ONLY,  # InnoDB is in read-only mode
        1881: ErrorKind.READ_ONLY,  # innodb_force_recovery
        1064: ErrorKind.SYNTAX_ERROR,
        1235: ErrorKind.SYNTAX_ERROR,  # not supported, as GET_LOCK in some versions of MariaDB Galera (MDEV-30473)
    }
    error_texts: ClassVar[Mapping[str, ErrorKind]] = {
        # HA_ERR_LOCK_DEADLOCK, in what MySQL says (1180) when another member's commit has ended this one
        r"error 149\b.* during commit": ErrorKind.DEADLOCK,
        # HA_ERR_TABLE_READONLY, in what InnoDB refuses under innodb_read_only: a lock, a new table
        r"errno: 165\b": ErrorKind.READ_ONLY,
        # Percona XtraDB Cluster, pxc_strict_mode, "Explicit table locking"
        r"prohibits use of (lock table|get_lock)": ErrorKind.ACCESS_DENIED,
    }

    @classmethod
    def of(cls, sqlalchemy: Dialect) -> TicketDialect:
        return (MariaDB if getattr(sqlalchemy, "is_mariadb", False) else cls)(sqlalchemy)

    # -- errors

    def error_code(self, error: BaseException) -> int | str | None:
        """PyMySQL, mysqlclient, asyncmy and aiomysql put the code first in ``args``, other drivers into ``errno``."""
        code = getattr(error, "errno", None) or (error.args[0] if error.args else None)
        return code if isinstance(code, int) else None

    def error_kind(self, error: BaseException) -> ErrorKind:
        """The `ErrorKind` of a driver's error; ``DISCONNECTED`` when nothing better is known."""
        kind = super().error_kind(error)
        # mysql-connector's own read time-out has the number of a statement that the server has killed
        is_its_own = kind is ErrorKind.KILLED and "timed out" in str(error)
        return ErrorKind.TIMEOUT if is_its_own else kind

    def missing_grant(self, error: BaseException, database: str, user: str) -> str | None:
        here = self.grant_target(database, "*")
        denied = re.search(r"([A-Z][A-Z, ]*) command denied", str(error))
        if denied:
            grant = f"GRANT {denied[1]} ON {here} TO {user!r}"
            is_change = denied[1] in ("CREATE", "ALTER", "DROP")
            return f"run this as the user of the migrations, or {grant}" if is_change else grant
        if self.error_code(error) == 1044:  # this, of all privileges, MySQL does not name
            return f"GRANT LOCK TABLES ON {here} TO {user!r}"
        return None

    # -- connections

    @classmethod
    def dbapi_module(cls, driver: str) -> object:
        return _PyMySQLWithCachedContext() if driver == "pymysql" else None

    def set_connect_defaults(self, kw: dict[str, Any], timeout: float, lock_wait: float) -> None:
        driver, connect, answer = self.sqlalchemy.driver, timeout, timeout + lock_wait
        if driver not in _TAKE_FRACTIONS:
            connect, answer = math.ceil(connect), math.ceil(answer)
        name = "connection_timeout" if driver == "mysqlconnector" else "connect_timeout"
        kw.setdefault(name, connect)
        if driver in _HAVE_READ_TIMEOUT:
            # longer than the server's own lock waits, which are no fault of the server
            kw.setdefault("read_timeout", answer)
        if driver == "pymysql":
            # with two different ones it would set the time-out of its socket twice for each statement
            kw.setdefault("write_timeout", kw["read_timeout"])
        if driver == "mysqlconnector":
            kw.setdefault("use_pure", True)  # its part in C does not show its socket
        if driver in _SEND_PACKETS:
            kw["client_flag"] = kw.get("client_flag", 0) | _CLIENT_MULTI_STATEMENTS
            # else they switch it off, to be told to switch it on again: two round trips
            kw.setdefault("autocommit", True)

    def set_up_session(
        self, connection: DBAPIConnection, cursor: DBAPICursor, lock_wait: float
    ) -> None:
        """Set the session variables that draws rely on.

        - ``STRICT_ALL_TABLES``: a lax server would store the largest number that fits, but return the one that does
          not.
        - ``REPEATABLE-READ``: a read of uncommitted data would find no row between the two halves of a REPLACE.
        - ``autocommit``: a server's init_connect may have switched it off without the driver's knowledge.
        """
        version = tuple(self.sqlalchemy.server_version_info or (99,))
        is_new = version >= self._new_isolation_since
        seconds = math.ceil(lock_wait)
        cursor.execute(
            f"SET SESSION autocommit = 1, lock_wait_timeout = {seconds}, innodb_lock_wait_timeout = {seconds},"
            " sql_mode = CONCAT(@@SESSION.sql_mode, ',STRICT_ALL_TABLES'),"
            f" {'transaction' if is_new else 'tx'}_isolation = 'REPEATABLE-READ'",
            (),
        )

    #: The first version in which the variable is called ``transaction_isolation``.
    _new_isolation_since: ClassVar[tuple[int, ...]] = (5, 7, 20)

    # -- the server

    def identity(self) -> Statement | None:
        return self.statement(_STATUS.format("@@server_uuid", "performance_schema"))

    def group_name(self) -> Statement | None:
        """Select the group's name; the variable exists only with its plugin.

        Searching all variables costs as much as several draws (measured); this costs nothing.
        """
        return self.statement("SELECT @@GLOBAL.group_replication_group_name")

    def durability(self) -> Statement | None:
        return self.statement(
            "SHOW GLOBAL VARIABLES WHERE Variable_name IN"
            " ('innodb_flush_log_at_trx_commit', 'log_bin', 'sync_binlog')"
        )

    @classmethod
    def lossy_variables(cls, variables: Mapping[str, str]) -> list[str]:
        lossy: list[str] = []
        if variables.get("innodb_flush_log_at_trx_commit", "1") not in ("1", "3"):
            lossy.append("innodb_flush_log_at_trx_commit")  # MariaDB's 3 flushes more often than 1
        # InnoDB rolls back what the binary log lacks after a crash
        if variables.get("log_bin") == "ON" and variables.get("sync_binlog", "1") != "1":
            lossy.append("sync_binlog")
        return lossy

    def read_only(self) -> Statement | None:
        names = ", ".join(map(repr, self.read_only_variables))
        return self.statement(f"SHOW GLOBAL VARIABLES WHERE Variable_name IN ({names})")

    def facts(self, cursor: DBAPICursor) -> ServerFacts:
        facts = ServerFacts()
        facts.variables = _pairs(cursor, "SHOW GLOBAL VARIABLES")
        facts.status = _pairs(cursor, "SHOW GLOBAL STATUS")
        facts.status |= _pairs(cursor, "SHOW SESSION STATUS LIKE 'Ssl_cipher'")
        ((account,),) = rows_of(cursor, "SELECT CURRENT_USER()")
        user, _, host = (part.replace("'", "''") for part in str(account).rpartition("@"))
        facts.account = f"'{user}'@'{host}'"
        facts.is_replica, facts.replicas = _replication(cursor)
        if "information_schema_stats_expiry" in facts.variables:
            cursor.execute("SET SESSION information_schema_stats_expiry = 0", ())
        for name, engine, counter in rows_of(
            cursor,
            "SELECT TABLE_NAME, ENGINE, AUTO_INCREMENT FROM information_schema.TABLES"
            " WHERE TABLE_SCHEMA = DATABASE() AND TABLE_TYPE = 'BASE TABLE'",
        ):
            number = None if counter is None else int(str(counter))
            facts.engines[str(name)] = (str(engine), number)
        return facts

    # -- users

    def user_grants(self, cursor: DBAPICursor, database: str | None) -> tuple[Grant, ...] | None:
        # an option file or a creator may name the database
        return None if database is None else _grants(rows_of(cursor, "SHOW GRANTS"))

    @classmethod
    def table_privileges(cls, role: Role) -> tuple[str, ...]:
        if role == "monitor":
            return ("SELECT",)
        # REPLACE is an INSERT and a DELETE; a counter, a mark and a lease are an UPDATE; a block locks.
        draw = ("SELECT", "INSERT", "UPDATE", "DELETE", "LOCK TABLES")
        return (*draw, "CREATE", "ALTER", "DROP") if role == "migrate" else draw

    #: Whether a server is a replica, and whose replicas are connected.
    _monitor_privileges: ClassVar[tuple[str, ...]] = ("PROCESS", "REPLICATION CLIENT")

    @classmethod
    def server_privileges(cls, role: Role) -> tuple[str, ...]:
        return cls._monitor_privileges if role == "monitor" else ()

    @classmethod
    def grants(
        cls, role: Role, *, user: str, database: str, host: str, owner: str, schema: str
    ) -> list[str]:
        account = f"{quoted_name(user, chr(39))}@{quoted_name(host, chr(39))}"
        privileges = {
            "*.*": cls.server_privileges(role),
            f"{quoted_name(database, '`')}.*": cls.table_privileges(role),
        }
        return [
            f"GRANT {', '.join(what)} ON {on} TO {account}"
            for on, what in privileges.items()
            if what
        ]

    @classmethod
    def grant_target(cls, database: str | None, table: str) -> str:
        return f"`{database}`.*"

    @classmethod
    def set_global(cls, name: str, value: object) -> str:
        return f"SET GLOBAL {name} = {value}"

    # -- a ticket table

    def create_table(self, table: TableShape) -> list[Statement]:
        """Create the table with its row in one statement, since an empty table counts as one that has lost its number."""
        number, stub = f"{_integer(table)} NOT NULL", table.stub
        if table.layout == "replace":
            columns = (
                f"\n\tid {number} AUTO_INCREMENT,\n\t{stub} CHAR(1) NOT NULL DEFAULT ''"
                f",\n\tPRIMARY KEY (id),\n\tUNIQUE KEY {stub} ({stub})"
            )
            options = f"ENGINE={table.engine} AUTO_INCREMENT={table.start}"
        else:
            columns = f"\n\t{stub} CHAR(1) NOT NULL PRIMARY KEY,\n\tid {number} {_check(table)}"
            options = f"ENGINE={table.engine}"
        return [
            self.statement(
                f"CREATE TABLE {self.table(table.name)} ({columns}\n) {options}"
                f" COMMENT={self.literal(table.comment)}"
                f" SELECT {table.seed} AS id, '{STUB_VALUES[table.layout]}' AS {stub}"
            )
        ]

    def comment_on(self, name: str, comment: str) -> list[Statement]:
        return [self.statement(f"ALTER TABLE {self.table(name)} COMMENT={self.literal(comment)}")]

    def describe_table(self, name: str) -> Statement:
        return self.statement(
            "SELECT c.COLUMN_NAME, c.COLUMN_KEY IN ('PRI', 'UNI'), LOCATE('auto_increment', c.EXTRA) > 0,"
            " t.TABLE_COMMENT, CAST(c.COLUMN_TYPE AS CHAR(64))"
            # Each is told the name: joined to each other, MariaDB opens every table there is.
            " FROM information_schema.TABLES AS t CROSS JOIN information_schema.COLUMNS AS c"
            f" WHERE t.TABLE_SCHEMA = DATABASE() AND t.TABLE_NAME = {self.bound('table')}"
            f" AND c.TABLE_SCHEMA = DATABASE() AND c.TABLE_NAME = {self.bound('table')}"
        )

    def list_tables(self) -> Statement:
        return self.statement(
            "SELECT TABLE_NAME, TABLE_COMMENT FROM information_schema.TABLES"
            " WHERE TABLE_SCHEMA = DATABASE() AND LOCATE('sqla_tickets', TABLE_COMMENT) > 0"
        )

    def show_definition(self, name: str) -> Statement | None:
        return self.statement(f"SHOW CREATE TABLE {self.table(name)}")

    def split_definition(self, text: str) -> tuple[str, int | None]:
        found = _NEXT_NUMBER.search(text)
        if found is None:
            return text, None
        return text[: found.start(1)] + text[found.end(1) :], int(found[1])

    # -- drawing

    def keeps_counter(self) -> bool:
        version = self.sqlalchemy.server_version_info
        since = self.counter_kept_since or ()
        return version is not None and tuple(version) >= since

    # stride and offset travel with each statement, so that no session variable has to be right

    def replace_ticket(self, name: str, stride: int, offset: int, stub: str) -> Statement:
        return self._replace(name, stride, offset, f"({stub}) VALUES ('a')")

    def replace_up_to(self, name: str, stride: int, offset: int, stub: str) -> Statement:
        last = f"LAST_INSERT_ID() + {self.bound('span')}"
        return self._replace(name, stride, offset, f"(id, {stub}) VALUES ({last}, 'a')")

    def _replace(self, name: str, stride: int, offset: int, values: str) -> Statement:
        """A REPLACE with stride and offset in a hint (MySQL manual, "Optimizer Hints")."""
        hints = (
            f"SET_VAR(auto_increment_increment={stride}) SET_VAR(auto_increment_offset={offset})"
        )
        return self.statement(f"REPLACE /*+ {hints} */ INTO {self.table(name)} {values}")

    def advance_counter(self, name: str, stub: str, span: int | None = None) -> Statement:
        return self.statement(self._advance(name, "LAST_INSERT_ID(id + {})", span, stub))

    # -- clusters

    def cluster_variables(self) -> Statement | None:
        return self.statement(
            "SHOW GLOBAL VARIABLES WHERE Variable_name = 'group_replication_single_primary_mode'"
            " OR Variable_name = 'wsrep_on' AND Value = 'ON'"
        )

    def catch_up(self, cluster: Mapping[str, str]) -> Statement | None:
        """Make a Galera node wait for other nodes' commits, which it otherwise shows a little later.

        MariaDB manual, ``wsrep_sync_wait``: 1 is for reads.
        """
        return self.statement("SET SESSION wsrep_sync_wait = 1") if "wsrep_on" in cluster else None

    # -- tables of SQLAlchemy's

    def table_options(self) -> dict[str, str]:
        return {f"{self.sqlalchemy.name}_engine": "InnoDB"}

    def raise_and_show(
        self, table: str, column: str, number: int, where: Mapping[str, int | str]
    ) -> Statement | None:
        # a signed number would make MariaDB take a larger one than 2**63 for a negative one
        shown = f"LAST_INSERT_ID(GREATEST({column}, CAST({number} AS UNSIGNED)))"
        row = " AND ".join(
            f"`{name}` = {self.literal(value) if isinstance(value, str) else value}"
            for name, value in where.items()
        )
        return Statement(f"UPDATE `{table}` SET {column} = {shown} WHERE {row}")

    def upsert_largest(
        self, table: Table, rows: Sequence[Mapping[str, Any]], value: str, same: str
    ) -> Insert:
        from sqlalchemy.dialects import mysql  # noqa: PLC0415  # takes long, and an engine has done it

        insert = mysql.insert(table).values(rows)
        old, new = table.c, insert.inserted
        larger = func.greatest(old[value], new[value])
        raised = case((old[same] == new[same], larger), else_=old[value])
        return insert.on_duplicate_key_update({value: raised})

    def utc_of_milliseconds(self, number: str) -> str:
        return f"TIMESTAMPADD(MICROSECOND, ({number}) * 1000, TIMESTAMP '1970-01-01 00:00:00')"

    # -- tables of an application

    def unique_columns(self, connection: Connection, table: str, schema: str | None) -> set[str]:
        """SQLAlchemy's reflection takes MariaDB's ``PRIMARY KEY (id, period WITHOUT OVERLAPS)`` for one of the id alone."""
        quote = connection.dialect.identifier_preparer.quote
        name = ".".join(quote(part) for part in (schema, table) if part)
        rows = connection.exec_driver_sql(f"SHOW INDEX FROM {name} WHERE Non_unique = 0")
        keys: dict[str, list[str | None]] = {}
        for row in rows.mappings():
            is_whole = row["Sub_part"] is None  # not only the beginning of a value
            columns = keys.setdefault(row["Key_name"], [])
            columns.append(row["Column_name"] if is_whole else None)
        return {columns[0] for columns in keys.values() if len(columns) == 1 and columns[0]}

    def check_undoes_inserts(self, connection: Connection, table: str, schema: str | None) -> None:
        engine = _engine_of(connection, table, schema)
        asked = sql_text(
            "SELECT TRANSACTIONS FROM information_schema.ENGINES WHERE ENGINE = :engine"
        )
        if connection.scalar(asked, {"engine": engine}) != "YES":
            raise TicketArgumentError(
                f"the table {table} has the engine {engine}, which keeps the first rows of an INSERT that fails: ALTER"
                f" TABLE {self.quoted(table)} ENGINE=InnoDB"
            )

    def count_as_insert(self, connection: Connection, count: Select[Any]) -> int | None:
        """Count by a SET, which sees the latest rows even in an older snapshot, as an INSERT does and a SELECT does not."""
        connection.execute(_SetRows(count))
        return int(connection.scalar(sql_text(f"SELECT {_ROWS}")) or 0)

    # -- tombstones

    def create_tombstone(self, name: str, comment: str) -> list[Statement]:
        number, stub = TOMBSTONE_COLUMNS
        columns = (
            f"{number} BIGINT UNSIGNED NOT NULL PRIMARY KEY, {stub} CHAR(1) NOT NULL DEFAULT ''"
        )
        text = f"CREATE TABLE {self.table(name)} ({columns}) COMMENT={self.literal(comment)}"
        return [self.statement(text)]

    def replace_by_tombstone(self, name: str, comment: str) -> list[Statement]:
        return self.comment_on(name, comment)

    def open_table(self, table: TableShape) -> list[Statement]:
        name, (number, was_stub), stub = self.table(table.name), TOMBSTONE_COLUMNS, table.stub
        id_ = f"CHANGE {number} id {_integer(table)} NOT NULL"
        stub_ = f"CHANGE {was_stub} {stub} CHAR(1) NOT NULL"
        # a client that names no column at all would put the stub's value into the number
        first = "" if stub == STUB else " FIRST"
        if table.layout == "replace":
            parts = [
                f"{id_} AUTO_INCREMENT",
                f"{stub_} DEFAULT ''{first}",
                "ADD PRIMARY KEY (id)",
                f"ADD UNIQUE KEY {stub} ({stub})",
                f"AUTO_INCREMENT={table.start}",
            ]
        else:
            parts = [f"{id_} {_check(table)}", f"{stub_}{first}", f"ADD PRIMARY KEY ({stub})"]
        parts += [f"ENGINE={table.engine}", f"COMMENT={self.literal(table.comment)}"]
        row = f"({table.seed}, '{STUB_VALUES[table.layout]}')"
        return [
            self.statement(f"DELETE FROM {name}"),
            self.statement(f"INSERT INTO {name} ({number}, {was_stub}) VALUES {row}"),
            self.statement(f"ALTER TABLE {name} DROP PRIMARY KEY, {', '.join(parts)}"),
        ]

    def table_parts(self, name: str) -> Statement:
        where = f"WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME = {self.literal(name)}"
        return self.statement(
            f"SELECT DISTINCT 'key', INDEX_NAME FROM information_schema.STATISTICS {where}"
            " UNION ALL SELECT 'check', CONSTRAINT_NAME FROM information_schema.TABLE_CONSTRAINTS"
            f" {where} AND CONSTRAINT_TYPE = 'CHECK'"
            f" UNION ALL SELECT 'type', COLUMN_TYPE FROM information_schema.COLUMNS {where}"
            " AND COLUMN_NAME = 'id'"
        )

    def alter_to_tombstone(
        self, name: str, comment: str, stub: str, keys: Sequence[str], checks: Sequence[str]
    ) -> Statement:
        number, was_stub = TOMBSTONE_COLUMNS
        parts = [
            *(
                "DROP PRIMARY KEY" if key == "PRIMARY" else f"DROP KEY {self.quoted(key)}"
                for key in keys
            ),
            *(f"DROP CHECK {self.quoted(check)}" for check in checks),
            f"CHANGE id {number} BIGINT UNSIGNED NOT NULL",
            f"CHANGE {stub} {was_stub} CHAR(1) NOT NULL DEFAULT ''",
            f"ADD PRIMARY KEY ({number})",
            f"COMMENT={self.literal(comment)}",
        ]
        return self.statement(f"ALTER TABLE {self.table(name)} {', '.join(parts)}")

    # -- locks

    def lock_table(self, name: str, reads: str | None = None) -> Statement:
        too = f", {self.quoted(reads)} READ" if reads else ""
        return self.statement(f"LOCK TABLES {self.table(name)} WRITE{too}")

    def unlock_tables(self) -> Statement:
        return self.statement("UNLOCK TABLES")

    def queue(self, name: str, number: int) -> tuple[Statement, Statement]:
        """Take and release a named lock, which is of a session, and of no table and no transaction.

        MySQL manual, "Locking Functions". Its name may have 64 characters. Tables whose names have the same checksum
        share their queues. ``DO`` hides errors, but only those of these two functions.
        """
        table = f"CONCAT(DATABASE(), {self.literal(f'.{name}')})"
        lock = f"CONCAT('sqla_tickets {number} ', CRC32({table}))"
        join = self.statement(f"DO GET_LOCK({lock}, @@innodb_lock_wait_timeout)")
        return join, self.statement(f"DO RELEASE_LOCK({lock})")

    @contextlib.contextmanager
    def exclusive(
        self, cursor: DBAPICursor, name: str, reads: str | None = None
    ) -> Generator[None]:
        lock, unlock = self.lock_table(name, reads), self.unlock_tables()
        cursor.execute(lock.text, lock.parameters())
        try:
            yield
        except TicketError:  # after any other error the connection is thrown away
            cursor.execute(unlock.text, ())
            raise
        cursor.execute(unlock.text, ())


def _engine_of(connection: Connection, table: str, schema: str | None) -> str | None:
    """The storage engine of a table."""
    options = inspect(connection).get_table_options(table, schema)
    for name, value in options.items():
        if name.endswith("_engine"):
            return str(value)
    # SHOW CREATE TABLE leaves it out in sql_mode ANSI, and in others of other databases' syntax
    asked = sql_text(
        "SELECT ENGINE FROM information_schema.TABLES"
        f" WHERE TABLE_SCHEMA = {':schema' if schema else 'DATABASE()'} AND TABLE_NAME = :table"
    )
    parameters = {"table": table} | ({"schema": schema} if schema else {})
    return cast("str | None", connection.scalar(asked, parameters))


def _pairs(cursor: DBAPICursor, statement: str) -> dict[str, str]:
    return {str(name): str(value) for name, value in rows_of(cursor, statement)}


def _grants(rows: list[tuple[object, ...]]) -> tuple[Grant, ...] | None:
    """The privileges that ``SHOW GRANTS`` lists; None if a role may hold more."""
    found: list[Grant] = []
    for (text,) in rows:
        parts = re.match(
            r"GRANT (.+?) ON (?:TABLE )?((?:`[^`]*`|\*)\.(?:`[^`]*`|\*)) TO ", str(text)
        )
        if parts:
            privileges = {p.strip().upper() for p in parts[1].split(",")}
            if str(text).endswith("WITH GRANT OPTION"):
                privileges.add("GRANT OPTION")
            found.append(Grant(frozenset(privileges), parts[2]))
        elif " ON " not in str(text) and "SET DEFAULT ROLE" not in str(text):
            return None
    return tuple(found)


def _replication(cursor: DBAPICursor) -> tuple[bool | None, int | None]:
    is_replica: bool | None = None
    for statement in ("SHOW REPLICA STATUS", "SHOW SLAVE STATUS"):
        with contextlib.suppress(Exception):  # not granted, or not of this version
            is_replica = bool(rows_of(cursor, statement))
            break
    dumps = "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE COMMAND LIKE 'Binlog Dump%'"
    with contextlib.suppress(Exception):
        ((replicas,),) = rows_of(cursor, dumps)
        return is_replica, int(str(replicas))
    return is_replica, None


def _integer(table: TableShape) -> str:
    return "INT UNSIGNED" if table.bits == 32 else "BIGINT UNSIGNED"


def _check(table: TableShape) -> str:
    return f"CHECK (id > 0 AND id <= {table.largest})"


class _PyMySQLWithCachedContext:
    """The module ``pymysql``, for ``create_engine(module=...)``, without its cost for unverified encryption.

    If a URL has no TLS options, PyMySQL (from 1.2 on) encrypts if the server can, and verifies no certificate. Yet it
    first reads the system's certificates, which takes 20 ms of CPU, even when every thread needs a new connection at
    once because a server has died. And a process that forks at that moment leaves its child a lock of OpenSSL that is
    never released, so the child's first connection never opens.
    """

    def __init__(self) -> None:
        import pymysql  # noqa: PLC0415  # another driver may be in use
        from pymysql.connections import Connection  # noqa: PLC0415

        class CachedContextConnection(Connection):
            def _create_ssl_ctx(self, sslp: Any) -> ssl.SSLContext:
                if sslp:  # the URL has something to say
                    return super()._create_ssl_ctx(sslp)  # type: ignore[misc,no-any-return]  # not in its stubs
                return _verifies_nobody()

        self._pymysql = pymysql
        self.connect = CachedContextConnection

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pymysql, name)


@per_process
def _verifies_nobody() -> ssl.SSLContext:
    """The TLS context that PyMySQL makes without options, but without certificates."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


class MariaDB(MySQL):
    """MariaDB, with either of SQLAlchemy's two dialects for it."""

    @classmethod
    def of(cls, sqlalchemy: Dialect) -> TicketDialect:
        return cls(sqlalchemy)

    @property
    def kind(self) -> str:
        return "mariadb"

    def identity(self) -> Statement | None:
        """The identity without server_uuid, which MariaDB lacks; its server_uid is the machine's."""
        name = "CONCAT_WS(' ', @@hostname, @@port, @@server_id, @@datadir)"
        return self.statement(_STATUS.format(name, "information_schema"))

    def group_name(self) -> Statement | None:
        return None

    # of 64 clients, 8 at a time get 1,400, all at once 400; they share a disk's writes, while 3 would wait for a slow one
    queues = 8
    _new_isolation_since = (11, 1, 1)
    _rownum_since = (10, 6, 1)
    _monitor_privileges = ("PROCESS", "SLAVE MONITOR")
    counter_kept_since = (10, 2, 4)  # MDEV-6076

    def row_counter(self) -> ColumnElement[int] | None:
        """Count rows with ROWNUM(), as arithmetic on a window function's result takes half as long again."""
        version = tuple(self.sqlalchemy.server_version_info or ())
        return func.rownum(type_=BigInteger) if version >= self._rownum_since else None

    def _replace(self, name: str, stride: int, offset: int, values: str) -> Statement:
        pair = f"auto_increment_increment={stride}, auto_increment_offset={offset}"
        return self.statement(f"SET STATEMENT {pair} FOR REPLACE INTO {self.table(name)} {values}")

    def alter_to_tombstone(
        self, name: str, comment: str, stub: str, keys: Sequence[str], checks: Sequence[str]
    ) -> Statement:
        return super().alter_to_tombstone(
            name, comment, stub, keys, ()
        )  # they go with their column
