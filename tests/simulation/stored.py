"""What the servers of a world have stored for others than those who draw: marks, tombstones and horizons."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from operator import itemgetter
from typing import Final, NamedTuple

from sqla_tickets import TicketPool
from sqla_tickets.arguments import MARKS, NODES
from sqla_tickets.snowflake import numbering
from sqla_tickets.snowflake.allocator import LeaseAllocator
from sqla_tickets.snowflake.lease import Lease
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


class _Node(NamedTuple):
    """A node number as a server has it: columns of its row.

    Attributes:
        owner: the token of its lease; empty when it was given back.
        holder: host and process.
        expires: when the lease ends by the server's clock, in microseconds since 1970.
        horizon: no id has a later time, in microseconds since 1970.
    """

    owner: str
    holder: str
    expires: int
    horizon: int


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
        #: The tokens of all leases when the calm began, and those that each process need not give back.
        self._before_calm = set[str]()
        self._excused: dict[Machine, set[str]] = {}

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
        self._before_calm = {
            row.owner for host in self._hosts.values() for row in _nodes_on(host).values()
        }
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
            for lease in _live_leases(machine, pool):
                hosts = zip(pool.servers, self._hosts.values(), strict=False)
                for host in [host for server, host in hosts if server is not lease.server]:
                    told = _nodes_on(host).get(lease.node)
                    known = 0 if told is None else told.horizon
                    if host.name not in restored and known < lease.horizon:
                        text = f"{lease} until {lease.horizon}, and {host} knows {known}"
                        self._broken("untold horizon", text)

    # -- leases

    def disposing(self, machine: Machine) -> None:
        """A process begins to close its pool: it is to give back what it has by now."""
        pool = machine.state["pool"]
        assert isinstance(pool, TicketPool)
        held = {
            token
            for lease in _live_leases(machine, pool)
            for token in (lease.token, lease.next_token)
        }
        ended = {
            row.owner
            for host in self._hosts.values()
            for row in _nodes_on(host).values()
            if row.expires < host.machine.wall() * 1e6
        }
        self._excused[machine] = (self._before_calm | ended) - held

    def check_leases(self, machines: Iterable[Machine]) -> None:
        """Check that processes have given back the node numbers that they had when they closed their pools.

        Those that they had done without while servers failed run to the end of their leases, and a lease that had ended
        by then is nobody's.
        """
        closed = {str(machine.number): machine for machine in machines}
        for host in self._hosts.values():
            for node, row in _nodes_on(host).items():
                machine = closed.get(row.holder.rpartition(":")[2])
                if machine is None or not row.owner:
                    continue
                if row.owner not in self._excused.get(machine, self._before_calm):
                    self._broken("leaked lease", f"{machine} has not given back {node}: {row}")

    def has_number(self, name: str, bits: int, wall: float, since: float) -> bool:
        """Whether a server had a node number that a process could have leased.

        Args:
            name: of the server.
            bits: of the numbers.
            wall: the clock of the process.
            since: when its call began, in the world's time.
        """
        machine, rows = self._hosts[name].machine, _nodes_on(self._hosts[name])
        table = rows.get(numbering._ROW)
        if table is None or table.horizon >= wall * 1e6 or machine.stepped_at > since:
            return False
        found = numbering._TEXT.fullmatch(table.holder)
        assert found is not None
        stride, offset = int(found[1]), int(found[2])
        began = (machine.wall() - (self._world.now - since)) * 1e6
        return any(
            (row := rows.get(node)) is None or (row.expires < began and row.horizon < wall * 1e6)
            for node in range(offset % stride, 1 << bits, stride)
        )


def _tables(host: Host) -> list[Table]:
    """The tables of a server which runs."""
    model = host.model
    if not host.is_up or not isinstance(model, ModelServer):
        return []
    return list(model.store.tables.values())


def _live_leases(machine: Machine, pool: TicketPool) -> list[Lease]:
    """The leases that a process has."""
    allocator = pool.info.get(LeaseAllocator)
    leases = [] if allocator is None else list(allocator._leases.values())
    return [lease for lease in leases if not lease.ended and lease.deadline > machine.elapsed()]


def _nodes_on(host: Host) -> dict[int, _Node]:
    """The rows of node numbers that are committed on a server, by these."""
    found: dict[int, _Node] = {}
    for table in _tables(host):
        if table.key[1] != NODES:
            continue
        node, owner, holder, expires, horizon = (
            table.positions[name] for name in ("node", *_Node._fields)
        )
        for row in table.rows.values():
            values = row.seen_by(None)
            if values is not None:
                found[int(values[node] or 0)] = _Node(
                    str(values[owner]),
                    str(values[holder]),
                    int(values[expires] or 0),
                    int(values[horizon] or 0),
                )
    return found


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
        key = itemgetter(*[table.positions[column] for column in _KEY])
        mark = table.positions["mark"]
        for row in table.rows.values():
            values = row.seen_by(None)
            if values is not None:
                found[key(values)] = int(values[mark] or 0)
    return found
