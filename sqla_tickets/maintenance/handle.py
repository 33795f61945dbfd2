# What is protected is hidden from users, not from this package.
# pyright: reportPrivateUsage=false
"""One sequence's table on one ticket server, as maintenance inspects and changes it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Concatenate, NamedTuple, ParamSpec, Protocol, TypeVar

from ..dialects import STUB, LayoutName
from ..draw.server import TicketServer
from ..errors import TicketTableMissing
from ..high_water.service import HighWaterService
from ..tables.context import StatementContext
from ..tables.inspection import ActiveTable
from ..tables.metadata import Path, Tombstone, TombstoneKind
from ..tables.new_table import NewTable
from . import tombstones
from .tombstones import Destination, FoundTable

T = TypeVar("T")
P = ParamSpec("P")


class Servers(Protocol):
    """The ticket servers that share the ids of some sequences, as far as maintenance uses them.

    A `TicketPool` is one.
    """

    @property
    def name(self) -> str:
        """Their name in tombstones."""
        ...

    @property
    def servers(self) -> Sequence[TicketServer]:
        """In the order of their offsets."""
        ...

    @property
    def stride(self) -> int:
        """How many numbers apart two tickets of one server are."""
        ...

    @property
    def _marks(self) -> HighWaterService:
        """The service of high-water marks."""
        ...


class TableHandle(NamedTuple):
    """One sequence's table on one ticket server.

    Every method raises a `TicketError` when the server fails.

    Attributes:
        server: the ticket server.
        pool: the name of its pool.
        sequence: its name there.
    """

    server: TicketServer
    pool: str
    sequence: str

    def __str__(self) -> str:
        return f"{self.sequence!r} on {self.server}"

    def run(
        self,
        work: Callable[Concatenate[StatementContext, str, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Do ``work``, with the sequence's name, over a connection in autocommit."""
        name = self.sequence
        return self.server.do(name, work, name, *args, **kwargs)

    @property
    def offset(self) -> int:
        """The server's residue class."""
        return self.server.offset

    @property
    def stride(self) -> int:
        """How many numbers apart two tickets of the server are."""
        return self.server.context.stride

    # -- what is there

    def inspect(self) -> FoundTable:
        """The object that the server has under that name."""
        return self.run(tombstones.inspect)

    def active(self) -> ActiveTable:
        """The table, which has a number.

        Raises:
            TicketTableMissing: there is none that can be drawn from.
        """
        state = self.inspect()
        if isinstance(state, ActiveTable) and state.number is not None:
            return state
        raise TicketTableMissing(
            f"{self.server} has no ticket table {self.sequence!r} that can be drawn from:"
            " `sqla-tickets doctor` says why"
        )

    # -- what becomes of it

    def place_tombstone(self, to: Destination, seen: FoundTable) -> Tombstone:
        """Put a tombstone where nothing is, or in the place of the tombstone ``seen``."""
        return self.server.make(self.sequence, tombstones.place_tombstone, self.sequence, to, seen)

    def close(
        self, kind: TombstoneKind, pool: str, sequence: str, seen: FoundTable = None
    ) -> Tombstone:
        """Put a tombstone in the place of the table, or of the tombstone ``seen``; it leads to ``sequence``."""
        return self.run(tombstones.close, Destination(kind, pool, sequence), seen)

    def open(self, element: NewTable, expected: Tombstone) -> None:
        """Make a ticket table of the tombstone ``expected``."""
        self.server.make(self.sequence, tombstones.open_table, element, expected)

    def raise_above(self, above: int) -> None:
        """Raise the table: no ticket from now on is ``above`` or below."""
        self.run(tombstones.raise_above, above)

    def element(
        self,
        start: int,
        *,
        layout: LayoutName | None = None,
        bits: int = 64,
        engine: str = "InnoDB",
        stub: str = STUB,
        path: Path = (),
    ) -> NewTable:
        """The table to be made.

        Args:
            start: no ticket is below it.
            layout: None for the server's own.
            bits: 64 or 32.
            engine: the storage engine, on MySQL and MariaDB.
            stub: the name of the stub column.
            path: where the sequence has been.
        """
        return NewTable(
            self.sequence,
            layout=layout,
            stride=self.stride,
            offset=self.offset,
            start=start,
            bits=bits,
            engine=engine,
            stub=stub,
            path=path,
        )


def handles(
    pool: Servers, sequence: str, servers: Iterable[TicketServer] | None = None
) -> list[TableHandle]:
    """The sequence's table on each server of the pool, or on some of them."""
    chosen = pool.servers if servers is None else servers
    return [TableHandle(server, pool.name, sequence) for server in chosen]
