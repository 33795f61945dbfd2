"""A ticket table that is to be created: `NewTable`, and the numbers and names that follow from its stride."""

from __future__ import annotations

import re

from ..arguments import name_of_sequence, whole_number
from ..dialects import STUB, LayoutName, Statement, TableShape, TicketDialect
from ..errors import TicketArgumentError
from .metadata import Path, TableMetadata


def stub_of(stride: int) -> str:
    """The name of the stub column of a table whose stride has changed.

    A client with the old stride names a column that is gone. So each of its statements fails, whatever its
    connections, privileges and SQL modes.
    """
    return f"{STUB}_{stride}"


def largest_ticket(bits: int) -> int:
    """The largest ticket of a table with 32 bits, unsigned, or 64 bits, signed.

    Raises:
        TicketArgumentError: no ticket table has that number of bits.
    """
    if type(bits) is not int or bits not in (32, 64):
        raise TicketArgumentError(f"bits={bits!r}: expected 32 or 64")
    return 2**32 - 1 if bits == 32 else 2**63 - 1


def seed(start: int, stride: int, offset: int) -> int:
    """The number that a new table's row begins with: no ticket after it is below ``start``.

    It is the server's last number below ``start``, or else its first number, which is then never issued.
    """
    below = start - 1 - (start - 1 - offset) % stride
    return below if below > 0 else offset


class NewTable:
    """The ticket table of one sequence that is to be created on one server.

    Args:
        name: the name of the sequence and of its table.
        layout: ``"replace"`` or ``"counter"``; None for the server's preferred one.
        stride: how many numbers apart two tickets of this server are.
        offset: the residue class of this server, 1 to ``stride``.
        start: no ticket is below it.
        bits: 64, or 32 for tickets up to 4,294,967,295.
        engine: the storage engine, on MySQL and MariaDB.
        stub: the name of the stub column: ``stub``, or `stub_of` a stride.
        path: the sequence's former pools and names.

    Raises:
        TicketArgumentError: a number or a name that no table can have.
    """

    def __init__(
        self,
        name: str,
        *,
        layout: LayoutName | None = None,
        stride: int,
        offset: int,
        start: int = 1,
        bits: int = 64,
        engine: str = "InnoDB",
        stub: str = STUB,
        path: Path = (),
    ) -> None:
        self.start = whole_number(
            f"the ticket table {name!r}: start", start, 1, largest_ticket(bits)
        )
        if not re.fullmatch(r"\w+", str(engine)):
            raise TicketArgumentError(f"engine={engine!r}: expected the name of a storage engine")
        if layout not in (None, "replace", "counter"):
            raise TicketArgumentError(f"layout={layout!r}: expected 'replace' or 'counter'")
        self.name = name_of_sequence(name)
        self.layout: LayoutName | None = layout
        self.stride, self.offset = stride, offset
        self.bits, self.engine, self.stub, self.path = bits, engine, stub, path

    @property
    def seed(self) -> int:
        """The number that its row begins with."""
        return seed(self.start, self.stride, self.offset)

    def layout_on(self, dialect: TicketDialect) -> LayoutName:
        """The layout that the table gets on a server of this dialect."""
        return self.layout or dialect.layouts[0]

    def shape(self, dialect: TicketDialect) -> TableShape:
        """The table's description for the statements of a dialect."""
        layout = self.layout_on(dialect)
        metadata = TableMetadata(layout, self.stride, self.offset, self.bits, self.path)
        return TableShape(
            self.name,
            layout,
            str(metadata),
            self.seed,
            self.start,
            self.bits,
            largest_ticket(self.bits),
            self.engine,
            self.stub,
        )

    def creation(self, dialect: TicketDialect) -> list[Statement]:
        """The statements that create it; see `TicketDialect.create_table`."""
        return dialect.create_table(self.shape(dialect))
