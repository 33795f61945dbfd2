"""What the servers of a world have stored for others than those who draw: marks, tombstones and horizons."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final

from sqla_tickets import TicketPool
from sqla_tickets.arguments import MARKS, NODES
from sqla_tickets.snowflake.allocator import LeaseAllocator
from sqla_tickets.tables.metadata import Tombstone

from .models.expressions import Value
from .models.sessions import ModelServer
from .models.storage import Table
from .network import Host
from .world import Machine, World

__all__ = ["Stored", "marks_on", "numbers_on"]

#: Seconds from one look to the next: a mark that was lowered is soon raised again.
POLL_SECONDS: Final = 0.1
#: What tells a mark from others: sequence, stride, offset, and the generation of the sequence.
_KEY: Final = ("sequence", "stride", "offset", "token")


class Stored:
    """What all servers of a world have stored.

    Args:
        world: that they are part of.
        hosts: the servers, by name, in the order of their offsets.
        broken: is told of a broken promise, by its kind and a text.
    """

    def __init__(
        self, world: World, hosts: Mapping[str, Host], broken: Callable[[str, str], None]
    ) -> None:
        self._world, self._hosts, self._broken = world, hosts, broken
        #: By server, since its start: it may have lost some then.
        self._before: dict[tuple[Machine, tuple[Value, ...]], int] = {}
        self._received: dict[tuple[str, int, int], int] = {}
        #: The tables that have stood on a server, since its start, as a tombstone with a text.
        self._tombstones: dict[tuple[Machine, str], Table] = {}

    def poll(self) -> None:
        """Look again and again: no mark is ever lowered, and no tombstone is placed a second time."""
        for host in self._hosts.values():
            for table in _tables(host):
                if Tombstone.parse(table.comment) is not None:
                    found = host.machine, f"{table.key[1]} {table.comment}"
                    if self._tombstones.setdefault(found, table) is not table:
                        self._tombstones[found] = table
                        self._broken("same tombstone", f"{found[1]} on {host}")
            for key, number in marks_on(host).items():
                last = self._before.get((host.machine, key), 0)
                if number < last:
                    self._broken("lowered mark", f"{key} on {host}: {number} after {last}")
                self._before[host.machine, key] = number
        self._world.at(self._world.now + POLL_SECONDS, self.poll)

    def remember(self, machines: Iterable[Machine]) -> None:
        """Remember how far processes with all servers have drawn: these are well, so each will know soon."""
        for machine in machines:
            pool = machine.state.get("pool")
            if not isinstance(pool, TicketPool):
                continue  # a client of another program
            for server in pool.servers if len(pool.servers) == len(self._hosts) else ():
                for table in server.known_tables():
                    key = table.name, table.stride, table.offset
                    if table.draws:
                        number = max(table.high_water, self._received.get(key, 0))
                        self._received[key] = number

    def check_marks(self, restored: Collection[str]) -> None:
        """Check that the peers know what was remembered.

        Args:
            restored: the servers that are of no use any more.
        """
        for offset, host in enumerate(self._hosts.values(), 1):
            if host.name in restored or not isinstance(host.model, ModelServer):
                continue
            known = {key[:3]: number for key, number in marks_on(host).items()}
            for key, number in self._received.items():
                if key[2] != offset and known.get(key, 0) < number:
                    text = f"{key} on {host}: {known.get(key, 0)}, and {number} was drawn"
                    self._broken("missing mark", text)

    def check_horizons(self, machines: Iterable[Machine], restored: Collection[str]) -> None:
        """Check that each server knows the horizons of what its peers have leased, as all are well.

        Args:
            machines: the processes, whose leases are asked for.
            restored: the servers that are of no use any more.
        """
        for machine in machines:
            pool = machine.state.get("pool")
            if not isinstance(pool, TicketPool):
                continue
            allocator = pool.info.get(LeaseAllocator)
            for lease in [] if allocator is None else list(allocator._leases.values()):
                if lease.ended or lease.deadline < machine.elapsed():
                    continue
                hosts = zip(pool.servers, self._hosts.values(), strict=False)
                for host in [host for server, host in hosts if server is not lease.server]:
                    known = _horizons_on(host).get(lease.node, 0)
                    if host.name not in restored and known < lease.horizon:
                        text = f"{lease} until {lease.horizon}, and {host} knows {known}"
                        self._broken("untold horizon", text)


def _tables(host: Host) -> list[Table]:
    """The tables of a server which runs."""
    model = host.model
    if not host.is_up or not isinstance(model, ModelServer):
        return []
    return list(model.store.tables.values())


def _horizons_on(host: Host) -> dict[int, int]:
    """The horizons that are committed on a server, by their node numbers."""
    return {
        int(values[table.positions["node"]] or 0): int(values[table.positions["horizon"]] or 0)
        for table in _tables(host)
        if table.key[1] == NODES
        for row in table.rows.values()
        if (values := row.seen_by(None)) is not None
    }


def numbers_on(host: Host) -> dict[str, int]:
    """The largest number in each table of a server which runs, or the one before the next that it gives."""
    found: dict[str, int] = {}
    for table in _tables(host):
        at = table.positions.get("id")
        if at is not None:
            rows = [int(row.values[at] or 0) for row in table.rows.values() if row.values]
            found[table.key[1]] = max([(table.counter or 1) - 1, *rows])
    return found


def marks_on(host: Host) -> dict[tuple[Value, ...], int]:
    """The marks that are committed on a server which runs."""
    found: dict[tuple[Value, ...], int] = {}
    for table in _tables(host):
        if table.key[1] != MARKS:
            continue
        key, mark = [table.positions[column] for column in _KEY], table.positions["mark"]
        for row in table.rows.values():
            values = row.seen_by(None)
            if values is not None:
                found[tuple(values[n] for n in key)] = int(values[mark] or 0)
    return found
