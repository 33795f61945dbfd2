"""Arguments of callers, and their checks: seconds, whole numbers, names of sequences."""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import lru_cache
from typing import Final, TypeAlias, cast

from sqlalchemy import MetaData

from .errors import TicketArgumentError

#: The least and the most tickets that one draw takes when fewer are needed.
BlockBounds: TypeAlias = "tuple[int, int]"
#: In seconds: the longest time-out that PyMySQL takes.
YEAR_SECONDS: Final = 365 * 86400
#: The table in which a ticket server keeps the high-water marks of its peers, and that of node numbers.
MARKS: Final = "sqla_tickets_marks"
NODES: Final = "ticket_nodes"
_KEPT: Final = {MARKS: "marks", NODES: "node numbers"}


def seconds(what: str, value: object, most: float = YEAR_SECONDS) -> float:
    """A number of seconds above 0.

    Args:
        what: the argument, and whose it is, for the message.
        value: the value that was passed.
        most: the largest number of seconds; ``math.inf`` for no bound.

    Raises:
        TicketArgumentError: it is invalid.
    """
    # which nan is not, either
    if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value <= most:
        return value
    limit = "" if most == math.inf else f", {most} at most"
    raise TicketArgumentError(
        f"{what}={_shown(value)}: expected a number of seconds above 0{limit}"
    )


def whole_number(what: str, value: object, least: int, most: int | None = None) -> int:
    """An integer within bounds; True and 1.0 are invalid.

    Args:
        what: the argument, and whose it is, for the message.
        value: the value that was passed.
        least: the smallest valid number.
        most: the largest valid number; None for no bound.

    Raises:
        TicketArgumentError: it is invalid.
    """
    if isinstance(value, int) and not isinstance(value, bool) and _is_within(value, least, most):
        return value
    bounds = f", {least} or more" if most is None else f" from {least} to {most}"
    raise TicketArgumentError(f"{what}={_shown(value)}: expected a whole number{bounds}")


def _is_within(value: int, least: int, most: int | None) -> bool:
    return least <= value and (most is None or value <= most)


def name_of_pool(value: object) -> str:
    """The name of a pool.

    Raises:
        TicketArgumentError: it is invalid.
    """
    if isinstance(value, str) and value.strip():
        return value
    raise TicketArgumentError(
        f"{_shown(value)} is not a valid name of a pool: expected a string that is not blank"
    )


def name_of_sequence(value: object) -> str:
    """The name of a sequence, valid as a table's name on every kind of server.

    Raises:
        TicketArgumentError: it is invalid.
    """
    if isinstance(value, str):
        wrong = _what_is_wrong(value)
        if wrong is None:
            return value
    else:
        wrong = "expected a string"
    raise TicketArgumentError(f"{_shown(value)} is not a valid sequence name: {wrong}")


@lru_cache(maxsize=1024)
def _what_is_wrong(name: str) -> str | None:
    if not name.strip():
        return "expected a string that is not blank"
    if "\0" in name or "%(" in name:  # SQLAlchemy would take a part for a parameter, quoted or not
        return "a name cannot contain a zero byte, or '%('"
    try:
        name.encode()
    except UnicodeEncodeError:
        return "a name cannot contain half a character (a lone surrogate)"
    kept = _KEPT.get(name.lower())
    return kept and f"ticket servers use the table of that name for their {kept}"


def names_of_sequences(values: object) -> set[str]:
    """The names of several sequences.

    Raises:
        TicketArgumentError: one of them is invalid, or there is a single string.
    """
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise TicketArgumentError(f"expected a list of sequence names, found {_shown(values)}")
    return {name_of_sequence(value) for value in cast("Iterable[object]", values)}


def metadata_of(pool: str, value: object) -> MetaData:
    """Check the MetaData that a pool is to serve.

    Raises:
        TicketArgumentError: it is invalid.
    """
    if isinstance(value, MetaData):
        return value
    raise TicketArgumentError(
        f"the pool {pool!r} can attach only a MetaData, such as Base.metadata; found {_shown(value)}"
    )


def metadatas_of(pool: str, values: tuple[object, ...]) -> list[MetaData]:
    """Check the MetaDatas that a pool is to serve: one or more.

    Raises:
        TicketArgumentError: there are none, or one is invalid.
    """
    if not values:
        raise TicketArgumentError(
            f"the pool {pool!r} needs at least one MetaData to attach: name one, such as Base.metadata"
        )
    return [metadata_of(pool, value) for value in values]


def _shown(value: object) -> str:
    """A value for a message, shortened. Python refuses to print integers with too many digits."""
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001  # its class may raise anything
        text = f"a value of {type(value).__name__}"
    return text if len(text) <= 100 else f"{text[:97]}..."
