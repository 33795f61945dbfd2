"""A password of a URL is in no message, no repr, no log record and no status."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from sqlalchemy import URL, create_engine, make_url

from sqla_tickets import TicketError
from tests.support.draws import OpenPool
from tests.support.drivers import Route, drivers
from tests.support.servers import PASSWORD, ServerFixtures

SECRET = "hunter2-%40:/x"
EVERY_DRIVER = pytest.mark.parametrize(
    "route", drivers("mariadb", "mysql", "postgresql", is_async=False), ids=str
)


def chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


@dataclass
class Listener:
    """Collects whatever could be shown of pools that fail."""

    open_pool: OpenPool
    caplog: pytest.LogCaptureFixture
    heard: list[str] = field(default_factory=list)

    def fail(self, *servers: URL | str) -> None:
        pool = self.open_pool(list(servers))
        self.heard += [repr(pool), str(pool), repr(pool.servers), str(pool.servers[0])]
        attempts: list[Callable[[], object]] = [
            lambda: pool.next_id("photos"),
            lambda: pool.next_ids("photos", 3),
            lambda: pool.create_table("photos"),
            lambda: pool.drop_table("photos"),
        ]
        for attempt in attempts:
            try:
                attempt()
            except TicketError as error:
                self.heard += [f"{e} {e!r} {e.args}" for e in chain(error)]
                self.heard.append(str(getattr(error, "failures", "")))
        self.heard += [repr(record) for record in pool.status()]

    def assert_nobody_said(self, *secrets: str) -> None:
        assert self.heard
        records = [f"{r.getMessage()} {r.args} {r.exc_text}" for r in self.caplog.records]
        for line in self.heard + records:
            for secret in secrets:
                assert secret not in line


@pytest.fixture
def listener(open_pool: OpenPool, caplog: pytest.LogCaptureFixture) -> Listener:
    caplog.set_level(logging.DEBUG)
    return Listener(open_pool, caplog)


@EVERY_DRIVER
def test_a_wrong_password(
    listener: Listener, servers: ServerFixtures, route: Route, tmp_path: Path
) -> None:
    url = route.fresh_database(servers, tmp_path)
    listener.fail(url.set(password=SECRET))
    listener.assert_nobody_said(SECRET, "hunter2")


@EVERY_DRIVER
def test_an_unreachable_host(
    listener: Listener, servers: ServerFixtures, route: Route, tmp_path: Path
) -> None:
    url = route.fresh_database(servers, tmp_path)
    listener.fail(url.set(host="no-such-host.invalid"), url.set(port=1))
    listener.assert_nobody_said(PASSWORD)


@EVERY_DRIVER
def test_a_missing_database(
    listener: Listener, servers: ServerFixtures, route: Route, tmp_path: Path
) -> None:
    url = route.fresh_database(servers, tmp_path)
    listener.fail(url.set(database="no_such_database"))
    listener.assert_nobody_said(PASSWORD)


@EVERY_DRIVER
def test_a_missing_table(
    listener: Listener, servers: ServerFixtures, route: Route, tmp_path: Path
) -> None:
    url = route.fresh_database(servers, tmp_path)
    listener.fail(url)
    listener.assert_nobody_said(PASSWORD)


def test_a_url_as_text(listener: Listener) -> None:
    listener.fail("mysql+pymysql://tickets:hunter2-%40@127.0.0.1:1/tickets")
    listener.assert_nobody_said("hunter2", "%40")


def test_an_engine_s_url_in_a_message(open_pool: OpenPool) -> None:
    engine = create_engine(make_url("mysql+pymysql://tickets:hunter2@127.0.0.1:1/t"))
    with pytest.raises(TicketError) as caught:
        open_pool([engine]).next_id("photos")
    for error in chain(caught.value):
        assert "hunter2" not in f"{error} {error!r}"
