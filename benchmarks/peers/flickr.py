"""Flickr's ticket table (code.flickr.net, 2010), with nothing but a driver and with an ordinary Engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pymysql
from pymysql.cursors import Cursor
from sqlalchemy import create_engine, make_url, text

from benchmarks.place import Place

__all__ = ["bare_cursor", "bare_replace", "two_statements"]

_TABLE = """
CREATE TABLE IF NOT EXISTS {name} (
  id bigint(20) unsigned NOT NULL auto_increment,
  stub char(1) NOT NULL default '',
  PRIMARY KEY (id),
  UNIQUE KEY stub (stub)
) ENGINE=InnoDB
"""


@contextmanager
def two_statements(place: Place) -> Iterator[Callable[[], object]]:
    """``REPLACE INTO Tickets64 ...; SELECT LAST_INSERT_ID()``."""
    engine = create_engine(place.tickets[0], pool_size=64)
    with engine.begin() as connection:
        connection.execute(text(_TABLE.format(name="Tickets64")))

    def draw() -> object:
        with engine.begin() as connection:
            connection.execute(text("REPLACE INTO Tickets64 (stub) VALUES ('a')"))
            return connection.execute(text("SELECT LAST_INSERT_ID()")).scalar_one()

    yield draw
    engine.dispose()


@contextmanager
def bare_replace(place: Place) -> Iterator[Callable[[], int]]:
    """The first statement alone, whose answer has the id in it."""
    with bare_cursor(place) as cursor:
        cursor.execute(_TABLE.format(name="bare_replaced"))

        def draw() -> int:
            cursor.execute("REPLACE INTO bare_replaced (stub) VALUES ('a')")
            assert cursor.lastrowid
            return cursor.lastrowid

        yield draw


@contextmanager
def bare_cursor(place: Place) -> Iterator[Cursor]:
    """A cursor of PyMySQL's in autocommit on the first ticket server."""
    url = make_url(place.tickets[0])
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
