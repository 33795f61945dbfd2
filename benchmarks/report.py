"""Results as Markdown."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.figures import FIGURES, Figure
from benchmarks.harness import Comparison
from benchmarks.results import Results

__all__ = ["about", "comparison_table", "figures_table", "in_short", "keys_table", "tables"]

#: Kinds of keys as a flush and as a growing table call them.
_KEYS = {
    "tickets": ("TicketSequence", "TicketSequence"),
    "Snowflake": ("SnowflakeSequence", "SnowflakeSequence"),
    "UUIDv4": ("UUIDv4", "UUIDv4, binary(16)"),
    "UUIDv7, `UUIDSequence`": ("UUIDSequence", "UUIDv7, binary(16)"),
    "AUTO_INCREMENT": ("AUTO_INCREMENT", "AUTO_INCREMENT"),
}


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
    is_floor = figure.bound is None
    bound = "" if is_floor else f"{'at most' if figure.at_most else 'at least'} {figure.bound:g}"
    for server in figure.servers:
        seen = figure.seen(results, server)
        shown = "not measured" if seen is None else f"{seen:.3g}"
        reached = ""
        if seen is not None and not is_floor:
            reached = "reached" if figure.is_reached(seen) else "**not reached**"
        yield f"| {figure.what} | {server} | {bound} | {shown} | {reached} |"


#: What a user decides by: in words, the comparison, the side, and what it is compared with.
_IN_SHORT = (
    (
        "an id from a `block` of 1,000, against `uuid.uuid4()`",
        "buffered",
        "next_id, block=1000",
        "uuid4",
    ),
    (
        "a flush of 10,000 new objects, against AUTO_INCREMENT",
        "flush",
        "TicketSequence",
        "AUTO_INCREMENT",
    ),
    (
        "one ticket without a block, against the bare statement",
        "draw",
        "next_id, counter layout",
        "UPDATE, bare cursors in turn",
    ),
)


def in_short(results: Results) -> str:
    """The three numbers that a user decides by: how many times as fast."""
    kinds = {"mariadb": "MariaDB", "mysql": "MySQL"}
    lines = [f"| how many times as fast | {' | '.join(kinds.values())} |", "|---|---:|---:|"]
    for what, key, first, second in _IN_SHORT:
        cells = []
        for kind in kinds:
            comparison = results.find(key, kind)
            ratio = None if comparison is None else comparison.ratio(first, second)
            cells.append("not measured" if ratio is None else f"{ratio:.2g}")
        lines.append(f"| {what} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def keys_table(results: Results, server: str = "mysql") -> str:
    """What each kind of key costs on one server, to choose by."""
    columns = (("flush by keys", 0), ("index size", 1), ("index rate", 1))
    lines = [
        f"| on {server} | ORM flush, rows/s | table and indexes, bytes/row | large table, rows/s |",
        "|---|---:|---:|---:|",
    ]
    for what, names in _KEYS.items():
        cells = [_median(results, key, server, names[name]) for key, name in columns]
        lines.append(f"| {what} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _median(results: Results, key: str, server: str, side: str) -> str:
    comparison = results.find(key, server)
    row = None if comparison is None else comparison.row(side)
    return "not measured" if row is None else _number(row.median)


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
    lines += [f"\n{remark}" for remark in comparison.remarks]
    return "\n".join(lines) + "\n"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
