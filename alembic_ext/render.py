"""How the operations read in a migration file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from alembic.autogenerate.render import renderers

from .ops import (
    ConvertTicketTableOp,
    CreateTicketTableOp,
    DropTicketTableOp,
    MoveTicketTableOp,
    NextTicketsOp,
    RaiseTicketTableOp,
    RenameTicketTableOp,
)

if TYPE_CHECKING:  # Alembic may be in the middle of its own import
    from alembic.autogenerate.api import AutogenContext

__all__: list[str] = []


def _call(context: AutogenContext, function: str, *positional: object, **named: object) -> str:
    """A call of ``op.function``; arguments that are None are left out."""
    context.imports.add(
        "import alembic_ext"
    )  # makes `op` know the operations, whatever is installed
    arguments = [repr(value) for value in positional]
    arguments += [f"{key}={value!r}" for key, value in named.items() if value is not None]
    return f"{context.opts['alembic_module_prefix']}{function}({', '.join(arguments)})"


@renderers.dispatch_for(CreateTicketTableOp)
def _(context: AutogenContext, op: CreateTicketTableOp) -> str:
    return _call(
        context,
        "create_ticket_table",
        op.name,
        start=op.start,
        start_above=op.start_above,
        layout=op.layout,
        bits=op.bits if op.bits != 64 else None,
        engine=op.engine,
        pool=op.pool,
    )


@renderers.dispatch_for(DropTicketTableOp)
def _(context: AutogenContext, op: DropTicketTableOp) -> str:
    return _call(context, "drop_ticket_table", op.name, force=op.force or None, pool=op.pool)


@renderers.dispatch_for(RenameTicketTableOp)
def _(context: AutogenContext, op: RenameTicketTableOp) -> str:
    return _call(context, "rename_ticket_table", op.name, op.new_name, pool=op.pool)


@renderers.dispatch_for(RaiseTicketTableOp)
def _(context: AutogenContext, op: RaiseTicketTableOp) -> str:
    return _call(context, "raise_ticket_table", op.name, above=op.above, pool=op.pool)


@renderers.dispatch_for(ConvertTicketTableOp)
def _(context: AutogenContext, op: ConvertTicketTableOp) -> str:
    return _call(context, "convert_ticket_table", op.name, layout=op.layout, pool=op.pool)


@renderers.dispatch_for(MoveTicketTableOp)
def _(context: AutogenContext, op: MoveTicketTableOp) -> str:
    return _call(context, "move_ticket_table", op.name, to=op.to, pool=op.pool)


@renderers.dispatch_for(NextTicketsOp)
def _(context: AutogenContext, op: NextTicketsOp) -> str:
    return _call(context, "next_tickets", op.name, op.n, pool=op.pool)
