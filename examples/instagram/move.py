"""Moving a logical shard to another server while the site goes on.

    PYTHONPATH=examples python -m instagram.move 5 postgresql+psycopg://.../app postgresql+psycopg://.../app

At any moment at most one server has the shard's schema under its name, so no request can write to the wrong one,
whatever it believes. In between there is none, for some milliseconds: requests ask again.

1. The target gets everything under another name, while the shard's writers wait, and commits.
2. The source's schema is renamed. From here on the source has no such shard.
3. The target waits until its clock is past the last id of the source. Then its schema is renamed.
4. What is left on the source is dropped.

A move that died is started once more with the same arguments: it goes on, or begins anew.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, text
from sqlalchemy.exc import OperationalError

from instagram.shards import create_in, function_of
from instagram.site import Base, schema_of
from sqla_tickets import INSTAGRAM

__all__ = ["CannotMove", "move"]

#: Milliseconds that the target may be behind the last id of the source: nobody can write meanwhile.
BEHIND = 1000
#: Shorter than PostgreSQL's deadlock_timeout, so that it is the move that gives way to a writer.
LOCK_TIMEOUT = "500ms"
#: PostgreSQL's code for a lock that was not to be had in that time.
NO_LOCK = "55P03"
#: The first number of the advisory locks.
LOCK = 4711
TABLES = [table.name for table in Base.metadata.sorted_tables]


class CannotMove(Exception):
    """The shard stays where it is."""


def move(shard: int, source: Engine, target: Engine, tries: int = 20) -> None:
    """Move a logical shard.

    Raises:
        CannotMove: it is not on the source, or on both, or on its way already; the clocks are too far apart, or its
            writers leave no gap.
    """
    with _alone(shard, source):
        _move(shard, source, target, tries)


def _move(shard: int, source: Engine, target: Engine, tries: int) -> None:
    schema = schema_of(shard)
    if _has(source, schema):
        if _has(target, schema):
            raise CannotMove(f"{target.url!r} has a {schema}, too: which of them is the right one?")
        _depart(shard, source, target, tries)
    elif not _has(source, f"{schema}_left"):
        raise CannotMove(f"{source.url!r} has no {schema}: is it on {target.url!r} already?")
    if not _has(target, schema):
        _arrive(shard, source, target)
    _forget(source, shard, f"{schema}_left")


@contextmanager
def _alone(shard: int, source: Engine) -> Iterator[None]:
    """Let no other move of the shard begin: it would take this one's copy for that of one that died."""
    numbers = {"what": LOCK, "shard": shard}
    with source.connect() as connection:
        if not connection.scalar(text("SELECT pg_try_advisory_lock(:what, :shard)"), numbers):
            raise CannotMove(f"{schema_of(shard)} is being moved away from {source.url!r} already")
        try:
            yield
        finally:
            connection.execute(text("SELECT pg_advisory_unlock(:what, :shard)"), numbers)


def _has(server: Engine, schema: str) -> bool:
    found = text("SELECT count(*) FROM pg_namespace WHERE nspname = :name")
    with server.connect() as connection:
        return bool(connection.scalar(found, {"name": schema}))


# [depart]
def _depart(shard: int, source: Engine, target: Engine, tries: int) -> None:
    """Copy everything while writers wait, and take the shard away from the source."""
    schema = schema_of(shard)
    _forget(target, shard, f"{schema}_arriving")  # of one that died half-way
    refused: OperationalError | None = None
    for _ in range(tries):
        try:
            with source.begin() as here:  # commits the last of all
                here.execute(text(f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT}'"))
                tables = ", ".join(f"{schema}.{table}" for table in TABLES)
                here.execute(text(f"LOCK TABLE {tables} IN EXCLUSIVE MODE"))
                with target.begin() as there:
                    _copy(shard, here, there)
                here.execute(text(f"ALTER SCHEMA {schema} RENAME TO {schema}_left"))
        except OperationalError as error:
            if getattr(error.orig, "sqlstate", "") != NO_LOCK:  # a commit may have come through
                raise
            refused = error
            time.sleep(0.2)
        else:
            return
    raise CannotMove(f"{schema} is never without a writer on {source.url!r}") from refused


def _copy(shard: int, here: Connection, there: Connection) -> None:
    schema, sequence = schema_of(shard), f"{function_of(shard).name}_seq"
    behind = _last_tick(here, schema) - _clock(there)
    if behind > BEHIND:
        raise CannotMove(
            f"the clock of {there.engine.url!r} is {behind} ms behind the last id of {schema}: expected at most"
            f" {BEHIND}. Set the clocks of both servers, then try again"
        )
    create_in(there, shard, f"{schema}_arriving")
    for table in TABLES:
        _pipe(here, f"{schema}.{table}", there, f"{schema}_arriving.{table}")
    last = here.scalar(text(f"SELECT last_value FROM {sequence}"))
    there.execute(text("SELECT setval(:name, :last)"), {"name": sequence, "last": last})


def _pipe(here: Connection, rows_of: str, there: Connection, into: str) -> None:
    with (
        _cursor(here) as reading,
        _cursor(there) as writing,
        reading.copy(f"COPY {rows_of} TO STDOUT (FORMAT binary)") as out,
        writing.copy(f"COPY {into} FROM STDIN (FORMAT binary)") as in_,
    ):
        for data in out:
            in_.write(data)


def _cursor(connection: Connection) -> Any:
    return connection.connection.cursor()


# [arrive]
def _arrive(shard: int, source: Engine, target: Engine) -> None:
    """Let the shard appear on the target, when no id that it makes can be one that the source has made."""
    schema = schema_of(shard)
    with source.connect() as here, target.begin() as there:
        last = _last_tick(here, f"{schema}_left")
        for table in TABLES:
            left, arrived = (
                _rows(here, f"{schema}_left.{table}"),
                _rows(there, f"{schema}_arriving.{table}"),
            )
            if left != arrived:
                raise CannotMove(
                    f"{schema}_left.{table} has {left} rows, {schema}_arriving.{table} {arrived}"
                )
        while (now := _clock(there)) <= last:
            time.sleep((last - now + 1) / 1000)
        there.execute(text(f"ALTER SCHEMA {schema}_arriving RENAME TO {schema}"))


def _rows(connection: Connection, table: str) -> int:
    return int(connection.scalar(text(f"SELECT count(*) FROM {table}")) or 0)


def _last_tick(connection: Connection, schema: str) -> int:
    """The latest millisecond of which the server can have made an id: its clock may have been set back since."""
    latest = connection.scalar(text(f"SELECT max(id) FROM {schema}.likes")) or 0
    stored = (latest >> INSTAGRAM.node + INSTAGRAM.sequence) + INSTAGRAM.epoch
    return max(stored, _clock(connection))


def _clock(connection: Connection) -> int:
    """A server's clock in milliseconds since 1970."""
    now = text("SELECT CAST(floor(extract(epoch FROM clock_timestamp()) * 1000) AS bigint)")
    return int(connection.scalar(now) or 0)


def _forget(server: Engine, shard: int, schema: str) -> None:
    function = function_of(shard).name
    with server.begin() as connection:
        connection.execute(text(f"DROP SCHEMA IF EXISTS {schema} CASCADE"))
        connection.execute(text(f"DROP FUNCTION IF EXISTS {function}()"))
        connection.execute(text(f"DROP SEQUENCE IF EXISTS {function}_seq"))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("shard", type=int)
    parser.add_argument("source")
    parser.add_argument("target")
    chosen = parser.parse_args()
    move(chosen.shard, create_engine(chosen.source), create_engine(chosen.target))


if __name__ == "__main__":
    main()
