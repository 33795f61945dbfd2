"""What real servers do on this machine: the points beside the simulated ones.

``python -m tests.simulation.scale.measured`` starts two MariaDB servers, lets 1 to 16 processes draw as fast as they
can, and writes ``docs/understand/scale/measured.json``. It takes the best of some short rounds, as other programs may run beside.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import platform
import re
import statistics
import time
from contextlib import closing
from dataclasses import asdict, dataclass
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Final

from sqla_tickets import TicketPool
from sqla_tickets.dialects import LayoutName
from tests.support.servers import KINDS, ServerRegistry

from .capacity import LAYOUTS
from .places import FOLDER

__all__ = ["PROCESSES", "Point", "measured", "write"]

PROCESSES: Final = (1, 2, 4, 8, 16)
ROUNDS: Final = 5
ROUND_SECONDS: Final = 0.8
FLUSHES: Final = 200


@dataclass(frozen=True)
class Point:
    """One real point.

    Attributes:
        layout: of the ticket table.
        n: tickets of each draw.
        processes: that drew as fast as they could.
        draws: a second, of all.
        p50: of a draw, in milliseconds.
        p99: the same.
        is_quiet: whether nothing else ran on the machine, and data were on its disk; else they were in memory.
    """

    layout: LayoutName
    n: int
    processes: int
    draws: float
    p50: float = 0.0
    p99: float = 0.0
    is_quiet: bool = True


def measured() -> list[Point]:
    """The points of the benchmark, taken while nothing else ran, and those of this module, if there are any."""
    benchmark = json.loads((FOLDER.parent / "performance" / "results.json").read_text())
    points = []
    for comparison in benchmark["comparisons"]:
        found = re.fullmatch(r"processes (\d+)", comparison["key"])
        is_block = comparison["key"] == "blocks, replace"
        for row in comparison["rows"] if comparison["server"] == "mariadb" else ():
            draws = statistics.median(row["values"])
            layout: LayoutName | None = next(
                (one for one in LAYOUTS if row["side"] == f"next_id, {one} layout"), None
            )
            if found and layout:
                points.append(Point(layout, 1, int(found[1]), draws))
            if is_block and row["side"] == "reserve(1,000)":
                points.append(Point("replace", 1000, 1, draws))
    points.sort(key=lambda point: (point.layout, point.n))
    path = FOLDER / "measured.json"
    own = json.loads(path.read_text())["points"] if path.exists() else []
    return points + [Point(**point) for point in own]


def write() -> None:
    """Measure, and write the file."""
    points: list[Point] = []
    with closing(ServerRegistry(KINDS)) as servers:
        two = [servers.new_mariadb(("--innodb-buffer-pool-size=128M",)) for _ in range(2)]
        for server in two:
            server.create_database("scale")
        urls = [server.url("scale").render_as_string(hide_password=False) for server in two]
        pool = TicketPool(urls)
        tables: tuple[tuple[str, LayoutName, int], ...] = (
            ("c", "counter", 1),
            ("r", "replace", 1),
            ("b", "replace", 100),
        )
        for name, layout, n in tables:
            pool.create_table(name, layout=layout)
            pool.reserve(name, n)
            for processes in PROCESSES:
                points.append(_best(urls, name, layout, n, processes))
                print(points[-1], flush=True)
        pool.dispose()
    load = os.getloadavg()[0]
    machine = {
        "cores": os.cpu_count(),
        "system": platform.system(),
        "server": "MariaDB 10.11",
        "load": round(load, 1),
        "flush_ms": round(_flush_seconds(Path(os.environ.get("TMPDIR", "/tmp"))) * 1e3, 3),
    }
    FOLDER.mkdir(exist_ok=True)
    text = json.dumps({"machine": machine, "points": [asdict(point) for point in points]}, indent=1)
    (FOLDER / "measured.json").write_text(text + "\n")


def _best(urls: list[str], name: str, layout: LayoutName, n: int, processes: int) -> Point:
    context = multiprocessing.get_context("fork")
    barrier, queue = context.Barrier(processes), context.SimpleQueue()
    workers = [
        context.Process(target=_work, args=(urls, name, n, barrier, queue.put))
        for _ in range(processes)
    ]
    for worker in workers:
        worker.start()
    found: list[list[list[float]]] = [queue.get() for _ in workers]
    for worker in workers:
        worker.join()
    rounds = [[wait for each in found for wait in each[number]] for number in range(ROUNDS)]
    best = max(rounds, key=len)
    waits = sorted(best)
    p50, p99 = waits[len(waits) // 2] * 1e3, waits[int(len(waits) * 0.99)] * 1e3
    return Point(
        layout,
        n,
        processes,
        round(len(waits) / ROUND_SECONDS),
        round(p50, 3),
        round(p99, 3),
        is_quiet=False,
    )


def _work(urls: list[str], name: str, n: int, barrier: Barrier, put: object) -> None:
    assert callable(put)
    pool = TicketPool(urls)
    for _ in range(20):
        pool.reserve(name, n)
    rounds: list[list[float]] = []
    for _ in range(ROUNDS):
        barrier.wait()
        waits: list[float] = []
        end = time.perf_counter() + ROUND_SECONDS
        while (began := time.perf_counter()) < end:
            pool.reserve(name, n)
            waits.append(time.perf_counter() - began)
        rounds.append(waits)
    put(rounds)


def _flush_seconds(folder: Path) -> float:
    """The median of some flushes to the disk."""
    path, seconds = folder / "flushes", []
    with path.open("wb", buffering=0) as file:
        for _ in range(FLUSHES):
            file.write(bytes(512))
            began = time.perf_counter()
            os.fdatasync(file.fileno())
            seconds.append(time.perf_counter() - began)
    path.unlink()
    return sorted(seconds)[FLUSHES // 2]


if __name__ == "__main__":
    write()
