"""A Galera cluster of MariaDB: processes of this machine that agree on every commit."""

from __future__ import annotations

import contextlib
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pymysql

from tests.support.servers.base import ServerFailed, ServerMissing, wait_until
from tests.support.servers.binaries import find_program
from tests.support.servers.mariadb import MariaDB, MariaDBTemplate
from tests.support.servers.ports import free_port
from tests.support.servers.process import unprivileged
from tests.support.servers.reaper import Reaper

_LIBRARIES = ("/usr/lib/galera/libgalera_smm.so", "/usr/lib64/galera-4/libgalera_smm.so")
# A node that keeps silent is left out after seconds, not after a quarter of a minute as by default.
_PROVIDER = {
    "evs.suspect_timeout": "PT2S",
    "evs.inactive_timeout": "PT4S",
    "evs.keepalive_period": "PT0.5S",
    "evs.inactive_check_period": "PT0.3S",
    "gcache.size": "8M",
}


class GaleraNode(MariaDB):
    """One node of a cluster.

    Attributes:
        group_port: where the other nodes find it.
    """

    def __init__(self, reaper: Reaper, template: MariaDBTemplate, number: int) -> None:
        self._library = _library()
        self._number = number
        self._peers: Sequence[GaleraNode] = ()
        self._position: list[str] = []
        self.group_port, self._transfer_ports = free_port(), (free_port(), free_port())
        super().__init__(reaper, template, owner=unprivileged("mysql", "a Galera cluster"))

    def join(self, nodes: Sequence[GaleraNode]) -> None:
        """Be one of these."""
        self._peers = [node for node in nodes if node is not self]

    def start(self) -> None:
        """Join those that run, or begin the cluster anew where none does; wait until it is in sync."""
        if self.alive:
            return
        self._position = self._recovered() if self._has_run else []
        super().start()

    def forget(self) -> None:
        """When it is started again, be sent everything: what it has is not what the others have."""
        (self.data / "grastate.dat").unlink()

    def answers(self) -> bool:
        return self.state == "Synced"

    def revive(self) -> None:
        super().revive()
        wait_until(self.answers, self._death)

    @property
    def state(self) -> str | None:
        """What it says of itself: ``"Synced"`` is well; None when it cannot be asked."""
        return self.status("wsrep_local_state_comment")

    @property
    def size(self) -> int:
        """How many nodes it thinks there are; 0 when it cannot be asked."""
        return int(self.status("wsrep_cluster_size") or 0)

    def status(self, name: str) -> str | None:
        """A status variable; None when it cannot be asked."""
        with contextlib.suppress(pymysql.err.MySQLError), self.administrator() as cursor:
            cursor.execute("SHOW GLOBAL STATUS LIKE %s", [name])
            row = cursor.fetchone()
            return str(row[1]) if row else None
        return None

    def command(self) -> list[str]:
        running = [peer for peer in self._peers if peer.alive]
        return [*super().command(), *self._cluster_options(running), *self._position]

    def _cluster_options(self, running: Sequence[GaleraNode]) -> list[str]:
        peers = ",".join(f"{self.host}:{peer.group_port}" for peer in running)
        increments, snapshots = self._transfer_ports
        provider = {
            **_PROVIDER,
            "gmcast.listen_addr": f"tcp://{self.host}:{self.group_port}",
            "ist.recv_addr": f"{self.host}:{increments}",
        }
        return [
            "--wsrep-on=ON",
            f"--wsrep-provider={self._library}",
            f"--wsrep-provider-options={';'.join(f'{k}={v}' for k, v in provider.items())}",
            "--wsrep-cluster-name=tickets",
            f"--wsrep-cluster-address=gcomm://{peers}",
            f"--wsrep-node-address={self.host}:{self.group_port}",
            f"--wsrep-node-name=node{self._number}",
            "--wsrep-sst-method=rsync",
            f"--wsrep-sst-receive-address={self.host}:{snapshots}",
            "--binlog-format=ROW",
            "--innodb-autoinc-lock-mode=2",
            *([] if running else ["--wsrep-new-cluster"]),
        ]

    @property
    def _has_run(self) -> bool:
        return (self.data / "grastate.dat").exists()

    def _recovered(self) -> list[str]:
        """Find out, as its service does, which commit it has come to, so as to be sent the rest only."""
        # not restarted from whatever members it knew: the options say which ones there are
        (self.data / "gvwstate.dat").unlink(missing_ok=True)
        grastate = self.data / "grastate.dat"
        grastate.write_text(
            re.sub("safe_to_bootstrap: 0", "safe_to_bootstrap: 1", grastate.read_text())
        )
        done = subprocess.run(
            [*super().command(), *self._cluster_options(()), "--wsrep-recover"],
            capture_output=True,
            text=True,
            user=self._owner,
        )
        found = re.search(r"Recovered position:\s*(\S+:-?\d+)", done.stdout + done.stderr)
        if found is None:
            raise ServerFailed(f"no position was recovered: {done.stdout}{done.stderr}"[-2000:])
        return [f"--wsrep-start-position={found[1]}"]


class Galera:
    """A cluster of some nodes.

    Attributes:
        nodes: its nodes, which are not started yet.
    """

    def __init__(self, reaper: Reaper, template: MariaDBTemplate, size: int = 3) -> None:
        self.nodes = [GaleraNode(reaper, template, number) for number in range(size)]
        for node in self.nodes:
            node.join(self.nodes)

    def wait_for_size(self, size: int) -> None:
        """Wait until every node that answers counts so many."""
        counting = [node for node in self.nodes if node.alive and not node.frozen]
        wait_until(lambda: all(node.size == size for node in counting), lambda: None)


def _library() -> Path:
    find_program(["wsrep_sst_rsync"], "install MariaDB (Debian: apt-get install mariadb-server)")
    find_program(["rsync"], "a node sends its data to another one with it: install rsync")
    for library in map(Path, _LIBRARIES):
        if library.exists():
            return library
    raise ServerMissing(f"{_LIBRARIES[0]} was not found: install Galera (Debian: galera-4)")
