"""The engine behind a ticket server: the user's own, or a new one with short time-outs."""

from __future__ import annotations

import os
from collections.abc import Hashable
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import URL, Dialect, Engine, create_engine, event, make_url
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.pool import NullPool, SingletonThreadPool, StaticPool

from .errors import TicketArgumentError
from .tls import LightPyMySQL

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

__all__ = ["LOCK_WAIT", "engine_for", "in_memory", "place_of"]

#: How long, in whole seconds, a statement waits for another client's lock on a ticket table.
LOCK_WAIT: Final = 1

_CLIENT_MULTI_STATEMENTS: Final = 1 << 16  # MySQL manual, C API, mysql_real_connect()
_MANY_STATEMENTS = ("pymysql", "asyncmy", "aiomysql")
_READ_TIMEOUT = ("pymysql", "mysqldb", "mysqlconnector", "mariadbconnector", "asyncmy")
_PORTS = {"mysql": 3306, "postgresql": 5432}


def engine_for(bind: str | URL | Engine | AsyncEngine, timeout: float) -> Engine:
    """The engine of ``bind``; one that is made here gives up after ``timeout`` seconds of silence.

    Raises:
        TicketArgumentError: ``bind`` is none of these, its URL cannot be read, or its driver is not
            installed. A URL is never quoted: it may hold a password.
    """
    if isinstance(bind, Engine):
        return bind
    behind = getattr(bind, "sync_engine", None)  # of an AsyncEngine, which needs greenlet to import
    if isinstance(behind, Engine):
        return behind
    if not isinstance(bind, (str, URL)):  # pyright: ignore[reportUnnecessaryIsInstance]  # untyped callers
        raise TicketArgumentError(
            f"a ticket server is a URL, an Engine, an AsyncEngine or a TicketServer, not a"
            f" {type(bind).__name__}"
        )
    try:
        engine = _create(make_url(bind))
    except ImportError as error:
        raise TicketArgumentError(
            f"the driver of a ticket server is not installed: {error.name or error}"
        ) from error
    except (SQLAlchemyError, ValueError):
        raise TicketArgumentError(
            "the URL of a ticket server cannot be read: expected"
            " dialect+driver://user:password@host:port/database, of a dialect that SQLAlchemy has"
        ) from None
    _limit_waits(engine, timeout)
    return engine


def _create(url: URL) -> Engine:
    memory = url.get_backend_name() == "sqlite" and _file(url) is None
    pool = StaticPool if memory else NullPool
    arguments = {"check_same_thread": False} if memory else {}
    if url.get_dialect().is_async:
        from sqlalchemy.ext.asyncio import create_async_engine  # noqa: PLC0415  # needs greenlet

        return create_async_engine(url, poolclass=pool, connect_args=arguments).sync_engine
    if url.get_driver_name() == "pymysql":
        return create_engine(url, poolclass=pool, module=LightPyMySQL())
    return create_engine(url, poolclass=pool, connect_args=arguments)


def _limit_waits(engine: Engine, timeout: float) -> None:
    """Give the driver's own time-outs, where the URL says nothing, and allow blocks in one packet."""
    driver, backend = engine.dialect.driver, engine.dialect.name
    whole = max(1, round(timeout))

    @event.listens_for(engine, "do_connect")
    def set_defaults(dialect: Dialect, record: object, args: object, kw: dict[str, Any]) -> None:
        if backend in ("mysql", "mariadb"):
            name = "connection_timeout" if driver == "mysqlconnector" else "connect_timeout"
            kw.setdefault(name, whole)
            if driver in _READ_TIMEOUT:
                # longer than the server's own lock waits, which are no fault of the server
                kw.setdefault("read_timeout", whole + LOCK_WAIT)
            if driver == "pymysql":
                # with another one it would tell the system of both, in turn, for each statement
                kw.setdefault("write_timeout", kw["read_timeout"])
            if driver in _MANY_STATEMENTS:
                kw["client_flag"] = kw.get("client_flag", 0) | _CLIENT_MULTI_STATEMENTS
                # else they switch it off, to be told to switch it on again: two round trips
                kw.setdefault("autocommit", True)
        elif driver == "asyncpg":
            kw.setdefault("timeout", whole)
            kw.setdefault("command_timeout", whole + LOCK_WAIT)
        elif driver in ("psycopg", "psycopg_async", "psycopg2"):
            kw.setdefault("connect_timeout", max(2, whole))  # libpq takes 1 for 2
        elif backend == "sqlite":  # whose only wait is for another process's lock
            kw.setdefault("timeout", whole + LOCK_WAIT)


def in_memory(engine: Engine) -> bool:
    """Whether the database lives in one connection, which everybody has to share."""
    return isinstance(engine.pool, (StaticPool, SingletonThreadPool))


def place_of(engine: Engine) -> Hashable:
    """Where an engine leads, as far as its URL tells: equal for two that lead to one database."""
    url = engine.url
    backend = "mysql" if engine.dialect.name == "mariadb" else engine.dialect.name
    if backend == "sqlite":
        return _file(url) or id(engine.pool)
    if url.host is None and url.database is None:  # it has a creator, or a service file
        return id(engine.pool)
    return backend, url.host, url.port or _PORTS.get(backend), url.database


def _file(url: URL) -> str | None:
    """The file of a SQLite database, however it is spelled; None for one in memory."""
    name = url.database or ""
    if name.startswith("file:"):
        if "mode=memory" in name or url.query.get("mode") == "memory":
            return None
        name = name.removeprefix("file:").partition("?")[0]
    return None if name in ("", ":memory:") else os.path.realpath(name)
