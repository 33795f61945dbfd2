"""What each error of a server means for a draw: real servers are made to raise it, by a trigger."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import URL, event

from sqla_tickets import (
    TicketError,
    TicketIntegrityError,
    TicketPool,
    TicketServerError,
    TicketsExhausted,
)
from sqla_tickets.dialects import LayoutName
from sqla_tickets.draw import circuit_breaker
from sqla_tickets.events import Draw
from tests.support.draws import OpenPool, assert_unique, draw_from, mysql_like, residues
from tests.support.servers import ServerFixtures
from tests.support.set_back import assert_quarantined
from tests.support.timing import set_timing

pytestmark = pytest.mark.ticket_servers("mariadb", "mysql")
LAYOUTS = pytest.mark.parametrize("layout", ["replace", "counter"])
# a counter row with a trigger forgets the number that the UPDATE has told
REPLACE = pytest.mark.parametrize("layout", ["replace"])
#: What fires in each layout.
EVENTS: dict[LayoutName, str] = {"replace": "INSERT", "counter": "UPDATE"}


class Refusing:
    """A pool whose first server refuses draws of ``photos`` with an error of its own."""

    def __init__(
        self,
        servers: ServerFixtures,
        kind: str,
        urls: list[URL],
        pool: TicketPool,
        layout: LayoutName,
    ) -> None:
        self.pool, self._event = pool, EVENTS[layout]
        self._server, self._database = mysql_like(servers, kind), urls[0].database
        pool.create_table("photos", layout=layout)
        self.ids = [pool.next_id("photos") for _ in range(4)]

    def others_are_drawn(self) -> bool:
        """Whether another sequence is drawn from both servers."""
        self.pool.create_table("users")
        return residues(self.pool.next_id("users") for _ in range(4)) == {0, 1}

    @contextmanager
    def with_error(self, code: int, *, once: bool = False) -> Iterator[None]:
        """Every draw there fails with this error; or the next one only, in whichever session."""
        signal = f"SIGNAL SQLSTATE '45000' SET MYSQL_ERRNO = {code}"
        if once:  # MyISAM remembers what is rolled back
            signal = f"IF NOT EXISTS (SELECT * FROM met) THEN INSERT INTO met VALUES (1); {signal}; END IF"
        with self._server.administrator() as cursor:
            cursor.execute(f"USE `{self._database}`")
            cursor.execute("SET SESSION lock_wait_timeout = 10")
            cursor.execute("CREATE TABLE met (n INTEGER) ENGINE=MyISAM")
            cursor.execute(
                f"CREATE TRIGGER refuse BEFORE {self._event} ON photos FOR EACH ROW BEGIN {signal}; END"
            )
            yield
            cursor.execute("DROP TRIGGER refuse")
            cursor.execute("SELECT COUNT(*) FROM met")
            assert cursor.fetchone() == (int(once),)


def reason_of(pool: TicketPool) -> TicketError | None:
    """Why the first server's table's circuit is open."""
    return pool.servers[0].table("photos").reason


@pytest.fixture
def refusing(
    servers: ServerFixtures,
    ticket_kind: str,
    ticket_urls: list[URL],
    open_pool: OpenPool,
    layout: LayoutName,
) -> Refusing:
    return Refusing(servers, ticket_kind, ticket_urls, open_pool(ticket_urls), layout)


@REPLACE
@pytest.mark.parametrize("n", [1, 5])
@pytest.mark.parametrize("code", [1205, 1317])
def test_lock_wait_is_tried_again_there(refusing: Refusing, code: int, n: int) -> None:
    pool = refusing.pool
    pool.dispose()  # what is lost on a connection that was idle is tried again, too
    with refusing.with_error(code, once=True):
        ids = pool.next_ids("photos", n) + pool.next_ids("photos", n)
    assert residues(ids) == {0, 1}
    assert_unique(refusing.ids + ids)
    assert {(record.errors, record.breaker) for record in pool.status()} == {(0, "closed")}


@pytest.mark.parametrize("n", [1, 5])
@pytest.mark.parametrize("listens", [False, True])
@LAYOUTS
def test_draw_that_a_deadlock_ends_goes_to_the_other_server(
    refusing: Refusing, n: int, caplog: pytest.LogCaptureFixture, *, listens: bool
) -> None:
    """Nothing has failed: a busy table of Flickr's layout has many deadlocks."""
    pool, told = refusing.pool, list[object]()

    def hear(draw: Draw) -> None:
        if draw.error is not None:
            told.append(draw)

    event.listen(pool, "failed_over", lambda *arguments: told.append(arguments))
    if listens:
        event.listen(pool, "drawn", hear)
    with caplog.at_level(logging.INFO), refusing.with_error(1213):
        ids = [one for _ in range(4) for one in pool.next_ids("photos", n)]
    assert residues(ids) == {0}
    assert_unique(refusing.ids + ids)
    assert {(record.errors, record.breaker) for record in pool.status()} == {(0, "closed")}
    assert not told
    assert not caplog.messages


@REPLACE
def test_draw_that_a_deadlock_ends_is_tried_again_where_no_other_server_is_healthy(
    refusing: Refusing,
) -> None:
    pool = refusing.pool
    pool.servers[1].breaker.record_failure(TicketServerError("it is down"), refused=True)
    with refusing.with_error(1213, once=True):
        ids = [pool.next_id("photos"), pool.next_id("photos")]
    assert residues(ids) == {1}
    assert_unique(refusing.ids + ids)
    assert pool.servers[0].table("photos").errors == 0
    assert not pool.servers[1].breaker.is_closed, "it was asked"


@LAYOUTS
def test_a_lock_wait_again_and_again_is_the_table_s_fault(refusing: Refusing) -> None:
    pool = refusing.pool
    with refusing.with_error(1205):
        assert residues(pool.next_id("photos") for _ in range(4)) == {0}
        assert pool.servers[0].breaker.is_closed
        assert refusing.others_are_drawn()


@LAYOUTS
@pytest.mark.parametrize(
    ("code", "told"),
    [
        (1114, "no space is left.*free some.*draws then resume"),
        (1021, "no space is left.*free some.*draws then resume"),
        (1317, "ended the statement early.*what kills statements"),
    ],
)
def test_draw_that_a_server_cannot_do_now_is_the_table_s_fault(
    refusing: Refusing, code: int, told: str
) -> None:
    """A full disk, or a statement that is killed each time: the next server; and it heals by itself."""
    pool = refusing.pool
    with refusing.with_error(code):
        ids = [pool.next_id("photos") for _ in range(6)]
        assert residues(ids) == {0}
        assert re.search(rf"'photos'.*offset 1.*{told}", str(reason_of(pool)))
        assert "is gone" not in str(reason_of(pool))
        assert pool.servers[0].breaker.is_closed
        assert refusing.others_are_drawn()
    assert_unique(refusing.ids + ids + draw_from(pool, 1))
    assert reason_of(pool) is None


@LAYOUTS
@pytest.mark.parametrize("code", [1290, 1836])
def test_a_server_that_takes_no_writes_is_left_at_once(
    refusing: Refusing, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_timing(monkeypatch, circuit_breaker, first_wait_seconds=3600.0)
    pool = refusing.pool
    refused = pool.servers[0]
    with refusing.with_error(code):
        ids = [pool.next_id("photos") for _ in range(6)]
    assert residues(ids) == {0}
    assert (refused.breaker.state, refused.table("photos").errors) == ("open", 1)
    assert "takes no writes" in str(refused.breaker.reason)
    assert not refusing.others_are_drawn()
    assert_unique(refusing.ids + ids)


@pytest.mark.parametrize(
    ("module", "there", "code"),
    [
        ("pymysql", {"port": 1}, 2003),
        ("mysqldb", {"port": 1}, 2002),
        ("mysqldb", {"host": "localhost", "query": {"unix_socket": "/nowhere"}}, 2002),
    ],
)
def test_a_server_that_is_not_there_is_left_at_once(
    ticket_urls: list[URL], open_pool: OpenPool, module: str, there: dict[str, Any], code: int
) -> None:
    """2006 and 2013, of connections that are lost, are what every driver meets in test_drivers.py."""
    pytest.importorskip({"mysqldb": "MySQLdb"}.get(module, module))
    open_pool(ticket_urls).create_table("photos")
    first, second = (url.set(drivername=f"mysql+{module}") for url in ticket_urls)
    pool = open_pool([first.set(**there), second])
    assert residues(pool.next_id("photos") for _ in range(4)) == {0}
    reason = pool.servers[0].breaker.reason
    assert reason is not None
    assert reason.__cause__ is not None
    assert reason.__cause__.args[0] == code


@LAYOUTS
def test_a_number_that_is_there_already_is_a_broken_promise(
    refusing: Refusing, caplog: pytest.LogCaptureFixture
) -> None:
    pool = refusing.pool
    with refusing.with_error(1062):
        ids = [pool.next_id("photos") for _ in range(4)]
        assert_quarantined(pool, caplog, "already holds")
    assert residues(ids) == {0}
    assert isinstance(pool.servers[0].table("photos").reason, TicketIntegrityError)
    assert refusing.others_are_drawn()


@LAYOUTS
@pytest.mark.parametrize("code", [1467, 4084])
def test_the_end_of_the_numbers_is_the_table_s_until_it_has_more(
    refusing: Refusing, code: int
) -> None:
    pool = refusing.pool
    with refusing.with_error(code):
        ids = [pool.next_id("photos") for _ in range(4)]
        assert residues(ids) == {0}
        assert isinstance(pool.servers[0].table("photos").reason, TicketsExhausted)
        assert pool.servers[0].breaker.is_closed
        assert refusing.others_are_drawn()
    assert_unique(refusing.ids + ids + draw_from(pool, 1))


@pytest.mark.parametrize("layout", ["replace"])
@pytest.mark.parametrize("code", [1205, 1290, 1467])
def test_an_error_in_the_middle_of_a_block_leaves_no_lock(refusing: Refusing, code: int) -> None:
    """Of its four statements, the last one, which unlocks the table, is not reached."""
    pool = refusing.pool
    with refusing.with_error(code):
        ids = pool.next_ids("photos", 5) + pool.next_ids("photos", 5)
        assert residues(ids) == {0}
    # who drops the trigger has waited for the lock
    assert_unique(refusing.ids + ids)
