"""Real database servers that the tests start, kill and freeze.

`Borrower` is what a test asks for one, `Server` is what it gets; `Fleet` keeps those that are shared.
"""

from tests.servers.base import PASSWORD, USER, Server
from tests.servers.borrower import Borrower
from tests.servers.clocks import Clock
from tests.servers.fleet import KINDS, Fleet
from tests.servers.galera import Galera, GaleraNode
from tests.servers.haproxy import Front, HAProxy
from tests.servers.mariadb import MariaDB
from tests.servers.mysql import MySQL
from tests.servers.mysqllike import MySQLLike, plain_client
from tests.servers.postgres import PostgreSQL
from tests.servers.replication import Replication

__all__ = [
    "KINDS",
    "PASSWORD",
    "USER",
    "Borrower",
    "Clock",
    "Fleet",
    "Front",
    "Galera",
    "GaleraNode",
    "HAProxy",
    "MariaDB",
    "MySQL",
    "MySQLLike",
    "PostgreSQL",
    "Replication",
    "Server",
    "plain_client",
]
