"""Formats results: tables for people, JSON for programs."""

from __future__ import annotations

import datetime as dt
import json
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

import click
from rich import box
from rich.bar import Bar
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from .. import TableStatus
from ..status.measure import Node, left_in_javascript, runs_out, runs_out_in_javascript
from ..status.text import (
    EVERY_SHARD,
    Level,
    Problem,
    address_of,
    alike,
    few_of,
    label_of,
    location_of,
    number,
    problems,
    verdict,
)
from .audit import Anomaly, Report
from .doctor import Finding, Severity

__all__ = ["as_json", "audit_view", "console", "findings_table", "number", "show", "status_view"]


#: The end of a line: blanks, possibly with changes of colour.
_END: Final = re.compile(r"(?: |\x1b\[[\d;]*m)+$")
#: A width at which no line is cut, for pipes and on request.
WHOLE: Final = 100_000


def console(*, is_wide: bool = False, is_error: bool = False) -> Console:
    """The console for results, or for messages that must stay out of them."""
    out = Console(highlight=False, stderr=is_error)
    if is_wide or not out.is_terminal:
        out = Console(highlight=False, stderr=is_error, width=WHOLE)
    return out


def show(view: RenderableType, out: Console | None = None, *, is_error: bool = False) -> None:
    """Print results without trailing blanks."""
    out = out or console(is_error=is_error)
    with out.capture() as printed:
        out.print(view)
    lines = (
        _END.sub(lambda end: end[0].replace(" ", ""), line) for line in printed.get().splitlines()
    )
    click.echo("\n".join(lines), err=is_error, color=out.is_terminal)


def as_json(**lists: Iterable[Mapping[str, object]]) -> str:
    """Records as a JSON object with a list of each kind."""
    listed = {what: list(records) for what, records in lists.items()}
    return json.dumps(listed, default=_plain, indent=2)


def _plain(value: object) -> object:
    if isinstance(value, (dt.date, dt.datetime)):
        return value.isoformat()
    return str(value)


def item(text: str) -> str:
    """An item of a list, in lines of 80 columns; a word that is longer, such as a path, stays whole."""
    lines = [
        part
        for line in text.splitlines()
        for part in textwrap.wrap(line, 78, break_long_words=False, break_on_hyphens=False)
    ]
    return "- " + "\n  ".join(lines)


def table_of(
    columns: Sequence[str], title: str | None = None, *, whole: Sequence[str] = ("server",)
) -> Table:
    """A table that folds cells that do not fit, except in the columns ``whole``."""
    table = Table(
        title=title,
        title_justify="left",
        title_style="bold",
        header_style="dim",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        collapse_padding=True,
    )
    for column in columns:
        is_text = column in (
            "sequence",
            "server",
            "column",
            "state",
            "layout",
            "leased by",
            "until",
            "",
        )
        # a name or a number that is split cannot be searched for
        table.add_column(
            column,
            justify="left" if is_text else "right",
            no_wrap=column in whole,
            overflow="fold",
        )
    return table


#: The columns that a narrow terminal omits, in this order.
FIRST_TO_GO: Final = (
    "below 2^53",
    "left",
    "runs out",
    "layout",
    "offset",
    "lead",
    "rate/s",
    "peers know",
)


def status_view(
    statuses: Sequence[TableStatus],
    nodes: Sequence[Node],
    servers: int,
    *,
    width: int = WHOLE,
    is_live: bool = False,
    with_shards: str = EVERY_SHARD,
) -> RenderableType:
    """The output of ``sqla-tickets status``.

    Args:
        statuses: the status of every sequence on every server.
        nodes: the leased node numbers.
        servers: how many there are.
        width: the largest width of the table.
        is_live: whether the end may be cut off; the findings then come before the table.
        with_shards: what advice adds to the name of a command that reads the shards.
    """
    findings = _list(problems(statuses, with_shards))
    tables: list[RenderableType] = [_status_table(statuses, width)] if statuses else []
    tables += [_nodes_table(nodes)] if nodes else []
    parts = ["", findings, *tables] if is_live else [*tables, findings]
    found = verdict(statuses, servers)
    return Group(Text(found.text, _STYLES[found.level]), *parts)


def _status_table(statuses: Sequence[TableStatus], width: int) -> Table:
    """The status table with as many columns as fit."""
    rows: list[dict[str, str | Text]] = []
    before = None
    for s in statuses:
        key = s.pool, s.sequence
        rows.append(_row(s, is_first=key != before))
        before = key
    columns, to_go = list(rows[0]), iter(FIRST_TO_GO)
    while True:
        table = table_of(columns, whole=("sequence", "state", "last"))
        for row in rows:
            table.add_row(*(row[name] for name in columns))
        fits = Measurement.get(_UNBOUNDED, _UNBOUNDED.options, table).maximum <= width
        next_to_go = next(to_go, None)
        if fits or next_to_go is None:
            return table
        columns = [name for name in columns if name != next_to_go]


_UNBOUNDED: Final = Console(width=WHOLE)


def _row(s: TableStatus, *, is_first: bool) -> dict[str, str | Text]:
    end = runs_out(s)
    return {
        "sequence": Text(label_of(s) if is_first else ""),
        "server": Text(location_of(s)),
        "state": Text(s.state.upper(), "green" if s.state == "up" else "bold red"),
        "last": "-" if s.last_ticket is None else f"{s.last_ticket:,}",
        "peers know": "-" if s.high_water_mark is None else f"{s.high_water_mark:,}",
        "layout": f"{s.layout or '-'}{' (foreign)' if s.is_foreign else ''}{f' {s.bits}' if s.bits < 64 else ''}",
        "offset": f"{s.offset} of {s.stride}",
        "lead": whole(s.lead),
        "rate/s": number(s.rate),
        "left": number(s.capacity_left),
        "runs out": end.isoformat() if end else "-",
        "below 2^53": _in_javascript(s),
    }


def whole(value: int | None) -> str:
    """An id with separators, and never with an exponent."""
    return "-" if value is None else f"{value:,}"


def _in_javascript(s: TableStatus) -> str:
    end = runs_out_in_javascript(s)
    return number(left_in_javascript(s)) + (f" until {end.isoformat()}" if end else "")


def _nodes_table(nodes: Sequence[Node]) -> RenderableType:
    """The live leases of node numbers, and the number of leases without an owner."""
    table = table_of(["node", "server", "leased by", "until"])
    leased = [node for node in nodes if node.is_live]
    for node in leased:
        until = node.expires.isoformat(" ", "seconds")
        name = node.node if node.pool == "default" else f"{node.pool}: {node.node}"
        table.add_row(str(name), Text(address_of(node.server)), Text(node.holder), until)
    free = len(nodes) - len(leased)
    words = f"Node numbers without an owner: {free:,}\n" if free else ""
    return Group(*([table] if leased else []), *([Text(words, "dim")] if free else []))


_STYLES: Final[dict[Level, str]] = {
    "bad": "bold red",
    "warning": "yellow",
    "advice": "cyan",
    "well": "green",
}
_LEVELS: Final[dict[Severity, Level]] = {"repeats": "bad", "stops": "warning", "advice": "advice"}
_MEANING: dict[Severity, str] = {
    "repeats": "IDS CAN REPEAT",
    "stops": "DRAWS CAN FAIL",
    "advice": "advice",
}


def findings_table(findings: Sequence[Finding]) -> RenderableType:
    """The output of ``sqla-tickets doctor``: the same advice about several servers comes once."""
    if not findings:
        return Text("No findings: the ticket servers are healthy.", "green")
    servers: dict[Finding, list[str]] = {}
    for finding in findings:
        own = "" if finding.severity == "advice" else finding.server
        servers.setdefault(replace(finding, server=own), []).append(finding.server)
    return _list(
        Problem(
            _MEANING[finding.severity],
            _LEVELS[finding.severity],
            where=", ".join(found_on),
            what=f"{finding.variable} = {finding.value}",
            why=finding.why,
            fix=finding.fix,
            sequence=finding.sequence,
        )
        for finding, found_on in servers.items()
    )


def _list(found: Iterable[Problem]) -> Table:
    """The problems, one for each server and reason, with their sequences."""
    table = Table(show_header=False, box=None, padding=(0, 2, 1, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for problem, others in alike(found):
        parts = (
            (problem.where, "dim"),
            (problem.what, "bold"),
            problem.why,
            (f"Do: {problem.fix}", "green"),
            (f"The same for {few_of(others)}." if others else "", "bold"),
        )
        table.add_row(
            Text(problem.label, _STYLES[problem.level]),
            Text("\n").join(Text.assemble(p) for p in parts if p and p[0]),
        )
    return table


_NO_ANOMALY: Final = "No duplicate ids; no id is above the tickets."


def audit_view(reports: Sequence[Report]) -> RenderableType:
    """The output of ``sqla-tickets audit``.

    If the ids of several columns have no problem, they come first, in one table. Problems that are not about ids come
    last, one for each reason.
    """
    read = [r for r in reports if r.is_read]
    well = [r for r in read if not (r.without or any(a.count for a in r.anomalies))]
    well = well if len(well) > 1 else []
    parts: list[RenderableType] = []
    if well:
        table = table_of(["column", "ids on the shards", "the largest"], whole=("column",))
        for r in well:
            table.add_row(_read(r), f"{r.rows:,}", whole(r.largest))
        found = "No duplicate ids." if any(r.anomalies for r in well) else _NO_ANOMALY
        parts += [table, Text(f"{found}\n", "green")]
    for r in read:
        if r not in well:
            parts += _column(r)
    others = [_anomaly(a, r) for r in reports for a in r.anomalies if not a.count]
    return Group(*parts, *([_list(others)] if others else []))


class _PartBar(Bar):
    """A bar that any encoding of the output can write."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if not options.ascii_only:
            return super().__rich_console__(console, options)
        return iter([Text("#" * round(20 * self.end / self.size), "cyan")])


def _read(r: Report) -> str:
    return r.column if r.above is None else f"{r.column} above {r.above:,}"


def _column(r: Report) -> Iterator[RenderableType]:
    """What an audit has found in one column."""
    title = f"{_read(r)}: {_ids(r.rows)} in {r.seconds:.1f} s, the largest {whole(r.largest)}"
    table = table_of(["server's offset", "ids on the shards", "part", "", "issued at most"], title)
    for offset in sorted({*r.residues, *r.high_waters}):
        n = r.residues.get(offset, 0)
        part = n / max(r.rows, 1)
        high = whole(r.high_waters[offset]) if offset in r.high_waters else "no server"
        bar = _PartBar(1, 0, part, width=20, color="cyan")
        table.add_row(str(offset), f"{n:,}", f"{part:.1%}", bar, high)
    yield table
    if r.without:
        yield Text(f"No such column on {', '.join(r.without)}.\n", "yellow")
    if not r.anomalies:
        yield Text(f"{_NO_ANOMALY}\n", "green")
    elif not any(a.kind == "duplicate" for a in r.anomalies):
        yield Text("No duplicate ids.\n", "green")
    yield _list(_anomaly(a, r) for a in r.anomalies if a.count)


def _ids(count: int) -> str:
    return "1 id" if count == 1 else f"{count:,} ids"


def _anomaly(a: Anomaly, r: Report) -> Problem:
    ids = ", ".join(map(str, a.ids[:10])) + (" ..." if a.count > 10 else "")
    return Problem(
        a.kind.upper(),
        "bad",
        where=a.server or ", ".join(a.shards),
        what=f"{_ids(a.count)}: {ids}" if a.count else r.column,
        why=a.why,
        fix=a.fix,
        sequence=r.sequence,
        column=r.column,
    )
