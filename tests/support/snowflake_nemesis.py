"""Processes make ids while servers, processes and clocks fail; a check of what they have made.

    python -m tests.support.snowflake_nemesis --processes 64 --seconds 60

Workers are killed and started anew, frozen for longer than their leases, forked; servers are killed and frozen; the
clocks of both are stepped back and forth (libfaketime). A server in a container has its machine's clock: there what a
step does is done to the rows. Each worker writes down what it made and when, by a clock that does not step.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from sqlalchemy import URL
from sqlalchemy.exc import SQLAlchemyError

from sqla_tickets import BitLayout, NodeLeases, SnowflakeGenerator, TicketError, TicketPool
from sqla_tickets import concurrency as clock
from tests.support.draws import run
from tests.support.servers import Clock, Server, ServerFixtures, ServerRegistry

#: Seconds of a lease.
LEASE = 2.0
#: What may happen, some of it more often.
FAULTS = ("kill", "freeze", "clock", "clock", "server clock", "server clock", "server")


def layout_for(processes: int) -> BitLayout:
    """As Snowflake's, with few enough nodes that numbers of the dead are needed."""
    return BitLayout(41, (processes * 2).bit_length(), 12, epoch=1288834974657)


# -- a worker


def work(journal: Path, bits: int, seed: int, urls: Sequence[str]) -> None:
    """Make ids until killed, or alone, and write down each run: before, after, lease, id."""
    # libfaketime does not let pass what Python sleeps with
    setattr(time, "sleep", _sleep)  # noqa: B010  # of another type to type checkers
    layout = BitLayout(41, bits, 12, epoch=1288834974657)
    pool = TicketPool(urls)
    NodeLeases(pool, duration=LEASE)
    chooser, parent = random.Random(seed), os.getppid()
    made = SnowflakeGenerator(pool, "photos", layout)
    while os.getppid() == parent:
        if chooser.random() < 0.005 and os.fork() == 0:
            journal = journal.with_name(f"{journal.name}-{os.getpid()}")
            _make(pool, journal, bits, chooser.randrange(1, 50), chooser)
            os._exit(0)
        with suppress(ChildProcessError):
            os.waitpid(-1, os.WNOHANG)
        _make(pool, journal, bits, 20, chooser)
        assert made.layout == layout


def _sleep(seconds: float) -> None:
    select.select([], [], [], seconds)


def _make(pool: TicketPool, journal: Path, bits: int, times: int, chooser: random.Random) -> None:
    made = SnowflakeGenerator(pool, "photos", BitLayout(41, bits, 12, epoch=1288834974657))
    with journal.open("a", buffering=1) as file:
        for _ in range(times):
            before = clock.elapsed()
            try:
                ids = [made.next_id()] if chooser.random() < 0.5 else made.next_ids(10)
            except TicketError as error:
                file.write(json.dumps({"error": type(error).__name__}) + "\n")
                time.sleep(0.1)
                continue
            lease = made._lease
            since = "" if lease is None else str(lease.since)
            line = {"before": before, "after": clock.elapsed(), "lease": since, "ids": ids}
            file.write(json.dumps(line) + "\n")
            time.sleep(0.02)


# -- the check


@dataclass
class Found:
    """What the journals say.

    Attributes:
        made: how many ids.
        repeated: those that were made twice.
        out_of_order: journals in which an id is below an earlier one.
        shared: numbers that two leases had at the same time.
        leases: how many leases there were.
        errors: how often each was raised.
        died: the logs of workers that ended by themselves.
    """

    made: int = 0
    repeated: list[int] = field(default_factory=list)
    out_of_order: list[str] = field(default_factory=list)
    shared: list[str] = field(default_factory=list)
    leases: int = 0
    errors: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    died: list[str] = field(default_factory=list)

    @property
    def is_good(self) -> bool:
        """Whether nothing is wrong, and something was made."""
        return bool(self.made) and not (
            self.repeated or self.out_of_order or self.shared or self.died
        )


def check(folder: Path, layout: BitLayout) -> Found:
    found, seen = Found(), set[int]()
    spans: dict[tuple[int, str], tuple[float, float]] = {}
    for journal in sorted(folder.glob("ids-*")):
        last = -1
        for line in _lines(journal):
            if "error" in line:
                found.errors[line["error"]] += 1
                continue
            for number in line["ids"]:
                if number in seen:
                    found.repeated.append(number)
                if number <= last:
                    found.out_of_order.append(f"{journal.name}: {number} after {last}")
                seen.add(number)
                last = number
            key = (layout.decode(line["ids"][-1]).node, line["lease"])
            # it was owned at some moment between these two, and so in between the first and last
            first, latest = spans.get(key, (line["after"], line["before"]))
            spans[key] = (min(first, line["after"]), max(latest, line["before"]))
    found.made, found.leases = len(seen), len(spans)
    by_node: dict[int, list[tuple[float, float, str]]] = defaultdict(list)
    for (node, lease), (first, latest) in spans.items():
        by_node[node].append((first, latest, lease))
    for node, owners in by_node.items():
        owners.sort()
        for (_, end, one), (begin, _, other) in pairwise(owners):
            if begin < end:
                found.shared.append(f"node {node}: {one} until {end}, {other} from {begin}")
    return found


def _lines(journal: Path) -> Iterator[dict[str, Any]]:
    for text in journal.read_text().splitlines():
        with suppress(ValueError):  # the last line of a process that was killed
            yield json.loads(text)


# -- the nemesis


def with_clock(servers: ServerFixtures, kind: str, number: int) -> tuple[Server, Clock | None]:
    """A server whose clock steps, where it can: one that is a process of this machine."""
    if kind != "mariadb":
        return servers.shared(kind, number), None
    server = servers.new_mariadb()
    clock = servers.clock(server.folder / "clock")
    server.stop()
    server.environment = clock.environment
    server.start()
    return server, clock


class Workers:
    """Worker processes, each with a clock of its own."""

    def __init__(self, folder: Path, urls: Sequence[URL], n: int, chooser: random.Random) -> None:
        self._folder, self._chooser, self._started = folder, chooser, 0
        self._bits = layout_for(n).node
        self.died: list[int] = []
        self._urls = [url.render_as_string(hide_password=False) for url in urls]
        self.processes = [self._start() for _ in range(n)]

    def _start(self) -> tuple[subprocess.Popen[bytes], Clock]:
        self._started += 1
        name = f"{self._started:04}"
        own = Clock(self._folder / f"clock-{name}")
        environment = {**os.environ, **own.environment}
        command = [sys.executable, "-m", "tests.support.snowflake_nemesis", "--worker"]
        seed = self._chooser.randrange(2**32)
        command += [str(self._folder / f"ids-{name}"), str(self._bits), str(seed), *self._urls]
        with (self._folder / f"log-{name}").open("wb") as log:
            process = subprocess.Popen(
                command, env=environment, stdout=log, stderr=log, start_new_session=True
            )
        return process, own

    def kill(self) -> None:
        index = self._chooser.randrange(len(self.processes))
        process, _ = self.processes[index]
        self._end(process)
        self.processes[index] = self._start()

    def freeze(self, seconds: float) -> None:
        process, _ = self._chooser.choice(self.processes)
        os.killpg(process.pid, signal.SIGSTOP)
        time.sleep(seconds)
        os.killpg(process.pid, signal.SIGCONT)

    def step_clock(self) -> None:
        _, own = self._chooser.choice(self.processes)
        own.step(self._chooser.choice((-60, -3, -0.3, 0, 0.3, 3, 60)))

    def end(self) -> None:
        for process, _ in self.processes:
            self._end(process)

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        if process.poll() is not None:
            self.died.append(process.pid)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def torment(
    servers: Sequence[tuple[Server, Clock | None]],
    urls: Sequence[URL],
    folder: Path,
    n: int,
    seconds: float,
    seed: int,
    faults: Sequence[str] = FAULTS,
) -> Found:
    """Let ``n`` workers make ids for so long while all that fails which may; what they made."""
    chooser = random.Random(seed)
    with TicketPool(list(urls)) as pool:
        NodeLeases(pool).create_table()
    workers = Workers(folder, urls, n, chooser)
    try:
        patience = time.monotonic() + 120
        while len(list(folder.glob("ids-*"))) < n and time.monotonic() < patience:
            time.sleep(0.1)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            time.sleep(chooser.uniform(0, seconds / 60))
            what = chooser.choice(faults)
            if what == "kill":
                workers.kill()
            elif what == "freeze":
                workers.freeze(chooser.choice((0.2, LEASE * 1.3)))
            elif what == "clock":
                workers.step_clock()
            elif what == "server clock":
                _step(*chooser.choice(list(zip(servers, urls, strict=True))), chooser)
            else:
                _hurt(chooser.choice(servers)[0], chooser)
    finally:
        workers.end()
    found = check(folder, layout_for(n))
    if workers.died:
        found.died = [log.read_text()[-2000:] for log in folder.glob("log-*") if log.stat().st_size]
    return found


def _step(server: tuple[Server, Clock | None], url: URL, chooser: random.Random) -> None:
    by = chooser.choice((-3600, -5, -0.5, 0, 0.5, 5, 3600))
    if server[1] is not None:
        server[1].step(by)
        return
    with suppress(SQLAlchemyError):
        run(url, f"UPDATE ticket_nodes SET expires = expires - ({int(by * 1_000_000)})")


def _hurt(server: Server, chooser: random.Random) -> None:
    if chooser.random() < 0.5:
        server.kill()
        time.sleep(chooser.uniform(0, LEASE))
        server.start()
    else:
        server.freeze()
        time.sleep(chooser.uniform(0, LEASE))
        server.thaw()


def main() -> int:
    if sys.argv[1:2] == ["--worker"]:
        journal, bits, seed, *texts = sys.argv[2:]
        work(Path(journal), int(bits), int(seed), texts)
        return 0
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--processes", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--servers", default="mariadb", choices=("mariadb", "mysql", "postgresql"))
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    chosen = parser.parse_args()
    server_registry = ServerRegistry([chosen.servers])
    fixtures = ServerFixtures(server_registry, require_all=True)
    try:
        servers = [with_clock(fixtures, chosen.servers, number) for number in range(2)]
        urls = [fixtures.fresh_database(server) for server, _ in servers]
        with tempfile.TemporaryDirectory() as folder:
            print(f"seed {chosen.seed}")
            found = torment(
                servers, urls, Path(folder), chosen.processes, chosen.seconds, chosen.seed
            )
    finally:
        server_registry.close()
    print(
        f"{found.made} ids of {found.leases} leases; repeated: {found.repeated[:10]}; out of order:"
        f" {found.out_of_order[:10]}; numbers with two owners: {found.shared[:10]}; errors:"
        f" {dict(found.errors)}; died: {found.died[:1]}"
    )
    return 0 if found.is_good else 1


if __name__ == "__main__":
    sys.exit(main())
