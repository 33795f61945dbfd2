"""Flickr's ticket table (code.flickr.net, 2010), with nothing but a driver and with an ordinary Engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import cycle

import pymysql
from pymysql.cursors import Cursor
from sqlalchemy import create_engine, make_url, text

from benchmarks.testbed import Testbed

__all__ = ["bare_cursor", "bare_replace", "bare_replaces", "two_statements"]

_TABLE = """
CREATE TABLE IF NOT EXISTS {name} (
  id bigint(20) unsigned NOT NULL auto_increment,
  stub char(1) NOT NULL default '',
  PRIMARY KEY (id),
  UNIQUE KEY stub (stub)
) ENGINE=InnoDB
"""


@contextmanager
def two_statements(testbed: Testbed) -> Iterator[Callable[[], object]]:
    """``REPLACE INTO Tickets64 ...; SELECT LAST_INSERT_ID()``."""
    engine = create_engine(testbed.tickets[0], pool_size=64)
    with engine.begin() as connection:
        connection.execute(text(_TABLE.format(name="Tickets64")))

    def draw() -> object:
        with engine.begin() as connection:
            connection.execute(text("REPLACE INTO Tickets64 (stub) VALUES ('a')"))
            return connection.execute(text("SELECT LAST_INSERT_ID()")).scalar_one()

    yield draw
    engine.dispose()


@contextmanager
def bare_replace(testbed: Testbed) -> Iterator[Callable[[], int]]:
    """The first statement alone, whose answer has the id in it, on the first server."""
    with bare_cursor(testbed) as cursor:
        cursor.execute(_TABLE.format(name="bare_replaced"))
        yield partial(_replace, cursor)


@contextmanager
def bare_replaces(testbed: Testbed) -> Iterator[Callable[[], int]]:
    """The same on both servers in turn, as Flickr's clients asked them."""
    with bare_cursor(testbed, 0) as first, bare_cursor(testbed, 1) as second:
        for cursor in (first, second):
            cursor.execute(_TABLE.format(name="bare_replaced"))
        cursors = cycle((first, second))
        yield lambda: _replace(next(cursors))


def _replace(cursor: Cursor) -> int:
    cursor.execute("REPLACE INTO bare_replaced (stub) VALUES ('a')")
    assert cursor.lastrowid
    return cursor.lastrowid


@contextmanager
def bare_cursor(testbed: Testbed, server: int = 0) -> Iterator[Cursor]:
    """A cursor of PyMySQL's in autocommit on one of the ticket servers."""
    url = make_url(testbed.tickets[server])
    connection = pymysql.connect(
        host=url.host,
        port=url.port or 3306,
        user=url.username,
        password=str(url.password or ""),
        database=url.database,
        autocommit=True,
    )
    with connection, connection.cursor() as cursor:
        yield cursor
