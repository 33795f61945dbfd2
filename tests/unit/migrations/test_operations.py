"""Operations can be reversed, and their reversals."""

from __future__ import annotations

import alembic.op
import pytest
from sqlalchemy import create_engine

import alembic_ext
from alembic_ext import op
from alembic_ext.base import TicketTableOp
from alembic_ext.operations import (
    ConvertTicketTableOp,
    CreateTicketTableOp,
    DropTicketTableOp,
    MoveTicketTableOp,
    NextTicketsOp,
    RaiseTicketTableOp,
    RenameTicketTableOp,
    _is_same_database,
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


@pytest.mark.parametrize(
    ("other", "same"),
    [
        ("mysql+pymysql://app:other@shard1:3306/app?unix_socket=/one", True),
        ("mysql+pymysql://app@shard1/app?unix_socket=/two", False),
        ("mysql+pymysql://root@shard1/app?unix_socket=/one", False),
        ("mysql+pymysql://app@shard2/app?unix_socket=/one", False),
    ],
)
def test_same_database_has_user_and_options_in_common(other: str, same: bool) -> None:
    """They may choose a server, or a schema: a shard that is skipped by mistake repeats ids."""
    own = create_engine("mysql+pymysql://app@shard1/app?unix_socket=/one")
    assert _is_same_database(own, create_engine(other)) is same


def test_tickets_drawn_cannot_be_taken_back() -> None:
    with pytest.raises(NotImplementedError):
        NextTicketsOp("photos", 3).reverse()


def test_op_of_this_package_is_that_of_alembic() -> None:
    """Whatever else adds operations is there as well; the types of all of ours are in the stub."""
    assert dir(op) == dir(alembic.op)
    assert set(alembic_ext.__all__) < set(dir(op))
    assert all(getattr(op, name) is getattr(alembic.op, name) for name in alembic_ext.__all__)
