"""The time limits and sizes of high-water marks, in one place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Timing:
    """Limits of time and size for high-water marks.

    Attributes:
        interval_seconds: how long from one write of a process's marks to the next, at most; spread, so that
            processes do not write at once.
        lead_tickets: how far a returned ticket may be above the mark that a peer has stored; tickets above that wait.
            At half that distance, the next write begins.
        unread_tickets: how far marks may be raised until they are read again; less than the next write begins at.
        lead_wait_seconds: how long a draw waits in all, and how long draws wait for one peer until it stores a mark.
            Then they go on without it. A second is too short for a distant peer: a connection, the rest of a running
            write, a read, a write and another read may be needed.
        margin_tickets: how many tickets above its last mark a set-back server begins: the lead, and as many again for
            tickets returned while a peer came back.
        flush_seconds: how long closing a pool waits for the last marks to be written.
        patience_seconds: how long a draw waits for a table's optional marks, and how long a server may send nothing.
        stall_seconds: the longest pause between two polls of a peer that counts as a wait for it; in a longer one the
            process was paused.
        dead_seconds: after how long a write counts as dead, as its event loop may have ended without a sign.
        ask_again_seconds: how long a server without a table of marks is not asked again.
        marks_at_once: how many marks one statement writes.
        marks_singly: up to how many marks are raised by a statement each, whose answer shows the stored mark. On a busy
            machine, that takes a fraction of the time of a row's insertion and a read.
        max_attempts: how often one statement is sent when it fails with deadlocks only.
        sqlite_lock_milliseconds: how long a read of optional marks waits for the lock of a SQLite file.
    """

    interval_seconds: float = 3.0
    lead_tickets: int = 50_000
    unread_tickets: int = 20_000
    lead_wait_seconds: float = 5.0
    margin_tickets: int = 100_000
    flush_seconds: float = 0.25
    stall_seconds: float = 0.1
    dead_seconds: float = 10.0
    patience_seconds: float = 1.0
    ask_again_seconds: float = 30.0
    marks_at_once: int = 100
    marks_singly: int = 4
    max_attempts: int = 3
    sqlite_lock_milliseconds: int = 50


TIMING: Final = Timing()
