"""Results as Markdown."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.figures import FIGURES, Figure
from benchmarks.harness import Comparison
from benchmarks.results import Results

__all__ = ["about", "comparison_table", "figures_table", "tables"]


def about(results: Results) -> str:
    """The machine and the versions."""
    machine = results.machine
    servers = ", ".join(f"{kind} {version}" for kind, version in results.servers.items())
    packages = ", ".join(f"{name} {version}" for name, version in results.versions.items())
    lines = [
        f"{machine['processor']}, {machine['cores']} cores, {machine['memory']}, {machine['system']};",
        f"{servers}; {packages}.",
    ]
    if results.scale != "full":
        lines.append(
            f"\n**A {results.scale} run: it shows that everything works, its times say little.**"
        )
    return "\n".join(lines) + "\n"


def figures_table(results: Results) -> str:
    """What is to be reached, and what was seen."""
    lines = ["| what | server | bound | seen | |", "|---|---|---:|---:|---|"]
    for figure in FIGURES:
        lines += _figure_rows(figure, results)
    return "\n".join(lines) + "\n"


def _figure_rows(figure: Figure, results: Results) -> Iterator[str]:
    bound = f"{'at most' if figure.at_most else 'at least'} {figure.bound:g}"
    for server in figure.servers:
        seen = figure.seen(results, server)
        shown = "not measured" if seen is None else f"{seen:.3g}"
        reached = (
            "" if seen is None else "reached" if figure.is_reached(seen) else "**not reached**"
        )
        yield f"| {figure.what} | {server} | {bound} | {shown} | {reached} |"


def tables(results: Results) -> str:
    """Every comparison, under a heading for each server."""
    text = ""
    for server in dict.fromkeys(comparison.server for comparison in results.comparisons):
        version = results.servers.get(server, "")
        text += f"\n## {f'{server} {version}' if server else 'Without a server'}\n"
        for comparison in results.comparisons:
            if comparison.server == server:
                text += f"\n### {comparison.title}\n\n{comparison_table(comparison)}"
    return text


def comparison_table(comparison: Comparison) -> str:
    """Medians, what lies around them, and how they compare with the first row."""
    first = comparison.rows[0].side
    lines = [
        f"| | {comparison.unit} | lowest | highest | to the first |",
        "|---|---:|---:|---:|---:|",
    ]
    for row in comparison.rows:
        values = [row.median, min(row.values), max(row.values)]
        ratio = comparison.ratio(row.side, first)
        cells = [*map(_number, values), "" if ratio is None else f"{ratio:.3g}"]
        lines.append(f"| {row.side} | " + " | ".join(cells) + " |")
    lines += [f"\n{note}" for note in comparison.notes]
    return "\n".join(lines) + "\n"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
