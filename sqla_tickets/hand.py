"""The blocks in hand: tickets that were drawn and not yet needed."""

from __future__ import annotations

import threading
from collections import defaultdict, deque

__all__ = ["Hand", "split"]


def split(block: range, n: int) -> tuple[range, range]:
    """The first ``n`` tickets of a block, and the rest."""
    return block[:n], block[n:]


class Hand:
    """Blocks by sequence, of one process: a fork begins with an empty hand of its own.

    Its lock is held for a few instructions, never while a server is asked.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._blocks: defaultdict[str, deque[range]] = defaultdict(deque)

    def take(self, sequence: str, n: int) -> list[range]:
        """Up to ``n`` tickets, oldest blocks first; each ticket is handed out once."""
        taken: list[range] = []
        with self._lock:
            blocks = self._blocks[sequence]
            while n and blocks:
                part, rest = split(blocks.popleft(), n)
                taken.append(part)
                n -= len(part)
                if rest:
                    blocks.appendleft(rest)
        return taken

    def put(self, sequence: str, block: range) -> None:
        """Keep what is left of a block."""
        with self._lock:
            self._blocks[sequence].append(block)

    def count(self, sequence: str) -> int:
        """How many tickets are in hand."""
        with self._lock:
            return sum(map(len, self._blocks[sequence]))

    def drop(self, sequence: str) -> None:
        """Drop the blocks of one sequence."""
        with self._lock:
            self._blocks.pop(sequence, None)
