"""The tables of docs/understand/scale.md, from the figures in the files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from .load import CALM_SECONDS, SLICE_SECONDS, Figures, Run
from .measured import Point
from .places import FOLDER
from .sweeps import Results, comparison_name

__all__ = ["tables", "write_tables"]


def tables(results: Results, points: list[Point]) -> dict[str, str]:
    """The tables, by the names of their files."""
    calm = [
        run
        for name, run in results.items()
        if run[0].fault == "none" and not name.startswith(("beside", "overload"))
    ]
    faults = [each for each in results.values() if each[0].fault != "none"]
    overload = [each for name, each in results.items() if name.startswith("overload")]
    return {
        "calm.md": _calm(calm),
        "faults.md": _faults(faults),
        "overload.md": _overload(overload),
        "beside.md": _comparison(results, points),
    }


def write_tables(results: Results, points: list[Point]) -> None:
    """Write them."""
    for name, text in tables(results, points).items():
        (FOLDER / name).write_text(text)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _calm(runs: list[tuple[Run, Figures]]) -> str:
    head = (
        "block",
        "layout",
        "servers",
        "processes",
        "ids/s",
        "draws/s",
        "statements/s, each server",
        "median, ms",
        "p99",
        "longest",
        "connections, each server",
        "processors busy",
    )
    ordered = sorted(
        runs,
        key=lambda each: (
            each[0].distance != "region",
            each[0].layout,
            each[0].block,
            each[0].servers,
        ),
    )
    return _table(
        head,
        (
            (
                f"{run.block}" + (" (continent)" if run.distance == "continent" else ""),
                run.layout,
                f"{run.servers}",
                f"{run.processes:,}",
                f"{figures.ids:,.0f}",
                f"{figures.draws:,.0f}",
                f"{sum(figures.statements.values()) / run.servers:,.0f}",
                _ms(figures.p50),
                _ms(figures.p99),
                _ms(figures.longest),
                f"{figures.connections:,}",
                f"{figures.busy:.1%}",
            )
            for run, figures in ordered
        ),
    )


def _faults(runs: list[tuple[Run, Figures]]) -> str:
    head = (
        "lost",
        "block",
        "processes",
        "ids that failed",
        "late, more than 100 ms",
        "longest, ms",
        "settled after, s",
        "well after the return, s",
        "connects/s, each server: in the fault",
        "after it",
    )
    return _table(head, (_fault(run, figures) for run, figures in runs))


def _fault(run: Run, figures: Figures) -> Sequence[str]:
    begin, end = CALM_SECONDS, CALM_SECONDS + run.fault_seconds
    return (
        f"{run.fault}, {run.fault_seconds:.0f} s",
        f"{run.block}",
        f"{run.processes:,}",
        f"{figures.failed:,}",
        f"{sum(column[1] for column in figures.history):,}",
        _ms(figures.longest),
        "with its end" if figures.settled is None else _seconds(figures.settled),
        _seconds(figures.well_again),
        f"{_connects(run, figures, begin, end):,.0f}",
        f"{_connects(run, figures, end, run.seconds):,.0f}",
    )


def _connects(run: Run, figures: Figures, begin: float, end: float) -> float:
    """The most connections that a server was asked for in a second, the mean of all servers."""
    first, last = int(begin / SLICE_SECONDS), int(end / SLICE_SECONDS)
    a_second = int(1 / SLICE_SECONDS)
    asked = [column[3] for column in figures.history[first:last]]
    return max(sum(asked[n : n + a_second]) for n in range(len(asked))) / run.servers


def _overload(runs: list[tuple[Run, Figures]]) -> str:
    head = (
        "hedging",
        "ids/s",
        "ids that failed",
        "draws/s that the servers were asked for",
        "hedges",
        "statements/s of all kinds",
        "median, ms",
        "p99, ms",
    )
    return _table(
        head,
        (
            (
                "no" if run.hedge is False else "yes",
                f"{figures.ids:,.0f}",
                f"{figures.failed:,}",
                f"{figures.draws:,.0f}",
                f"{figures.hedges:,}",
                f"{sum(figures.statements.values()):,.0f}",
                _ms(figures.p50),
                _ms(figures.p99),
            )
            for run, figures in runs
        ),
    )


def _comparison(results: Results, points: list[Point]) -> str:
    head = (
        "layout, tickets of a draw",
        "data",
        "processes",
        "draws/s, real",
        "simulated",
        "ratio",
        "median, ms, real",
        "simulated",
        "p99, ms, real",
        "simulated",
    )
    rows = []
    for point in points:
        run = results.get(comparison_name(point))
        if run is not None:
            figures = run[1]
            rows.append(
                (
                    f"{point.layout}, {point.n}",
                    "disk" if point.is_quiet else "memory, busy",
                    f"{point.processes}",
                    f"{point.draws:,.0f}",
                    f"{figures.draws:,.0f}",
                    f"{figures.draws / point.draws:.2f}",
                    _ms(point.p50) if point.p50 else "",
                    _ms(figures.p50),
                    _ms(point.p99) if point.p50 else "",
                    _ms(figures.p99),
                )
            )
    return _table(head, rows)


def _ms(milliseconds: float) -> str:
    if milliseconds < 0.05:
        return "0"
    return f"{milliseconds:,.1f}" if milliseconds < 100 else f"{milliseconds:,.0f}"


def _seconds(found: float | None) -> str:
    return "not in time" if found is None else "at once" if not found else f"{found:.2f}"
