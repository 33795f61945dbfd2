"""What each statement reads, on each kind of server."""

from __future__ import annotations

import re

import pytest
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.dialects.mysql.mariadb import MariaDBDialect

from sqla_tickets import TicketArgumentError
from sqla_tickets.dialects import ErrorKind, Statement, TicketDialect, dialect_of
from sqla_tickets.tables.layouts import layout_of
from sqla_tickets.tables.new_table import NewTable, seed, stub_of

MYSQL = dialect_of(mysql.dialect())
MARIADB = dialect_of(MariaDBDialect())
POSTGRESQL = dialect_of(postgresql.dialect())  # type: ignore[no-untyped-call]  # SQLAlchemy left it so
SQLITE = dialect_of(sqlite.dialect())


def read(*statements: Statement) -> str:
    """The statements on one line."""
    return "; ".join(" ".join(str(statement).split()) for statement in statements)


@pytest.mark.parametrize("dialect", [MYSQL, MARIADB], ids=["mysql", "mariadb"])
def test_flickrs_table(dialect: TicketDialect) -> None:
    assert read(*NewTable("photos", stride=2, offset=1).creation(dialect)) == (
        "CREATE TABLE `photos` ( id BIGINT UNSIGNED NOT NULL AUTO_INCREMENT,"
        " stub CHAR(1) NOT NULL DEFAULT '', PRIMARY KEY (id), UNIQUE KEY stub (stub) )"
        " ENGINE=InnoDB AUTO_INCREMENT=1"
        ' COMMENT=\'sqla_tickets {"layout": "replace", "stride": 2, "offset": 1}\''
        " SELECT 1 AS id, 'a' AS stub"
    )


def test_stub_of_a_stride_is_in_every_statement() -> None:
    """Never in quotes: SQLite would take an unknown name for a text, and find no row."""
    stub = stub_of(4)
    new = NewTable("photos", stride=4, offset=1, stub=stub)
    for statement in (
        *new.creation(MYSQL),
        *new.creation(SQLITE),
        POSTGRESQL.insert_row("photos", "counter", 1, stub),
        SQLITE.read_row("photos", "counter", stub),
        MARIADB.replace_ticket("photos", 4, 1, stub),
        MYSQL.replace_up_to("photos", 4, 1, stub),
        SQLITE.advance_counter("photos", stub, 4),
        POSTGRESQL.raise_counter("photos", 9, stub),
        MYSQL.open_table(new.shape(MYSQL))[-1],
    ):
        names = re.findall(r".\b(?!was_)stub\w*\b.", read(statement))
        assert names
        assert all(re.fullmatch(r"[ (]stub_4[ ),]", name) for name in names), names


def test_a_counter_table_on_mysql() -> None:
    element = NewTable("photos", layout="counter", start=1001, stride=2, offset=1)
    assert read(*element.creation(MYSQL)) == (
        "CREATE TABLE `photos` ( stub CHAR(1) NOT NULL PRIMARY KEY, id BIGINT UNSIGNED NOT NULL"
        " CHECK (id > 0 AND id <= 9223372036854775807) ) ENGINE=InnoDB"
        ' COMMENT=\'sqla_tickets {"layout": "counter", "stride": 2, "offset": 1}\''
        " SELECT 999 AS id, 'c' AS stub"
    )


def test_32_bits_and_an_engine() -> None:
    text = read(*NewTable("photos", bits=32, engine="MyISAM", stride=2, offset=1).creation(MYSQL))
    assert "id INT UNSIGNED NOT NULL AUTO_INCREMENT" in text
    assert "ENGINE=MyISAM" in text


def test_a_table_on_postgresql() -> None:
    create, row, comment = NewTable("photos", stride=2, offset=1).creation(POSTGRESQL)
    assert read(create) == (
        'CREATE TABLE "photos" ( stub CHAR(1) NOT NULL PRIMARY KEY, id BIGINT NOT NULL'
        " CHECK (id > 0 AND id <= 9223372036854775807) )"
    )
    assert read(row) == "INSERT INTO \"photos\" (id, stub) VALUES (1, 'c')"
    assert read(comment) == (
        'COMMENT ON TABLE "photos" IS'
        ' \'sqla_tickets {"layout": "counter", "stride": 2, "offset": 1}\''
    )


def test_a_table_on_sqlite() -> None:
    create, row = NewTable("photos", stride=2, offset=1).creation(SQLITE)
    assert read(create) == (
        'CREATE TABLE "photos" ( stub CHAR(1) NOT NULL PRIMARY KEY, id BIGINT NOT NULL'
        " CHECK (id > 0 AND id <= 9223372036854775807)"
        ' /* sqla_tickets {"layout": "counter", "stride": 2, "offset": 1} */ )'
    )
    assert read(row) == "INSERT INTO \"photos\" (id, stub) VALUES (1, 'c')"


@pytest.mark.parametrize("dialect", [POSTGRESQL, SQLITE], ids=["postgresql", "sqlite"])
def test_flickrs_table_needs_mysql(dialect: TicketDialect) -> None:
    with pytest.raises(TicketArgumentError, match=r"needs MySQL or MariaDB.*'counter'"):
        read(*NewTable("photos", layout="replace", stride=2, offset=1).creation(dialect))


def test_one_ticket_of_flickrs_table() -> None:
    assert read(MYSQL.replace_ticket("photos", 2, 1, "stub")) == (
        "REPLACE /*+ SET_VAR(auto_increment_increment=2) SET_VAR(auto_increment_offset=1) */"
        " INTO `photos` (stub) VALUES ('a')"
    )
    assert read(MARIADB.replace_ticket("photos", 2, 1, "stub")) == (
        "SET STATEMENT auto_increment_increment=2, auto_increment_offset=1"
        " FOR REPLACE INTO `photos` (stub) VALUES ('a')"
    )


def test_a_block_of_flickrs_table() -> None:
    lock = MYSQL.lock_table("photos")
    assert lock is not None
    assert read(lock) == "LOCK TABLES `photos` WRITE"
    assert read(MYSQL.replace_up_to("photos", 2, 1, "stub")) == (
        "REPLACE /*+ SET_VAR(auto_increment_increment=2) SET_VAR(auto_increment_offset=1) */"
        " INTO `photos` (id, stub) VALUES (LAST_INSERT_ID() + %s, 'a')"
    )
    assert read(MYSQL.unlock_tables()) == "UNLOCK TABLES"


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
def test_a_draw_from_a_counter_table(dialect: TicketDialect, text: str) -> None:
    assert read(dialect.advance_counter("photos", "stub", 2)) == text.format(2)
    holes = read(dialect.advance_counter("photos", "stub"))
    assert holes.partition("id + ")[0] == text.partition("id + ")[0]
    assert "id + 2" not in holes


@pytest.mark.parametrize("dialect", [MYSQL, POSTGRESQL, SQLITE], ids=lambda d: type(d).__name__)
def test_names_are_quoted(dialect: TicketDialect) -> None:
    preparer = dialect.sqlalchemy.identifier_preparer
    first, last = preparer.initial_quote, preparer.final_quote
    name = f"{first}order{last}"
    assert read(dialect.drop_table("order")) == f"DROP TABLE IF EXISTS {name}"
    assert (
        read(dialect.read_row("order", "counter", "stub"))
        == f"SELECT id FROM {name} WHERE stub = 'c'"
    )
    doubled = read(dialect.drop_table(f"a{last}; DROP TABLE b; --"))
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
        ({"start": 0}, "start=.* from 1 to"),
        ({"start": 2**32, "bits": 32}, "start=.* from 1 to 4294967295"),
        ({"bits": 48}, "expected 32 or 64"),
        ({"engine": "InnoDB; DROP TABLE x"}, "expected the name of a storage engine"),
        ({"layout": "row"}, "'replace' or 'counter'"),
    ],
)
def test_a_table_that_cannot_be(wrong: dict[str, object], words: str) -> None:
    with pytest.raises(TicketArgumentError, match=words):
        NewTable("photos", **{"stride": 2, "offset": 1, **wrong})  # type: ignore[arg-type]  # that is the point


@pytest.mark.parametrize("dialect", [MYSQL, MARIADB], ids=["mysql", "mariadb"])
def test_queue_of_flickrs_table(dialect: TicketDialect) -> None:
    lock = "CONCAT('sqla_tickets 2 ', CRC32(CONCAT(DATABASE(), '.it''s')))"
    join, leave = dialect.queue("it's", 2)
    assert read(join) == f"DO GET_LOCK({lock}, @@innodb_lock_wait_timeout)"
    assert read(leave) == f"DO RELEASE_LOCK({lock})"


def test_layout_does_without_what_is_denied() -> None:
    """A single ticket needs no privilege for a queue, and a block no queue."""
    current = MariaDBDialect()
    current.server_version_info = (10, 11)
    layout, other = (layout_of("replace", "x", dialect_of(current), 2, 1, "stub") for _ in "12")
    denied = ErrorKind.ACCESS_DENIED
    assert not layout.adapts(denied, 1), "it has taken no lock, and joined no queue"
    layout.took_long(1, 0.1)
    layout.took_long(1, 0.1)
    assert [layout.adapts(denied, n) for n in (1, 1, 7, 7)] == [True, False, True, False]
    other.lock_timed_out(1)
    assert [other.adapts(denied, 1) for _ in range(2)] == [True, False]
