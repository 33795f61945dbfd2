"""What the DBAPI modules and the models send each other: plain, immutable data."""

from __future__ import annotations

from typing import NamedTuple

from tests.simulation.models.expressions import Parameters, Values
from tests.simulation.runtime import ServerError

__all__ = ["Answer", "Login", "Query", "Result"]


class Login(NamedTuple):
    """What a client says when it connects.

    Attributes:
        user: who it is; ``root`` and ``postgres`` are administrators.
        database: which it uses; None for none.
        found_rows: whether an UPDATE reports the rows that it has found, not those that it has changed.
        multi_statements: whether one packet may hold several statements.
        autocommit: whether each statement is a transaction; None for the server's own way.
    """

    user: str = "tickets"
    database: str | None = None
    found_rows: bool = False
    multi_statements: bool = False
    autocommit: bool | None = None


class Query(NamedTuple):
    """A statement, or several, with the values of its parameters."""

    text: str
    parameters: Parameters = ()


class Result(NamedTuple):
    """The answer to one statement.

    Attributes:
        rows: that it returns; None where it returns none, which is not the same as no row.
        columns: their names.
        affected: how many rows it has changed, or returned.
        insert_id: the number that it has generated; 0 for none. On MySQL it is the one of the OK packet.
    """

    rows: tuple[Values, ...] | None = None
    columns: tuple[str, ...] = ()
    affected: int = 0
    insert_id: int = 0


#: The results of the statements of one packet. After an error nothing more is done.
Answer = tuple[Result | ServerError, ...]
