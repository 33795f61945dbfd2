"""The HTTP service in a process of its own, and clients that collect every ticket that it answers."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import subprocess
import sys
import threading
import time
from array import array
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import psutil
from sqlalchemy import URL
from typing_extensions import Self

from tests.support.servers.ports import free_port

__all__ = [
    "Answer",
    "Broken",
    "HTTPLoad",
    "HTTPProcess",
    "call",
    "repeated",
    "tickets_of",
    "wait_for",
]

HOST = "127.0.0.1"
#: Seconds after which something hangs, on the slowest machine.
BOUND = 120.0


@dataclass
class Answer:
    """What the service has answered."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def call(
    port: int, path: str, method: str = "GET", headers: Mapping[str, str] | None = None
) -> Answer:
    """Send one request on a connection of its own."""
    connection = http.client.HTTPConnection(HOST, port, timeout=BOUND)
    try:
        return _call(connection, path, method, headers or {})
    finally:
        connection.close()


def _call(
    connection: http.client.HTTPConnection, path: str, method: str, headers: Mapping[str, str]
) -> Answer:
    connection.request(method, path, headers=dict(headers))
    response = connection.getresponse()
    names = {name.lower(): value for name, value in response.getheaders()}
    return Answer(response.status, names, response.read())


def tickets_of(answer: Answer) -> list[int]:
    """The tickets that the service has sent, as a client computes them."""
    return [
        int(block["first"]) + number * block["step"]
        for block in answer.json["tickets"]
        for number in range(block["count"])
    ]


def wait_for(condition: Callable[[], bool], why_not: Callable[[], str]) -> None:
    """Wait until something is so, and fail with a reason after a long time."""
    end = time.monotonic() + BOUND
    while not condition():
        assert time.monotonic() < end, why_not()
        time.sleep(0.05)


def repeated(tickets: Sequence[int]) -> list[int]:
    """Those that are there more than once."""
    return [one for one, next_one in pairwise(sorted(tickets)) if one == next_one]


class HTTPProcess:
    """``sqla-tickets serve`` in a process of its own, on a port that stays its own.

    Args:
        urls: of the ticket servers.
        folder: where its log is.
        options: of the command.
    """

    def __init__(self, urls: Sequence[URL | str], folder: Path, *options: str) -> None:
        self.port = free_port()
        self._log = folder / f"http-{self.port}.log"
        texts = [url if isinstance(url, str) else url.render_as_string(False) for url in urls]
        self._environment = {**os.environ, "SQLA_TICKETS_SERVERS": " ".join(texts)}
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> str:
        """What it has written."""
        return self._log.read_text()

    @property
    def pids(self) -> list[int]:
        """The processes that answer: its workers, or itself."""
        assert self._process is not None
        workers: list[int] = []
        for child in psutil.Process(self._process.pid).children():
            with contextlib.suppress(psutil.Error):  # it has ended meanwhile
                if "spawn_main" in " ".join(child.cmdline()):
                    workers.append(child.pid)
        return workers or [self._process.pid]

    def begin(self) -> None:
        """Start it, and do not wait."""
        command = [sys.executable, "-m", "sqla_tickets.cli", "serve", "--port", str(self.port)]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [*command, *self._options], stdout=log, stderr=log, env=self._environment
            )

    def start(self) -> None:
        """Start it, and wait until it answers."""
        self.begin()
        wait_for(self._answers, lambda: f"the service did not start: {self.log}")

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self.log
        try:
            return call(self.port, "/health").status == 200
        except OSError:
            return False

    def terminate(self) -> None:
        """Ask it to end, and do not wait."""
        assert self._process is not None
        self._process.terminate()

    def wait(self) -> int:
        """Wait for its end; its exit code."""
        assert self._process is not None
        return self._process.wait(BOUND)

    def kill(self) -> None:
        """End it, and its workers, as a power cut would."""
        if self._process is None or self._process.poll() is not None:
            return
        for pid in {*self.pids, self._process.pid}:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait(BOUND)


class Broken(NamedTuple):
    """A request that got no response.

    Attributes:
        sent: when it was sent.
        ended: when its connection broke.
        cause: the name of the error.
    """

    sent: float
    ended: float
    cause: str


@dataclass
class HTTPLoad:
    """Clients that ask for tickets until they are stopped, each on one connection.

    Attributes:
        port: of the service.
        sequence: that they ask for.
        n: how many tickets each request asks for.
        clients: how many there are.
        rest: seconds between two requests of one client.
        tickets: that were answered.
        statuses: how many responses had each status.
        broken: the requests that got no response: the service was killed, or is not there.
    """

    port: int
    sequence: str = "photos"
    n: int = 7
    clients: int = 4
    rest: float = 0.0
    tickets: array[int] = field(default_factory=lambda: array("q"))
    statuses: Counter[int] = field(default_factory=Counter[int])
    broken: list[Broken] = field(default_factory=list["Broken"])

    def __post_init__(self) -> None:
        self._stop, self._lock = threading.Event(), threading.Lock()
        self._threads = [threading.Thread(target=self._ask) for _ in range(self.clients)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(BOUND)

    def wait_for(self, more: int) -> None:
        """Wait for so many more tickets."""
        goal = len(self.tickets) + more
        wait_for(
            lambda: len(self.tickets) >= goal,
            lambda: f"{len(self.tickets)} of {goal}, {self.statuses}, {len(self.broken)} broken",
        )

    def _ask(self) -> None:
        connection = http.client.HTTPConnection(HOST, self.port, timeout=BOUND)
        path = f"/v1/sequences/{self.sequence}/tickets?n={self.n}"
        while not self._stop.wait(self.rest):
            sent = time.monotonic()
            try:
                answer = _call(connection, path, "POST", {})
            except (OSError, http.client.HTTPException) as error:
                connection.close()  # the next request opens it again
                with self._lock:
                    self.broken.append(Broken(sent, time.monotonic(), type(error).__name__))
                time.sleep(0.02)
                continue
            found = tickets_of(answer) if answer.status == 200 else []
            with self._lock:
                self.statuses[answer.status] += 1
                self.tickets.extend(found)
        connection.close()
