"""The time limits and sizes of high-water marks, in one place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Timing:
    """How long reading and writing high-water marks takes at most.

    Attributes:
        interval_seconds: how long from one write of a process's marks to the next, at most; spread, so that
            processes do not write at once.
        lead_tickets: so many tickets above the mark that a peer has stored are handed out; what is above that waits.
            After half of them, the next write begins.
        lead_wait_seconds: how long a draw waits for that in all, and how long draws wait for one peer until it stores a
            mark. Then they go on without it. A second is too short for one that is far away: it may have to be
            connected to, to end the write that is under way, and to read, write and read once more.
        margin_tickets: so many tickets above its last mark a server begins that was set back: those of the lead, and as
            many again that were handed out while a peer came back.
        flush_seconds: how long closing a pool waits for the last marks to be written.
        patience_seconds: how long a draw waits for a table's marks that it can do without, and a server may send
            nothing.
        stall_seconds: the longest time between two polls of a peer that counts as a wait for it: in a longer one the
            process stood still.
        dead_seconds: after how long a write is taken for dead: its event loop has ended, and never told.
        ask_again_seconds: after how long a server that has no table of marks is asked again.
        marks_at_once: how many marks one statement writes.
        max_attempts: how often one statement is sent while deadlocks are all that happens.
        sqlite_lock_milliseconds: how long it waits for the lock of a SQLite file, for such marks.
    """

    interval_seconds: float = 3.0
    lead_tickets: int = 50_000
    lead_wait_seconds: float = 5.0
    margin_tickets: int = 100_000
    flush_seconds: float = 0.25
    stall_seconds: float = 0.1
    dead_seconds: float = 10.0
    patience_seconds: float = 1.0
    ask_again_seconds: float = 300.0
    marks_at_once: int = 100
    max_attempts: int = 3
    sqlite_lock_milliseconds: int = 50


TIMING: Final = Timing()
