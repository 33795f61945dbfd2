"""Connections that are encrypted and verified, with real certificates, by every driver that can.

A server that is not who it should be is one that is down: nothing is sent to it.
"""

from __future__ import annotations

import gc
import os
import shutil
import ssl
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import trustme
from sqlalchemy import URL
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from sqla_tickets import NoTicketServer, TicketPool
from tests.support.drivers import Route, drivers
from tests.support.servers import MySQL, MySQLLike, PostgreSQL, ServerRegistry
from tests.support.servers.server_fixtures import ServerFixtures

ROUTES = [
    route
    for route in drivers("mariadb", "mysql", "postgresql")
    if route.drivername != "postgresql+psycopg_async"  # psycopg is tried
]
#: Made of MariaDB's library in C, which takes `localhost`, spelled like that, for a socket of this
#: machine, and verifies the name of the host whenever it verifies anything.
IN_C = ("mysqldb", "mariadbconnector")
#: Users who are let in over TLS alone, and with a certificate of their own alone.
SECURE, CERTIFIED = "secure", "certified"
PASSWORD = "open-sesame"


class Papers:
    """The files of an authority, of a server named localhost, of a client; and of another authority."""

    def __init__(self, folder: Path) -> None:
        folder.chmod(0o755)
        self.folder = folder
        authority = trustme.CA()
        authority.cert_pem.write_to_path(self.ca)
        trustme.CA().cert_pem.write_to_path(self.other_ca)
        for name, issued in {
            "server": authority.issue_cert("localhost"),
            "client": authority.issue_cert("tickets@example.org", common_name=CERTIFIED),
        }.items():
            issued.private_key_pem.write_to_path(folder / f"{name}.key")
            issued.cert_chain_pems[0].write_to_path(folder / f"{name}.pem")
            (folder / f"{name}.key").chmod(0o600)  # else libpq and PostgreSQL refuse it

    @property
    def ca(self) -> Path:
        return self.folder / "ca.pem"

    @property
    def other_ca(self) -> Path:
        return self.folder / "other.pem"


@pytest.fixture(scope="module")
def papers() -> Iterator[Papers]:
    with tempfile.TemporaryDirectory() as folder:
        yield Papers(Path(folder))


@pytest.fixture(scope="module")
def site(
    request: pytest.FixtureRequest,
    server_registry: ServerRegistry,
    papers: Papers,
    pytestconfig: pytest.Config,
) -> Iterator[Callable[[Route], URL]]:
    """The address of a server of a driver's kind, started when it is first asked for."""
    fixtures = ServerFixtures(
        server_registry, require_all=bool(pytestconfig.getoption("--require-all-servers"))
    )
    found: dict[str, URL] = {}
    with ExitStack() as opened:
        opened.callback(fixtures.give_back)

        def address(route: Route) -> URL:
            pytest.importorskip(route.module)
            if route.kind not in found:
                found[route.kind] = opened.enter_context(START[route.kind](fixtures, papers))
            url = found[route.kind].set(drivername=route.drivername)
            return url.set(host="LOCALHOST") if url.get_driver_name() in IN_C else url

        yield address


@contextmanager
def mariadb(fixtures: ServerFixtures, papers: Papers) -> Iterator[URL]:
    server = fixtures.new_mariadb(
        f"--ssl-ca={papers.ca}",
        f"--ssl-cert={papers.folder / 'server.pem'}",
        f"--ssl-key={papers.folder / 'server.key'}",
    )
    with mysql_like(server, fixtures) as url:
        yield url


@contextmanager
def mysql(fixtures: ServerFixtures, papers: Papers) -> Iterator[URL]:
    server: MySQL = fixtures.mysql()
    files = ("ca.pem", "server.pem", "server.key")
    server.put([papers.folder / name for name in files], "/tmp")
    variables = ("ssl_ca", "ssl_cert", "ssl_key")
    with server.administrator() as cursor:
        cursor.execute(f"SELECT {', '.join(f'@@GLOBAL.{name}' for name in variables)}")
        (before,) = cursor.fetchall()
        for name, file in zip(variables, files, strict=True):
            cursor.execute(f"SET GLOBAL {name} = '/tmp/{file}'")
        cursor.execute("ALTER INSTANCE RELOAD TLS")
    try:
        with mysql_like(server, fixtures) as url:
            yield url
    finally:
        with server.administrator() as cursor:
            for name, value in zip(variables, before, strict=True):
                cursor.execute(f"SET GLOBAL {name} = %s", [value])
            cursor.execute("ALTER INSTANCE RELOAD TLS")
            for user in (SECURE, CERTIFIED):
                cursor.execute(f"DROP USER '{user}'@'%'")


@contextmanager
def mysql_like(server: MySQLLike, fixtures: ServerFixtures) -> Iterator[URL]:
    url = fixtures.fresh_database(server)
    with TicketPool([url], stride=2) as pool, server.administrator() as cursor:
        pool.create_table("photos")
        for user, what in ((SECURE, "SSL"), (CERTIFIED, "X509")):
            cursor.execute(f"CREATE USER '{user}'@'%' IDENTIFIED BY '{PASSWORD}' REQUIRE {what}")
            server.grant("draw", user, str(url.database))
    yield url.set(host="localhost", username=SECURE, password=PASSWORD)


@contextmanager
def postgresql(fixtures: ServerFixtures, papers: Papers) -> Iterator[URL]:
    key = papers.folder / "postgres.key"
    shutil.copy(papers.folder / "server.key", key)
    if os.geteuid() == 0:
        shutil.chown(key, "postgres")
    server = fixtures.new_postgresql(
        "--ssl=on",
        f"--ssl_ca_file={papers.ca}",
        f"--ssl_cert_file={papers.folder / 'server.pem'}",
        f"--ssl_key_file={key}",
    )
    url = fixtures.fresh_database(server)
    with TicketPool([url], stride=2) as pool:
        pool.create_table("photos")
    for user in (SECURE, CERTIFIED):
        server.create_user(user, "draw", str(url.database))
    rules = server.folder / "data" / "pg_hba.conf"
    rules.write_text(
        f"hostssl all {SECURE} all scram-sha-256\nhost all {SECURE} all reject\n"
        f"hostssl all {CERTIFIED} all cert\nhost all {CERTIFIED} all reject\n{rules.read_text()}"
    )
    reload(server)
    yield url.set(host="localhost", username=SECURE)


def reload(server: PostgreSQL) -> None:
    with server.administrator() as cursor:
        cursor.execute("SELECT pg_reload_conf()")


START = {"mariadb": mariadb, "mysql": mysql, "postgresql": postgresql}


OFF = {
    "pymysql": {"ssl_disabled": "true"},
    "mysqlconnector": {"ssl_disabled": "true"},
    "mysqldb": {"ssl_mode": "DISABLED"},
    "mariadbconnector": {"ssl": "false"},
    "psycopg": {"sslmode": "disable"},
    "psycopg2": {"sslmode": "disable"},
}


def bind(
    url: URL, papers: Papers, ca: Path | None, *, name: bool = True, own: bool = False
) -> URL | AsyncEngine:
    """A server as a user would name it who verifies it by ``ca``, and by the host's ``name``.

    Args:
        url: of the server.
        papers: certificates.
        ca: the authority; None for no TLS at all.
        name: whether the name of the host counts.
        own: whether the client has a certificate.
    """
    driver = url.get_driver_name()
    cert, key = str(papers.folder / "client.pem"), str(papers.folder / "client.key")
    if driver in ("asyncmy", "aiomysql", "asyncpg"):
        context = ssl.create_default_context(cafile=ca) if ca else None
        if context and own:
            context.load_cert_chain(cert, key)
        if context and not name:
            context.check_hostname = False
        return create_async_engine(url, connect_args={"ssl": context or False})
    if ca is None:
        return url.update_query_dict(OFF[driver])
    if driver.startswith("psycopg"):
        query = {"sslmode": "verify-full" if name else "verify-ca", "sslrootcert": str(ca)}
        query |= {"sslcert": cert, "sslkey": key} if own else {}
        return url.update_query_dict(query)
    query = {"ssl_ca": str(ca)} | ({"ssl_cert": cert, "ssl_key": key} if own else {})
    if driver == "mysqldb":
        query |= {"ssl_mode": "VERIFY_IDENTITY"}
    elif driver == "mariadbconnector":
        query |= {"ssl_verify_cert": "true"}
    elif driver == "mysqlconnector":
        query |= {"ssl_verify_cert": "true"} | ({"ssl_verify_identity": "true"} if name else {})
    elif not name:
        query |= {"ssl_check_hostname": "false"}
    return url.update_query_dict(query)


def draw(route: Route, *servers: URL | AsyncEngine) -> list[int]:
    """Some tickets, drawn from whichever server can."""

    def work() -> list[int]:
        with TicketPool(servers, stride=2) as pool:
            return [pool.next_id("photos") for _ in range(3)]

    try:
        return route.run(work)
    finally:
        gc.collect()  # what a driver has left behind, while it is not to count


# asyncio's drivers do not close what they have refused.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
every_route = pytest.mark.parametrize("route", ROUTES, ids=str)
Site = Callable[[Route], URL]


@every_route
def test_a_server_that_is_verified(site: Site, papers: Papers, route: Route) -> None:
    url = site(route)
    assert draw(route, bind(url, papers, papers.ca))
    if url.get_driver_name() in IN_C:
        return
    by_address = url.set(host="127.0.0.1")
    assert draw(route, bind(by_address, papers, papers.ca, name=False))


@every_route
def test_a_server_that_is_somebody_else(site: Site, papers: Papers, route: Route) -> None:
    url = site(route)
    for other in (
        bind(url, papers, papers.other_ca),
        bind(url.set(host="127.0.0.1"), papers, papers.ca),
    ):
        with pytest.raises(NoTicketServer, match="its certificate does not name the host") as told:
            draw(route, other)
        assert PASSWORD not in str(told.value)


@every_route
def test_a_server_that_insists_on_tls(site: Site, papers: Papers, route: Route) -> None:
    with pytest.raises(NoTicketServer, match=r"denied|rejects|SSL|secure"):
        draw(route, bind(site(route), papers, None))


@every_route
def test_a_server_that_asks_for_a_certificate(site: Site, papers: Papers, route: Route) -> None:
    url = site(route).set(username=CERTIFIED)
    with pytest.raises(NoTicketServer, match=r"denied|certificate"):
        draw(route, bind(url, papers, papers.ca))
    assert draw(route, bind(url, papers, papers.ca, own=True))


@every_route
def test_the_other_servers_go_on(site: Site, papers: Papers, route: Route) -> None:
    """An address that leads to somebody else is like one where nobody is."""
    url = site(route)
    wrong = bind(url.set(host="127.0.0.1"), papers, papers.ca)
    assert {number % 2 for number in draw(route, bind(url, papers, papers.ca), wrong)} == {1}
