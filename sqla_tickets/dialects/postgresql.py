"""PostgreSQL. The codes are those of its manual, Appendix A."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

from sqlalchemy import BigInteger, ColumnElement, Insert, String, Table, bindparam, cast
from sqlalchemy.engine.interfaces import DBAPIConnection, DBAPICursor

from ..errors import TicketArgumentError
from .base import (
    LONGEST_COMMENT,
    ErrorKind,
    Statement,
    TicketDialect,
    quoted_name,
    raised_on_conflict,
)
from .facts import Grant, Role, ServerFacts, rows_of

_MAX_KEEPALIVE_SECONDS: Final = 32767  # tcp(7), TCP_KEEPIDLE
#: What cannot be read as a number, with the number of a row.
_NO_TICKET: Final = "no ticket for row "


class PostgreSQL(TicketDialect):
    """PostgreSQL."""

    has_plpgsql = True
    default_port = 5432
    synchronous_driver = "psycopg"
    read_only_variables = ("default_transaction_read_only",)
    maintenance_database = "postgres"
    drop_database = "DROP DATABASE {} WITH (FORCE)"  # even while clients are connected to it
    encryption_advice = (
        "Add ?sslmode=verify-full&sslrootcert=FILE to the URL, and use hostssl in pg_hba.conf."
    )

    error_codes: ClassVar[Mapping[int | str, ErrorKind]] = {
        "3D000": ErrorKind.DATABASE_MISSING,
        "40001": ErrorKind.DEADLOCK,
        "40P01": ErrorKind.DEADLOCK,
        "55P03": ErrorKind.LOCK_TIMEOUT,
        "57014": ErrorKind.KILLED,  # a cancelled query, statement_timeout
        "53100": ErrorKind.DISK_FULL,
        "53300": ErrorKind.TOO_MANY_CONNECTIONS,
        "28000": ErrorKind.ACCESS_DENIED,  # pg_hba.conf, or no such role
        "28P01": ErrorKind.ACCESS_DENIED,  # the password
        "42501": ErrorKind.ACCESS_DENIED,
        "22003": ErrorKind.EXHAUSTED,  # bigint out of range
        "23514": ErrorKind.EXHAUSTED,  # CHECK of the counter row
        "2BP01": ErrorKind.IN_USE,  # a view, say
        "42P01": ErrorKind.TABLE_MISSING,
        "42703": ErrorKind.SCHEMA_MISMATCH,
        "42602": ErrorKind.INVALID_NAME,
        "42622": ErrorKind.INVALID_NAME,
        "25006": ErrorKind.READ_ONLY,
        "42601": ErrorKind.SYNTAX_ERROR,
    }
    error_texts: ClassVar[Mapping[str, ErrorKind]] = {
        # its code is that of everything which is not implemented
        "cached plan must not change result type": ErrorKind.SCHEMA_MISMATCH,
        # libpq keeps the codes of a refused connection back
        r'fatal: +(.* authentication failed|role ".*" (does not exist|is not permitted)|.*pg_hba\.conf)': (
            ErrorKind.ACCESS_DENIED
        ),
        "no password supplied": ErrorKind.ACCESS_DENIED,  # libpq itself
        r'fatal: +database ".*" does not exist': ErrorKind.DATABASE_MISSING,
    }

    # -- errors

    def error_code(self, error: BaseException) -> int | str | None:
        """Psycopg and asyncpg put the code into ``sqlstate``, psycopg2 into ``pgcode``; libpq hides it."""
        return getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)

    def missing_grant(self, error: BaseException, database: str, user: str) -> str | None:
        owned = re.search(r"must be owner of (?:table|relation) (\S+)", str(error))
        if owned:
            return f"ALTER TABLE {owned[1]} OWNER TO {user}"
        schema = re.search(r"permission denied for schema (\S+)", str(error))
        return f"GRANT CREATE ON SCHEMA {schema[1]} TO {user}" if schema else None

    # -- connections

    def set_connect_defaults(self, kw: dict[str, Any], timeout: float, lock_wait: float) -> None:
        if self.sqlalchemy.driver == "asyncpg":
            kw.setdefault("timeout", timeout)
            kw.setdefault("command_timeout", timeout + lock_wait)
        elif self.sqlalchemy.driver in ("psycopg", "psycopg_async", "psycopg2"):
            kw.setdefault("connect_timeout", max(2, math.ceil(timeout)))  # libpq takes 1 for 2
            # it waits for an answer for ever: the system ends a connection whose other end is gone
            seconds = min(math.ceil(timeout + lock_wait), _MAX_KEEPALIVE_SECONDS)
            kw.setdefault("tcp_user_timeout", 1000 * seconds)
            kw.setdefault("keepalives_idle", seconds)
            kw.setdefault("keepalives_interval", 1)

    def set_up_session(
        self, connection: DBAPIConnection, cursor: DBAPICursor, lock_wait: float
    ) -> None:
        """Make commits survive a crash, and limit lock waits; a lock_timeout of 0 would mean no limit."""
        milliseconds = min(max(1, round(lock_wait * 1000)), 2**31 - 1)
        cursor.execute(
            "SELECT set_config('synchronous_commit', 'on', false),"
            f" set_config('lock_timeout', '{milliseconds}', false)",
            (),
        )
        cursor.fetchall()

    # -- the server

    def identity(self) -> Statement | None:
        return self.statement(
            "SELECT CAST(system_identifier AS TEXT), CAST(EXTRACT(EPOCH FROM pg_postmaster_start_time())"
            " AS DOUBLE PRECISION), NULL, '' FROM pg_control_system()"
        )

    def read_only(self) -> Statement | None:
        """Select whether the server is read-only; a standby is, whatever its configuration says."""
        name = "'transaction_read_only'"
        return self.statement(f"SELECT {name}, current_setting({name})")

    def facts(self, cursor: DBAPICursor) -> ServerFacts:
        facts = ServerFacts()
        rows = rows_of(cursor, "SELECT name, setting FROM pg_settings")
        facts.variables = {str(name): str(value) for name, value in rows}
        ((recovering, user),) = rows_of(
            cursor, "SELECT pg_is_in_recovery(), quote_ident(current_user)"
        )
        facts.is_replica, facts.account = bool(recovering), str(user)
        ((used,),) = rows_of(
            cursor, "SELECT count(*) FROM pg_stat_activity WHERE backend_type LIKE 'c%'"
        )
        facts.status["Threads_connected"] = str(used)
        ((cipher,),) = rows_of(
            cursor, "SELECT cipher FROM pg_stat_ssl WHERE pid = pg_backend_pid()"
        )
        facts.status["Ssl_cipher"] = str(cipher or "")
        return facts

    # -- users: it has no REPLACE, its counters are locked by their UPDATE, and the user that creates a table owns it

    def user_grants(self, cursor: DBAPICursor, database: str | None) -> tuple[Grant, ...]:
        """The privileges of the user, by any role, on each table that is visible without its schema."""
        ((is_superuser, reads_all),) = rows_of(
            cursor,
            "SELECT rolsuper, pg_has_role('pg_read_all_stats', 'USAGE') FROM pg_roles"
            " WHERE rolname = current_user",
        )
        everywhere: set[str] = set()
        if is_superuser or reads_all:
            everywhere.add("SUPERUSER" if is_superuser else "pg_read_all_stats")
        rows = rows_of(
            cursor,
            "SELECT c.relname, pg_has_role(c.relowner, 'USAGE'), has_table_privilege(c.oid, 'SELECT'),"
            " has_table_privilege(c.oid, 'INSERT'), has_table_privilege(c.oid, 'UPDATE'),"
            " has_table_privilege(c.oid, 'DELETE'), has_table_privilege(c.oid, 'TRUNCATE')"
            " FROM pg_class AS c WHERE c.relkind = 'r' AND pg_table_is_visible(c.oid)"
            " AND c.relnamespace <> 'pg_catalog'::regnamespace",
        )
        privileges = ("OWNER", "SELECT", "INSERT", "UPDATE", "DELETE", "TRUNCATE")
        found = [Grant(frozenset(everywhere), "*.*")]
        for name, *has in rows:
            held = frozenset(itertools.compress(privileges, has))
            found.append(Grant(held, f"`{database or ''}`.`{name}`"))
        return tuple(found)

    @classmethod
    def server_privileges(cls, role: Role) -> tuple[str, ...]:
        return ("pg_read_all_stats",) if role == "monitor" else ()

    @classmethod
    def grants(
        cls, role: Role, *, user: str, database: str, host: str, owner: str, schema: str
    ) -> list[str]:
        user, database, owner, schema = map(quoted_name, (user, database, owner, schema))
        begin = f"GRANT CONNECT ON DATABASE {database} TO {user}"
        if role == "migrate":
            return [begin, f"GRANT USAGE, CREATE ON SCHEMA {schema} TO {user}"]
        what = ", ".join(cls.table_privileges(role))
        return [
            begin,
            f"GRANT USAGE ON SCHEMA {schema} TO {user}",
            f"GRANT {what} ON ALL TABLES IN SCHEMA {schema} TO {user}",
            # those that a migration creates from now on, or puts in the place of another
            f"ALTER DEFAULT PRIVILEGES FOR ROLE {owner} IN SCHEMA {schema} GRANT {what} ON TABLES TO {user}",
            *(f"GRANT {name} TO {user}" for name in cls.server_privileges(role)),
        ]

    @classmethod
    def set_global(cls, name: str, value: object) -> str:
        effective = "a restart" if name == "max_connections" else "SELECT pg_reload_conf()"
        return f"{super().set_global(name, value)} and {effective}"

    # -- a ticket table

    def comment_on(self, name: str, comment: str) -> list[Statement]:
        return [self.statement(f"COMMENT ON TABLE {self.table(name)} IS {self.literal(comment)}")]

    def describe_table(self, name: str) -> Statement:
        most = self.sqlalchemy.max_identifier_length
        if len(name.encode()) > most:  # it would be cut off without an error
            raise TicketArgumentError(
                f"{name!r} is not a valid sequence name: a name has at most {most} bytes on {self.sqlalchemy.name}"
            )
        return self.statement(
            "SELECT a.attname, EXISTS (SELECT 1 FROM pg_catalog.pg_index AS i WHERE i.indrelid = c.oid"
            " AND i.indisunique AND i.indnkeyatts = 1 AND i.indkey[0] = a.attnum), a.attidentity <> '',"
            f" LEFT(pg_catalog.obj_description(c.oid, 'pg_class'), {LONGEST_COMMENT + 1}),"
            " pg_catalog.format_type(a.atttypid, NULL)"
            " FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_attribute AS a ON a.attrelid = c.oid"
            " WHERE a.attnum > 0 AND NOT a.attisdropped AND pg_catalog.pg_table_is_visible(c.oid)"
            f" AND c.relname = {self.bound('table')}"
        )

    def list_tables(self) -> Statement:
        return self.statement(
            f"SELECT c.relname, LEFT(pg_catalog.obj_description(c.oid, 'pg_class'), {LONGEST_COMMENT + 1})"
            " FROM pg_catalog.pg_class AS c"
            " WHERE c.relkind = 'r' AND pg_catalog.pg_table_is_visible(c.oid)"
            " AND POSITION('sqla_tickets' IN pg_catalog.obj_description(c.oid, 'pg_class')) > 0"
        )

    # -- tables of SQLAlchemy's

    def upsert_largest(
        self, table: Table, rows: Sequence[Mapping[str, Any]], value: str, same: str
    ) -> Insert:
        from sqlalchemy.dialects import postgresql  # noqa: PLC0415  # takes long, and an engine has done it

        return raised_on_conflict(postgresql.insert(table).values(rows), table, value, same)

    # -- tables of an application

    def failing(self, number: ColumnElement[int]) -> ColumnElement[int]:
        """An expression that fails early, as a trigger or a rule may write rows to other tables, such as old partitions."""
        said = bindparam("sqla_tickets_error", _NO_TICKET, String, unique=True)
        return cast(said + cast(number, String), BigInteger)

    def is_failing(self, error: BaseException) -> bool:
        return _NO_TICKET in str(error)

    # -- locks

    def lock_table(self, name: str, reads: str | None = None) -> Statement:
        return self.statement(f"LOCK TABLE {self.table(name)} IN ACCESS EXCLUSIVE MODE")
