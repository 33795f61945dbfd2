"""Many processes and Flickr's own clients drawing from the same two servers for a while."""

from __future__ import annotations

import random
import re
import subprocess
import threading
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Event

from sqlalchemy import URL

from sqla_tickets import TicketPool, TicketSequence
from tests.support.draws import PATIENCE, from_one_start
from tests.support.servers import MySQLLike

FLICKRS_TWO_STATEMENTS = "REPLACE INTO photos (stub) VALUES ('a'); SELECT LAST_INSERT_ID();\n"
BATCH = 40
PROCESSES = 8
LARGEST_BLOCK = 300
# Half of the processes buffer blocks.
BLOCKS = (1, 25)
CLIENTS_PER_SERVER = 2


@dataclass
class Soak:
    """What came of a soak.

    Attributes:
        pools: the blocks that each process received from its pool.
        clients: the tickets that command-line clients received, by the offset of their server.
        complaints: what the clients wrote to their error output, by the error's number.
    """

    pools: list[list[range]] = field(default_factory=list)
    clients: dict[int, list[int]] = field(default_factory=dict)
    complaints: Counter[str] = field(default_factory=Counter)

    @property
    def tickets(self) -> list[int]:
        """All tickets, of every process."""
        numbers = [n for blocks in self.pools for block in blocks for n in block]
        return numbers + [n for ids in self.clients.values() for n in ids]

    def __str__(self) -> str:
        drawn = sum(len(block) for blocks in self.pools for block in blocks)
        asked = sum(map(len, self.clients.values()))
        return (
            f"{drawn:,} tickets in {sum(map(len, self.pools)):,} blocks through"
            f" {len(self.pools)} pools, {asked:,} by command-line clients"
            f" (which met {dict(self.complaints)})"
        )


def soak(urls: Sequence[URL], servers: Sequence[MySQLLike], seconds: float, *, seed: int) -> Soak:
    """Let processes draw through pools, and clients from ``servers`` of these databases."""
    context = from_one_start()
    go, answers = context.Event(), context.Queue()
    texts = [url.render_as_string(hide_password=False) for url in urls]
    processes = [
        context.Process(
            target=_draw,
            args=(texts, seconds, seed + n, BLOCKS[n % len(BLOCKS)], go, answers),
            daemon=True,
        )
        for n in range(PROCESSES)
    ]
    for process in processes:
        process.start()
    for _ in processes:
        assert answers.get(timeout=PATIENCE) == "ready"
    result = Soak(clients={offset: [] for offset in range(1, len(servers) + 1)})
    clients = [
        threading.Thread(target=_ask, args=(server.client(str(url.database)), seconds, n, result))
        for n, (url, server) in enumerate(zip(urls, servers, strict=False), 1)
        for _ in range(CLIENTS_PER_SERVER)
    ]
    go.set()
    for client in clients:
        client.start()
    _collect(result, answers, seconds + PATIENCE)
    for client in clients:
        client.join(PATIENCE)
    for process in processes:
        process.join(PATIENCE)
    return result


def _collect(result: Soak, answers: Queue[str | list[range]], seconds: float) -> None:
    for _ in range(PROCESSES):
        answer = answers.get(timeout=seconds)
        assert isinstance(answer, list), answer
        result.pools.append(answer)


def _draw(
    urls: list[str],
    seconds: float,
    seed: int,
    block: int,
    go: Event,
    answers: Queue[str | list[range]],
) -> None:
    """Draw singles and blocks until the time is over; one process's part."""
    chooser, sequence, drawn = random.Random(seed), TicketSequence("photos", block=block), []
    try:
        with TicketPool(urls) as pool:
            answers.put("ready")
            go.wait()
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                n = chooser.choice((1, 1, 1, chooser.randint(2, LARGEST_BLOCK)))
                blocks = pool.reserve(sequence, n)
                assert sum(map(len, blocks)) == n
                drawn += blocks
        answers.put(drawn)
    except BaseException:  # noqa: BLE001  # the parent waits for an answer
        answers.put(traceback.format_exc())


def _ask(client: list[str], seconds: float, offset: int, result: Soak) -> None:
    """Send batches of Flickr's two statements; an error ends a batch, as it leaves no new id."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        done = subprocess.run(
            client, input=FLICKRS_TWO_STATEMENTS * BATCH, capture_output=True, text=True
        )
        result.clients[offset] += map(int, done.stdout.split())
        if done.returncode:
            found = re.search(r"ERROR (\d+)", done.stderr)
            result.complaints[found.group(1) if found else done.stderr] += 1
