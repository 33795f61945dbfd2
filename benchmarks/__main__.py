"""``python -m benchmarks``: every comparison on every server that this machine has."""

from __future__ import annotations

import argparse
import random
from contextlib import closing

from sqlalchemy import create_engine, text

from benchmarks import draws, harness, inserts
from sqla_tickets import TicketPool
from tests.servers import Fleet
from tests.servers.base import Server, ServerMissing


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks", description=__doc__)
    parser.add_argument("--servers", default="mysql,mariadb", help="kinds (default: %(default)s)")
    kinds = parser.parse_args().servers.split(",")
    seed = random.randrange(2**32)
    random.seed(seed)
    print(f"{harness.machine()}; seed {seed}")
    with closing(Fleet(kinds)) as fleet:
        for kind in kinds:
            try:
                servers = [getattr(fleet, kind)(number) for number in range(2)]
            except ServerMissing as missing:
                print(f"\n{kind}: left out: {missing}")
            else:
                _run(kind, servers)


def _run(kind: str, servers: list[Server]) -> None:
    for server in servers:
        for database in ("bench_tickets", "bench_app"):
            server.create_database(database)
    print(f"\n## {kind} {_version(servers[0])}")
    with TicketPool([server.url("bench_tickets") for server in servers]) as pool:
        draws.run(kind, pool)
        pool.create_table("photos")
        inserts.run(kind, pool, servers[0].url("bench_app"))


def _version(server: Server) -> str:
    engine = create_engine(server.url("bench_app"))
    with engine.connect() as connection:
        found = connection.execute(text("SELECT VERSION()")).scalar_one()
    engine.dispose()
    return str(found)


if __name__ == "__main__":
    main()
