"""``python -m tests.chaos.http_service``: the HTTP service under load, while it and its ticket servers are hurt.

Clients keep every ticket that a response had. One thing at a time is killed, frozen or restarted: a ticket server, the
service, one of its workers. No ticket may come twice, also none that another client draws from the servers. No request may
be refused, as one server always serves. A request may end without a response only while the service is down, or when its
worker is killed, once for each connection. A worker that is frozen answers when it goes on::

    python -m tests.chaos.http_service --seconds 600 --servers mariadb,mysql
    python -m tests.chaos.http_service --seconds 60 --seed 7 --workers 1

``--seed`` repeats what is done, and for how long. Exit code 1 if a promise was broken.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from sqlalchemy import URL

from sqla_tickets import TicketPool
from tests.support.http_service import Broken, HTTPLoad, HTTPProcess, repeated
from tests.support.servers import MySQLLike, ServerRegistry

DATABASE, SEQUENCE = "http", "photos"
#: How many seconds after the end of what is done to the service a request may still lack its response.
GRACE = 2.0


class Hurt(NamedTuple):
    """Something that was done to the service.

    Attributes:
        begin: when it began.
        end: when no request lacks its response because of it any more.
        act: what was done.
    """

    begin: float
    end: float
    act: str


@dataclass
class Scene:
    """What is attacked, and what was done to it.

    Attributes:
        servers: the ticket servers.
        service: in processes of its own.
        chooser: of what is done.
        events: how often each was done.
        hurt: what was done to the service.
    """

    servers: list[MySQLLike]
    service: HTTPProcess
    chooser: random.Random
    events: Counter[str] = field(default_factory=Counter[str])
    hurt: list[Hurt] = field(default_factory=list[Hurt])

    def hurt_something(self) -> None:
        """Do one thing, and wait until all is well again."""
        act = self.chooser.choice(ACTS)
        name = act.__name__.replace("_", " ")
        began = time.monotonic()
        act(self)
        self.events[name] += 1
        if act in ON_SERVICE:
            self.hurt.append(Hurt(began, time.monotonic() + GRACE, name))

    def rest(self, least: float, most: float) -> None:
        """Let it go on for a while."""
        time.sleep(self.chooser.uniform(least, most))


def server_killed(scene: Scene) -> None:
    server = scene.chooser.choice(scene.servers)
    server.kill()
    scene.rest(0.3, 3.0)
    server.start()


def server_frozen(scene: Scene) -> None:
    server = scene.chooser.choice(scene.servers)
    server.freeze()
    scene.rest(0.3, 3.0)
    server.thaw()


def server_restarted(scene: Scene) -> None:
    server = scene.chooser.choice(scene.servers)
    server.stop()
    server.start()


def service_killed(scene: Scene) -> None:
    scene.service.kill()
    scene.rest(0.0, 0.5)
    scene.service.start()


def service_restarted(scene: Scene) -> None:
    scene.service.terminate()
    code = scene.service.wait()
    assert code == 0, f"the service ended with {code}: {scene.service.log}"
    scene.service.start()


def worker_killed(scene: Scene) -> None:
    if len(scene.service.pids) < 2:
        return
    os.kill(scene.chooser.choice(scene.service.pids), signal.SIGKILL)
    scene.rest(1.0, 2.0)


def worker_frozen(scene: Scene) -> None:
    pid = scene.chooser.choice(scene.service.pids)
    os.kill(pid, signal.SIGSTOP)
    scene.rest(0.3, 3.0)
    os.kill(pid, signal.SIGCONT)


ON_SERVICE: list[Callable[[Scene], None]] = [
    service_killed,
    service_restarted,
    worker_killed,
    worker_frozen,
]
ACTS: list[Callable[[Scene], None]] = [
    server_killed,
    server_frozen,
    server_restarted,
    *ON_SERVICE,
]


class OtherClient:
    """Draws from the same ticket servers, without the service.

    Attributes:
        tickets: that it drew.
    """

    def __init__(self, urls: list[URL]) -> None:
        self.tickets: list[int] = []
        self._urls, self._stop = urls, threading.Event()
        self._thread = threading.Thread(target=self._draw)

    def _draw(self) -> None:
        with TicketPool(self._urls) as pool:
            while not self._stop.wait(0.05):
                self.tickets += pool.next_ids(SEQUENCE, 3)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


def run(server_registry: ServerRegistry, kind: str, given: argparse.Namespace, seed: int) -> int:
    """Hurt a service of two servers of one kind; returns how many promises were broken."""
    new = {"mariadb": server_registry.new_mariadb, "mysql": server_registry.new_mysql}[kind]
    servers: list[MySQLLike] = [new(), new()]
    for server in servers:
        server.create_database(DATABASE)
    urls = [server.url(DATABASE) for server in servers]
    with TicketPool(urls) as pool:
        pool.create_table(SEQUENCE)
    with tempfile.TemporaryDirectory(prefix="tickets-http-") as folder:
        options = ("--workers", str(given.workers), "--block", given.block)
        service = HTTPProcess(urls, Path(folder), *options)
        scene = Scene(servers, service, random.Random(f"{seed}/{kind}"))
        load = HTTPLoad(service.port, SEQUENCE, n=given.n, clients=given.clients, rest=given.rest)
        other = OtherClient(urls)
        try:
            service.start()
            end = time.monotonic() + given.seconds
            with load, other:
                while time.monotonic() < end:
                    scene.hurt_something()
                    scene.rest(0.2, 1.5)
        finally:
            service.kill()
    for server in servers:
        server_registry.end(server)
    return _report(kind, scene, load, other)


def _report(kind: str, scene: Scene, load: HTTPLoad, other: OtherClient) -> int:
    tickets = len(load.tickets)
    load.tickets.extend(other.tickets)
    twice = repeated(load.tickets)
    refused = sum(load.statuses.values()) - load.statuses[200]
    causes = Counter((_blamed(request, scene.hurt), request.cause) for request in load.broken)
    lost = sum(n for (act, cause), n in causes.items() if not _may_break(act, cause))
    kills = scene.events["worker killed"] * load.clients
    lost += max(0, sum(n for (act, _), n in causes.items() if act == "worker killed") - kills)
    print(
        f"{kind}: {sum(load.statuses.values()):,} responses with {tickets:,} tickets, {len(other.tickets):,} drawn"
        f" by another client; {dict(scene.events)}\n"
        f"  repeated {len(twice)} {twice[:5]}, refused {refused} {dict(load.statuses)},"
        f" without a response {len(load.broken)}, of these to be answered {lost}\n"
        f"  without a response, by what was done: {dict(causes)}",
        flush=True,
    )
    return len(twice) + refused + lost + (tickets == 0)


def _blamed(request: Broken, hurt: list[Hurt]) -> str:
    """What was done to the service last before a request broke; empty if it was well."""
    acts = [one.act for one in hurt if one.begin <= request.ended and request.sent <= one.end]
    return acts[-1] if acts else ""


def _may_break(act: str, cause: str) -> bool:
    """Whether a request may lack its response: nobody listens, or the process that had its connection has ended."""
    if act == "worker killed":  # the other worker listens
        return cause != "ConnectionRefusedError"
    return act in ("service killed", "service restarted")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.http_service", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="for each kind of server")
    parser.add_argument("--servers", default="mariadb", help="mariadb,mysql")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--block", default="50:2000")
    parser.add_argument("--clients", type=int, default=6)
    parser.add_argument("--n", type=int, default=7, help="tickets of one request")
    parser.add_argument("--rest", type=float, default=0.01, help="seconds between two requests")
    parser.add_argument("--seed", type=int)
    given = parser.parse_args()
    seed = random.randrange(2**32) if given.seed is None else given.seed
    print(f"seed {seed}", flush=True)
    kinds, broken = given.servers.split(","), 0
    server_registry = ServerRegistry(kinds)
    try:
        for kind in kinds:
            broken += run(server_registry, kind, given, seed)
    finally:
        server_registry.close()
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
