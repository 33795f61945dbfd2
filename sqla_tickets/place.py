"""One server as its tables see it: how they are numbered there, and how statements are sent."""

from __future__ import annotations

from typing import NamedTuple

from sqlalchemy import ClauseElement, Dialect
from sqlalchemy.engine.interfaces import DBAPICursor

from .compiled import Compiled

__all__ = ["Place"]


class Place(NamedTuple):
    """Where a sequence's table stands.

    Attributes:
        server: its name, for messages.
        dialect: what it speaks.
        stride: how many numbers apart two tickets of it are.
        offset: its residue class.
    """

    server: str
    dialect: Dialect
    stride: int
    offset: int

    def send(self, cursor: DBAPICursor, element: ClauseElement, **values: int | str) -> None:
        """Have a statement executed there.

        Args:
            cursor: of a connection that leads there.
            element: the statement.
            values: of its parameters.

        Raises:
            Exception: the driver's.
        """
        statement = Compiled(element, self.dialect)
        cursor.execute(statement.text, statement.parameters(**values))
