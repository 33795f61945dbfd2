"""What a part of the work is given, and what it does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from benchmarks.harness import Comparison
from benchmarks.scale import Scale
from benchmarks.testbed import Testbed

__all__ = ["Part", "Work"]

Work = Callable[[Testbed, Scale], Iterator[Comparison]]


@dataclass(frozen=True)
class Part:
    """One kind of work, selectable by its name.

    Attributes:
        name: for ``--parts``.
        about: one line for ``--help``.
        work: yields the comparisons of one place, each as soon as it is made.
        kinds: the servers that it makes sense on.
        by_default: whether it is done when no parts are named.
    """

    name: str
    about: str
    work: Work
    kinds: tuple[str, ...] = ("mariadb", "mysql", "postgresql", "sqlite")
    by_default: bool = True
