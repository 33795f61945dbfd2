"""Flickr's own clients: they know a table, two servers, and nothing of this package."""

from __future__ import annotations

from contextlib import suppress
from typing import Final

from pymysql.err import MySQLError

from sqla_tickets import TicketPool
from sqla_tickets.tables.context import StatementContext

from .checker import Checker
from .models.drivers import PyMySQLModule
from .models.drivers.pymysql import PyMySQLConnection
from .network import Network
from .scenario import Configuration
from .workload import SINGLES
from .world import World

__all__ = ["PlainClient", "create_plain_table"]

CREATION: Final = (
    f"CREATE TABLE {SINGLES} (id bigint unsigned NOT NULL auto_increment, stub char(1) NOT NULL default '',"
    " PRIMARY KEY (id), UNIQUE KEY stub (stub)) ENGINE=InnoDB"
)


def create_plain_table(pool: TicketPool) -> None:
    """Do what Flickr's article says, on each server; one id has been drawn already."""

    def create(context: StatementContext) -> None:
        context.cursor.execute(CREATION)
        context.cursor.execute(f"INSERT INTO {SINGLES} (id, stub) VALUES ({context.offset}, 'a')")

    for server in pool.servers:
        server.do(SINGLES, create)


class PlainClient:
    """A process that draws by REPLACE, from one server after the other.

    Args:
        world: that it is part of.
        network: that leads to the servers.
        checker: is told of each id.
        configuration: the servers, their stride, and by that the name of the column.
    """

    def __init__(
        self, world: World, network: Network, checker: Checker, configuration: Configuration
    ) -> None:
        self._world, self._checker, self._configuration = world, checker, configuration
        self._module = PyMySQLModule(network)
        stride = configuration.stride
        self._column = "stub" if stride == 2 else f"stub_{stride}"
        self._open: dict[str, PyMySQLConnection] = {}

    def draw(self) -> None:
        """Ask the servers, beginning with any, until one answers."""
        servers = self._configuration.servers
        first, before, began = (
            self._world.random.randrange(len(servers)),
            self._latest(),
            self._world.now,
        )
        for number in range(len(servers)):
            offset = 1 + (first + number) % len(servers)
            try:
                ticket = self._ask(servers[offset - 1], offset)
            except MySQLError as error:
                self._world.log(f"plain client: {error}")
                self._forget(servers[offset - 1])
            else:
                self._world.log(f"plain client: has {ticket}")
                self._checker.drawn(SINGLES, [range(ticket, ticket + 1)], before, began, 0.0)
                return

    def _latest(self) -> dict[int, int]:
        return self._checker.latest(SINGLES)

    def _ask(self, server: str, offset: int) -> int:
        connection = self._open.get(server)
        if connection is None:
            connection = self._open[server] = self._module.connect(
                host=server, database="tickets", autocommit=True, connect_timeout=1, read_timeout=1
            )
            stride = self._configuration.stride
            cursor = connection.cursor()
            cursor.execute(
                f"SET SESSION auto_increment_increment = {stride}, auto_increment_offset = {offset}"
            )
        cursor = connection.cursor()
        cursor.execute(f"REPLACE INTO {SINGLES} ({self._column}) VALUES ('a')")
        return int(cursor.lastrowid or 0)

    def _forget(self, server: str) -> None:
        connection = self._open.pop(server, None)
        if connection is not None:
            with suppress(MySQLError):  # it was lost
                connection.close()

    def close(self) -> None:
        """Close all connections."""
        for server in list(self._open):
            self._forget(server)
