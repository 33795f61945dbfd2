"""What the docs call announced is announced: in the log and to the listeners of a pool's events."""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable
from typing import Final

from sqla_tickets.errors import TicketError
from sqla_tickets.events import Draw, Server

from .network import Host
from .world import Machine, World

__all__ = ["Announcements"]

#: Parts of the messages that the docs promise.
BROKEN_PROMISE: Final = "has broken its promise"
IS_ALONE: Final = "although no peer can report a mark"
WAS_SET_BACK: Final = "was set back to an older state: it leases"


class Announcements(logging.Handler):
    """What the processes of a world have logged, and what their listeners were told.

    Args:
        world: in which it happens.
        broken: is told of a broken promise, by its kind and a text.
        refuses: whether pools refuse in place of a warning.

    Attributes:
        set_back: the servers that were set back so far.
    """

    def __init__(
        self, world: World, broken: Callable[[str, str], None], refuses: Callable[[], bool]
    ) -> None:
        super().__init__(logging.WARNING)
        self._world, self._broken, self._refuses = world, broken, refuses
        self.set_back: Callable[[], Collection[str]] = set
        self._criticals: dict[Machine, list[str]] = {}
        #: When processes have said that a server broke a promise, and what they said.
        self._told: list[tuple[float, str]] = []
        self._quarantined: dict[Machine, list[tuple[str, str]]] = {}
        #: The tables that each process was warned of: sequence and server.
        self._alone: dict[Machine, set[tuple[str, str]]] = {}
        self._first: set[tuple[Machine, str, Server]] = set()
        #: The processes whose draws have a listener.
        self._heard: set[Machine] = set()
        #: Tickets that each process has drawn of a sequence, and neither handed out nor discarded yet.
        self._held: defaultdict[Machine, Counter[str]] = defaultdict(Counter)

    # -- the log

    def emit(self, record: logging.LogRecord) -> None:
        """A line of the log."""
        machine = self._world.machine
        if record.levelno >= logging.CRITICAL:
            text = record.getMessage()
            self._criticals.setdefault(machine, []).append(text)
            if BROKEN_PROMISE in text:
                self._told.append((self._world.now, text))
            if WAS_SET_BACK in str(record.msg) and isinstance(record.args, tuple):
                self._sees_lease_set_back(machine, str(record.args[0]))
        elif IS_ALONE in str(record.msg) and isinstance(record.args, tuple):
            name, server, _ = map(str, record.args)
            self._alone.setdefault(machine, set()).add((name, server))

    def _sees_lease_set_back(self, machine: Machine, server: str) -> None:
        """A process says that a server has forgotten the owner of a node number."""
        if not any(f"://{host}/" in server for host in self.set_back()):
            text = f"{machine} says that {server} was set back, and it was not"
            self._broken("false alarm", text)

    def has_told(self, sequence: str, host: str, since: float) -> bool:
        """Whether any process has said since a moment that a server broke its promise for a sequence."""
        about = f"{BROKEN_PROMISE} for the sequence {sequence!r}"
        return any(
            since <= at and f"://{host}/" in text and about in text for at, text in self._told
        )

    # -- events

    def hears(self, machine: Machine) -> bool:
        """Whether a new process gets a listener to its draws: every other one, as draws are quicker without."""
        if machine.number % 2:
            self._heard.add(machine)
        return machine in self._heard

    def drawn(self, machine: Machine, draw: Draw) -> None:
        """A draw on one server has ended."""
        if not draw.blocks:
            return
        self._held[machine][draw.sequence] += draw.tickets
        key = machine, draw.sequence, draw.server
        if key not in self._first:
            self._first.add(key)
            self._sees_first(machine, draw.sequence, str(draw.server))

    def _sees_first(self, machine: Machine, sequence: str, server: str) -> None:
        """A process draws from a table for the first time: when it has met no other server, nobody has told."""
        if len(known_hosts(machine)) > 1 or self._refuses():
            return
        if (sequence, server) not in self._alone.get(machine, ()):
            self._broken("not announced", f"{machine} draws {sequence} from {server} alone")

    def handed_out(self, sequence: str, tickets: int) -> None:
        """The caller of the process that runs has got tickets."""
        self._held[self._world.machine][sequence] -= tickets

    def discarded(
        self, machine: Machine, pool: str, sequence: str, tickets: int, reason: str
    ) -> None:
        """Tickets were discarded."""
        self._held[machine][sequence] -= tickets

    def quarantined(
        self, machine: Machine, pool: str, sequence: str, server: Server, error: TicketError
    ) -> None:
        """A server broke a promise."""
        self._quarantined.setdefault(machine, []).append((sequence, str(server)))

    def forked(self, parent: Machine, child: Machine) -> None:
        """A process was forked: what it was told of is known in the copy."""
        if parent in self._heard:
            self._heard.add(child)
        self._alone[child] = set(self._alone.get(parent, ()))
        self._criticals[child] = list(self._criticals.get(parent, ()))
        self._quarantined[child] = list(self._quarantined.get(parent, ()))

    # -- at the end

    def check(self, machine: Machine, buffered: Callable[[str], int]) -> None:
        """Check what a process that has ended by itself was told of.

        Args:
            machine: the process.
            buffered: how many tickets of a sequence it still has.
        """
        criticals = [text for text in self._criticals.get(machine, []) if BROKEN_PROMISE in text]
        quarantined = self._quarantined.get(machine, [])
        if len(criticals) != len(quarantined):
            text = f"{machine}: {len(quarantined)} quarantines, {len(criticals)} in the log"
            self._broken("not announced", text)
        if "other pool" in machine.state or machine not in self._heard:
            return  # which has drawn some of them, or whose draws are unknown
        held = self._held[machine]
        # of all together, as a sequence may have been renamed; some may be discarded by that
        left = sum(map(buffered, list(held)))
        if sum(held.values()) != left:
            text = f"{machine}: tickets are neither used nor discarded: {dict(held)}"
            self._broken("not announced", f"{text}, {left} are buffered")

    def check_set_back(self, machine: Machine, sequence: str, hosts: Iterable[Host]) -> None:
        """A process that draws has found out that servers were set back, and has said so."""
        told = {server for name, server in self._quarantined.get(machine, []) if name == sequence}
        for host in hosts:
            if not any(f"://{host}/" in server for server in told):
                text = f"{machine} does not say that {host} was set back for {sequence}"
                self._broken("not announced", text)


def known_hosts(machine: Machine) -> dict[str, float]:
    """The servers that have ever let a process in, and when first."""
    known = machine.state.setdefault("known hosts", {})
    assert isinstance(known, dict)
    return known
