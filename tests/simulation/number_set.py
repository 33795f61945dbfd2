"""A set of numbers that come in long progressions: a few bytes for each hundred of them."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

__all__ = ["NumberSet"]

_CHUNK_BITS: Final = 12
_CHUNK: Final = 1 << _CHUNK_BITS


class NumberSet:
    """The numbers that were added, one bit each in chunks."""

    def __init__(self) -> None:
        self._chunks: dict[int, int] = {}

    def add(self, block: range) -> bool:
        """Add a progression; whether any of its numbers was there."""
        chunks, repeats = self._chunks, False
        first, step, end = block.start, block.step, block[-1]
        if first == end:  # most are
            chunk, bits = first >> _CHUNK_BITS, 1 << (first & _CHUNK - 1)
            there = chunks.get(chunk, 0)
            chunks[chunk] = there | bits
            return bool(there & bits)
        while first <= end:
            chunk, at = first >> _CHUNK_BITS, first & _CHUNK - 1
            n = min((end - first) // step, (_CHUNK - 1 - at) // step) + 1
            bits = _ones(n, step) << at
            there = chunks.get(chunk, 0)
            repeats = repeats or bool(there & bits)
            chunks[chunk] = there | bits
            first += n * step
        return repeats


@lru_cache(maxsize=4096)
def _ones(n: int, step: int) -> int:
    """So many bits, one in each ``step``."""
    return ((1 << n * step) - 1) // ((1 << step) - 1)
