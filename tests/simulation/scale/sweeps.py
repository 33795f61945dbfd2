"""What is simulated for the page, and the file that keeps its figures."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from functools import partial
from typing import Final

from .capacity import Profile
from .load import Figures, Run, simulate
from .measured import Point
from .places import FOLDER

__all__ = ["FULL", "QUICK", "Results", "comparison_name", "comparisons", "load_results", "run_all"]

#: What is simulated, by the names under which the figures are kept.
Results = dict[str, tuple[Run, Figures]]

#: The machine of the measured points, two cores for all, fitted to those of one process and of eight.
ONE_MACHINE: Final = Profile(
    cores=2,
    read_seconds=0.00006,
    write_seconds=0.00009,
    replace_seconds=0.00016,
    contended_seconds=0.00025,
    connect_seconds=0.00040,
    flush_seconds=0.00002,
)
#: What a draw takes of a core in the application.
CLIENT_SECONDS: Final = 0.0002

_FAULT = partial(Run, servers=4, start_seconds=5.0, warm_up_seconds=8.0)


def comparison_name(point: Point) -> str:
    """The name of the run that a measured point stands beside."""
    where = "disk" if point.is_quiet else "memory"
    return f"beside {point.layout} {point.n}, {point.processes} processes, {where}"


def comparisons(points: list[Point]) -> dict[str, Run]:
    """The runs that the measured points stand beside."""
    return {
        comparison_name(point): Run(
            processes=point.processes,
            servers=2,
            block=point.n,
            ids_a_second=float("inf"),
            layout=point.layout,
            distance="one machine",
            start_seconds=0.1,
            warm_up_seconds=0.4,
            seconds=0.75,
            profile=ONE_MACHINE if point.is_quiet else replace(ONE_MACHINE, flush_seconds=0.0),
            client_seconds=CLIENT_SECONDS,
            shares_cores=True,
            reserves=True,
        )
        for point in points
    }


def _full() -> Iterator[tuple[str, Run]]:
    made, name = partial(_FAULT, 500), "500 processes, blocks of 1"
    yield f"all servers, {name}", made(fault="all servers", fault_seconds=60.0, seconds=75.0)
    yield f"one server, {name}", made(fault="one server", fault_seconds=15.0, seconds=30.0)
    yield f"a data centre, {name}", made(fault="a data centre", fault_seconds=15.0, seconds=30.0)
    for servers, processes in ((2, 1000), (4, 500), (8, 300), (16, 150)):
        warm_up = 4.0 + servers
        yield (
            f"singles {servers}",
            Run(processes, servers, start_seconds=2.0, warm_up_seconds=warm_up, seconds=6.0),
        )
    yield "replace 1, 2", Run(1000, 2, layout="replace", seconds=8.0)
    yield "blocks of 1, 2", Run(10_000, 2, 1, warm_up_seconds=3.0, seconds=5.0)
    yield "blocks of 10, 2", Run(10_000, 2, 10, warm_up_seconds=15.0, seconds=10.0)
    yield "blocks of 100, 2", Run(1000, 2, 100, warm_up_seconds=80.0, seconds=60.0)
    # the processes' blocks end at different moments only after a while
    made = partial(_FAULT, 500, block=100, warm_up_seconds=150.0)
    name = "500 processes, blocks of 100"
    yield f"all servers, {name}", made(fault="all servers", fault_seconds=60.0, seconds=75.0)
    yield f"one server, {name}", made(fault="one server", fault_seconds=60.0, seconds=75.0)
    yield f"a data centre, {name}", made(fault="a data centre", fault_seconds=60.0, seconds=75.0)
    slow = Profile(write_seconds=0.008)
    for hedge in (True, False):
        made = partial(Run, 500, 2, hedge=hedge, profile=slow, warm_up_seconds=10.0, seconds=15.0)
        yield f"overload, {'hedged' if hedge else 'not hedged'}", made()
    for servers, processes in ((4, 200), (8, 200), (16, 200)):
        made = partial(Run, processes, servers, 100, warm_up_seconds=80.0, seconds=60.0)
        yield f"blocks of 100, {servers}", made()
    made = partial(Run, 1000, 2, layout="replace", warm_up_seconds=80.0, seconds=60.0)
    yield "replace 100, 2", made(block=100)
    yield (
        "singles, a continent",
        Run(300, 4, distance="continent", warm_up_seconds=8.0, seconds=10.0),
    )


FULL: Final[Mapping[str, Run]] = dict(_full())
#: The same in small, for a test: each kind of figure, in seconds.
QUICK: Final[Mapping[str, Run]] = {
    "singles 2": Run(20, 2, start_seconds=0.5, warm_up_seconds=2.0, seconds=3.0),
    "blocks of 10, 2": Run(20, 2, 10, start_seconds=0.5, warm_up_seconds=2.0, seconds=3.0),
    "all servers, 20 processes": Run(
        20,
        2,
        start_seconds=0.5,
        warm_up_seconds=2.0,
        seconds=12.0,
        fault="all servers",
        fault_seconds=3.0,
    ),
}


def load_results() -> Results:
    """The figures that stand in the file."""
    path = FOLDER / "simulated.json"
    found = json.loads(path.read_text()) if path.exists() else {}
    return {
        name: (
            Run(**{**each["run"], "profile": Profile(**each["run"]["profile"])}),
            Figures(**each["figures"]),
        )
        for name, each in found.items()
    }


def save(results: Results) -> None:
    """Write the file."""
    FOLDER.mkdir(exist_ok=True)
    kept = {
        name: {"run": asdict(run), "figures": asdict(figures)}
        for name, (run, figures) in results.items()
    }
    (FOLDER / "simulated.json").write_text(json.dumps(kept, indent=1) + "\n")


def run_all(runs: Mapping[str, Run], results: Results, *, keep: bool) -> None:
    """Simulate what is not in the results, or is not what it was, and add it."""
    for name, run in runs.items():
        if name in results and results[name][0] == run:
            continue
        began = time.process_time()
        figures = simulate(run)
        seconds = time.process_time() - began
        results[name] = run, figures
        print(
            f"{name}: {figures.ids:,.0f} ids/s, p99 {figures.p99:.1f} ms ({seconds:.0f} s)",
            flush=True,
        )
        if keep:
            save(results)
