"""Whether every id on the shards is there once, and was issued by a ticket server."""

from __future__ import annotations

import bisect
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from sqla_tickets import TicketPool
from sqla_tickets.tombstones import Live

from .facts import PoolFacts, facts_of
from .shards import Shard, TicketColumn

__all__ = ["Anomaly", "Report", "audit", "not_read"]

Kind = Literal["duplicate", "foreign", "auto_increment", "not compared"]
#: How many ids of one kind are remembered.
EXAMPLES: Final = 100
#: Called with how many rows were read, and the last id.
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Anomaly:
    """Something that should not be.

    Attributes:
        kind: ``"duplicate"``: an id on more than one shard; ``"foreign"``: an id that no ticket server
            has issued; ``"auto_increment"``: a column that still counts by itself; ``"not compared"``: a
            ticket server was not to be asked, or nobody has said where the ids are.
        shards: where.
        count: how many ids.
        ids: the first of them.
        why: what it means.
        fix: what to do.
    """

    kind: Kind
    shards: Sequence[str]
    count: int
    ids: Sequence[int]
    why: str
    fix: str


@dataclass
class Report:
    """What an audit of one column has found.

    Attributes:
        column: ``table.column``.
        sequence: whose tickets it holds.
        rows: how many ids were read.
        seconds: how long that took.
        largest: the largest id.
        residues: how many ids each server's residue class has, by offset.
        high_waters: the largest ticket that each server has issued, by offset.
        anomalies: what should not be.
        without: the shards that have no such column.
    """

    column: str
    sequence: str
    rows: int = 0
    seconds: float = 0.0
    largest: int | None = None
    residues: dict[int, int] = field(default_factory=dict[int, int])
    high_waters: dict[int, int | None] = field(default_factory=dict[int, "int | None"])
    anomalies: list[Anomaly] = field(default_factory=list[Anomaly])
    without: list[str] = field(default_factory=list[str])


def not_read(sequence: str) -> Report:
    """The report of a sequence of which it is not known where its ids are."""
    anomaly = Anomaly(
        "not compared",
        [],
        0,
        [],
        f"No shard has a table {sequence!r} with a key of one column: no id of it was read.",
        f"Name the column, --column TABLE.COLUMN={sequence}, or the models, --models MODULE:NAME.",
    )
    return Report(sequence, sequence, anomalies=[anomaly])


def audit(
    pool: TicketPool,
    shards: Sequence[Shard],
    column: TicketColumn,
    progress: Progress = lambda rows, last: None,
) -> Report:
    """Read every id of a column on all shards, in bounded memory; changes nothing.

    The ticket servers are asked after the ids were read: an id is inserted only when its ticket was
    issued.
    """
    report = Report(str(column), column.sequence)
    begin = time.monotonic()
    there = [shard for shard in shards if shard.column(column) is not None]
    report.without = [str(shard) for shard in shards if shard not in there]
    scan = _Scan(pool.stride, lambda ids: _twice(ids, there, column))
    for parts in merged([shard.pages(column) for shard in there]):
        scan.take(parts)
        progress(scan.rows, scan.largest or 0)
    report.rows, report.largest = scan.rows, scan.largest
    report.residues = {_offset(r, pool.stride): n for r, n in sorted(scan.residues.items())}
    report.high_waters = _high_waters(facts_of(pool, [column.sequence]), column.sequence)
    report.anomalies = [
        *_duplicates(scan, there, column),
        *_foreign(pool, scan, report, there, column),
        *_counting(there, column),
    ]
    report.seconds = time.monotonic() - begin
    return report


class _Scan:
    """What is remembered of the ids that were read."""

    def __init__(self, stride: int, still_twice: Callable[[Sequence[int]], list[int]]) -> None:
        self._stride, self._still_twice = stride, still_twice
        self.rows = 0
        self.largest: int | None = None
        self.residues: Counter[int] = Counter()
        self.largest_of: dict[int, int] = {}
        self.repeated: list[int] = []
        self.more_repeats = 0

    def take(self, parts: Sequence[Sequence[int]]) -> None:
        """Take what all shards have between two ids; a repeated id is in there twice."""
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
        """Remember a repeated id, in the place of those that only were on their way between shards."""
        if len(self.repeated) == EXAMPLES and not self.more_repeats:
            self.repeated = self._still_twice(self.repeated)
        if len(self.repeated) < EXAMPLES:
            self.repeated.append(repeated)
        else:
            self.more_repeats += 1


def merged(streams: Sequence[Iterator[list[int]]]) -> Iterator[list[list[int]]]:
    """Ascending streams of ascending pages, cut at the same ids.

    Each result has a part of every stream, and no id of a later result is below one of its own. So
    what is the same in two streams comes at once, and no more than a page of each is in memory.
    """
    buffers: list[list[int]] = [[] for _ in streams]
    at_end = [False] * len(streams)
    while not all(at_end) or any(buffers):
        for n, stream in enumerate(streams):
            if not buffers[n] and not at_end[n]:
                buffers[n] = next(stream, list[int]())
                at_end[n] = not buffers[n]
        bounds = [b[-1] for b, end in zip(buffers, at_end, strict=True) if b and not end]
        if not bounds:
            return
        cuts = [bisect.bisect_right(buffer, min(bounds)) for buffer in buffers]
        yield [buffer[:cut] for buffer, cut in zip(buffers, cuts, strict=True)]
        buffers = [buffer[cut:] for buffer, cut in zip(buffers, cuts, strict=True)]


def _high_waters(facts: PoolFacts, sequence: str) -> dict[int, int | None]:
    """By offset; the row of Flickr's table may be behind its counter."""
    found: dict[int, int | None] = {}
    for server in facts.servers:
        table = server.tables.get(sequence)
        high = None
        if table and isinstance(table.state, Live) and table.state.number is not None:
            high = max(table.state.number, (table.counter or 1) - 1)
        found[server.server.offset or 0] = high
    return found


def _where(
    ids: Sequence[int], shards: Sequence[Shard], column: TicketColumn
) -> dict[str, set[int]]:
    """Which of some ids each shard has now."""
    return {str(shard): shard.having(column, ids) for shard in shards}


def _twice(ids: Sequence[int], shards: Sequence[Shard], column: TicketColumn) -> list[int]:
    """Those that two shards have: a row that was moved meanwhile was seen on both, and is on one."""
    having = _where(ids, shards, column)
    return [i for i in ids if sum(i in there for there in having.values()) > 1]


def _duplicates(scan: _Scan, shards: Sequence[Shard], column: TicketColumn) -> Iterator[Anomaly]:
    still = _twice(scan.repeated, shards, column) if scan.repeated else []
    if still or scan.more_repeats:
        having = _where(still, shards, column) if still else {}
        yield Anomaly(
            "duplicate",
            [shard for shard, ids in having.items() if ids] or list(map(str, shards)),
            len(still) + scan.more_repeats,
            still,
            "The same id on more than one shard.",
            "Find out who inserted them: an id of one's own, a row that was moved and not deleted, or a"
            " ticket server that was set back (sqla-tickets doctor).",
        )


def _foreign(
    pool: TicketPool,
    scan: _Scan,
    report: Report,
    shards: Sequence[Shard],
    column: TicketColumn,
) -> Iterator[Anomaly]:
    known = [high for high in report.high_waters.values() if high is not None]
    unknown = [str(s) for s in pool.servers if report.high_waters.get(s.offset or 0) is None]
    if unknown:
        yield Anomaly(
            "not compared",
            [],
            0,
            [],
            f"What has been issued is not known of {', '.join(unknown)}.",
            "Audit again when it answers.",
        )
    above: dict[int, int] = {}
    for residue, largest in scan.largest_of.items():
        offset = _offset(residue, pool.stride)
        # a class without a server was issued, if ever, by one that has gone, below all others
        high = (
            report.high_waters.get(offset)
            if offset in report.high_waters
            else max(known, default=None)
        )
        if high is not None and largest > high:
            above[residue] = high
    if not above:
        return
    count, ids, where = 0, list[int](), list[str]()
    for shard in shards:
        for page in shard.pages(column, min(above.values())):
            mine = [i for i in page if i > above.get(i % pool.stride, i)]
            count += len(mine)
            ids += mine[: EXAMPLES - len(ids)]
            if mine and str(shard) not in where:
                where.append(str(shard))
    yield Anomaly(
        "foreign",
        where,
        count,
        sorted(ids),
        "Ids above every ticket that their server has issued: somebody inserts ids of another origin,"
        " which tickets will meet; or the server was set back.",
        f"sqla-tickets raise {column.sequence} --above {max(scan.largest_of.values())}, and find the writer.",
    )


def _counting(shards: Iterable[Shard], column: TicketColumn) -> Iterator[Anomaly]:
    counting = [str(shard) for shard in shards if shard.counts_by_itself(column)]
    if counting:
        yield Anomaly(
            "auto_increment",
            counting,
            0,
            [],
            f"{column} counts by itself: a row that is inserted without an id gets a number of the"
            " shard's own, which tickets will meet.",
            (
                "Take the attribute away when every writer draws tickets: on MySQL and MariaDB"
                f" MODIFY {column.column} BIGINT NOT NULL, on PostgreSQL ALTER {column.column} DROP IDENTITY,"
                " or DROP DEFAULT."
            ),
        )


def _offset(residue: int, stride: int) -> int:
    return residue or stride
