"""The words of a status: the verdict, the problems and what to do about each, names and numbers.

The command line prints them, and the HTTP service's page shows them.
"""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final, Literal, NamedTuple

from ..connect.failures import IS_IT_RUNNING
from ..dialects import find_class
from ..high_water.timing import TIMING
from ..maintenance.status import State, TableStatus
from ..tables.new_table import largest_ticket

#: How many names a list has.
SHOWN_NAMES: Final = 5
#: How serious something is: ids can repeat or are not issued, less is there than should be, or all is well.
Level = Literal["bad", "warning", "advice", "well"]


def is_drawn_from(s: TableStatus) -> bool:
    """Whether the server issues tickets of the sequence."""
    return s.state == "up"


class Verdict(NamedTuple):
    """Which servers are not up, and whether ids are still issued.

    Attributes:
        text: two sentences.
        level: how serious it is.
    """

    text: str
    level: Level


def verdict(statuses: Sequence[TableStatus], servers: int) -> Verdict:
    """The verdict on all sequences.

    Args:
        statuses: the status of every sequence on every server.
        servers: how many there are.
    """
    drawn_from = {(s.pool, s.sequence) for s in statuses if is_drawn_from(s)}
    # one server of them may be restored from a backup that is older than the move
    gone = {(s.pool, s.sequence) for s in statuses if s.has_moved} - drawn_from
    wanted = {key: s for s in statuses if s.sequence and (key := (s.pool, s.sequence)) not in gone}
    states: dict[tuple[str, str], dict[State, None]] = {}
    for s in statuses:
        if s.state not in ("up", "moved"):
            states.setdefault((s.pool, s.server), {})[s.state] = None
    ill = ", ".join(
        f"{count}{'' if n else _of(servers)} {' and '.join(_is(state, count) for state in found)}"
        for n, (found, count) in enumerate(Counter(tuple(each) for each in states.values()).items())
    )
    busy = {(s.pool, s.sequence) for s in statuses if s.state == "busy"}
    failing = [label_of(s) for key, s in wanted.items() if key not in drawn_from | busy]
    waiting = [label_of(s) for key, s in wanted.items() if key in busy - drawn_from]
    # clients configured otherwise may draw
    has_unfit = any(s.state in ("unfit", "growing", "no login") or _is_at_gap(s) for s in statuses)
    if not wanted and not ill:
        ids = "There are no sequences: create one, or name a foreign table."
        if statuses:
            ids = "Every sequence has MOVED."
    elif len(failing) == len(wanted):
        ids = "This configuration gets no ids." if has_unfit else "No ids are issued."
    elif failing:
        ids = f"No ids are issued for {few_of(failing)}."
        if has_unfit:
            ids = f"This configuration gets no ids for {few_of(failing)}."
    elif waiting:
        ids = f"Draws of {few_of(waiting)} wait for a server that is BUSY."
    else:
        ids = "Ids are still issued." if ill else "Ids are issued."
    well = f"{servers}{_of(servers)} {_is('up', servers)}"
    is_bad = failing or (ill and not wanted)
    return Verdict(
        f"{ill or well}. {ids}", "bad" if is_bad else "warning" if ill or waiting else "well"
    )


def _of(servers: int) -> str:
    return f" of {servers} ticket server{'' if servers == 1 else 's'}"


def _is(state: State, count: int) -> str:
    verb = ("has", "have") if state.startswith("no ") else ("is", "are")
    return f"{verb[count != 1]} {state.upper()}"


def few_of(names: Sequence[str]) -> str:
    """Some names, and the number of further ones."""
    few, more = names[:SHOWN_NAMES], len(names) - SHOWN_NAMES
    return ", ".join(few) + (f" and {more} more" if more > 0 else "")


def _is_at_gap(s: TableStatus) -> bool:
    """Whether the numbers are used up only for this configuration, as the pool grows."""
    return s.state == "used up" and s.ends_at < s.largest


#: What to do about a table in each state.
_REMEDIES: Final[dict[State, str]] = {
    "no login": "Check the user, the password and the database in the server's URL. On a new server, create the users"
    " (docs: operate/security): sqla-tickets grants prints their privileges.",
    "busy": "Wait. If it lasts, end the session that holds the table, or raise max_connections.",
    "retired": "Remove that server from the configuration, and keep the stride. If it is to issue tickets again: sqla-tickets"
    " create {sequence}",
    "no table": "Check the name and the grants. If both are right: sqla-tickets create {sequence}",
    "growing": "If the pool grows, run sqla-tickets grow --finish{pool} when every client has the new configuration. If it has"
    " grown, the server came back from an older backup, and needs that command again. Else give this process the table's"
    " stride.",
    "unfit": "Follow the message above. If it names another pool, offset or stride: correct this configuration (URLs,"
    " order of the servers, stride). Never edit the metadata.",
    "moved": "In each process that still draws here, configure the pool and the name that the sequence has now.",
    "closed": "If that lasts, run the migration again, or the last move: it finishes the remaining steps.",
}
#: States of a whole server, for which no sequence is named.
_OF_THE_SERVER: Final = ("down", "no database", "no login", "read-only")


def remedy(state: State, sequence: str, offset: int, pool: str) -> str:
    """What to do about a server, or a sequence's table on it, in a state; empty if its status must be known, too."""
    if state == "down":
        return started_again(offset)
    if state == "no database":
        return new_or_restored(offset)
    if state == "read-only":
        return writes_again("switch off the setting that sqla-tickets doctor names", offset)
    return _REMEDIES.get(state, "").format(sequence=named(sequence, pool), pool=option_of(pool))


def named(sequence: str, pool: str) -> str:
    """A sequence as a command's arguments name it."""
    return shlex.quote(sequence) + option_of(pool)


def option_of(pool: str) -> str:
    """The option that a command needs for a pool; nothing for the one that it takes without."""
    return "" if pool == "default" else f" --pool {shlex.quote(pool)}"


def more_numbers(largest: int, ends_at: int) -> str:
    """What to do about a table with few numbers left, or none.

    Args:
        largest: the largest ticket that it can issue.
        ends_at: where servers with a larger stride joined, or the same.
    """
    if ends_at < largest:
        return (
            "Give every client the configuration with all servers, then run sqla-tickets grow --finish with that"
            " configuration."
        )
    if largest < largest_ticket(64):
        return "Widen the table and the application's columns to 64 bits."
    return "Begin another sequence."


#: What a command needs to read the shards if none are configured; it follows the command's name.
EVERY_SHARD: Final = ", with --shard URL for every shard"


def problems(statuses: Sequence[TableStatus], with_shards: str = EVERY_SHARD) -> list[Problem]:
    """The problems that an operator must solve, for each sequence and server that is not up.

    A move is of the whole sequence, so its servers come together.

    Args:
        statuses: the status of every sequence on every server.
        with_shards: what follows the name of a command that reads the shards.
    """
    servers: dict[Problem, list[str]] = {}
    for s in statuses:
        if s.state != "up":
            own = "" if s.state == "moved" else s.server
            servers.setdefault(_problem(s, with_shards)._replace(where=own), []).append(s.server)
    return [
        problem._replace(where=", ".join(dict.fromkeys(where)))
        for problem, where in servers.items()
    ]


def _problem(s: TableStatus, with_shards: str) -> Problem:
    is_of_server = s.state in _OF_THE_SERVER or not s.sequence
    fix = remedy(s.state, s.sequence, s.offset, s.pool)
    why = without_advice(in_short(str(s.error), s.server, s.sequence), s.state)
    if s.state == "read-only":
        why = "It answers, but takes no writes."
    elif s.state in ("set back", "quarantined"):
        why, fix = set_back(s), restoration(s, with_shards)
    elif s.state == "used up":
        fix = more_numbers(s.largest, s.ends_at)
    return Problem(
        s.state.upper(),
        "advice" if s.is_well else "bad",
        where=s.server,
        what="" if is_of_server else label_of(s),
        why=why,
        fix=fix,
        sequence="" if is_of_server else s.sequence,
    )


def without_advice(why: str, state: State) -> str:
    """A message without the advice at its end, for a context with its own advice."""
    if state == "unfit":  # the message is the advice
        return why
    if state == "down":  # the reason about a certificate is not advice
        return f"{why.removesuffix(f': {IS_IT_RUNNING}').rstrip('.')}."
    if state == "used up":  # the advice is a sentence
        return f"{why.rpartition('. ')[0] or why.rstrip('.')}."
    return f"{why.rpartition(': ')[0] or why}."


def location_of(s: TableStatus) -> str:
    """The server without its offset, which has a column of its own."""
    return address_of(s.server.removesuffix(f" (offset {s.offset})"))


def address_of(name: str) -> str:
    """The address of a server without its kind."""
    scheme, _, rest = name.partition("://")
    known = find_class(scheme)
    return name if known and known.is_embedded else rest or name


def label_of(s: TableStatus) -> str:
    """The name of a sequence, preceded by its pool's unless that is the default one."""
    return s.sequence if s.pool == "default" else f"{s.pool}: {s.sequence}"


class Problem(NamedTuple):
    """Something for an operator to do.

    Attributes:
        label: what it is, in capitals.
        level: how serious it is.
        where: the server, or the shards.
        what: the sequence or the ids.
        why: why it matters.
        fix: the next step.
        sequence: the sequence that it is about; empty where it is about several.
        column: the column with its ids, which an audit names instead of the sequence; empty elsewhere.
    """

    label: str
    level: Level
    where: str
    what: str
    why: str
    fix: str
    sequence: str = ""
    column: str = ""

    @property
    def reason(self) -> tuple[str, ...]:
        """A key that is equal for problems with one reason, whatever the sequence and its numbers."""
        names = "|".join(re.escape(name) for name in (self.column, self.sequence) if name)
        # a command has quotes around some names only
        own = re.compile(rf"'?\b(?:{names})\b'?|\d[\d,]*" if names else "(?!)")
        return self.label, self.where, *(own.sub("", part) for part in self[3:6])


def alike(found: Iterable[Problem]) -> list[tuple[Problem, list[str]]]:
    """The first problem of each server and reason, with the other sequences or columns that have it."""
    groups: dict[tuple[str, ...], list[Problem]] = {}
    for problem in found:
        groups.setdefault(problem.reason, []).append(problem)
    return [
        (first, [name for other in others if (name := other.column or other.sequence)])
        for first, *others in groups.values()
    ]


def number(value: float | None) -> str:
    """A number with separators, or with an exponent from 10**12."""
    if value is None:
        return "-"
    if value >= 10**12:
        return f"{value:.1e}"
    return f"{value:,.0f}" if isinstance(value, int) or value >= 100 else f"{value:,.1f}"


def set_back(status: TableStatus) -> str:
    """Why a table's number is too old."""
    known, shown = status.high_water_mark or 0, status.last_ticket or 0
    if (known - status.offset) % status.stride:
        return (
            f"It was set back: it shows {shown:,}. Processes refuse its tickets up to {known:,}: the last known number"
            f" and a margin of {TIMING.margin_tickets:,} tickets ({TIMING.margin_tickets * status.stride:,} numbers)."
        )
    return f"It was set back: it shows {shown:,}, and its peers know that it issued {known:,}."


def restoration(status: TableStatus, with_shards: str = EVERY_SHARD) -> str:
    """The remedy for a table that was set back."""
    if status.has_moved:
        return (
            "Repeat the move, rename or migration that took the sequence from here. It closes the table"
            " again."
        )
    if status.is_read_only:
        return f"Let it take writes only {_restored_apart(status.offset)}"
    fix = (
        f"Run sqla-tickets restore --offset {status.offset}{option_of(status.pool)} now{with_shards}. Until then, clients"
        " draw from the other servers."
    )
    if status.state != "quarantined":
        return fix
    return (
        f"{fix} Then restart the processes that have quarantined it, or call pool.unquarantine({status.sequence!r}) in"
        " them. If it is quarantined again, another server with this offset is running: stop that one."
    )


def started_again(offset: int) -> str:
    """What to do about a server that is down."""
    return (
        "Start the server, or repair the network between here and it. If it starts from a backup, or a replica takes"
        f" its place, start it {_restored_apart(offset)}"
    )


def new_or_restored(offset: int) -> str:
    """What to do about a server without the database."""
    return (
        "If its data come from a backup: create the users, load the backup, then run sqla-tickets restore --offset"
        f" {offset}. If the server is new: create the database, then run sqla-tickets create with each sequence."
    )


def writes_again(end: str, offset: int) -> str:
    """What to do about a server that takes no writes.

    Args:
        end: how it takes writes again.
        offset: the server's offset.
    """
    return (
        f"If its numbers are current: {end}. If it was a replica, or its data are old, let it"
        f" take writes only {_restored_apart(offset)}"
    )


def _restored_apart(offset: int) -> str:
    return (
        f"under an address that no client has; then run sqla-tickets restore --offset {offset}, with"
        " --server and --shard URLs for every server and shard, and with --stride if it is not the number of servers."
        " Give it the clients' address last."
    )


def in_short(error: str, server: str, sequence: str) -> str:
    """A message without the server and the table, which are shown above it."""
    named = rf"(?:(?:ticket )?table|sequence) {re.escape(repr(sequence))}"
    table = rf"(?:the (?:{named}|ticket tables) on )?"
    what, found = re.subn(rf"^{table}{re.escape(server)}(?:: | )", "", error)
    if found and not re.match(rf"{table}{re.escape(server)}: ", error):
        what = f"It {what}"
    return what[:1].upper() + what[1:] + ("" if what.endswith((".", "?")) else ".")
