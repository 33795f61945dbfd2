"""What the tests of drawing do to ticket servers, and how they look at the result."""

from __future__ import annotations

import gc
import multiprocessing
import multiprocessing.context
import os
import signal
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Protocol, TypeVar, cast
from weakref import WeakKeyDictionary, WeakSet, WeakValueDictionary

import psutil
import pymysql
import pytest
from sqlalchemy import URL, create_engine
from sqlalchemy.pool import NullPool

from sqla_tickets import TicketPool
from sqla_tickets.dialects import LayoutName
from tests.support.servers import USER, MySQLLike, ServerFixtures
from tests.support.waiting import has_input

#: How many threads draw in `by_threads`.
THREADS = 8
#: Longer than a machine takes that is ten times slower, in seconds, for what takes a few on a quiet one.
PATIENCE = 90.0

FLICKRS_TABLE = """
CREATE TABLE `{name}` (
  `id` bigint(20) unsigned NOT NULL auto_increment,
  `stub` char(1) NOT NULL default '',
  PRIMARY KEY  (`id`),
  UNIQUE KEY `stub` (`stub`)
) ENGINE={engine}
"""
LOCKS = (type(threading.Lock()), type(threading.RLock()), threading.Condition)
CONTAINERS = (
    dict,
    list,
    set,
    frozenset,
    tuple,
    deque,
    WeakSet,
    WeakValueDictionary,
    WeakKeyDictionary,
)
Row = tuple[object, ...]
T = TypeVar("T")
#: A pool of these servers, closed after the test.
OpenPool = Callable[..., TicketPool]


def until(condition: Callable[[], bool], seconds: float = PATIENCE) -> None:
    """Wait for what happens in the background."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it does not happen"
        time.sleep(0.01)


def run(url: URL, *statements: str) -> list[Row]:
    """Run statements in autocommit, outside of any pool, and return the rows of the last."""
    engine = create_engine(url, isolation_level="AUTOCOMMIT", poolclass=NullPool)
    rows: list[Row] = []
    with engine.connect() as connection:
        for statement in statements:
            result = connection.exec_driver_sql(statement)
            rows = [tuple(row) for row in result] if result.returns_rows else []
    return rows


def mysql_like(servers: ServerFixtures, kind: str, number: int = 0) -> MySQLLike:
    server = servers.shared(kind, number)
    assert isinstance(server, MySQLLike)
    return server


def fresh_pair(servers: ServerFixtures, kind: str) -> tuple[MySQLLike, MySQLLike, list[URL]]:
    """Two servers of a kind, and an empty database on each."""
    first, second = mysql_like(servers, kind, 0), mysql_like(servers, kind, 1)
    return first, second, [servers.fresh_database(server) for server in (first, second)]


def grant_only(server: MySQLLike, url: URL, *privileges: str) -> None:
    """Leave the user of ``url`` these privileges on its database, and no other."""
    with server.administrator() as cursor:
        cursor.execute(f"REVOKE ALL ON `{url.database}`.* FROM '{USER}'@'%'")
        cursor.execute(f"GRANT {', '.join(privileges)} ON `{url.database}`.* TO '{USER}'@'%'")


def connections_to(server: MySQLLike, url: URL, state: str = "") -> list[int]:
    """The ids of the connections to a database whose state contains some words."""
    with server.administrator() as cursor:
        cursor.execute(
            "SELECT id FROM information_schema.processlist WHERE db = %s AND state LIKE %s",
            [url.database, f"%{state}%"],
        )
        return [int(row[0]) for row in cursor.fetchall()]


def kill_connections(server: MySQLLike, url: URL, how: str = "KILL", state: str = "") -> int:
    """Kill the connections to a database whose state contains some words; how many there were."""
    killed = 0
    with server.administrator() as cursor:
        for connection in connections_to(server, url, state):
            # It may have ended by itself since.
            with suppress(pymysql.err.OperationalError):
                cursor.execute(f"{how} {connection}")
                killed += 1
    return killed


@contextmanager
def setting(server: MySQLLike, **variables: int) -> Iterator[None]:
    """Set global variables of a server for a while."""
    before: dict[str, int] = {}
    with server.administrator() as cursor:
        for name, value in variables.items():
            cursor.execute(f"SELECT @@GLOBAL.{name}")
            row = cursor.fetchone()
            assert row is not None
            before[name] = row[0]
            cursor.execute(f"SET GLOBAL {name} = {value}")
    try:
        yield
    finally:
        if server.alive:
            with server.administrator() as cursor:
                for name, value in before.items():
                    cursor.execute(f"SET GLOBAL {name} = {value}")


def skip_unless_it_has(layout: LayoutName, kind: str) -> None:
    """Leave the test out where servers of that kind cannot have the layout."""
    if layout == "replace" and kind not in ("mariadb", "mysql"):
        pytest.skip("a layout of MySQL's and MariaDB's")


def residues(ids: Iterable[int], stride: int = 2) -> set[int]:
    """Which servers the tickets came from, as remainders."""
    return {number % stride for number in ids}


def assert_unique(ids: Sequence[int]) -> None:
    assert len(set(ids)) == len(ids), f"{len(ids) - len(set(ids))} of {len(ids)} tickets repeat"


def draw_from(pool: TicketPool, offset: int, n: int = 1, sequence: str = "photos") -> list[int]:
    """Draw until ``n`` tickets came from the server of one offset, and return all drawn.

    A server that failed is asked again after a while, so this goes on for longer than that.
    """
    drawn: list[int] = []
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        drawn.append(pool.next_id(sequence))
        if sum((ticket - offset) % pool.stride == 0 for ticket in drawn) >= n:
            return drawn
        time.sleep(0.01)
    raise AssertionError(f"the server of offset {offset} gave too little of {drawn[-9:]}")


def from_one_start() -> multiprocessing.context.ForkServerContext:
    """A way to start processes that share nothing with this one, quicker than from nothing."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["sqla_tickets", "pymysql", "tests.support.draws"])
    return context


def in_processes(work: Callable[..., T], *arguments: tuple[object, ...]) -> list[T]:
    """Run ``work`` in a new interpreter for each tuple of arguments, all of them at once."""
    with from_one_start().Pool(len(arguments)) as processes:
        return processes.starmap(work, arguments, chunksize=1)


def in_fork(work: Callable[[], str]) -> str:
    """Run ``work`` in a child made by ``os.fork()`` and return what it returned."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writing, work().encode())
        except BaseException:  # noqa: BLE001  # nothing may return into pytest from here
            os.write(writing, traceback.format_exc().encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        if not has_input(pipe, PATIENCE):
            os.kill(child, signal.SIGKILL)
        answer = pipe.read()
    os.waitpid(child, 0)
    return answer or "the child hangs"


class Lock(Protocol):
    """A lock of any class of Python's."""

    def acquire(self, blocking: bool = True) -> bool: ...
    def release(self) -> None: ...


def locks_of(*roots: object) -> list[Lock]:
    """Every lock that this package's objects hold, however deep."""
    found: list[Lock] = []
    seen: set[int] = set()
    waiting = list(roots)
    while waiting:
        thing = waiting.pop()
        if id(thing) in seen:
            continue
        seen.add(id(thing))
        if isinstance(thing, LOCKS):
            found.append(cast("Lock", thing))
        elif isinstance(thing, CONTAINERS) or type(thing).__module__.startswith("sqla_tickets"):
            waiting += gc.get_referents(thing)
    return found


def held() -> set[str]:
    """The threads and the connections of this process."""
    sockets = psutil.Process().net_connections("tcp")
    return {thread.name for thread in threading.enumerate()} | {
        f"a connection to {socket.raddr}" for socket in sockets if socket.status == "ESTABLISHED"
    }


def by_threads(work: Callable[[int], list[int]]) -> list[int]:
    """The tickets that eight threads draw at the same time."""
    with ThreadPoolExecutor(THREADS) as threads:
        return [ticket for drawn in threads.map(work, range(THREADS)) for ticket in drawn]
