"""The world itself: time, threads, clocks, faults of machines and of the network."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from sqla_tickets import TicketPool
from sqla_tickets.concurrency import WeakRegistry
from sqla_tickets.concurrency import threading as real_threading
from sqla_tickets.errors import TicketError

from . import toy
from .network import Host, Network
from .runtime import ConnectionLost
from .stand_ins import Event, Lock, Thread, installed
from .world import Machine, Stalled, World

URLS = ["toy://t1/", "toy://t2/"]


class Site:
    """Two toy servers in a world."""

    def __init__(self, seed: int, trace: Callable[[str], object] | None = None) -> None:
        self.world = World(seed, trace=trace, preemption=0.01)
        self.network = toy.DRIVER.network = Network(self.world)
        for name in ("t1", "t2"):
            host = Host(self.world, name, lambda runtime, name=name: toy.ToyServer(name, runtime))  # type: ignore[misc]  # bound now
            self.network.hosts[name] = host
        self.ids: list[int] = []
        self.errors: list[TicketError] = []
        self.slowest = 0.0
        toy.register()

    def set_up(self) -> None:
        """Make the ticket tables."""

        def create() -> None:
            TicketPool(URLS).create_table("photos")

        self.run(create, "operator")

    def run(self, work: Callable[[], None], name: str, until: float = 3600) -> Machine:
        """Run a process to its end."""
        machine = Machine(self.world, name)
        machine.spawn(work, "main")
        self.world.run(self.world.now + until)
        assert not self.world.errors
        return machine

    def draw(self, n: int, **options: float) -> None:
        """What a client does."""
        pool = TicketPool(URLS, **options)  # type: ignore[arg-type]  # numbers only
        world = self.world
        world.machine.state["pool"] = pool
        for _ in range(n):
            began = world.now
            try:
                self.ids.append(pool.next_id("photos"))
            except TicketError as error:
                self.errors.append(error)
            self.slowest = max(self.slowest, world.now - began)


@pytest.fixture
def site() -> Iterator[Site]:
    site = Site(1)
    with installed(site.world):
        site.set_up()
        yield site
        site.world.close()


def test_draws_take_virtual_time(site: Site) -> None:
    began = site.world.now
    site.run(lambda: site.draw(200), "client", until=60)
    assert len(set(site.ids)) == len(site.ids) == 200
    assert 0.05 < site.world.now - began <= 60
    assert not site.errors


@pytest.mark.parametrize("seed", [1, 2])
def test_one_seed_gives_one_schedule(seed: int) -> None:
    """Every switch and every event, byte by byte, with a crash and a partition."""
    first, second = trace_of(seed), trace_of(seed)
    assert len(first) > 1000
    assert first == second


def trace_of(seed: int) -> list[str]:
    """What happens to three clients while one server crashes and the other one hears nothing."""
    trace: list[str] = []
    site = Site(seed, trace.append)

    def cut() -> None:
        for link in site.network.links_of(t2):
            link.cut(there=True, back=False)

    def heal() -> None:
        for link in site.network.links_of(t2):
            link.heal()

    with installed(site.world):
        site.set_up()
        for number in range(3):
            Machine(site.world, f"p{number}").spawn(lambda: site.draw(100), "main")
        now = site.world.now
        t1, t2 = site.network.hosts.values()
        site.world.at(now + 0.02, lambda: t1.stop(is_crash=True))
        site.world.at(now + 0.03, cut)
        site.world.at(now + 0.5, t1.start)
        site.world.at(now + 1, heal)
        site.world.run(now + 30)
        site.world.close()
    assert len(set(site.ids)) == len(site.ids) > 250
    return [*trace, str(site.world.digest)]


def test_other_seed_gives_other_schedule() -> None:
    digests = set[int]()
    for seed in (1, 2, 3):
        site = Site(seed)
        with installed(site.world):
            site.set_up()
            site.world.close()
        digests.add(site.world.digest)
    assert len(digests) == 3


def test_draws_fail_over_from_a_server_that_dies(site: Site) -> None:
    site.world.at(site.world.now + 0.02, lambda: site.network.hosts["t1"].stop(is_crash=True))
    site.run(lambda: site.draw(200), "client", until=60)
    assert len(set(site.ids)) == 200
    assert not site.errors


def test_draws_fail_over_from_a_machine_that_is_gone(site: Site) -> None:
    """Nothing says that it is: a draw waits for no longer than its patience."""
    host = site.network.hosts["t1"]
    site.world.at(site.world.now + 0.02, lambda: host.stop(is_crash=True, is_reachable=False))
    site.run(lambda: site.draw(200), "client", until=60)
    assert len(set(site.ids)) == 200
    assert not site.errors
    assert site.slowest < 4


def test_draws_fail_over_from_a_frozen_server(site: Site) -> None:
    host = site.network.hosts["t2"]
    site.world.at(site.world.now + 0.02, host.machine.freeze)
    site.run(lambda: site.draw(200), "client", until=60)
    assert len(set(site.ids)) == 200
    assert not site.errors
    assert site.slowest < 4


def test_nothing_runs_in_a_process_that_was_killed(site: Site) -> None:
    machine = Machine(site.world, "client")
    machine.spawn(lambda: site.draw(10_000), "main")
    site.world.run(site.world.now + 0.1)
    assert site.ids
    before = len(site.ids)
    machine.die()
    site.world.run(site.world.now + 60)
    assert len(site.ids) == before
    for host in site.network.hosts.values():
        assert isinstance(host.model, toy.ToyServer)
        assert host.model.sessions == 0


def test_a_frozen_process_goes_on_where_it_was(site: Site) -> None:
    machine = Machine(site.world, "client")
    machine.spawn(lambda: site.draw(200), "main")
    site.world.run(site.world.now + 0.05)
    machine.freeze()
    before = len(site.ids)
    site.world.run(site.world.now + 60)
    assert len(site.ids) == before
    machine.thaw()
    site.world.run(site.world.now + 60)
    assert len(set(site.ids)) == 200
    assert not site.errors


def test_a_lock_is_given_in_order() -> None:
    world = World(3, preemption=0.2)
    lock, order, inside = Lock(world), list[int](), list[int]()

    def work(number: int) -> None:
        with lock:
            order.append(number)
            inside.append(number)
            world.sleep(0.1)
            assert inside == [number]
            inside.clear()

    machine = Machine(world, "p")
    for number in range(5):
        machine.spawn(lambda number=number: work(number), f"t{number}")  # type: ignore[misc]  # bound now
    world.run()
    assert sorted(order) == list(range(5))
    assert not world.errors


@pytest.mark.parametrize(("name", "is_told"), [("own", True), ("under_way", False)])
def test_a_wait_with_a_lock_is_told(name: str, is_told: bool, tmp_path: Path) -> None:
    """But not with a lock that says that its holder waits, nor that a thread loses the processor."""
    world, told = World(1, preemption=1.0), list[str]()
    world.on_wait_with_lock = lambda task, made_in: told.append(made_in)
    source = tmp_path / "module.py"
    source.write_text(f"{name} = Lock(world)\n")
    module: dict[str, Any] = {"__name__": "sqla_tickets.some", "Lock": Lock, "world": world}
    exec(compile(source.read_text(), source, "exec"), module)  # as one of the package's

    def work() -> None:
        with module[name]:
            world.may_switch()
        world.sleep(1)
        assert not told
        with module[name]:
            world.sleep(1)

    Machine(world, "p").spawn(work, "main")
    world.run()
    assert not world.errors
    assert told == [f"{source}:1: {name} = Lock(world)"] * is_told


def test_a_world_that_stands_still_is_ended(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tests.simulation.world.STALL_SECONDS", 0.2)
    world = World(1)

    def spin() -> None:
        while True:
            with contextlib.suppress(Exception):  # as a loop of the package's may
                world.may_switch()

    Machine(world, "p").spawn(spin, "main")
    with pytest.raises(Stalled):
        world.run()
    printed = capsys.readouterr().out
    assert "time stands still at 0.0" in printed
    assert "p/main" in printed
    assert "in spin" in printed


def test_an_interrupt_in_a_task_ends_the_run() -> None:
    world = World(3)

    def interrupt() -> None:
        raise KeyboardInterrupt

    Machine(world, "p").spawn(interrupt, "main")
    with pytest.raises(KeyboardInterrupt):
        world.run()


def test_an_event_wakes_all_and_times_out() -> None:
    world = World(3)
    event, seen = Event(world), list[bool]()
    machine = Machine(world, "p")
    for seconds in (0.5, 2.0, None):
        machine.spawn(lambda seconds=seconds: seen.append(event.wait(seconds)), "t")  # type: ignore[misc]  # bound now

    def set_later() -> None:
        world.sleep(1)
        event.set()

    machine.spawn(set_later, "setter")
    world.run()
    assert seen == [False, True, True]
    assert world.now == pytest.approx(1, abs=0.01) or world.now == pytest.approx(2, abs=0.01)


def test_wait_goes_on_when_something_else_wakes_its_thread() -> None:
    """Seed 20002, 15 s, 5 processes: a draw took the end of a connection that it had given up for that of its wait."""
    world = World(3)
    event, seen = Event(world), list[object]()
    machine = Machine(world, "p")

    def wait() -> None:
        seen.append((event.wait(2), world.now))
        thread = Thread(world, target=partial(world.sleep, 2))
        thread.start()
        thread.join()
        seen.append(thread.is_alive())

    task = machine.spawn(wait, "main")
    for when in (1, 3):
        world.at(when, partial(world.wake, task))
    world.run()
    assert seen == [(False, pytest.approx(2, abs=0.01)), False]


def test_end_of_a_connection_wakes_nobody_who_has_given_it_up(site: Site) -> None:
    awake = list[float]()

    def client() -> None:
        world = site.world
        channel = site.network.connect("t1", None, "hello", 1.0)
        world.at(world.now, channel.cut)
        with contextlib.suppress(ConnectionLost):
            channel.call("SELECT 1", 1.0)
        began = world.now
        world.at(began + 1, channel.cut)
        world.park(2)
        awake.append(world.now - began)

    site.run(client, "client")
    assert awake == [pytest.approx(2)]


def test_a_thread_is_joined() -> None:
    world = World(4)
    done = list[str]()

    def other() -> None:
        world.sleep(1)
        done.append("thread")

    def main() -> None:
        thread = Thread(world, target=other)
        thread.start()
        assert thread.is_alive()
        thread.join(timeout=0.5)
        done.append("main")
        thread.join()
        assert not thread.is_alive()
        done.append("over")

    Machine(world, "p").spawn(main, "main")
    world.run()
    assert done == ["main", "thread", "over"]
    assert not world.errors


def test_a_thread_holds_its_target() -> None:
    """As a real one does: the package's registries of running work hold it weakly."""
    world = World(4)
    running = WeakRegistry[Callable[[], None]]()
    seen = list[int]()

    def main() -> None:
        work = partial(world.sleep, 1)
        running.add(work)
        Thread(world, target=work).start()
        del work
        world.sleep(0.5)
        seen.append(len(running.refs))

    Machine(world, "p").spawn(main, "main")
    world.run()
    assert seen == [1]
    assert not world.errors


def test_clocks_of_machines_differ() -> None:
    world = World(5)
    one, other = Machine(world, "one"), Machine(world, "other")
    other.rate, other.wall_error = 1.001, -3600.0
    readings = one.monotonic(), one.monotonic()
    assert readings[0] < readings[1] < readings[0] + 1e-3
    before = one.elapsed(), other.elapsed(), one.wall(), other.wall()
    world.at(1000, lambda: None)
    world.run()
    assert one.elapsed() - before[0] == pytest.approx(1000)
    assert other.elapsed() - before[1] == pytest.approx(1001)
    assert one.wall() - other.wall() == pytest.approx(3599, abs=0.01)


def test_the_package_is_as_before_after_a_world(site: Site) -> None:
    site.world.close()
    assert real_threading.__name__ == "threading"
