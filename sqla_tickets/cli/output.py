"""Formats results: tables for people, JSON for programs."""

from __future__ import annotations

import datetime as dt
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import click
from rich import box
from rich.bar import Bar
from rich.console import Console, Group, RenderableType
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from .. import TableStatus
from ..dialects import find_class
from ..maintenance.status import State
from .audit import Anomaly, Report
from .doctor import UNFIT, Finding, Severity, in_short, restoration, set_back
from .status import Node, left_in_javascript, runs_out, runs_out_in_javascript

__all__ = ["as_json", "audit_view", "console", "findings_table", "number", "show", "status_view"]


#: How many names a list has.
SHOWN_NAMES: Final = 5
#: So many columns that no line is cut: of a pipe, and where it is asked for.
WHOLE: Final = 100_000


def console(*, is_wide: bool = False, is_error: bool = False) -> Console:
    """The console for results, or for what is not to get into them."""
    out = Console(highlight=False, stderr=is_error)
    if is_wide or not out.is_terminal:
        out = Console(highlight=False, stderr=is_error, width=WHOLE)
    return out


def show(view: RenderableType, out: Console | None = None, *, is_error: bool = False) -> None:
    """Print results, without the blanks that only fill a line."""
    out = out or console(is_error=is_error)
    with out.capture() as printed:
        out.print(view)
    lines = map(str.rstrip, printed.get().splitlines())
    click.echo("\n".join(lines), err=is_error, color=out.is_terminal)


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


def table_of(
    columns: Sequence[str], title: str | None = None, *, whole: Sequence[str] = ("server",)
) -> Table:
    """A table that folds its cells where it does not fit, but for those of the columns ``whole``."""
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
        # neither a name nor a number that is cut in two can be looked for
        table.add_column(
            column,
            justify="left" if is_text else "right",
            no_wrap=column in whole,
            overflow="fold",
        )
    return table


#: What a narrow terminal does not show, the first one first.
FIRST_TO_GO: Final = (
    "below 2^53",
    "left",
    "runs out",
    "layout",
    "of",
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
) -> RenderableType:
    """The output of ``sqla-tickets status``.

    Args:
        statuses: of every sequence on every server.
        nodes: that were leased.
        servers: how many there are.
        width: that the table may have.
        is_live: whether the end may be cut off, so that the findings come before the table.
    """
    drawn_from = {(s.pool, s.sequence) for s in statuses if _is_drawn_from(s)}
    findings = _list(
        _problem(s, (s.pool, s.sequence) in drawn_from) for s in statuses if s.state != "up"
    )
    tables: list[RenderableType] = [_status_table(statuses, width)] if statuses else []
    tables += [_nodes_table(nodes)] if nodes else []
    parts = ["", findings, *tables] if is_live else [*tables, findings]
    return Group(_verdict(statuses, servers), *parts)


def _is_drawn_from(s: TableStatus) -> bool:
    return s.state == "up" and bool(s.capacity_left)


def _verdict(statuses: Sequence[TableStatus], servers: int) -> Text:
    """Which servers are not up, and whether ids are issued all the same."""
    wanted = {(s.pool, s.sequence): s for s in statuses if s.sequence and s.state != "moved"}
    which: dict[State, set[tuple[str, str]]] = {}
    for s in statuses:
        if s.state not in ("up", "moved"):
            which.setdefault(s.state, set()).add((s.pool, s.server))
    ill = ", ".join(
        f"{len(found)}{'' if n else _of(servers)} {_is(state, len(found))}"
        for n, (state, found) in enumerate(which.items())
    )
    drawn_from = {(s.pool, s.sequence) for s in statuses if _is_drawn_from(s)}
    busy = {(s.pool, s.sequence) for s in statuses if s.state == "busy"}
    failing = [_sequence(s) for key, s in wanted.items() if key not in drawn_from | busy]
    waiting = [_sequence(s) for key, s in wanted.items() if key in busy - drawn_from]
    if not wanted and not ill:
        ids = "No sequence is here: create one, or name a foreign table."
        if statuses:
            ids = "Every sequence has MOVED."
    elif len(failing) == len(wanted):
        ids = "No ids are issued."
    elif failing:
        ids = f"No ids of {_names(failing)} are issued."
    elif waiting:
        ids = f"Draws of {_names(waiting)} wait for a server that is BUSY."
    else:
        ids = "Ids are still issued." if ill else "Ids are issued."
    well = f"{servers}{_of(servers)} {_is('up', servers)}"
    is_bad = failing or (ill and not wanted)
    style = "bold red" if is_bad else "yellow" if ill or waiting else "green"
    return Text(f"{ill or well}. {ids}", style)


def _of(servers: int) -> str:
    return f" of {servers} ticket server{'' if servers == 1 else 's'}"


def _is(state: State, count: int) -> str:
    verb = ("has", "have") if state == "no table" else ("is", "are")
    return f"{verb[count != 1]} {state.upper()}"


def _names(names: Sequence[str]) -> str:
    """Some names, and how many more there are."""
    few, more = names[:SHOWN_NAMES], len(names) - SHOWN_NAMES
    return ", ".join(few) + (f" and {more} more" if more > 0 else "")


def _status_table(statuses: Sequence[TableStatus], width: int) -> Table:
    """As many columns as fit."""
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
        "sequence": Text(_sequence(s) if is_first else ""),
        "server": Text(_location(s)),
        "state": Text(s.state.upper(), "green" if s.state == "up" else "bold red"),
        "last": "-" if s.last_ticket is None else f"{s.last_ticket:,}",
        "peers know": "-" if s.high_water_mark is None else f"{s.high_water_mark:,}",
        "layout": f"{s.layout or '-'}{' (foreign)' if s.is_foreign else ''}{f' {s.bits}' if s.bits < 64 else ''}",
        "of": f"{s.offset} of {s.stride}",
        "lead": number(s.lead),
        "rate/s": number(s.rate),
        "left": number(s.capacity_left),
        "runs out": end.isoformat() if end else "-",
        "below 2^53": _in_javascript(s),
    }


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


#: What to do where a table is in such a state.
_REMEDIES: Final[dict[State, str]] = {
    "busy": "Wait. If it lasts, end the session that holds the table, or raise max_connections.",
    "down": "Start the server, or repair the network between here and it.",
    "read-only": "sqla-tickets doctor names the setting. If the server was a replica, or its data are old:"
    " sqla-tickets restore --offset {offset} before it takes writes.",
    "no table": "Check the name and the grants. If both are right: sqla-tickets create {sequence}",
    "unfit": UNFIT,
    "moved": "Configure the pool that has it, in each process that still draws from this one.",
    "closed": "If that lasts, run the migration again: it finishes what was left half done.",
}
#: Of these the name of one sequence says little.
_OF_THE_SERVER: Final = ("down", "read-only")


def _problem(s: TableStatus, others_are_up: bool) -> Problem:
    is_of_server = s.state in _OF_THE_SERVER or not s.sequence
    fix = _REMEDIES.get(s.state, "").format(offset=s.offset, sequence=s.sequence)
    if s.state == "read-only":
        why = "It answers, and takes no writes"
    elif s.state in ("set back", "quarantined"):
        why, fix = set_back(s), restoration(s)
    else:
        why = in_short(str(s.error), s.server, s.sequence)
        if s.state != "unfit":  # the advice at its end follows, in the words of an operator
            why = f"{why.rpartition(': ')[0] or why}."
    return Problem(
        Text(s.state.upper(), "bold red"),
        where=s.server,
        what="" if is_of_server else _sequence(s),
        why=why,
        fix=fix,
        sequence="" if is_of_server else s.sequence,
    )


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
        Problem(
            Text(_MEANING[finding.severity], _COLOURS[finding.severity]),
            where=finding.server,
            what=f"{finding.variable} = {finding.value}",
            why=finding.why,
            fix=finding.fix,
            sequence=finding.sequence,
        )
        for finding in findings
    )


class Problem(NamedTuple):
    """Something for an operator to do.

    Attributes:
        label: how grave it is.
        where: the server, or the shards.
        what: was found.
        why: it matters.
        fix: the next step.
        sequence: that it is about; empty where it is about more.
    """

    label: Text
    where: str
    what: str
    why: str
    fix: str
    sequence: str = ""

    @property
    def reason(self) -> tuple[str, ...]:
        """Equal for what has one reason, whatever the sequence and its numbers."""
        own = re.compile(rf"\b{re.escape(self.sequence)}\b|\d[\d,]*" if self.sequence else "(?!)")
        return self.label.plain, self.where, *(own.sub("", part) for part in self[2:5])


def _list(problems: Iterable[Problem]) -> Table:
    """Problems, one for each server and reason, with the sequences that have it."""
    table = Table(show_header=False, box=None, padding=(0, 2, 1, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    alike: dict[tuple[str, ...], list[Problem]] = {}
    for problem in problems:
        alike.setdefault(problem.reason, []).append(problem)
    for first, *others in alike.values():
        names = [other.sequence for other in others if other.sequence]
        parts = (
            (first.where, "dim"),
            (first.what, "bold"),
            first.why,
            (f"The same: {_names(names)}." if names else "", "bold"),
            (f"Do: {first.fix}", "green"),
        )
        table.add_row(first.label, Text("\n").join(Text.assemble(p) for p in parts if p and p[0]))
    return table


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
        parts.append(_list(map(_anomaly, r.anomalies)))
    return Group(*parts)


def _anomaly(a: Anomaly) -> Problem:
    ids = ", ".join(map(str, a.ids[:10])) + (" ..." if a.count > 10 else "")
    count = "1 id" if a.count == 1 else f"{a.count:,} ids"
    return Problem(
        Text(a.kind.upper(), "bold red"),
        where=", ".join(a.shards),
        what=f"{count}: {ids}" if a.count else "",
        why=a.why,
        fix=a.fix,
    )
