"""The simulation of many processes on servers whose work takes time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from .network import Host
from .scale.capacity import CapacityServer, Cores, Profile
from .scale.load import Run, simulate
from .scale.page import tables
from .scale.places import FOLDER
from .scale.sweeps import QUICK, load_results
from .world import Machine, World


@pytest.mark.parametrize("name", ["blocks of 10, 2", "all servers, 20 processes"])
def test_one_run_gives_one_set_of_figures(name: str) -> None:
    assert simulate(QUICK[name]) == simulate(QUICK[name])


def test_outage_of_all_servers_fails_ids_and_ends_with_it() -> None:
    run = QUICK["all servers, 20 processes"]
    figures = simulate(run)
    assert figures.failed > 10
    assert figures.well_again is not None
    assert figures.well_again < 3
    assert figures.connects > run.processes / 4


def test_process_without_a_connection_gets_no_ids_from_a_full_server() -> None:
    """Others keep theirs: so a server has to let in as many as there are processes."""
    run = replace(QUICK["singles 2"], profile=Profile(max_connections=12))
    figures = simulate(run)
    assert figures.connections == 12
    assert figures.failed > 10


@pytest.mark.parametrize("name", ["calm.md", "faults.md", "overload.md"])
def test_tables_of_the_page_are_those_of_its_figures(name: str) -> None:
    assert tables(load_results(), [])[name] == (FOLDER / name).read_text()


def test_draws_come_no_faster_than_their_row_is_written() -> None:
    """Processes that want as much as they can have get what the lock of the row lets through."""
    profile = Profile(cores=4, write_seconds=0.002, flush_seconds=0.0)
    run = Run(20, 2, ids_a_second=float("inf"), seconds=1.0, start_seconds=0.1, profile=profile)
    most = run.servers / profile.write_seconds
    assert 0.8 * most < simulate(run).draws < 1.1 * most


def test_cores_work_at_the_same_time_and_queue() -> None:
    cores = Cores(2)
    assert [cores.take(1.0, 0.5) for _ in range(5)] == [1.5, 1.5, 2.0, 2.0, 2.5]
    assert cores.busy_seconds == 2.5


def test_one_flush_is_for_all_commits_that_came_before_it() -> None:
    world = World(1)
    host = Host(
        world,
        "t1",
        lambda runtime: CapacityServer(
            world, "t1", runtime, Profile(flush_seconds=0.01, flush_sigma=0.0), "counter"
        ),
    )
    ends: list[float] = []

    def commit() -> None:
        assert isinstance(host.model, CapacityServer)
        host.model._flush()
        ends.append(round(world.now, 2))

    for when in (0.0, 0.002, 0.004, 0.009):
        world.at(when, lambda: Machine(world, "p").spawn(commit, "main"))
    world.run()
    assert ends == [0.01, 0.02, 0.02, 0.02]
