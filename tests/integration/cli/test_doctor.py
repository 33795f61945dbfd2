"""``sqla-tickets doctor``: a healthy pair has no finding, and each thing that is put wrong has one."""

from __future__ import annotations

import contextlib
import re
import shlex
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

import pytest
from sqlalchemy import URL, create_engine
from sqlalchemy.engine.interfaces import DBAPICursor
from sqlalchemy.pool import NullPool

from sqla_tickets import (
    BitLayout,
    NodeLeases,
    SnowflakeGenerator,
    TicketError,
    TicketIntegrityError,
    TicketPool,
    TicketsExhausted,
    TicketTableError,
)
from sqla_tickets import concurrency as clock
from sqla_tickets.cli.doctor import Code, Finding, examine
from sqla_tickets.dialects import class_of
from sqla_tickets.high_water.statements import MARKS
from sqla_tickets.maintenance import resize, tombstones
from sqla_tickets.snowflake import lease_table
from tests.support.command_line import options, run_cli
from tests.support.draws import FLICKRS_TABLE, OpenPool, fresh_pair, grant_only, run, setting, until
from tests.support.servers import PASSWORD, USER, MySQLLike, PostgreSQL, ServerFixtures
from tests.support.servers.ports import free_port

pytestmark = pytest.mark.every_case

if TYPE_CHECKING:
    from typing_extensions import LiteralString

LEAST = class_of("mysql").table_privileges("draw")
MYSQL_LIKE = pytest.mark.ticket_servers("mariadb", "mysql")
MARIADB = pytest.mark.ticket_servers("mariadb")


class Pair:
    """Two ticket servers as they should be, with a sequence ``photos``."""

    def __init__(self, kind: str, servers: ServerFixtures, open_pool: OpenPool) -> None:
        self.first, self.second, self.urls = fresh_pair(servers, kind)
        self.pool = open_pool(self.urls)
        self.pool.create_table("photos")
        self.pool.next_ids("photos", 3)
        for server, url in zip((self.first, self.second), self.urls, strict=True):
            grant_only(server, url, *LEAST)

    @property
    def findings(self) -> list[Finding]:
        return examine(self.pool)

    def only(self, code: str, *, offsets: tuple[int, ...] = (1,)) -> Finding:
        """The first of the findings, which are this one alone, on these servers."""
        found = self.findings
        assert {finding.code for finding in found} == {code}, found
        assert [f"(offset {n})" for n in offsets] == [f.server[-10:] for f in found]
        assert all(f.variable and f.value and f.why and f.fix for f in found)
        return found[0]


@pytest.fixture
def pair(ticket_kind: str, servers: ServerFixtures, open_pool: OpenPool) -> Iterator[Pair]:
    pair = Pair(ticket_kind, servers, open_pool)
    more = {"information_schema_stats_expiry": 0} if ticket_kind == "mysql" else {}
    with contextlib.ExitStack() as settings:
        for offset, server in enumerate((pair.first, pair.second), 1):
            values = {"auto_increment_increment": 2, "auto_increment_offset": offset, **more}
            settings.enter_context(setting(server, **values))
        yield pair


@contextlib.contextmanager
def text_setting(server: MySQLLike, variable: str, value: str) -> Iterator[None]:
    with server.administrator() as cursor:
        cursor.execute(f"SELECT @@GLOBAL.{variable}")
        ((before,),) = cursor.fetchall()
        cursor.execute(f"SET GLOBAL {variable} = %s", [value])
        try:
            yield
        finally:
            cursor.execute(f"SET GLOBAL {variable} = %s", [before])


@MARIADB
def test_doctor_finds_a_mark_that_cannot_be_true(pair: Pair) -> None:
    pair.pool._marks.flush()
    forged = f"UPDATE {MARKS} SET mark = {2**62} WHERE sequence = 'photos'"
    run(pair.urls[0], forged)
    finding = pair.only("impossible-mark")
    assert str(pair.pool.servers[1]) in finding.why
    done = run_cli("restore", "photos", "--offset", "2", "--dry-run", *options(pair.urls))
    assert done.code != 0
    assert "cannot be true" in done.text
    run(pair.urls[0], finding.fix.partition(";")[0])
    assert pair.findings == []


@pytest.mark.ticket_servers("sqlite", "mariadb", "postgresql")
def test_doctor_finds_a_growth_that_one_server_shows(
    ticket_kind: str, servers: ServerFixtures, open_pool: OpenPool, tmp_path: Path
) -> None:
    """A forged row ends all draws; a growth that every server shows is no finding."""
    urls = [URL.create("sqlite", database=f"{tmp_path}/{n}.db") for n in range(4)]
    if ticket_kind != "sqlite":
        urls = [servers.fresh_database(servers.shared(ticket_kind, n % 2)) for n in range(4)]
    pool = open_pool(urls[:2])
    pool.create_table("photos")
    run(urls[0], f"INSERT INTO {MARKS} VALUES ('photos', 4, 0, 0, 1)")
    drawing = open_pool(urls[:2])
    with pytest.raises(TicketsExhausted, match="stride=4"):
        until(
            lambda: drawing.next_id("photos") < 0
        )  # one of the servers may issue some before it knows
    (finding,) = [f for f in examine(pool) if f.check == "forged_rows"]
    assert (finding.code, finding.severity) == ("unconfirmed-growth", "stops")
    assert finding.server == str(pool.servers[0])
    (statement,) = re.findall(r"DELETE FROM [^;]*", finding.fix)
    run(urls[0], statement)
    assert open_pool(urls[:2]).next_id("photos") > 0
    resize.begin(pool, open_pool(urls, 4), "photos")
    assert [f for f in examine(open_pool(urls[:2])) if f.check == "forged_rows"] == []


@MARIADB
def test_doctor_finds_a_horizon_that_cannot_be_true(pair: Pair, open_pool: OpenPool) -> None:
    create_node_table(pair)
    SnowflakeGenerator(pair.pool, "ids").next_id()
    assert pair.findings == []
    run(pair.urls[0], f"UPDATE ticket_nodes SET horizon = {9 * 10**18}")
    finding = pair.only("impossible-horizon")
    run(pair.urls[0], finding.fix.partition(";")[0])
    assert "NodeLeases(pool).create_table()" in finding.fix
    pair.only("node-numbers-missing")  # that of its own row was one of them
    create_node_table(pair)
    assert pair.findings == []


@pytest.mark.ticket_servers("sqlite", "mariadb", "postgresql")
def test_horizons_of_long_leases_are_no_finding(
    ticket_urls: list[URL], open_pool: OpenPool
) -> None:
    """The command line does not know how long the leases of the processes are, and they may become longer."""
    layout = BitLayout(41, 1, 12)
    pools = [open_pool(ticket_urls) for _ in range(3)]
    NodeLeases(pools[2], duration=365 * 86_400).create_table()
    for pool in pools[:2]:
        SnowflakeGenerator(pool, "ids", layout).next_id()
    for pool in pools[:2]:
        pool.dispose()
    SnowflakeGenerator(pools[2], "ids", layout).next_id()
    assert forged_rows(ticket_urls, open_pool) == []


@pytest.mark.ticket_servers("sqlite", "mariadb", "postgresql")
def test_doctor_advises_on_a_horizon_of_a_short_lease(
    ticket_urls: list[URL], open_pool: OpenPool
) -> None:
    """It can be true, so nothing ignores it: the number is of no use before that time."""
    pool = open_pool(ticket_urls)
    NodeLeases(pool).create_table()
    SnowflakeGenerator(pool, "ids").next_id()
    assert forged_rows(ticket_urls, open_pool) == []
    forged = clock.wall() + 30 * lease_table.DAY
    run(ticket_urls[0], f"UPDATE ticket_nodes SET horizon = {forged} WHERE node >= 0")
    (finding,) = forged_rows(ticket_urls, open_pool)
    assert (finding.code, finding.severity) == ("late-horizon", "advice")
    assert str(forged) in finding.value
    (statement,) = re.findall(r"UPDATE [^;]*", finding.fix)
    run(ticket_urls[0], statement)
    assert forged_rows(ticket_urls, open_pool) == []


def forged_rows(urls: list[URL], open_pool: OpenPool) -> list[Finding]:
    return [f for f in examine(open_pool(urls)) if f.check == "forged_rows"]


def create_node_table(pair: Pair) -> None:
    """Create the tables of node numbers, or complete them, as a user who may."""
    for server, url in zip((pair.first, pair.second), pair.urls, strict=True):
        grant_only(server, url, "ALL PRIVILEGES")
    NodeLeases(pair.pool).create_table()
    for server, url in zip((pair.first, pair.second), pair.urls, strict=True):
        grant_only(server, url, *LEAST)


@MYSQL_LIKE
def test_a_healthy_pair_has_no_finding(pair: Pair) -> None:
    assert pair.findings == []
    done = run_cli("doctor", *options(pair.urls))
    assert (done.code, done.text) == (0, "No findings: the ticket servers are healthy.\n")
    assert run_cli("doctor", *options(pair.urls), "--json").json == {"findings": []}


@pytest.mark.ticket_servers("sqlite")
def test_two_files_have_no_finding(pool: TicketPool) -> None:
    pool.next_ids("photos", 3)
    assert examine(pool) == []


@contextlib.contextmanager
def altered(cluster: PostgreSQL, setting: LiteralString, value: LiteralString) -> Iterator[None]:
    """Give a cluster of PostgreSQL another setting for a while."""
    before = shown(cluster, setting)
    alter(cluster, f"SET {setting} = {value}")
    wait_for(cluster, setting, value)
    try:
        yield
    finally:
        alter(cluster, f"RESET {setting}")
        wait_for(cluster, setting, before)


def wait_for(cluster: PostgreSQL, setting: LiteralString, value: str) -> None:
    """It reads its files in the background."""
    deadline = time.monotonic() + 90
    while (seen := shown(cluster, setting)) != value:
        assert time.monotonic() < deadline, f"{setting} is {seen}, and was to be {value}"
        time.sleep(0.02)


def alter(cluster: PostgreSQL, what: LiteralString) -> None:
    with cluster.administrator() as cursor:
        cursor.execute(f"ALTER SYSTEM {what}")
        cursor.execute("SELECT pg_reload_conf()")


def shown(cluster: PostgreSQL, setting: LiteralString) -> str:
    with cluster.administrator() as cursor:
        ((value,),) = cursor.execute(f"SHOW {setting}").fetchall()
    return str(value)


@pytest.mark.ticket_servers("postgresql")
def test_the_cluster_of_these_tests_which_does_not_flush(pool: TicketPool) -> None:
    """It is one for both servers, started without fsync, and the tests' user owns its tables."""
    found = examine(pool)
    assert {finding.code for finding in found} == {"fsync", "same-server", "grants-dangerous"}
    assert {f.severity for f in found if f.code == "fsync"} == {"repeats"}


@pytest.mark.ticket_servers("postgresql")
def test_a_pair_of_postgresql(servers: ServerFixtures, open_pool: OpenPool) -> None:
    first, second = (servers.new_postgresql("--fsync=on") for _ in range(2))
    urls = [servers.fresh_database(first), servers.fresh_database(second)]
    with TicketPool(urls) as migrating:
        migrating.create_table("photos")
    for n, server in enumerate((first, second)):
        server.create_user("drawing", "draw", str(urls[n].database))
        urls[n] = urls[n].set(username="drawing")
    pool = open_pool(urls)
    pool.next_ids("photos", 3)
    assert examine(pool) == []
    cases: tuple[tuple[LiteralString, LiteralString, str, str], ...] = (
        ("full_page_writes", "off", "full-page-writes", "repeats"),
        ("default_transaction_read_only", "on", "read-only", "stops"),
    )
    for name, value, code, severity in cases:
        with altered(second, name, value):
            (finding,) = examine(pool)
        assert (finding.code, finding.severity, finding.value) == (code, severity, value)
        assert f"ALTER SYSTEM SET {name} = " in finding.fix
    (finding,) = examine(open_pool([urls[0], urls[1].set(host="0.0.0.0")]))
    assert finding.code == "no-encryption"
    duplicate = servers.fresh_database(first)
    found = examine(open_pool([urls[0], duplicate]), ["photos"])
    assert [f.code for f in found if "offset 1" in f.server] == ["same-server"]


@MYSQL_LIKE
def test_a_crash_may_forget_tickets(pair: Pair) -> None:
    with setting(pair.first, innodb_flush_log_at_trx_commit=2):
        finding = pair.only("flush-setting")
        assert (finding.severity, finding.value) == ("repeats", "2")
        done = run_cli("doctor", *options(pair.urls))
    assert done.code == 1
    assert "IDS CAN REPEAT" in done.text
    assert "SET GLOBAL innodb_flush_log_at_trx_commit = 1" in done.text


@MARIADB
def test_a_log_that_is_flushed_more_often_than_need_be(pair: Pair) -> None:
    with setting(pair.first, innodb_flush_log_at_trx_commit=3):
        assert pair.findings == []


@pytest.mark.ticket_servers("mysql")
def test_a_server_without_a_redo_log(pair: Pair) -> None:
    with pair.first.administrator() as cursor:
        cursor.execute("ALTER INSTANCE DISABLE INNODB REDO_LOG")
        try:
            assert pair.only("redo-log").severity == "repeats"
        finally:
            cursor.execute("ALTER INSTANCE ENABLE INNODB REDO_LOG")


@MYSQL_LIKE
def test_tables_without_a_redo_log(pair: Pair, ticket_kind: str) -> None:
    engines = ["MyISAM", "Aria" if ticket_kind == "mariadb" else "MyISAM"]
    for server, url, engine in zip((pair.first, pair.second), pair.urls, engines, strict=True):
        with server.administrator() as cursor:
            cursor.execute(f"ALTER TABLE `{url.database}`.photos ENGINE = {engine}")
    pair.only("storage-engine", offsets=(1, 2))
    assert [finding.value for finding in pair.findings] == engines


@MYSQL_LIKE
def test_increments_that_disagree_with_the_pool(pair: Pair) -> None:
    with setting(pair.first, auto_increment_increment=1, auto_increment_offset=1):
        assert pair.findings == [], "every table here is drawn from by this package alone"
        with pair.first.administrator() as cursor:
            cursor.execute(f"USE `{pair.urls[0].database}`")
            cursor.execute("ALTER TABLE photos COMMENT = ''")
        # who made a table without metadata may trust the settings
        assert pair.only("global-increments").severity == "repeats"
        assert run_cli("doctor", *options(pair.urls)).code == 1


@MYSQL_LIKE
def test_an_offset_above_the_increment(pair: Pair) -> None:
    with setting(pair.second, auto_increment_increment=2, auto_increment_offset=5):
        finding = pair.only("offset-above-increment", offsets=(2,))
    assert finding.severity == "repeats"
    assert "above" in finding.why


@MARIADB
def test_a_server_with_the_wrong_options(
    pair: Pair, servers: ServerFixtures, open_pool: OpenPool
) -> None:
    """An old release, by its own account, which replicates, and writes a log that it does not flush.

    And somebody has forgotten that it was started to save what was left.
    """
    bad = servers.new_mariadb(
        "--log-bin",
        "--sync-binlog=0",
        "--version=10.1.48-MariaDB",
        "--server-id=7",
        "--innodb-force-recovery=1",
    )
    url = servers.fresh_database(bad)
    with bad.administrator() as cursor:
        cursor.execute(f"GRANT REPLICATION CLIENT, SLAVE MONITOR ON *.* TO '{USER}'@'%'")
        cursor.execute("SET GLOBAL auto_increment_increment = 2, GLOBAL auto_increment_offset = 2")
        cursor.execute("CHANGE MASTER TO MASTER_HOST = '127.0.0.1', MASTER_PORT = 1")
    grant_only(bad, url, *LEAST)
    found = {f.code: f for f in examine(open_pool([pair.urls[0], url])) if f.server[-2] == "2"}
    assert set(found) == {
        "old-version",
        "binary-log",
        "recovery-mode",
        "replica",
        "table-missing",
    }
    assert (found["recovery-mode"].severity, found["recovery-mode"].value) == ("stops", "1")
    assert (found["old-version"].severity, found["old-version"].value) == ("repeats", "10.1.48")
    assert (found["binary-log"].severity, found["binary-log"].value) == ("repeats", "0")
    assert "lack the last tickets" in found["binary-log"].why
    assert found["replica"].severity == "repeats"
    assert found["table-missing"].value == "missing"


@MARIADB
def test_old_release_without_a_counter_in_memory(
    servers: ServerFixtures, open_pool: OpenPool
) -> None:
    """The layout 'counter' is the other remedy."""
    url = servers.fresh_database(servers.new_mariadb("--version=10.1.48-MariaDB"))
    pool = open_pool([url])
    pool.create_table("photos", layout="counter")
    assert "old-version" not in {f.code for f in examine(pool)}
    run(url, FLICKRS_TABLE.format(name="Tickets64", engine="InnoDB"))
    assert "old-version" in {f.code for f in examine(pool, ["Tickets64"])}


@pytest.mark.ticket_servers("mysql")
def test_a_member_of_a_group(servers: ServerFixtures, open_pool: OpenPool, pair: Pair) -> None:
    """Of one, as every group is at its beginning; only one of several primaries sets increments."""
    name, address = "--loose-group-replication-", f"127.0.0.1:{free_port()}"
    member = servers.new_mysql(
        "--server-id=5",
        "--log-bin=binlog",
        "--gtid-mode=ON",
        "--enforce-gtid-consistency=ON",
        "--plugin-load-add=group_replication.so",
        "--auto-increment-increment=1",
        f"{name}group-name=6c3cd0c3-0d58-4d4f-8d7c-0a1e4d1a8f1b",
        f"{name}local-address={address}",
        f"{name}group-seeds={address}",
        f"{name}start-on-boot=OFF",
        f"{name}bootstrap-group=ON",
    )
    urls = [servers.fresh_database(pair.first), servers.fresh_database(member)]
    pool = open_pool(urls)
    run(urls[1], FLICKRS_TABLE.format(name="Tickets64", engine="InnoDB"))
    shown: list[tuple[object, bool]] = []
    with member.administrator() as cursor:
        for has_one_primary in (1, 0):
            cursor.execute(f"SET GLOBAL group_replication_single_primary_mode = {has_one_primary}")
            cursor.execute("START GROUP_REPLICATION")
            cursor.execute("SELECT @@GLOBAL.auto_increment_increment")
            ((increment,),) = cursor.fetchall()
            found = {f.code for f in examine(pool, ["Tickets64"]) if f.server[-2] == "2"}
            shown.append((increment, "group-replication" in found))
            cursor.execute("STOP GROUP_REPLICATION")
        with pytest.raises(TicketTableError, match=r"single_primary_mode = OFF.*'counter'"):
            pool.create_table("albums")
    assert shown == [(1, False), (7, True)]


@MYSQL_LIKE
def test_both_addresses_lead_to_one_server(pair: Pair, servers: ServerFixtures) -> None:
    with setting(pair.second, auto_increment_offset=1):
        other = servers.fresh_database(pair.first)
        grant_only(pair.first, other, *LEAST)
        with TicketPool([pair.urls[0], other.set(host="localhost")]) as duplicates:
            found = [f for f in examine(duplicates) if f.code == "same-server"]
    assert [f.severity for f in found] == ["stops", "stops"]


@MYSQL_LIKE
def test_a_server_that_may_not_be_written_to(pair: Pair) -> None:
    with setting(pair.second, read_only=1):
        assert pair.only("read-only", offsets=(2,)).severity == "stops"


def test_a_server_whose_storage_engine_takes_no_writes(
    servers: ServerFixtures, open_pool: OpenPool
) -> None:
    own = servers.new_mariadb()
    url = servers.fresh_database(own)
    pool = open_pool([url], stride=2)
    pool.create_table("people", layout="counter")
    pool.create_table("photos")
    own.stop()
    own.options.append("--innodb-read-only")
    own.start()
    for refused in (
        lambda: pool.next_id("photos"),
        lambda: pool.next_ids("photos", 3),
        lambda: pool.next_id("people"),
        lambda: pool.create_table("events"),
    ):
        with pytest.raises(TicketError, match="the server takes no writes"):
            refused()
    (finding,) = (f for f in examine(pool) if f.code == "read-only")
    assert (finding.variable, finding.value, finding.severity) == (
        "innodb_read_only",
        "ON",
        "stops",
    )
    assert "start it without that setting" in finding.fix


@MYSQL_LIKE
def test_a_server_that_is_down(pair: Pair) -> None:
    pair.second.kill()
    (finding,) = pair.findings
    assert (finding.code, finding.severity) == ("unreachable", "stops")
    assert str(pair.urls[1].port) in finding.server
    assert "that it is running" not in finding.why, "what to do is in `fix`"
    assert "sqla-tickets restore --offset 2" in finding.fix


@MARIADB
def test_a_server_that_is_full(servers: ServerFixtures, open_pool: OpenPool) -> None:
    """It is not down: `status` and `doctor` give the same advice."""
    full = servers.new_mariadb("--max-user-connections=1")
    urls = [servers.fresh_database(servers.mariadb(0)), servers.fresh_database(full)]
    with TicketPool(urls) as creating:
        creating.create_table("photos")
    with create_engine(urls[1], poolclass=NullPool).connect():
        found = [f for f in examine(open_pool(urls)) if f.code == "unreachable"]
        status = run_cli("status", *options(urls), "--over", 0)
    assert [f.server[-2] for f in found] == ["2"]
    assert found[0].fix.startswith("Wait. If it lasts, end the session")
    assert found[0].fix in " ".join(status.text.split())


@pytest.mark.ticket_servers("postgresql")
def test_a_server_in_recovery(
    pool: TicketPool, ticket_urls: list[URL], servers: ServerFixtures, open_pool: OpenPool
) -> None:
    standby = servers.new_standby(servers.postgresql())
    pool = open_pool([ticket_urls[0].set(port=standby.port), ticket_urls[1]])
    (finding,) = (f for f in examine(pool) if f.code == "in-recovery")
    assert (finding.severity, finding.variable) == ("stops", "pg_is_in_recovery()")
    assert str(standby.port) in finding.server
    assert {pool.next_id("photos") % 2 for _ in range(4)} == {0}


def test_a_table_that_is_missing_or_empty(pool: TicketPool, ticket_urls: list[URL]) -> None:
    pool.create_table("people")
    run(ticket_urls[0], "DROP TABLE people")
    run(ticket_urls[1], "DELETE FROM photos")
    found = {f.variable: f for f in examine(pool) if f.check == "tables"}
    assert {name: f.code for name, f in found.items()} == {
        "table people": "table-missing",
        "table photos": "table-empty",
    }
    assert found["table people"].fix == "sqla-tickets create people"


def test_advice_names_the_pool(ticket_urls: list[URL]) -> None:
    with TicketPool(ticket_urls, name="media") as pool:
        pool.create_table("photos")
        run(ticket_urls[0], "DROP TABLE photos")
        (found,) = (f for f in examine(pool) if f.check == "tables")
    assert found.fix == "sqla-tickets create photos --pool media"


@MYSQL_LIKE
def test_a_table_of_another_pool(pair: Pair, open_pool: OpenPool) -> None:
    found = [f for f in examine(open_pool(pair.urls[::-1])) if f.code == "table-unfit"]
    assert len(found) == 2
    assert all("numbered differently" in f.why for f in found)


@pytest.mark.ticket_servers("sqlite")
def test_a_table_that_was_set_back(
    pool: TicketPool, ticket_urls: list[URL], open_pool: OpenPool
) -> None:
    first, second = pool.servers
    pool.create_table("people")
    last = [second.draw(name, 50)[-1][-1] for name in ("people", "photos")]
    for name in ("people", "photos"):
        run(ticket_urls[1], f"UPDATE {name} SET id = 2")
    pool._marks.flush()
    found = examine(open_pool(ticket_urls))
    assert [(f.code, f.severity, f.sequence) for f in found] == [
        ("set-back", "repeats", "people"),
        ("set-back", "repeats", "photos"),
    ]
    for finding, issued in zip(found, last, strict=True):
        assert f"it shows 2, and its peers know that it issued {issued:,}" in finding.why
        assert "restore --offset 2" in finding.fix
    with pytest.raises(TicketIntegrityError):
        second.draw("photos", 1)
    until(lambda: second.is_raised_fence((pool._marks.of("photos").kept_by(first) or {})[2]))
    assert [f.code for f in examine(open_pool(ticket_urls))] == ["set-back", "quarantined"]
    done = run_cli("doctor", *options(ticket_urls))
    assert done.code == 1
    assert done.text.count("IDS CAN REPEAT") == 2
    assert "Processes refuse its tickets up to" in done.text


def test_a_conversion_that_has_not_ended(pool: TicketPool) -> None:
    """As a migration leaves it that was killed after its first server."""
    pool.servers[1].do(
        "photos",
        tombstones.close,
        "photos",
        tombstones.Destination("converting", "default", "photos"),
    )
    (finding,) = [f for f in examine(pool) if f.check == "tables"]
    assert (finding.code, finding.severity) == ("table-closed", "stops")
    assert "(offset 2)" in finding.server


def test_a_conversion_that_has_closed_every_server(pool: TicketPool) -> None:
    """No table is left whose metadata names the sequence."""
    for server in pool.servers:
        end = tombstones.Destination("converting", "default", "photos")
        server.do("photos", tombstones.close, "photos", end)
    found = [f for f in examine(pool) if f.check == "tables"]
    assert [(f.code, f.value) for f in found] == [("table-closed", "converting")] * 2


def test_a_move_that_has_closed_some_servers(pool: TicketPool, ticket_urls: list[URL]) -> None:
    """It is unfinished until the last one; then a server without a tombstone redirects nobody."""
    end = tombstones.Destination("moved", "media", "photos")
    pool.servers[0].do("photos", tombstones.close, "photos", end)
    (finding,) = [f for f in examine(pool) if f.check == "tables"]
    assert (finding.code, finding.value) == ("table-closed", "moved")
    assert finding.server == str(pool.servers[0])
    run(ticket_urls[1], "DROP TABLE photos")
    (finding,) = [f for f in examine(pool) if f.check == "tables"]
    assert (finding.server, finding.code) == (str(pool.servers[1]), "table-missing")
    assert finding.why == "Only the other servers can redirect its clients."
    assert run_cli(*shlex.split(finding.fix)[1:], *options(ticket_urls)).code == 0
    assert [f for f in examine(pool) if f.check == "tables"] == []


@pytest.mark.parametrize(
    ("kind", "code", "why"),
    [
        ("retired", "table-retired", "It is retired, at "),
        ("dropped", "table-missing", "It was dropped by a migration, at "),
    ],
)
def test_a_table_that_nothing_replaces(
    pool: TicketPool, kind: Literal["retired", "dropped"], code: str, why: str
) -> None:
    end = tombstones.Destination(kind, "default", "photos")
    pool.servers[1].do("photos", tombstones.close, "photos", end)
    (finding,) = [f for f in examine(pool) if f.check == "tables"]
    assert (finding.code, finding.value, finding.why[: len(why)]) == (code, kind, why)


def test_names_in_advice_are_quoted(pool: TicketPool, ticket_urls: list[URL]) -> None:
    """For the shell, and for the server."""
    name = "o'brien % photos"
    pool.create_table(name)
    (table,) = (server.context.dialect.quoted(name) for server in pool.servers[:1])
    run(ticket_urls[0], f"DROP TABLE {table}")
    (finding,) = [f for f in examine(pool) if f.check == "tables"]
    assert shlex.split(finding.fix) == ["sqla-tickets", "create", name]
    assert run_cli(*shlex.split(finding.fix)[1:], *options(ticket_urls)).code == 0
    pool._marks.flush()
    with raw_cursor(ticket_urls[0]) as cursor:
        cursor.execute(f"UPDATE {MARKS} SET mark = {2**62} WHERE sequence LIKE '%brien%'")
    (forged,) = [f for f in examine(pool) if f.code == "impossible-mark"]
    with raw_cursor(ticket_urls[0]) as cursor:
        cursor.execute(forged.fix.partition(";")[0])
        assert cursor.rowcount == 1
    assert [f for f in examine(pool) if f.code == "impossible-mark"] == []


@contextlib.contextmanager
def raw_cursor(url: URL) -> Iterator[DBAPICursor]:
    """A driver's cursor, which takes a statement as an operator types it."""
    engine = create_engine(url, poolclass=NullPool)
    connection = engine.raw_connection()
    yield connection.cursor()
    connection.commit()
    connection.close()


def test_numbers_that_run_out(pool: TicketPool) -> None:
    pool.create_table("small", bits=32, start=3_200_000_000)
    found = [f for f in examine(pool) if f.code == "numbers-used"]
    assert len(found) == 2
    assert "75%" in found[0].why


@MARIADB
def test_connections_that_run_out(pair: Pair) -> None:
    with contextlib.ExitStack() as opened, setting(pair.first, max_connections=12):
        for _ in range(9):
            opened.enter_context(pair.first.administrator())
        assert pair.only("connections-used").severity == "stops"


@MYSQL_LIKE
def test_grants_that_are_missing(pair: Pair) -> None:
    grant_only(pair.first, pair.urls[0], "SELECT", "INSERT", "LOCK TABLES")
    finding = pair.only("grants-missing")
    assert finding.value == "without UPDATE, DELETE"
    assert finding.severity == "stops"
    assert f"GRANT UPDATE, DELETE ON `{pair.urls[0].database}`.* TO '{USER}'" in finding.fix
    grant_only(pair.first, pair.urls[0], "SELECT", "INSERT", "UPDATE", "DELETE")
    assert pair.only("lock-not-granted").severity == "advice"


@MYSQL_LIKE
def test_grants_are_for_the_account_of_the_connection(
    pair: Pair, open_pool: OpenPool, ticket_kind: str
) -> None:
    """As the server knows it: with its host, and whatever file the user's name comes from."""
    database, name = pair.urls[0].database, f"o'{pair.urls[0].database}"
    with pair.first.administrator() as cursor:
        cursor.execute("CREATE USER %s@'127.0.0.%%' IDENTIFIED BY %s", [name, PASSWORD])
        cursor.execute(f"GRANT SELECT ON `{database}`.* TO %s@'127.0.0.%%'", [name])
        try:
            url = pair.urls[0].set(username=name, host="127.0.0.1")
            pool = open_pool([url, pair.urls[1]])
            (finding,) = [f for f in examine(pool) if f.code == "grants-missing"]
            assert finding.fix.endswith(f"TO 'o''{database}'@'127.0.0.%'")
            cursor.execute(finding.fix)
            assert examine(pool) == []
        finally:
            cursor.execute("DROP USER %s@'127.0.0.%%'", [name])


@MARIADB
def test_marks_that_are_not_granted(pair: Pair, open_pool: OpenPool) -> None:
    name, database = f"drawing_{pair.urls[0].database}", pair.urls[0].database
    with pair.first.administrator() as cursor:
        cursor.execute(f"CREATE USER '{name}'@'%' IDENTIFIED BY '{PASSWORD}'")
        cursor.execute(f"GRANT LOCK TABLES ON `{database}`.* TO '{name}'@'%'")
        cursor.execute(
            f"GRANT SELECT, INSERT, UPDATE, DELETE ON `{database}`.photos TO '{name}'@'%'"
        )
        try:
            pool = open_pool([pair.urls[0].set(username=name), pair.urls[1]])
            (finding,) = examine(pool)
            assert (finding.code, finding.severity) == ("marks-missing", "advice")
            assert finding.value == f"not readable for '{name}'@'%'"
            cursor.execute(f"GRANT SELECT ON `{database}`.{MARKS} TO '{name}'@'%'")
            (finding,) = examine(pool)
            assert (finding.code, finding.variable) == ("grants-missing", f"grants on {MARKS}")
            assert finding.value == "without INSERT, UPDATE"
        finally:
            cursor.execute(f"DROP USER '{name}'@'%'")


def test_marks_that_are_missing(ticket_urls: list[URL], pool: TicketPool) -> None:
    """Then no process can learn that the server's peer was set back."""
    before = [f.code for f in examine(pool)]
    run(ticket_urls[0], f"DROP TABLE {MARKS}")
    (finding,) = [f for f in examine(pool) if f.code not in before]
    assert (finding.code, finding.severity, finding.value) == (
        "marks-missing",
        "repeats",
        "missing",
    )
    assert finding.server == str(pool.servers[0])
    assert finding.fix == "sqla-tickets create photos"
    assert run_cli("create", "photos", *options(ticket_urls)).code == 0
    assert [f.code for f in examine(pool)] == before


@MYSQL_LIKE
def test_grants_that_are_too_many(pair: Pair) -> None:
    grant_only(pair.first, pair.urls[0], "ALL")
    dangerous = pair.only("grants-dangerous")
    assert dangerous.value == "ALL PRIVILEGES"
    assert f"grants draw --on {pair.first.kind}`" in dangerous.fix
    grant_only(pair.first, pair.urls[0], *LEAST)
    with pair.first.administrator() as cursor:
        cursor.execute(f"GRANT FILE ON *.* TO '{USER}'@'%'")
        try:
            assert pair.only("grants-everywhere").variable == "grants on *.*"
        finally:
            cursor.execute(f"REVOKE FILE ON *.* FROM '{USER}'@'%'")


@MYSQL_LIKE
def test_what_goes_over_the_wire_in_the_clear(pair: Pair, open_pool: OpenPool) -> None:
    # another address of this machine, which does not say so
    host = "0.0.0.0"
    urls = [url.set(host=host).update_query_dict({"ssl_disabled": "true"}) for url in pair.urls]
    found = examine(open_pool(urls))
    assert [f.code for f in found] == ["no-encryption", "no-encryption"]
    assert host in found[0].why


@pytest.mark.ticket_servers("sqlite")
@pytest.mark.parametrize(
    ("change", "code", "fix"),
    [
        ("DELETE FROM ticket_nodes WHERE node = -1", "node-numbers-missing", "create_table"),
        (
            "UPDATE ticket_nodes SET holder = 'stride 2, offset 2' WHERE node = -1",
            "node-numbers-foreign",
            "the order of the servers",
        ),
        (
            "UPDATE ticket_nodes SET holder = 'nonsense' WHERE node = -1",
            "node-numbers-foreign",
            "compare",
        ),
    ],
)
def test_node_numbers_whose_server_is_not_told(
    pool: TicketPool, ticket_urls: list[URL], change: str, code: str, fix: str
) -> None:
    NodeLeases(pool).create_table()
    assert examine(pool) == []
    run(ticket_urls[0], change)
    (finding,) = examine(pool)
    assert (finding.code, finding.severity) == (code, "stops")
    assert finding.server == str(pool.servers[0])
    assert fix in finding.fix


@MYSQL_LIKE
def test_a_lax_mode(pair: Pair) -> None:
    with text_setting(pair.first, "sql_mode", "NO_ENGINE_SUBSTITUTION"):
        assert pair.findings == [], "every table here is drawn from by this package alone"
        with pair.first.administrator() as cursor:
            cursor.execute(f"ALTER TABLE `{pair.urls[0].database}`.photos COMMENT = ''")
        assert pair.only("lax-sql-mode").severity == "advice"


@pytest.mark.ticket_servers("mysql")
def test_statistics_that_are_a_day_old(pair: Pair) -> None:
    with setting(pair.first, information_schema_stats_expiry=86400):
        assert pair.findings == [], "every table here is drawn from by this package alone"
        with pair.first.administrator() as cursor:
            cursor.execute(f"ALTER TABLE `{pair.urls[0].database}`.photos COMMENT = ''")
        assert pair.only("cached-statistics").value == "86400"


@MYSQL_LIKE
def test_flickrs_own_tables_are_examined_when_they_are_named(pair: Pair) -> None:
    for number, url in enumerate(pair.urls, 1):
        grant_only((pair.first, pair.second)[number - 1], url, "ALL")
        run(url, FLICKRS_TABLE.format(name="Tickets64", engine="InnoDB"))
        run(url, f"INSERT INTO `Tickets64` VALUES ({number + 2}, 'a')")
        grant_only((pair.first, pair.second)[number - 1], url, *LEAST)
    assert examine(pair.pool, ["Tickets64"]) == []
    run(pair.urls[0], "DELETE FROM `Tickets64`")
    (finding,) = examine(pair.pool, ["Tickets64"])
    assert finding.code == "table-empty"


def test_every_finding_has_a_test() -> None:
    tests = Path(__file__).parents[2].rglob("test_*.py")
    text = "".join(path.read_text() for path in tests)
    assert [code for code in get_args(Code) if f'"{code}"' not in text] == []
