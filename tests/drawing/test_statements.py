"""What each element reads, on each kind of server."""

from __future__ import annotations

import pytest
from sqlalchemy import ClauseElement, Dialect
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.dialects.mysql.mariadb import MariaDBDialect

from sqla_tickets import TicketArgumentError
from sqla_tickets.note import Note
from sqla_tickets.statements import (
    AdvanceCounter,
    CreateTicketTable,
    DropTicketTable,
    LastTicket,
    LockTicketTable,
    NoteTicketTable,
    ReplaceTicket,
    ReplaceUpTo,
    SeedTicketTable,
    UnlockTables,
    seed,
)

MYSQL: Dialect = mysql.dialect()
MARIADB: Dialect = MariaDBDialect()
POSTGRESQL: Dialect = postgresql.dialect()  # type: ignore[no-untyped-call]  # SQLAlchemy left it so
SQLITE: Dialect = sqlite.dialect()


def read(element: ClauseElement, dialect: Dialect) -> str:
    """The statement on one line."""
    return " ".join(str(element.compile(dialect=dialect)).split())


@pytest.mark.parametrize("dialect", [MYSQL, MARIADB], ids=["mysql", "mariadb"])
def test_flickrs_table(dialect: Dialect) -> None:
    assert read(CreateTicketTable("photos", stride=2, offset=1), dialect) == (
        "CREATE TABLE `photos` ( id BIGINT UNSIGNED NOT NULL AUTO_INCREMENT,"
        " stub CHAR(1) NOT NULL DEFAULT '', PRIMARY KEY (id), UNIQUE KEY stub (stub) )"
        " ENGINE=InnoDB AUTO_INCREMENT=1"
        ' COMMENT=\'sqla_tickets {"layout": "replace", "stride": 2, "offset": 1}\''
        " SELECT 1 AS id, 'a' AS stub"
    )


def test_a_counter_table_on_mysql() -> None:
    element = CreateTicketTable("photos", layout="counter", start=1001, stride=2, offset=1)
    assert read(element, MYSQL) == (
        "CREATE TABLE `photos` ( stub CHAR(1) NOT NULL PRIMARY KEY, id BIGINT UNSIGNED NOT NULL"
        " CHECK (id > 0 AND id <= 9223372036854775807) ) ENGINE=InnoDB"
        ' COMMENT=\'sqla_tickets {"layout": "counter", "stride": 2, "offset": 1}\''
        " SELECT 999 AS id, 'c' AS stub"
    )


def test_32_bits_and_an_engine() -> None:
    text = read(CreateTicketTable("photos", bits=32, engine="MyISAM", stride=2, offset=1), MYSQL)
    assert "id INT UNSIGNED NOT NULL AUTO_INCREMENT" in text
    assert "ENGINE=MyISAM" in text


def test_a_table_on_postgresql() -> None:
    assert read(CreateTicketTable("photos", stride=2, offset=1), POSTGRESQL) == (
        'CREATE TABLE "photos" ( stub CHAR(1) NOT NULL PRIMARY KEY, id BIGINT NOT NULL'
        " CHECK (id > 0 AND id <= 9223372036854775807) )"
    )
    note = Note("counter", 2, 1)
    assert read(NoteTicketTable("photos", note), POSTGRESQL) == (
        'COMMENT ON TABLE "photos" IS'
        ' \'sqla_tickets {"layout": "counter", "stride": 2, "offset": 1}\''
    )
    assert read(SeedTicketTable("photos", "counter", 1), POSTGRESQL) == (
        "INSERT INTO \"photos\" (id, stub) VALUES (1, 'c')"
    )


def test_a_table_on_sqlite() -> None:
    assert read(CreateTicketTable("photos", stride=2, offset=1), SQLITE) == (
        'CREATE TABLE "photos" ( stub CHAR(1) NOT NULL PRIMARY KEY, id BIGINT NOT NULL'
        " CHECK (id > 0 AND id <= 9223372036854775807)"
        ' /* sqla_tickets {"layout": "counter", "stride": 2, "offset": 1} */ )'
    )


@pytest.mark.parametrize("dialect", [POSTGRESQL, SQLITE], ids=["postgresql", "sqlite"])
def test_flickrs_table_needs_mysql(dialect: Dialect) -> None:
    with pytest.raises(TicketArgumentError, match=r"needs MySQL or MariaDB.*'counter'"):
        read(CreateTicketTable("photos", layout="replace", stride=2, offset=1), dialect)


def test_one_ticket_of_flickrs_table() -> None:
    element = ReplaceTicket("photos", 2, 1)
    assert read(element, MYSQL) == (
        "REPLACE /*+ SET_VAR(auto_increment_increment=2) SET_VAR(auto_increment_offset=1) */"
        " INTO `photos` (stub) VALUES ('a')"
    )
    assert read(element, MARIADB) == (
        "SET STATEMENT auto_increment_increment=2, auto_increment_offset=1"
        " FOR REPLACE INTO `photos` (stub) VALUES ('a')"
    )


def test_a_block_of_flickrs_table() -> None:
    assert read(LockTicketTable("photos"), MYSQL) == "LOCK TABLES `photos` WRITE"
    assert read(ReplaceUpTo("photos", 2, 1), MYSQL) == (
        "REPLACE /*+ SET_VAR(auto_increment_increment=2) SET_VAR(auto_increment_offset=1) */"
        " INTO `photos` (id, stub) VALUES (LAST_INSERT_ID() + %s, 'a')"
    )
    assert read(UnlockTables("photos"), MYSQL) == "UNLOCK TABLES"


@pytest.mark.parametrize(
    ("dialect", "text"),
    [
        (MYSQL, "UPDATE `photos` SET id = LAST_INSERT_ID(id + {}) WHERE stub = 'c'"),
        (MARIADB, "UPDATE `photos` SET id = LAST_INSERT_ID(id + {}) WHERE stub = 'c'"),
        (POSTGRESQL, "UPDATE \"photos\" SET id = id + {} WHERE stub = 'c' RETURNING id"),
        (SQLITE, "UPDATE \"photos\" SET id = id + {} WHERE stub = 'c' RETURNING id"),
    ],
    ids=["mysql", "mariadb", "postgresql", "sqlite"],
)
def test_a_draw_from_a_counter_table(dialect: Dialect, text: str) -> None:
    assert read(AdvanceCounter("photos", 2), dialect) == text.format(2)
    holes = read(AdvanceCounter("photos"), dialect)
    assert holes.partition("id + ")[0] == text.partition("id + ")[0]
    assert "id + 2" not in holes


@pytest.mark.parametrize("dialect", [MYSQL, POSTGRESQL, SQLITE], ids=lambda d: str(d.name))
def test_names_are_quoted(dialect: Dialect) -> None:
    first, last = dialect.identifier_preparer.initial_quote, dialect.identifier_preparer.final_quote
    name = f"{first}order{last}"
    assert read(DropTicketTable("order"), dialect) == f"DROP TABLE IF EXISTS {name}"
    assert read(LastTicket("order", "counter"), dialect) == (
        f"SELECT id FROM {name} WHERE stub = 'c'"
    )
    doubled = read(DropTicketTable(f"a{last}; DROP TABLE b; --"), dialect)
    assert f"{first}a{last}{last}; DROP TABLE b; --{last}" in doubled


@pytest.mark.parametrize(
    ("start", "stride", "offset", "first"),
    [(1, 2, 1, 3), (1, 2, 2, 4), (2, 2, 1, 3), (4, 2, 1, 5), (1000, 2, 2, 1000), (7, 10, 3, 13)],
)
def test_no_ticket_is_below_the_start(start: int, stride: int, offset: int, first: int) -> None:
    assert seed(start, stride, offset) + stride == first


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"start": 0}, "a ticket is 1 to"),
        ({"start": 2**32, "bits": 32}, "a ticket is 1 to 4294967295"),
        ({"bits": 48}, "32 or 64 bits"),
        ({"engine": "InnoDB; DROP TABLE x"}, "not the name of a storage engine"),
        ({"layout": "row"}, "'replace' or 'counter'"),
    ],
)
def test_a_table_that_cannot_be(wrong: dict[str, object], words: str) -> None:
    with pytest.raises(TicketArgumentError, match=words):
        CreateTicketTable("photos", **{"stride": 2, "offset": 1, **wrong})  # type: ignore[arg-type]  # that is the point
