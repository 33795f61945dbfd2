"""Fixtures that give a test fresh databases on real servers.

A test asks for `ticket_urls` (two ticket servers), `app_url` (an application's database) or
`shard_urls` (two of them) and runs once for each kind of server; the marks
`ticket_servers("mariadb", ...)` and `app_databases("sqlite", ...)` narrow the kinds.

The variable `TICKETS_MYSQL_IMAGE` names the Docker image of MySQL.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from sqlalchemy import URL

from sqla_tickets.grants import Role
from tests.servers import KINDS, Borrower, Fleet, MariaDB, MySQL, PostgreSQL

# PyMySQL reads all authorities that the machine trusts, for each connection: ten times as long as the
# rest of it takes. No test trusts one of them, nor does a program that one starts.
os.environ["SSL_CERT_FILE"] = os.devnull
# Which mark narrows which parametrised fixture.
_MARKS = {"ticket_kind": "ticket_servers", "app_kind": "app_databases"}


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("sqla_tickets")
    group.addoption(
        "--require-all-servers",
        action="store_true",
        help="fail, instead of skip, where a server is missing",
    )
    group.addoption(
        "--servers",
        default=",".join(KINDS),
        metavar="KINDS",
        help="use these kinds of servers only (default: %(default)s)",
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    used = _used_kinds(metafunc.config)
    for fixture, mark in _MARKS.items():
        if fixture in metafunc.fixturenames:
            wanted = [kind for kind in _wanted(metafunc, mark) if kind in used]
            metafunc.parametrize(fixture, wanted, scope="session")


def _used_kinds(config: pytest.Config) -> list[str]:
    return _checked(str(config.getoption("--servers")).split(","), "--servers")


def _wanted(metafunc: pytest.Metafunc, mark: str) -> list[str]:
    # The nearest mark counts: a test's own before its class's and its module's.
    found = metafunc.definition.get_closest_marker(mark)
    return list(KINDS) if found is None else _checked(found.args, f"mark {mark}")


def _checked(kinds: Sequence[str], origin: str) -> list[str]:
    for kind in kinds:
        if kind not in KINDS:
            raise pytest.UsageError(f"{origin}: {kind!r} is none of {', '.join(KINDS)}")
    return list(kinds)


@pytest.fixture(scope="session")
def fleet(pytestconfig: pytest.Config) -> Iterator[Fleet]:
    """The servers of this run."""
    fleet = Fleet(_used_kinds(pytestconfig))
    yield fleet
    fleet.close()


@pytest.fixture
def servers(fleet: Fleet, pytestconfig: pytest.Config) -> Iterator[Borrower]:
    """Where a test gets servers and databases; what it did to them is undone afterwards."""
    borrower = Borrower(fleet, require_all=bool(pytestconfig.getoption("--require-all-servers")))
    yield borrower
    borrower.give_back()


@pytest.fixture
def mariadb_pair(servers: Borrower) -> tuple[MariaDB, MariaDB]:
    """The two shared MariaDB servers."""
    return servers.mariadb(0), servers.mariadb(1)


@pytest.fixture
def mysql_pair(servers: Borrower) -> tuple[MySQL, MySQL]:
    """The two shared MySQL servers."""
    return servers.mysql(0), servers.mysql(1)


@pytest.fixture
def postgres(servers: Borrower) -> PostgreSQL:
    """The shared PostgreSQL cluster."""
    return servers.postgresql()


@pytest.fixture
def ticket_urls(ticket_kind: str, servers: Borrower, tmp_path: Path) -> list[URL]:
    """Two empty ticket databases, on two servers where the kind has two.

    Their user has the least privileges that migrations need; those of drawing are a part of them.
    """
    files = [tmp_path / f"tickets{n}.db" for n in range(2)]
    return [_fresh(ticket_kind, n, servers, file, "migrate") for n, file in enumerate(files)]


@pytest.fixture
def shard_urls(app_kind: str, servers: Borrower, tmp_path: Path) -> list[URL]:
    """Two empty application databases of one kind."""
    return [_fresh(app_kind, n, servers, tmp_path / f"shard{n}.db") for n in range(2)]


@pytest.fixture
def app_url(app_kind: str, servers: Borrower, tmp_path: Path) -> URL:
    """An empty application database."""
    return _fresh(app_kind, 0, servers, tmp_path / "app.db")


def _fresh(kind: str, number: int, servers: Borrower, file: Path, role: Role | None = None) -> URL:
    if kind == "sqlite":
        return URL.create("sqlite+pysqlite", database=str(file))
    return servers.fresh_database(servers.shared(kind, number), role)
