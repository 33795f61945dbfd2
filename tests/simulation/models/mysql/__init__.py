"""The model of a MySQL or MariaDB server."""

from tests.simulation.models.mysql.server import MySQLServer

__all__ = ["MySQLServer"]
