"""DBAPI modules in front of the models: each raises and returns what its driver does."""

from __future__ import annotations

from typing import Literal

from sqlalchemy import Dialect, Engine, create_engine, event
from sqlalchemy.pool import NullPool

from sqla_tickets.dialects import dialect_of
from tests.simulation.models.drivers.psycopg import PsycopgModule
from tests.simulation.models.drivers.pymysql import PyMySQLModule
from tests.simulation.runtime import Network

__all__ = ["PsycopgModule", "PyMySQLModule", "model_engine"]


def model_engine(
    network: Network,
    kind: Literal["mysql", "postgresql"],
    host: str,
    *,
    database: str = "tickets",
    user: str = "tickets",
    timeout: float = 1.0,
    lock_wait: float = 1.0,
) -> Engine:
    """An engine as a pool makes one of a URL, over a network of models.

    Args:
        network: that leads to them.
        kind: of the server; MariaDB is recognised.
        host: of the server.
        database: on it.
        user: of it; ``root`` and ``postgres`` are administrators.
        timeout: of the pool, in seconds.
        lock_wait: of the pool, in seconds.
    """
    address = f"{user}@{host}/{database}"
    if kind == "postgresql":
        engine = create_engine(
            f"postgresql+psycopg://{address}",
            module=PsycopgModule(network),
            poolclass=NullPool,
            use_native_hstore=False,
        )
    else:
        engine = create_engine(
            f"mysql+pymysql://{address}", module=PyMySQLModule(network), poolclass=NullPool
        )

    @event.listens_for(engine, "do_connect")
    def set_defaults(dialect: Dialect, record: object, args: object, kw: dict[str, object]) -> None:
        dialect_of(engine.dialect).set_connect_defaults(kw, timeout, lock_wait)

    return engine
