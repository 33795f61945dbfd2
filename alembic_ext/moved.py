"""Sequences that have moved since a migration was written, which matters when it runs for another shard."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TypeVar

from alembic.util import CommandError

from sqla_tickets import TicketError, TicketPool, TicketTableMoved
from sqla_tickets.maintenance import redirect_paths
from sqla_tickets.tables.metadata import Step

from .base import TicketTableOp
from .configuration import Pools, pool_named, possible_names

Result = TypeVar("Result")
log = logging.getLogger("alembic.sqla_tickets")


def find_moved(pools: Pools, op: TicketTableOp) -> tuple[TicketPool, str] | None:
    """The present pool and name of a sequence, by its tables' metadata; None if it has not moved."""
    for pool_name in possible_names(pools, op.pool):
        found = redirect_paths.find(pools.values(), (pool_name, op.name))
        if found is not None:
            here, there = _said((pool_name, op.name)), _said((found[0].name, found[1]))
            log.info("the sequence %s is now %s", here, there)
            return found
    return None


def where_it_is(pools: Pools, op: TicketTableOp, do: Callable[[TicketPool, str], Result]) -> Result:
    """Call ``do`` with the present pool and name of an operation's sequence."""
    try:
        return _along_tombstones(pools, op, do)
    except (CommandError, TicketError):
        # the servers that it has left may be gone, or their pool's name
        found = find_moved(pools, op)
        if found is None:
            raise
        return do(*found)


def _along_tombstones(
    pools: Pools, op: TicketTableOp, do: Callable[[TicketPool, str], Result]
) -> Result:
    pool, name = pool_named(pools, op.pool), op.name
    been = set[Step]()
    while True:
        been.add((pool.name, name))
        try:
            return do(pool, name)
        except TicketTableMoved as moved:
            if (moved.pool, moved.sequence) in been:
                raise
            pool, name = pool_named(pools, moved.pool), moved.sequence


@contextmanager
def unless_moved(
    pools: Pools, op: TicketTableOp, *, to: str | None, new_name: str
) -> Generator[None]:
    """Log that a move or a rename is done; suppress the error of repeating one that an earlier run has finished.

    Args:
        pools: the pools of the migration.
        op: the operation.
        to: the pool that gets the sequence; None if it stays.
        new_name: its name from now on.
    """
    steps = [((name, op.name), (to or name, new_name)) for name in possible_names(pools, op.pool)]
    try:
        yield
        source, target = steps[-1]
        log.info("%s has become %s", _said(source), _said(target))
    except (CommandError, TicketError):
        for source, target in steps:
            if redirect_paths.has_gone(pools.values(), source, target):
                log.info("nothing to do: %s has already become %s", _said(source), _said(target))
                return
        raise


def _said(step: Step) -> str:
    """A pool and a sequence in a message."""
    pool, sequence = step
    return f"{sequence!r} of the pool {pool!r}"
