"""Whatever happens in whatever order: no ticket twice, and each server's tickets ascend.

Hypothesis makes up stories of draws, fetches, lost and late answers, failing servers, forks, other
clients and servers that are set back, and looks for one that breaks a promise. A real pool plays in them,
on files of SQLite behind a driver that fails at any point it is told to.

No story depends on the time or on chance: the clock is the story's, threads run while it waits for
them, and without ``STORIES`` the same stories are told each time. ``STORIES=5000`` tells new ones.
"""

from __future__ import annotations

import itertools
import logging
import os
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from sqla_tickets import pool as pool_module
from sqla_tickets.arguments import BlockBounds
from sqla_tickets.draw import buffer, circuit_breaker, failover, health_check, table_state
from sqla_tickets.draw.timing import TIMING
from sqla_tickets.high_water import peer, service, store
from tests.support.fake_driver import Health, Moment, Server
from tests.support.timing import set_timing
from tests.support.workers import Clock, Command, Fork, PausedDraw, Process, View, WatchedPool

#: Buffered in blocks.
HELD = "photos"
#: Drawn when it is needed.
PLAIN = "albums"
SEQUENCES = (HELD, PLAIN)
BLOCKS = st.sampled_from([5, 20, 100, (2, 50)])
#: How many blocks a process compares new ones with; most repeats of theirs, either of two checks would find.
REMEMBERED = st.sampled_from([1, TIMING.remembered_blocks])


class Story(RuleBasedStateMachine):
    """One pool, its servers and its processes."""

    clock: Clock
    files: Iterator[Path]
    remember: Callable[[int], None]
    pool: WatchedPool | None = None

    @initialize(
        count=st.integers(1, 3), spare=st.integers(0, 2), block=BLOCKS, remembered=REMEMBERED
    )
    def begin(self, count: int, spare: int, block: int | BlockBounds, remembered: int) -> None:
        type(self).remember(remembered)
        self.block, self.stride = block, count + spare
        self.servers = [Server(next(self.files)) for _ in range(count)]
        pool = type(self).pool = WatchedPool(self.servers, self.stride, self.clock)
        for sequence in SEQUENCES:
            pool.create_table(sequence)
        self.me = Process(pool, self.servers)
        self.forks: list[Fork] = []
        self.paused_draws: list[PausedDraw] = []
        self.issued: defaultdict[str, set[int]] = defaultdict(set)
        #: The last ticket of each table that another process drew, or its first.
        self.others = {
            (sequence, index): server.last(sequence)
            for index, server in enumerate(self.servers)
            for sequence in SEQUENCES
        }
        self.starts = dict(self.others)
        self.set_back: set[tuple[str, int]] = set()

    def teardown(self) -> None:
        if type(self).pool is None:
            return
        for paused in self.paused_draws:
            paused.finish()
        for fork in self.forks:
            fork.end()
        self.me.pool.dispose()
        for server in self.servers:
            server.close()
        type(self).pool = None

    # -- what has to hold

    def check(self, view: View, sequence: str) -> None:
        assert not view.faults, view.faults
        assert len(set(view.ids)) == len(view.ids), f"issued twice at once: {view.ids}"
        again = self.issued[sequence].intersection(view.ids)
        assert not again, f"issued twice: {sorted(again)}"
        self.issued[sequence].update(view.ids)
        for index, is_quarantined in enumerate(view.quarantined):
            was_set_back = (sequence, index) in self.set_back
            assert was_set_back or not is_quarantined, f"server {index} has done nothing wrong"

    def must_give(self, process: Process, sequence: str) -> list[int]:
        """The servers that have no reason to refuse a ticket."""
        (high_waters, quarantined) = process.known(sequence)
        return [
            index
            for index, server in enumerate(self.servers)
            if server.health is Health.WELL
            and not quarantined[index]
            and not self.is_old(index, sequence, high_waters)
        ]

    def is_old(self, index: int, sequence: str, high_waters: list[int]) -> bool:
        """Whether a process knows better than a server what it has issued."""
        return self.servers[index].last(sequence) + self.stride <= high_waters[index]

    # -- what happens

    @rule(
        who=st.integers(0, 2),
        sequence=st.sampled_from(SEQUENCES),
        n=st.integers(1, 30),
        one_by_one=st.booleans(),
    )
    def draw(self, who: int, sequence: str, n: int, one_by_one: bool) -> None:
        block = self.block if sequence == HELD else 1
        view = self.perform(who, Command(sequence, n, block, one_by_one))
        assert len(view.ids) == n or view.error

    @rule(who=st.integers(0, 2))
    def fetch(self, who: int) -> None:
        """The fetches of a process are carried out."""
        self.perform(who, Command(HELD))

    def perform(self, who: int, command: Command) -> View:
        """See what a process does, and that it has a reason when it gives too little."""
        processes = [self.me, *self.forks]
        process = processes[who % len(processes)]
        sequence = command.sequence
        well = self.must_give(process, sequence)
        (high_waters, _) = process.known(sequence)
        old = [p for p in range(len(self.servers)) if self.is_old(p, sequence, high_waters)]
        before = [server.last(sequence) for server in self.servers]
        view = process.perform(command)
        self.check(view, sequence)
        assert not (well and view.error), f"servers {well} are well: {view.error}"
        for index, server in enumerate(self.servers):
            last = server.last(sequence)
            if last == before[index]:
                continue
            assert (sequence, index) not in process.quarantined, "an old table is drawn from again"
            if index in old and server.health is Health.WELL:
                assert view.quarantined[index], "an old table is not noticed"
                process.quarantined.add((sequence, index))
            if process is not self.me:
                self.others[sequence, index] = last
        return view

    @precondition(lambda self: len(self.paused_draws) < 4)
    @rule(
        sequence=st.sampled_from(SEQUENCES),
        n=st.integers(0, 40),
        moment=st.sampled_from(["before", "after"]),
    )
    def begin_a_draw(self, sequence: str, n: int, moment: Moment) -> None:
        """A thread begins to draw, or to fetch, and is overtaken by whatever comes then."""
        command = Command(sequence, n, self.block if sequence == HELD else 1)
        self.paused_draws.append(PausedDraw(self.me, command, moment))

    @precondition(lambda self: self.paused_draws)
    @rule(which=st.integers(0, 3))
    def end_a_draw(self, which: int) -> None:
        paused = self.paused_draws.pop(which % len(self.paused_draws))
        self.check(paused.finish(), paused.command.sequence)

    @rule(index=st.integers(0, 2), health=st.sampled_from(Health))
    def change(self, index: int, health: Health) -> None:
        self.servers[index % len(self.servers)].health = health

    @rule(seconds=st.sampled_from([0.01, 1, 60, 700]), disposes=st.booleans())
    def wait(self, seconds: float, disposes: bool) -> None:
        self.clock.now += seconds
        if disposes:
            self.me.pool.dispose()

    @rule()
    def recover(self) -> None:
        """Every server that is back gives tickets again."""
        for server in self.servers:
            server.health = Health.WELL
        missing = set(self.must_give(self.me, PLAIN))
        for _ in range(4 * len(self.servers)):
            self.clock.now += TIMING.longest_wait_seconds
            view = self.perform(0, Command(PLAIN, 1))
            missing -= {(ticket - 1) % self.stride for ticket in view.ids}
        assert not missing or self.paused_draws, f"servers {missing} are not asked again"

    @rule(index=st.integers(0, 2), sequence=st.sampled_from(SEQUENCES))
    def draw_as_a_stranger(self, index: int, sequence: str) -> None:
        index %= len(self.servers)
        if (sequence, index) not in self.set_back:
            ticket = self.servers[index].draw_as_a_stranger(sequence, self.stride)
            assert ticket not in self.issued[sequence]
            self.issued[sequence].add(ticket)
            self.others[sequence, index] = ticket

    @precondition(lambda self: len(self.forks) < 2)
    @rule(is_told=st.booleans(), n=st.integers(1, 9), one_by_one=st.booleans())
    def fork(self, is_told: bool, n: int, one_by_one: bool) -> None:
        self.draw(0, HELD, n, one_by_one)
        self.forks.append(Fork(self.me, SEQUENCES, is_told=is_told))
        self.draw(len(self.forks), HELD, n, one_by_one)

    @precondition(lambda self: self.forks)
    @rule(which=st.integers(0, 1))
    def end_a_fork(self, which: int) -> None:
        self.forks.pop(which % len(self.forks)).end()

    @rule(
        first=st.integers(0, 2),
        sequence=st.sampled_from(SEQUENCES),
        by=st.integers(1, 20),
        then_draws=st.integers(0, 3),
    )
    def restore_an_old_backup(self, first: int, sequence: str, by: int, then_draws: int) -> None:
        """As far as this process can know of it: what is lost, it was given itself, or knows to be.

        No connection outlives the restart: none waits for this server meanwhile.
        """
        while self.forks:
            self.forks.pop().end()
        for ahead in SEQUENCES:
            self.draw(0, ahead, 3, one_by_one=False)
        in_use = [paused.gate.server for paused in self.paused_draws]
        for number in range(len(self.servers)):
            index = (number + first) % len(self.servers)
            server = self.servers[index]
            last = server.last(sequence)
            target = max(last - by * self.stride, self.starts[sequence, index])
            is_noticed = target + self.stride <= self.me.pool.given[sequence, index]
            is_known = is_noticed or target >= self.others[sequence, index]
            if target < last and is_known and server not in in_use:
                server.set_back(sequence, target)
                self.set_back.add((sequence, index))
                for _ in range(then_draws if sequence == PLAIN else 0):
                    self.perform(0, Command(PLAIN, 1))
                return


def at_once(work: Callable[[], None], name: str, *, in_a_task: bool, timestamp: int = 0) -> bool:
    work()
    return True


def when_told(work: Callable[[], None], name: str, *, in_a_task: bool) -> bool:
    assert Story.pool is not None
    Story.pool.fetches.append(work)
    return True


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_stories(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    Story.clock, Story.files = Clock(), (tmp_path / f"{n}.db" for n in itertools.count())
    Story.remember = lambda blocks: set_timing(monkeypatch, table_state, remembered_blocks=blocks)
    monkeypatch.setattr(circuit_breaker, "time", Story.clock)
    monkeypatch.setattr(failover, "pause", Story.clock.pause)
    monkeypatch.setattr(failover, "time", Story.clock)
    for module in (service, peer, store):
        monkeypatch.setattr(module, "time", Story.clock)
    for module in (buffer, pool_module):
        monkeypatch.setattr(module, "elapsed", Story.clock.monotonic)
    monkeypatch.setattr(health_check, "in_background", at_once)
    monkeypatch.setattr(pool_module, "in_background", when_told)
    logging.getLogger("sqla_tickets").setLevel(logging.CRITICAL + 1)
    new_ones = os.environ.get("STORIES")
    try:
        run_state_machine_as_test(
            Story,
            settings=settings(
                max_examples=int(new_ones or 50),
                derandomize=new_ones is None,
                database=None,
                # to make a story short can take minutes
                phases=[Phase.generate, *([Phase.shrink] if new_ones else [])],
                stateful_step_count=40,
                deadline=None,
                print_blob=True,
                suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
            ),
        )
    finally:
        logging.getLogger("sqla_tickets").setLevel(logging.NOTSET)
