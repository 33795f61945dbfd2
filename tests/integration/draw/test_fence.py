"""A ticket table whose stride has changed refuses the statements of every client that knew it before."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pymysql
import pytest
from sqlalchemy import URL, ClauseElement, create_engine

from sqla_tickets import TicketError, TicketPool, TicketSequence, TicketTableError
from sqla_tickets.dialects import LayoutName
from sqla_tickets.draw import redirects
from sqla_tickets.high_water.statements import deletion
from sqla_tickets.maintenance import operations, resize, tombstones
from sqla_tickets.tables import inspection
from sqla_tickets.tables.inspection import ActiveTable
from sqla_tickets.tables.metadata import TableMetadata, Tombstone
from tests.support.draws import (
    FLICKRS_TABLE,
    OpenPool,
    assert_unique,
    fresh_pair,
    grant_only,
    in_fork,
    kill_connections,
    mysql_like,
    run,
    skip_unless_it_has,
)
from tests.support.drivers import Route, drivers, routes
from tests.support.fault_injection import BetweenStatements, KillAtChange, Loss, StatementCounter
from tests.support.servers import MySQLLike, PostgreSQL, ServerFixtures
from tests.support.timing import set_timing

LAYOUTS: tuple[LayoutName, ...] = ("replace", "counter")
SQLITE = pytest.mark.ticket_servers("sqlite")
MYSQL = pytest.mark.ticket_servers("mariadb", "mysql")


@pytest.fixture
def urls(ticket_kind: str, servers: ServerFixtures, tmp_path: Path) -> list[URL]:
    """Four ticket databases."""
    return databases(ticket_kind, servers, tmp_path, range(4))


@pytest.fixture
def more_urls(ticket_kind: str, servers: ServerFixtures, tmp_path: Path) -> list[URL]:
    """Four more ticket databases."""
    return databases(ticket_kind, servers, tmp_path, range(4, 8))


def databases(kind: str, servers: ServerFixtures, folder: Path, numbers: range) -> list[URL]:
    if kind == "sqlite":
        return [URL.create("sqlite", database=str(folder / f"{n}.db")) for n in numbers]
    return [servers.fresh_database(servers.shared(kind, n % 2)) for n in numbers]


@pytest.fixture
def as_application(ticket_kind: str, servers: ServerFixtures) -> Iterator[Callable[[URL], URL]]:
    """The same database with the user who draws there, and may do nothing else."""
    made: list[tuple[MySQLLike | PostgreSQL, str, str]] = []

    def as_application(url: URL) -> URL:
        if ticket_kind == "sqlite":
            return url
        database = str(url.database)
        server = next(
            server
            for server in (servers.shared(ticket_kind, n) for n in range(2))
            if server.url(database).port == url.port
        )
        assert isinstance(server, (MySQLLike, PostgreSQL))
        server.create_user(f"app_{database}", "draw", database)
        made.append((server, f"app_{database}", database))
        return url.set(username=f"app_{database}")

    yield as_application
    for server, user, database in made:
        server.drop_user(user, database)


def grow(urls: list[URL], old: int, new: int, *, name: str = "photos", gap: int = 2000) -> None:
    """Let servers join, and give the old ones the new stride."""
    with TicketPool(urls[:old], stride=old) as before, TicketPool(urls[:new], stride=new) as after:
        resize.begin(before, after, name, gap=gap)
        resize.finish(after, name)


def draw_until_refused(pool: TicketPool, most: int = 3000) -> tuple[list[int], TicketError | None]:
    """What a client draws that knows of nothing, and by what it is stopped."""
    ids: list[int] = []
    try:
        ids += (pool.next_id("photos") for _ in range(most))
    except TicketError as error:
        return ids, error
    return ids, None


def assert_told_to_grow(pool: TicketPool, error: TicketError | None, stride: int) -> None:
    """Nobody is blamed, and the one next step is named."""
    assert type(error) is TicketTableError
    assert f"stride={stride}" in str(error)
    assert {server.breaker.state for server in pool.servers} == {"closed"}
    assert "quarantined" not in {s.table("photos").state for s in pool.servers}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_sleeping_client_after_growth_is_refused(
    urls: list[URL],
    ticket_kind: str,
    layout: LayoutName,
    as_application: Callable[[URL], URL],
    open_pool: OpenPool,
) -> None:
    """It has another user, whose connections nobody who migrates can end."""
    skip_unless_it_has(layout, ticket_kind)
    with TicketPool(urls[:2]) as owner:
        owner.create_table("photos", layout=layout)
    application = [as_application(url) for url in urls[:4]]
    single, blocks = open_pool(application[:2]), open_pool(application[:2])
    ids = [single.next_id("photos") for _ in range(8)]
    for _ in range(4):
        ids += blocks.next_ids("photos", 5)
    grow(urls, 2, 4)
    new = open_pool(application, 4)
    for _ in range(200):
        ids += new.next_ids("photos", 4)
    for old in (single, blocks):
        woke, error = draw_until_refused(old)
        assert_told_to_grow(old, error, 4)
        assert_unique(ids := ids + woke)
        assert woke == []


@pytest.mark.parametrize("route", drivers(), ids=str)
def test_every_driver_after_growth_is_refused(
    servers: ServerFixtures, route: Route, tmp_path: Path
) -> None:
    """Some have prepared the statement on the server by the time that the table changes."""
    urls = [route.fresh_database(servers, tmp_path, n) for n in range(4)]

    def work() -> None:
        for layout in route.layouts:
            with TicketPool(urls[:2]) as old, TicketPool(urls, stride=4) as new:
                old.create_table(layout, layout=layout)
                ids = [old.next_id(layout) for _ in range(20)]
                for _ in range(4):
                    ids += old.next_ids(layout, 5)
                resize.begin(old, new, layout, gap=2000)
                resize.finish(new, layout)
                for n in (1, 5):
                    with pytest.raises(TicketTableError, match="stride=4"):
                        ids += old.next_ids(layout, n)
                assert {server.breaker.state for server in old.servers} == {"closed"}
                for _ in range(200):
                    ids += new.next_ids(layout, 4)
                assert_unique(ids)

    route.run(work)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("mode", ["ORACLE", "NO_TABLE_OPTIONS"])
def test_definition_without_comment_is_not_compared(
    servers: ServerFixtures,
    open_pool: OpenPool,
    monkeypatch: pytest.MonkeyPatch,
    mode: str,
    layout: LayoutName,
) -> None:
    """SHOW CREATE TABLE keeps the comment to itself under some of MariaDB's modes."""
    pairs = [fresh_pair(servers, "mariadb") for _ in range(2)]
    first, second, urls = pairs[0][0], pairs[0][1], pairs[0][2] + pairs[1][2]
    engines = [create_engine(url, connect_args={"sql_mode": mode}) for url in urls]
    inspected: list[str] = []
    find = inspection.active_table

    def counted(*arguments: object) -> inspection.ActiveTable:
        inspected.append(mode)
        return find(*arguments)  # type: ignore[arg-type]  # as they came

    monkeypatch.setattr(inspection, "active_table", counted)
    old = open_pool(engines[:2])
    old.create_table("photos", layout=layout)
    ids = [old.next_id("photos") for _ in range(8)]
    inspected.clear()
    kill_connections(first, urls[0])
    kill_connections(second, urls[1])
    ids += [old.next_id("photos") for _ in range(4)]
    assert len(inspected) >= 2
    grow(urls, 2, 4)
    kill_connections(first, urls[0])
    kill_connections(second, urls[1])
    woke, error = draw_until_refused(old)
    assert woke == []
    assert_told_to_grow(old, error, 4)


@pytest.mark.parametrize("kind", ["mariadb", "mysql"])
def test_foreign_table_definition_is_not_compared(
    servers: ServerFixtures, open_pool: OpenPool, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    first, second, urls = fresh_pair(servers, kind)
    for offset, url in enumerate(urls, 1):
        table = FLICKRS_TABLE.format(name="photos", engine="InnoDB")
        run(url, table, f"INSERT INTO photos VALUES ({offset}, 'a')")
    pool = open_pool(urls)
    ids = [pool.next_id("photos") for _ in range(4)]
    assert [server.table("photos").inspected for server in pool.servers] == [None, None]
    kill_connections(first, urls[0])
    kill_connections(second, urls[1])
    assert_unique(ids + [pool.next_id("photos") for _ in range(4)])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_growth_twice_leaves_one_name_for_each_stride(
    urls: list[URL],
    more_urls: list[URL],
    ticket_kind: str,
    layout: LayoutName,
    open_pool: OpenPool,
) -> None:
    """From two to four to eight, retired to four and moved: each older client is refused by itself."""
    skip_unless_it_has(layout, ticket_kind)
    urls = [*urls, *more_urls]
    two, four, eight = open_pool(urls[:2]), open_pool(urls[:4], 4), open_pool(urls, 8)
    two.create_table("photos", layout=layout)
    ids = [two.next_id("photos") for _ in range(20)]
    grow(urls, 2, 4)
    ids += [four.next_id("photos") for _ in range(20)]
    assert stubs(four) == {"stub_4"}
    with TicketPool(urls[:4], stride=4) as before, TicketPool(urls, stride=8) as after:
        resize.begin(before, after, "photos", gap=2000)
        ids += [i for pool in (four, eight) for _ in range(40) for i in pool.next_ids("photos", 4)]
        resize.finish(after, "photos")
    assert stubs(eight) == {"stub_8"}
    for _ in range(300):
        ids += eight.next_ids("photos", 8)
    for old in (two, four):
        woke, error = draw_until_refused(old)
        assert woke == []
        assert_told_to_grow(old, error, 8)
    resize.retire(eight, "photos", 4)
    left = open_pool(urls[:4], 8)
    for _ in range(300):
        ids += left.next_ids("photos", 8)
    assert_unique(ids)


def stubs(pool: TicketPool) -> set[str]:
    """The names of the stub columns of a pool's tables."""
    found = operations.table_states(pool, "photos").values()
    return {state.stub for state in found if isinstance(state, ActiveTable)}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_table_dropped_and_created_with_another_stride_is_fenced(
    urls: list[URL], ticket_kind: str, layout: LayoutName, open_pool: OpenPool
) -> None:
    skip_unless_it_has(layout, ticket_kind)
    old, new = open_pool(urls[:2]), open_pool(urls[:4], 4)
    old.create_table("photos", layout=layout)
    ids = [old.next_id("photos") for _ in range(20)]
    with TicketPool(urls[:2]) as migrations:
        operations.drop(migrations, "photos")
    new.create_table("photos", layout=layout)
    for _ in range(100):
        ids += new.next_ids("photos", 4)
    woke, error = draw_until_refused(old)
    assert woke == []
    assert_told_to_grow(old, error, 4)
    assert stubs(new) == {"stub_4"}
    # and back again, which its own name is for, too
    with TicketPool(urls[:4], stride=4) as migrations:
        operations.drop(migrations, "photos")
    again = open_pool(urls[:2])
    again.create_table("photos", layout=layout)
    assert stubs(again) == {"stub_2"}
    for _ in range(100):
        ids += again.next_ids("photos", 4)
    woke, error = draw_until_refused(new, 20)
    assert woke == []
    assert error is not None
    assert_unique(ids + [old.next_id("photos") for _ in range(20)])


def test_table_dropped_by_hand_is_fenced_for_another_stride(
    urls: list[URL], open_pool: OpenPool
) -> None:
    """No tombstone is left; the marks tell that there was a sequence, and how far it had come."""
    old, new = open_pool(urls[:2]), open_pool(urls[:4], 4)
    old.create_table("photos")
    ids = [i for _ in range(20) for i in old.next_ids("photos", 50)]
    old._marks.of("photos").write_raised(max(ids))  # as they are written behind the traffic
    for url in urls[:2]:
        run(url, "DROP TABLE photos")
    new.create_table("photos")
    assert stubs(new) == {"stub_4"}
    ids += [i for _ in range(20) for i in new.next_ids("photos", 50)]
    woke, error = draw_until_refused(old)
    assert woke == []
    assert_told_to_grow(old, error, 4)
    assert_unique(ids)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_table_dropped_by_pool_after_growth_stays_fenced(
    urls: list[URL], ticket_kind: str, layout: LayoutName, open_pool: OpenPool
) -> None:
    """Its numbers begin anew, and a client of before the growth that wakes up draws none of them."""
    skip_unless_it_has(layout, ticket_kind)
    old, new = open_pool(urls[:2]), open_pool(urls[:4], 4)
    old.create_table("photos", layout=layout)
    old.next_ids("photos", 20)
    grow(urls, 2, 4)
    for _ in range(2):  # nor is it forgotten by the second time
        new.drop_table("photos")
        new.create_table("photos", layout=layout)
        assert stubs(new) == {"stub_4"}
        ids = new.next_ids("photos", 8)
        assert max(ids) < 100
    woke, error = draw_until_refused(old)
    assert woke == []
    assert_told_to_grow(old, error, 4)


@pytest.mark.ticket_servers("sqlite")
@pytest.mark.parametrize("sent", [0, 1])
def test_drop_killed_between_its_statements_keeps_fence_and_marks(
    urls: list[URL], open_pool: OpenPool, monkeypatch: pytest.MonkeyPatch, sent: int
) -> None:
    """What is left begins above all that was issued, and by the stub column of its stride."""
    open_pool(urls[:2]).create_table("photos")
    grow(urls, 2, 4)
    new = open_pool(urls[:4], 4)
    ids = new.next_ids("photos", 400)
    new._marks.of("photos").write_raised(max(ids))

    def killed(stride: int, name: str) -> Iterator[ClauseElement]:
        yield from deletion(stride, name)[:sent]
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("sqla_tickets.high_water.store.deletion", killed)
        with pytest.raises(KeyboardInterrupt):
            new.drop_table("photos")
    again = open_pool(urls[:4], 4)
    again.create_table("photos")
    assert stubs(again) == {"stub_4"}
    assert min(again.next_ids("photos", 8)) > max(ids)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_tables_that_keep_their_stride_keep_their_name(
    urls: list[URL], ticket_kind: str, layout: LayoutName, open_pool: OpenPool
) -> None:
    """Plain clients share them: no move, conversion, drop or server that joins may take it away."""
    skip_unless_it_has(layout, ticket_kind)
    pool = open_pool(urls[:2])
    media = TicketPool(urls[2:4], name="media")
    pool.create_table("photos", layout=layout)
    ids = [pool.next_id("photos") for _ in range(4)]
    with media:
        operations.move(pool, "photos", media)
        operations.move(media, "photos", pool)
    operations.drop(pool, "photos")
    pool.create_table("photos", layout=layout)
    operations.rename(pool, "photos", "pictures")
    operations.rename(pool, "pictures", "photos")
    if ticket_kind in ("mariadb", "mysql"):
        for other in ("counter", "replace"):
            operations.convert(pool, "photos", other)
    assert stubs(pool) == {"stub"}
    assert_unique(ids + [pool.next_id("photos") for _ in range(4)])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_move_away_grow_and_move_back_refuses_the_sleeper(
    urls: list[URL],
    more_urls: list[URL],
    ticket_kind: str,
    layout: LayoutName,
    open_pool: OpenPool,
) -> None:
    """The table stands where it stood, with another stride; the tombstone remembers which one it had."""
    skip_unless_it_has(layout, ticket_kind)
    urls = [*urls, *more_urls]
    old = open_pool(urls[:2])
    old.create_table("photos", layout=layout)
    ids = [old.next_id("photos") for _ in range(20)]
    here, there = TicketPool(urls[:2]), TicketPool(urls[2:4], name="media")
    with here, there:
        operations.move(here, "photos", there)
    wide, back = TicketPool(urls[2:6], stride=4, name="media"), TicketPool(urls[:2], stride=4)
    with wide, back, TicketPool(urls[2:4], name="media") as before:
        resize.begin(before, wide, "photos", gap=2000)
        resize.finish(wide, "photos")
        with TicketPool([*urls[:2], *urls[6:]], stride=4) as home:
            operations.move(wide, "photos", home)
            assert stubs(home) == {"stub_4"}
            for _ in range(300):
                ids += home.next_ids("photos", 4)
    woke, error = draw_until_refused(old)
    assert woke == []
    assert_told_to_grow(old, error, 4)
    assert_unique(ids)


# -- what cannot be fenced


@MYSQL
def test_growth_by_a_user_without_alter_is_refused(
    urls: list[URL], ticket_kind: str, servers: ServerFixtures, open_pool: OpenPool
) -> None:
    """Before anything begins: nothing is opened on the servers that would join."""
    with TicketPool(urls[:2]) as owner:
        owner.create_table("photos")
    grant_only(
        mysql_like(servers, ticket_kind, 1),
        urls[1],
        "SELECT, INSERT, UPDATE, DELETE, LOCK TABLES, CREATE, DROP",
    )
    old, new = open_pool(urls[:2]), open_pool(urls[:4], 4)
    with pytest.raises(TicketTableError, match="GRANT ALTER"):
        resize.begin(old, new, "photos")
    assert list(operations.table_states(new, "photos").values())[2:] == [None, None]


def test_growth_begun_again_tells_of_servers_that_have_joined(
    urls: list[URL], open_pool: OpenPool
) -> None:
    """Ids of theirs are on the shards by then. Found by the simulation: the proof told a number that they were not above."""
    old, new = open_pool(urls[:2]), open_pool(urls[:4], 4)
    old.create_table("photos")
    resize.begin(old, new, "photos", gap=2000)
    drawn = max(new.next_ids("photos", 10))
    above = resize.begin(old, new, "photos", gap=2000, held=drawn)
    assert min(new.next_id("photos") for _ in range(4)) > above


@pytest.mark.ticket_servers("postgresql")
def test_growth_of_a_table_that_a_view_shows_is_refused(
    urls: list[URL], open_pool: OpenPool
) -> None:
    old, new = open_pool(urls[:2]), open_pool(urls[:4], 4)
    old.create_table("photos")
    run(urls[1], "CREATE VIEW shown AS SELECT id FROM photos")
    with pytest.raises(TicketTableError, match="view shown depends on table photos"):
        resize.begin(old, new, "photos")
    assert list(operations.table_states(new, "photos").values())[2:] == [None, None]
    assert {server.breaker.state for server in old.servers} == {"closed"}
    run(urls[1], "DROP VIEW shown")
    resize.begin(old, new, "photos")


@pytest.mark.ticket_servers("postgresql")
def test_growth_by_who_does_not_own_the_table_is_refused(
    urls: list[URL], as_application: Callable[[URL], URL], open_pool: OpenPool
) -> None:
    with TicketPool(urls[:2]) as owner:
        owner.create_table("photos")
    application = [as_application(url) for url in urls[:4]]
    old, new = open_pool(application[:2]), open_pool(application, 4)
    with pytest.raises(TicketTableError, match="OWNER TO"):
        resize.begin(old, new, "photos")


@MYSQL
@pytest.mark.parametrize("mode", ["", "STRICT_TRANS_TABLES"])
def test_plain_clients_after_growth_are_refused_until_changed(
    urls: list[URL], open_pool: OpenPool, mode: str
) -> None:
    """Flickr's statement names a column that is gone; without names, no value fits."""
    for offset, url in enumerate(urls[:2], 1):
        table = FLICKRS_TABLE.format(name="photos", engine="InnoDB")
        comment = f"COMMENT='{TableMetadata('replace', 2, offset)}'"
        run(url, f"{table} {comment}", f"INSERT INTO photos VALUES ({offset}, 'a')")
    connection = pymysql.connect(
        host=urls[0].host or "",
        port=urls[0].port or 0,
        user=urls[0].username,
        password=urls[0].password or "",
        database=urls[0].database,
        autocommit=True,
        sql_mode=mode,
    )
    with connection, connection.cursor() as cursor:

        def draw(statement: str, stride: int = 2) -> int:
            cursor.execute(f"SET auto_increment_increment={stride}, auto_increment_offset=1")
            cursor.execute(statement)
            return int(cursor.lastrowid)

        ids = [draw("REPLACE INTO photos (stub) VALUES ('a')") for _ in range(3)]
        ids.append(draw("REPLACE INTO photos VALUES (NULL, 'a')"))
        grow(urls, 2, 4)
        for statement in (
            "REPLACE INTO photos (stub) VALUES ('a')",
            "REPLACE INTO photos (id, stub) VALUES (NULL, 'a')",
            "REPLACE INTO photos SET stub = 'a'",
            "REPLACE INTO photos VALUES (NULL, 'a')",
            "INSERT INTO photos (stub) VALUES ('a') ON DUPLICATE KEY UPDATE id = id + 2",
            "UPDATE photos SET id = LAST_INSERT_ID(id + 2) WHERE stub = 'a'",
        ):
            with pytest.raises(pymysql.err.MySQLError):
                draw(statement)
        ids += [draw("REPLACE INTO photos (stub_4) VALUES ('a')", 4) for _ in range(500)]
    new = open_pool(urls[:4], 4)
    for _ in range(300):
        ids += new.next_ids("photos", 4)
    assert_unique(ids)


# -- a client or the growth, caught between any two of its statements


def with_seed() -> random.Random:
    """Random numbers that differ from run to run, and come again from the seed that is printed."""
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    return random.Random(seed)


def some_of(steps: range, kind: str, chooser: random.Random) -> list[int]:
    """All of them where a growth takes no time, elsewhere a few."""
    return [*steps] if kind == "sqlite" else chooser.sample(steps, min(6, len(steps)))


#: Seconds of silence that are none of a server: these tests open many connections on a machine that may be busy.
PATIENT = 10.0


class Sleepers:
    """Clients of the old configuration, whatever they do when the table changes."""

    def __init__(self, statements: StatementCounter, urls: Sequence[URL], name: str) -> None:
        self._pools = [
            TicketPool([statements.engine(url) for url in urls], hedge=False, timeout=PATIENT)
            for _ in range(2)
        ]
        self._name, self.ids = name, list[int]()
        self.errors: list[TicketError] = []

    def draw(self) -> None:
        """One, a few, and a block, by each."""
        for pool in self._pools:
            for n in (1, 3, 40):
                try:
                    self.ids += pool.next_ids(self._name, n)
                except TicketError as error:
                    self.errors.append(error)

    def close(self) -> None:
        for pool in self._pools:
            pool.dispose()


def check_after_resize(sleepers: Sleepers, urls: list[URL], name: str, ids: list[int]) -> None:
    """Nobody has what another one has, and the old clients get nothing any more."""
    before = len(sleepers.ids)
    sleepers.draw()
    assert len(sleepers.ids) == before
    assert {type(error) for error in sleepers.errors} <= {TicketTableError}
    with TicketPool(urls[:4], stride=4, hedge=False, timeout=PATIENT) as new:
        for server in new.servers:
            for _ in range(10):
                ids += [i for block in server.draw(name, 60) for i in block]
    assert_unique([*ids, *sleepers.ids])


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
def test_old_client_between_any_two_statements_of_growth(
    urls: list[URL], ticket_kind: str, layout: LayoutName
) -> None:
    skip_unless_it_has(layout, ticket_kind)

    def finish(statements: StatementCounter, name: str) -> None:
        with TicketPool(
            [statements.engine(url) for url in urls[:4]], stride=4, timeout=PATIENT
        ) as new:
            resize.finish(new, name)

    def prepare(name: str) -> Sleepers:
        with (
            TicketPool(urls[:2], timeout=PATIENT) as old,
            TicketPool(urls[:4], stride=4, timeout=PATIENT) as new,
        ):
            old.create_table(name, layout=layout)
            resize.begin(old, new, name, gap=3000)
        sleepers = Sleepers(StatementCounter(), urls[:2], name)
        sleepers.draw()
        return sleepers

    counted = StatementCounter()
    prepare("n").close()
    finish(counted, "n")
    for at in some_of(range(1, counted.count + 1), ticket_kind, with_seed()):
        name = f"n{at}"
        sleepers = prepare(name)
        assert sleepers.errors == []

        def meanwhile(_: int, sleepers: Sleepers = sleepers) -> None:
            sleepers.draw()

        statements = BetweenStatements(meanwhile, at)
        finish(statements, name)
        statements.close()
        sleepers.errors.clear()  # it may have found the table in between, or waited for it
        for server in (s for pool in sleepers._pools for s in pool.servers):
            server.table(name).release()
        check_after_resize(sleepers, urls, name, [])
        sleepers.close()


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
def test_growth_between_any_two_statements_of_an_old_client(
    urls: list[URL], ticket_kind: str, layout: LayoutName
) -> None:
    """The two REPLACEs of a block among them, as these connections take one statement at a time."""
    skip_unless_it_has(layout, ticket_kind)

    def finish(name: str) -> None:
        with TicketPool(urls[:4], stride=4, timeout=PATIENT) as new:
            resize.finish(new, name)

    def prepare(name: str) -> None:
        with (
            TicketPool(urls[:2], timeout=PATIENT) as old,
            TicketPool(urls[:4], stride=4, timeout=PATIENT) as new,
        ):
            old.create_table(name, layout=layout)
            resize.begin(old, new, name, gap=3000)

    counted = StatementCounter()
    prepare("n")
    warm = Sleepers(counted, urls[:2], "n")
    warm.draw()
    begin = counted.count
    warm.draw()
    warm.close()
    for at in some_of(range(begin + 1, counted.count + 1), ticket_kind, with_seed()):
        name = f"n{at}"
        prepare(name)

        def meanwhile(_: int, name: str = name) -> None:
            finish(name)

        statements = BetweenStatements(meanwhile, at)
        sleepers = Sleepers(statements, urls[:2], name)
        sleepers.draw()
        sleepers.draw()
        statements.close()
        finish(name)  # where it took fewer statements than before
        sleepers.errors.clear()
        check_after_resize(sleepers, urls, name, [])
        sleepers.close()


@pytest.mark.slow
@SQLITE
def test_growth_cut_off_at_any_change_is_ended(
    urls: list[URL], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Operators of the simulation are killed and frozen while servers of the other kinds grow."""
    # nobody ends the growth that was cut off while a draw waits for that
    set_timing(monkeypatch, redirects, move_seconds=0.0)

    def whole_resize(statements: StatementCounter, name: str) -> None:
        engines = [statements.engine(url) for url in (*urls[:2], *urls[:4])]
        with (
            TicketPool(engines[:2], timeout=PATIENT) as old,
            TicketPool(engines[2:], stride=4, timeout=PATIENT) as new,
        ):
            # the servers that joined may be found widened already
            with contextlib.suppress(TicketTableError):
                resize.begin(old, new, name, gap=3000)
            resize.finish(new, name)

    def prepare(name: str) -> Sleepers:
        with TicketPool(urls[:2], timeout=PATIENT) as old:
            old.create_table(name)
        sleepers = Sleepers(StatementCounter(), urls[:2], name)
        sleepers.draw()
        return sleepers

    counted = StatementCounter()
    prepare("n").close()
    whole_resize(counted, "n")
    losses: tuple[Loss, ...] = ("connection", "process", "answer")
    chooser = with_seed()
    for at in range(1, counted.changes + 1):
        lost = chooser.choice(losses)
        name = f"n{at}{lost}"
        sleepers = prepare(name)
        cut = KillAtChange(at, lost)
        with contextlib.suppress(TicketError):
            whole_resize(cut, name)
        cut.close()
        sleepers.draw()
        whole_resize(StatementCounter(), name)
        sleepers.errors.clear()
        for server in (s for pool in sleepers._pools for s in pool.servers):
            server.table(name).release()
        print(f"lost the {lost} at change {at} of {counted.changes}")
        check_after_resize(sleepers, urls, name, [])
        sleepers.close()


@SQLITE
def test_forked_and_buffered_clients_after_growth_are_refused(
    urls: list[URL], open_pool: OpenPool
) -> None:
    """Buffered tickets were issued, and stay valid; a fork has buffered none."""
    old = open_pool(urls[:2])
    old.create_table("photos")
    buffered = TicketSequence("photos", block=50)
    ids = [old.next_id(buffered) for _ in range(5)]
    left = old.buffered("photos")
    grow(urls, 2, 4)

    def child() -> str:
        woke, error = draw_until_refused(old)
        return f"{len(woke)} {type(error).__name__}"

    assert in_fork(child) == "0 TicketTableError"
    ids += [old.next_id(buffered) for _ in range(left)]
    with pytest.raises(TicketTableError, match="stride=4"):
        old.next_id(buffered)
    new = open_pool(urls[:4], 4)
    for _ in range(100):
        ids += new.next_ids("photos", 4)
    assert_unique(ids)


@SQLITE
def test_stub_column_of_another_stride_is_refused_without_metadata(
    urls: list[URL], open_pool: OpenPool
) -> None:
    """The name in the catalog is the truth, also where nobody can read a comment."""
    run(urls[0], "CREATE TABLE photos (stub_4 CHAR(1) NOT NULL PRIMARY KEY, id BIGINT NOT NULL)")
    run(urls[0], "INSERT INTO photos VALUES ('c', 5)")
    with pytest.raises(TicketTableError, match="found the column stub_4"):
        open_pool(urls[:1], 2).next_id("photos")
    assert open_pool(urls[:1], 4).next_id("photos") == 9


@pytest.mark.parametrize("route", routes("postgresql"), ids=str)
def test_cached_plan_of_another_type_leads_to_a_second_inspection(
    servers: ServerFixtures, route: Route, tmp_path: Path
) -> None:
    """As after a table was closed and opened again with another type of number."""
    urls = [route.fresh_database(servers, tmp_path, n) for n in range(2)]

    def work() -> None:
        with TicketPool(urls) as pool:
            pool.create_table("photos")
            ids = [pool.next_id("photos") for _ in range(20)]
            for url in urls:
                change = "ALTER TABLE photos ALTER COLUMN id TYPE integer"
                run(url.set(drivername="postgresql+psycopg"), change)
            ids += [pool.next_id("photos") for _ in range(4)]
            assert_unique(ids)
            assert {server.breaker.state for server in pool.servers} == {"closed"}
            assert [server.table("photos").errors for server in pool.servers] == [0, 0]

    route.run(work)


def test_stub_column_follows_the_one_before() -> None:
    """Where that is not known it has the stride's name, too."""
    dropped = Tombstone("dropped", "default", "photos", 41, "counter", stride=4)
    live = ActiveTable("counter", TableMetadata("counter", 4, 1), number=41)
    for before, name in (
        (None, "stub"),
        (live, "stub"),
        (live._replace(stub="stub_4"), "stub_4"),
        (dropped, "stub"),
        (dropped._replace(stub="stub_4"), "stub_4"),
        (dropped._replace(stride=2), "stub_4"),
        (dropped._replace(stride=0), "stub_4"),
        (dropped._replace(stride=0, layout=None), "stub"),
    ):
        assert tombstones.stub_column(4, None, before) == name, before
