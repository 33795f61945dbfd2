"""A draw that comes just when another one has ended to ask the peers is held to what they have told."""

from __future__ import annotations

import pytest

from sqla_tickets import TicketIntegrityError, TicketPool
from sqla_tickets.draw.table_state import TicketTable


class _VerifiedMeanwhile(TicketTable):
    """A table of which another draw learns a mark just when this one asks whether there is one to learn."""

    mark_to_come = 0

    @property
    def has_mark_to_read(self) -> bool:
        self.observe_mark(self.mark_to_come)
        self.missing_marks = {}
        return False


@pytest.mark.ticket_servers("sqlite")
def test_draw_during_verification_is_above_its_mark(
    pool: TicketPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, peer = pool.servers
    server.draw("photos", 1)
    table = server.table("photos")
    monkeypatch.setattr(table, "__class__", _VerifiedMeanwhile)
    monkeypatch.setattr(table, "mark_to_come", 1001, raising=False)
    table.begin_to_read_marks([peer], server.generation)
    with pytest.raises(TicketIntegrityError, match="1001"):
        server.draw("photos", 1)
