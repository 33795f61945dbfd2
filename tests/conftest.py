"""Fixtures that give a test fresh databases on real servers.

A test asks for `ticket_urls` (two ticket servers), `app_url` (an application's database) or
`shard_urls` (two of them) and runs once for each kind of server; the marks
`ticket_servers("mariadb", ...)` and `app_databases("sqlite", ...)` narrow the kinds.

The variable `TICKETS_MYSQL_IMAGE` names the Docker image of MySQL.
"""

from __future__ import annotations

import os
import re
import sys
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path

import pytest
from sqlalchemy import URL, Engine

from sqla_tickets import ServerSpec, TicketPool
from sqla_tickets.connect.pool import Connections
from sqla_tickets.dialects import Role
from tests.support.draws import OpenPool
from tests.support.drivers import Route
from tests.support.logging_locks import release_locks
from tests.support.servers import KINDS, MariaDB, MySQL, PostgreSQL, ServerFixtures, ServerRegistry

# PyMySQL reads all authorities that the machine trusts, for each connection: ten times as long as the
# rest of it takes. No test trusts one of them, nor does a program that one starts.
os.environ["SSL_CERT_FILE"] = os.devnull
# Which mark narrows which parametrised fixture.
_MARKS = {"ticket_kind": "ticket_servers", "app_kind": "app_databases"}

# What differs between MySQL and MariaDB is below these, and tested there.
_ON_EITHER = ("tests/integration/cli/", "tests/integration/migrations/")


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("sqla_tickets")
    group.addoption(
        "--require-all-servers",
        action="store_true",
        help="fail, instead of skip, where a server is missing",
    )
    group.addoption(
        "--one-kind",
        action="store_true",
        help="run each test on one kind of server and with one driver",
    )
    group.addoption(
        "--servers",
        default=",".join(KINDS),
        metavar="KINDS",
        help="use these kinds of servers only (default: %(default)s)",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Share the cases of each test among the kinds; with ``--one-kind``, leave one variant of each case."""
    variants: dict[str, list[pytest.Item]] = {}
    for item in items:
        variants.setdefault(_case_of(item), []).append(item)
    if config.getoption("--one-kind"):
        kept = {id(_one_of(case, variants[case])) for case in variants}
    else:
        kept = {id(item) for test in _tests_of(variants) for item in _shared(test)}
    left_out = [item for item in items if id(item) not in kept]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if id(item) in kept]


def _tests_of(
    variants: dict[str, list[pytest.Item]],
) -> Iterable[dict[str, list[pytest.Item]]]:
    """The cases of each test, which differ in more than the kinds and drivers."""
    tests: dict[str, dict[str, list[pytest.Item]]] = {}
    for case, of_case in variants.items():
        tests.setdefault(case.partition("[")[0], {})[case] = of_case
    return tests.values()


def _shared(cases: dict[str, list[pytest.Item]]) -> Iterator[pytest.Item]:
    """Each case with SQLite, which is quick, and on one of the servers; each kind of these with one case or more."""
    covered: Counter[tuple[int, str]] = Counter()
    seldom = list[pytest.Item]()
    for case, variants in cases.items():
        on_servers = [item for item in variants if {*_kinds_of(item)} - {"sqlite"}]
        is_whole = any(map(_routes_of, variants)) or variants[0].get_closest_marker("every_case")
        if is_whole or len(cases) == 1 or len(on_servers) < 2:
            yield from variants if is_whole else _with_either(case, variants)
            continue
        yield from (item for item in variants if item not in on_servers)
        on_servers = _not_skipped(on_servers)
        start = zlib.crc32(case.encode()) % len(on_servers)
        order = on_servers[start:] + on_servers[:start]
        chosen = min(order, key=lambda item: sum(covered[at] for at in enumerate(_kinds_of(item))))
        covered.update(enumerate(_kinds_of(chosen)))
        seldom += order
        yield chosen
    for item in seldom:
        if not all(covered[at] for at in enumerate(_kinds_of(item))):
            covered.update(enumerate(_kinds_of(item)))
            yield item


def _case_of(item: pytest.Item) -> str:
    """A test with its parameters, but for the kinds of servers and the driver."""
    call = getattr(item, "callspec", None)
    if call is None or item.get_closest_marker("every_kind"):
        return item.nodeid
    function, _, case = item.nodeid.partition("[")
    # Routes first: the name of a kind is a part of theirs.
    for variant in [*map(str, _routes_of(item)), *_kinds_of(item)]:
        case = case.replace(variant, "*", 1)
    return f"{function}[{case}"


def _one_of(case: str, variants: list[pytest.Item]) -> pytest.Item:
    """The variant that stands for all; which one follows from the name, so that the kinds share the tests."""
    if any("route" in getattr(item, "fixturenames", ()) for item in variants):
        return variants[0]  # the driver that comes along
    here = [item for item in _not_skipped(variants) if all(map(_is_here, _routes_of(item)))]
    # MySQL, which starts and alters tables many times slower than the others, has the smallest share.
    shares = [
        item for item in here or variants for _ in range(1 if "mysql" in _kinds_of(item) else 3)
    ]
    return shares[zlib.crc32(case.encode()) % len(shares)]


def _with_either(case: str, variants: list[pytest.Item]) -> list[pytest.Item]:
    """Without MySQL or MariaDB, by turns, where what differs between them is not asked for."""
    if case.startswith(_ON_EITHER) and not variants[0].get_closest_marker("every_kind"):
        either = [item for item in variants if _kinds_of(item) in (["mysql"], ["mariadb"])]
        if len(either) == 2:
            variants.remove(either[zlib.crc32(case.encode()) % 2])
    return variants


def _not_skipped(variants: list[pytest.Item]) -> list[pytest.Item]:
    """Those of a case that run: what asks for a layout of MySQL's and MariaDB's is skipped elsewhere."""
    on_mysql = [
        item
        for item in variants
        if not re.search("replace|convert|to counter", item.nodeid)
        or re.search("mysql|mariadb", item.nodeid)
    ]
    return on_mysql or variants


def _kinds_of(item: pytest.Item) -> list[str]:
    """The kinds of servers that a test is parametrised with, by name."""
    call = getattr(item, "callspec", None)
    params = {} if call is None else call.params
    return [params[name] for name in (*_MARKS, "kind") if params.get(name) in KINDS]


def _routes_of(item: pytest.Item) -> list[Route]:
    """The drivers that a test is parametrised with, alone or beside something else."""
    call = getattr(item, "callspec", None)
    params = () if call is None else call.params.values()
    return [
        each
        for param in params
        for each in (param if type(param) is tuple else [param])
        if isinstance(each, Route)
    ]


def _is_here(route: Route) -> bool:
    """Whether its driver is installed: one that has to be compiled may not be."""
    return find_spec(route.module.partition(".")[0]) is not None


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_makereport() -> None:
    """After a time-out, the next tests must not hang."""
    release_locks()


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


@pytest.fixture(autouse=True)
def _first_server_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have pools begin with their first server, for a test to know which one a draw is sent to.

    Their servers take turns, even while a mark is being written.
    """
    monkeypatch.setattr(TicketPool, "_random_start", staticmethod(lambda: 0))
    monkeypatch.setattr(Connections, "are_lent", False)


@pytest.fixture(autouse=True)
def _leaves_no_file() -> Iterator[None]:
    """Fail a test that leaves a file in the checkout, as a relative path does."""
    before = _files_of_checkout()
    yield
    left = _files_of_checkout() - before
    assert not left, f"left in the checkout: {', '.join(sorted(left))}"


def _files_of_checkout() -> set[str]:
    # Not what tools keep for themselves, such as .coverage.
    with os.scandir(Path(__file__).parents[1]) as entries:
        return {e.name for e in entries if e.is_file() and not e.name.startswith(".")}


@pytest.fixture
def frequent_switches() -> Iterator[None]:
    """Switch threads after every few instructions."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time that a buffer of tickets goes by, to be set."""
    now = [1000.0]
    for module in ("sqla_tickets.draw.buffer", "sqla_tickets.pool"):
        monkeypatch.setattr(f"{module}.elapsed", lambda: now[0])
    return now


@pytest.fixture(scope="session")
def server_registry(pytestconfig: pytest.Config) -> Iterator[ServerRegistry]:
    """The servers of this run."""
    server_registry = ServerRegistry(_used_kinds(pytestconfig))
    yield server_registry
    server_registry.close()


@pytest.fixture
def servers(
    server_registry: ServerRegistry, pytestconfig: pytest.Config
) -> Iterator[ServerFixtures]:
    """Where a test gets servers and databases; what it did to them is undone afterwards."""
    fixtures = ServerFixtures(
        server_registry, require_all=bool(pytestconfig.getoption("--require-all-servers"))
    )
    yield fixtures
    fixtures.give_back()


@pytest.fixture
def mariadb_pair(servers: ServerFixtures) -> tuple[MariaDB, MariaDB]:
    """The two shared MariaDB servers."""
    return servers.mariadb(0), servers.mariadb(1)


@pytest.fixture
def mysql_pair(servers: ServerFixtures) -> tuple[MySQL, MySQL]:
    """The two shared MySQL servers."""
    return servers.mysql(0), servers.mysql(1)


@pytest.fixture
def postgres(servers: ServerFixtures) -> PostgreSQL:
    """The shared PostgreSQL cluster."""
    return servers.postgresql()


@pytest.fixture
def ticket_urls(ticket_kind: str, servers: ServerFixtures, tmp_path: Path) -> list[URL]:
    """Two empty ticket databases, on two servers where the kind has two.

    Their user has the least privileges that migrations need; those of drawing are a part of them.
    """
    files = [tmp_path / f"tickets{n}.db" for n in range(2)]
    return [_fresh(ticket_kind, n, servers, file, "migrate") for n, file in enumerate(files)]


@pytest.fixture
def shard_urls(app_kind: str, servers: ServerFixtures, tmp_path: Path) -> list[URL]:
    """Two empty application databases of one kind."""
    return [_fresh(app_kind, n, servers, tmp_path / f"shard{n}.db") for n in range(2)]


@pytest.fixture
def app_url(app_kind: str, servers: ServerFixtures, tmp_path: Path) -> URL:
    """An empty application database."""
    return _fresh(app_kind, 0, servers, tmp_path / "app.db")


def _fresh(
    kind: str, number: int, servers: ServerFixtures, file: Path, role: Role | None = None
) -> URL:
    if kind == "sqlite":
        return URL.create("sqlite+pysqlite", database=str(file))
    return servers.fresh_database(servers.shared(kind, number), role)


@pytest.fixture
def open_pool() -> Iterator[OpenPool]:
    """Make a pool as ``TicketPool`` does, closed after the test.

    It does not hedge, unless a test asks for it: how many draws are sent, and to which server, must not
    depend on how busy the machine is.
    """
    pools: list[TicketPool] = []

    def make(
        servers: Sequence[str | URL | Engine | ServerSpec],
        stride: int | None = None,
        *,
        hedge: bool | None = False,
    ) -> TicketPool:
        pools.append(TicketPool(servers, stride=stride, hedge=hedge))
        return pools[-1]

    yield make
    for pool in pools:
        pool.dispose()


@pytest.fixture
def pool(ticket_urls: list[URL], open_pool: OpenPool) -> TicketPool:
    """A pool of two servers of each kind, with an empty sequence ``photos``."""
    pool = open_pool(ticket_urls)
    pool.create_table("photos")
    return pool
