"""Servers that join, retire, get lost and come back at random, with kills, while clients of every age draw."""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from sqlalchemy import URL

from sqla_tickets import TicketError, TicketPool
from sqla_tickets.connect.cursor import TicketCursor
from sqla_tickets.maintenance import operations
from tests.support.command_line import options, run_cli

STEPS = 12
NAMES = ("photos", "pictures")


class _Killed(BaseException):
    """Ends an operator's process."""


@contextlib.contextmanager
def killed_at(statement: int) -> Iterator[None]:
    """Kill the process at a statement: it sends neither this one nor any later one."""
    with pytest.MonkeyPatch.context() as patched:
        real, count = TicketCursor.execute, iter(range(1, statement))

        def execute(self: TicketCursor, *arguments: object) -> object:
            if next(count, None) is None:
                raise _Killed
            return real(self, *arguments)

        patched.setattr(TicketCursor, "execute", execute)
        with contextlib.suppress(_Killed):
            yield


class Site:
    """Ticket servers, the operator who resizes the pool, and clients with all configurations of the past."""

    def __init__(self, folder: Path, dice: random.Random) -> None:
        self._folder, self._dice, self._servers = folder, dice, 0
        self.stride = dice.choice([2, 3, 8])
        self.urls = [self._new_server()]
        self._retired: list[URL] = []
        self._past, self._clients = [list(self.urls)], list[TicketPool]()
        self._drawn: list[range] = []
        self.name, self.done = NAMES[0], Counter[str]()
        self._command("create", self.name)

    def _new_server(self) -> URL:
        self._servers += 1
        (self._folder / str(self._servers)).mkdir()
        return URL.create("sqlite", database=f"{self._folder}/{self._servers}/tickets.db")

    # -- the operator

    def _command(self, *arguments: str | int) -> bool:
        """Run a command again until it is not killed; returns whether it is done."""
        on = [*arguments, *options(self.urls), "--stride", self.stride]
        for _ in range(self._dice.choice([0, 0, 1, 2])):
            with killed_at(self._dice.randint(1, 60)):
                run_cli(*on)
            self.draw()
        done = run_cli(*on)
        assert done.code in (0, 3), done.text
        return done.code == 0

    def join(self) -> bool:
        """Add a new server, or one that has retired."""
        if len(self.urls) == self.stride:
            return False
        back = self._retired and self._dice.random() < 0.5
        url = self._dice.choice(self._retired) if back else self._new_server()
        if self._command("grow", "--add", url.render_as_string(False), "--yes"):
            self._configure([*self.urls, url])
            self._retired = [each for each in self._retired if each != url]
            return True
        return False

    def retire(self) -> bool:
        """Retire the last server."""
        if len(self.urls) == 1 or not self._command("retire", "--last", 1, "--yes"):
            return False
        self._retired.append(self.urls[-1])
        self._configure(self.urls[:-1])
        return True

    def lose(self) -> bool:
        """Lose the last server for good."""
        if len(self.urls) == 1:
            return False
        offset = len(self.urls)
        (self._folder / Path(self.urls[-1].database or "").parent.name).rename(
            self._folder / f"lost{self._servers}-{len(self._past)}"
        )
        for client in self._clients:
            client.dispose()
        self._clients.clear()
        self._configure(self.urls[:-1])
        assert self._command("retire", "--gone", offset, "--yes")
        return True

    def rename(self) -> bool:
        """Rename the sequence, there or back."""
        to = NAMES[1 - NAMES.index(self.name)]
        with TicketPool(self.urls, stride=self.stride) as pool:
            # a server may have retired while the sequence had its other name
            for offset in operations.absent_servers(pool, self.name):
                assert self._command("retire", self.name, "--gone", offset, "--yes")
            with killed_at(self._dice.randint(1, 90)):
                operations.rename(pool, self.name, to)
            self.draw()
            operations.rename(pool, self.name, to)
        self.name = to
        return True

    def _configure(self, urls: list[URL]) -> None:
        self.urls = urls
        self._past.append(list(urls))

    # -- the clients

    def draw(self) -> None:
        """Draw with a configuration of any age, by either name, in a new process or one that goes on."""
        for _ in range(2):
            if self._clients and self._dice.random() < 0.5:
                client = self._dice.choice(self._clients)
            else:
                urls = self._dice.choice([self.urls, self._dice.choice(self._past)])
                client = TicketPool(urls, stride=self.stride)
                self._clients.append(client)
            for name in NAMES:
                for server in client.servers:
                    with contextlib.suppress(TicketError):
                        n = self._dice.choice([1, 50, 50, 150_000])
                        self._drawn += server.draw(name, n)
                with contextlib.suppress(TicketError):
                    self._drawn += client.reserve(name, 5)
            if self._dice.random() < 0.7:
                client.dispose()  # which writes the marks
        blocks = sorted(self._drawn, key=lambda block: (block.start % self.stride, block.start))
        for before, after in pairwise(blocks):
            are_apart = (before.start - after.start) % self.stride or before[-1] < after.start
            assert are_apart, (before, after)

    def close(self) -> None:
        """End all clients."""
        for client in self._clients:
            client.dispose()


@pytest.mark.parametrize(
    "seed", [*range(3), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(3, 12))]
)
def test_no_resizing_makes_a_ticket_come_twice(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    site = Site(tmp_path, dice)
    steps = [site.join, site.join, site.retire, site.lose, site.rename]
    with contextlib.closing(site):
        for _ in range(STEPS):
            step = dice.choice(steps)
            site.done[step.__name__] += step()
            site.draw()
        with TicketPool(site.urls, stride=site.stride) as pool:
            assert len(pool.next_ids(site.name, 10)) == 10
    assert sum(site.done.values()) > STEPS / 4, site.done
