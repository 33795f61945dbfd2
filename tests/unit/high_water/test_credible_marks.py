"""Which high-water marks can be true."""

from __future__ import annotations

import pytest

from sqla_tickets.high_water.credible import FAR_TICKETS, Shown, is_credible

END = 2**63 - 1


class Server:
    """The least that `PeerServer` asks for."""

    returns = 0


@pytest.mark.parametrize(
    ("number", "own", "shown", "expected"),
    [
        (2 * FAR_TICKETS, 0, [0], True),
        (2 * FAR_TICKETS + 1, 0, [0], False),
        (2 * FAR_TICKETS + 1, 1, [0], True),
        (10**15 + 2 * FAR_TICKETS, 0, [10**15, 3], True),
        (10**15 + 2 * FAR_TICKETS + 1, 0, [10**15, 3], False),
        (10**18, 0, [None], True),
        (END, 0, [None], False),
        (END, 0, [END], False),
        (2**62, 0, [END, END - 1, 5], False),
        (END, END, [5], True),
        (END + 1, END, [END - 2], False),
        (END - 2, 0, [END - 2], True),
    ],
)
def test_credible_marks(number: int, own: int, shown: list[int | None], expected: bool) -> None:
    one, other = Server(), Server()

    def judge(peer: Server, others: list[int]) -> bool:
        of_all: Shown = {one: shown, other: [0]}
        return is_credible(number, 2, own=own, peer=peer, shown=of_all, others=others)

    assert judge(one, []) is expected
    assert judge(one, [number - 2]) is (number <= END)
    if None in shown:  # the peer of this one shows its table
        assert not judge(other, [])
