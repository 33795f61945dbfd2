"""What might make an id repeat although every lease is kept: copies, forks in the middle, pools that disagree."""

from __future__ import annotations

import copy
import os
import sys
import threading
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import pytest
from sqlalchemy import URL

from sqla_tickets import SNOWFLAKE, BitLayout, NodeIdsExhausted, SnowflakeGenerator, TicketPool
from sqla_tickets import concurrency as clock
from sqla_tickets.snowflake import generator
from sqla_tickets.snowflake.allocator import allocator_of
from tests.integration.snowflake.conftest import OpenPool
from tests.integration.snowflake.test_leases import TWO, node_of, wait_until_over
from tests.support.draws import in_fork, run


@pytest.mark.parametrize("n", [1, 2])
def test_two_copies_of_a_process(files: list[URL], open_pool: OpenPool, n: int) -> None:
    """As of a machine whose image is resumed twice, later: both have the lease, and think it theirs."""
    seconds = 0.5
    pools = [open_pool(files[:n], seconds) for _ in range(2)]
    first, second = (SnowflakeGenerator(pool, "photos") for pool in pools)
    node = node_of(first)
    leases = allocator_of(pools[0])._leases
    allocator_of(pools[1])._leases = {bits: copy.copy(lease) for bits, lease in leases.items()}
    assert node_of(second) == node
    wait_until_over(seconds)
    ids = [number for _ in range(50) for made in (second, first) for number in made.next_ids(3)]
    assert SNOWFLAKE.decode(ids[0]).node == node  # who asks first keeps it
    assert SNOWFLAKE.decode(ids[-1]).node != node
    assert len(set(ids)) == len(ids)


@pytest.mark.parametrize("renews_late", [False, True])
def test_a_backup_from_before_a_number_had_another_owner(
    files: list[URL], open_pool: OpenPool, *, renews_late: bool
) -> None:
    """Also for a process that was frozen at the beginning of a renewal, which asks no peer."""
    seconds = 0.5
    sleeper = SnowflakeGenerator(open_pool(files, seconds), "photos", TWO)
    node = node_of(sleeper)
    lease = sleeper._leases.lease(TWO.node)
    home = files[0 if node % 2 else 1]
    backup = f"SELECT owner, fence, horizon FROM ticket_nodes WHERE node = {node}"
    ((owner, fence, horizon),) = run(home, backup)
    wait_until_over(seconds)
    run(home, "UPDATE ticket_nodes SET owner = '', fence = fence + 1")  # it was seen dead
    heirs = [SnowflakeGenerator(open_pool(files), "photos", TWO) for _ in range(2)]
    assert {node_of(heir) for heir in heirs} == {0, 1}
    values = f"owner = '{owner}', fence = {fence}, horizon = {horizon}"
    run(home, f"UPDATE ticket_nodes SET {values} WHERE node = {node}")
    if renews_late:
        sleeper._leases._try_to_renew(lease)
        assert not lease.is_live
    with pytest.raises(NodeIdsExhausted):  # the number is its heir's
        sleeper.next_id()
    assert {node_of(heir) for heir in heirs} == {0, 1}


def test_a_clock_that_steps_while_a_number_is_taken(
    files: list[URL], open_pool: OpenPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    hour = 3_600_000_000
    right = clock.wall

    def step(by: int) -> None:
        monkeypatch.setattr(clock, "wall", lambda: right() + by)

    step(hour)
    first = open_pool(files[:1])
    last = SnowflakeGenerator(first, "photos", TWO).next_ids(3)[-1]
    first.dispose()
    times = iter([0])  # when the claim is made; then it steps
    monkeypatch.setattr(clock, "wall", lambda: right() + next(times, 2 * hour))
    second = open_pool(files[:1])
    assert TWO.decode(last).node == allocator_of(second).lease(TWO.node).node
    step(0)
    ((horizon,),) = run(files[0], "SELECT max(horizon) FROM ticket_nodes")
    assert int(str(horizon)) >= TWO.decode(last).time.timestamp() * 1_000_000


def forked_below_python(made: SnowflakeGenerator) -> None:
    """What the kernel does to every mark in a child of which Python is not told."""
    marks: list[Any] = [made._leases.is_owner_process, made._ready.is_owner_process]
    for here in marks:
        here[0] = 0


on_linux = pytest.mark.skipif(sys.platform != "linux", reason="others ask for the process id")


@on_linux
def test_threads_of_a_fork_below_python(pool: TicketPool) -> None:
    made = SnowflakeGenerator(
        pool, "photos", BitLayout(39, 10, 12, unit=100, epoch=SNOWFLAKE.epoch)
    )
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    numbers = count()

    def work() -> list[int]:
        if next(numbers) % 2:  # as the first draw of a ticket does
            pool._reinit_after_fork()
        return [made.next_id() for _ in range(20)]

    try:
        for _ in range(6):
            of_parent = {made.next_id(), *made._ready._all}
            forked_below_python(made)
            ids = in_threads(work, 4)
            assert len(set(ids)) == len(ids) == 80
            assert of_parent.isdisjoint(ids)
    finally:
        sys.setswitchinterval(interval)


@on_linux
def test_a_thread_that_reads_its_tick_late(
    pool: TicketPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has taken one of the parent's ids, and another thread was told of the fork before it looks."""
    made = SnowflakeGenerator(pool, "photos")
    made.next_id()
    of_parent = set(made._ready._all)
    assert of_parent
    others = list[int]()
    late = Late(made, after=lambda: others.extend(in_threads(lambda: made.next_ids(1), 1)))
    forked_below_python(made)
    monkeypatch.setattr(generator, "time", lambda: late.ready.begins)
    assert made.next_id() not in of_parent
    assert len(others) == 1


def test_a_thread_whose_ids_another_has_taken_back(
    pool: TicketPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is about to take an id of the buffered ones while the other one makes many at once of them."""
    made = SnowflakeGenerator(pool, "photos")
    for make in (lambda: made.next_ids(5), lambda: [made._stop()]):
        first = made.next_id()
        others = list[int]()
        late = Late(made, before=lambda: others.extend(in_threads(make, 1)))  # noqa: B023  # called at once
        with monkeypatch.context() as patch:
            patch.setattr(generator, "time", lambda: late.ready.begins)  # noqa: B023
            ids = [made.next_id() for _ in range(3)]
        assert others
        assert min(ids) > first
        assert len({first, *ids, *others}) == 4 + len(others)


def do_nothing() -> None:
    pass


class Late(Iterator[int]):
    """The buffered ids, for a thread that is held up once before or after it takes a number."""

    def __init__(
        self,
        made: SnowflakeGenerator,
        before: Callable[[], object] = do_nothing,
        after: Callable[[], object] = do_nothing,
    ) -> None:
        self.ready, self._actions = made._ready, [before, after]
        self._numbers, self.ready.numbers = self.ready.numbers, self

    def __next__(self) -> int:
        before, after = self._actions
        self._actions = [do_nothing, do_nothing]
        before()
        number = next(self._numbers)
        after()
        return number


@on_linux
def test_threads_of_a_fork_share_a_lock(pool: TicketPool) -> None:
    made = SnowflakeGenerator(pool, "photos")
    made.next_id()
    forked_below_python(made)
    lock = made._lock()
    pool._reinit_after_fork()
    assert made._lock() is lock


def in_threads(work: Callable[[], list[int]], n: int) -> list[int]:
    ready, found = threading.Barrier(n), list[int]()

    def one() -> None:
        ready.wait()
        found.extend(work())

    threads = [threading.Thread(target=one) for _ in range(n)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_fork_while_ids_are_being_made(
    files: list[URL], open_pool: OpenPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a signal's handler, say, which interrupts at any moment."""
    made = SnowflakeGenerator(open_pool(files), "photos")
    made.next_ids(3)
    run_of = SnowflakeGenerator._run

    def fork_within(fork: Callable[[], None]) -> None:
        def run_in_both(self: SnowflakeGenerator, *arguments: Any) -> range:
            monkeypatch.undo()
            fork()
            return run_of(self, *arguments)

        monkeypatch.setattr(SnowflakeGenerator, "_run", run_in_both)

    ids, theirs = in_parent_and_child(fork_within, lambda: made.next_ids(5))
    assert len(theirs) == len(ids) == 5
    assert set(ids).isdisjoint(theirs)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_fork_before_and_after_an_id_is_taken(pool: TicketPool) -> None:
    made = SnowflakeGenerator(
        pool, "photos", BitLayout(39, 10, 12, unit=100, epoch=SNOWFLAKE.epoch)
    )
    for moment in ("before", "after"):
        made.next_id()
        ids, theirs = in_parent_and_child(
            lambda fork: Late(made, **{moment: fork}),  # noqa: B023  # called at once
            lambda: [made.next_id() for _ in range(5)],
        )
        assert len(theirs) == len(ids) == 5
        assert set(ids).isdisjoint(theirs)


def in_parent_and_child(
    fork_within: Callable[[Callable[[], None]], object], make: Callable[[], list[int]]
) -> tuple[list[int], list[int]]:
    """What both of them make when the process forks within; ``fork_within`` gets what is to be called then."""
    reading, writing = os.pipe()
    children = list[int]()
    ids = list[int]()
    try:
        fork_within(lambda: children.append(os.fork()))
        ids = make()
    finally:
        if children == [0]:
            os.write(writing, " ".join(map(str, ids)).encode())
            os._exit(0)
        os.close(writing)
    with os.fdopen(reading) as pipe:
        theirs = [int(number) for number in pipe.read().split()]
    os.waitpid(children[0], 0)
    return ids, theirs


@pytest.mark.ticket_servers("mariadb", "sqlite")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_forks_while_the_lease_is_renewed(ticket_urls: list[URL], open_pool: OpenPool) -> None:
    seconds = 0.3
    made = SnowflakeGenerator(open_pool(ticket_urls, seconds), "photos")
    ids: list[int] = []
    end = clock.elapsed() + 4 * seconds
    while clock.elapsed() < end:
        ids += [made.next_id() for _ in range(50)]
        theirs = in_fork(lambda: " ".join(map(str, (made.next_id(), *made.next_ids(5)))))
        ids += map(int, theirs.split())
    assert len(set(ids)) == len(ids)
