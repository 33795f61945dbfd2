# What is protected is hidden from users, not from this package.
# pyright: reportPrivateUsage=false
"""One sequence's table on one ticket server, for maintenance."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Concatenate, Final, NamedTuple, ParamSpec, Protocol, TypeVar

from ..dialects import STUB, LayoutName
from ..draw.server import TicketServer
from ..errors import TicketTableError, TicketTableMissing
from ..high_water.service import HighWaterService
from ..tables.context import StatementContext
from ..tables.inspection import ActiveTable
from ..tables.metadata import Path, Tombstone, TombstoneKind
from ..tables.new_table import NewTable, largest_ticket
from . import tombstones
from .tombstones import Destination, FoundTable

#: How many numbers stay unused above a high water that may have been read too early.
MARGIN_NUMBERS: Final = 10_000
T = TypeVar("T")
P = ParamSpec("P")


class Servers(Protocol):
    """The ticket servers that share the ids of some sequences: what maintenance needs of a `TicketPool`.

    A `TicketPool` has all of it.
    """

    @property
    def name(self) -> str:
        """The pool's name in tombstones."""
        ...

    @property
    def servers(self) -> Sequence[TicketServer]:
        """The servers in the order of their offsets."""
        ...

    @property
    def stride(self) -> int:
        """The difference between two consecutive tickets of one server."""
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

    # -- inspection

    def inspect(self) -> FoundTable:
        """What the server has under that name: a table, a tombstone, or nothing."""
        return self.run(tombstones.inspect)

    def active(self) -> ActiveTable:
        """The table that can be drawn from, with its number.

        Raises:
            TicketTableMissing: there is no such table.
        """
        state = self.inspect()
        if isinstance(state, ActiveTable) and state.number is not None:
            return state
        raise TicketTableMissing(
            f"{self.server} has no ticket table {self.sequence!r} that can be drawn from: run `sqla-tickets doctor` "
            "to see why"
        )

    def closed_error(self, tombstone: Tombstone) -> TicketTableError:
        """The error of an operation that finds a tombstone in the place of the table."""
        where = f"{tombstone.sequence!r} of the pool {tombstone.pool!r}"
        what, advice = {
            "moved": (
                f"has gone to {where}",
                "start from there or, if that migration was interrupted, ",
            ),
            "opening": (f"is the target of a move of {where} that has not ended", ""),
            "converting": ("is being converted to another layout", ""),
            "dropped": ("was dropped", "create it again or, if that migration was interrupted, "),
            "retired": ("is retired", "remove that server from the configuration, and "),
        }[tombstone.kind]
        return TicketTableError(f"the ticket table {self} {what}: {advice}run that migration again")

    def layout_for(self, layout: LayoutName | None) -> LayoutName | None:
        """The layout, if a table on this server can have it."""
        return layout if layout in self.server.context.dialect.layouts else None

    # -- changes

    def place_tombstone(self, to: Destination, seen: FoundTable, high_water: int = 0) -> Tombstone:
        """Create a tombstone where nothing is, or replace the tombstone ``seen``."""
        name, work = self.sequence, tombstones.place_tombstone
        return self.server.make(name, work, name, to, seen, high_water)

    def close(
        self, kind: TombstoneKind, pool: str, sequence: str, seen: FoundTable = None
    ) -> Tombstone:
        """Replace the table, or the tombstone ``seen``, with a tombstone that leads to ``sequence``."""
        return self.run(tombstones.close, Destination(kind, pool, sequence), seen)

    def open(self, element: NewTable, expected: Tombstone) -> None:
        """Replace the tombstone ``expected`` with a ticket table."""
        self.server.make(self.sequence, tombstones.open_table, element, expected)

    def raise_above(self, above: int, *, is_joining: bool = False) -> int:
        """Raise the table: every ticket from now on is larger than ``above``; returns its number before."""
        return self.run(tombstones.raise_above, above, is_joining=is_joining)

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
        """The table to create.

        Args:
            start: no ticket is below it.
            layout: its layout; None for the server's default.
            bits: 64 or 32.
            engine: the storage engine, on MySQL and MariaDB.
            stub: the name of the stub column.
            path: the sequence's former pools and names.
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


def bits_for(tombstone: Tombstone, high_water: int) -> int:
    """The bits of the new table: 32 if the old one had 32 and has room left; else 64."""
    return 32 if tombstone.bits == 32 and high_water + MARGIN_NUMBERS < largest_ticket(32) else 64
