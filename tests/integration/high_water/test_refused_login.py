"""A peer that refuses the user has told nothing of its marks: it is asked again as soon as it answers."""

from __future__ import annotations

import pytest

from sqla_tickets import TicketPool
from sqla_tickets.high_water.store import HighWaterStore
from tests.support.servers import ServerFixtures


@pytest.mark.parametrize("kind", ["mariadb", "mysql", "postgresql"])
def test_a_peer_that_refuses_the_user_may_keep_marks(servers: ServerFixtures, kind: str) -> None:
    urls = [servers.fresh_database(servers.shared(kind, number)) for number in (0, 1)]
    with TicketPool(urls) as pool:
        pool.create_table("photos")
        pool.next_ids("photos", 10)
    with TicketPool([urls[0], urls[1].set(password="another")]) as pool:
        refused = pool.servers[1]
        store = HighWaterStore(refused)
        assert store.kept("photos") is None, "what it keeps is unknown"
        assert store.read(["photos"]) is None
        refused.breaker.record_success()
        assert store.may_be_asked()
