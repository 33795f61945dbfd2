"""A spinner with the name of the slow server: on a terminal only, and separate from the results."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Generator, Iterable, Sequence
from typing import Protocol

from rich.console import Console
from rich.text import Text


class Asked(Protocol):
    """A ticket server, or a shard; its text is its name."""

    @property
    def is_asked(self) -> bool:
        """Whether a caller waits for its answer now."""
        ...


class _Names:
    """The names of the servers and shards that have not answered yet, at the moment of display."""

    def __init__(self, asked: Sequence[Asked]) -> None:
        self._asked = asked

    def __rich__(self) -> Text:
        names = ", ".join(str(each) for each in self._asked if each.is_asked)
        return Text(f"waiting for {names}" if names else "", "dim", no_wrap=True)


@contextlib.contextmanager
def spinner(asked: Iterable[Asked]) -> Generator[None]:
    """Show which server has not answered yet, until the end of the block; nothing without a terminal."""
    if not sys.stderr.isatty():
        yield
        return
    with Console(stderr=True).status(_Names(list(asked))):
        yield
