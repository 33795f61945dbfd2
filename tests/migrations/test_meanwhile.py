"""What others do between two statements of an operation: they draw, or migrate as well."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import URL, MetaData

from sqla_tickets import (
    TicketError,
    TicketPool,
    TicketTableError,
    TicketTableMissing,
    TicketTableMoved,
    moves,
    trail,
)
from tests.migrations.scissors import Interlude, Wire
from tests.migrations.test_interruptions import CONVERSIONS, OPERATIONS, Operation, Pools
from tests.servers import KINDS

EVERY = {**OPERATIONS, **CONVERSIONS}
#: Clients of these may find no table, before or after.
COMES_OR_GOES = ("create", "create again", "drop")


class Site:
    """Two attached pools: of the clients that draw, and of each migration."""

    def __init__(self, urls: list[URL], more_urls: list[URL]) -> None:
        self._urls, self._more_urls = urls, more_urls
        self._metadatas: list[MetaData] = []
        self._pools: list[TicketPool] = []
        self.clients = self.pools(Wire())

    def pools(self, wire: Wire) -> Pools:
        made = (
            TicketPool([wire.engine(url) for url in self._urls]),
            TicketPool([wire.engine(url) for url in self._more_urls], name="media"),
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

    wire = Interlude(draw)
    operation.act(site.pools(wire), "photos")
    wire.close()
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
FLOORS: dict[Callable[[Pools, str], None], int] = {_raise: 5001, _create_high: 701}


#: What is begun, and what another process does at one of its statements.
PAIRS: dict[str, tuple[Operation, Callable[[Pools, str], None]]] = {
    **{f"{name} and the same": (each, each.act) for name, each in EVERY.items()},
    "create and create high": (OPERATIONS["create"], _create_high),
    "create high and create": (
        Operation(OPERATIONS["create"].prepare, _create_high, None),
        OPERATIONS["create"].act,
    ),
    "create and raise": (OPERATIONS["create"], _raise),
    "move and move back": (
        OPERATIONS["move"],
        lambda pools, name: moves.move(pools[1], name, pools[0]),
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
        lambda pools, name: moves.convert(pools[0], name, "replace"),
    ),
}


@pytest.mark.parametrize("pair", PAIRS)
def test_another_migration_between_two_statements(
    pair: str, site: Site, ticket_kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At each statement, the other migration runs from beginning to end, or until it has to wait."""
    if "convert" in pair or pair.partition(" and ")[0] in CONVERSIONS:
        skip_what_no_server_can("to counter", ticket_kind)
    monkeypatch.setattr(trail, "PATIENCE", 0.0)
    first, second = PAIRS[pair]
    counted = Wire()
    first.prepare(site.clients, "n")
    first.act(site.pools(counted), "n")
    # every third statement where that is fast, and other ones elsewhere
    step = 3 if ticket_kind == "sqlite" else 12
    for at in range(1 + KINDS.index(ticket_kind), counted.count + 1, step):
        two_at_once(site, first, second, f"n{at}", at)


def two_at_once(
    site: Site, first: Operation, second: Callable[[Pools, str], None], name: str, at: int
) -> None:
    """Run the second operation at one statement of the first, then each again."""
    drawn: list[int] = []
    floors = [0]

    def draw() -> None:
        for pool in site.clients:
            for each in (name, f"{name}x"):
                try:
                    drawn.extend(pool.next_ids(each, 3))
                except TicketError:
                    continue
        assert len(set(drawn)) == len(drawn), f"at statement {at}: {drawn}"

    def attempt(act: Callable[[Pools, str], None], pools: Pools) -> None:
        try:
            act(pools, name)
        except TicketError:
            return
        floors.append(FLOORS.get(act, 0))

    def meanwhile(number: int) -> None:
        if number == at:
            attempt(second, site.pools(Wire()))
            draw()

    first.prepare(site.clients, name)
    draw()
    wire = Interlude(meanwhile)
    attempt(first.act, site.pools(wire))
    wire.close()
    draw()
    assert min(drawn[-3:], default=10**6) >= max(floors), f"at statement {at}: {drawn}"
    for act in (first.act, second, first.act):
        attempt(act, site.pools(Wire()))
        draw()


class Broken(Exception):
    """As a process that is killed."""


@pytest.mark.parametrize("cleaned_up", [True, False])
def test_a_move_that_stood_still_does_not_open_what_a_later_one_has_closed(
    cleaned_up: bool, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All looks as it had left it, and the sequence has been there and gone on elsewhere since."""
    default, media = site.clients
    default.create_table("photos", layout="counter")
    drawn = default.next_ids("photos", 5)
    open_ = moves._Site.open

    def there_and_back() -> None:
        moves.move(default, "photos", media)
        moves.move(media, "photos", default)

    def meanwhile(*late: Any) -> None:
        monkeypatch.setattr(moves._Site, "open", open_)
        there_and_back()
        if cleaned_up:
            media.drop_table("photos")
        for server in default.servers:
            drawn.extend(ticket for block in server.draw("photos", 500) for ticket in block)
        monkeypatch.setattr(moves._Site, "open", breaks_off)
        with pytest.raises(Broken):
            moves.move(default, "photos", media)
        open_(*late)

    def breaks_off(*_: object) -> None:
        raise Broken

    if not cleaned_up:
        there_and_back()
    monkeypatch.setattr(moves._Site, "open", meanwhile)
    frozen = site.pools(Wire())
    with pytest.raises(TicketTableError, match="was changed meanwhile"):
        moves.move(frozen[0], "photos", frozen[1])
    for server in media.servers:
        with pytest.raises(TicketTableMoved):
            server.draw("photos", 50)
    monkeypatch.setattr(moves._Site, "open", open_)
    moves.move(default, "photos", media)
    drawn += media.next_ids("photos", 50)
    assert len(set(drawn)) == len(drawn)
