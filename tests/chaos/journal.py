"""What a worker writes down: one line per event, appended at once, so that a SIGKILL loses none.

A ticket is acknowledged when its line is in the file, which is before anybody could use it.
"""

from __future__ import annotations

import heapq
import logging
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

__all__ = [
    "Acknowledged",
    "Attempted",
    "Failed",
    "Finding",
    "Gap",
    "Journal",
    "Record",
    "Said",
    "Started",
    "Torn",
    "read",
]


@dataclass(frozen=True)
class Record:
    """One line.

    Attributes:
        worker: who wrote it: the file's name.
        at: when it was written, in seconds of the monotonic clock, which all processes share.
    """

    worker: str
    at: float


@dataclass(frozen=True)
class Attempted(Record):
    """A draw of ``n`` tickets begins."""

    sequence: str
    n: int


@dataclass(frozen=True)
class Acknowledged(Record):
    """It has ended well: these are the tickets."""

    began: float
    pid: int
    sequence: str
    blocks: list[range]


@dataclass(frozen=True)
class Failed(Record):
    """It has raised."""

    began: float
    sequence: str
    n: int
    error: str
    message: str


@dataclass(frozen=True)
class Said(Record):
    """The library has logged something critical."""

    message: str


@dataclass(frozen=True)
class Gap(Record):
    """An event loop has stood still."""

    seconds: float


@dataclass(frozen=True)
class Started(Record):
    """A process begins; it knows nothing of any server yet."""

    pid: int


@dataclass(frozen=True)
class Finding(Record):
    """A process did not come to its end and was killed, or it has left something behind."""

    message: str


@dataclass(frozen=True)
class Torn(Record):
    """A line whose writer was killed while it wrote."""


class Journal:
    """The journal of one process and its forks."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def draw(self, sequence: str, n: int, work: Callable[[], Iterable[range]]) -> None:
        """Write down what comes of one draw; whatever it raises is a failure."""
        began = self.attempt(sequence, n)
        try:
            self.acknowledge(began, sequence, n, work())
        except Exception as error:  # noqa: BLE001  # any class: the report tells which
            self.fail(began, sequence, n, error)

    def attempt(self, sequence: str, n: int) -> float:
        """A draw begins; returns when."""
        began = time.monotonic()
        self._write("?", f"{sequence} {n}", at=began)
        return began

    def acknowledge(self, began: float, sequence: str, n: int, blocks: Iterable[range]) -> None:
        """It has ended with these tickets.

        Raises:
            ValueError: they are more or fewer than were asked for.
        """
        drawn = list(blocks)
        if sum(map(len, drawn)) != n:
            raise ValueError(f"{n} tickets were asked for: {drawn}")
        text = ",".join(f"{block[0]}-{block[-1]}/{block.step}" for block in drawn)
        self._write("+", f"{began:.6f} {os.getpid()} {sequence} {text}")

    def fail(self, began: float, sequence: str, n: int, error: Exception) -> None:
        """It has raised."""
        name = type(error).__name__
        self._write("-", f"{began:.6f} {sequence} {n} {name} {_one_line(str(error))}")

    def start(self) -> None:
        """This process begins."""
        self._write("*", str(os.getpid()))

    def complain(self, message: str) -> None:
        """A child of this process did not end, or something is left of the pool."""
        self._write("x", _one_line(message))

    def gap(self, seconds: float) -> None:
        """The event loop has stood still until now."""
        self._write("~", f"{seconds:.6f}")

    def listen(self, log: Path) -> None:
        """Write down what the library logs as critical, and all its warnings in a file of their own."""
        handler = _Listener(logging.WARNING)
        handler.journal = self
        handler.file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        logging.getLogger("sqla_tickets").addHandler(handler)

    def say(self, message: str) -> None:
        """Something critical was logged."""
        self._write("!", _one_line(message))

    def _write(self, kind: str, text: str, at: float | None = None) -> None:
        at = time.monotonic() if at is None else at
        os.write(self._file, f"{kind} {at:.6f} {text} ;\n".encode())


class _Listener(logging.Handler):
    """Has no buffer: a fork while another thread is inside of one would leave its child a lock."""

    journal: Journal
    file: int

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        os.write(self.file, f"{time.monotonic():.6f} {os.getpid()} {message}\n".encode())
        if record.levelno >= logging.CRITICAL:
            self.journal.say(message)


def read(files: Sequence[Path]) -> Iterator[Record]:
    """All records of some journals, in the order of time; no journal is held in memory."""
    with ExitStack() as stack:
        journals = [
            _read_one(file.stem, stack.enter_context(file.open(encoding="utf-8", errors="replace")))
            for file in files
        ]
        yield from heapq.merge(*journals, key=lambda record: record.at)


# So strict that the half of one line that is followed by another line is none.
_LINE = re.compile(
    r"(?:(\?) (\d+\.\d+) (\w+ \d+)"
    r"|(\+) (\d+\.\d+) (\d+\.\d+ \d+ \w+ \d+-\d+/\d+(?:,\d+-\d+/\d+)*)"
    r"|(-) (\d+\.\d+) (\d+\.\d+ \w+ \d+ \w+ .*)"
    r"|([!~*x]) (\d+\.\d+) (.*)) ;\n"
)


def _read_one(worker: str, lines: Iterable[str]) -> Iterator[Record]:
    at = 0.0
    for line in lines:
        matched = _LINE.fullmatch(line)
        if matched is None:
            yield Torn(worker, at)
            continue
        kind, written, text = filter(None, matched.groups())
        at = float(written)
        yield _record(worker, kind, at, text)


def _record(worker: str, kind: str, at: float, text: str) -> Record:
    if kind == "?":
        sequence, n = text.split(" ")
        return Attempted(worker, at, sequence, int(n))
    if kind == "+":
        began, pid, sequence, blocks = text.split(" ")
        ranges = [_range(block) for block in blocks.split(",")]
        return Acknowledged(worker, at, float(began), int(pid), sequence, ranges)
    if kind == "-":
        began, sequence, n, error, message = text.split(" ", 4)
        return Failed(worker, at, float(began), sequence, int(n), error, message)
    if kind == "~":
        return Gap(worker, at, float(text))
    if kind == "*":
        return Started(worker, at, int(text))
    return Said(worker, at, text) if kind == "!" else Finding(worker, at, text)


def _range(text: str) -> range:
    first, last, step = map(int, re.split("[-/]", text))
    return range(first, last + 1, step)


def _one_line(text: str) -> str:
    return " ".join(text.split())
