"""Every operation, its connection killed at each of its statements, and run again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest
from sqlalchemy import URL, MetaData

from sqla_tickets import TicketError, TicketPool, moves, trail
from sqla_tickets.note import LayoutName, Tombstone
from tests.migrations.scissors import Scissors, When

Pools = tuple[TicketPool, TicketPool]


@dataclass(frozen=True)
class Operation:
    """An operation on a sequence of the first of two pools.

    Attributes:
        prepare: what is there before.
        act: the operation itself.
        issues: the pool and the name under which tickets are drawn afterwards; None for none.
    """

    prepare: Callable[[Pools, str], None]
    act: Callable[[Pools, str], None]
    issues: Callable[[Pools, str], tuple[TicketPool, str]] | None


def _nothing(pools: Pools, name: str) -> None:
    """Nothing is there."""


def _created(layout: LayoutName | None = None) -> Callable[[Pools, str], None]:
    return lambda pools, name: pools[0].create_table(name, layout=layout)


def _dropped(pools: Pools, name: str) -> None:
    pools[0].create_table(name)
    pools[0].next_ids(name, 7)
    moves.drop(pools[0], name)


def _moved(pools: Pools, name: str) -> None:
    pools[0].create_table(name)
    moves.move(pools[0], name, pools[1])


def _first(pools: Pools, name: str) -> tuple[TicketPool, str]:
    return pools[0], name


OPERATIONS = {
    "create": Operation(_nothing, lambda p, n: p[0].create_table(n), _first),
    "create again": Operation(_dropped, lambda p, n: p[0].create_table(n), _first),
    "raise": Operation(_created(), lambda p, n: p[0].raise_above(n, 5000), _first),
    "drop": Operation(_created(), lambda p, n: moves.drop(p[0], n), None),
    "rename": Operation(
        _created(), lambda p, n: moves.rename(p[0], n, f"{n}x"), lambda p, n: (p[0], f"{n}x")
    ),
    "move": Operation(_created(), lambda p, n: moves.move(p[0], n, p[1]), lambda p, n: (p[1], n)),
    "move back": Operation(_moved, lambda p, n: moves.move(p[1], n, p[0]), _first),
}
CONVERSIONS = {
    "to counter": Operation(
        _created("replace"), lambda p, n: moves.convert(p[0], n, "counter"), _first
    ),
    "to replace": Operation(
        _created("counter"), lambda p, n: moves.convert(p[0], n, "replace"), _first
    ),
    "move a counter": Operation(
        _created("counter"), lambda p, n: moves.move(p[0], n, p[1]), lambda p, n: (p[1], n)
    ),
}


class Bench:
    """Runs an operation under one name after another, with scissors of its own each time."""

    def __init__(self, urls: Sequence[URL], more_urls: Sequence[URL], operation: Operation) -> None:
        self._urls, self._more_urls = urls, more_urls
        self._operation = operation
        self._blunt = Scissors()
        self._pools = self._cut_by(self._blunt)

    def _cut_by(self, scissors: Scissors) -> Pools:
        default = TicketPool([scissors.engine(url) for url in self._urls])
        media = TicketPool([scissors.engine(url) for url in self._more_urls], name="media")
        metadata = MetaData()
        default.attach(metadata)
        media.attach(metadata)
        # It has to outlive the pools, which only look at it.
        default.__dict__["metadata"] = metadata
        return default, media

    def close(self) -> None:
        """Leave no connection open."""
        self._blunt.close()

    def run(self, name: str, scissors: Scissors) -> list[str]:
        """Interrupt the operation and run it again; no ticket may come twice.

        Returns:
            What the servers have at the end, without numbers.
        """
        drawn: list[int] = []
        self._operation.prepare(self._pools, name)
        self._draw(drawn, self._pools[0], name)
        victims = self._cut_by(scissors)
        try:
            self._operation.act(victims, name)
        except TicketError:
            self._draw(drawn, self._pools[0], name)
            self._operation.act(self._pools, name)
        if self._operation.issues is not None:
            before = len(drawn)
            self._draw(drawn, *self._operation.issues(self._pools, name))
            assert len(drawn) == before + 4
        assert len(set(drawn)) == len(drawn), drawn
        for pool in victims:
            pool.dispose()
        scissors.close()
        return [
            said
            for pool in self._pools
            for each in (name, f"{name}x")
            for said in map(_without_numbers, moves.survey(pool, each).values())
        ]

    def _draw(self, drawn: list[int], pool: TicketPool, name: str) -> None:
        """Draw from each server, if any lets us."""
        for _ in range(2):
            try:
                drawn += pool.next_ids(name, 2)
            except TicketError:
                continue


def _without_numbers(state: object) -> str:
    if isinstance(state, Tombstone):
        same = state.sequence.partition("_")[2]
        return f"{state.kind} {state.pool} {same} {state.layout} {state.bits}"
    return f"{getattr(state, 'layout', state)} {getattr(state, 'note', None)}"


def interrupt(urls: list[URL], more_urls: list[URL], operation: Operation) -> None:
    """Kill before each statement, and after the last: then only the answer is lost."""
    bench = Bench(urls, more_urls, operation)
    counted = Scissors()
    expected = bench.run("n_", counted)
    assert counted.count > 4
    cuts: list[tuple[int, When]] = [(at, "before") for at in range(1, counted.count + 1)]
    for at, when in [*cuts, (counted.count, "after")]:
        found = bench.run(f"n{at}{when}_", Scissors(at, when))
        assert found == expected, f"killed {when} statement {at} of {counted.count}"
    bench.close()


@pytest.fixture(autouse=True)
def _no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody ends the interrupted operation while a draw waits for that."""
    monkeypatch.setattr(trail, "PATIENCE", 0.0)


@pytest.mark.ticket_servers("mariadb", "sqlite")
@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_is_interrupted_at_each_statement(
    name: str, ticket_urls: list[URL], media_urls: list[URL]
) -> None:
    interrupt(ticket_urls, media_urls, OPERATIONS[name])


@pytest.mark.ticket_servers("mysql", "postgresql")
@pytest.mark.parametrize("name", ["create again", "raise", "move"])
def test_the_same_on_the_other_servers(
    name: str, ticket_urls: list[URL], media_urls: list[URL]
) -> None:
    interrupt(ticket_urls, media_urls, OPERATIONS[name])


@pytest.mark.ticket_servers("mariadb", "mysql")
@pytest.mark.parametrize("name", CONVERSIONS)
def test_a_conversion_is_interrupted_at_each_statement(
    name: str, ticket_urls: list[URL], media_urls: list[URL]
) -> None:
    interrupt(ticket_urls, media_urls, CONVERSIONS[name])
