"""The engine behind a ticket server: the user's own, or a new one with short time-outs."""

from __future__ import annotations

import encodings.idna  # noqa: F401  # pyright: ignore[reportUnusedImport]  # the first connection would: a fork waits for ever for another thread's import
from collections.abc import Hashable
from typing import TYPE_CHECKING, Any

from sqlalchemy import URL, Dialect, Engine, create_engine, event, make_url
from sqlalchemy.exc import NoSuchModuleError, SQLAlchemyError
from sqlalchemy.pool import NullPool, SingletonThreadPool, StaticPool

from ..dialects import class_of, dialect_of, find_dialect
from ..dialects.base import HOST_OPTIONS
from ..errors import TicketArgumentError
from .timeouts import Timeouts

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine


def engine_for(bind: str | URL | Engine | AsyncEngine, timeouts: Timeouts) -> Engine:
    """The engine of ``bind``; a new one gets time-outs.

    Raises:
        TicketArgumentError: ``bind`` has the wrong type, its database is of an unknown kind, its URL cannot be read, or
            its driver is not installed. The message never quotes a URL, which may hold a password.
    """
    if isinstance(bind, Engine):
        dialect_of(bind.dialect)  # refuses an unknown one
        return bind
    behind = getattr(bind, "sync_engine", None)  # of an AsyncEngine, which needs greenlet to import
    if isinstance(behind, Engine):
        dialect_of(behind.dialect)
        return behind
    if not isinstance(bind, (str, URL)):  # pyright: ignore[reportUnnecessaryIsInstance]  # untyped callers
        raise TicketArgumentError(
            f"a ticket server is a URL, an Engine, an AsyncEngine or a ServerSpec, not a"
            f" {type(bind).__name__}"
        )
    try:
        engine = _create(make_url(bind))
    except TicketArgumentError:
        raise
    except ImportError as error:
        raise TicketArgumentError(
            f"the driver of a ticket server is not installed: install {error.name or error}"
        ) from error
    except NoSuchModuleError:
        raise TicketArgumentError(
            "the dialect or the driver in the URL of a ticket server is unknown: check its spelling, and whether the"
            " package that has it is installed"
        ) from None
    except (SQLAlchemyError, ValueError):
        raise TicketArgumentError(
            "the URL of a ticket server cannot be read: expected dialect+driver://user:password@host:port/database, "
            "with a dialect that SQLAlchemy has. In the password, write @ as %40, / as %2F, : as %3A, % as %25"
        ) from None
    _limit_waits(engine, timeouts)
    return engine


def _create(url: URL) -> Engine:
    if url.password and "@" in f"{url.host}{url.database}":
        raise ValueError  # messages would show what follows the first @ of the password
    # refuses an unknown one, before its driver is missed
    kind = class_of(url.get_dialect().name)
    memory = kind.is_in_memory(url)
    pool = StaticPool if memory else NullPool
    arguments = {"check_same_thread": False} if memory else {}
    if url.get_dialect().is_async:
        from sqlalchemy.ext.asyncio import create_async_engine  # noqa: PLC0415  # needs greenlet

        return create_async_engine(url, poolclass=pool, connect_args=arguments).sync_engine
    module = kind.dbapi_module(url.get_driver_name())
    return create_engine(url, poolclass=pool, connect_args=arguments, module=module)


def _limit_waits(engine: Engine, timeouts: Timeouts) -> None:
    """Set the driver's own time-outs if the URL has none, and allow blocks in one packet.

    For a draw they back up the pool's time-outs, which work with any driver. For other statements, and for drivers
    that hide their socket, there are no others.
    """
    ticket_dialect = dialect_of(engine.dialect)

    @event.listens_for(engine, "do_connect")
    def set_defaults(dialect: Dialect, record: object, args: object, kw: dict[str, Any]) -> None:
        ticket_dialect.set_connect_defaults(
            kw, timeouts.timeout_seconds, timeouts.lock_wait_seconds
        )


def in_memory(engine: Engine) -> bool:
    """Whether the database is in memory, so that all users share one connection."""
    return isinstance(engine.pool, (StaticPool, SingletonThreadPool))


def shown_address(url: URL) -> str:
    """The address in a URL, for messages: no user, no password, and no options but hosts and sockets."""
    host = (url.host or "") + (f":{url.port}" if url.port else "")
    named = [url.query.get(name, ()) for name in HOST_OPTIONS]
    more = [text for found in named for text in ((found,) if isinstance(found, str) else found)]
    host = ",".join([host, *more] if host else more)
    return f"{url.get_backend_name()}://{host}/{url.database or ''}"


def address_of(engine: Engine) -> Hashable:
    """The address in an engine's URL: equal for two URLs that name one database."""
    dialect = find_dialect(engine.dialect)
    address = None if dialect is None else dialect.address(engine.url)
    return id(engine.pool) if address is None else address
