"""Eight processes and Flickr's own clients on one sequence: no ticket comes twice.

``TICKETS_SOAK_SECONDS`` says how long each of these tests draws.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from sqlalchemy import URL

from sqla_tickets import TicketPool
from tests.support.draws import assert_unique, fresh_pair, residues, setting
from tests.support.servers import MySQLLike, ServerFixtures
from tests.support.soak import Soak, soak

pytestmark = pytest.mark.soak
SECONDS = float(os.environ.get("TICKETS_SOAK_SECONDS", "5"))
# A deadlock and a lock wait are what any client of Flickr's table has to live with.
ORDINARY = {"1213", "1205"}
Shop = tuple[list[MySQLLike], list[URL]]


@pytest.fixture(params=["mariadb", "mysql"])
def flickrs_shop(request: pytest.FixtureRequest, servers: ServerFixtures) -> Iterator[Shop]:
    """Two servers that number odd and even by themselves, as Flickr's do."""
    first, second, urls = fresh_pair(servers, request.param)
    with ExitStack() as settings:
        for offset, server in enumerate((first, second), 1):
            pair = {"auto_increment_increment": 2, "auto_increment_offset": offset}
            settings.enter_context(setting(server, **pair))
        yield [first, second], urls


def soaked(shop: Shop, capsys: pytest.CaptureFixture[str], about: str, *, clients: bool) -> Soak:
    machines, urls = shop
    seed = random.randrange(2**32)
    result = soak(urls, machines if clients else [], SECONDS, seed=seed)
    with capsys.disabled():
        print(f"\n{machines[0].kind} {about}, {SECONDS:g} s, seed {seed}: {result}")
    assert_unique(result.tickets)
    assert residues(result.tickets) == {0, 1}
    return result


@pytest.mark.parametrize("engine", ["InnoDB", "MyISAM"])
def test_a_table_shared_with_flickrs_own_clients(
    flickrs_shop: Shop, engine: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with TicketPool(flickrs_shop[1]) as pool:
        pool.create_table("photos", engine=engine)
    result = soaked(flickrs_shop, capsys, f"replace {engine}", clients=True)
    assert set(result.complaints) <= ORDINARY
    for offset, ids in result.clients.items():
        assert residues(ids) == {offset % 2}


def test_a_counter_table(flickrs_shop: Shop, capsys: pytest.CaptureFixture[str]) -> None:
    with TicketPool(flickrs_shop[1]) as pool:
        pool.create_table("photos", layout="counter")
    soaked(flickrs_shop, capsys, "counter", clients=False)
