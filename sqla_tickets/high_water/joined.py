"""Where servers with a larger stride joined, so that clients with this stride issue nothing above it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from ..concurrency import threading, time
from ..draw.access import ServerAccess
from ..draw.buffer import drop_everything
from ..draw.table_state import Joined, TicketTable
from .statements import JOINED, Mark


class JoinedServers:
    """Where servers with a larger stride joined, by sequence, as the servers of a pool last showed it.

    One server that shows it suffices: another one may have been restored since. A number that is too low stops
    clients, and one that is ignored lets tickets repeat.

    Args:
        servers: the pool's servers.
        stride: the pool's stride.
    """

    def __init__(self, servers: Sequence[ServerAccess], stride: int) -> None:
        self._servers, self._stride = servers, stride
        self._shown: dict[str, dict[ServerAccess, Joined | None]] = {}
        self._read_at: dict[str, float] = {}
        self.reinit_after_fork()

    def reinit_after_fork(self) -> None:
        """In a fork: forget the parent's lock, which a thread of the parent may hold."""
        self._lock = threading.Lock()

    def record(self, server: ServerAccess, names: Collection[str], marks: Iterable[Mark]) -> None:
        """Record what a server has shown of some sequences, and bound their tables by it."""
        lowest: dict[str, Joined | None] = dict.fromkeys(names)
        for mark in sorted(marks, key=lambda mark: -mark.number):
            is_multiple = mark.stride > self._stride and mark.stride % self._stride == 0
            if mark.offset == JOINED and is_multiple:
                lowest[mark.sequence] = Joined(mark.number, mark.stride)
        for name, joined in lowest.items():
            with self._lock:
                self._shown.setdefault(name, {})[server] = joined
                self._read_at[name] = time.monotonic()
            self.bound(name)

    def bound(self, name: str) -> None:
        """Bound the tables of a sequence; drop buffered tickets if some may be above the bound."""
        tables = [t for server in self._servers if (t := server.tables.get(name)) is not None]
        with self._lock:
            lowest = min((j for j in self._shown.get(name, {}).values() if j), default=None)
            is_late = [table.record_joined(lowest) for table in tables]
        if any(is_late):
            drop_everything()

    def was_read(self, name: str) -> bool:
        """Whether any server has shown it of a sequence."""
        return name in self._read_at

    def is_unread(self, table: TicketTable, seconds: float) -> bool:
        """Whether no server was asked lately, although this process has drawn from the table since."""
        read_at = self._read_at.get(table.name, 0.0)
        return table.draws > 0 and table.answered > read_at + seconds

    def forget(self, name: str) -> None:
        """Forget a sequence that was dropped."""
        with self._lock:
            self._shown.pop(name, None)
            self._read_at.pop(name, None)
