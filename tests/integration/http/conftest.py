"""The HTTP service in uvicorn, in a thread of this process or in processes of its own."""

from __future__ import annotations

import functools
import logging
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import uvicorn
from sqlalchemy import URL
from starlette.applications import Starlette

from sqla_tickets import TicketPool
from sqla_tickets.http import Settings, create_app
from tests.support.http_service import Answer, HTTPProcess, call, wait_for


@dataclass
class Running:
    """A service that runs."""

    port: int

    def post(self, sequence: str = "photos", query: str = "", token: str = "") -> Answer:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        return call(self.port, f"/v1/sequences/{sequence}/tickets{query}", "POST", headers)

    def get(self, path: str, token: str = "", **headers: str) -> Answer:
        if token:
            headers["Authorization"] = f"Bearer {token}"
        return call(self.port, path, "GET", headers)


#: Starts a service of some servers.
Serve = Callable[..., Running]


def load_pools(urls: Sequence[URL], media: Sequence[URL] = ()) -> dict[str, TicketPool]:
    """The pool that draws, and another one where there are servers for it."""
    pools = {"default": TicketPool(urls)}
    return {**pools, "media": TicketPool(media, name="media")} if media else pools


@contextmanager
def in_thread(
    urls: Sequence[URL], settings: Settings, media: Sequence[URL] = ()
) -> Iterator[Running]:
    with serving(create_app(functools.partial(load_pools, urls, media), settings)) as running:
        yield running


@contextmanager
def serving(app: Starlette) -> Iterator[Running]:
    """An application in a thread of this process."""
    server = uvicorn.Server(uvicorn.Config(app, http="httptools", ws="none", log_config=None))
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        wait_for(lambda: server.started, lambda: "the service did not start")
        try:
            yield Running(listening.getsockname()[1])
        finally:
            server.should_exit = True
            thread.join()


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Run the service in a thread, with these settings."""
    with ExitStack() as stack:
        yield lambda urls, media=(), **settings: stack.enter_context(
            in_thread(urls, Settings(**settings), media)
        )


#: Starts the command ``sqla-tickets serve``.
Start = Callable[..., HTTPProcess]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Run the command in a process of its own, with these options."""
    processes: list[HTTPProcess] = []

    def begin(urls: Sequence[URL], *options: str) -> HTTPProcess:
        processes.append(HTTPProcess(urls, tmp_path, *options))
        processes[-1].start()
        return processes[-1]

    yield begin
    for process in processes:
        process.kill()


@pytest.fixture(autouse=True)
def log() -> Iterator[None]:
    """Undo what `sqla-tickets serve` sets, where a test calls it in this process."""
    log = logging.getLogger("sqla_tickets")
    before = log.level, log.propagate, list(log.handlers)
    yield
    log.setLevel(before[0])
    log.propagate, log.handlers[:] = before[1:]
