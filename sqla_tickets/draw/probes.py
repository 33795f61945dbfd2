"""The running probes of one server."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..concurrency import WeakRegistry, threading, time

if TYPE_CHECKING:
    from ..connect.pool import Connections


class Probe:
    """A running probe.

    Attributes:
        since: when it was begun, by ``time.monotonic()``.
    """

    __slots__ = ("__weakref__", "since")

    def __init__(self, since: float) -> None:
        self.since = since


class Probes:
    """The running probes of one server; an answer to one ends all that are older.

    Attributes:
        under_way: those probes.
        connections: of a probe whose driver is asynchronous: event loops cannot share what SQLAlchemy does
            once for each engine. None while a probe uses them, and before the first.
    """

    def __init__(self) -> None:
        self.under_way = WeakRegistry[Probe]()
        self.connections: Connections | None = None
        self._lock = threading.Lock()

    @property
    def are_under_way(self) -> bool:
        """Whether a probe's answer may come any moment."""
        return bool(self.under_way.refs)

    def are_awaited(self, alive_at: float) -> bool:
        """Whether a probe is running, and the server has sent nothing since it began."""
        return any(probe.since > alive_at for probe in self.under_way)

    def begin(self, stale: float, connecting_since: float = 0.0) -> Probe | None:
        """A new one; None while another one is awaited, or a connection that a draw opens.

        Each further one under way doubles the wait for the next: a server that is too busy to let anybody in
        gets no more to do.

        Args:
            stale: seconds after which the first one is not waited for any longer.
            connecting_since: when the opening of such a connection began; 0 where none is being opened.
        """
        new = Probe(time.monotonic())
        with self._lock:
            begun = [probe.since for probe in self.under_way]
            if connecting_since:
                begun.append(connecting_since)
            if begun and new.since - max(begun) < stale * 2 ** (len(begun) - 1):
                return None
            self.under_way.add(new)
            return new

    def counts(self, probe: Probe, alive_at: float) -> bool:
        """Whether its failure tells anything: nothing was heard since, and no later one may be answered."""
        with self._lock:
            others = list(self.under_way)
            return probe in others and probe.since >= max(alive_at, *(p.since for p in others))

    def answered(self, probe: Probe) -> None:
        """It was answered: neither this one nor an older one is awaited any more."""
        with self._lock:
            for other in self.under_way:
                if other.since <= probe.since:
                    self.under_way.discard(other)

    def ended(self, probe: Probe) -> None:
        """This one has ended, however it did."""
        self.under_way.discard(probe)
