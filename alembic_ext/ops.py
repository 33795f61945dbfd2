"""The operations on ticket tables as data: what a migration file says, and how it is taken back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from alembic.operations.base import Operations
from alembic.operations.ops import MigrateOperation

__all__ = [
    "ConvertTicketTableOp",
    "CreateTicketTableOp",
    "DropTicketTableOp",
    "MoveTicketTableOp",
    "NextTicketsOp",
    "RaiseTicketTableOp",
    "RenameTicketTableOp",
    "StartAbove",
    "TicketOp",
]

LayoutName = Literal["replace", "counter"]
#: A table and a column, or these and the URLs of all databases that have the table.
StartAbove = tuple[str, str] | tuple[str, str, Sequence[str]]


class TicketOp(MigrateOperation):
    """An operation on the ticket table of one sequence.

    Args:
        name: of the sequence.
        pool: the name of its pool; None for ``"default"``, or the only one.
    """

    def __init__(self, name: str, *, pool: str | None = None) -> None:
        self.name, self.pool = name, pool


@Operations.register_operation("create_ticket_table")
class CreateTicketTableOp(TicketOp):
    """Create the table of a sequence on every ticket server of its pool."""

    def __init__(
        self,
        name: str,
        *,
        start: int | None = None,
        start_above: StartAbove | None = None,
        layout: LayoutName | None = None,
        bits: int = 64,
        engine: str | None = None,
        pool: str | None = None,
    ) -> None:
        super().__init__(name, pool=pool)
        self.start, self.start_above = start, start_above
        self.layout: LayoutName | None = layout
        self.bits, self.engine = bits, engine

    @classmethod
    def create_ticket_table(
        cls,
        operations: Operations,
        name: str,
        *,
        start: int | None = None,
        start_above: StartAbove | None = None,
        layout: LayoutName | None = None,
        bits: int = 64,
        engine: str | None = None,
        pool: str | None = None,
    ) -> None:
        """Create the table of a sequence on every ticket server; those that are there are verified.

        Args:
            operations: the context of the migration.
            name: of the sequence.
            start: no ticket is below it.
            start_above: ``("photos", "id")``: every ticket is above the largest id of that column in
                the migration's own database; with a list of URLs as a third, in those databases.
            layout: ``"replace"`` or ``"counter"``; None for the server's own.
            bits: 64, or 32 for tickets up to 4,294,967,295.
            engine: the storage engine, on MySQL and MariaDB; None for InnoDB.
            pool: the name of the pool; None for ``"default"``, or the only one.
        """
        operations.invoke(
            cls(
                name,
                start=start,
                start_above=start_above,
                layout=layout,
                bits=bits,
                engine=engine,
                pool=pool,
            )
        )

    def reverse(self) -> DropTicketTableOp:
        """Drop the table, which happens only where somebody permits it."""
        return DropTicketTableOp(self.name, pool=self.pool, created_by=self)

    def to_diff_tuple(self) -> tuple[str, str]:
        """What ``alembic check`` shows."""
        return ("add_ticket_table", self.name)


@Operations.register_operation("drop_ticket_table")
class DropTicketTableOp(TicketOp):
    """Put a tombstone, with the high water on it, in the place of a ticket table."""

    def __init__(
        self,
        name: str,
        *,
        force: bool = False,
        pool: str | None = None,
        created_by: CreateTicketTableOp | None = None,
    ) -> None:
        super().__init__(name, pool=pool)
        self.force, self._created_by = force, created_by

    @classmethod
    def drop_ticket_table(
        cls, operations: Operations, name: str, *, force: bool = False, pool: str | None = None
    ) -> None:
        """Drop the table of a sequence, and keep its high water; without ``force`` do nothing.

        Args:
            operations: the context of the migration.
            name: of the sequence.
            force: drop it, although other shards may draw from it; ``-x drop_tickets=1`` says the
                same on the command line.
            pool: the name of the pool; None for ``"default"``, or the only one.
        """
        operations.invoke(cls(name, force=force, pool=pool))

    def reverse(self) -> CreateTicketTableOp:
        """Create it again, above the high water that its tombstone shows."""
        return self._created_by or CreateTicketTableOp(self.name, pool=self.pool)

    def to_diff_tuple(self) -> tuple[str, str]:
        """What ``alembic check`` shows."""
        return ("remove_ticket_table", self.name)


@Operations.register_operation("rename_ticket_table")
class RenameTicketTableOp(TicketOp):
    """Give a sequence another name."""

    def __init__(self, name: str, new_name: str, *, pool: str | None = None) -> None:
        super().__init__(name, pool=pool)
        self.new_name = new_name

    @classmethod
    def rename_ticket_table(
        cls, operations: Operations, name: str, new_name: str, *, pool: str | None = None
    ) -> None:
        """Give a sequence another name; clients that use the old one are led to the new one.

        Args:
            operations: the context of the migration.
            name: of the sequence.
            new_name: the name that it gets.
            pool: the name of the pool; None for ``"default"``, or the only one.
        """
        operations.invoke(cls(name, new_name, pool=pool))

    def reverse(self) -> RenameTicketTableOp:
        """Give it its old name."""
        return RenameTicketTableOp(self.new_name, self.name, pool=self.pool)

    def to_diff_tuple(self) -> tuple[str, str, str]:
        """What ``alembic check`` shows."""
        return ("rename_ticket_table", self.name, self.new_name)


@Operations.register_operation("raise_ticket_table")
class RaiseTicketTableOp(TicketOp):
    """See that all tickets from now on are above a number."""

    def __init__(self, name: str, *, above: int, pool: str | None = None) -> None:
        super().__init__(name, pool=pool)
        self.above = above

    @classmethod
    def raise_ticket_table(
        cls, operations: Operations, name: str, *, above: int, pool: str | None = None
    ) -> None:
        """See that all tickets from now on are larger than ``above``; nothing is ever lowered.

        Args:
            operations: the context of the migration.
            name: of the sequence.
            above: the largest id that may be in use.
            pool: the name of the pool; None for ``"default"``, or the only one.
        """
        operations.invoke(cls(name, above=above, pool=pool))

    def reverse(self) -> RaiseTicketTableOp:
        """Leave it: the ids in between may have been issued."""
        return self

    def to_diff_tuple(self) -> tuple[str, str, int]:
        """What ``alembic check`` shows."""
        return ("raise_ticket_table", self.name, self.above)


@Operations.register_operation("convert_ticket_table")
class ConvertTicketTableOp(TicketOp):
    """Give a ticket table another layout."""

    def __init__(self, name: str, *, layout: LayoutName, pool: str | None = None) -> None:
        super().__init__(name, pool=pool)
        self.layout: LayoutName = layout

    @classmethod
    def convert_ticket_table(
        cls, operations: Operations, name: str, *, layout: LayoutName, pool: str | None = None
    ) -> None:
        """Give a ticket table another layout, while clients draw from it.

        Args:
            operations: the context of the migration.
            name: of the sequence.
            layout: ``"replace"``, Flickr's table, or ``"counter"``, one row.
            pool: the name of the pool; None for ``"default"``, or the only one.
        """
        operations.invoke(cls(name, layout=layout, pool=pool))

    def reverse(self) -> ConvertTicketTableOp:
        """Give it the other layout."""
        other: LayoutName = "replace" if self.layout == "counter" else "counter"
        return ConvertTicketTableOp(self.name, layout=other, pool=self.pool)

    def to_diff_tuple(self) -> tuple[str, str, str]:
        """What ``alembic check`` shows."""
        return ("convert_ticket_table", self.name, self.layout)


@Operations.register_operation("move_ticket_table")
class MoveTicketTableOp(TicketOp):
    """Move a sequence to the ticket servers of another pool."""

    def __init__(self, name: str, *, to: str, pool: str | None = None) -> None:
        super().__init__(name, pool=pool)
        self.to = to

    @classmethod
    def move_ticket_table(
        cls, operations: Operations, name: str, *, to: str, pool: str | None = None
    ) -> None:
        """Move a sequence to the ticket servers of another pool, while clients draw from it.

        Args:
            operations: the context of the migration.
            name: of the sequence.
            to: the name of the pool that gets it.
            pool: the name of the pool that has it; None for ``"default"``.
        """
        operations.invoke(cls(name, to=to, pool=pool))

    def reverse(self) -> MoveTicketTableOp:
        """Move it back."""
        return MoveTicketTableOp(self.name, to=self.pool or "default", pool=self.to)

    def to_diff_tuple(self) -> tuple[str, str, str]:
        """What ``alembic check`` shows."""
        return ("move_ticket_table", self.name, self.to)


@Operations.register_operation("next_tickets")
class NextTicketsOp(TicketOp):
    """Draw tickets, for the rows of a data migration. It cannot be taken back."""

    def __init__(self, name: str, n: int, *, pool: str | None = None) -> None:
        super().__init__(name, pool=pool)
        self.n = n

    @classmethod
    def next_tickets(
        cls, operations: Operations, name: str, n: int, *, pool: str | None = None
    ) -> list[int]:
        """Draw exactly ``n`` tickets, for the rows that a data migration inserts.

        Args:
            operations: the context of the migration.
            name: of the sequence.
            n: how many.
            pool: the name of the pool; None for ``"default"``, or the only one.
        """
        tickets: list[int] = operations.invoke(cls(name, n, pool=pool))
        return tickets
