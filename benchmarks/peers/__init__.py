"""The ways to get an id, each as its own documentation tells a user to write it.

A peer is a context manager that is handed a `Testbed` and yields a function which returns one id. Opened in several
processes at once, it must find its tables there: the first to open it is alone.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib.util import find_spec

from benchmarks.peers import flickr, in_process, leaf, redis, sequences, sharding_example, tickets
from benchmarks.testbed import Testbed

__all__ = ["PEERS", "Draw", "Peer", "is_installed", "peers_of"]

Draw = Callable[[], object]
MYSQL_LIKE = ("mariadb", "mysql")
ANY = ("mariadb", "mysql", "postgresql", "sqlite")


def is_installed(module: str) -> bool:
    """Whether a module could be imported."""
    return find_spec(module) is not None


@dataclass(frozen=True)
class Peer:
    """One way to get an id.

    Attributes:
        open: the context manager.
        kinds: the servers that it works on.
        batch: how many ids cost about as much as a look at the clock does little to.
        module: of the package that it needs, which is not this project's own.
        alone: whether it is for one thread at a time.
    """

    open: Callable[[Testbed], AbstractContextManager[Draw]]
    kinds: tuple[str, ...] = ANY
    batch: int = 1
    module: str = ""
    alone: bool = False

    def is_at(self, testbed: Testbed) -> bool:
        """Whether it can be had there."""
        if self.module == "redis" and testbed.redis is None:
            return False
        return testbed.kind in self.kinds and (not self.module or is_installed(self.module))


#: By the names that the tables have for them.
PEERS = {
    "next_id, replace layout": Peer(tickets.replace, MYSQL_LIKE),
    "next_id, counter layout": Peer(tickets.counter),
    "next_id, block=1000": Peer(tickets.block, batch=100),
    "REPLACE, bare cursor": Peer(flickr.bare_replace, MYSQL_LIKE, alone=True),
    "REPLACE, bare cursors in turn": Peer(flickr.bare_replaces, MYSQL_LIKE, alone=True),
    "UPDATE, bare cursor": Peer(tickets.bare_update, MYSQL_LIKE, alone=True),
    "UPDATE, bare cursors in turn": Peer(tickets.bare_updates, MYSQL_LIKE, alone=True),
    "Flickr's statements, Engine": Peer(flickr.two_statements, MYSQL_LIKE),
    "SQLAlchemy's sharding example": Peer(sharding_example.locked_row),
    "SEQUENCE CACHE 1000": Peer(sequences.cached, ("mariadb",)),
    "SEQUENCE": Peer(sequences.plain, ("postgresql",)),
    "Leaf-like, step 1000": Peer(leaf.segments, batch=100),
    "Redis INCR": Peer(redis.incr, module="redis"),
    "Redis INCRBY 1000": Peer(redis.incrby, module="redis", batch=100),
    "uuid4": Peer(in_process.uuid4, batch=100),
    "uuid7": Peer(in_process.uuid7, batch=100, module=in_process.UUID7),
    "Snowflake": Peer(in_process.snowflake, batch=100, module="snowflake", alone=True),
    "snowflake-id-toolkit": Peer(in_process.toolkit, batch=100, module="snowflake_id_toolkit"),
    "snowflakes, next_id": Peer(in_process.leased, batch=100),
    "Sonyflake": Peer(in_process.sonyflake, module="sonyflake"),
}


def peers_of(testbed: Testbed, *names: str) -> dict[str, Peer]:
    """Those of some peers that can be had at a place, by their names and in that order."""
    return {name: PEERS[name] for name in names if PEERS[name].is_at(testbed)}
