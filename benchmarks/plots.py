"""The plots: what an id costs, what it buys, and what many clients, sequences and servers add.

Each is as wide as a telephone's screen, and says in words what it shows.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from benchmarks.results import Results
from benchmarks.scale import FULL
from tests.support import themes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["DECISIVE", "plot"]

#: The one that the first page shows.
DECISIVE = "rows.svg"

#: In the order of preference: what the plots show.
SERVERS = ("mysql", "mariadb", "postgresql", "sqlite")
#: Draws on axes what was measured, and returns it in words; None where it was not measured.
Draw: TypeAlias = "Callable[[Results, Axes], str | None]"
#: Points of one line, by their places on the horizontal axis.
Points: TypeAlias = "list[tuple[float, float]]"
_COMPARED = ("TicketSequence", "ids from a range", "AUTO_INCREMENT")
_OURS = ("next_id", "TicketSequence")


def plot(results: Results, folder: Path) -> dict[Path, str]:
    """Draw what was measured as SVG files; those that could be drawn, and what they show."""
    import matplotlib as mpl

    themes.use()
    mpl.rcParams["font.size"] = 11
    plots: dict[str, Draw] = {
        "ids.svg": _ids,
        "rows.svg": _rows,
        "flush.svg": _flushes,
        "scale.svg": _crowds,
        "sequences.svg": lambda results, axes: _against_bare(
            results, axes, r"sequences (\d+)", "sequences that one thread draws from"
        ),
        "servers.svg": lambda results, axes: _against_bare(
            results, axes, r"servers (\d+)", "ticket servers that one thread draws from"
        ),
    }
    drawn = {folder / name: _save(results, folder / name, draw) for name, draw in plots.items()}
    return {path: about for path, about in drawn.items() if about is not None}


def _save(results: Results, path: Path, draw: Draw) -> str | None:
    from matplotlib import pyplot as plt

    # inches of 72 points: at 360 pixels, the text is as large as that of the page
    figure, axes = plt.subplots(figsize=(5, 5), layout="constrained")
    try:
        about = draw(results, axes)
        if about is not None:
            axes.grid(visible=True, which="major", axis="y")
            figure.legend(fontsize="small", loc="outside lower left", frameon=False)
            themes.save(figure, path)
        return about
    finally:
        plt.close(figure)


def _series(results: Results, server: str, pattern: str) -> dict[str, Points]:
    """The medians of each side over the number in the keys that match."""
    series: dict[str, Points] = {}
    for comparison in results.comparisons:
        found = re.fullmatch(pattern, comparison.key)
        if comparison.server == server and found:
            for row in comparison.rows:
                series.setdefault(row.side, []).append((float(found[1]), row.median))
    return series


def _ids(results: Results, axes: Axes) -> str | None:
    for server in SERVERS:
        series = _series(results, server, r"threads (\d+)")
        if series:
            _count_on(axes, "threads")
            axes.set_yscale("log")
            axes.set_ylabel("ids per second, all threads together")
            axes.set_title(f"Ids one at a time, {_name(results, server)}")
            return f"Ids a second over threads, {_draw(axes, series)}"
    return None


def _rows(results: Results, axes: Axes) -> str | None:
    for server in SERVERS:
        series = _series(results, server, r"flush, ([\d.]+) ms away")
        near = results.find("flush", server)
        if series and near is not None:
            for row in near.rows:
                if row.side in series:
                    series[row.side].append((0.0, row.median))
            axes.set_xlabel("round trip to the servers, ms more than loopback's")
            axes.set_yscale("log")
            axes.set_ylabel("rows per second")
            axes.set_title(f"ORM flush, {_name(results, server)}")
            return f"Rows per second, by network delay in ms, {_draw(axes, series)}"
    return None


def _flushes(results: Results, axes: Axes) -> str | None:
    for server in SERVERS:
        series = _series(results, server, r"flush (\d+)")
        series = {side: series[side] for side in _COMPARED if side in series}
        closely = results.find("flush", server)
        if closely is not None and results.scale == "full":
            for row in closely.rows:
                series.setdefault(row.side, []).append((FULL.rows, row.median))
        if series:
            _count_on(axes, "rows in one flush", base=10)
            axes.set_yscale("log")
            axes.set_ylabel("rows per second")
            axes.set_title(f"ORM flush, {_name(results, server)}")
            return f"Rows per second, by rows per flush, {_draw(axes, series)}"
    return None


def _crowds(results: Results, axes: Axes) -> str | None:
    """Rates of draws as parts of the bare cursors' in the same rounds."""
    for server in SERVERS:
        series: dict[str, Points] = {}
        for comparison in results.comparisons:
            found = re.fullmatch(r"scale (\w+) (\w+) (\d+)", comparison.key)
            if comparison.server == server and found:
                first, second = (row.side for row in comparison.rows)
                ratio = comparison.ratio(second, first)
                if ratio is not None:
                    points = series.setdefault(f"{found[2]}, {found[1]} layout", [])
                    points.append((float(found[3]), ratio))
        if series:
            _count_on(axes, "clients that draw at once")
            axes.axhline(1, color=themes.INK, linewidth=0.8)
            axes.set_ylabel("draws, as a part of bare cursors'")
            axes.set_title(f"Single tickets, {_name(results, server)}")
            said = _draw(axes, series)
            axes.set_ylim(bottom=0)
            return f"Draws of many clients as a part of what bare cursors reach, {said}"
    return None


def _against_bare(results: Results, axes: Axes, pattern: str, what: str) -> str | None:
    for server in SERVERS:
        series = _series(results, server, pattern)
        if series:
            _count_on(axes, what, base=10 if "sequences" in what else 2)
            axes.set_ylabel("draws per second")
            axes.set_title(f"Single tickets, {_name(results, server)}")
            said = _draw(axes, series)
            axes.set_ylim(bottom=0)
            return f"Draws a second over the number of {what}, {said}"
    return None


def _name(results: Results, server: str) -> str:
    return f"{server} {results.servers.get(server, '')}".strip()


def _count_on(axes: Axes, what: str, base: int = 2) -> None:
    axes.set_xscale("log", base=base)
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.set_xlabel(what)


def _draw(axes: Axes, series: dict[str, Points]) -> str:
    """Draw the lines; their ends in words."""
    said = []
    for side, points in series.items():
        is_ours = side.startswith(_OURS)
        across, up = zip(*sorted(points), strict=True)
        axes.plot(
            across, up, marker="o", markersize=4, linewidth=2.5 if is_ours else 1.2, label=side
        )
        ends = dict.fromkeys((0, len(up) - 1))  # one, where only one was measured
        said.append(f"{side}: {', '.join(f'{_number(up[i])} at {across[i]:,g}' for i in ends)}")
    return "; ".join(said)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2g}"
