"""Invalid input is refused at once, with a message that says what to do."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
from sqlalchemy import (
    URL,
    BigInteger,
    Column,
    Engine,
    Integer,
    MetaData,
    SmallInteger,
    String,
    Table,
    create_engine,
    func,
    insert,
    select,
)
from sqlalchemy.dialects.mysql import INTEGER
from sqlalchemy.dialects.sqlite import INTEGER as SQLITE_INTEGER
from sqlalchemy.types import TypeEngine

from sqla_tickets import (
    PoolNotAttached,
    TicketArgumentError,
    TicketError,
    TicketPool,
    TicketSequence,
    TicketsExhausted,
    TicketTableError,
    TicketTableMissing,
)
from tests.support.draws import FLICKRS_TABLE, OpenPool, assert_unique, draw_from, residues, run


def photos_table(type_: TypeEngine[object] | None = None) -> Table:
    column: Column[object] = Column(
        "id", type_ or BigInteger(), TicketSequence("photos"), primary_key=True
    )
    return Table("photos", MetaData(), column, Column("title", String(30)))


def shard(tmp_path: Path, table: Table) -> Engine:
    engine = create_engine(f"sqlite:///{tmp_path}/shard.db")
    table.metadata.create_all(engine)
    return engine


# -- pools


def test_no_pool_attached(tmp_path: Path) -> None:
    table = photos_table()
    engine = shard(tmp_path, table)
    with (
        engine.connect() as connection,
        pytest.raises(
            PoolNotAttached, match=r"'default'.*'photos'.*photos\.id.*attach\(metadata\)"
        ),
    ):
        connection.execute(insert(table), [{"title": "a"}])
    with engine.connect() as connection:
        assert connection.scalar(select(func.count()).select_from(table)) == 0
    engine.dispose()


@pytest.mark.parametrize("servers", [[], (), "sqlite://", URL.create("sqlite", database="x"), None])
def test_no_list_of_servers(servers: list[str]) -> None:
    with pytest.raises(TicketArgumentError, match=r"TicketPool\('default'\) needs a list"):
        TicketPool(servers)


def test_the_largest_stride(tmp_path: Path, open_pool: OpenPool) -> None:
    pool = open_pool([f"sqlite:///{tmp_path}/1.db", f"sqlite:///{tmp_path}/2.db"], stride=65535)
    pool.create_table("photos")
    assert_unique(pool.next_ids("photos", 3) + pool.next_ids("photos", 3))


# -- draws


@pytest.mark.ticket_servers("sqlite")
@pytest.mark.parametrize("n", [0, -1, True, False, 1.0, "1", None])
def test_a_count_that_cannot_be(pool: TicketPool, n: int) -> None:
    before = [record.last_ticket for record in pool.status()]
    with pytest.raises(TicketArgumentError, match=r"'photos': n=.* 1 or more"):
        pool.next_ids("photos", n)
    with pytest.raises(TicketArgumentError):
        pool.reserve("photos", n)
    assert [record.last_ticket for record in pool.status()] == before


@pytest.mark.parametrize("name", ["", " ", None, 7, b"photos"])
def test_a_sequence_that_is_none(pool: TicketPool, name: str) -> None:
    with pytest.raises(TicketError):
        pool.next_id(name)
    assert pool.next_id("photos")
    records = [r for r in pool.status() if r.sequence == "photos"]
    assert {r.breaker for r in records} == {"closed"}, "the servers are well"


def test_a_sequence_without_a_name(pool: TicketPool) -> None:
    with pytest.raises(TicketArgumentError, match="name it"):
        pool.next_id(TicketSequence())


# -- tables


def test_a_table_that_is_missing(ticket_urls: list[URL], open_pool: OpenPool) -> None:
    pool = open_pool(ticket_urls)
    for _ in range(2):
        with pytest.raises(TicketTableMissing, match=r"'photos'.*run the migration.*create_table"):
            pool.next_id("photos")
    pool.create_table("photos")
    assert residues(pool.next_id("photos") for _ in range(4)) == {0, 1}


@pytest.mark.parametrize("missing", [1, 2])
def test_a_table_that_is_missing_on_one_server(
    pool: TicketPool, ticket_urls: list[URL], missing: int
) -> None:
    ids = [pool.next_id("photos") for _ in range(4)]
    run(ticket_urls[missing - 1], "DROP TABLE photos")
    ids += [pool.next_id("photos") for _ in range(4)] + pool.next_ids("photos", 5)
    assert residues(ids[4:]) == {(missing + 1) % 2}
    (record,) = [r for r in pool.status() if r.server == str(pool.servers[missing - 1])]
    assert not record.up
    assert "run the migration" in (record.error or "")
    pool.create_table("photos", start=max(ids) + 1)
    assert_unique(ids + draw_from(pool, missing))


@pytest.mark.parametrize(
    "columns",
    [
        "id INTEGER PRIMARY KEY, title VARCHAR(10)",
        "id INTEGER NOT NULL, stub CHAR(1) NOT NULL",
        "stub CHAR(1) NOT NULL PRIMARY KEY, id INTEGER NOT NULL, more INTEGER",
        "stub CHAR(1) NOT NULL PRIMARY KEY",
    ],
)
def test_a_table_that_is_no_ticket_table(
    ticket_urls: list[URL], open_pool: OpenPool, columns: str
) -> None:
    for url in ticket_urls:
        run(url, f"CREATE TABLE photos ({columns})")
    pool = open_pool(ticket_urls)
    wanted = r"'photos'.*not a ticket table.*a table of the application"
    with pytest.raises(TicketTableError, match=wanted):
        pool.next_id("photos")
    with pytest.raises(TicketTableError, match=wanted):
        pool.create_table("photos")


@pytest.mark.ticket_servers("mariadb", "mysql")
def test_flickrs_table_that_is_empty(ticket_urls: list[URL], open_pool: OpenPool) -> None:
    for url in ticket_urls:
        run(url, FLICKRS_TABLE.format(name="photos", engine="InnoDB"))
    pool = open_pool(ticket_urls)
    with pytest.raises(TicketTableError, match=r"'photos'.*is empty.*start=N.*above every id"):
        pool.next_id("photos")
    pool.create_table("photos", start=5000)
    assert min(pool.next_ids("photos", 3) + pool.next_ids("photos", 3)) >= 5000


def test_metadata_of_another_stride(
    pool: TicketPool, ticket_urls: list[URL], open_pool: OpenPool
) -> None:
    ids = pool.next_ids("photos", 3)
    other = open_pool(ticket_urls, stride=3)
    wanted = "'photos'.*expected.* and stride 3, found.* and stride 2.*give this process stride=2"
    with pytest.raises(TicketTableError, match=wanted):
        other.next_id("photos")
    with pytest.raises(TicketTableError, match=wanted):
        other.create_table("photos")
    assert_unique(ids + pool.next_ids("photos", 3))


def test_servers_that_changed_places(
    pool: TicketPool, ticket_urls: list[URL], open_pool: OpenPool
) -> None:
    pool.next_ids("photos", 3)
    with pytest.raises(TicketTableError, match=r"with offset 1 .*found.* with offset 2 "):
        open_pool(ticket_urls[::-1]).next_id("photos")


@pytest.mark.ticket_servers("mariadb", "mysql")
def test_flickrs_servers_that_changed_places(ticket_urls: list[URL], open_pool: OpenPool) -> None:
    """Flickr's tables have no metadata, but their last tickets tell which server is the odd one."""
    for offset, url in enumerate(ticket_urls, 1):
        made = FLICKRS_TABLE.format(name="photos", engine="InnoDB")
        run(url, made, f"INSERT INTO photos VALUES ({100 + offset}, 'a')")
    ids: list[int] = []
    for pool in (open_pool(ticket_urls), open_pool(ticket_urls[::-1])):
        with suppress(TicketTableError):
            ids += pool.next_ids("photos", 5) + pool.next_ids("photos", 50)
    assert len(ids) >= 55
    assert_unique(ids)


def test_metadata_that_cannot_be_read(
    pool: TicketPool, ticket_urls: list[URL], ticket_kind: str, open_pool: OpenPool
) -> None:
    text = "sqla_tickets {broken"
    comment = {
        "postgresql": f"COMMENT ON TABLE photos IS '{text}'",
        "mysql": f"ALTER TABLE photos COMMENT = '{text}'",
    }
    if ticket_kind == "sqlite":
        pool.drop_table("photos")
        made = "stub CHAR(1) NOT NULL PRIMARY KEY, id BIGINT NOT NULL"
        run(
            ticket_urls[0],
            f"CREATE TABLE photos ({made} /* {text} */)",
            "INSERT INTO photos VALUES ('c', 1)",
        )
    else:
        run(ticket_urls[0], comment["postgresql" if ticket_kind == "postgresql" else "mysql"])
    with pytest.raises(
        TicketTableError, match=r"metadata of the ticket table 'photos'.*cannot be read"
    ):
        open_pool(ticket_urls[:1], stride=2).next_id("photos")


# -- columns


@pytest.mark.parametrize(
    ("type_", "largest"),
    [
        (SmallInteger(), 2**15 - 1),
        (Integer(), 2**31 - 1),
        (INTEGER(unsigned=True), 2**32 - 1),
        (BigInteger().with_variant(Integer(), "mysql"), 2**31 - 1),
        (BigInteger().with_variant(SQLITE_INTEGER(), "sqlite"), None),
    ],
)
def test_a_ticket_that_is_beyond_the_column(
    tmp_path: Path, open_pool: OpenPool, type_: TypeEngine[object], largest: int | None
) -> None:
    table = photos_table(type_)
    engine = shard(tmp_path, table)
    pool = open_pool([f"sqlite:///{tmp_path}/tickets.db"])
    pool.create_table("photos", start=(largest or 2**62))
    pool.attach(table.metadata)
    with engine.begin() as connection:
        connection.execute(insert(table), [{"title": "fits"}])
    if largest is not None:
        for rows in (1, 3):
            wanted = rf"{largest + rows}.*'photos'.*photos\.id.*{largest}.*BigInteger"
            with engine.connect() as connection, pytest.raises(TicketsExhausted, match=wanted):
                connection.execute(insert(table), [{"title": "does not fit"}] * rows)
            pool.drop_table("photos")
            pool.create_table("photos", start=largest + 1)
    with engine.connect() as connection:
        assert connection.scalar(select(func.count()).select_from(table)) == 1
    engine.dispose()


# -- the application's own SQLite file


@pytest.mark.parametrize(
    "spelling",
    [
        "sqlite:///{folder}/app.db",
        "sqlite:///{folder}/../{name}/app.db",
        "sqlite:///{folder}/link.db",
        "sqlite:///file:{folder}/app.db?uri=true",
    ],
)
def test_tickets_in_the_application_s_own_file(
    tmp_path: Path, open_pool: OpenPool, spelling: str
) -> None:
    table = photos_table()
    engine = create_engine(f"sqlite:///{tmp_path}/app.db")
    Table("rows", table.metadata, Column("n", Integer))
    table.metadata.tables["rows"].create(engine)
    (tmp_path / "link.db").symlink_to(tmp_path / "app.db")
    pool = open_pool([spelling.format(folder=tmp_path, name=tmp_path.name)])
    pool.attach(table.metadata)
    wanted = r"application's own SQLite.*file of their own"
    with engine.begin() as connection:
        connection.execute(insert(table.metadata.tables["rows"]), [{"n": 1}])
        with pytest.raises(TicketArgumentError, match=wanted):
            connection.execute(insert(table), [{"title": "a"}])
    engine.dispose()


def test_tickets_of_the_application_s_own_engine(tmp_path: Path, open_pool: OpenPool) -> None:
    for engine in (create_engine(f"sqlite:///{tmp_path}/app.db"), create_engine("sqlite://")):
        table = photos_table()
        pool = open_pool([engine])
        pool.attach(table.metadata)
        with (
            engine.begin() as connection,
            pytest.raises(TicketArgumentError, match="application's own SQLite"),
        ):
            connection.execute(insert(table), [{"title": "a"}])
        engine.dispose()
