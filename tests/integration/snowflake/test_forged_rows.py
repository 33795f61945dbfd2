"""What forged rows of node numbers can do: nothing to the other server, and no number gets two owners."""

from __future__ import annotations

import logging

import pytest
from sqlalchemy import URL

from sqla_tickets import NodeIdsExhausted, NodeLeases, SnowflakeGenerator
from sqla_tickets import concurrency as clock
from sqla_tickets.snowflake.lease_table import DAY, NAME
from tests.integration.snowflake.conftest import OpenPool
from tests.integration.snowflake.test_leases import FOUR, TWO, node_of
from tests.support.draws import assert_unique, run

FAR = 9 * 10**18
FORGE = f"""
INSERT INTO {NAME} (node, owner, holder, fence, duration, expires, horizon)
VALUES {{rows}} ON CONFLICT (node)
DO UPDATE SET horizon = excluded.horizon, owner = '', expires = 0, fence = {NAME}.fence + 1
"""


def forge(url: URL, horizon: int = FAR, expires: int = 0) -> None:
    """Every number has an enemy's horizon."""
    rows = (f"({node}, '', 'x', 0, 60000000, {expires}, {horizon})" for node in range(4))
    run(url, FORGE.format(rows=", ".join(rows)))


def far_rows(url: URL) -> int:
    ((count,),) = run(url, f"SELECT count(*) FROM {NAME} WHERE horizon > {FAR // 2}")
    return int(str(count))


def test_forged_horizons_stop_no_healthy_server(
    files: list[URL], open_pool: OpenPool, caplog: pytest.LogCaptureFixture
) -> None:
    """Its numbers are leased on, no horizon is copied there, and deleting the rows heals all."""
    running = SnowflakeGenerator(open_pool(files, 5), "photos", FOUR)
    ids = running.next_ids(3)
    forge(files[0], expires=FAR)
    pool = open_pool(files, 5)
    made = SnowflakeGenerator(pool, "photos", FOUR)
    ids += [*made.next_ids(3), *running.next_ids(3)]
    assert node_of(made) % 2 == 0
    assert far_rows(files[1]) == 0
    said = [r.getMessage() for r in caplog.records if r.levelno >= logging.ERROR]
    assert len(said) == 1
    assert str(pool.servers[0]) in said[0]
    assert f"DELETE FROM {NAME}" in said[0]
    assert len(NodeLeases(pool).status()) >= 2  # whatever times stand there
    pool.dispose()
    run(files[0], f"DELETE FROM {NAME} WHERE horizon > {FAR // 2}")
    heirs = [SnowflakeGenerator(open_pool(files), "photos", FOUR) for _ in range(3)]
    for heir in heirs:
        ids += heir.next_ids(3)
    assert {1, 3} & {node_of(heir) for heir in heirs}
    assert_unique(ids)


def test_forged_horizon_ends_no_lease(files: list[URL], open_pool: OpenPool) -> None:
    pool = open_pool(files, 0.5)
    made = SnowflakeGenerator(pool, "photos", FOUR)
    ids = made.next_ids(3)
    while node_of(made) % 2:  # of the healthy server
        made = SnowflakeGenerator(open_pool(files, 0.5), "photos", FOUR)
    node = node_of(made)
    forge(files[0])
    lease = made._leases.lease(FOUR.node)
    made._leases.extend(lease)
    assert not lease.ended
    assert node_of(made) == node
    assert_unique([*ids, *made.next_ids(3)])


def test_forged_release_gives_no_number_twice(files: list[URL], open_pool: OpenPool) -> None:
    """The other server remembers that the owner lives."""
    living = SnowflakeGenerator(open_pool(files), "photos", TWO)
    ids, node = living.next_ids(3), node_of(living)
    home = files[0 if node % 2 else 1]
    run(home, f"UPDATE {NAME} SET owner = '', horizon = 0, expires = 0, fence = fence + 1")
    heir = SnowflakeGenerator(open_pool(files), "photos", TWO)
    ids += [*heir.next_ids(3), *living.next_ids(3)]
    assert node_of(heir) != node
    assert_unique(ids)


@pytest.mark.parametrize("days", [3, 365])
def test_horizon_of_a_longer_lease_is_believed(
    files: list[URL], open_pool: OpenPool, days: int
) -> None:
    """Processes whose leases last a minute take no number whose server has forgotten such a lease."""
    living = SnowflakeGenerator(open_pool(files, days * 86_400.0), "photos", TWO)
    ids, node = living.next_ids(3), node_of(living)
    run(files[0 if node % 2 else 1], f"DELETE FROM {NAME} WHERE node >= 0")  # it was set back
    heir = SnowflakeGenerator(open_pool(files), "photos", TWO)
    ids += [*heir.next_ids(3), *living.next_ids(3)]
    assert node_of(heir) != node
    assert_unique(ids)
    with pytest.raises(NodeIdsExhausted):
        SnowflakeGenerator(open_pool(files, 0.1), "photos", TWO).next_id()


def test_number_below_0_is_never_leased(files: list[URL], open_pool: OpenPool) -> None:
    """It would spill into the other bits of an id."""
    pool = open_pool(files)
    values = "'', 'x', 0, 1, 0, 0"
    run(files[1], f"INSERT INTO {NAME} VALUES (-2, {values}), (-4, {values}), (-6, {values})")
    nodes = {node_of(SnowflakeGenerator(open_pool(files), "photos", FOUR)) for _ in range(4)}
    assert nodes == {0, 1, 2, 3}
    assert min(lease.node for lease in NodeLeases(pool).status()) == 0


def test_clock_that_lags_for_more_than_a_year_believes_horizons(
    files: list[URL], open_pool: OpenPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is far ahead of the reader's clock is judged by the server's clock, too."""
    living = SnowflakeGenerator(open_pool(files), "photos", TWO)
    ids, node = living.next_ids(3), node_of(living)
    run(files[0 if node % 2 else 1], f"DELETE FROM {NAME} WHERE node >= 0")  # it was set back
    right = clock.wall
    monkeypatch.setattr(clock, "wall", lambda: right() - 400 * DAY)
    heir = SnowflakeGenerator(open_pool(files), "photos", TWO)
    ids += heir.next_ids(3)
    assert node_of(heir) != node
    assert_unique(ids)
    with pytest.raises(NodeIdsExhausted):
        SnowflakeGenerator(open_pool(files), "photos", TWO).next_id()
