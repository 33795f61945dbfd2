"""Audits the ids on the shards: each exists once, and was issued by a ticket server."""

from __future__ import annotations

import bisect
import shlex
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

from .. import TableStatus, TicketError, TicketPool
from ..concurrency import time
from ..status.text import (
    EVERY_SHARD,
    in_short,
    named,
    remedy,
    restoration,
    set_back,
    without_advice,
)
from ..tables.metadata import Tombstone
from .inspection import PoolInspection, high_waters, inspect_pool
from .shards import Shard, TicketColumn

Kind = Literal["duplicate", "foreign", "set back", "unowned", "auto_increment", "not compared"]
#: The largest number of ids of one kind in a report.
MAX_EXAMPLES: Final = 100
#: Called with the number of rows read and the last id.
Progress = Callable[[int, int], None]


@dataclass(frozen=True, kw_only=True)
class Anomaly:
    """A problem of the ids of one sequence.

    Attributes:
        kind: ``"duplicate"``: an id in more than one row; ``"foreign"``: an id that its ticket server has not
            issued; ``"set back"``: a ticket server shows a number below those that its peers know;
            ``"unowned"``: an id above all tickets, in a residue class that no server of the pool owns;
            ``"auto_increment"``: a column with an AUTO_INCREMENT; ``"not compared"``: a ticket server did not answer,
            or the column of the ids is unknown.
        shards: the shards that have it; with the column, if the sequence has several.
        server: the ticket server that it is about; empty if it is about ids.
        count: the number of ids.
        ids: the first of them.
        why: what it means.
        fix: what to do.
    """

    kind: Kind
    shards: Sequence[str] = ()
    server: str = ""
    count: int = 0
    ids: Sequence[int] = ()
    why: str
    fix: str


@dataclass
class Report:
    """The result of an audit of one sequence.

    Attributes:
        column: ``table.column``; several are separated by commas.
        sequence: whose tickets they hold.
        above: only larger ids were read; None for all ids.
        rows: how many ids were read.
        seconds: how long the scan took.
        largest: the largest id.
        residues: how many ids each server's residue class has, by offset.
        high_waters: the largest ticket that each server has issued, by its table and its peers' marks, by offset.
        anomalies: the problems that were found.
        without: the shards that have no such column; with the column, if the sequence has several.
        is_read: whether ids were read; False for a sequence whose column is unknown.
    """

    column: str
    sequence: str
    above: int | None = None
    rows: int = 0
    seconds: float = 0.0
    largest: int | None = None
    residues: dict[int, int] = field(default_factory=dict[int, int])
    high_waters: dict[int, int | None] = field(default_factory=dict[int, "int | None"])
    anomalies: list[Anomaly] = field(default_factory=list[Anomaly])
    without: list[str] = field(default_factory=list[str])
    is_read: bool = True


def not_read(sequence: str) -> Report:
    """The report of a sequence whose ids are in no known column."""
    anomaly = Anomaly(
        kind="not compared",
        why=f"No shard has a table {sequence!r} with a one-column key, so no ids were read.",
        fix=f"Name the column with --column TABLE.COLUMN={shlex.quote(sequence)}, or the models with --models "
        "MODULE:NAME. If no table has its ids: name the columns that are to be audited.",
    )
    return Report(sequence, sequence, anomalies=[anomaly], is_read=False)


class Source(NamedTuple):
    """A column on one shard.

    Attributes:
        shard: the shard.
        column: the column.
        name: its name in the report.
    """

    shard: Shard
    column: TicketColumn
    name: str

    def pages(self, above: int | None = None) -> Iterator[list[int]]:
        """The ids in ascending order, many at a time."""
        return self.shard.pages(self.column, above)

    def having(self, ids: Sequence[int]) -> Counter[int]:
        """How many rows have each of these ids now."""
        return self.shard.having(self.column, ids)

    @property
    def counts_by_itself(self) -> bool:
        """Whether the database itself numbers a row without an id."""
        return self.shard.counts_by_itself(self.column)


def audit(
    pool: TicketPool,
    shards: Sequence[Shard],
    columns: Sequence[TicketColumn],
    progress: Progress = lambda rows, last: None,
    above: int | None = None,
    with_shards: str = EVERY_SHARD,
) -> Report:
    """Read every id of a sequence on all shards, or those above a number, in bounded memory, and change nothing.

    It asks the ticket servers after it has read ids: an id is inserted only when its ticket was issued.

    Args:
        pool: the pool that issues the tickets.
        shards: the application's databases.
        columns: the columns of one sequence; they share no id.
        progress: called after each page of ids.
        above: read only larger ids; None for all.
        with_shards: what advice adds to the name of a command that reads the shards.
    """
    sequence = columns[0].sequence
    report = Report(", ".join(map(str, columns)), sequence, above)
    begin = time.monotonic()
    wanted = [
        Source(shard, column, f"{shard} ({column})" if len(columns) > 1 else str(shard))
        for column in columns
        for shard in shards
    ]
    sources = [source for source in wanted if source.shard.column(source.column) is not None]
    report.without = [source.name for source in wanted if source not in sources]
    scan = _Scan(pool.stride, lambda ids: _twice(ids, sources))
    for parts in merged([source.pages(above) for source in sources]):
        scan.take(parts)
        progress(scan.rows, scan.largest or 0)
    report.rows, report.largest = scan.rows, scan.largest
    report.residues = {_offset(r, pool.stride): n for r, n in sorted(scan.residues.items())}
    inspection = inspect_pool(pool, [sequence], with_shards, with_found=False)
    report.high_waters = _issued(inspection, sequence)
    report.anomalies = [
        *_duplicates(scan, sources, named(sequence, inspection.pool.name)),
        *_not_compared(inspection, report),
        *_set_back(inspection, sequence),
        *_joined(inspection, report),
        *_not_issued(inspection, scan, report, sources),
        *_counting(sources),
    ]
    report.seconds = time.monotonic() - begin
    return report


def _issued(inspection: PoolInspection, sequence: str) -> dict[int, int | None]:
    """The largest ticket that each server has issued, by its table and its peers' marks; None if unknown."""
    found = high_waters(inspection, sequence)
    for server in inspection.servers:
        status, high = server.statuses.get(sequence), found.get(server.server.offset)
        if status is not None and high is not None:
            found[server.server.offset] = max(high, status.high_water_mark or 0)
    return found


class _Scan:
    """Collects the report's data from the ids, page by page."""

    def __init__(self, stride: int, still_twice: Callable[[Sequence[int]], list[int]]) -> None:
        self._stride, self._still_twice = stride, still_twice
        self.rows = 0
        self.largest: int | None = None
        self.residues: Counter[int] = Counter()
        self.largest_of: dict[int, int] = {}
        self.repeated: list[int] = []
        self.more_repeats = 0

    def take(self, parts: Sequence[Sequence[int]]) -> None:
        """Add the ids of all sources in a range; a repeated id occurs twice."""
        ids = [i for part in parts for i in part]
        if not ids:
            return
        stride = self._stride
        self.rows += len(ids)
        self.largest = max(part[-1] for part in parts if part)
        residues = [i % stride for i in ids]
        self.residues.update(residues)
        for part in parts:  # ascending: the last of each residue is its largest
            for residue, i in dict(zip((i % stride for i in part), part, strict=True)).items():
                self.largest_of[residue] = max(i, self.largest_of.get(residue, i))
        if len(set(ids)) < len(ids):
            for i in sorted(i for i, n in Counter(ids).items() if n > 1):
                self._remember(i)

    def _remember(self, repeated: int) -> None:
        """Keep a repeated id, and drop ids that were only moving between shards."""
        if len(self.repeated) == MAX_EXAMPLES and not self.more_repeats:
            self.repeated = self._still_twice(self.repeated)
        if len(self.repeated) < MAX_EXAMPLES:
            self.repeated.append(repeated)
        else:
            self.more_repeats += 1


def merged(pages_of_sources: Sequence[Iterator[list[int]]]) -> Iterator[list[list[int]]]:
    """The ascending pages of each source, split at the same ids.

    Each result has a part of every source, and later results have only larger ids. So equal ids of two sources come
    together, and memory holds at most a page of each.
    """
    buffers: list[list[int]] = [[] for _ in pages_of_sources]
    at_end = [False] * len(pages_of_sources)
    while not all(at_end) or any(buffers):
        for n, pages in enumerate(pages_of_sources):
            if not buffers[n] and not at_end[n]:
                buffers[n] = next(pages, list[int]())
                at_end[n] = not buffers[n]
        bounds = [b[-1] for b, end in zip(buffers, at_end, strict=True) if b and not end]
        if not bounds:
            return
        ends = [bisect.bisect_right(buffer, min(bounds)) for buffer in buffers]
        yield [buffer[:end] for buffer, end in zip(buffers, ends, strict=True)]
        buffers = [buffer[end:] for buffer, end in zip(buffers, ends, strict=True)]


def _twice(ids: Sequence[int], sources: Sequence[Source]) -> list[int]:
    """The ids that two rows have now. A row that moves during the scan is seen on two shards, but is on one."""
    rows = sum((source.having(ids) for source in sources), Counter[int]())
    return [i for i in ids if rows[i] > 1]


def _duplicates(scan: _Scan, sources: Sequence[Source], argument: str) -> Iterator[Anomaly]:
    still = _twice(scan.repeated, sources) if scan.repeated else []
    if still or scan.more_repeats:
        having = [source for source in sources if still and source.having(still)]
        yield Anomaly(
            kind="duplicate",
            shards=[source.name for source in having or sources],
            count=len(still) + scan.more_repeats,
            ids=still,
            why="The same id is in more than one row.",
            fix=(
                f"Find the cause: a shard's own AUTO_INCREMENT, an id inserted by hand, a row that was moved but not "
                "deleted, a database that is named twice, or a ticket server that was set back (sqla-tickets "
                f"status). Give one of the two rows a new id: sqla-tickets next {argument}{_as_many(len(still) + scan.more_repeats)}. "
                "Ids that were equal before a take-over may stay: audit the later ids, --above NUMBER."
            ),
        )


def _as_many(count: int) -> str:
    return f" -n {count}" if count > 1 else ""


def _not_compared(inspection: PoolInspection, report: Report) -> Iterator[Anomaly]:
    """The servers whose issued tickets are unknown, and why."""
    for server in inspection.servers:
        if report.high_waters.get(server.server.offset) is not None:
            continue
        table = server.tables.get(report.sequence)
        state = table.state if table else None
        reason, fix = server.error, "Audit again when it answers."
        if server.state == "no login":
            fix = remedy("no login", report.sequence, server.server.offset, inspection.pool.name)
        if reason is None and isinstance(state, TicketError):
            reason, fix = str(state), "Repair that, then audit again."
        elif reason is None:
            reason = "it has no ticket table in use"
            sequence = named(report.sequence, inspection.pool.name)
            fix = f"Create it, by a migration or sqla-tickets create {sequence}."
            if report.rows and not any(report.high_waters.values()):
                fix = (
                    "Create it above all ids on the shards: by a migration with start_above, or"
                    f" sqla-tickets create {sequence} --start NUMBER."
                )
            status = server.statuses.get(report.sequence)
            is_closed = status is not None and status.state == "closed"
            if isinstance(state, Tombstone) and state.kind == "moved" and is_closed:
                fix = remedy("closed", report.sequence, server.server.offset, inspection.pool.name)
            elif isinstance(state, Tombstone) and state.kind == "moved":
                reason = f"the sequence is now {state.sequence!r} of the pool {state.pool!r}"
                fix = (
                    f"Audit it there: --pool {shlex.quote(state.pool)} --column"
                    f" TABLE.COLUMN={shlex.quote(state.sequence)}."
                )
            elif isinstance(state, Tombstone) and state.end:
                reason = f"its table {state.end}"
            if isinstance(state, Tombstone) and state.kind == "retired":
                fix = remedy("retired", report.sequence, server.server.offset, inspection.pool.name)
        said = without_advice(in_short(reason, str(server.server), report.sequence), "down")
        why = f"It is not known which tickets it issued. {said}"
        yield Anomaly(kind="not compared", server=str(server.server), why=why, fix=fix)


def _set_back(inspection: PoolInspection, sequence: str) -> Iterator[Anomaly]:
    """The servers whose tables show old numbers."""
    for status in _set_back_ones(inspection, sequence):
        yield Anomaly(
            kind="set back",
            server=status.server,
            why=set_back(status),
            fix=restoration(status, inspection.with_shards),
        )


def _set_back_ones(inspection: PoolInspection, sequence: str) -> list[TableStatus]:
    statuses = [server.statuses.get(sequence) for server in inspection.servers]
    return [s for s in statuses if s is not None and s.state in ("set back", "quarantined")]


def _joined_above(inspection: PoolInspection, sequence: str) -> int | None:
    """The number above which servers with a larger stride issue the numbers; None if none has joined."""
    shown = [server.larger_joined.get(sequence) for server in inspection.servers]
    return min((number for number in shown if number), default=None)


def _joined(inspection: PoolInspection, report: Report) -> Iterator[Anomaly]:
    """The ids of servers that have joined with a larger stride, of which this pool knows nothing."""
    joined = _joined_above(inspection, report.sequence)
    if joined and (report.largest or 0) > joined:
        yield Anomaly(
            kind="not compared",
            why=(
                f"There are ids above {joined}, where servers with a larger stride than"
                f" {inspection.pool.stride} joined: the pool grows. This configuration does not know what they have"
                " issued."
            ),
            fix="Run sqla-tickets grow --finish, then audit, both with the new configuration.",
        )


def _not_issued(
    inspection: PoolInspection,
    scan: _Scan,
    report: Report,
    sources: Sequence[Source],
) -> Iterator[Anomaly]:
    """The ids above their server's tickets, or above all tickets if no server owns their residue class."""
    pool, sequence = inspection.pool, report.sequence
    bounds = _bounds(report.high_waters, pool.stride, scan.largest_of)
    above = {residue: high for residue, high in bounds.items() if scan.largest_of[residue] > high}
    joined = _joined_above(inspection, sequence)
    is_owned = {residue: _offset(residue, pool.stride) in report.high_waters for residue in above}
    unowned, foreign = (
        _above(
            {residue: high for residue, high in above.items() if is_owned[residue] == owned},
            pool,
            sources,
            sequence,
            joined,
        )
        for owned in (False, True)
    )
    if unowned.count:
        yield _unowned(inspection, unowned, sources, sequence)
    if foreign.count:
        yield Anomaly(
            kind="foreign",
            shards=foreign.where,
            count=foreign.count,
            ids=sorted(foreign.ids),
            why=(
                "These ids are above every ticket that their server is known to have issued: another "
                "program inserts ids, which tickets will repeat, or the server was set back."
            ),
            fix=_repair(
                inspection, sequence, foreign.offsets, max(foreign.largest, unowned.largest)
            ),
        )


def _bounds(
    issued: Mapping[int, int | None], stride: int, residues: Iterable[int]
) -> dict[int, int]:
    """The largest number that can be a ticket, by residue class; without the classes of unknown servers."""
    known = [high for high in issued.values() if high is not None]
    # below the next ticket of the server that is ahead, as joining servers begin above that
    of_all = max(known) + stride - 1 if known else None
    highs = {residue: issued.get(_offset(residue, stride), of_all) for residue in residues}
    return {residue: high for residue, high in highs.items() if high is not None}


def _repair(
    inspection: PoolInspection, sequence: str, offsets: Collection[int], highest: int
) -> str:
    """What to do about ids above the tickets of the servers with these offsets."""
    restorations = {
        a.offset: restoration(a, inspection.with_shards)
        for a in _set_back_ones(inspection, sequence)
    }
    if restorations.keys() >= set(offsets):
        return " ".join(restorations[offset] for offset in sorted(offsets))
    return (
        f"sqla-tickets raise {shlex.quote(sequence)} --above {highest}, and find the writer. If a server came "
        f"back from a backup: sqla-tickets restore{inspection.with_shards}."
    )


def _unowned(
    inspection: PoolInspection, found: _NotIssued, sources: Sequence[Source], sequence: str
) -> Anomaly:
    offsets = ", ".join(map(str, sorted(found.offsets)))
    counts = any(source.counts_by_itself for source in sources)
    return Anomaly(
        kind="unowned",
        shards=found.where,
        count=found.count,
        ids=sorted(found.ids),
        why=(
            f"These ids are above all tickets, in a residue class (offset {offsets}) that no ticket server of"
            " this pool owns: the AUTO_INCREMENT of a table that was taken over has run ahead of the tickets, or the "
            "server is missing from this configuration. A new server with that offset would repeat them."
        ),
        fix=(
            f"{'Stop the old writers and remove AUTO_INCREMENT, then ' if counts else ''}"
            f"sqla-tickets raise {shlex.quote(sequence)}{inspection.with_shards}."
        ),
    )


@dataclass
class _NotIssued:
    """The ids above the tickets of their residue classes.

    Attributes:
        where: the sources that have them.
        offsets: their residue classes.
        count: how many there are.
        largest: the largest of them; 0 if there is none.
        ids: the first of them in each source.
    """

    where: list[str] = field(default_factory=list[str])
    offsets: set[int] = field(default_factory=set[int])
    count: int = 0
    largest: int = 0
    ids: list[int] = field(default_factory=list[int])


def _above(
    bounds: Mapping[int, int],
    pool: TicketPool,
    sources: Sequence[Source],
    sequence: str,
    joined: int | None,
) -> _NotIssued:
    """The ids above the bounds of their residue classes, up to where servers with a larger stride joined.

    Clients draw and insert while the ids are read. So it asks the ticket servers again after each page that has such
    ids.
    """
    found, stride = _NotIssued(), pool.stride
    for source in sources if bounds else ():
        for page in source.pages(min(bounds.values())):
            mine = [
                i for i in page if i > bounds.get(i % stride, i) and (joined is None or i <= joined)
            ]
            if mine:
                issued = _issued(inspect_pool(pool, [sequence], with_found=False), sequence)
                bounds = {**bounds, **_bounds(issued, stride, bounds)}
                mine = [i for i in mine if i > bounds[i % stride]]
            found.count += len(mine)
            found.largest = max([found.largest, *mine])
            found.ids += mine[: MAX_EXAMPLES - len(found.ids)]
            found.offsets.update(_offset(i % stride, stride) for i in mine)
            if mine and source.name not in found.where:
                found.where.append(source.name)
    return found


def _counting(sources: Iterable[Source]) -> Iterator[Anomaly]:
    counting: dict[TicketColumn, list[str]] = {}
    for source in sources:
        if source.counts_by_itself:
            counting.setdefault(source.column, []).append(str(source.shard))
    for column, shards in counting.items():
        yield Anomaly(
            kind="auto_increment",
            shards=shards,
            why=(
                f"{column} has AUTO_INCREMENT: a row without an id gets one of the shard's own numbers, which "
                "tickets will repeat."
            ),
            fix=(
                "Remove it once every writer draws tickets: on MySQL and MariaDB MODIFY"
                f" {column.column} BIGINT NOT NULL, on PostgreSQL ALTER {column.column} DROP IDENTITY, or DROP"
                " DEFAULT."
            ),
        )


def _offset(residue: int, stride: int) -> int:
    return residue or stride
