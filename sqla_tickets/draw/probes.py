"""The running probes of one server."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..concurrency import WeakRegistry, threading, time

if TYPE_CHECKING:
    from ..connect.pool import Connections


class Probe:
    """A running probe.

    Attributes:
        since: when it began, by ``time.monotonic()``.
    """

    __slots__ = ("__weakref__", "since")

    def __init__(self, since: float) -> None:
        self.since = since


class Probes:
    """The running probes of one server; an answer to one ends all older ones.

    Attributes:
        under_way: the running probes.
        connections: the connections of an async driver's probe, since event loops cannot share what SQLAlchemy does
            once for each engine. None while a probe uses them, and before the first.
    """

    def __init__(self) -> None:
        self.under_way = WeakRegistry[Probe]()
        self.connections: Connections | None = None
        self._lock = threading.Lock()

    @property
    def are_under_way(self) -> bool:
        """Whether a probe is running."""
        return bool(self.under_way.refs)

    def are_awaited(self, alive_at: float) -> bool:
        """Whether a probe is running, and the server has sent nothing since it began."""
        return any(probe.since > alive_at for probe in self.under_way)

    def begin(self, stale: float, connecting_since: float = 0.0) -> Probe | None:
        """Begin a probe; None while an earlier one, or a draw's new connection, is awaited.

        Each running probe doubles the wait for the next one, so that a server that is too busy for new connections
        gets no more work.

        Args:
            stale: seconds after which the first probe no longer delays the next one.
            connecting_since: when a draw began to open a connection; 0 if none does.
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
        """Whether a probe's failure counts: the server has sent nothing since, and no later probe may be answered."""
        with self._lock:
            others = list(self.under_way)
            return probe in others and probe.since >= max(alive_at, *(p.since for p in others))

    def answered(self, probe: Probe) -> None:
        """Record an answer: this probe and older ones are no longer awaited."""
        with self._lock:
            for other in self.under_way:
                if other.since <= probe.since:
                    self.under_way.discard(other)

    def ended(self, probe: Probe) -> None:
        """Record the end of a probe, whatever its result."""
        self.under_way.discard(probe)
