"""The servers of the tests do what the tests rest on."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pymysql
import pytest
from sqlalchemy import URL, create_engine, text
from sqlalchemy.exc import OperationalError

from tests.support.servers import MySQLLike, Server, ServerFixtures
from tests.support.servers.reaper import Reaper


def run(url: URL, *statements: str) -> list[object]:
    """Run statements, each in a transaction of its own, and return the last one's first column."""
    engine = create_engine(url)
    try:
        rows: list[object] = []
        for statement in statements:
            with engine.begin() as connection:
                result = connection.execute(text(statement))
                rows = list(result.scalars()) if result.returns_rows else []
        return rows
    finally:
        engine.dispose()


@pytest.fixture(params=["mariadb", "mysql", "postgresql"])
def server(request: pytest.FixtureRequest, servers: ServerFixtures) -> Server:
    return servers.shared(request.param)


def test_a_killed_server_starts_again_with_its_data(
    servers: ServerFixtures, server: Server
) -> None:
    url = servers.fresh_database(server)
    run(url, "CREATE TABLE t (n INT)", "INSERT INTO t VALUES (7)")
    server.kill()
    assert not server.alive
    with pytest.raises(OperationalError):
        run(url, "SELECT n FROM t")
    server.start()
    assert run(url, "SELECT n FROM t") == [7]


def test_a_stopped_server_starts_again_with_its_data(
    servers: ServerFixtures, server: Server
) -> None:
    url = servers.fresh_database(server)
    run(url, "CREATE TABLE t (n INT)", "INSERT INTO t VALUES (7)")
    server.stop()
    assert not server.alive
    server.start()
    assert run(url, "SELECT n FROM t") == [7]


def test_what_a_test_did_to_a_shared_server_is_undone(
    servers: ServerFixtures, server: Server
) -> None:
    server.freeze()
    assert server.frozen
    assert server.alive
    servers.give_back()
    assert not server.frozen
    server.kill()
    servers.give_back()
    assert server.alive


@pytest.mark.parametrize("kind", ["mariadb", "mysql"])
def test_a_frozen_server_hangs_until_it_thaws(servers: ServerFixtures, kind: str) -> None:
    server = servers.shared(kind)
    url = servers.fresh_database(server)
    hasty = url.update_query_dict({"read_timeout": "1", "connect_timeout": "1"})
    server.freeze()
    with pytest.raises(OperationalError, match=r"timed out|Lost connection"):
        run(hasty, "SELECT 1")
    server.thaw()
    assert run(url, "SELECT 1") == [1]


def test_an_open_connection_outlives_a_freeze(servers: ServerFixtures) -> None:
    server = servers.mariadb()
    with server.administrator() as cursor:
        server.freeze()
        server.thaw()
        cursor.execute("SELECT 1")
        assert cursor.fetchone() == (1,)


def test_two_servers_of_a_kind_are_two(servers: ServerFixtures) -> None:
    first, second = servers.mariadb(0), servers.mariadb(1)
    assert first.port != second.port
    first.kill()
    assert run(second.url(), "SELECT 1") == [1]


def test_a_server_of_the_tests_own_takes_options(servers: ServerFixtures) -> None:
    server = servers.new_mariadb("--auto-increment-increment=2", "--auto-increment-offset=2")
    assert run(server.url(), "SELECT @@auto_increment_offset") == [2]


@pytest.mark.parametrize("kind", ["mariadb", "mysql"])
def test_the_command_line_client_connects(servers: ServerFixtures, kind: str) -> None:
    server = servers.shared(kind)
    assert isinstance(server, MySQLLike)
    database = servers.fresh_database(server).database
    assert database is not None
    done = subprocess.run(
        server.client(database), input="SELECT 1 + 1;", capture_output=True, text=True
    )
    assert (done.stdout, done.stderr) == ("2\n", "")


@pytest.mark.parametrize("kind", ["mariadb", "mysql"])
def test_the_user_has_rights_on_its_databases_only(servers: ServerFixtures, kind: str) -> None:
    first, second = (servers.fresh_database(servers.shared(kind)) for _ in range(2))
    run(first, "CREATE TABLE t (n INT)", f"CREATE TABLE {second.database}.t (n INT)")
    with pytest.raises(OperationalError, match="denied"):
        run(first, "CREATE DATABASE elsewhere")


def test_databases_go_even_under_open_transactions(servers: ServerFixtures, server: Server) -> None:
    engine = create_engine(servers.fresh_database(server))
    connection = engine.connect()
    connection.execute(text("CREATE TABLE t (n INT)"))
    connection.execute(text("INSERT INTO t VALUES (1)"))
    servers.give_back()
    with pytest.raises(OperationalError):
        connection.execute(text("SELECT n FROM t"))
    connection.invalidate()
    connection.close()
    engine.dispose()


def test_ticket_urls_are_two_empty_databases(ticket_urls: list[URL]) -> None:
    first, second = ticket_urls
    assert first != second
    for url in ticket_urls:
        run(url, "CREATE TABLE t (n INT)")


def test_app_and_shards_are_apart(app_url: URL, shard_urls: list[URL]) -> None:
    for url in [app_url, *shard_urls]:
        run(url, "CREATE TABLE t (n INT)")


@pytest.mark.ticket_servers("sqlite")
@pytest.mark.app_databases("sqlite", "mariadb")
def test_marks_limit_the_kinds(ticket_urls: list[URL], app_url: URL) -> None:
    assert ticket_urls[0].get_backend_name() == "sqlite"
    assert app_url.get_backend_name() in {"sqlite", "mysql"}


def test_the_reaper_keeps_its_promises_when_its_process_is_killed(tmp_path: object) -> None:
    kept, withdrawn = f"{tmp_path}/kept", f"{tmp_path}/withdrawn"
    script = (
        "import os, signal\n"
        "from tests.support.servers.reaper import Reaper\n"
        "reaper = Reaper()\n"
        f"reaper.withdraw(reaper.promise(['touch', {withdrawn!r}]))\n"
        f"reaper.promise(['touch', {kept!r}])\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    subprocess.run([sys.executable, "-c", script])
    while not os.path.exists(kept):
        time.sleep(0.01)
    assert not os.path.exists(withdrawn)


def test_a_reaper_without_orders_closes() -> None:
    Reaper().close()


def test_mysql_passwords_are_asked_for(servers: ServerFixtures) -> None:
    server = servers.mariadb()
    with pytest.raises(pymysql.err.OperationalError, match="denied"):
        pymysql.connect(host=server.host, port=server.port, user="tickets", password="")
