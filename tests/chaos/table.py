"""A report as text."""

from __future__ import annotations

from collections.abc import Iterator

from tests.chaos.checker import Counters, Report
from tests.chaos.run import Act

__all__ = ["text_of"]


def text_of(act: Act) -> str:
    """Jepsen's counters, what was done, and which promises did not hold."""
    lines = [f"== {act.title}: {act.settings.seconds:g} s, seed {act.settings.seed}"]
    for event in act.events:
        began, lasted = event.began - act.began, event.ended - event.began
        lines.append(f"{began:8.2f} s, for {lasted:5.2f} s: {event}")
    lines += [f"left out: {name}: {why}" for name, why in act.left_out.items()]
    for name, counters in [*sorted(act.report.workloads.items()), ("all", act.report.all)]:
        lines += [name, *(f"  {line}" for line in _counters(counters))]
    lines.append(f"a proxy waited for a CPU for {act.starved:.0%} of the time")
    lines += _details(act.report, act.began)
    lines += [f"BROKEN: {text}" for text in act.broken] or ["every promise held"]
    if act.folder:
        lines.append(f"journals: {act.folder}")
    return "\n  ".join(lines)


def _counters(counters: Counters) -> Iterator[str]:
    yield (
        f":attempted-count {counters.attempted} :acknowledged-count {counters.acknowledged}"
        f" :duplicated-count {counters.duplicated} :lost-count {counters.lost}"
    )
    failed = ", ".join(f"{n} {error}" for error, n in counters.errors.most_common()) or "none"
    yield f"failed draws: {failed}; while a server served: {counters.needless}"
    yield f"longest stall {counters.longest:.3f} s, until an error {counters.longest_failure:.3f} s"
    if counters.longest_gap:
        yield f"longest gap of an event loop {counters.longest_gap:.3f} s"


def _details(report: Report, began: float) -> Iterator[str]:
    for name, (first, last) in sorted(report.bounds.items()):
        yield f":range of {name} [{first} {last}]"
    for name, seconds in sorted(report.slowest.items(), key=lambda item: -item[1]):
        yield f"slowest draw during {name}: {seconds:.3f} s"
    for seconds, at, worker, what in report.slow:
        yield f"slow draw: {seconds:.3f} s from {at - began:.2f} s on, {worker}: {what}"
    for text, count in report.said.most_common(10):
        yield f"said {count} times: {text}"
    for (event, newcomer), n in sorted(report.repeats.items()):
        who = "newcomers" if newcomer else "processes that had met the servers before"
        yield f"duplicates after {event}, to {who}: {n}"
    for again in report.duplicates:
        announced = "announced" if again.announced else "UNANNOUNCED"
        who = f"{again.by}, a newcomer" if again.newcomer else again.by
        tickets = ", ".join(map(str, {again.tickets[0]: 0, again.tickets[-1]: 0}))
        yield f"duplicate, {announced}: {again.at - began:.2f} s {who}: {again.sequence} {tickets}"
    for at, text in report.failures:
        yield f"needless failure: {at - began:.2f} s {text[:600]}"
    if report.torn:
        yield f"lines that a killed client did not finish: {report.torn}"
