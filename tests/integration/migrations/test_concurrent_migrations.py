"""What others do between two statements of an operation: they draw, or migrate as well."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from sqlalchemy import URL, MetaData

from sqla_tickets import (
    TicketError,
    TicketPool,
    TicketTableError,
    TicketTableMissing,
    TicketTableMoved,
)
from sqla_tickets.draw import redirects
from sqla_tickets.maintenance import operations
from sqla_tickets.maintenance.handle import TableHandle
from tests.integration.migrations.test_interruptions import (
    CONVERSIONS,
    OPERATIONS,
    Operation,
    Pools,
)
from tests.support.fault_injection import BetweenStatements, StatementCounter
from tests.support.timing import set_timing

EVERY = {**OPERATIONS, **CONVERSIONS}
#: Clients of these may find no table, before or after.
COMES_OR_GOES = ("create", "create again", "drop")


class Site:
    """Two attached pools: of the clients that draw, and of each migration."""

    def __init__(self, urls: list[URL], more_urls: list[URL]) -> None:
        self._urls, self._more_urls = urls, more_urls
        self._metadatas: list[MetaData] = []
        self._pools: list[TicketPool] = []
        self.clients = self.pools(StatementCounter())

    def pools(self, statements: StatementCounter) -> Pools:
        made = (
            TicketPool([statements.engine(url) for url in self._urls]),
            TicketPool([statements.engine(url) for url in self._more_urls], name="media"),
        )
        self._metadatas.append(MetaData())
        for pool in made:
            pool.attach(self._metadatas[-1])
        self._pools += made
        return made

    def close(self) -> None:
        for pool in self._pools:
            pool.dispose()


@pytest.fixture
def site(ticket_urls: list[URL], media_urls: list[URL]) -> Iterator[Site]:
    made = Site(ticket_urls, media_urls)
    yield made
    made.close()


def skip_what_no_server_can(name: str, ticket_kind: str) -> None:
    if name in CONVERSIONS and ticket_kind not in ("mariadb", "mysql"):
        pytest.skip("it has one layout only")


@pytest.mark.parametrize("name", EVERY)
def test_clients_draw_between_any_two_statements(name: str, site: Site, ticket_kind: str) -> None:
    skip_what_no_server_can(name, ticket_kind)
    operation, drawn, errors = EVERY[name], [], list[TicketError]()
    operation.prepare(site.clients, "photos")

    def draw(number: int) -> None:
        pool, sequence = site.clients[0], "photos"
        if operation.issues is not None and number % 2:
            pool, sequence = operation.issues(site.clients, "photos")
        try:
            drawn.extend(pool.next_ids(sequence, 1 + number % 3))
        except TicketTableMissing as error:
            if (pool, sequence) == (site.clients[0], "photos") and name not in COMES_OR_GOES:
                errors.append(error)
        except TicketError as error:
            errors.append(error)

    statements = BetweenStatements(draw)
    operation.act(site.pools(statements), "photos")
    statements.close()
    assert errors == []
    if operation.issues is not None:
        pool, sequence = operation.issues(site.clients, "photos")
        drawn += pool.next_ids(sequence, 6)
    assert len(set(drawn)) == len(drawn)
    assert len(drawn) > 6 or name in COMES_OR_GOES


def _raise(pools: Pools, name: str) -> None:
    pools[0].raise_above(name, 5000)


def _create_high(pools: Pools, name: str) -> None:
    pools[0].create_table(name, start=701)


#: No ticket is lower after one of these.
FLOORS: dict[Callable[[Pools, str], object], int] = {_raise: 5001, _create_high: 701}


#: What is begun, and what another process does at one of its statements.
PAIRS: dict[str, tuple[Operation, Callable[[Pools, str], object]]] = {
    **{f"{name} and the same": (each, each.act) for name, each in EVERY.items()},
    "create and create high": (OPERATIONS["create"], _create_high),
    "create high and create": (
        Operation(OPERATIONS["create"].prepare, _create_high, None),
        OPERATIONS["create"].act,
    ),
    "create and raise": (OPERATIONS["create"], _raise),
    "move and move back": (
        OPERATIONS["move"],
        lambda pools, name: operations.move(pools[1], name, pools[0]),
    ),
    "move and rename": (OPERATIONS["move"], OPERATIONS["rename"].act),
    "rename and move": (OPERATIONS["rename"], OPERATIONS["move"].act),
    "move and raise": (OPERATIONS["move"], _raise),
    "raise and move": (OPERATIONS["raise"], OPERATIONS["move"].act),
    "raise and drop": (OPERATIONS["raise"], OPERATIONS["drop"].act),
    "drop and create": (OPERATIONS["drop"], OPERATIONS["create"].act),
    "create again and drop": (OPERATIONS["create again"], OPERATIONS["drop"].act),
    "convert and raise": (CONVERSIONS["to counter"], _raise),
    "raise and convert": (
        Operation(CONVERSIONS["to counter"].prepare, _raise, None),
        CONVERSIONS["to counter"].act,
    ),
    "convert and move": (CONVERSIONS["to replace"], OPERATIONS["move"].act),
    "convert and convert back": (
        CONVERSIONS["to counter"],
        lambda pools, name: operations.convert(pools[0], name, "replace"),
    ),
}


@pytest.mark.parametrize("pair", PAIRS)
def test_another_migration_between_two_statements(
    pair: str, site: Site, ticket_kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At some statements, the other migration runs from beginning to end, or until it has to wait.

    Operators of the simulation are frozen before any statement, while another one does all of it.
    """
    if "convert" in pair or pair.partition(" and ")[0] in CONVERSIONS:
        skip_what_no_server_can("to counter", ticket_kind)
    set_timing(monkeypatch, redirects, move_seconds=0.0)
    first, second = PAIRS[pair]
    counted = StatementCounter()
    first.prepare(site.clients, "n")
    first.act(site.pools(counted), "n")
    others = [site.pools(StatementCounter()) for _ in range(4)]
    begin, step = random.randint(1, 6), 6
    if ticket_kind != "sqlite":
        begin, step = random.randint(1, min(24, counted.count)), 24
    print("begin", begin)
    for at in range(begin, counted.count + 1, step):
        two_at_once(site, others, first, second, f"n{at}", at)
    assert all(s.breaker.is_closed for pools in others for pool in pools for s in pool.servers)


def two_at_once(
    site: Site,
    others: Sequence[Pools],
    first: Operation,
    second: Callable[[Pools, str], object],
    name: str,
    at: int,
) -> None:
    """Run the second operation at one statement of the first, then each again.

    Args:
        site: where.
        others: of the other migration, and of each that follows; none of them knows the sequence.
        first: what is begun.
        second: what the other migration does.
        name: of a sequence of its own.
        at: the number of the statement.
    """
    drawn: list[int] = []
    floors = [0]
    rename = OPERATIONS["rename"].act
    names = [name, f"{name}x"] if rename in (first.act, second) else [name]

    def draw() -> None:
        for pool in site.clients:
            for each in names:
                try:
                    drawn.extend(pool.next_ids(each, 3))
                except TicketError:
                    continue
        assert len(set(drawn)) == len(drawn), f"at statement {at}: {drawn}"

    def attempt(act: Callable[[Pools, str], object], pools: Pools) -> None:
        try:
            act(pools, name)
        except TicketError:
            return
        floors.append(FLOORS.get(act, 0))

    def meanwhile(_: int) -> None:
        attempt(second, others[0])
        draw()

    first.prepare(site.clients, name)
    draw()
    statements = BetweenStatements(meanwhile, at)
    interrupted = site.pools(statements)
    attempt(first.act, interrupted)
    statements.close()
    for pool in interrupted:  # a server does not let in any number of connections
        pool.dispose()
    draw()
    assert min(drawn[-3:], default=10**6) >= max(floors), f"at statement {at}: {drawn}"
    for act, pools in zip((first.act, second, first.act), others[1:], strict=True):
        attempt(act, pools)
        draw()


class Broken(Exception):
    """As a process that is killed."""


@pytest.mark.parametrize("cleaned_up", [True, False])
def test_a_move_that_was_stopped_does_not_open_what_a_later_one_has_closed(
    cleaned_up: bool, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All looks as it had left it, and the sequence has been there and gone on elsewhere since."""
    default, media = site.clients
    default.create_table("photos", layout="counter")
    drawn = default.next_ids("photos", 5)
    open_ = TableHandle.open

    def there_and_back() -> None:
        operations.move(default, "photos", media)
        operations.move(media, "photos", default)

    def meanwhile(*late: Any) -> None:
        monkeypatch.setattr(TableHandle, "open", open_)
        there_and_back()
        if cleaned_up:
            media.drop_table("photos")
        for server in default.servers:
            drawn.extend(ticket for block in server.draw("photos", 500) for ticket in block)
        monkeypatch.setattr(TableHandle, "open", breaks_off)
        with pytest.raises(Broken):
            operations.move(default, "photos", media)
        open_(*late)

    def breaks_off(*_: object) -> None:
        raise Broken

    if not cleaned_up:
        there_and_back()
    monkeypatch.setattr(TableHandle, "open", meanwhile)
    frozen = site.pools(StatementCounter())
    with pytest.raises(TicketTableError, match="was changed by another client"):
        operations.move(frozen[0], "photos", frozen[1])
    for server in media.servers:
        with pytest.raises(TicketTableMoved):
            server.draw("photos", 50)
    monkeypatch.setattr(TableHandle, "open", open_)
    operations.move(default, "photos", media)
    drawn += media.next_ids("photos", 50)
    assert len(set(drawn)) == len(drawn)
