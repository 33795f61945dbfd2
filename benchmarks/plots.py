"""The two plots: what an id costs, and what it buys."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.results import Results

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["plot"]

#: In the order of preference: what the plots show.
SERVERS = ("mysql", "mariadb", "postgresql", "sqlite")


def plot(results: Results, folder: Path) -> dict[Path, str]:
    """Draw what was measured as SVG files; those that could be drawn, and what they show."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "sqla_tickets"  # equal figures make equal files
    plots = (
        ("ids.svg", "Ids a second over threads, by where they come from", _ids),
        ("rows.svg", "Rows a second over the delay of the network, by their keys", _rows),
    )
    return {
        folder / name: about for name, about, draw in plots if _save(results, folder / name, draw)
    }


def _save(results: Results, path: Path, draw: object) -> bool:
    from matplotlib import pyplot as plt

    assert callable(draw)
    figure, axes = plt.subplots(figsize=(8, 5), layout="constrained")
    try:
        if not draw(results, axes):
            return False
        axes.set_yscale("log")
        axes.grid(visible=True, which="major", axis="y", alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
        figure.savefig(path, metadata={"Date": None})
        return True
    finally:
        plt.close(figure)


def _series(results: Results, server: str, pattern: str) -> dict[str, list[tuple[float, float]]]:
    """The medians of each side over the number in the keys that match."""
    series: dict[str, list[tuple[float, float]]] = {}
    for comparison in results.comparisons:
        found = re.fullmatch(pattern, comparison.key)
        if comparison.server == server and found:
            for row in comparison.rows:
                series.setdefault(row.side, []).append((float(found[1]), row.median))
    return series


def _ids(results: Results, axes: Axes) -> bool:
    for server in SERVERS:
        series = _series(results, server, r"threads (\d+)")
        if series:
            for side, points in series.items():
                _line(axes, side, points)
            axes.set_xscale("log", base=2)
            axes.xaxis.set_major_formatter("{x:.0f}")
            axes.set_xlabel("threads")
            axes.set_ylabel("ids per second, all threads together")
            axes.set_title(f"Ids one at a time, {server} {results.servers.get(server, '')}")
            axes.legend(fontsize="small", loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
            return True
    return False


def _rows(results: Results, axes: Axes) -> bool:
    for server in SERVERS:
        series = _series(results, server, r"flush, ([\d.]+) ms away")
        near = results.find("flush", server)
        if series and near is not None:
            for row in near.rows:
                if row.side in series:
                    _line(axes, row.side, [(0.0, row.median), *series[row.side]])
            axes.set_xlabel("round trip to the servers, ms more than loopback's")
            axes.set_ylabel("rows per second")
            axes.set_title(f"ORM flush, {server} {results.servers.get(server, '')}")
            axes.legend(fontsize="small", loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
            return True
    return False


def _line(axes: Axes, side: str, points: list[tuple[float, float]]) -> None:
    ours = side.startswith(("next_id", "TicketSequence"))
    across, up = zip(*sorted(points), strict=True)
    axes.plot(across, up, marker="o", markersize=4, linewidth=2.5 if ours else 1.2, label=side)
