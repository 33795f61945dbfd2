"""A shared draw gives each of its callers tickets of its own, or none."""

from __future__ import annotations

import asyncio
import gc
import signal
import threading
import types
from collections.abc import Callable, Coroutine, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from itertools import chain
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy.util import await_only, greenlet_spawn

from sqla_tickets import NoTicketServer, TicketsExhausted, TicketTableMoved
from sqla_tickets.concurrency import begin_task, wait_for_tasks
from sqla_tickets.draw import shared as shared_module
from sqla_tickets.draw.shared import SharedDraws, _Share, _SharedDraw, divide
from tests.support.draws import until

#: Longer than any loaded machine takes, in seconds.
FOR_EVER = 60.0


class Server:
    """Issues ascending numbers, and records how many each draw wanted; a draw may be made to fail or to wait.

    Attributes:
        wanted: how many tickets each draw wanted.
        error: raised by each draw.
        most: a draw of more tickets finds that too few are left.
        other_is_down: whether such a draw asks another server in vain.
    """

    def __init__(self) -> None:
        self.wanted: list[int] = []
        self.error: Exception | None = None
        self.most, self.other_is_down = 10**9, False
        self._next = 1

    def draw(self, name: str, n: int) -> list[range]:
        self.wanted.append(n)
        if self.error is not None:
            raise self.error
        if n > self.most:
            error = TicketsExhausted("too few are left")
            raise NoTicketServer("none", {"one": error}) if self.other_is_down else error
        first, self._next = self._next, self._next + n
        half = first + n // 2
        return [tickets for tickets in (range(first, half), range(half, first + n)) if tickets]


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(20) as pool:
        yield pool


def ignore(sequence: str, tickets: int, reason: str) -> None:
    """What is discarded is another test's topic."""


def are_in_flight() -> bool:
    """Other draws are, until a test lets the next one begin."""
    return True


def callers_of(shared: SharedDraws) -> int:
    """How many callers wait for draws that have not begun."""
    return sum(len(each.shares) for each in shared._open.values())


def gathered(
    shared: SharedDraws, server: Server, threads: ThreadPoolExecutor, wishes: list[int]
) -> list[Future[list[range] | None]]:
    """Callers with these wishes, in order, all of which wait for a draw that has not begun."""
    callers = list[Future[list[range] | None]]()
    for wish in wishes:
        callers.append(threads.submit(shared.draw, "photos", wish, server.draw, FOR_EVER))
        until(lambda: callers_of(shared) == len(callers))
    return callers


def tickets_of(callers: list[Future[list[range] | None]]) -> list[list[int]]:
    return [list(chain.from_iterable(caller.result(FOR_EVER) or ())) for caller in callers]


@contextmanager
def interrupted_by(handle: Callable[..., None]) -> Iterator[None]:
    """A signal that this handler answers comes soon."""
    before = signal.signal(signal.SIGALRM, handle)
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_one_draw_serves_all_that_came_before_it(threads: ThreadPoolExecutor) -> None:
    server = Server()
    shared = SharedDraws(ignore, are_in_flight)
    callers = gathered(shared, server, threads, [1, 5, 2])
    shared.let_next_begin()
    assert tickets_of(callers) == [[1], [2, 3, 4, 5, 6], [7, 8]]
    assert server.wanted == [8]
    assert (list(shared.waiting), shared._open) == ([], {})


def test_the_error_of_a_draw_reaches_each_of_its_callers(threads: ThreadPoolExecutor) -> None:
    """If they drew for themselves, hundreds of callers would ask servers that have just failed."""
    server = Server()
    server.error = NoTicketServer(
        "all are down", {"one": TicketTableMoved("gone", "media", "pics")}
    )
    server.error.__cause__ = OSError("no route")
    shared = SharedDraws(ignore, are_in_flight)
    callers = gathered(shared, server, threads, [1, 1, 1])
    shared.let_next_begin()
    errors = [caller.exception(FOR_EVER) for caller in callers]
    assert server.wanted == [3]
    assert len({id(error) for error in errors}) == 3, "each has its own traceback"
    for error in errors:
        assert isinstance(error, NoTicketServer)
        assert (str(error), error.failures) == ("all are down", server.error.failures)
        assert error.__cause__ is server.error.__cause__
    assert (list(shared.waiting), shared._open) == ([], {})


def test_followers_of_an_interrupted_leader_draw_for_themselves(
    threads: ThreadPoolExecutor,
) -> None:
    def interrupted(name: str, n: int) -> list[range]:
        raise KeyboardInterrupt

    server, shared = Server(), SharedDraws(ignore, are_in_flight)
    leader = threads.submit(shared.draw, "photos", 1, interrupted, FOR_EVER)
    until(lambda: callers_of(shared) == 1)
    follower = threads.submit(shared.draw, "photos", 1, server.draw, FOR_EVER)
    until(lambda: callers_of(shared) == 2)
    shared.let_next_begin()
    with pytest.raises(KeyboardInterrupt):
        leader.result(FOR_EVER)
    assert follower.result(FOR_EVER) is None
    assert (list(shared.waiting), shared._open) == ([], {})


def test_a_signal_handler_draws_while_its_thread_leads() -> None:
    """It leaves the draw that cannot go on before it returns, and lets it begin."""
    server, shared, drawn = Server(), SharedDraws(ignore, are_in_flight), list[list[range] | None]()

    def handle(*_: object) -> None:
        drawn.append(shared.draw("photos", 1, server.draw, 0.01))
        shared.let_next_begin()

    with interrupted_by(handle):
        assert shared.draw("photos", 1, server.draw, FOR_EVER) == [range(1, 2)]
    assert drawn == [None]


def test_the_last_tickets_are_still_drawn(threads: ThreadPoolExecutor) -> None:
    server = Server()
    server.most = 2
    shared = SharedDraws(ignore, are_in_flight)
    callers = gathered(shared, server, threads, [2, 1, 1])
    shared.let_next_begin()
    assert tickets_of(callers) == [[1, 2], [], []]
    assert server.wanted == [4, 2]


@pytest.mark.parametrize("other_is_down", [False, True])
def test_too_few_tickets_for_the_leader_may_be_enough_for_others(
    threads: ThreadPoolExecutor, *, other_is_down: bool
) -> None:
    server = Server()
    server.most, server.other_is_down = 2, other_is_down
    shared = SharedDraws(ignore, are_in_flight)
    leader, *followers = gathered(shared, server, threads, [5, 1, 1])
    shared.let_next_begin()
    with pytest.raises(NoTicketServer if other_is_down else TicketsExhausted):
        leader.result(FOR_EVER)
    assert [follower.result(FOR_EVER) for follower in followers] == [None, None]
    assert server.wanted == [7, 5]


def test_a_signal_handler_leaves_the_draw_of_its_own_thread_to_it() -> None:
    """Its leader goes on only when the handler has returned: the next draw is led by another caller."""
    server, shared, drawn = Server(), SharedDraws(ignore, are_in_flight), list[list[range] | None]()

    def handle(*_: object) -> None:
        drawn.append(shared.draw("photos", 1, server.draw, 0.01))
        drawn.append(shared.draw("photos", 1, server.draw, 0.01))
        shared.let_next_begin()

    with interrupted_by(handle):
        assert shared.draw("photos", 1, server.draw, FOR_EVER) == [range(2, 3)]
    assert drawn == [None, [range(1, 2)]]


def test_a_follower_waits_no_longer_than_it_may(threads: ThreadPoolExecutor) -> None:
    """It leaves without tickets, and none are drawn for it."""
    server, shared = Server(), SharedDraws(ignore, are_in_flight)
    (leader,) = gathered(shared, server, threads, [1])
    assert shared.draw("photos", 1, server.draw, 0.01) is None
    shared.let_next_begin()
    assert tickets_of([leader]) == [[1]]
    assert server.wanted == [1]


def test_tickets_of_a_follower_that_leaves_during_the_draw_are_discarded(
    threads: ThreadPoolExecutor,
) -> None:
    server, discarded, may_answer = Server(), list[tuple[str, int, str]](), threading.Event()

    def draw(name: str, n: int) -> list[range]:
        blocks = server.draw(name, n)
        assert may_answer.wait(FOR_EVER)
        return blocks

    shared = SharedDraws(lambda *told: discarded.append(told), are_in_flight)
    leader = threads.submit(shared.draw, "photos", 1, draw, FOR_EVER)
    until(lambda: callers_of(shared) == 1)
    follower = threads.submit(shared.draw, "photos", 1, draw, 0.5)
    until(lambda: callers_of(shared) == 2)
    shared.let_next_begin()
    assert follower.result(FOR_EVER) is None
    may_answer.set()
    assert tickets_of([leader]) == [[1]]
    assert (server.wanted, discarded) == ([2], [("photos", 1, "shared")])


def test_a_leader_that_nobody_lets_begin_begins() -> None:
    """The other draws may have ended before it waited."""
    shared = SharedDraws(ignore, are_in_flight)
    assert shared.draw("photos", 2, Server().draw, 0.01) == [range(1, 2), range(2, 3)]
    assert not shared.waiting


def test_a_leader_waits_for_no_draws_that_have_ended() -> None:
    """They may end after it was found that it must wait."""
    shared = SharedDraws(ignore, lambda: False)
    assert shared.draw("photos", 1, Server().draw, FOR_EVER) == [range(1, 2)]
    assert not shared.waiting


def test_tasks_share_a_draw_with_tasks_of_their_loop() -> None:
    server = Server()
    shared = SharedDraws(ignore, are_in_flight)

    async def work() -> list[list[range] | None]:
        tasks = [
            asyncio.create_task(greenlet_spawn(shared.draw, "photos", 2, server.draw, FOR_EVER))
            for _ in range(3)
        ]
        await asyncio.sleep(0)
        assert callers_of(shared) == 3
        threading.Thread(target=shared.let_next_begin).start()  # a thread's draw has ended
        return await asyncio.gather(*tasks)

    assert asyncio.run(work()) == [[range(1, 3)], [range(3, 4), range(4, 5)], [range(5, 7)]]
    assert server.wanted == [6]


@pytest.mark.parametrize("left", [0, 1])
def test_a_cancelled_caller_ends_no_draw_of_others(left: int) -> None:
    """Also the one that began it; nothing is drawn for those that have left."""
    server, shared = Server(), SharedDraws(ignore, are_in_flight)

    async def work() -> list[list[range] | BaseException | None]:
        callers = [
            asyncio.create_task(greenlet_spawn(shared.draw, "photos", 1, server.draw, FOR_EVER))
            for _ in range(3)
        ]
        await asyncio.sleep(0)
        assert callers_of(shared) == 3
        callers.pop(left).cancel()
        await asyncio.sleep(0)
        shared.let_next_begin()
        return await asyncio.gather(*callers)

    assert asyncio.run(work()) == [[range(1, 2)], [range(2, 3)]]
    assert server.wanted == [2]
    assert (list(shared.waiting), shared._open) == ([], {})


def test_nothing_is_drawn_when_all_have_left() -> None:
    server, shared = Server(), SharedDraws(ignore, are_in_flight)

    async def work() -> None:
        caller = asyncio.create_task(
            greenlet_spawn(shared.draw, "photos", 1, server.draw, FOR_EVER)
        )
        await asyncio.sleep(0)
        caller.cancel()
        await asyncio.wait([caller])
        shared.let_next_begin()
        await greenlet_spawn(wait_for_tasks, FOR_EVER)  # as `dispose()` does

    asyncio.run(work())
    assert server.wanted == []


def test_the_callers_of_a_draw_that_was_cancelled_with_all_tasks_draw_for_themselves() -> None:
    """Also if it has not begun to run."""
    shared = SharedDraws(ignore, are_in_flight)

    async def work() -> list[list[range] | BaseException | None]:
        callers = [
            asyncio.create_task(greenlet_spawn(shared.draw, "photos", 1, Server().draw, FOR_EVER))
            for _ in range(2)
        ]
        await asyncio.sleep(0)
        (draw,) = asyncio.all_tasks() - {*callers, asyncio.current_task()}
        draw.cancel()
        return await asyncio.gather(*callers, return_exceptions=True)

    assert asyncio.run(work()) == [None, None]
    assert (list(shared.waiting), shared._open) == ([], {})


def test_a_draw_of_tasks_that_is_interrupted_before_it_begins_keeps_no_caller_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As by a signal handler of the main thread, whose exception ends whatever runs."""
    shared, interrupt = SharedDraws(ignore, are_in_flight), RuntimeError("the time is over")

    def begin_interrupted(work: Callable[[], None], name: str) -> asyncio.Task[None]:
        def end() -> None:
            raise interrupt

        return begin_task(end, name)

    monkeypatch.setattr(shared_module, "begin_task", begin_interrupted)

    async def work() -> list[list[range] | BaseException | None]:
        callers = [
            asyncio.create_task(greenlet_spawn(shared.draw, "photos", 1, Server().draw, FOR_EVER))
            for _ in range(2)
        ]
        return await asyncio.wait_for(asyncio.gather(*callers, return_exceptions=True), FOR_EVER)

    assert asyncio.run(work()) == [interrupt, None]
    assert (list(shared.waiting), shared._open) == ([], {})


def test_tasks_that_their_loop_begins_at_once_share_a_draw() -> None:
    """A draw that waits gets its own answers, and each caller gets what it waits for."""
    server, shared = Server(), SharedDraws(ignore, are_in_flight)

    def draw(name: str, n: int) -> list[range]:
        assert await_only(asyncio.sleep(0, "an answer to the draw")) == "an answer to the draw"
        return server.draw(name, n)

    def call() -> list[range] | None:
        blocks = shared.draw("photos", 1, draw, FOR_EVER)
        assert await_only(asyncio.sleep(0, "an answer to it")) == "an answer to it"
        return blocks

    async def work() -> list[list[range] | None]:
        asyncio.get_running_loop().set_task_factory(begun_at_once)  # type: ignore[arg-type]  # of coroutines only
        callers = [asyncio.create_task(greenlet_spawn(call)) for _ in range(2)]
        asyncio.get_running_loop().set_task_factory(None)
        shared.let_next_begin()
        return await asyncio.wait_for(asyncio.gather(*callers), FOR_EVER)

    assert asyncio.run(work()) == [[range(1, 2)], [range(2, 3)]]


def begun_at_once(
    loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Any], **options: Any
) -> asyncio.Task[Any]:
    """As `asyncio.eager_task_factory`, which Python 3.12 has, for work that waits at once."""
    awaited = work.send(None)

    @types.coroutine
    def rest() -> Generator[Any, Any, Any]:
        nonlocal awaited
        try:
            while True:
                awaited = work.send((yield awaited))
        except StopIteration as end:
            return end.value

    async def go_on() -> Any:
        return await rest()

    return asyncio.Task(go_on(), loop=loop, **options)


def test_a_caller_that_follows_just_after_the_end_does_not_wait(
    threads: ThreadPoolExecutor,
) -> None:
    """It was held up between finding the draw and following it, so nobody would wake it."""
    found: list[_SharedDraw] = []

    def find_it() -> bool:
        found.extend(shared.waiting)
        return False

    server, shared = Server(), SharedDraws(ignore, find_it)
    assert shared.draw("photos", 1, server.draw, FOR_EVER) == [range(1, 2)]
    shared._open[found[0].key] = found[0]
    late = threads.submit(shared.draw, "photos", 1, server.draw, FOR_EVER)
    assert late.result(FOR_EVER / 2) is None


def test_the_error_of_a_draw_of_tasks_is_raised_by_those_that_wait(
    caplog: pytest.LogCaptureFixture,
) -> None:
    server, shared = Server(), SharedDraws(ignore, are_in_flight)
    server.error = NoTicketServer("all are down", {})

    async def work(*, leave: bool) -> list[list[range] | BaseException | None]:
        callers = [
            asyncio.create_task(greenlet_spawn(shared.draw, "photos", 1, server.draw, FOR_EVER))
            for _ in range(2)
        ]
        await asyncio.sleep(0)
        if leave:
            callers.pop(0).cancel()
            await asyncio.sleep(0)
        shared.let_next_begin()
        return await asyncio.gather(*callers, return_exceptions=True)

    leader, follower = asyncio.run(work(leave=False))
    assert leader is server.error
    assert follower is not leader
    assert repr(follower) == repr(leader)
    (follower,) = asyncio.run(work(leave=True))
    assert repr(follower) == repr(leader)
    gc.collect()
    assert not caplog.records


def test_draws_of_a_loop_that_was_closed_are_forgotten() -> None:
    shared = SharedDraws(ignore, are_in_flight)
    loop = asyncio.new_event_loop()
    leader = loop.create_task(greenlet_spawn(shared.draw, "photos", 1, Server().draw, FOR_EVER))
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    assert shared.draw("photos", 1, Server().draw, 0.0) == [range(1, 2)]
    shared.let_next_begin()
    assert (list(shared.waiting), shared._open) == ([], {})
    del leader


@given(
    st.lists(st.integers(1, 9), min_size=1, max_size=12),
    st.lists(st.integers(1, 9), max_size=12),
)
def test_no_ticket_has_two_receivers(wishes: list[int], sizes: list[int]) -> None:
    """However the blocks and the wishes meet, and whichever are more."""
    blocks = [range(100 * n + 1, 100 * n + 1 + 2 * size, 2) for n, size in enumerate(sizes)]
    shares = [_Share(n, None) for n in wishes]
    unused = divide(blocks, shares)
    received = [list(chain.from_iterable(share.tickets)) for share in shares]
    tickets = list(chain.from_iterable(blocks))
    assert list(chain.from_iterable(received)) == tickets[: sum(wishes)]
    assert unused == max(0, len(tickets) - sum(wishes))
    assert all(len(got) <= n for got, n in zip(received, wishes, strict=True))
