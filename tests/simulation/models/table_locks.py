"""Locks of tables: who waits for whom, by the two matrices that each kind of server has.

A request is granted if no *granted* lock of another session excludes it, and no *pending* request has priority over it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

__all__ = ["Matrix", "TableLock", "TableWait"]

#: For each mode that is asked for, the modes that keep it waiting.
Matrix = Mapping[str, frozenset[str]]


class TableWait:
    """A request for a lock that was not granted at once."""

    __slots__ = ("is_granted", "lock", "mode", "session")

    def __init__(self, lock: TableLock, session: object, mode: str) -> None:
        self.lock, self.session, self.mode, self.is_granted = lock, session, mode, False

    def blockers(self) -> Iterator[object]:
        """The sessions that it waits for."""
        excluded = self.lock.granted_first[self.mode]
        for session, modes in self.lock.granted.items():
            if session is not self.session and not excluded.isdisjoint(modes):
                yield session
        first = self.lock.pending_first[self.mode]
        for wait in self.lock.waits_before(self):
            if wait.mode in first:
                yield wait.session


class TableLock:
    """The lock of one table.

    Attributes:
        granted: the modes that each session holds, the latest last.
        waits: in the order of their beginning.
        granted_first: the modes that exclude a mode while they are held.
        pending_first: the modes that exclude a mode while they are waited for.
        is_fair: whether only those that wait for longer can have priority.
    """

    def __init__(
        self, granted_first: Matrix, pending_first: Matrix, *, is_fair: bool = False
    ) -> None:
        self.granted_first, self.pending_first = granted_first, pending_first
        self.is_fair = is_fair
        self.granted: dict[object, list[str]] = {}
        self.waits: list[TableWait] = []

    def request(self, session: object, mode: str) -> TableWait | None:
        """Take the lock; or the wait for it, which `TableWait.is_granted` ends."""
        if self._can_have(session, mode, None):
            self.granted.setdefault(session, []).append(mode)
            return None
        wait = TableWait(self, session, mode)
        self.waits.append(wait)
        return wait

    def _can_have(self, session: object, mode: str, asks: TableWait | None) -> bool:
        held = self.granted.get(session, ())
        if mode in held:
            return True
        if len(self.granted) > bool(held):
            excluded = self.granted_first[mode]
            for other, modes in self.granted.items():
                if other is not session and not excluded.isdisjoint(modes):
                    return False
        if not self.waits or (self.is_fair and held):
            return True
        first = self.pending_first[mode]
        return not any(wait.mode in first for wait in self.waits_before(asks))

    def waits_before(self, asks: TableWait | None) -> Iterator[TableWait]:
        """The requests that can have priority over one; None is one that does not wait yet."""
        for wait in self.waits:
            if wait is not asks:
                yield wait
            elif self.is_fair:
                return

    def withdraw(self, wait: TableWait) -> bool:
        """Give a request up; whether others may go on now."""
        if wait in self.waits:
            self.waits.remove(wait)
        return self._serve()

    def release(self, session: object, mode: str | None = None) -> bool:
        """Give up one mode, or all, that a session holds; whether others may go on now."""
        modes = self.granted.get(session)
        if modes is None:
            return False
        if mode is not None:
            modes.remove(mode)
        if mode is None or not modes:
            del self.granted[session]
        return bool(self.waits) and self._serve()

    def _serve(self) -> bool:
        served = False
        for wait in list(self.waits):
            if self._can_have(wait.session, wait.mode, wait):
                self.waits.remove(wait)
                self.granted.setdefault(wait.session, []).append(wait.mode)
                wait.is_granted = served = True
        return served

    @property
    def is_unused(self) -> bool:
        """Whether nobody holds it or waits for it."""
        return not self.granted and not self.waits
