"""The kinds of servers that a world may have, and the engines that lead to them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from random import Random
from typing import Final, Literal

from sqlalchemy import Engine, create_engine
from sqlalchemy.pool import NullPool

from . import toy
from .models.drivers import model_engine
from .models.mysql import MySQLServer
from .models.postgresql import PostgreSQLServer
from .models.sessions import Costs
from .network import Network
from .runtime import Runtime, Server

__all__ = ["KINDS", "Kind", "engine_for", "server_maker"]

Kind = Literal["toy", "mariadb", "mysql", "postgresql"]
KINDS: Final[tuple[Kind, ...]] = ("mariadb", "mysql", "postgresql")
#: How many connections a server lets in: many processes of some threads, with those that a firewall has forgotten.
MAX_CONNECTIONS: Final = 1000


def flush(random: Random) -> float:
    """What a flush to the disk takes, in seconds."""
    return random.expovariate(1 / 0.0003)


def server_maker(kind: Kind, name: str, deadlock_chance: float) -> Callable[[Runtime], Server]:
    """What makes a server's model.

    Args:
        kind: of the server.
        name: of its machine.
        deadlock_chance: of REPLACEs that wait for each other.
    """
    costs = Costs(flush=flush)
    limit = MAX_CONNECTIONS
    makers: Mapping[Kind, Callable[[Runtime], Server]] = {
        "toy": partial(toy.ToyServer, name),
        "mariadb": partial(
            MySQLServer,
            version="10.11.19-MariaDB",
            identity=f"{name} 3306 1 /data/",
            max_connections=limit,
            costs=costs,
            deadlock_chance=deadlock_chance,
        ),
        "mysql": partial(
            MySQLServer,
            version="8.4.9",
            identity=f"uuid of {name}",
            max_connections=limit,
            costs=costs,
            deadlock_chance=deadlock_chance,
        ),
        "postgresql": partial(
            PostgreSQLServer,
            identity=str(7 * 10**18 + sum(map(ord, name))),
            max_connections=limit,
            costs=costs,
        ),
    }
    return makers[kind]


def engine_for(kind: Kind, network: Network, host: str, timeout: float, lock_wait: float) -> Engine:
    """An engine that leads to a server.

    All processes of a world share it: it keeps no connection, and what its dialect learns at the first one is the same
    for all.

    Args:
        kind: of the server.
        network: that leads there.
        host: of the server.
        timeout: of the pool, in seconds.
        lock_wait: of the pool, in seconds.
    """
    if kind == "toy":
        toy.register()
        toy.DRIVER.network = network
        return create_engine(f"toy://{host}/", poolclass=NullPool)
    family: Literal["mysql", "postgresql"] = "postgresql" if kind == "postgresql" else "mysql"
    return model_engine(network, family, host, timeout=timeout, lock_wait=lock_wait)
