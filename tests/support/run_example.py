"""Run a program of somebody else's whose MetaDatas all get ticket servers: ``run_example SERVERS PROGRAM [ARG ...]``.

A program that ends in ``.py`` is a file, any other one a module. What was drawn is the last line of stderr.
"""

from __future__ import annotations

import json
import runpy
import sys
from collections import Counter

from sqlalchemy import Integer, MetaData, event

from sqla_tickets import TicketPool
from sqla_tickets.events import Draw
from sqla_tickets.orm.inheritance import has_ids
from sqla_tickets.pool import attached_pools


class Ledger:
    """What the ticket servers were asked for, and which keys have no tickets.

    Args:
        servers: how many each pool has.
    """

    def __init__(self, servers: int) -> None:
        self.servers = servers
        self.tickets: Counter[str] = Counter()
        self.tables: set[str] = set()
        self.left_out: set[str] = set()
        self._pools: list[TicketPool] = []

    def serve(self, metadata: MetaData, connection: object, **kw: object) -> None:
        """Attach a pool before the tables of a MetaData are created: what `create_all` calls."""
        if not attached_pools(metadata):
            pool = TicketPool(["sqlite://"] * self.servers, stride=self.servers)
            pool.attach(metadata)
            event.listen(pool, "drawn", self.drawn)
            self._pools.append(pool)
        for pool in attached_pools(metadata).values():
            pool.create_all(metadata)
            self.tables |= pool.declared_sequences()
        self.left_out |= {
            str(column)
            for table in metadata.tables.values()
            for column in table.primary_key
            if isinstance(column.type, Integer) and not has_ids(column)
        }

    def drawn(self, draw: Draw) -> None:
        """Count an answered draw."""
        self.tickets[draw.sequence] += draw.tickets


def main() -> None:
    """Run it."""
    ledger = Ledger(int(sys.argv[1]))
    event.listen(MetaData, "before_create", ledger.serve)
    program, sys.argv = sys.argv[2], sys.argv[2:]
    try:
        if program.endswith(".py"):
            runpy.run_path(program, run_name="__main__")
        else:
            runpy.run_module(program, run_name="__main__", alter_sys=True)
    finally:
        report = {
            "tickets": ledger.tickets,
            "tables": sorted(ledger.tables),
            "left_out": sorted(ledger.left_out),
        }
        print(json.dumps(report), file=sys.stderr)


if __name__ == "__main__":
    main()
