"""What a call that is shared leaves behind when the event loop of its caller ends in the middle of it."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from sqlalchemy.util import greenlet_spawn

from sqla_tickets import concurrency
from sqla_tickets.concurrency import (
    SharedCall,
    SingleFlight,
    begun,
    in_background,
    in_event_loop,
    in_time,
    pause,
    timestamps,
    wait_for_tasks,
)

FOR_EVER = 3600.0


def call(calls: SingleFlight[str], seconds: float) -> bool:
    """Make the call, unless another caller makes it; whether this one did."""
    own = SharedCall()
    with own.under_way:
        shared = calls.of("photos", own)
        if shared is own:
            pause(seconds)
            own.is_done = True
        return shared is own


def test_call_that_is_cancelled_is_made_by_the_next_event_loop() -> None:
    calls = SingleFlight[str]()

    async def give_up() -> None:
        await asyncio.wait_for(greenlet_spawn(call, calls, FOR_EVER), 0.01)

    with contextlib.suppress(asyncio.TimeoutError):
        asyncio.run(give_up())
    assert asyncio.run(greenlet_spawn(call, calls, 0.0))


def test_call_whose_event_loop_was_closed_is_made_by_the_next_one() -> None:
    """The task is pending for ever, and its caller may keep it."""
    calls, loop = SingleFlight[str](), asyncio.new_event_loop()
    pending = loop.create_task(greenlet_spawn(call, calls, FOR_EVER))
    loop.run_until_complete(asyncio.sleep(0.01))
    loop.close()
    assert not pending.done()
    assert asyncio.run(greenlet_spawn(call, calls, 0.0))


def test_background_call_has_the_timestamp_of_the_first_one() -> None:
    """In a task as in a thread; what its caller does later is later."""
    told: list[int] = []

    def work() -> None:
        told.append(begun())
        in_background(lambda: told.append(begun()), "second", in_a_task=True)

    def call() -> None:
        told.append(begun())
        in_background(work, "first", in_a_task=True)
        told.append(begun())
        wait_for_tasks(1)
        wait_for_tasks(1)

    asyncio.run(greenlet_spawn(call))
    before, after, first, second = told
    assert before < first == second < after


def test_task_that_outlives_its_background_call_is_none() -> None:
    """A listener may start one: `dispose` ends the call, and not what the user's task opens for ever."""

    async def outlive(is_over: asyncio.Event) -> int:
        await is_over.wait()
        return begun()

    async def work() -> None:
        is_over, tasks = asyncio.Event(), list[asyncio.Task[int]]()

        def listener() -> None:
            tasks.append(asyncio.get_running_loop().create_task(outlive(is_over)))

        def call() -> None:
            in_background(listener, "call", in_a_task=True)
            wait_for_tasks(1)

        await greenlet_spawn(call)
        disposed_at = next(timestamps)
        is_over.set()
        assert await tasks[0] > disposed_at

    asyncio.run(work())


async def test_cancellation_just_as_the_work_ends_is_not_lost() -> None:
    """`asyncio.wait_for` loses it before Python 3.12."""
    over = asyncio.Event()
    waiting = asyncio.ensure_future(in_time(over.wait(), FOR_EVER))
    await asyncio.sleep(0)  # one step for each of the two tasks
    await asyncio.sleep(0)
    over.set()
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_work_that_takes_too_long_is_cancelled() -> None:
    work = asyncio.ensure_future(asyncio.sleep(FOR_EVER))

    async def wait_for_it() -> None:
        await work

    with pytest.raises(TimeoutError, match=r"no answer within 0\.01 seconds"):
        await in_time(wait_for_it(), 0.01)
    assert work.cancelled()


def test_greenlet_is_asked_only_where_an_event_loop_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """It keeps something for each thread that asks, which crashes a free-threaded interpreter when the thread ends."""
    asked: list[bool] = []

    def in_greenlet() -> bool:
        asked.append(True)
        return True

    async def in_loop() -> bool:
        return in_event_loop()

    monkeypatch.setattr(concurrency, "in_greenlet", in_greenlet)
    assert not in_event_loop()
    assert not asked
    assert asyncio.run(in_loop())
