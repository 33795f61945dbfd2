"""Ticket tables in Alembic's migrations: created, moved and checked on every ticket server.

Every operation has two forms: ``op.create_ticket_table(...)``, which Alembic adds and type checkers do not know, and
a typed function of this package. `operations` and `snowflake` have them, `base` registers them, and `moved` finds
sequences that have moved since. `op` is Alembic's module with the types of these operations. `compare` is for
autogenerate, `reminder` warns if that is not enabled, `configuration` finds the ticket servers, `offline` writes SQL.
"""

from __future__ import annotations

# First: it imports this package, when it searches for its plugins.
import alembic  # noqa: F401  # pyright: ignore[reportUnusedImport]

from . import operations, snowflake
from .operations import *  # noqa: F403  # each names its own in `__all__`
from .snowflake import *  # noqa: F403

__all__: list[str] = []
__all__ += operations.__all__
__all__ += snowflake.__all__
