"""An interrupt at any line, as Ctrl-C is one, leaves the pool as it was."""

from __future__ import annotations

import gc
import itertools
import math
import os
import random
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from sqlalchemy import URL, MetaData

from sqla_tickets import NodeLeases, SnowflakeGenerator, TicketPool, TicketSequence
from sqla_tickets.high_water import peer, service, store
from sqla_tickets.high_water.timing import TIMING
from sqla_tickets.maintenance import operations
from sqla_tickets.snowflake.allocator import allocator_of
from tests.support.draws import assert_unique, until
from tests.support.interrupts import LONG, Interrupt, at_rest, in_another_thread, monitors
from tests.support.servers import ServerFixtures
from tests.support.tcp_proxy import Fault, TcpProxy
from tests.support.timing import set_timing

#: How many lines of an operation are interrupted at.
MOST = 25
#: The same where the soak run takes all of them.
SOME = 12
#: The soak run takes all of them, as far as it comes in so many seconds for each operation.
SECONDS = float(os.environ.get("TICKETS_SOAK_SECONDS", "5")) / 2
#: After so many faults, others tell no more.
ENOUGH = 5
#: So many ids that they take two hundred ticks of the past, too.
MANY = 4096 * 200

# A connection that an interrupt came by is closed when it is collected.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
BLOCKS = TicketSequence("photos", block=10)


@dataclass
class Site:
    """What is interrupted: two pools on the same servers all the time, and opened anew each time.

    Attributes:
        first: the pool that is drawn from.
        second: where a sequence can move to.
        ids: all that were ever returned, by the names of their sequences.
        number: how often it was opened.
        strangers: the monitors of pools that earlier tests have left to the garbage collector.
    """

    urls: Sequence[URL | str]
    others: Sequence[URL | str]
    ids: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    number: int = 0
    strangers: set[threading.Thread] = field(default_factory=monitors)

    def open(self) -> None:
        self.number += 1
        self.first, self.second = TicketPool(self.urls), TicketPool(self.others, name="second")
        self.metadata = MetaData()
        for pool in self.pools:
            pool.attach(self.metadata)

    def create(self) -> None:
        """The tables of the pool that is drawn from."""
        self.first.create_table("photos")
        NodeLeases(self.first).create_table()

    @property
    def pools(self) -> tuple[TicketPool, TicketPool]:
        return self.first, self.second

    @property
    def mover(self) -> str:
        """A sequence of this time's own."""
        return f"mover{self.number}"

    def draw(self, n: int = 1) -> None:
        for _ in range(n):
            self.ids["photos"].append(self.first.next_id("photos"))

    def draw_blocks(self, n: int = 1) -> None:
        self.ids["photos"] += self.first.next_ids(BLOCKS, 3)
        for _ in range(n):
            self.ids["photos"].append(self.first.next_id(BLOCKS))

    def draw_far(self) -> None:
        """So many tickets that the draw waits for the peer's mark."""
        blocks = self.first.reserve("photos", 2 * TIMING.lead_tickets)
        self.ids["photos"] += [ticket for block in blocks for ticket in (block[0], block[-1])]

    def make(self, n: int = 1) -> None:
        for _ in range(n):
            self.ids["nodes"].append(SnowflakeGenerator(self.first, "nodes").next_id())

    def use(self) -> None:
        self.draw(3)
        self.make()

    def begin_to_move(self) -> None:
        self.first.create_table(self.mover)
        self.ids[self.mover] += self.first.next_ids(self.mover, 3)

    def move(self) -> None:
        operations.move(self.first, self.mover, self.second)
        self.ids[self.mover].append(self.first.next_id(self.mover))

    def renew(self) -> None:
        for lease in allocator_of(self.first)._leases.values():
            lease.renew_at = 0.0
        self.make()

    def extend(self) -> None:
        for lease in allocator_of(self.first)._leases.values():
            lease.deadline = 0.0
        self.make()

    def write_marks(self) -> None:
        self.first._marks.begin_to_write(self.first.servers[0])


@dataclass(frozen=True)
class Case:
    """What is done before, what is interrupted, and what has to be possible afterwards."""

    act: Callable[[Site], object]
    before: Callable[[Site], object] = lambda site: None
    after: Callable[[Site], object] = lambda site: None


CASES = {
    "cold": Case(lambda site: site.draw()),
    "warm": Case(lambda site: site.draw(), lambda site: site.draw(3)),
    "block": Case(lambda site: site.draw_blocks()),
    "buffered": Case(lambda site: site.draw_blocks(9), lambda site: site.draw_blocks()),
    "far": Case(lambda site: site.draw_far(), lambda site: site.draw(3)),
    "marks": Case(lambda site: site.write_marks(), lambda site: site.draw(3)),
    "close": Case(lambda site: site.first.dispose(), lambda site: site.use()),
    "lease": Case(lambda site: site.make(), after=lambda site: site.make()),
    "made": Case(lambda site: site.make(3), lambda site: site.make(), lambda site: site.make()),
    "renew": Case(lambda site: site.renew(), lambda site: site.make(), lambda site: site.make()),
    "extend": Case(lambda site: site.extend(), lambda site: site.make(), lambda site: site.make()),
    "move": Case(
        lambda site: site.move(), lambda site: site.begin_to_move(), lambda site: site.move()
    ),
}
#: What does not touch the servers otherwise.
FEW = ("cold", "warm", "block", "close", "lease")


@pytest.fixture(autouse=True)
def nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """What waits for something that never comes hangs here, and is not a bit slower."""
    monkeypatch.setattr(service._wait_until, "__defaults__", (10 * LONG,))
    set_timing(monkeypatch, peer, dead_seconds=10 * LONG, lead_wait_seconds=10 * LONG)
    set_timing(monkeypatch, service, lead_wait_seconds=10 * LONG)
    set_timing(monkeypatch, store, patience_seconds=0.0)


def close(site: Site) -> None:
    for pool in site.pools:
        pool.dispose()


def open_files() -> Counter[str]:
    """The files and sockets that this process has open."""
    found: Counter[str] = Counter()
    for number in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            found[os.readlink(f"/proc/self/fd/{number}").partition(":[")[0]] += 1
    return found


def lines(site: Site, case: Case) -> int:
    """How many lines the operation comes to."""
    site.open()
    case.before(site)
    with Interrupt(sys.maxsize) as counted:
        case.act(site)
    close(site)
    return counted.passed


def faults_after(site: Site, case: Case, interrupt: Interrupt) -> list[str]:
    """What is wrong when an operation was interrupted."""
    site.open()
    case.before(site)
    with interrupt:
        case.act(site)

    def go_on() -> None:
        case.after(site)
        site.draw(4)
        site.draw_blocks(2)

    def is_monitored() -> bool:
        """Whether somebody polls the requests from now on; one that is about to end lets quick draws pass."""
        site.draw()
        return site.first._monitor.poller.goes_on

    faults = in_another_thread(go_on, "the next draw")
    if not faults:
        faults += in_another_thread(lambda: until(is_monitored, LONG / 2), "the monitor")
    faults += at_rest(*site.pools)
    faults += in_another_thread(lambda: close(site), "dispose()")
    return faults


def try_each(site: Site, case: Case, most: int, seconds: float = math.inf) -> None:
    """Interrupt an operation at ``most`` of its lines, in an order that the seed tells."""
    n, seed = lines(site, case), random.randrange(1000)
    end = time.monotonic() + seconds
    wrong: list[str] = []
    for done, at in enumerate(random.Random(seed).sample(range(n), min(n, most))):
        if time.monotonic() > end:
            print(f"seed {seed}: {done} of {n} lines in {seconds:g} s")
            break
        interrupt = Interrupt(at)
        faults = faults_after(site, case, interrupt)
        wrong += [f"seed {seed}, line {at} of {n}, {interrupt.where}: {each}" for each in faults]
        if len(wrong) > ENOUGH:
            break
    for ids in site.ids.values():
        assert_unique(ids)
    assert not wrong, "\n".join(wrong)


@contextmanager
def on(urls: Sequence[URL | str]) -> Iterator[Site]:
    """Two pools on these servers, with their tables."""
    half = len(urls) // 2
    site = Site(urls[:half], urls[half:])
    site.open()
    site.create()
    close(site)
    gc.collect()
    before = open_files()
    yield site
    until(lambda: not monitors() - site.strangers, LONG)
    until(lambda: not _opened_since(before), LONG)  # the last marks may be on their way


def _opened_since(before: Counter[str]) -> Counter[str]:
    gc.collect()
    return open_files() - before


@pytest.fixture
def files(tmp_path: Path) -> list[URL]:
    """Servers that cost no time to start."""
    return [URL.create("sqlite", database=str(tmp_path / f"{n}.db")) for n in range(4)]


@pytest.mark.parametrize("name", CASES)
def test_interrupt_at_any_line_leaves_the_pool_as_it_was(name: str, files: list[URL]) -> None:
    with on(files) as site:
        try_each(site, CASES[name], SOME)


@pytest.mark.soak
@pytest.mark.parametrize("name", CASES)
def test_interrupt_at_each_line_leaves_the_pool_as_it_was(name: str, files: list[URL]) -> None:
    with on(files) as site:
        try_each(site, CASES[name], sys.maxsize, SECONDS)


@pytest.mark.parametrize("name", ["cold", "warm", "block"])
def test_interrupt_in_memory_leaves_no_lock(name: str) -> None:
    """The one connection of a database in memory is for one thread at a time."""
    case = CASES[name]

    def create(site: Site) -> None:
        site.create()
        site.ids.clear()  # they begin anew with the database
        case.before(site)

    with on(["sqlite://"] * 4) as site:
        try_each(site, Case(case.act, create), MOST)


@pytest.mark.parametrize("name", FEW)
def test_interrupt_on_real_servers_leaves_the_pool_as_it_was(
    name: str, servers: ServerFixtures
) -> None:
    with on(real(servers)) as site:
        try_each(site, CASES[name], SOME)


@pytest.mark.soak
@pytest.mark.parametrize("name", CASES)
def test_interrupt_at_each_line_on_real_servers(name: str, servers: ServerFixtures) -> None:
    with on(real(servers)) as site:
        try_each(site, CASES[name], sys.maxsize, SECONDS)


def test_interrupt_of_the_first_ids_repeats_none_of_the_last_owner(files: list[URL]) -> None:
    """A process makes ids of ticks that are past, but never of those that its node had another owner in."""
    runs: list[range] = []
    with on(files) as site:
        for at in range(15, 45):
            site.open()
            ids = SnowflakeGenerator(site.first, "nodes")
            allocator_of(site.first).lease(ids.layout.node)
            with Interrupt(at):
                runs += ids.reserve(1)
            runs += ids.reserve(MANY)
            close(site)
    runs.sort(key=lambda run: run[0])
    assert all(before[-1] < after[0] for before, after in itertools.pairwise(runs))


def real(servers: ServerFixtures) -> list[URL]:
    """Two databases on each of two servers."""
    both = servers.mariadb(0), servers.mariadb(1)
    return [servers.fresh_database(server) for _ in range(2) for server in both]


@pytest.mark.parametrize("is_real", [False, True], ids=["file", "real"])
def test_interrupt_of_a_fail_over_leaves_the_pool_as_it_was(
    is_real: bool, files: list[URL], request: pytest.FixtureRequest
) -> None:
    """One server is down; of two draws, one begins there."""
    urls = real(request.getfixturevalue("servers")) if is_real else files
    down = urls[0].set(port=1) if is_real else urls[0].set(database="/dev/null/none.db")
    with on(urls) as site:
        site.urls = [down, urls[1]]
        try_each(site, Case(lambda site: site.draw(2)), MOST)


def test_interrupt_of_a_hedged_draw_leaves_the_pool_as_it_was(servers: ServerFixtures) -> None:
    """One server keeps silent; of two draws, one begins there and is answered by the other one."""
    urls = real(servers)
    with TcpProxy(urls[0].port) as proxy, on(urls) as site:
        site.urls = [urls[0].set(port=proxy.port), urls[1]]

        def act(site: Site) -> None:
            proxy.do(Fault("freeze"))
            site.draw(2)

        def hear(site: Site) -> None:
            proxy.do(Fault())
            site.draw(3)

        try_each(site, Case(act, hear, hear), MOST)
