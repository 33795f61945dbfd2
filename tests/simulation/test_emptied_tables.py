"""A table that is emptied by hand while processes draw from it: what of that the checker takes for promised."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator

import pytest

from sqla_tickets import TicketPool
from sqla_tickets.errors import TicketIntegrityError

from .checker import Checker
from .directed import play
from .models.protocol import Login, Query
from .models.sessions import ModelServer
from .scenario import SINGLES, Scenario
from .world import Machine

#: Draws of the process that knows more than another one.
DRAWS = 30


class Client:
    """A process that draws from the first server."""

    def __init__(self, scenario: Scenario) -> None:
        self.world, self.checker = scenario.world, scenario.checker
        self.pool: TicketPool = scenario.pool()

    def draw(self, n: int = 1) -> None:
        before, began = self.checker.latest(SINGLES), self.world.now
        blocks = self.pool.servers[0].draw(SINGLES, n)
        self.checker.drawn(SINGLES, blocks, before, began, 0.0)

    def draw_in_vain(self, n: int) -> None:
        with contextlib.suppress(TicketIntegrityError):
            self.draw(n)


def elsewhere(scenario: Scenario, work: Callable[[], None]) -> None:
    """Do some work in another process."""
    Machine(scenario.world, "another process").spawn(work, "main").join()


def emptied(scenario: Scenario, *, announced: bool, draws_before: int = 1) -> Client:
    """A client that knows few tickets of a table which somebody has emptied, and whose number is past them again."""
    scenario.create_tables()
    world, host = scenario.world, scenario.network.hosts["t1"]
    client = Client(scenario)
    for _ in range(draws_before):
        client.draw()
    other = list[Client]()

    def draw() -> None:
        other.append(Client(scenario))
        for _ in range(DRAWS):
            other[0].draw()
        world.at(world.now, lambda: empty(scenario))
        world.sleep(0.1)
        if announced:
            other[0].draw_in_vain(5)

    elsewhere(scenario, draw)
    if not announced:
        model = host.model
        assert isinstance(model, ModelServer)
        world.at(world.now, lambda: host.work(lambda: draw_by_hand(model)))
        world.sleep(0.1)
    return client


def draw_by_hand(model: ModelServer) -> None:
    session = model.connect(Login("root", "tickets"), lambda: None)
    session.handle(Query("SET SESSION auto_increment_increment = 2, auto_increment_offset = 1"))
    for _ in range(5):
        session.handle(Query("REPLACE INTO photos (stub) VALUES ('a')"))
    session.close()


def empty(scenario: Scenario) -> None:
    nemesis, first = scenario.nemesis, scenario.network.hosts["t1"]
    nemesis._host = lambda: first  # type: ignore[method-assign]  # no other one
    nemesis.reset_numbers()


def checked(work: Callable[[Scenario], None]) -> Checker:
    """The checker of a world in which one of the clients does some work; it hears what all log."""
    log = logging.getLogger("sqla_tickets")
    with contextlib.ExitStack() as stack:

        def with_log(scenario: Scenario) -> None:
            stack.enter_context(listening(log, scenario.checker.announcements))
            work(scenario)

        return play("mysql", with_log).checker


@contextlib.contextmanager
def listening(log: logging.Logger, handler: logging.Handler) -> Iterator[None]:
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)


def kinds(checker: Checker) -> set[str]:
    return {promise.kind for promise in checker.broken_promises}


def test_repeat_that_others_have_announced_breaks_no_promise() -> None:
    checker = checked(lambda scenario: emptied(scenario, announced=True).draw())
    assert checker.announced == 1
    assert not checker.broken_promises


def test_repeat_that_nobody_has_announced_is_broken() -> None:
    checker = checked(lambda scenario: emptied(scenario, announced=False).draw())
    assert kinds(checker) == {"repeated", "descending"}
    assert not checker.announced


def test_ticket_that_comes_a_third_time_is_broken() -> None:
    def work(scenario: Scenario) -> None:
        emptied(scenario, announced=True).draw()
        checker = scenario.checker
        again = given_blocks(checker)[-1]
        checker.drawn(SINGLES, [again], None, scenario.world.now, 0.0)

    assert "repeated" in kinds(checked(work))


def given_blocks(checker: Checker) -> list[range]:
    """What the client that runs was given by the first server, in the order of the answers."""
    answers = checker._blocks[checker._world.machine, SINGLES, checker.issuer(1)]
    latest = sorted(answers, key=lambda answer: answer.at)
    return [range(answer.first, answer.last + 1) for answer in latest]


@pytest.mark.parametrize("reason", ["newcomer", "has later tickets"])
def test_repeat_that_a_process_had_to_refuse_is_broken(reason: str) -> None:
    """A process that began later reads the marks; one that had a ticket above it has its fence."""

    def work(scenario: Scenario) -> None:
        client = emptied(scenario, announced=True, draws_before=1 if reason == "newcomer" else 20)
        world, checker = scenario.world, scenario.checker
        old = given_blocks(checker)[-1]

        def get_again() -> None:
            checker.drawn(SINGLES, [old], None, world.now, 0.0)

        if reason == "newcomer":
            elsewhere(scenario, get_again)
        else:
            old = given_blocks(checker)[0]
            get_again()
        client.pool.dispose()

    assert "repeated" in kinds(checked(work))
