"""`ServerFacts` and `Grant`: what a server reports about itself and its user."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal

from sqlalchemy.engine.interfaces import DBAPICursor

#: What a user is for: an application, the migrations, or monitoring.
Role = Literal["draw", "migrate", "monitor"]


@dataclass(frozen=True)
class Grant:
    """Privileges of the ticket user.

    Attributes:
        privileges: such as ``"SELECT"`` or ``"ALL PRIVILEGES"``.
        on: such as ``"*.*"`` or ``"`tickets`.*"``.
    """

    privileges: frozenset[str]
    on: str

    def covers(self, database: str | None, table: str | None = None) -> bool:
        """Whether it applies to all tables of the database, or to one of them."""
        schema, _, name = self.on.replace("`", "").partition(".")
        pattern = re.escape(re.sub(r"\\(.)", r"\1", schema)).replace("%", ".*")
        matches = schema == "*" or re.fullmatch(pattern, database or "") is not None
        return matches and name in ("*", table)


@dataclass
class ServerFacts:
    """One server's report on itself.

    Attributes:
        variables: all global variables.
        status: its counters; ``Ssl_cipher`` is that of the session.
        account: the connected user in a GRANT, quoted; empty if there are no users.
        is_replica: whether it applies another server's writes; None if the user may not ask.
        replicas: the number of its replicas; None if the user may not ask.
        engines: the storage engine of each table, and the next number of its AUTO_INCREMENT, where it has one.
    """

    variables: dict[str, str] = field(default_factory=dict[str, str])
    status: dict[str, str] = field(default_factory=dict[str, str])
    account: str = ""
    is_replica: bool | None = None
    replicas: int | None = None
    engines: dict[str, tuple[str, int | None]] = field(
        default_factory=dict[str, "tuple[str, int | None]"]
    )


def rows_of(cursor: DBAPICursor, statement: str) -> list[tuple[object, ...]]:
    """The rows of a statement without parameters."""
    # no parameters: an empty tuple would make some drivers read the percent sign
    cursor.execute(statement)
    return [tuple(row) for row in cursor.fetchall()]
