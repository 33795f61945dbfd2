"""Rows that appear between the count and the INSERT ... SELECT: all of it fails, or each row has a ticket of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import (
    URL,
    BigInteger,
    Column,
    Connection,
    Engine,
    Integer,
    MetaData,
    SelectBase,
    String,
    Table,
    create_engine,
    delete,
    event,
    func,
    insert,
    select,
    text,
)
from sqlalchemy.dialects.mysql import BIGINT
from sqlalchemy.exc import IntegrityError, OperationalError
from sqlalchemy.pool import NullPool

from sqla_tickets import (
    TicketArgumentError,
    TicketError,
    TicketIntegrityError,
    TicketPool,
    TicketSequence,
    insert_from_select,
)
from tests.integration.orm.conftest import Serve
from tests.support.counting import Site
from tests.support.draws import OpenPool
from tests.support.servers import MySQLLike, ServerFixtures

pytestmark = pytest.mark.every_case

metadata = MetaData()
words = Table(
    "words",
    metadata,
    Column("id", BigInteger, primary_key=True, autoincrement=False),
    Column("word", String(50)),
)
photos = Table(
    "photos",
    metadata,
    Column(
        "id",
        # SQLite makes a number of its own of a NULL in such a key
        BigInteger().with_variant(Integer, "sqlite").with_variant(BIGINT(unsigned=True), "mysql"),
        TicketSequence(),
        primary_key=True,
    ),
    Column("title", String(50)),
)
COPY: Any = (photos, ["title"], select(words.c.word))
NUMBERS = iter(range(1, 10_000_000))


@pytest.fixture
def site(serve: Serve) -> Site:
    site = serve(metadata)
    add_words(site.engine, 5)
    return site


def add_words(engine: Engine, n: int) -> None:
    """Add rows to the source, on a connection of their own."""
    other = create_engine(engine.url, poolclass=NullPool)
    with other.begin() as connection:
        add_words_on(connection, n)


def remove_words(engine: Engine, n: int) -> None:
    """Remove rows from the source, on a connection of their own."""
    other = create_engine(engine.url, poolclass=NullPool)
    with other.begin() as connection:
        ids = connection.scalars(select(words.c.id).limit(n)).all()
        connection.execute(delete(words).where(words.c.id.in_(ids)))


def add_words_on(connection: Connection, n: int) -> None:
    """Add rows to the source."""
    connection.execute(insert(words), [{"id": next(NUMBERS), "word": "w"} for _ in range(n)])


@contextmanager
def before_inserts(
    engine: Engine, happens: Callable[[], None], *, times: int
) -> Iterator[list[str]]:
    """Have something happen just before an INSERT ... SELECT is sent, so many times; the statements."""
    sent: list[str] = []

    def intervene(conn: Any, cursor: Any, statement: str, *_: Any) -> None:
        if statement.startswith("INSERT") and "SELECT" in statement:
            sent.append(statement)
            if len(sent) <= times:
                happens()

    event.listen(engine, "before_cursor_execute", intervene)
    try:
        yield sent
    finally:
        event.remove(engine, "before_cursor_execute", intervene)


def check(site: Site, rows: int) -> None:
    """Each row has a ticket of its own."""
    ids = [number for (number,) in site.rows(photos.c.id)]
    assert len(ids) == len(set(ids)) == rows
    last = max(status.last_ticket or 0 for status in site.pool.status())
    assert all(0 < number <= last for number in ids)


SELECTS: dict[str, SelectBase] = {
    "ties": select(words.c.word).order_by(words.c.word),
    "text": text("SELECT word FROM words ORDER BY id").columns(word=String),
    "distinct": select(words.c.id.cast(String)).distinct(),
    "group": select(func.max(words.c.word)).group_by(words.c.id).order_by(func.max(words.c.word)),
    "window": select(func.row_number().over(order_by=words.c.id).cast(String)),
    "join": select(words.c.word).join(other := words.alias(), words.c.id == other.c.id),
}


@pytest.mark.parametrize("case", SELECTS)
def test_rows_that_come_or_go_before_the_insert(site: Site, case: str) -> None:
    """More rows than tickets all fail, and are sent again; of fewer, the other tickets are gaps."""
    for happens, expected, statements in ((add_words, 8, 2), (remove_words, 5, 1)):
        with (
            before_inserts(site.engine, lambda do=happens: do(site.engine, 3), times=1) as sent,  # type: ignore[misc]
            site.engine.begin() as connection,
        ):
            assert insert_from_select(connection, photos, ["title"], SELECTS[case]) == expected
        assert len(sent) == statements
    check(site, 8 + 5)


SESSIONS = {
    "buffered": "SET SESSION sql_buffer_result = 1",
    "lax": "SET SESSION sql_mode = ''",
    "without temporary tables in memory": "SET SESSION tmp_table_size = 1024",
}


@pytest.mark.app_databases("mysql", "mariadb")
@pytest.mark.parametrize("session", SESSIONS)
@pytest.mark.parametrize("case", ["ties", "text"])
def test_rows_that_come_in_other_sessions(site: Site, session: str, case: str) -> None:
    with site.engine.begin() as connection:
        connection.exec_driver_sql(SESSIONS[session])
        with before_inserts(site.engine, lambda: add_words(site.engine, 3), times=1) as sent:
            assert insert_from_select(connection, photos, ["title"], SELECTS[case]) == 8
    assert len(sent) == 2
    check(site, 8)


TRIGGERS = {
    "inserts": "INSERT INTO log SELECT NEW.id, id FROM words",
    "updates": "UPDATE log SET n = n + 1",
    "selects": "SET NEW.title = (SELECT count(*) FROM words)",
}


@pytest.mark.app_databases("mysql", "mariadb")
@pytest.mark.parametrize("does", TRIGGERS)
def test_rows_that_come_while_triggers_work(site: Site, does: str) -> None:
    redeclared(
        site,
        "CREATE TABLE log (id BIGINT, n BIGINT)",
        "INSERT INTO log VALUES (1, 1), (2, 2)",
        f"CREATE TRIGGER works BEFORE INSERT ON photos FOR EACH ROW {TRIGGERS[does]}",
    )
    with (
        before_inserts(site.engine, lambda: add_words(site.engine, 3), times=1) as sent,
        site.engine.begin() as connection,
    ):
        assert insert_from_select(connection, *COPY) == 8
    assert len(sent) == 2
    check(site, 8)


ISOLATION = ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE", "AUTOCOMMIT"]


@pytest.mark.parametrize("level", ISOLATION)
def test_rows_that_appear_before_the_insert(site: Site, level: str) -> None:
    if site.engine.dialect.name == "sqlite" and level in ISOLATION[:2]:
        return  # it has no such level
    engine = site.engine.execution_options(isolation_level=level)
    kind = site.engine.dialect.name
    locked = level == "SERIALIZABLE" and kind == "mysql"  # by the count
    with (
        before_inserts(
            engine,
            lambda: None if locked else add_words(engine, 3),
            # the failure leaves SQLite's one lock, or those of InnoDB's rows, with the transaction
            times=2 if kind == "postgresql" or level in {"READ COMMITTED", "AUTOCOMMIT"} else 1,
        ) as sent,
        engine.begin() as connection,
    ):
        n = insert_from_select(connection, *COPY)
    with engine.connect() as connection:
        there = connection.scalar(select(func.count()).select_from(words))
    snapshot = kind == "postgresql" and level in ISOLATION[1:3]
    assert n == (5 if snapshot else there)
    assert len(sent) == (1 if snapshot or locked else 2)
    check(site, n)


@pytest.mark.app_databases("mysql", "mariadb")
def test_rows_that_an_old_snapshot_does_not_show(site: Site) -> None:
    """InnoDB's INSERT ... SELECT finds them, and no SELECT of the transaction does."""
    with site.engine.begin() as connection:
        assert connection.scalar(select(func.count()).select_from(words)) == 5
        add_words(site.engine, 40)
        assert insert_from_select(connection, *COPY) == 45
        assert connection.scalar(select(func.count()).select_from(words)) == 5
    check(site, 45)


@pytest.mark.app_databases("mysql", "mariadb")
def test_rows_that_appear_without_strict_mode(site: Site) -> None:
    """Where MySQL stores 0 for a NULL, and what is too large as the largest."""
    with site.engine.begin() as connection:
        connection.exec_driver_sql("SET SESSION sql_mode = ''")
        with before_inserts(site.engine, lambda: add_words(site.engine, 3), times=1):
            assert insert_from_select(connection, *COPY) == 8
    check(site, 8)


def test_rows_that_go_on_to_appear_end_in_an_error(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sqla_tickets.orm.insert_from_select.MAX_ATTEMPTS", 3)
    numbers = iter((10, 100, 1_000))
    # that is, where a failure leaves no lock on the source
    level = "AUTOCOMMIT" if site.engine.dialect.name == "sqlite" else "READ COMMITTED"
    engine = site.engine.execution_options(isolation_level=level)
    with engine.begin() as connection:
        connection.execute(insert(photos).values(title="before"))
        with (
            before_inserts(engine, lambda: add_words(engine, next(numbers)), times=3) as sent,
            pytest.raises((IntegrityError, TicketError)),
        ):
            insert_from_select(connection, *COPY)
        connection.execute(insert(photos).values(title="after"))
    assert len(sent) == 3
    check(site, 2)


@contextmanager
def deadlock_suppressed() -> Iterator[None]:
    """Two inserts at the end of one index may wait for each other in InnoDB: one of them is done again."""
    try:
        yield
    except OperationalError as error:
        if getattr(error.orig, "args", ())[:1] != (1213,):
            raise


@pytest.mark.parametrize("level", ["READ COMMITTED", "REPEATABLE READ"])
def test_two_clients_at_once(site: Site, level: str) -> None:
    is_sqlite = site.engine.dialect.name == "sqlite"
    engine = create_engine(
        site.engine.url,
        poolclass=NullPool,
        isolation_level="SERIALIZABLE" if is_sqlite else level,
        connect_args={"timeout": 60} if is_sqlite else {},
    )

    def copy(_: int) -> int:
        while True:
            with deadlock_suppressed(), engine.begin() as connection:
                return insert_from_select(connection, *COPY)

    def add(_: int) -> int:
        for _ in range(10):
            add_words(engine, 1)
        return 0

    add_words(site.engine, 500)
    with ThreadPoolExecutor(4) as threads:
        futures = [threads.submit(work, n) for n in range(5) for work in (copy, copy, add)]
        copied = sum(future.result(timeout=120) for future in futures)
    check(site, copied)


@pytest.mark.parametrize("case", ["random", "limit"])
def test_rows_that_differ_each_time(site: Site, case: str) -> None:
    add_words(site.engine, 195)
    half = {"mysql": "rand() < 0.5", "postgresql": "random() < 0.5", "sqlite": "random() < 0"}
    rows = {
        "random": select(words.c.word).where(text(half[site.engine.dialect.name])),
        "limit": select(words.c.word).limit(50),
    }[case]
    copied = 0
    with site.engine.begin() as connection:
        for _ in range(20):
            copied += insert_from_select(connection, photos, ["title"], rows)
    assert 0 < copied < 4_000
    check(site, copied)


# -- keys that are not what they seem


def redeclared(site: Site, *statements: str) -> None:
    """Change the application's tables behind the model's back."""
    with site.engine.begin() as connection:
        for statement in statements:
            connection.exec_driver_sql(statement)


NOT_UNIQUE = {
    "mysql": (
        "ALTER TABLE photos DROP PRIMARY KEY, ADD PRIMARY KEY (id, title(5)) , MODIFY title varchar(50) NOT NULL",
    ),
    "mariadb": (
        "ALTER TABLE photos MODIFY title varchar(50) NOT NULL, DROP PRIMARY KEY",
        "ALTER TABLE photos ADD PRIMARY KEY (id, title) PARTITION BY KEY (title)",
    ),
    "postgresql": (
        "ALTER TABLE photos DROP CONSTRAINT photos_pkey",
        "CREATE UNIQUE INDEX part ON photos (id) WHERE title IS NOT NULL",
        "CREATE UNIQUE INDEX expression ON photos ((id + 1))",
    ),
    "sqlite": (
        "DROP TABLE photos",
        "CREATE TABLE photos (id BIGINT, title VARCHAR(50))",
        "CREATE UNIQUE INDEX part ON photos (id) WHERE title IS NOT NULL",
        "CREATE UNIQUE INDEX expression ON photos (id + 1)",
    ),
}


@pytest.mark.filterwarnings("ignore:.*expression-based index")
@pytest.mark.filterwarnings("ignore:.*Skipped unsupported reflection")
def test_key_that_the_database_does_not_have_is_refused(site: Site) -> None:
    name = (
        "mariadb" if getattr(site.engine.dialect, "is_mariadb", False) else site.engine.dialect.name
    )
    redeclared(site, *NOT_UNIQUE[name])
    with (
        site.engine.begin() as connection,
        pytest.raises(TicketArgumentError, match=r"photos\.id has no PRIMARY KEY or UNIQUE"),
    ):
        insert_from_select(connection, *COPY)


@pytest.mark.app_databases("mysql", "mariadb")
def test_engine_that_keeps_first_rows_is_refused(site: Site) -> None:
    redeclared(site, "ALTER TABLE photos ENGINE=MyISAM")
    with (
        site.engine.begin() as connection,
        pytest.raises(
            TicketArgumentError, match=r"engine MyISAM, .*ALTER TABLE `photos` ENGINE=InnoDB"
        ),
    ):
        insert_from_select(connection, *COPY)


@pytest.mark.app_databases("postgresql")
@pytest.mark.parametrize("level", ["READ COMMITTED", "AUTOCOMMIT"])
def test_key_that_is_checked_at_the_commit(site: Site, level: str) -> None:
    redeclared(
        site,
        "ALTER TABLE photos DROP CONSTRAINT photos_pkey",
        "ALTER TABLE photos ADD PRIMARY KEY (id) DEFERRABLE INITIALLY DEFERRED",
    )
    engine = site.engine.execution_options(isolation_level=level)
    with (
        before_inserts(engine, lambda: add_words(engine, 3), times=1),
        engine.begin() as connection,
    ):
        assert insert_from_select(connection, *COPY) == 8
    check(site, 8)


ELSEWHERE = {
    "trigger": (
        "CREATE TABLE low (PRIMARY KEY (id)) INHERITS (photos)",
        "CREATE TABLE high (PRIMARY KEY (id)) INHERITS (photos)",
        """CREATE FUNCTION route() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN
        IF NEW.title::int <= 5 THEN INSERT INTO low VALUES (NEW.*); ELSE INSERT INTO high VALUES (NEW.*); END IF;
        RETURN NULL; END'""",
        "CREATE TRIGGER route BEFORE INSERT ON photos FOR EACH ROW EXECUTE FUNCTION route()",
    ),
    "rule": (
        "CREATE TABLE other () INHERITS (photos)",
        "CREATE RULE other AS ON INSERT TO photos DO INSTEAD INSERT INTO other VALUES (NEW.*)",
    ),
    "sqlite": (
        "CREATE TABLE copies (id BIGINT, title VARCHAR(50))",
        """CREATE TRIGGER t BEFORE INSERT ON photos BEGIN
        INSERT INTO copies VALUES (NEW.id, NEW.title); SELECT RAISE(IGNORE); END""",
    ),
}


@pytest.mark.app_databases("postgresql", "sqlite")
@pytest.mark.parametrize("way", ["trigger", "rule"])
def test_rows_that_are_written_to_other_tables(site: Site, way: str) -> None:
    """Where the key of the table sees none of them."""
    is_sqlite = site.engine.dialect.name == "sqlite"
    redeclared(site, *ELSEWHERE["sqlite" if is_sqlite else way])
    rows = select(func.row_number().over().cast(String)).select_from(words)
    with (
        before_inserts(site.engine, lambda: add_words(site.engine, 3), times=1),
        site.engine.begin() as connection,
    ):
        insert_from_select(connection, photos, ["title"], rows)
    if is_sqlite:
        redeclared(site, "DROP TABLE photos", "ALTER TABLE copies RENAME TO photos")
    check(site, 8)


@pytest.mark.app_databases("mariadb")
def test_key_of_a_period_is_refused(site: Site) -> None:
    """It allows a ticket twice, at different times."""
    redeclared(
        site,
        "DROP TABLE photos",
        """CREATE TABLE photos (id BIGINT, title VARCHAR(50), first DATE DEFAULT '2020-01-01', last DATE DEFAULT '2020-01-02',
        PERIOD FOR shown (first, last), PRIMARY KEY (id, shown WITHOUT OVERLAPS))""",
    )
    with (
        site.engine.begin() as connection,
        pytest.raises(TicketArgumentError, match=r"photos\.id has no PRIMARY KEY or UNIQUE"),
    ):
        insert_from_select(connection, *COPY)


@pytest.mark.app_databases("mysql", "mariadb")
def test_trigger_that_changes_tickets_is_detected(site: Site) -> None:
    """The key sees other numbers than the tickets, of which there are too few."""
    redeclared(
        site,
        "CREATE TRIGGER larger BEFORE INSERT ON photos FOR EACH ROW"
        " SET @n = coalesce(@n, 0) + 1, NEW.id = NEW.id + 1000 * @n",
    )
    with (
        before_inserts(site.engine, lambda: add_words(site.engine, 3), times=1),
        pytest.raises(TicketIntegrityError, match="8 rows were inserted with 5 tickets"),
        site.engine.begin() as connection,
    ):
        insert_from_select(connection, *COPY)
    check(site, 0)


@pytest.mark.app_databases("sqlite")
@pytest.mark.parametrize("conflict", ["REPLACE", "IGNORE", "FAIL", "ROLLBACK"])
def test_key_with_a_conflict_clause(site: Site, conflict: str) -> None:
    redeclared(
        site,
        "DROP TABLE photos",
        f"CREATE TABLE photos (id INTEGER PRIMARY KEY ON CONFLICT {conflict}, title VARCHAR(50))",
    )
    with (
        before_inserts(site.engine, lambda: add_words(site.engine, 3), times=1),
        site.engine.begin() as connection,
    ):
        assert insert_from_select(connection, *COPY) == 8
    check(site, 8)


@pytest.mark.app_databases("postgresql")
def test_trigger_that_leaves_rows_out(site: Site) -> None:
    """Among them the row with the first ticket: a later one gets it, and no two do."""
    redeclared(
        site,
        "CREATE FUNCTION left_out() RETURNS trigger LANGUAGE plpgsql AS"
        " 'BEGIN IF NEW.title = ''1'' THEN RETURN NULL; END IF; RETURN NEW; END'",
        "CREATE TRIGGER left_out BEFORE INSERT ON photos FOR EACH ROW EXECUTE FUNCTION left_out()",
    )
    number = func.row_number().over().cast(String)
    rows = select(number).select_from(words)
    with (
        before_inserts(site.engine, lambda: add_words(site.engine, 1), times=1),
        site.engine.begin() as connection,
    ):
        assert insert_from_select(connection, photos, ["title"], rows) == 5
    check(site, 5)


def test_replicas_get_rows_and_no_statement(servers: ServerFixtures, tickets: TicketPool) -> None:
    """A replica may read the source in another order, and would give the tickets to other rows."""
    server = servers.new_mariadb("--log-bin=binlog", "--server-id=1", "--binlog-format=MIXED")
    engine = create_engine(servers.fresh_database(server), poolclass=NullPool)
    site = Site(engine, tickets, metadata)
    add_words(engine, 5)
    with engine.begin() as connection:
        assert insert_from_select(connection, *COPY) == 5
    tickets.detach(metadata)
    with server.administrator() as cursor:
        cursor.execute("SHOW BINLOG EVENTS")
        events = [str(event) for event in cursor.fetchall()]
    assert any("CREATE TABLE photos" in event for event in events)
    assert not any("Query" in event and "INSERT INTO photos" in event for event in events)
    check(site, 5)


@pytest.mark.app_databases("mysql", "mariadb", "postgresql")
def test_savepoints_of_the_application_stay(site: Site) -> None:
    with site.engine.connect() as connection:
        connection.execute(insert(photos).values(title="kept"))
        with connection.begin_nested() as savepoint:
            with before_inserts(site.engine, lambda: add_words(site.engine, 3), times=1):
                assert insert_from_select(connection, *COPY) == 8
            savepoint.rollback()
        connection.commit()
    assert [title for _, title in site.rows(photos)] == ["kept"]


# -- tickets that come one by one


@pytest.mark.app_databases("sqlite")
@pytest.mark.ticket_servers("mysql", "mariadb")
def test_tickets_without_the_lock(
    site: Site,
    ticket_urls: list[URL],
    open_pool: OpenPool,
    servers: ServerFixtures,
    ticket_kind: str,
) -> None:
    """Each is one draw of Flickr's table: few are served, many are refused before they are drawn."""
    open_pool(ticket_urls).create_table("photos", layout="replace")
    for number, url in enumerate(ticket_urls):
        server = servers.shared(ticket_kind, number)
        assert isinstance(server, MySQLLike)
        with server.administrator() as cursor:
            cursor.execute(f"REVOKE LOCK TABLES ON `{url.database}`.* FROM '{url.username}'@'%'")
    pool = open_pool(ticket_urls)  # a connection keeps the privileges that it began with
    with pool.attached(metadata), site.engine.begin() as connection:
        assert insert_from_select(connection, *COPY) == 5
        add_words_on(connection, 95)
        assert insert_from_select(connection, *COPY) == 100
        add_words_on(connection, 100_000)
        with pytest.raises(TicketArgumentError, match="GRANT LOCK TABLES ON"):
            insert_from_select(connection, *COPY)
    ids = [number for (number,) in site.rows(photos.c.id)]
    assert len(ids) == len(set(ids)) == 105
    assert pool.next_id("photos") < 1_000
