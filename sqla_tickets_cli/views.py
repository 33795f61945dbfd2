"""How what was found reads: tables for people, JSON for machines."""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from .audit import Report
from .doctor import Finding, Severity
from .status import Standing

__all__ = ["as_json", "audit_view", "console", "findings_table", "number", "status_table"]


def console() -> Console:
    """Where output goes; a pipe gets lines that are long enough for a table."""
    out = Console(highlight=False)
    return out if out.is_terminal else Console(highlight=False, width=200)


def as_json(what: str, records: Iterable[Any], **more: object) -> str:
    """Records as a JSON object with one list."""
    listed = [dataclasses.asdict(record) for record in records]
    return json.dumps({what: listed, **more}, default=_plain, indent=2)


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


def table_of(title: str, columns: Sequence[str]) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", header_style="dim")
    for column in columns:
        left = column in ("sequence", "server", "state", "what", "why", "fix", "layout")
        table.add_column(column, justify="left" if left else "right", overflow="fold")
    return table


def status_table(standings: Sequence[Standing]) -> RenderableType:
    """The table of ``sqla-tickets status``."""
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
    table = table_of("Ticket servers", ["sequence", "server", "state", *numbers])
    before = None
    for s in standings:
        if before not in (None, (s.pool, s.sequence)):
            table.add_section()
        table.add_row(
            Text("" if before == (s.pool, s.sequence) else _sequence(s)),
            Text(s.server),
            _state(s),
            "-" if s.last_ticket is None else f"{s.last_ticket:,}",
            "-" if s.mark is None else f"{s.mark:,}",
            f"{s.layout or '-'}{' (foreign)' if s.is_foreign else ''}{' 32' if s.bits == 32 else ''}",
            f"{s.offset} of {s.stride}",
            number(s.lead),
            number(s.rate),
            number(s.left),
            s.runs_out.isoformat() if s.runs_out else "-",
            number(s.left_in_javascript),
        )
        before = s.pool, s.sequence
    return (
        table
        if standings
        else Text("No sequence is known here. Create one, or name a foreign one.")
    )


def _state(s: Standing) -> Text:
    if s.is_set_back:
        return Text("SET BACK: sqla-tickets restore", "bold red")
    return Text("up", "green") if s.up else Text(f"DOWN {s.error}", "bold red")


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
    table = Table(show_header=False, box=None, padding=(0, 1, 1, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for finding in findings:
        words = Text(f"{finding.server}\n", "dim")
        words.append(f"{finding.variable} = {finding.value}\n", "bold")
        words.append(f"{finding.why}\n", "none").append(f"Do: {finding.fix}", "green")
        table.add_row(Text(_MEANING[finding.severity], _COLOURS[finding.severity]), words)
    return table


def audit_view(reports: Sequence[Report]) -> RenderableType:
    """What ``sqla-tickets audit`` found."""
    parts: list[RenderableType] = []
    for r in reports:
        columns = ["server's offset", "ids on the shards", "part", "high water"]
        title = f"{r.column}: {r.rows:,} ids in {r.seconds:.1f} s, the largest {number(r.largest)}"
        table = table_of(title, columns)
        for offset in sorted({*r.residues, *r.high_waters}):
            n = r.residues.get(offset, 0)
            high = number(r.high_waters[offset]) if offset in r.high_waters else "no server"
            table.add_row(str(offset), f"{n:,}", f"{n / max(r.rows, 1):.1%}", high)
        parts.append(table)
        if not r.anomalies:
            parts.append(Text("No id twice, and none that no ticket server has issued.\n", "green"))
        for a in r.anomalies:
            ids = ", ".join(map(str, a.ids[:10])) + (" ..." if a.count > 10 else "")
            words = Text(f"{a.kind.upper()}", "bold red")
            words.append(f" {a.count:,}: {ids}" if a.count else "", "bold")
            words.append(f" on {', '.join(a.shards)}\n" if a.shards else "\n", "dim")
            words.append(f"{a.why}\n", "not bold").append(f"Do: {a.fix}\n", "green")
            parts.append(words)
    return Group(*parts)
