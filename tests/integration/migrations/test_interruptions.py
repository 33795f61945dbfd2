"""Every operation, cut off at each of its changes, and run again."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest
from sqlalchemy import URL, MetaData

from sqla_tickets import TicketError, TicketPool
from sqla_tickets.dialects import LayoutName
from sqla_tickets.draw import redirects
from sqla_tickets.maintenance import operations
from sqla_tickets.maintenance.handle import handles
from sqla_tickets.maintenance.transfer import Transfer
from sqla_tickets.tables.metadata import Tombstone
from tests.support.fault_injection import KillAtChange, Loss, StatementCounter
from tests.support.timing import set_timing

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
    act: Callable[[Pools, str], object]
    issues: Callable[[Pools, str], tuple[TicketPool, str]] | None


def _nothing(pools: Pools, name: str) -> None:
    """Nothing is there."""


def _created(layout: LayoutName | None = None) -> Callable[[Pools, str], None]:
    return lambda pools, name: pools[0].create_table(name, layout=layout)


def _dropped(pools: Pools, name: str) -> None:
    pools[0].create_table(name)
    pools[0].next_ids(name, 7)
    operations.drop(pools[0], name)


def _moved(pools: Pools, name: str) -> None:
    pools[0].create_table(name)
    operations.move(pools[0], name, pools[1])


def _claimed(pools: Pools, name: str) -> None:
    pools[0].create_table(name)
    Transfer(handles(pools[0], name), handles(pools[1], name)).claim_targets()


def _first(pools: Pools, name: str) -> tuple[TicketPool, str]:
    return pools[0], name


OPERATIONS = {
    "create": Operation(_nothing, lambda p, n: p[0].create_table(n), _first),
    "create again": Operation(_dropped, lambda p, n: p[0].create_table(n), _first),
    "raise": Operation(_created(), lambda p, n: p[0].raise_above(n, 5000), _first),
    "drop": Operation(_created(), lambda p, n: operations.drop(p[0], n), None),
    "rename": Operation(
        _created(), lambda p, n: operations.rename(p[0], n, f"{n}x"), lambda p, n: (p[0], f"{n}x")
    ),
    "move": Operation(
        _created(), lambda p, n: operations.move(p[0], n, p[1]), lambda p, n: (p[1], n)
    ),
    "move back": Operation(_moved, lambda p, n: operations.move(p[1], n, p[0]), _first),
    "take a move back": Operation(_claimed, lambda p, n: operations.move(p[1], n, p[0]), _first),
}
CONVERSIONS = {
    "to counter": Operation(
        _created("replace"), lambda p, n: operations.convert(p[0], n, "counter"), _first
    ),
    "to replace": Operation(
        _created("counter"), lambda p, n: operations.convert(p[0], n, "replace"), _first
    ),
    "move a counter": Operation(
        _created("counter"), lambda p, n: operations.move(p[0], n, p[1]), lambda p, n: (p[1], n)
    ),
}


class Bench:
    """Runs an operation under one name after another, with connections of its own each time."""

    def __init__(self, urls: Sequence[URL], more_urls: Sequence[URL], operation: Operation) -> None:
        self._urls, self._more_urls = urls, more_urls
        self._operation = operation
        self._unharmed = StatementCounter()
        self._pools = self._on(self._unharmed)

    def _on(self, statements: StatementCounter) -> Pools:
        default = TicketPool([statements.engine(url) for url in self._urls])
        media = TicketPool([statements.engine(url) for url in self._more_urls], name="media")
        metadata = MetaData()
        default.attach(metadata)
        media.attach(metadata)
        # It has to outlive the pools, which only look at it.
        default.__dict__["metadata"] = metadata
        return default, media

    def close(self) -> None:
        """Leave no connection open."""
        self._unharmed.close()

    def run(self, name: str, *attempts: StatementCounter) -> list[str]:
        """Attempt the operation again and again until it ends; no ticket may come twice.

        Returns:
            What the servers have at the end, without numbers.
        """
        drawn: list[int] = []
        self._operation.prepare(self._pools, name)
        self._draw(drawn, self._pools[0], name)
        for statements in attempts:
            ended = self._try(name, statements)
            self._draw(drawn, self._pools[0], name)
            if ended:
                break
        else:
            self._operation.act(self._pools, name)
        if self._operation.issues is not None:
            before = len(drawn)
            self._draw(drawn, *self._operation.issues(self._pools, name))
            assert len(drawn) == before + 4
        assert len(set(drawn)) == len(drawn), drawn
        return [
            said
            for pool in self._pools
            for each in (name, f"{name}x")
            for said in map(_without_numbers, operations.table_states(pool, each).values())
        ]

    def _try(self, name: str, statements: StatementCounter) -> bool:
        pools = self._on(statements)
        try:
            self._operation.act(pools, name)
        except TicketError:
            return False
        finally:
            for pool in pools:
                pool.dispose()
            statements.close()
        return True

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
    found = re.sub(
        r'"n\w*?_', '"n_', str(getattr(state, "metadata", None))
    )  # the path has the names
    return f"{getattr(state, 'layout', state)} {found}"


def interrupt(urls: list[URL], more_urls: list[URL], operation: Operation) -> None:
    """Lose the connection or the process before each change, by turns, and the answer to the last one.

    At last one process after another dies at its fourth change, until one has no more to do. Operators of the
    simulation are killed and frozen before and during any statement.

    Args:
        urls: of the servers that have the sequence.
        more_urls: of those that it may move to.
        operation: what is interrupted.
    """
    half = random.randrange(2)
    print("half", half)
    bench = Bench(urls, more_urls, operation)
    counted = StatementCounter()
    expected = bench.run("n_", counted)
    assert counted.changes > 1
    losses: tuple[Loss, Loss] = ("connection", "process")
    cuts: list[tuple[int, Loss]]
    cuts = [(at, losses[(at + half) % 2]) for at in range(1, counted.changes + 1)]
    cuts.append((counted.changes, "answer"))
    for at, lost in cuts:
        found = bench.run(f"n{at}{lost}_", KillAtChange(at, lost))
        assert found == expected, f"lost the {lost} at change {at} of {counted.changes}"
    processes = [KillAtChange(4) for _ in range(counted.changes)]
    assert bench.run("nagain_", *processes) == expected
    assert processes[-1].changes < 4, "it has not ended by itself"
    bench.close()


@pytest.fixture(autouse=True)
def _no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody ends the interrupted operation while a draw waits for that."""
    set_timing(monkeypatch, redirects, move_seconds=0.0)


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_is_interrupted_at_each_change(
    name: str, ticket_urls: list[URL], media_urls: list[URL]
) -> None:
    interrupt(ticket_urls, media_urls, OPERATIONS[name])


@pytest.mark.ticket_servers("mariadb", "mysql")
@pytest.mark.parametrize("name", CONVERSIONS)
def test_a_conversion_is_interrupted_at_each_change(
    name: str, ticket_urls: list[URL], media_urls: list[URL]
) -> None:
    interrupt(ticket_urls, media_urls, CONVERSIONS[name])
