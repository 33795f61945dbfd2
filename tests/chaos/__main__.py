"""``python -m tests.chaos``: both acts on each kind of server; exit code 1 if a promise was broken."""

from __future__ import annotations

import argparse
import dataclasses
import os
import random
import shutil
import sys
import tempfile
from pathlib import Path

from sqla_tickets.dialects import LayoutName
from tests.chaos.cluster import Cluster
from tests.chaos.run import Settings, mistakes, outages
from tests.chaos.table import text_of
from tests.chaos.workloads import SEQUENCES
from tests.support.servers import MySQLLike, ServerRegistry

ACTS = {"outages": outages, "mistakes": mistakes}
#: Of the seconds given, how many the mistakes take.
SHARE_OF_MISTAKES = 0.25
#: Where the servers' data are, unless TMPDIR says otherwise, and how many bytes have to be free there.
MEMORY, ROOM = Path("/dev/shm"), 4 * 2**30


def main() -> int:
    given = _arguments()
    _share_no_disk()
    seed = random.randrange(2**32) if given.seed is None else given.seed
    settings = Settings(
        given.seconds, seed, pace=given.pace, only=frozenset(given.only), keep=given.keep
    )
    print(f"seed {seed}", flush=True)
    kinds, broken = given.servers.split(","), 0
    server_registry = ServerRegistry(kinds)
    try:
        for kind in kinds:
            broken += run(
                server_registry, kind, _layouts(given.layouts), given.acts.split(","), settings
            )
    finally:
        server_registry.close()
    return 1 if broken else 0


def run(
    server_registry: ServerRegistry,
    kind: str,
    layouts: list[LayoutName],
    acts: list[str],
    settings: Settings,
) -> int:
    """Both acts on two servers of one kind; returns how many promises were broken."""
    new = {"mariadb": server_registry.new_mariadb, "mysql": server_registry.new_mysql}[kind]
    servers: list[MySQLLike] = [new(), new()]
    shares = {"outages": 1 - SHARE_OF_MISTAKES, "mistakes": SHARE_OF_MISTAKES}
    whole = sum(shares[act] for act in acts)
    broken = 0
    for name in acts:
        cluster = Cluster(servers, layouts)
        seconds = settings.seconds * shares[name] / whole
        act = ACTS[name](cluster, dataclasses.replace(settings, seconds=seconds))
        cluster.close()
        print(text_of(act), flush=True)
        broken += len(act.broken)
    for server in servers:
        server_registry.end(server)
    return broken


def _share_no_disk() -> None:
    """No two ticket servers share a disk: to copy the data of one would keep the other's flushes waiting for seconds."""
    if "TMPDIR" not in os.environ and MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > ROOM:
        tempfile.tempdir = os.environ["TMPDIR"] = str(MEMORY)


def _layouts(names: str) -> list[LayoutName]:
    return [layout for layout in SEQUENCES if layout in names.split(",")]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="for each kind of server")
    parser.add_argument("--servers", default="mariadb", help="mariadb,mysql")
    parser.add_argument("--layouts", default="replace,counter")
    parser.add_argument("--acts", default="outages,mistakes")
    parser.add_argument("--only", action="append", default=[], metavar="NEMESIS")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--pace", type=float, default=0.02, help="seconds between two draws")
    parser.add_argument("--keep", action="store_true", help="keep the journals")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
