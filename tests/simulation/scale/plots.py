"""The plots of docs/understand/scale.md."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tests.support import themes
from tests.support.themes import COLOURS

from .load import SLICE_SECONDS, Figures, Run
from .measured import Point
from .places import FOLDER
from .sweeps import Results, comparison_name

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["plot"]


def plot(results: Results, points: list[Point]) -> list[str]:
    """Draw them; what has been drawn."""
    themes.use()
    plots: dict[str, Callable[[list[Axes]], bool]] = {
        "beside": lambda axes: _comparison(axes, results, points),
        "servers": lambda axes: _servers(axes, results),
        "outage": lambda axes: _outage(axes, results),
    }
    return [f"scale-{name}.svg" for name, draw in plots.items() if _save(f"scale-{name}.svg", draw)]


def _save(name: str, draw: Callable[[list[Axes]], bool]) -> bool:
    from matplotlib import pyplot as plt

    # one below the other, as wide as a telephone's screen
    figure, axes = plt.subplots(2, 1, figsize=(5, 6.5), layout="constrained")
    try:
        if not draw(list(axes)):
            return False
        for one in axes:
            one.grid(visible=True, which="major", axis="y")
        themes.save(figure, FOLDER / name)
        return True
    finally:
        plt.close(figure)


def _legend(axes: Axes) -> None:
    axes.legend(fontsize="small", frameon=False)


def _comparison(axes: list[Axes], results: Results, points: list[Point]) -> bool:
    """Real points are dots, simulated ones a line."""
    kinds = {
        "counter": ("counter", 1),
        "replace": ("replace", 1),
        "replace, blocks": ("replace", 100),
    }
    for one, is_quiet, value in ((axes[0], True, "draws"), (axes[1], False, "p50")):
        for (label, kind), colour in zip(kinds.items(), COLOURS, strict=False):
            here = [p for p in points if p.is_quiet is is_quiet and (p.layout, p.n) == kind]
            found = [(point, results.get(comparison_name(point))) for point in here]
            both = [(point, run[1]) for point, run in found if run is not None]
            across = [point.processes for point, _ in both]
            one.plot(across, [getattr(point, value) for point, _ in both], "o", color=colour)
            one.plot(across, [getattr(f, value) for _, f in both], color=colour, label=label)
        one.set_xscale("log", base=2)
        one.xaxis.set_major_formatter("{x:.0f}")
        one.set_xlabel("processes; dots real, lines simulated")
        one.set_ylim(bottom=0)
        _legend(one)
    axes[0].set_ylabel("draws a second, data on a disk")
    axes[1].set_ylabel("median wait, ms, data in memory")
    return bool(results)


def _servers(axes: list[Axes], results: Results) -> bool:
    """Of single tickets: the wait, and the statements, over the number of servers."""
    runs = [
        each for name, each in results.items() if name.startswith("singles ") and name[-1].isdigit()
    ]
    if not runs:
        return False
    across = [run.servers for run, _ in runs]
    for part, colour in zip(("p50", "p99"), COLOURS, strict=False):
        axes[0].plot(across, [getattr(f, part) for _, f in runs], "o-", color=colour, label=part)
    axes[0].set_ylabel("wait for a ticket, ms")
    bottom = [0.0] * len(runs)
    labels = [str(servers) for servers in across]
    kinds = {"draws": ("draw",), "marks read": ("read marks",), "marks written": ("write marks",)}
    for (label, names), colour in zip(kinds.items(), COLOURS, strict=False):
        height = [_a_process(run, f, names) for run, f in runs]
        axes[1].bar(labels, height, bottom=bottom, color=colour, label=label)
        bottom = [low + high for low, high in zip(bottom, height, strict=True)]
    axes[1].set_ylabel("statements a second, each process")
    for one in axes:
        one.set_xlabel("ticket servers")
        _legend(one)
    axes[0].set_xscale("log", base=2)
    axes[0].xaxis.set_major_formatter("{x:.0f}")
    return True


def _a_process(run: Run, figures: Figures, kinds: tuple[str, ...]) -> float:
    return sum(figures.statements.get(kind, 0.0) for kind in kinds) / run.processes


def _outage(axes: list[Axes], results: Results) -> bool:
    """What becomes of ids, and how many connections are asked for, while all servers are down for a minute."""
    found = [each for name, each in results.items() if name.startswith("all servers")]
    if not found:
        return False
    run, figures = found[0]
    a_second = int(1 / SLICE_SECONDS)
    seconds = range(len(figures.history) // a_second)
    columns = [
        [
            sum(figures.history[second * a_second + i][what] for i in range(a_second))
            for second in seconds
        ]
        for what in (0, 1, 2, 3)
    ]
    for column, label, colour in zip(
        columns[:3], ("in time", "late", "failed"), COLOURS, strict=False
    ):
        axes[0].plot(seconds, column, color=colour, label=label)
    axes[0].set_ylabel("ids a second")
    axes[1].plot(seconds, [n / run.servers for n in columns[3]], color=COLOURS[0])
    axes[1].set_ylabel("connections asked for, each server")
    for one in axes:
        one.axvspan(5, 5 + run.fault_seconds, alpha=0.12, color=themes.RED)
        one.set_xlabel("seconds; all servers are down in the shaded ones")
    _legend(axes[0])
    return True
