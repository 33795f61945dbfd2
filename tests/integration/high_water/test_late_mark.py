"""A peer that tells its mark while a draw without it is under way: none of its tickets are handed out."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from sqlalchemy import URL

from sqla_tickets import TicketPool, TicketSequence
from sqla_tickets.connect.cursor import DrawCursor
from sqla_tickets.high_water import service
from sqla_tickets.tables.layouts import CounterLayout
from tests.support.draws import OpenPool, draw_from, run, until
from tests.support.timing import set_timing

#: Longer than any loaded machine takes, in seconds.
FOR_EVER = 60.0


@pytest.mark.ticket_servers("sqlite")
@pytest.mark.usefixtures("in_threads")
@pytest.mark.parametrize("block", [1, 100])
def test_mark_told_during_a_draw_without_it(
    ticket_urls: list[URL], open_pool: OpenPool, monkeypatch: pytest.MonkeyPatch, block: int
) -> None:
    """A draw waits for a second for the mark, and then for the table's lock, say, when the mark comes."""
    with TicketPool(ticket_urls) as before:
        before.create_table("photos")
        issued = [ticket for offset in (1, 2) for ticket in draw_from(before, offset, 20)]
    run(ticket_urls[0], "UPDATE photos SET id = 1")

    monkeypatch.setattr(service._wait_until, "__defaults__", (0.05,))
    set_timing(monkeypatch, service, patience_seconds=0.05)
    pool = open_pool(ticket_urls)
    restored, peer = pool.servers
    table, may_answer = restored.table("photos"), threading.Event()
    use, draw = peer.use, CounterLayout.draw

    def answer_late(work: Callable[..., None]) -> None:
        assert may_answer.wait(FOR_EVER)
        use(work)

    def answer_later(
        layout: CounterLayout, cursor: DrawCursor, n: int, *, has_waited: bool = False
    ) -> list[range]:
        blocks = draw(layout, cursor, n, has_waited=has_waited)
        if layout is table.layout:
            may_answer.set()
            until(lambda: table.largest_mark > 0)
        return blocks

    monkeypatch.setattr(peer, "use", answer_late)
    monkeypatch.setattr(CounterLayout, "draw", answer_later)
    photos = TicketSequence("photos", block=block)
    assert not {*issued} & {pool.next_id(photos) for _ in range(3)}
    assert may_answer.is_set()
