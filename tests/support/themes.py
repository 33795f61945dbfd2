"""Pictures that follow the page: one SVG, light or dark as the page is."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = [
    "BOX",
    "COLOURS",
    "DARK",
    "INK",
    "LINE",
    "PAPER",
    "RED",
    "SMALL_INK",
    "save",
    "themed",
    "use",
]

INK, SMALL_INK, LINE, PAPER, BOX = "#1d2129", "#5b6472", "#d5dae3", "#ffffff", "#f4f6fa"
COLOURS: Final = ("#2563eb", "#15803d", "#9333ea", "#b45309")
RED: Final = "#dc2626"

#: The colours of plots, each with the one that takes its place on a dark page.
DARK: Final = {
    PAPER: "#131416",  # the handbook's
    INK: "#d5dae3",
    SMALL_INK: "#9aa4b5",
    LINE: "#3a404b",
    BOX: "#23262d",
    **dict(zip(COLOURS, ("#6ea8fe", "#4ade80", "#c89bf7", "#fbaf5d"), strict=True)),
    RED: "#f87171",
}


def themed(svg: str, dark: Mapping[str, str] = DARK) -> str:
    """An SVG in light colours that a dark page shows in the dark ones."""
    used = [light for light in dark if re.search(f"{light}\\b", svg, re.IGNORECASE)]
    for light in used:
        svg = re.sub(f"{light}\\b", f"var(--on-{light[1:]}, {light})", svg, flags=re.IGNORECASE)
    rules = " ".join(f"--on-{light[1:]}: {dark[light]};" for light in used)
    style = f"<style>@media (prefers-color-scheme: dark) {{ svg {{ {rules} }} }}</style>"
    return re.sub(r"(<svg\b[^>]*>)", rf"\1\n{style}", svg, count=1)


def use() -> None:
    """Have matplotlib draw in the light colours; equal figures make equal files."""
    import matplotlib as mpl
    from cycler import cycler

    mpl.use("svg")
    mpl.rcParams.update(
        {
            "svg.hashsalt": "sqla_tickets",
            "svg.fonttype": "none",
            "path.simplify": False,
            "font.family": "sans-serif",
            "text.color": INK,
            "axes.labelcolor": INK,
            "axes.edgecolor": SMALL_INK,
            "axes.axisbelow": True,
            "axes.facecolor": PAPER,
            "axes.prop_cycle": cycler(color=COLOURS),
            "axes.spines.top": False,
            "axes.spines.right": False,
            "figure.facecolor": PAPER,
            "grid.color": LINE,
            "xtick.color": INK,
            "ytick.color": INK,
        }
    )


def save(figure: Figure, path: Path) -> None:
    """Write a figure that matplotlib has drawn in the light colours."""
    figure.savefig(path, metadata={"Date": None})
    lines = themed(path.read_text()).splitlines()
    path.write_text("\n".join(line.rstrip() for line in lines) + "\n")
