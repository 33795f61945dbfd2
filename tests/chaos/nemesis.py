"""What is done to ticket servers: each a context, which begins to hurt when entered and ends when left.

`OUTAGES` are what the design promises to hide. `MISTAKES` are made by a person, and last until a
person repairs the tables: `Cluster.repair`.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path

import pymysql

from tests.chaos.cluster import DATABASE, Cluster, Target
from tests.support.draws import kill_connections, setting
from tests.support.servers import PASSWORD, USER, MySQLLike
from tests.support.tcp_proxy import Fault

__all__ = ["MISTAKES", "NOTICED", "OUTAGES", "Nemesis", "all_killed", "cannot", "name_of"]

Nemesis = Callable[[Cluster, Target, random.Random], AbstractContextManager[None]]


def name_of(nemesis: Nemesis) -> str:
    """What the report calls it."""
    return getattr(nemesis, "__name__", "?").replace("_", " ")


# -- outages: the server


@contextmanager
def killed(cluster: Cluster, target: Target, chooser: random.Random) -> Iterator[None]:
    """SIGKILL, as in a power cut."""
    target.server.kill()
    yield
    target.server.start()


@contextmanager
def all_killed(cluster: Cluster, target: Target, chooser: random.Random) -> Iterator[None]:
    """No server is left: draws fail, at once, until one is back."""
    for each in cluster.targets:
        each.server.kill()
    yield
    for each in cluster.targets:
        each.server.start()


@contextmanager
def stopped(cluster: Cluster, target: Target, chooser: random.Random) -> Iterator[None]:
    """A clean shut-down."""
    target.server.stop()
    yield
    target.server.start()


@contextmanager
def frozen(cluster: Cluster, target: Target, chooser: random.Random) -> Iterator[None]:
    """SIGSTOP: connections stay open, new ones are accepted, and nothing answers."""
    target.server.freeze()
    yield
    target.server.thaw()


# -- outages: the line


@contextmanager
def slow_line(cluster: Cluster, target: Target, chooser: random.Random) -> Iterator[None]:
    with _misbehaving(target, Fault("delay", chooser.choice((0.03, 0.3, 3.0)))):
        yield


@contextmanager
def frozen_line(cluster: Cluster, target: Target, chooser: random.Random) -> Iterator[None]:
    """Everything is dropped, as by a firewall."""
    with _misbehaving(target, Fault("drop")):
        yield


@contextmanager
def close_mid_reply(cluster: Cluster, target: Target, chooser: random.Random) -> Iterator[None]:
    """Each connection ends in the middle of its next reply: the ticket was issued, and is lost."""
    with _misbehaving(target, Fault("cut")):
        yield


@contextmanager
def half_a_packet(cluster: Cluster, target: Target, chooser: random.Random) -> Iterator[None]:
    """The first half of the next reply, and then silence."""
    with _misbehaving(target, Fault("half")):
        yield


@contextmanager
def refused(cluster: Cluster, target: Target, chooser: random.Random) -> Iterator[None]:
    """Connections are reset, and new ones refused."""
    with _misbehaving(target, Fault("refuse")):
        yield


@contextmanager
def _misbehaving(target: Target, fault: Fault) -> Iterator[None]:
    target.proxy.do(fault)
    try:
        yield
    finally:
        target.proxy.do(Fault())


# -- outages: the server's settings and limits


@contextmanager
def read_only(cluster: Cluster, target: Target, chooser: random.Random) -> Iterator[None]:
    """The server was demoted."""
    with setting(target.server, read_only=1):
        yield


@contextmanager
def other_increments(cluster: Cluster, target: Target, chooser: random.Random) -> Iterator[None]:
    """A cluster, or a lost ``my.cnf``, has changed what new connections number by."""
    increment = chooser.choice((1, 3, 7, 10))
    offset = chooser.randint(1, increment)
    with setting(target.server, auto_increment_increment=increment, auto_increment_offset=offset):
        kill_connections(target.server, target.url)
        yield
    kill_connections(target.server, target.url)


@contextmanager
def tables_flushed(cluster: Cluster, target: Target, chooser: random.Random) -> Iterator[None]:
    target.execute("FLUSH TABLES")
    yield
    target.execute("FLUSH TABLES")


@contextmanager
def table_locked(cluster: Cluster, target: Target, chooser: random.Random) -> Iterator[None]:
    """A backup holds the ticket tables."""
    with target.server.administrator() as cursor:
        tables = ", ".join(f"{DATABASE}.{sequence} WRITE" for sequence in target.sequences)
        cursor.execute(f"LOCK TABLES {tables}")
        yield


@contextmanager
def connections_killed(cluster: Cluster, target: Target, chooser: random.Random) -> Iterator[None]:
    kill_connections(target.server, target.url)
    yield
    kill_connections(target.server, target.url)


@contextmanager
def max_connections_reached(
    cluster: Cluster, target: Target, chooser: random.Random
) -> Iterator[None]:
    """Clients that are connected are cut off, and those who come first take all places."""
    with target.server.administrator() as cursor, ExitStack() as held:
        cursor.execute("SELECT @@GLOBAL.max_connections")
        ((before,),) = cursor.fetchall()
        cursor.execute("SET GLOBAL max_connections = 10")
        cursor.execute(f"SELECT id FROM information_schema.processlist WHERE db = '{DATABASE}'")
        for (connection,) in cursor.fetchall():  # with this cursor: there is room for no other
            with suppress(pymysql.err.OperationalError):  # it has ended by itself
                cursor.execute(f"KILL {connection}")
        with suppress(pymysql.err.OperationalError):  # 1040: too many connections
            while True:
                held.enter_context(_connect(target.server))
        try:
            yield
        finally:
            cursor.execute(f"SET GLOBAL max_connections = {before}")


@contextmanager
def disk_full(cluster: Cluster, target: Target, chooser: random.Random) -> Iterator[None]:
    """The data is moved to a small file system, which is then filled to the last byte."""
    server = target.server
    data = server.data
    assert data is not None
    aside = data.with_name("data-aside")
    server.stop()
    data.rename(aside)
    data.mkdir()
    # it needs room to start
    size = sum(file.stat().st_size for file in aside.rglob("*") if file.is_file()) + (48 << 20)
    _command("mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(data))
    unmount = server.promise(["umount", "--lazy", str(data)])
    _copy(aside, data)
    server.start()
    filler = data / "filler"
    with suppress(OSError), filler.open("wb", buffering=0) as file:
        while file.write(b"\0" * 4096):
            pass
    yield
    filler.unlink()
    server.kill()  # it may wait for room for a minute
    shutil.rmtree(aside)
    _copy(data, aside)
    _command("umount", str(data))
    server.withdraw(unmount)
    data.rmdir()
    aside.rename(data)
    server.start()


def _connect(server: MySQLLike) -> pymysql.Connection[pymysql.cursors.Cursor]:
    return pymysql.connect(host=server.host, port=server.port, user=USER, password=PASSWORD)


def _copy(folder: Path, to: Path) -> None:
    # its owner, too; and all of the redo log, which a full disk must not make the server lose
    _command("cp", "-aT", "--sparse=never", str(folder), str(to))


def _command(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True)


OUTAGES: tuple[Nemesis, ...] = (
    killed,
    all_killed,
    stopped,
    frozen,
    slow_line,
    frozen_line,
    close_mid_reply,
    half_a_packet,
    refused,
    read_only,
    other_increments,
    tables_flushed,
    table_locked,
    connections_killed,
    max_connections_reached,
    disk_full,
)


# -- mistakes


@contextmanager
def altered_lower(cluster: Cluster, target: Target, chooser: random.Random) -> Iterator[None]:
    """``ALTER TABLE ... AUTO_INCREMENT`` while the row is there; a counter row is set back by far.

    Of two draws at once, the one with the lower ticket may be the last to replace the row. So one more
    draw, which nobody is beside, makes the row the greatest ticket, below which InnoDB sets no counter.
    """
    back = 2 * chooser.choice((50_000, 500_000))
    for sequence in target.sequences:
        if _is_counter(sequence):
            first = target.number  # and not GREATEST: unsigned numbers have none below 0
            target.execute(
                f"UPDATE {sequence} SET id = IF(id > {back + first}, id - {back}, {first})"
            )
        else:
            target.execute(
                f"LOCK TABLES {sequence} WRITE",
                f"REPLACE INTO {sequence} (stub) VALUES ('a')",
                f"ALTER TABLE {sequence} AUTO_INCREMENT = 1",
                "UNLOCK TABLES",
            )
    yield


@contextmanager
def emptied_and_lowered(cluster: Cluster, target: Target, chooser: random.Random) -> Iterator[None]:
    """The row is deleted, and the counter set to a number that was issued a moment ago.

    The one mistake that may go unnoticed: another process may draw a number before the one that drew
    it first has seen that it was lowered, and the marks lag behind by some seconds.
    """
    for sequence in target.sequences:
        low = max(1, target.last_ticket(sequence) - 2 * chooser.choice((10, 500)))
        if _is_counter(sequence):
            low += (target.number - low) % 2
            target.execute(
                f"DELETE FROM {sequence}",
                f"INSERT INTO {sequence} (stub, id) VALUES ('c', {low})",
            )
        else:
            target.execute(
                f"LOCK TABLES {sequence} WRITE",
                f"DELETE FROM {sequence}",
                f"ALTER TABLE {sequence} AUTO_INCREMENT = {low}",
                "UNLOCK TABLES",
            )
    yield


@contextmanager
def truncated(cluster: Cluster, target: Target, chooser: random.Random) -> Iterator[None]:
    target.execute(*(f"TRUNCATE TABLE {sequence}" for sequence in target.sequences))
    yield


@contextmanager
def set_to_the_beginning(
    cluster: Cluster, target: Target, chooser: random.Random
) -> Iterator[None]:
    """The tables are as they were when they were made, as from a dump of the first day."""
    for sequence in target.sequences:
        stub = "c" if _is_counter(sequence) else "a"
        target.execute(
            f"LOCK TABLES {sequence} WRITE",
            f"DELETE FROM {sequence}",
            f"INSERT INTO {sequence} (stub, id) VALUES ('{stub}', {target.number})",
            f"ALTER TABLE {sequence} AUTO_INCREMENT = 1",
            "UNLOCK TABLES",
        )
    yield


@contextmanager
def restored_copy(cluster: Cluster, target: Target, chooser: random.Random) -> Iterator[None]:
    """The data folder is replaced by a copy that was made before its peer was told a later number."""
    server = target.server
    server.stop()
    server.copy_data()
    server.start()
    copied = {sequence: target.last_ticket(sequence) for sequence in target.sequences}
    if cluster.has_told(target, copied):
        server.stop()
        server.restore_data()
        server.start()
    yield


@contextmanager
def both_urls_on_one_server(
    cluster: Cluster, target: Target, chooser: random.Random
) -> Iterator[None]:
    """The name of one server leads to the other."""
    (other,) = (each for each in cluster.targets if each is not target)
    target.proxy.lead_to(other.server.port)
    yield
    target.proxy.lead_to(target.server.port)


#: Those after which no ticket comes twice, as the other server knows better; the others lose only what
#: was issued a moment ago, which it may not have been told yet.
NOTICED: tuple[Nemesis, ...] = (
    altered_lower,
    set_to_the_beginning,
    truncated,
    restored_copy,
    both_urls_on_one_server,
)

MISTAKES: tuple[Nemesis, ...] = (emptied_and_lowered, *NOTICED)


def _is_counter(sequence: str) -> bool:
    return sequence.endswith("counter")


def cannot(nemesis: Nemesis, server: MySQLLike) -> str | None:
    """Why this cannot be done to a server of this kind, on this machine."""
    if nemesis is not disk_full:
        return None
    if server.data is None:
        return "its data is not on this machine"
    if sys.platform != "linux" or os.geteuid() != 0:
        return "only root may mount a small file system"
    return (
        None
        if _may_mount(server.data.with_name("mount"))
        else "this machine lets nobody mount a file system"
    )


def _may_mount(there: Path) -> bool:
    there.mkdir(exist_ok=True)
    try:
        _command("mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(there))
        _command("umount", str(there))
    except (OSError, subprocess.CalledProcessError):
        return False
    return True
