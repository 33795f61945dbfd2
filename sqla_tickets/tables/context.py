"""The context of a table's statements: its server, stride, offset and dialect; and the cursor that sends them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ClauseElement, Dialect
from sqlalchemy.engine.interfaces import DBAPICursor

from ..connect.identity import Identity
from ..dialects import Statement, TicketDialect, dialect_of


@dataclass(frozen=True)
class ServerContext:
    """The context of a server's tables: its name, dialect and numbering.

    Attributes:
        server: its name, for messages.
        sqlalchemy: the dialect of its engine.
        stride: how many numbers apart two tickets of it are.
        offset: its residue class.
    """

    server: str
    sqlalchemy: Dialect
    stride: int
    offset: int

    @property
    def dialect(self) -> TicketDialect:
        """The `TicketDialect` of the server; MariaDB is recognised on the first connection."""
        return dialect_of(self.sqlalchemy)

    def over(self, cursor: DBAPICursor, identity: Identity | None = None) -> StatementContext:
        """The context of statements that a connection's cursor sends."""
        return StatementContext(
            self.server, self.sqlalchemy, self.stride, self.offset, cursor, identity
        )


@dataclass(frozen=True)
class StatementContext(ServerContext):
    """The context of a sequence's table, over one connection.

    Attributes:
        cursor: the connection's cursor, in autocommit.
        identity: the identity of the server behind the connection, where it matters and is known.
    """

    cursor: DBAPICursor
    identity: Identity | None = None

    def send(self, statement: Statement | ClauseElement, **values: int | str) -> int:
        """Execute a statement; returns the number of rows that it changed.

        Args:
            statement: a statement of the dialect, or a SQLAlchemy element.
            values: the values of its parameters.

        Raises:
            Exception: the driver's error.
        """
        if isinstance(statement, ClauseElement):
            statement = Statement.compiled(statement, self.sqlalchemy)
        self.cursor.execute(statement.text, statement.parameters(**values))
        return self.cursor.rowcount

    def rows(
        self, statement: Statement | ClauseElement, **values: int | str
    ) -> Sequence[Sequence[Any]]:
        """Execute a statement as `send` does; returns the rows of its answer."""
        self.send(statement, **values)
        return self.cursor.fetchall()

    def send_all(self, statements: Iterable[Statement]) -> None:
        """Execute several statements without parameters, in order.

        Raises:
            Exception: the driver's error.
        """
        for statement in statements:
            self.send(statement)
