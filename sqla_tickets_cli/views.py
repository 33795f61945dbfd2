"""How what was found reads: tables for people, JSON for machines."""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
from collections.abc import Iterable, Sequence
from typing import Any

from rich import box
from rich.bar import Bar
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from .audit import Anomaly, Report
from .doctor import Finding, Severity
from .status import Node, Standing

__all__ = ["as_json", "audit_view", "console", "findings_table", "number", "status_view"]


def console() -> Console:
    """Where output goes; a pipe gets lines that are long enough for a table."""
    out = Console(highlight=False)
    return out if out.is_terminal else Console(highlight=False, width=200)


def as_json(**lists: Iterable[Any]) -> str:
    """Records as a JSON object with a list of each kind."""
    listed = {what: [dataclasses.asdict(r) for r in records] for what, records in lists.items()}
    return json.dumps(listed, default=_plain, indent=2)


def _plain(value: object) -> object:
    if isinstance(value, (dt.date, dt.datetime)):
        return value.isoformat()
    return str(value)


def number(value: float | None) -> str:
    """A number with separators, short where it is beyond counting."""
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


def status_view(standings: Sequence[Standing], nodes: Sequence[Node]) -> RenderableType:
    """What ``sqla-tickets status`` shows."""
    if not nodes:
        return _status_table(standings)
    return Group(_status_table(standings), _nodes_table(nodes))


def _status_table(standings: Sequence[Standing]) -> RenderableType:
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
    for s in standings:
        if before not in (None, (s.pool, s.sequence)):
            table.add_section()
        table.add_row(
            Text("" if before == (s.pool, s.sequence) else _sequence(s)),
            Text(_place(s)),
            _state(s),
            "-" if s.last_ticket is None else f"{s.last_ticket:,}",
            "-" if s.mark is None else f"{s.mark:,}",
            f"{s.layout or '-'}{' (foreign)' if s.is_foreign else ''}{' 32' if s.bits == 32 else ''}",
            f"{s.offset} of {s.stride}",
            number(s.lead),
            number(s.rate),
            number(s.left),
            s.runs_out.isoformat() if s.runs_out else "-",
            _in_javascript(s),
        )
        before = s.pool, s.sequence
    if not standings:
        return Text("No sequence is known here. Create one, or name a foreign one.")
    drawn_from = {(s.pool, s.sequence) for s in standings if s.is_well}
    remedies = (
        (_state(s), _remedy(s, (s.pool, s.sequence) in drawn_from))
        for s in standings
        if not s.is_well
    )
    return Group(table, _list(remedies))


def _in_javascript(s: Standing) -> str:
    end = s.runs_out_in_javascript
    return number(s.left_in_javascript) + (f" until {end.isoformat()}" if end else "")


def _nodes_table(nodes: Sequence[Node]) -> RenderableType:
    """Who leases which node number now; how many more are free."""
    table = table_of(["node", "server", "leased by", "until"])
    live = [node for node in nodes if node.is_live]
    for node in live:
        until = node.expires.isoformat(" ", "seconds")
        name = node.node if node.pool == "default" else f"{node.pool}: {node.node}"
        table.add_row(str(name), Text(_address(node.server)), Text(node.holder), until)
    free = len(nodes) - len(live)
    words = f"Node numbers that have no owner any more: {free:,}\n" if free else ""
    return Group(*([table] if live else []), *([Text(words, "dim")] if free else []))


def _state(s: Standing) -> Text:
    if s.is_set_back:
        return Text("SET BACK", "bold red")
    if s.is_read_only:
        return Text("READ-ONLY", "bold red")
    return Text("up", "green") if s.up else Text("DOWN", "bold red")


def _remedy(s: Standing, others_are_well: bool) -> Text:
    what = f"{s.sequence!r} on {s.server}" if s.sequence else s.server
    if s.is_set_back:
        why = f"It has issued {s.mark:,}, as its peers know, and would issue that again."
        return _words(
            "",
            what,
            why,
            f"sqla-tickets restore --offset {s.offset}, before anybody draws from it.",
        )
    meanwhile = (
        "the other servers are drawn from."
        if others_are_well
        else "nothing can be drawn until a server is back."
    )
    why = "It takes no writes: was it demoted?" if s.is_read_only else str(s.error)
    return _words("", what, why, f"sqla-tickets doctor looks further; {meanwhile}")


def _place(s: Standing) -> str:
    """Where the server is: its offset has a column of its own."""
    return _address(s.server.removesuffix(f" (offset {s.offset})"))


def _address(place: str) -> str:
    """Where a server is: of which kind it is everybody knows."""
    scheme, _, rest = place.partition("://")
    return place if scheme == "sqlite" else rest or place


def _sequence(s: Standing) -> str:
    return s.sequence if s.pool == "default" else f"{s.pool}: {s.sequence}"


_COLOURS: dict[Severity, str] = {"repeats": "bold red", "stops": "yellow", "advice": "cyan"}
_MEANING: dict[Severity, str] = {
    "repeats": "IDS CAN REPEAT",
    "stops": "DRAWS CAN FAIL",
    "advice": "advice",
}


def findings_table(findings: Sequence[Finding]) -> RenderableType:
    """What ``sqla-tickets doctor`` found."""
    if not findings:
        return Text("Nothing found: the ticket servers are well.", "green")
    return _list(
        (
            Text(_MEANING[finding.severity], _COLOURS[finding.severity]),
            _words(
                finding.server, f"{finding.variable} = {finding.value}", finding.why, finding.fix
            ),
        )
        for finding in findings
    )


def _list(rows: Iterable[tuple[Text, Text]]) -> Table:
    """What is wrong, and beside it the words about it."""
    table = Table(show_header=False, box=None, padding=(0, 2, 1, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table


def _words(where: str, what: str, why: str, fix: str) -> Text:
    parts = ((where, "dim"), (what, "bold"), why, (f"Do: {fix}", "green"))
    return Text("\n").join(Text.assemble(part) for part in parts if part[0])


def audit_view(reports: Sequence[Report]) -> RenderableType:
    """What ``sqla-tickets audit`` found."""
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
            parts.append(Text("No id twice, and none that no ticket server has issued.\n", "green"))
        parts.append(_list((Text(a.kind.upper(), "bold red"), _anomaly(a)) for a in r.anomalies))
    return Group(*parts)


def _anomaly(a: Anomaly) -> Text:
    ids = ", ".join(map(str, a.ids[:10])) + (" ..." if a.count > 10 else "")
    count = "1 id" if a.count == 1 else f"{a.count:,} ids"
    return _words(", ".join(a.shards), f"{count}: {ids}" if a.count else "", a.why, a.fix)
