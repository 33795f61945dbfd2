"""``python -m tests.simulation.planted``: defects planted into the package one at a time, and how soon a seed shows each.

A defect is planted in memory, while a process of its own imports the package. The unchanged package runs the same seed in
another process: a promise that it breaks, too, does not count.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from multiprocessing import get_context
from pathlib import Path
from types import CodeType
from typing import Final, NamedTuple

__all__ = ["DEFECTS", "Change", "Defect", "Found", "find"]

#: Promises of tickets.
IDS: Final = ("repeated", "descending")
PACKAGE: Final = Path(__file__).parents[2] / "sqla_tickets"


class Change(NamedTuple):
    """A text of a file of the package, which occurs there once, and what takes its place."""

    file: str
    text: str
    by: str

    def made_in(self, source: str) -> str:
        """The file's source with the change.

        Raises:
            ValueError: the code has moved.
        """
        if (times := source.count(self.text)) != 1:
            raise ValueError(f"{self.file}: expected once, found {times} times: {self.text!r}")
        return source.replace(self.text, self.by)


class Defect(NamedTuple):
    """A defect.

    Attributes:
        name: for the command line.
        breaks: what is wrong with the package then.
        changes: that make it so.
        shows: the kinds of promises that can break by it. Others break where the schedule is another one, too.
        page: of the handbook, which operators follow; None for a world without operators.
        is_set_back: whether only worlds can show it in which a server is set back: they are one in four.
        kind: of the servers of these worlds; None for any.
    """

    name: str
    breaks: str
    changes: Sequence[Change]
    shows: Sequence[str]
    page: str | None = None
    is_set_back: bool = False
    kind: str | None = None


DEFECTS: Final = (
    Defect(
        "fence-ge",
        "the fence takes a ticket that is the last one known, instead of one above it",
        [
            Change("draw/table_state.py", "if first <= last:", "if first < last:"),
            Change("draw/slow_path.py", "% table.stride <= known:", "% table.stride < known:"),
        ],
        IDS,
        is_set_back=True,
        # alone it tells the very next ticket before it is drawn; others tell a number between that and the last one
        kind="mysql",
    ),
    Defect(
        "fence-zero",
        "the fence starts at 0 where the server was started again or is another one",
        [
            Change(
                "draw/table_access.py",
                "        table.inspected = None\n        if peers",
                "        table.inspected = None\n"
                "        if table.generation < generation:\n"
                "            table.largest_shown = table.high_water = 0\n"
                "        if peers",
            )
        ],
        IDS,
        is_set_back=True,
    ),
    Defect(
        "mark-unwritten",
        "the mark of a table that a draw has failed over to is not written any more",
        [
            Change(
                "draw/failover.py",
                "            was_well = server.breaker.reason is None\n",
                "            was_well = server.breaker.reason is None\n"
                "            if failed is not None:\n"
                "                server.table(name).failed_over = True\n",
            ),
            Change(
                "high_water/peer.py",
                "        if table.draws or ",
                "        if (table.draws and not getattr(table, 'failed_over', False)) or ",
            ),
        ],
        ("missing mark", *IDS),
    ),
    Defect(
        "mark-lowered",
        "the writer who comes last decides, even with a lower mark",
        [
            Change(
                "dialects/mysql.py",
                "larger = func.greatest(old[value], new[value])",
                "larger = new[value]",
            ),
            Change(
                "dialects/mysql.py",
                "LAST_INSERT_ID(GREATEST({column}, CAST({number} AS UNSIGNED)))",
                "LAST_INSERT_ID({number})",
            ),
            Change(
                "dialects/base.py",
                "where=and_(old[same] == new[same], old[value] < new[value])",
                "where=old[same] == new[same]",
            ),
        ],
        ("lowered mark", *IDS),
    ),
    Defect(
        "buffer-copied",
        "a copy of a process goes on with the buffer of the original",
        [
            Change(
                "pool.py",
                "        # the last, as it says that all is done\n"
                "        self._buffer = self._new_buffer()\n",
                "        from .concurrency import owner_mark\n"
                "        self._buffer.is_owner_process = owner_mark()\n",
            )
        ],
        ("repeated",),
    ),
    Defect(
        "buffer-kept",
        "a process keeps what it has buffered when a server breaks a promise",
        [
            Change(
                "pool.py",
                '    drop_everything()\n    events.dispatch_event("quarantined"',
                '    events.dispatch_event("quarantined"',
            )
        ],
        ("distrusted", *IDS),
        is_set_back=True,
    ),
    Defect(
        "lease-late",
        "ids are made after the horizon of a lease, which is renewed only then",
        [
            Change(
                "snowflake/generator.py",
                "is_live, is_covered = lease.is_live, now <= lease.horizon",
                "is_live, is_covered = lease.is_live, True",
            )
        ],
        ("late id", "repeated id", "two owners"),
    ),
    Defect(
        "lease-unasked",
        "a lease that is over is renewed without asking whether its number has had another owner since",
        [
            Change(
                "snowflake/allocator.py",
                "if self._peers.known(lease) <= lease.published_horizon:",
                "if lease is not None:",
            )
        ],
        ("repeated id", "two owners"),
        is_set_back=True,
    ),
    Defect(
        "horizon-untold",
        "a renewal does not tell the other servers the new horizon",
        [
            Change(
                "snowflake/allocator.py",
                "            self._peers.publish(lease, claim)\n",
                "",
            )
        ],
        ("untold horizon", "repeated id", "two owners"),
    ),
    Defect(
        "nonce-missing",
        "two tombstones of the same kind and number cannot be told apart",
        [Change("maintenance/tombstones.py", "return random_bytes(6).hex()", 'return ""')],
        ("same tombstone", *IDS),
        page="back-and-forth",
    ),
    Defect(
        "move-opens-first",
        "a move opens the target before it closes the source",
        [
            Change(
                "maintenance/transfer.py",
                '            handle.close("moved", target.pool, target.sequence, state)\n'
                "            for handle, state in self.here.items()\n",
                '            Tombstone("moved", target.pool, target.sequence, state.number or 0,'
                ' state.layout, 64, "", handle.stride, state.stub, tombstones.path_of(state))\n'
                "            if isinstance(state, ActiveTable) else state\n"
                "            for handle, state in self.here.items()\n",
            ),
            Change(
                "maintenance/transfer.py",
                "            element = handle.element(high + 1, layout=layout, bits=bits, stub=stub, path=path)\n"
                "            handle.open(element, tombstone)\n",
                "            element = handle.element(high + 1, layout=layout, bits=bits, stub=stub, path=path)\n"
                "            handle.open(element, tombstone)\n"
                "        for handle, state in self.here.items():\n"
                '            handle.close("moved", target.pool, target.sequence, state)\n',
            ),
        ],
        IDS,
        page="move",
    ),
    Defect(
        "growth-skips",
        "the end of a growth leaves one server with the old stride",
        [
            Change(
                "maintenance/resize.py",
                "    for handle in handles(new, name):\n        to = ",
                "    for handle in handles(new, name)[1:]:\n        to = ",
            )
        ],
        ("unused server", "failed", *IDS),
        page="grow",
    ),
    Defect(
        "retired-open",
        "a server that retires can still be drawn from",
        [
            Change(
                "maintenance/resize.py",
                'handle.close("retired", pool.name, name, state)',
                "state",
            )
        ],
        ("retired server", *IDS),
        page="retire",
    ),
    Defect(
        "breaker-open",
        "a circuit breaker that has opened never closes",
        [
            Change(
                "draw/circuit_breaker.py",
                "self.reason = self._found = None  #",
                "self._found = None  #",
            )
        ],
        ("unused server", "failed"),
    ),
    Defect(
        "hedge-twice",
        "the tickets of a hedge that came too late are kept for overdue draws, and for more than one",
        [
            Change(
                "draw/hedging.py",
                "        self.measure_at = 0.0\n",
                "        self.measure_at, self._late = 0.0, {}\n",
            ),
            Change(
                "draw/hedging.py",
                "drawn = server.draw(name, n, hedge_of=request)",
                "drawn = self._late.get((name, n)) or server.draw(name, n, hedge_of=request)",
            ),
            Change(
                "draw/hedging.py",
                'self._events.discarded(name, count(drawn), "hedge")',
                "self._late[name, n] = drawn",
            ),
        ],
        IDS,
    ),
    Defect(
        "shared-twice",
        "each caller of a shared draw is given its first tickets",
        [
            Change(
                "draw/shared.py",
                "share.tickets, left = split(left, share.n)",
                "share.tickets, _ = split(left, share.n)",
            )
        ],
        IDS,
    ),
    Defect(
        "failover-gives-up",
        "a draw gives up while one server has not been asked",
        [
            Change(
                "draw/failover.py",
                "                failures[server], failed = error, server\n",
                "                failures[server], failed = error, server\n"
                "                if len(failures) == len(self._servers) - 1:\n"
                "                    break\n",
            )
        ],
        ("failed",),
    ),
)


# -- planting


class _PlantedLoader(SourceFileLoader):
    """Loads a module from its changed source."""

    def __init__(self, name: str, path: str, changes: Sequence[Change]) -> None:
        super().__init__(name, path)
        self._changes = changes

    def get_code(self, fullname: str) -> CodeType:
        source = Path(self.path).read_text()
        for change in self._changes:
            source = change.made_in(source)
        return compile(source, self.path, "exec", dont_inherit=True)


class _Planter(MetaPathFinder):
    """Finds the modules of the package, and has some of them changed."""

    def __init__(self, defect: Defect) -> None:
        self._defect = defect

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: object = None
    ) -> ModuleSpec | None:
        spec = PathFinder.find_spec(fullname, path)
        if spec is None or spec.origin is None:
            return None
        changes = [c for c in self._defect.changes if str(PACKAGE / c.file) == spec.origin]
        if not changes:
            return None
        spec.loader = _PlantedLoader(fullname, spec.origin, changes)
        return spec


def _plant(name: str | None) -> None:
    """Plant a defect into this process, which has not imported the package yet; None for none."""
    assert "sqla_tickets" not in sys.modules
    if name is not None:
        sys.meta_path.insert(0, _Planter(defect_of(name)))


def defect_of(name: str) -> Defect:
    """The defect of a name; its texts are in the package's files.

    Raises:
        ValueError: they are not, each once.
    """
    (defect,) = (defect for defect in DEFECTS if defect.name == name)
    for change in defect.changes:
        change.made_in((PACKAGE / change.file).read_text())
    return defect


# -- looking for it


class Options(NamedTuple):
    """Of the worlds.

    Attributes:
        seconds: for which there are faults.
        processes: how many clients there are; None for what the seed says.
        servers: how many ticket servers there are; None for what the seed says.
        kind: of the servers; None for what the seed says.
        page: of the handbook; None for worlds without operators.
        is_set_back: whether a server is set back in each of them.
    """

    seconds: float = 20.0
    processes: int | None = None
    servers: int | None = None
    kind: str | None = None
    page: str | None = None
    is_set_back: bool = False


def _run(seed: int, options: Options) -> dict[str, str]:
    """Run one seed here; the broken promises, by their kinds, the first text of each."""
    from .maintained import MaintainedScenario
    from .scenario import Scenario, simulate

    how = options._asdict()
    page, is_set_back = how.pop("page"), how.pop("is_set_back")
    if page is not None:
        how["scenario_type"] = partial(MaintainedScenario, page=None if page == "any" else page)
    elif is_set_back:
        how["scenario_type"] = partial(Scenario, is_set_back=True)
    broken: dict[str, str] = {}
    for promise in simulate(seed, **how).broken_promises:
        broken.setdefault(promise.kind, f"at {promise.time:.3f}: {promise.text}")
    return broken


@contextmanager
def _process(name: str | None) -> Iterator[ProcessPoolExecutor]:
    """A fresh process with a defect."""
    with ProcessPoolExecutor(1, get_context("spawn"), _plant, (name,)) as process:
        yield process


class Found(NamedTuple):
    """How a defect was found.

    Attributes:
        seeds: how many were run until then.
        seed: that has shown it.
        promises: that are broken by it alone: what was seen, by their kinds.
    """

    seeds: int
    seed: int
    promises: dict[str, str]


def find(name: str, seeds: Sequence[int], options: Options) -> Found | None:
    """Run seeds until one breaks a promise with a defect that it does not break without it."""
    defect = defect_of(name)
    options = options._replace(
        page=options.page or defect.page,
        is_set_back=defect.is_set_back,
        kind=options.kind or defect.kind,
    )
    with _process(name) as planted, _process(None) as unchanged:
        for count, seed in enumerate(seeds, 1):
            broken = planted.submit(_run, seed, options).result()
            broken = {kind: text for kind, text in broken.items() if kind in defect.shows}
            if broken:
                anyway = unchanged.submit(_run, seed, options).result()
                broken = {kind: text for kind, text in broken.items() if kind not in anyway}
            if broken:
                return Found(count, seed, broken)
    return None


# -- the command


def main() -> int:
    """Look for some defects, or all, and print a table; 1 when one was not found."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.planted", description=__doc__)
    names = [defect.name for defect in DEFECTS]
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(names))
    parser.add_argument("--seeds", type=int, default=200, help="how many seeds, at most")
    parser.add_argument("--first", type=int, default=1, help="the first of them")
    parser.add_argument("--seconds", type=float, default=20.0, help="of faults for each seed")
    parser.add_argument("--processes", type=int, help="how many clients")
    parser.add_argument("--servers", type=int, help="how many ticket servers")
    parser.add_argument("--kind", help="of the servers")
    parser.add_argument("--page", help="of the handbook, instead of the defect's")
    given = parser.parse_args()
    for name in given.names:
        if name not in names:
            parser.error(f"no defect {name!r}: expected some of {', '.join(names)}")
    options = Options(given.seconds, given.processes, given.servers, given.kind, given.page)
    seeds, missed = range(given.first, given.first + given.seeds), 0
    say("| defect | seeds until found | promise that broke |")
    say("|---|---|---|")
    for name in given.names or names:
        found = find(name, seeds, options)
        if found is None:
            missed += 1
            say(f"| {name} | not in {len(seeds)} | |")
            continue
        say(f"| {name} | {found.seeds} (seed {found.seed}) | {', '.join(found.promises)} |")
        for kind, text in found.promises.items():
            print(f"{name}: {kind}: {text[:200]}", file=sys.stderr, flush=True)
    return missed > 0


def say(text: str) -> None:
    """Print a line."""
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
