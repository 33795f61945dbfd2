"""Ids that need no server, set before the flush: UUIDs, and other values made in Python.

SQLAlchemy calls its own defaults during a flush, after the shard was chosen. An id that is set earlier can choose the
shard.
"""

from __future__ import annotations

import sys
import uuid
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from itertools import repeat, starmap
from typing import TYPE_CHECKING, Any

from sqlalchemy import Column, Table, Uuid

from ..concurrency import OwnerMark, owner_mark, threading
from ..errors import TicketArgumentError
from . import flush
from .default import IdDefault

if TYPE_CHECKING:
    from typing_extensions import Self


class PreflushDefault(IdDefault):
    """A function whose values are set before the flush: ``Column(String(26), PreflushDefault(new_ulid))``.

    Args:
        make: called once for each row, without arguments. To let the table be pickled, it must be a function of a
            module.

    Raises:
        TicketArgumentError: it cannot be called.
    """

    def __init__(self, make: Callable[[], object]) -> None:
        if not callable(make):
            raise TicketArgumentError(f"PreflushDefault({make!r}): expected a function")
        self.make = make
        flush.install()

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        flush.install()  # the process may have declared none itself

    def __repr__(self) -> str:
        return f"PreflushDefault({getattr(self.make, '__name__', self.make)})"

    def _copy(self) -> Self:
        return type(self)(self.make)

    def _check_column(self, column: Column[Any], table: Table) -> None:
        """Any column may hold what the function makes."""

    def _allocation_key(self, column: Column[Any]) -> Hashable:
        """The column itself: columns never share a draw."""
        return self, column

    def _source_for(self, column: Column[Any]) -> None:
        """No server is asked."""

    def _draw(
        self,
        source: Any,
        columns: Sequence[Column[Any]],
        n: int,
        *,
        alike: Iterable[IdDefault] = (),
        objects: Sequence[object] = (),
    ) -> Iterator[object]:
        """``n`` values."""
        return self._as_in(columns[0], starmap(self.make, repeat((), n)))

    def _as_in(self, column: Column[Any], made: Iterator[object]) -> Iterator[object]:
        """Convert values to the column's type."""
        return made


class _Seeded(threading.local):
    """The mark of the process in which this thread's random numbers of ``uuid_utils`` were seeded.

    A fork made by C inherits these numbers, and runs no hook of Python's that seeds them.
    """

    mark: OwnerMark = b"\0"


_seeded = _Seeded()


class UUIDSequence(PreflushDefault):
    """UUIDs of version 7, which sort by time: ``Column(Uuid, UUIDSequence(), primary_key=True)``.

    They come from ``uuid.uuid7`` where Python has it (3.14), else from the package ``uuid-utils``
    (``pip install sqla-tickets[uuid7]``).

    Raises:
        TicketArgumentError: neither is installed. On attachment to a column: its type is not ``Uuid``.
    """

    def __init__(self) -> None:
        super().__init__(_uuid7())

    def __repr__(self) -> str:
        return "UUIDSequence()"

    def _copy(self) -> Self:
        return type(self)()

    def _check_column(self, column: Column[Any], table: Table) -> None:
        """Check that the column holds UUIDs.

        Raises:
            TicketArgumentError: it does not.
        """
        if not isinstance(column.type, Uuid):
            raise TicketArgumentError(
                f"{table.name}.{column.name} has the type {column.type!r}, which cannot hold the UUIDs"
                f" of {self!r}: use Uuid"
            )

    def _draw(self, *args: Any, **kw: Any) -> Iterator[object]:
        if sys.version_info < (3, 14) and not _seeded.mark[0]:
            from uuid_utils import reseed_rng  # noqa: PLC0415  # only where Python has none

            reseed_rng()  # this thread's only
            _seeded.mark = owner_mark()
        return super()._draw(*args, **kw)

    def _as_in(self, column: Column[Any], made: Iterator[object]) -> Iterator[object]:
        return made if getattr(column.type, "as_uuid", True) else map(str, made)


def _uuid7() -> Callable[[], uuid.UUID]:
    if sys.version_info >= (3, 14):
        return uuid.uuid7
    try:
        from uuid_utils.compat import uuid7  # noqa: PLC0415  # only where Python has none
    except ImportError:
        raise TicketArgumentError(
            "UUIDSequence() needs Python 3.14 or the package uuid-utils: pip install sqla-tickets[uuid7]"
        ) from None
    return uuid7
