"""Which server leases which node numbers: its table says so, also while the pool grows."""

from __future__ import annotations

import re
from contextlib import suppress
from itertools import count
from typing import Any

import pytest
from sqlalchemy import URL

from sqla_tickets import (
    NodeIdsExhausted,
    NodeLeases,
    NoTicketServer,
    SnowflakeGenerator,
    TicketPool,
)
from sqla_tickets.errors import TicketServerError, TicketTableError, TicketTableMissing
from sqla_tickets.snowflake import lease_table, numbering
from sqla_tickets.snowflake.lease_table import NAME
from sqla_tickets.tables.context import StatementContext
from tests.integration.snowflake.conftest import OpenPool
from tests.integration.snowflake.test_leases import FOUR, node_of, wait_until_over
from tests.support.draws import assert_unique, run

SECONDS = 0.5
SQLITE = pytest.mark.ticket_servers("sqlite")


def numbering_at(url: URL) -> str | None:
    """What the table on a server says of its numbers."""
    rows = run(url, f"SELECT holder FROM {NAME} WHERE node = -1")
    return str(rows[0][0]) if rows else None


def nowhere(url: URL) -> URL:
    """The address of a server that does not answer."""
    if url.get_backend_name() == "sqlite":
        return url.set(database="/nowhere/tickets.db")
    return url.set(port=1)


def generator_of(pool: TicketPool) -> SnowflakeGenerator:
    return SnowflakeGenerator(pool, "photos", FOUR)


@pytest.fixture
def four(files: list[URL]) -> list[URL]:
    """Two ticket servers, and two that join them."""
    return files + [URL.create("sqlite", database=f"{files[0].database}-{n}") for n in (3, 4)]


def test_growth_gives_no_number_two_owners(ticket_urls: list[URL], open_pool: OpenPool) -> None:
    """A client of the grown pool reaches the server that joined alone; nobody tells it whose numbers live."""
    old = [generator_of(open_pool(ticket_urls[:1], SECONDS)) for _ in range(4)]
    ids = [each.next_id() for each in old]
    assert {FOUR.decode(number).node for number in ids} == {0, 1, 2, 3}
    open_pool(ticket_urls, SECONDS)
    with TicketPool([nowhere(ticket_urls[0]), ticket_urls[1]]) as pool:
        NodeLeases(pool, duration=SECONDS)
        joined = generator_of(pool)
        for _ in range(5):
            for made in [*old, joined]:
                with suppress(NodeIdsExhausted):  # half of the old ones have lost theirs
                    ids += made.next_ids(5)
        assert node_of(joined) % 2 == 0
    assert_unique(ids)
    wait_until_over(SECONDS)
    left = generator_of(open_pool(ticket_urls[:1], SECONDS))
    assert {node_of(left)} <= {1, 3}


@SQLITE
def test_growth_broken_off_anywhere_leaves_numbers_divided(
    files: list[URL], four: list[URL], open_pool: OpenPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    living = [generator_of(open_pool(files)) for _ in range(4)]
    assert {node_of(made) for made in living} == {0, 1, 2, 3}
    send = StatementContext.send
    last = 0
    for last in count(1):
        sent = count(1)

        def send_some(*arguments: Any, sent: Any = sent, last: int = last, **values: Any) -> int:
            if next(sent) > last:
                raise KeyboardInterrupt
            return send(*arguments, **values)

        with TicketPool(four) as pool, monkeypatch.context() as patch:
            patch.setattr(StatementContext, "send", send_some)
            try:
                NodeLeases(pool).create_table()
            except KeyboardInterrupt:
                check_divided(four)
            else:
                break
    assert last > 15
    check_divided(four)
    assert [numbering_at(url) for url in four] == [f"stride 4, offset {n}" for n in (1, 2, 3, 4)]


def check_divided(urls: list[URL]) -> None:
    """No two servers have one number, and none that joined leases one that may have an owner elsewhere."""
    owners: dict[int, URL] = {}
    for url in urls:
        if not run(url, f"SELECT 1 FROM sqlite_master WHERE name = '{NAME}'"):
            continue
        found = re.findall(r"\d+", numbering_at(url) or "")
        if not found:
            continue
        stride, offset = map(int, found)
        for node in range(offset % stride, 4, stride):
            assert owners.setdefault(node, url) == url
            ((since,),) = run(url, f"SELECT horizon FROM {NAME} WHERE node = -1")
            horizons = [
                int(str(horizon))
                for other in urls[:2]
                if other != url
                for (horizon,) in run(
                    other, f"SELECT horizon FROM {NAME} WHERE node = {node} AND owner <> ''"
                )
            ]
            assert int(str(since)) >= max(horizons, default=0)


@SQLITE
def test_number_taken_while_the_pool_grows_is_not_used(
    files: list[URL], open_pool: OpenPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process has read the old numbering, and claims it after the growth has asked for the last horizon."""
    pool = open_pool(files[:1])
    highest = lease_table.highest

    def grow_then_claim(*arguments: Any) -> int | None:
        found = highest(*arguments)
        monkeypatch.undo()
        open_pool(files)
        return found

    monkeypatch.setattr(lease_table, "highest", grow_then_claim)
    made = SnowflakeGenerator(pool, "photos")
    assert node_of(made) % 2 == 1
    joined = SnowflakeGenerator(open_pool(files), "photos")
    assert_unique([*made.next_ids(5), *joined.next_ids(5)])


@SQLITE
def test_lease_renewed_while_the_pool_grows_ends(
    files: list[URL], open_pool: OpenPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = open_pool(files[:1])
    made = SnowflakeGenerator(pool, "photos")
    assert node_of(made) == 0
    lease = made._leases.lease(10)
    horizon, renew = lease.horizon, lease_table.renew

    def grow_then_renew(*arguments: Any) -> bool:
        monkeypatch.undo()
        open_pool(files)
        return renew(*arguments)

    monkeypatch.setattr(lease_table, "renew", grow_then_renew)
    assert not made._leases._keeps(lease)
    assert (lease.ended, lease.horizon) == (True, horizon)
    assert node_of(made) % 2 == 1


@SQLITE
def test_old_configuration_leases_what_the_grown_pool_left_it(
    files: list[URL], four: list[URL], open_pool: OpenPool
) -> None:
    open_pool(files)
    open_pool(four)
    pools = [open_pool(files), open_pool(four)]
    nodes = [node_of(SnowflakeGenerator(pool, "photos")) for pool in pools for _ in range(1)]
    nodes += [node_of(SnowflakeGenerator(open_pool(files), "photos")) for _ in range(6)]
    nodes += [node_of(SnowflakeGenerator(open_pool(four), "photos")) for _ in range(6)]
    assert len(set(nodes)) == len(nodes)
    assert {node % 4 for node in (nodes[0], *nodes[2:8])} <= {1, 2}


@SQLITE
def test_server_restored_from_before_the_growth_takes_no_number_back(
    files: list[URL], open_pool: OpenPool
) -> None:
    open_pool(files[:1])
    pool = open_pool(files)
    run(files[0], f"UPDATE {NAME} SET holder = 'stride 1, offset 1' WHERE node = -1")
    with TicketPool([files[0], nowhere(files[1])]) as alone:
        nodes = {node_of(SnowflakeGenerator(alone, "photos", FOUR))}
        assert nodes <= {1, 3}
    NodeLeases(pool).create_table()
    assert numbering_at(files[0]) == "stride 2, offset 1"


def test_statements_that_were_written_down_divide_the_numbers(ticket_urls: list[URL]) -> None:
    for n in (1, 2, 1):  # a new pool; it grows; the old script again
        with TicketPool(ticket_urls[:n]) as pool:
            for server, url in zip(pool.servers, ticket_urls, strict=False):
                server.do(NAME, lease_table.create)
                dialect = server.engine.dialect
                run(url, *numbering.opening(dialect, pool.stride, server.offset))
    assert [numbering_at(url) for url in ticket_urls] == [
        "stride 2, offset 1",
        "stride 2, offset 2",
    ]


def test_table_that_does_not_say_whose_it_is_is_refused(
    ticket_urls: list[URL], open_pool: OpenPool
) -> None:
    pool = open_pool(ticket_urls)
    for url in ticket_urls:
        run(url, f"DELETE FROM {NAME} WHERE node = -1")
    with pytest.raises(
        TicketTableMissing, match=r"does not say .* run NodeLeases\(pool\)\.create_table"
    ):
        generator_of(pool).next_id()
    NodeLeases(pool).create_table()
    assert generator_of(pool).next_id()


@SQLITE
def test_numbering_that_cannot_be_read_is_refused(files: list[URL], open_pool: OpenPool) -> None:
    pool = open_pool(files)
    for text in ("stride 2, offset 0", "stride 02, offset 1", "x"):
        for url in files:
            run(url, f"UPDATE {NAME} SET holder = '{text}' WHERE node = -1")
        with pytest.raises(NoTicketServer, match=rf"expected 'stride 2, offset 1', found '{text}'"):
            generator_of(pool).next_id()
        with pytest.raises(TicketTableError, match="cannot be read"):
            NodeLeases(pool).create_table()


def test_pool_of_another_order_leases_no_number(
    ticket_urls: list[URL], open_pool: OpenPool
) -> None:
    open_pool(ticket_urls)
    with TicketPool(ticket_urls[::-1]) as pool:
        with pytest.raises(
            NoTicketServer, match=r"offset 2: expected the offset 1\. Check the address"
        ):
            generator_of(pool).next_id()
        with pytest.raises(TicketServerError, match="the order of the pool"):
            NodeLeases(pool).create_table()


@SQLITE
def test_stride_that_does_not_fit_is_refused(files: list[URL], open_pool: OpenPool) -> None:
    open_pool(files)
    with TicketPool(files, stride=3) as pool:
        with pytest.raises(NoTicketServer, match="expected the stride 3, a multiple or"):
            generator_of(pool).next_id()
        with pytest.raises(TicketTableError, match="expected the stride 3"):
            NodeLeases(pool).create_table()


@SQLITE
def test_larger_stride_takes_no_numbers_while_nobody_joins(
    files: list[URL], open_pool: OpenPool
) -> None:
    open_pool(files)
    with TicketPool(files, stride=64) as pool:
        NodeLeases(pool).create_table()
    assert numbering_at(files[0]) == "stride 2, offset 1"


@SQLITE
@pytest.mark.parametrize("first", [1, 2])
@pytest.mark.parametrize("others", [2, 4])
def test_two_creations_at_once_agree(
    four: list[URL],
    open_pool: OpenPool,
    monkeypatch: pytest.MonkeyPatch,
    first: int,
    others: int,
) -> None:
    """Between any two statements of one, another one with fewer servers, or the same, is run whole."""
    send = StatementContext.send
    last = 0
    for last in count(1):
        for url in four:
            run(url, f"DROP TABLE IF EXISTS {NAME}")
        open_pool(four[:first])
        sent = count(1)

        def send_between(*arguments: Any, sent: Any = sent, last: int = last, **values: Any) -> int:
            if next(sent) == last:
                with monkeypatch.context() as patch:
                    patch.setattr(StatementContext, "send", send)
                    open_pool(four[:others])
            return send(*arguments, **values)

        with TicketPool(four) as pool, monkeypatch.context() as patch:
            patch.setattr(StatementContext, "send", send_between)
            with suppress(TicketTableError):  # another one was quicker
                NodeLeases(pool).create_table()
        check_divided(four)
        if next(sent) <= last:
            break
    assert last > 15


@SQLITE
def test_old_list_of_servers_divides_by_the_grown_stride(
    four: list[URL], open_pool: OpenPool
) -> None:
    open_pool(four)
    run(four[1], f"DROP TABLE {NAME}")
    open_pool(four[:2])
    check_divided(four)
    assert numbering_at(four[1]) == "stride 4, offset 2"


@SQLITE
def test_server_that_joins_keeps_nobody_waiting(files: list[URL], open_pool: OpenPool) -> None:
    """It leases nothing until the ids of an old client's lease are of the past; others do."""
    made = SnowflakeGenerator(open_pool(files[:1]), "photos")
    assert node_of(made) == 0
    nodes = [node_of(SnowflakeGenerator(open_pool(files), "photos")) for _ in range(10)]
    assert {node % 2 for node in nodes} == {1}


@SQLITE
def test_successor_of_a_retired_server_waits_for_its_last_ids(
    files: list[URL], four: list[URL], open_pool: OpenPool
) -> None:
    """The server that stayed was away when an owner told it up to when it makes ids."""
    here, there = open_pool(files).servers
    with TicketPool([nowhere(files[0]), files[1]]) as alone:
        assert node_of(SnowflakeGenerator(alone, "photos")) % 2 == 0
        ((horizon,),) = run(files[1], f"SELECT MAX(horizon) FROM {NAME}")
    for _ in range(2):  # again, as what broke off
        numbering.close([there], [here])
    with TicketPool([files[0], four[2]]) as pool:
        NodeLeases(pool).create_table()
        assert pool.servers[1].do(NAME, numbering.opened) >= int(str(horizon))
