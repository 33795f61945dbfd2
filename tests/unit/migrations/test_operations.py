"""Operations can be reversed, and their reversals."""

from __future__ import annotations

import pytest

from alembic_ext.base import TicketTableOp
from alembic_ext.operations import (
    ConvertTicketTableOp,
    CreateTicketTableOp,
    DropTicketTableOp,
    MoveTicketTableOp,
    NextTicketsOp,
    RaiseTicketTableOp,
    RenameTicketTableOp,
)


@pytest.mark.parametrize("function", ["create", "raise", "convert", "move", "drop", "rename"])
def test_reverse_of_reverse_is_the_same(function: str) -> None:
    made: dict[str, TicketTableOp] = {
        "create": CreateTicketTableOp("photos", start=7, layout="counter", pool="p"),
        "raise": RaiseTicketTableOp("photos", above=7),
        "convert": ConvertTicketTableOp("photos", layout="counter"),
        "move": MoveTicketTableOp("photos", to="media", pool="p"),
        "drop": DropTicketTableOp("photos", pool="p"),
        "rename": RenameTicketTableOp("photos", "pictures", pool="p"),
    }
    before = made[function]
    after = before.reverse().reverse()
    assert type(after) is type(before)
    assert after.to_diff_tuple() == before.to_diff_tuple()
    undone = "created_by"
    same = {k: v for k, v in vars(before).items() if k != undone}
    assert {k: v for k, v in vars(after).items() if k != undone} == same


def test_tickets_drawn_cannot_be_taken_back() -> None:
    with pytest.raises(NotImplementedError):
        NextTicketsOp("photos", 3).reverse()
