"""The players of a script on a real server, and on the model of the same version."""

from __future__ import annotations

import time
from typing import Any

import psycopg
import pymysql
from pymysql.constants import CLIENT

from tests.simulation.models.mysql import MySQLServer
from tests.simulation.models.postgresql import PostgreSQLServer
from tests.simulation.models.random_scripts import Kind
from tests.simulation.models.scripts import ModelPlayer, RealPlayer, StepRuntime
from tests.simulation.models.sessions import Costs
from tests.support.servers import PASSWORD, USER, PostgreSQL, Server
from tests.support.servers.mysqllike import MySQLLike

__all__ = ["model_player", "real_player"]

# No time, but a moment at which others may be quicker.
_COSTS = Costs(number=lambda random: 0.0, write=lambda random: 0.0)
# So late that a random script does not depend on how quick it was played.
_DEADLOCK_SECONDS = 3600.0
# MariaDB's table of transactions is a copy that is a tenth of a second old (manual, INNODB_TRX).
_COPY_SECONDS = 0.11
_WAITS_MARIADB = (
    "SELECT trx_mysql_thread_id FROM information_schema.INNODB_TRX WHERE trx_state = 'LOCK WAIT'"
    " UNION SELECT id FROM information_schema.PROCESSLIST"
    " WHERE state LIKE 'Waiting for %lock' OR state = 'User lock'"
)
_WAITS_MYSQL = (
    "SELECT t.PROCESSLIST_ID FROM performance_schema.data_lock_waits AS w JOIN performance_schema.threads AS t"
    " ON t.THREAD_ID = w.REQUESTING_THREAD_ID"
    " UNION SELECT PROCESSLIST_ID FROM performance_schema.threads"
    " WHERE (PROCESSLIST_STATE LIKE 'Waiting for %lock' OR PROCESSLIST_STATE = 'User lock')"
    " AND PROCESSLIST_ID IS NOT NULL"
)
_WAITS_POSTGRESQL = "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock'"


def real_player(
    server: Server, database: str, deadlock_seconds: float = _DEADLOCK_SECONDS
) -> RealPlayer:
    """Play on a real server.

    Args:
        server: the server.
        database: an empty one on it, which the user may do everything in.
        deadlock_seconds: after which PostgreSQL looks for a deadlock.
    """
    if isinstance(server, PostgreSQL):
        return _on_postgresql(server, database, deadlock_seconds)
    assert isinstance(server, MySQLLike)
    return _on_mysql(server, database)


class _Administrator:
    """A connection that outlives no restart of the server, and is opened again."""

    def __init__(self, server: MySQLLike | PostgreSQL) -> None:
        self._server = server
        self._cursor: Any = None
        self._context: Any = None

    def rows(self, text: str) -> list[Any]:
        if self._cursor is None:
            self._context = self._server.administrator()
            self._cursor = self._context.__enter__()
        self._cursor.execute(text)
        return list(self._cursor.fetchall()) if self._cursor.description else []

    def close(self) -> None:
        if self._context is not None:
            context, self._context, self._cursor = self._context, None, None
            context.__exit__(None, None, None)


def _on_mysql(server: MySQLLike, database: str) -> RealPlayer:
    administrator = _Administrator(server)

    def administer(text: str) -> None:
        administrator.rows(text)

    def connect() -> Any:
        return pymysql.connect(
            host=server.host,
            port=server.port,
            user=USER,
            password=PASSWORD,
            database=database,
            autocommit=True,
            client_flag=CLIENT.MULTI_STATEMENTS,
            read_timeout=30,
        )

    def waits() -> set[int]:
        if server.kind == "mariadb":
            time.sleep(_COPY_SECONDS)
        text = _WAITS_MARIADB if server.kind == "mariadb" else _WAITS_MYSQL
        return {int(row[0]) for row in administrator.rows(text)}

    def kill(id_: int, query_only: bool) -> None:
        administrator.rows(f"KILL {'QUERY' if query_only else 'CONNECTION'} {id_}")

    return RealPlayer(
        connect, waits, kill, lambda crash: _restart(server, administrator, crash), administer
    )


def _on_postgresql(server: PostgreSQL, database: str, deadlock_seconds: float) -> RealPlayer:
    administrator = _Administrator(server)
    milliseconds = round(deadlock_seconds * 1000)
    administrator.rows(f'ALTER DATABASE "{database}" SET deadlock_timeout = {milliseconds}')

    def administer(text: str) -> None:
        administrator.rows(text)

    def connect() -> Any:
        return psycopg.connect(
            host=server.host,
            port=server.port,
            user=USER,
            password=PASSWORD,
            dbname=database,
            autocommit=True,
            prepare_threshold=None,
        )

    def waits() -> set[int]:
        return {int(row[0]) for row in administrator.rows(_WAITS_POSTGRESQL)}

    def kill(id_: int, query_only: bool) -> None:
        administrator.rows(f"SELECT pg_{'cancel' if query_only else 'terminate'}_backend({id_})")

    return RealPlayer(
        connect, waits, kill, lambda crash: _restart(server, administrator, crash), administer
    )


def _restart(server: MySQLLike | PostgreSQL, administrator: _Administrator, is_crash: bool) -> None:
    administrator.close()
    if is_crash:
        server.kill()
    else:
        server.stop()
    server.start()


def model_player(
    kind: Kind,
    version: str,
    database: str,
    deadlock_seconds: float = _DEADLOCK_SECONDS,
    seed: int = 0,
) -> ModelPlayer:
    """Play on the model of a version; see `real_player`."""

    def postgresql(runtime: StepRuntime) -> PostgreSQLServer:
        server = PostgreSQLServer(runtime, version, costs=_COSTS)
        server.deadlock_timeout = deadlock_seconds
        return server

    if kind == "postgresql":
        return ModelPlayer(
            postgresql,
            lambda module: module.connect(host="model", dbname=database, autocommit=True),
            seed,
        )
    return ModelPlayer(
        lambda runtime: MySQLServer(runtime, version, costs=_COSTS),
        lambda module: module.connect(
            host="model", database=database, autocommit=True, client_flag=CLIENT.MULTI_STATEMENTS
        ),
        seed,
    )
