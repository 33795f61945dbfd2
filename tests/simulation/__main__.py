"""``python -m tests.simulation``: run many seeds, or one with its schedule."""

from __future__ import annotations

import argparse
import multiprocessing
import sys
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from functools import partial

from .maintained import MaintainedScenario
from .scenario import LIMIT_SECONDS, Outcome, simulate
from .servers import KINDS


def main() -> int:
    """Run what the arguments say; 1 when a promise was broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=20, help="how many seeds")
    parser.add_argument("--first", type=int, default=1, help="the first of them")
    parser.add_argument("--seed", type=int, help="only this one, with its schedule")
    parser.add_argument("--seconds", type=float, default=60, help="of faults for each seed")
    parser.add_argument(
        "--processes", type=int, help="how many clients, instead of the seed's choice"
    )
    parser.add_argument(
        "--servers", type=int, help="how many servers, instead of the seed's choice"
    )
    parser.add_argument("--kind", choices=("toy", *KINDS), help="of the servers")
    parser.add_argument("--page", help="of the handbook, which operators follow: any, or its name")
    parser.add_argument("--jobs", type=int, default=1, help="how many seeds at the same time")
    parser.add_argument(
        "--limit-seconds",
        type=float,
        default=LIMIT_SECONDS,
        help="of a processor, after which a seed has failed (%(default)g)",
    )
    given = parser.parse_args()
    names = ("seconds", "processes", "servers", "kind", "limit_seconds")
    options = {name: getattr(given, name) for name in names}
    if given.page is not None:
        page = None if given.page == "any" else given.page
        options["scenario_type"] = partial(MaintainedScenario, page=page)
    if given.seed is not None:
        outcome = simulate(given.seed, trace=print, **options)  # what it is for
        report([outcome], 0.0)
        return bool(outcome.broken_promises)
    outcomes: list[Outcome] = []
    seeds = range(given.first, given.first + given.seeds)
    for outcome in played(seeds, partial(simulate, **options), given.jobs):
        outcomes.append(outcome)
        for promise in outcome.broken_promises[:3]:
            say(f"seed {outcome.seed}: at {promise.time:.3f}: {promise.kind}: {promise.text}")
    report(outcomes, sum(outcome.processor_seconds for outcome in outcomes))
    broken = next((outcome.seed for outcome in outcomes if outcome.broken_promises), None)
    if broken is not None:
        say(f'a schedule: make simulate SEED={broken} ARGS="{" ".join(how(given))}"')
    return broken is not None


def played(
    seeds: Sequence[int], play: Callable[[int], Outcome], jobs: int
) -> Generator[Outcome, None, None]:
    """The outcomes of seeds, in their order."""
    if jobs == 1:
        yield from map(play, seeds)
        return
    with multiprocessing.get_context("spawn").Pool(jobs) as workers:
        yield from workers.imap(play, seeds)


def how(given: argparse.Namespace) -> Iterator[str]:
    """The arguments that decide what happens with a seed."""
    for name in ("seconds", "processes", "servers", "kind", "page"):
        value = getattr(given, name)
        if value is not None:
            yield f"--{name} {value:g}" if isinstance(value, float) else f"--{name} {value}"


def report(outcomes: list[Outcome], seconds: float) -> None:
    """Print what was simulated, and what it has taken of a processor."""
    draws = sum(outcome.draws for outcome in outcomes)
    faults: Counter[str] = sum((outcome.faults for outcome in outcomes), Counter())
    failed: Counter[str] = sum((outcome.failed for outcome in outcomes), Counter())
    hours = sum(outcome.seconds for outcome in outcomes) / 3600
    tickets, ids = sum(o.tickets for o in outcomes), sum(o.ids for o in outcomes)
    say(
        f"{len(outcomes)} seeds, {hours:.2f} simulated hours, {draws:,} draws, {faults.total():,} faults,"
        f" {tickets:,} tickets, {ids:,} ids by time, {sum(o.raises for o in outcomes):,} raises"
    )
    if seconds:
        rate = 60 / seconds
        say(f"a minute of one core: {draws * rate:,.0f} draws, {faults.total() * rate:,.0f} faults")
    say("faults: " + ", ".join(f"{kind} {n}" for kind, n in sorted(faults.items())))
    say(
        "draws that failed while no server could serve: "
        + (", ".join(f"{k} {n}" for k, n in sorted(failed.items())) or "none")
    )
    if announced := sum(o.announced for o in outcomes):
        say(f"tickets repeated after a table was emptied by hand, as announced: {announced}")
    slowest, slowest_id = max(o.slowest for o in outcomes), max(o.slowest_id for o in outcomes)
    say(f"slowest draw: {slowest:.3f} s; slowest id by time: {slowest_id:.3f} s")
    broken = [str(outcome.seed) for outcome in outcomes if outcome.broken_promises]
    say(f"seeds with a broken promise: {', '.join(broken) or 'none'}")


def say(text: str) -> None:
    """Print a line."""
    print(text, flush=True)  # a command


if __name__ == "__main__":
    sys.exit(main())
