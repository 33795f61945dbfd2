"""Real database servers that the tests start, kill and freeze.

`ServerFixtures` is what a test asks for one, `Server` is what it gets; `ServerRegistry` keeps those that are shared.
"""

from tests.support.servers.base import PASSWORD, USER, Server
from tests.support.servers.clocks import Clock
from tests.support.servers.galera import Galera, GaleraNode
from tests.support.servers.group import Group
from tests.support.servers.haproxy import Front, HAProxy
from tests.support.servers.mariadb import MariaDB
from tests.support.servers.mysql import MySQL
from tests.support.servers.mysqllike import MySQLLike, plain_client
from tests.support.servers.postgres import PostgreSQL
from tests.support.servers.replication import Replication
from tests.support.servers.server_fixtures import ServerFixtures
from tests.support.servers.server_registry import KINDS, ServerRegistry

__all__ = [
    "KINDS",
    "PASSWORD",
    "USER",
    "Clock",
    "Front",
    "Galera",
    "GaleraNode",
    "Group",
    "HAProxy",
    "MariaDB",
    "MySQL",
    "MySQLLike",
    "PostgreSQL",
    "Replication",
    "Server",
    "ServerFixtures",
    "ServerRegistry",
    "plain_client",
]
