"""The path of a sequence: its former pools and names, which its ticket tables keep in their metadata.

Each new shard runs all migrations again. By then the servers that a sequence once left may be gone, or the new pool
may have the old one's name. The path shows that the move is done.
"""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Final, TypeVar

from ..errors import TicketError
from ..tables.context import StatementContext
from ..tables.metadata import Path, Step, TableMetadata
from . import tombstones
from .handle import Servers

log = logging.getLogger(__name__)
S = TypeVar("S", bound=Servers)

#: The longest path in characters: a table's comment on MySQL has 2,048, and holds other data, too.
MAX_PATH_CHARACTERS: Final = 1000


def extended(path: Path, source: Step, target: Step) -> Path:
    """The path of a sequence after a move from ``source`` to ``target``; a move back shortens it."""
    path = path or (source,)
    path = path[: path.index(target)] if target in path else path
    path = (*path, target)
    while len(json.dumps(path)) > MAX_PATH_CHARACTERS:
        path = path[1:]
    return path


def find(pools: Iterable[S], step: Step) -> tuple[S, str] | None:
    """The present pool and name of a sequence that was once at ``step``."""
    for pool, name, path in _paths(pools):
        if step in path and (pool.name, name) != step:
            return pool, name
    return None


def has_gone(pools: Iterable[Servers], source: Step, target: Step) -> bool:
    """Whether a sequence has moved from ``source`` to ``target``, and has not moved back."""
    return any(
        (source, target) in pairwise(path) and path[-1] != source for _, _, path in _paths(pools)
    )


def _paths(pools: Iterable[S]) -> Iterator[tuple[S, str, Path]]:
    """The ticket tables that all servers of a pool have, with paths that agree."""
    for pool in pools:
        try:
            first, *others = [server.do("", _paths_of) for server in pool.servers]
        except TicketError as error:
            log.info("cannot list the ticket tables of the pool %r: %s", pool.name, error)
            continue
        for name, path in first.items():
            if all(other.get(name) == path for other in others):
                yield pool, name, path


def _paths_of(context: StatementContext) -> dict[str, Path]:
    """The recorded paths of sequences; tables with unreadable metadata are skipped."""
    found: dict[str, Path] = {}
    for name, comment in tombstones.comments(context).items():
        with contextlib.suppress(ValueError):
            metadata = TableMetadata.parse(comment)
            if metadata is not None and metadata.path:
                found[name] = metadata.path
    return found
