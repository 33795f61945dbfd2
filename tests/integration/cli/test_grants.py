"""The least grants, as ``sqla-tickets grants`` prints them, given to users of real servers who have no others."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from sqlalchemy import URL, Engine, create_engine
from sqlalchemy.exc import DBAPIError

from sqla_tickets import NodeLeases, SnowflakeGenerator, TicketError, TicketPool
from sqla_tickets.cli.doctor import Finding, examine
from sqla_tickets.cli.inspection import inspect_pool
from sqla_tickets.dialects import LayoutName, Role, class_of
from sqla_tickets.high_water.statements import MARKS
from sqla_tickets.maintenance.tombstones import lacking_privileges
from sqla_tickets.tables.grants import ROLES, grants
from tests.support.command_line import options, run_cli
from tests.support.draws import OpenPool, assert_unique, run
from tests.support.servers import MySQLLike, PostgreSQL, ServerFixtures

pytestmark = pytest.mark.every_case

SECURITY = Path(__file__).parents[3] / "docs" / "operate" / "security.md"
KINDS = ("mysql", "mariadb", "postgresql")
SERVERS = pytest.mark.ticket_servers(*KINDS)


SqlServer = MySQLLike | PostgreSQL


def sql_server(servers: ServerFixtures, kind: str, number: int) -> SqlServer:
    server = servers.shared(kind, number)
    assert isinstance(server, (MySQLLike, PostgreSQL))
    return server


class Site:
    """Two ticket servers with sequences of every layout, and a user of each role on both."""

    def __init__(self, kind: str, servers: ServerFixtures) -> None:
        self.kind = kind
        self.servers = [sql_server(servers, kind, n) for n in range(2)]
        self.urls = {"migrate": [servers.fresh_database(server) for server in self.servers]}
        self._users: list[tuple[SqlServer, str, str]] = []
        for role in ("draw", "monitor"):
            self.urls[role] = [self._user(role, n) for n in range(2)]
        self.layouts: dict[str, LayoutName | None] = {"photos": None, "people": "counter"}
        with TicketPool(self.urls["migrate"]) as pool:
            for name, layout in self.layouts.items():
                pool.create_table(name, layout=layout)
            NodeLeases(pool).create_table()

    def _user(self, role: Role, n: int) -> URL:
        database = str(self.urls["migrate"][n].database)
        name = f"{role}_{database}"
        self.servers[n].create_user(name, role, database)
        self._users.append((self.servers[n], name, database))
        return self.urls["migrate"][n].set(username=name)

    def revoke(self, role: Role, privilege: str) -> None:
        """Take a privilege from the users of one role."""
        for server, url in zip(self.servers, self.urls[role], strict=True):
            database, user = str(url.database), str(url.username)
            if isinstance(server, PostgreSQL):
                with server.administrator(database) as cursor:
                    cursor.execute(
                        f"REVOKE {privilege} ON ALL TABLES IN SCHEMA public FROM {user}".encode()
                    )
            else:
                with server.administrator() as cursor:
                    cursor.execute(f"REVOKE {privilege} ON `{database}`.* FROM '{user}'@'%'")

    def close(self) -> None:
        for server, name, database in self._users:
            server.drop_user(name, database)


@pytest.fixture
def site(ticket_kind: str, servers: ServerFixtures) -> Iterator[Site]:
    site = Site(ticket_kind, servers)
    yield site
    site.close()


def of_grants(pool: TicketPool) -> list[Finding]:
    return [finding for finding in examine(pool) if "grants" in finding.check]


def marks(site: Site) -> set[tuple[str, int]]:
    found = [run(url, f"SELECT sequence, mark FROM {MARKS}") for url in site.urls["migrate"]]
    return {(str(name), int(str(mark))) for rows in found for name, mark in rows}


@SERVERS
def test_a_drawing_user_does_all_that_an_application_does(site: Site, open_pool: OpenPool) -> None:
    with TicketPool(site.urls["draw"]) as pool:
        NodeLeases(pool, duration=5)
        for name in site.layouts:
            ids = [pool.next_id(name) for _ in range(4)]
            (block,) = pool.reserve(name, 1000)
            assert_unique([*ids, *block])
        made = SnowflakeGenerator(pool, "events")
        assert_unique(made.next_ids(100))
        assert [lease.is_live for lease in NodeLeases(pool).status()] == [True]
        assert {(s.up, s.errors, s.breaker) for s in pool.status()} == {(True, 0, "closed")}
        assert of_grants(pool) == []
    written = {name for name, mark in marks(site) if mark >= 1000}
    assert written == set(site.layouts)
    again = open_pool(site.urls["draw"])
    for name in site.layouts:
        assert again.next_id(name) > 0
        assert all(
            server.table(name).largest_mark for server in again.servers if server.table(name).draws
        )


@SERVERS
@pytest.mark.parametrize(
    "statement",
    [
        "DROP TABLE photos",
        "TRUNCATE TABLE photos",
        "ALTER TABLE photos ADD x INT",
        "CREATE TABLE t (n INT)",
    ],
)
def test_a_drawing_user_changes_no_table(site: Site, statement: str) -> None:
    for role in ("draw", "monitor"):
        with pytest.raises(DBAPIError, match=r"denied|must be owner"):
            run(site.urls[role][0], statement)


@SERVERS
def test_a_monitoring_user_sees_everything_and_writes_nothing(
    site: Site, open_pool: OpenPool, tmp_path: Path
) -> None:
    drawn = open_pool(site.urls["draw"])
    for name in site.layouts:
        drawn.next_ids(name, 10)
    drawn.dispose()
    before = marks(site)
    on = options(site.urls["monitor"])
    for command in (["status", "--over", 0], ["metrics"]):
        done = run_cli(*command, *on)
        assert done.code == 0, done.text
    shard = URL.create("sqlite", database=str(tmp_path / "shard.db"))
    run(shard, "CREATE TABLE photos (id BIGINT PRIMARY KEY)", "INSERT INTO photos VALUES (1)")
    done = run_cli("audit", "--column", "photos.id", "--shard", shard.render_as_string(False), *on)
    assert done.code == 0, done.text
    pool = open_pool(site.urls["monitor"])
    assert of_grants(pool) == []
    for facts in inspect_pool(pool).servers:
        assert (facts.error, facts.is_replica) == (None, False)
        assert facts.replicas == (None if site.kind == "postgresql" else 0)
        assert set(facts.tables) >= set(site.layouts)
    with pytest.raises(TicketError, match="missing privilege"):
        pool.next_id("photos")
    assert marks(site) == before
    numbers = run(site.urls["migrate"][0], "SELECT id FROM photos UNION SELECT id FROM people")
    assert all(int(str(number)) <= 100 for (number,) in numbers)


@SERVERS
def test_grants_are_found_where_no_url_names_the_database(site: Site, open_pool: OpenPool) -> None:
    """A creator names it, as an option file or a service file may."""
    engines: list[Engine] = []
    for url in site.urls["draw"]:
        named = create_engine(url)
        dialect, (_, arguments) = named.dialect, named.dialect.create_connect_args(url)
        connect = partial(dialect.loaded_dbapi.connect, **arguments)
        engines.append(create_engine(f"{url.drivername}://", creator=connect))
    pool = open_pool(engines)
    assert of_grants(pool) == []
    for server in pool.servers:
        assert not server.do("photos", lacking_privileges, "photos", None, "draw")


@SERVERS
def test_restore_by_a_monitoring_user_names_another(site: Site) -> None:
    """Before anything is done, and once for all privileges; who draws may restore."""
    lacking = set(class_of(site.kind).table_privileges("draw")) - {"SELECT"}
    for role in ("monitor", "draw"):
        for more in (["--dry-run"], []):
            done = run_cli("restore", "--yes", "--offset", 1, *more, *options(site.urls[role]))
            if role == "draw":
                assert done.code == 0, done.text
                assert "NOT POSSIBLE" not in done.text
                continue
            assert done.code == (1 if more else 3), done.text
            (said,) = set(re.findall(r"NOT POSSIBLE: this user lacks (.+) on \w+://", done.text))
            assert set(said.split(", ")) == lacking
            assert done.text.count("NOT DONE") == (0 if more else len(site.layouts))
            advised = done.text.count("with the user of the migrations")
            assert advised == (1 if more else 2) * len(site.layouts)
            assert "GRANT " not in done.text


@SERVERS
def test_restore_says_which_peer_stored_no_mark(site: Site) -> None:
    """A later set-back of the server would not be seen."""
    on = options([site.urls["draw"][0], site.urls["monitor"][1]])
    done = run_cli("restore", "--yes", "photos", "--offset", 1, *on)
    assert done.code == 3, done.text
    assert "Done: from now on, every ticket of 'photos'" in done.text
    assert "(offset 2) did not store the new high-water mark of" in done.text
    assert "(a missing privilege)" in done.text
    assert (
        run_cli("restore", "--yes", "photos", "--offset", 1, *options(site.urls["draw"])).code == 0
    )


@SERVERS
def test_no_privilege_of_a_drawing_user_can_be_spared(site: Site, open_pool: OpenPool) -> None:
    for privilege in class_of(site.kind).table_privileges("draw"):
        site.revoke("draw", privilege)
        found = of_grants(open_pool(site.urls["draw"]))
        assert {f.value for f in found} == {f"without {privilege}"}
        assert not works(open_pool(site.urls["draw"]), site), f"{privilege} is of no use"
        for server, url in zip(site.servers, site.urls["draw"], strict=True):
            server.grant("draw", str(url.username), str(url.database))


def works(pool: TicketPool, site: Site) -> bool:
    """Whether all that an application does is done, in one draw for each block and with marks."""
    before = marks(site)
    try:
        for name in site.layouts:
            if len(pool.reserve(name, 1000)) != 1:
                return False
        SnowflakeGenerator(pool, "events").next_id()
    except TicketError:
        return False
    pool.dispose()
    return {name for name, _ in marks(site) - before} == set(site.layouts)


@SERVERS
def test_doctor_tells_what_is_more_than_drawing_needs(site: Site, open_pool: OpenPool) -> None:
    found = of_grants(open_pool(site.urls["migrate"]))
    assert {(f.check, f.severity) for f in found} == {("too_many_grants", "advice")}
    more = ("CREATE", "ALTER", "DROP")
    owners = ("OWNER", "DELETE", "TRUNCATE")
    surplus = set(owners if site.kind == "postgresql" else more)
    assert {frozenset(f.value.split(", ")) for f in found} == {frozenset(surplus)}


@SERVERS
def test_what_a_leaked_password_allows(site: Site, open_pool: OpenPool) -> None:
    """Somebody has the password of an application, and the numbers are in rows that it may update."""
    running, leaked = open_pool(site.urls["draw"]), site.urls["draw"]
    ids = [running.next_id("people") for _ in range(100)]
    with TicketPool(site.urls["draw"]) as quick:
        ids += quick.next_ids("people", 10)  # and its marks
    run(leaked[0], "UPDATE people SET id = 1")
    for pool in (running, open_pool(site.urls["draw"])):
        ids += [pool.next_id("people") for _ in range(10)]
        assert_unique(ids)
        assert [s.breaker for s in pool.status(["people"])] == ["quarantined", "closed"]
    run(leaked[0], f"UPDATE people SET id = {2**63 - 1}")
    run(leaked[1], "UPDATE people SET id = 2", f"UPDATE {MARKS} SET mark = 1")
    with pytest.raises(TicketError, match="broken its promise"):
        running.next_id("people")
    with pytest.raises(DBAPIError, match=r"denied|must be owner"):
        run(leaked[0], "DROP TABLE people")


@pytest.mark.ticket_servers("postgresql")
def test_what_a_migration_creates_later_is_for_all_roles(site: Site, open_pool: OpenPool) -> None:
    with TicketPool(site.urls["migrate"]) as pool:
        pool.create_table("albums")
    assert open_pool(site.urls["draw"]).next_id("albums") > 0
    assert open_pool(site.urls["monitor"]).status(["albums"])[0].last_ticket is not None
    with pytest.raises(DBAPIError, match="denied"):
        run(site.urls["draw"][0], "DELETE FROM albums")


@pytest.mark.every_kind
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("role", ROLES)
def test_the_command_prints_what_the_page_says(kind: str, role: Role) -> None:
    done = run_cli("grants", role, "--on", kind)
    user = {"draw": "tickets", "migrate": "migrations", "monitor": "monitor"}[role]
    expected = grants(kind, role, user=user, database="tickets")
    assert (done.code, done.text) == (0, "".join(f"{line};\n" for line in expected))
    assert run_cli("grants", role, "--on", kind, "--json").json == {"grants": expected}
    page = SECURITY.read_text()
    for line in expected:
        assert line in page, f"{SECURITY} lacks {line}"


@pytest.mark.parametrize("kind", ["oracle", "sqlite"])
def test_kind_without_users_is_refused_by_its_name(kind: str) -> None:
    done = run_cli("grants", "draw", "--on", kind)
    assert done.code == 2
    assert kind in done.text.lower()


def test_missing_kind_is_refused_with_the_kinds() -> None:
    done = run_cli("grants", "draw")
    assert done.code == 2
    assert "mysql, mariadb or postgresql" in done.text


def test_names_cannot_end_a_statement() -> None:
    asked = ["--on", "mysql", "--user", "a'b", "--database", "a`b"]
    assert "ON `a``b`.* TO 'a''b'@'%';" in run_cli("grants", "draw", *asked).text
    for kind in KINDS:
        for name in ("", "a\\", "a\nb"):
            assert run_cli("grants", "draw", "--on", kind, "--database", name).code == 2
