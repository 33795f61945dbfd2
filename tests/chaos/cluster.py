"""What is attacked: two ticket servers of one kind, each behind a proxy, and their ticket tables."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from sqlalchemy import URL

from sqla_tickets import TicketPool
from sqla_tickets.dialects import LayoutName
from sqla_tickets.high_water.statements import MARKS
from tests.chaos.workloads import SEQUENCES
from tests.support.servers import MySQLLike
from tests.support.tcp_proxy import HOST, TcpProxy

__all__ = ["Cluster", "Target"]

#: One name on both servers, so that one can be taken for the other.
DATABASE = "chaos"
#: How far above the last known ticket a person raises a table that was set back.
MARGIN = 1_000_000
#: Seconds in which traffic tells a server what the other one has issued.
TOLD_WITHIN = 6.0


class Target:
    """One ticket server.

    Attributes:
        number: its offset.
        server: the machine.
        proxy: what its clients take for it.
        sequences: those that have a table here.
    """

    def __init__(self, number: int, server: MySQLLike, sequences: Sequence[str]) -> None:
        self.number, self.server, self.sequences = number, server, sequences
        server.create_database(DATABASE)
        self.proxy = TcpProxy(server.port)

    @property
    def url(self) -> URL:
        """Where a person finds it, not through the proxy."""
        return self.server.url(DATABASE)

    @property
    def clients_url(self) -> URL:
        """Where its clients find it."""
        return self.url.set(host=HOST, port=self.proxy.port)

    def last_ticket(self, sequence: str) -> int:
        """The number that stands in a table."""
        with self.server.administrator() as cursor:
            cursor.execute(f"SELECT MAX(id) FROM {DATABASE}.{sequence}")
            row = cursor.fetchone()
        return int(row[0]) if row and row[0] else 0

    def marks(self) -> dict[str, int]:
        """What it knows of the other server, by sequence."""
        with self.server.administrator() as cursor:
            cursor.execute(f"SELECT sequence, mark FROM {DATABASE}.{MARKS}")
            return {str(sequence): int(mark) for sequence, mark in cursor.fetchall()}

    def execute(self, *statements: str) -> None:
        """Run statements as the administrator, on the database."""
        with self.server.administrator() as cursor:
            cursor.execute(f"USE {DATABASE}")
            for statement in statements:
                cursor.execute(statement)


class Cluster:
    """Two ticket servers of one kind.

    Attributes:
        targets: the servers.
        sequences: what is drawn from, each in a layout of its own.
    """

    def __init__(self, servers: Sequence[MySQLLike], layouts: Sequence[LayoutName]) -> None:
        self.sequences = [SEQUENCES[layout] for layout in layouts]
        self.targets = [Target(n, server, self.sequences) for n, server in enumerate(servers, 1)]
        with self.pool() as pool:
            for layout in layouts:
                pool.create_table(SEQUENCES[layout], layout=layout)

    @property
    def kind(self) -> str:
        """The servers' kind."""
        return self.targets[0].server.kind

    def urls(self, driver: str) -> tuple[str, ...]:
        """Where clients find the servers."""
        urls = [target.clients_url.set(drivername=f"mysql+{driver}") for target in self.targets]
        return tuple(url.render_as_string(hide_password=False) for url in urls)

    @contextmanager
    def pool(self) -> Iterator[TicketPool]:
        """The pool of a person who repairs, not through the proxies."""
        with TicketPool([target.url for target in self.targets]) as pool:
            yield pool

    def last_tickets(self) -> dict[str, int]:
        """The largest ticket of each sequence that any server shows; nothing is drawn for it."""
        return {
            sequence: max(target.last_ticket(sequence) for target in self.targets)
            for sequence in self.sequences
        }

    def has_told(self, target: Target, above: dict[str, int]) -> bool:
        """Wait until the other server knows of later tickets, as it does after some seconds of traffic."""
        (other,) = (each for each in self.targets if each is not target)
        deadline = time.monotonic() + TOLD_WITHIN
        while time.monotonic() < deadline:
            marks = other.marks()
            if all(marks.get(sequence, 0) > number for sequence, number in above.items()):
                return True
            time.sleep(0.05)
        return False

    def repair(self, above: dict[str, int]) -> None:
        """Raise every table above what was issued, as the log message asks for."""
        with self.pool() as pool:
            for sequence, last in above.items():
                pool.raise_above(sequence, last + MARGIN)

    def close(self) -> None:
        """End the proxies, and drop what was made."""
        for target in self.targets:
            target.proxy.close()
            target.server.revive()
            target.server.drop_database(DATABASE)
