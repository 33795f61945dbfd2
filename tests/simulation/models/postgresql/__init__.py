"""The model of a PostgreSQL server."""

from tests.simulation.models.postgresql.server import PostgreSQLServer

__all__ = ["PostgreSQLServer"]
