"""Formats results: tables for people, JSON for programs."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterable, Mapping, Sequence

from rich import box
from rich.bar import Bar
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from .. import TableStatus
from ..dialects import find_class
from .audit import Anomaly, Report
from .doctor import Finding, Severity
from .status import Node, left_in_javascript, runs_out, runs_out_in_javascript

__all__ = ["as_json", "audit_view", "console", "findings_table", "number", "status_view"]


def console() -> Console:
    """The console for results; a pipe gets lines that are long enough for a table."""
    out = Console(highlight=False)
    return out if out.is_terminal else Console(highlight=False, width=200)


def as_json(**lists: Iterable[Mapping[str, object]]) -> str:
    """Records as a JSON object with a list of each kind."""
    listed = {what: list(records) for what, records in lists.items()}
    return json.dumps(listed, default=_plain, indent=2)


def _plain(value: object) -> object:
    if isinstance(value, (dt.date, dt.datetime)):
        return value.isoformat()
    return str(value)


def number(value: float | None) -> str:
    """A number with separators, and with an exponent from 10**12 on."""
    if value is None:
        return "-"
    if value >= 10**12:
        return f"{value:.1e}"
    return f"{value:,.0f}" if isinstance(value, int) or value >= 100 else f"{value:,.1f}"


def table_of(columns: Sequence[str], title: str | None = None) -> Table:
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
        is_text = column in ("sequence", "server", "state", "layout", "leased by", "until", "")
        # a name that is cut in two cannot be looked for
        table.add_column(
            column,
            justify="left" if is_text else "right",
            no_wrap=column == "server",
            overflow="fold",
        )
    return table


def status_view(statuses: Sequence[TableStatus], nodes: Sequence[Node]) -> RenderableType:
    """The output of ``sqla-tickets status``."""
    if not nodes:
        return _status_table(statuses)
    return Group(_status_table(statuses), _nodes_table(nodes))


def _status_table(statuses: Sequence[TableStatus]) -> RenderableType:
    numbers = [
        "last",
        "peers know",
        "layout",
        "of",
        "lead",
        "rate/s",
        "left",
        "runs out",
        "below 2^53",
    ]
    table = table_of(["sequence", "server", "state", *numbers])
    before = None
    for s in statuses:
        if before not in (None, (s.pool, s.sequence)):
            table.add_section()
        end = runs_out(s)
        table.add_row(
            Text("" if before == (s.pool, s.sequence) else _sequence(s)),
            Text(_location(s)),
            _state(s),
            "-" if s.last_ticket is None else f"{s.last_ticket:,}",
            "-" if s.high_water_mark is None else f"{s.high_water_mark:,}",
            f"{s.layout or '-'}{' (foreign)' if s.is_foreign else ''}{f' {s.bits}' if s.bits < 64 else ''}",
            f"{s.offset} of {s.stride}",
            number(s.lead),
            number(s.rate),
            number(s.capacity_left),
            end.isoformat() if end else "-",
            _in_javascript(s),
        )
        before = s.pool, s.sequence
    if not statuses:
        return Text("No sequence was found. Create one, or name a foreign table.")
    drawn_from = {(s.pool, s.sequence) for s in statuses if s.is_well}
    remedies = (
        (_state(s), _remedy(s, (s.pool, s.sequence) in drawn_from))
        for s in statuses
        if not s.is_well
    )
    return Group(table, _list(remedies))


def _in_javascript(s: TableStatus) -> str:
    end = runs_out_in_javascript(s)
    return number(left_in_javascript(s)) + (f" until {end.isoformat()}" if end else "")


def _nodes_table(nodes: Sequence[Node]) -> RenderableType:
    """The live leases of node numbers, and how many other numbers have no owner."""
    table = table_of(["node", "server", "leased by", "until"])
    leased = [node for node in nodes if node.is_live]
    for node in leased:
        until = node.expires.isoformat(" ", "seconds")
        name = node.node if node.pool == "default" else f"{node.pool}: {node.node}"
        table.add_row(str(name), Text(_address(node.server)), Text(node.holder), until)
    free = len(nodes) - len(leased)
    words = f"Node numbers without an owner: {free:,}\n" if free else ""
    return Group(*([table] if leased else []), *([Text(words, "dim")] if free else []))


def _state(s: TableStatus) -> Text:
    if s.is_set_back:
        return Text("SET BACK", "bold red")
    if s.is_read_only:
        return Text("READ-ONLY", "bold red")
    return Text("up", "green") if s.up else Text("DOWN", "bold red")


def _remedy(s: TableStatus, others_are_well: bool) -> Text:
    what = f"{s.sequence!r} on {s.server}" if s.sequence else s.server
    if s.is_set_back:
        why = f"Its peers know that it issued {s.high_water_mark:,}: it would issue tickets again."
        return _description(
            "",
            what,
            why,
            f"sqla-tickets restore --offset {s.offset}, before any client connects.",
        )
    effect = (
        "draws go to the other servers."
        if others_are_well
        else "draws fail until a server is back."
    )
    why = "It takes no writes: was it demoted?" if s.is_read_only else str(s.error)
    return _description("", what, why, f"sqla-tickets doctor; {effect}")


def _location(s: TableStatus) -> str:
    """The server without its offset, which has a column of its own."""
    return _address(s.server.removesuffix(f" (offset {s.offset})"))


def _address(name: str) -> str:
    """The address of a server without its kind."""
    scheme, _, rest = name.partition("://")
    known = find_class(scheme)
    return name if known and known.is_embedded else rest or name


def _sequence(s: TableStatus) -> str:
    return s.sequence if s.pool == "default" else f"{s.pool}: {s.sequence}"


_COLOURS: dict[Severity, str] = {"repeats": "bold red", "stops": "yellow", "advice": "cyan"}
_MEANING: dict[Severity, str] = {
    "repeats": "IDS CAN REPEAT",
    "stops": "DRAWS CAN FAIL",
    "advice": "advice",
}


def findings_table(findings: Sequence[Finding]) -> RenderableType:
    """The output of ``sqla-tickets doctor``."""
    if not findings:
        return Text("No finding: the ticket servers are well.", "green")
    return _list(
        (
            Text(_MEANING[finding.severity], _COLOURS[finding.severity]),
            _description(
                finding.server, f"{finding.variable} = {finding.value}", finding.why, finding.fix
            ),
        )
        for finding in findings
    )


def _list(rows: Iterable[tuple[Text, Text]]) -> Table:
    """Problems, each with its description."""
    table = Table(show_header=False, box=None, padding=(0, 2, 1, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table


def _description(where: str, what: str, why: str, fix: str) -> Text:
    parts = ((where, "dim"), (what, "bold"), why, (f"Do: {fix}", "green"))
    return Text("\n").join(Text.assemble(part) for part in parts if part[0])


def audit_view(reports: Sequence[Report]) -> RenderableType:
    """The output of ``sqla-tickets audit``."""
    parts: list[RenderableType] = []
    for r in reports:
        title = f"{r.column}: {r.rows:,} ids in {r.seconds:.1f} s, the largest {number(r.largest)}"
        table = table_of(["server's offset", "ids on the shards", "part", "", "high water"], title)
        for offset in sorted({*r.residues, *r.high_waters}):
            n = r.residues.get(offset, 0)
            part = n / max(r.rows, 1)
            high = number(r.high_waters[offset]) if offset in r.high_waters else "no server"
            table.add_row(
                str(offset), f"{n:,}", f"{part:.1%}", Bar(1, 0, part, width=20, color="cyan"), high
            )
        parts.append(table)
        if r.without:
            parts.append(Text(f"No such column on {', '.join(r.without)}.\n", "yellow"))
        if not r.anomalies:
            parts.append(Text("No duplicate id, and none that no ticket server issued.\n", "green"))
        parts.append(_list((Text(a.kind.upper(), "bold red"), _anomaly(a)) for a in r.anomalies))
    return Group(*parts)


def _anomaly(a: Anomaly) -> Text:
    ids = ", ".join(map(str, a.ids[:10])) + (" ..." if a.count > 10 else "")
    count = "1 id" if a.count == 1 else f"{a.count:,} ids"
    return _description(", ".join(a.shards), f"{count}: {ids}" if a.count else "", a.why, a.fix)
