"""A server that lost numbers before a process met it is recognised by what its peers know of it."""

from __future__ import annotations

import asyncio
import logging
import shutil
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import URL, create_engine, make_url, text
from sqlalchemy.util import await_only, greenlet_spawn

from sqla_tickets import (
    TicketArgumentError,
    TicketError,
    TicketIntegrityError,
    TicketPool,
    TicketSequence,
    TicketServerError,
    TicketTableError,
)
from sqla_tickets.concurrency import SharedCall, pause
from sqla_tickets.connect.timeouts import CONNECT_TIMING
from sqla_tickets.dialects import ErrorKind, LayoutName
from sqla_tickets.draw import hedging
from sqla_tickets.draw import server as server_module
from sqla_tickets.draw.table_state import TicketTable, ToldMark
from sqla_tickets.high_water import service
from sqla_tickets.high_water.statements import MARKS
from sqla_tickets.high_water.timing import TIMING as MARKS_TIMING
from sqla_tickets.maintenance import operations
from tests.support.draws import (
    FLICKRS_TABLE,
    PATIENCE,
    OpenPool,
    assert_unique,
    draw_from,
    fresh_pair,
    grant_only,
    in_processes,
    residues,
    run,
)
from tests.support.draws import until as wait_until
from tests.support.drivers import Route, routes
from tests.support.high_water_marks import marks_on
from tests.support.servers import ServerFixtures
from tests.support.set_back import SET_BACK, assert_quarantined
from tests.support.timing import set_timing

PLAIN = {"mariadb": "mysql+pymysql", "postgresql": "postgresql+psycopg", "sqlite": "sqlite"}
MYSQL_LIKE = pytest.mark.ticket_servers("mariadb", "mysql")
CLIENTS = 6
#: Longer than any loaded machine takes, in seconds.
FOR_EVER = 30.0


def wait_for_mark(url: URL, offset: int, at_least: int) -> None:
    deadline = time.monotonic() + PATIENCE
    while marks_on(url).get(("photos", offset), 0) < at_least:
        assert time.monotonic() < deadline, f"{marks_on(url)}, expected {at_least}"
        time.sleep(0.02)


def of(ids: list[int], offset: int) -> list[int]:
    """The tickets of one of two servers."""
    return [ticket for ticket in ids if ticket % 2 == offset % 2]


def some(pool: TicketPool, n: int = 2, sequence: str = "photos") -> list[int]:
    """Tickets of both servers, ``n`` of each at least."""
    return draw_from(pool, 1, n, sequence) + draw_from(pool, 2, n, sequence)


def draw_some(urls: list[URL], n: int = 5) -> list[int]:
    """What a process does that ends well: draw, and close its pool."""
    with TicketPool(urls, hedge=False) as pool:
        return some(pool, n)


def assert_refused(urls: list[URL], caplog: pytest.LogCaptureFixture) -> list[int]:
    """A new process refuses the first server's tickets, and draws on; returns what it draws."""
    caplog.clear()
    with TicketPool(urls, hedge=False) as pool:
        ids = draw_from(pool, 2, 2)
        deadline = time.monotonic() + PATIENCE
        while not criticals(caplog):
            assert time.monotonic() < deadline
            ids.append(pool.next_id("photos"))
    assert "its peers know" in criticals(caplog)[0]
    assert residues(ids) == {0}
    return ids


def lower(url: URL, layout: LayoutName) -> None:
    """Set a table back to its beginning."""
    if layout == "counter":
        run(url, "UPDATE photos SET id = 2 - (id & 1)")
    else:
        run(url, "TRUNCATE TABLE photos", "REPLACE INTO photos (id, stub) VALUES (1, 'a')")


def criticals(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno == logging.CRITICAL]


# -- what is written


@pytest.mark.parametrize("kind", ["mariadb", "mysql"])
def test_server_that_no_longer_shows_which_one_it_is_is_verified_again(
    servers: ServerFixtures, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """As where a restored copy has taken its place, and has no memory left for that question."""
    _, _, urls = fresh_pair(servers, kind)
    with TicketPool(urls, hedge=False) as pool:
        pool.create_table("photos", layout="counter")
        ids = some(pool)
        last = max(of(ids, 1))
        ids += draw_some(urls)  # of another process
        pool.servers[0].close()
        run(urls[0], f"UPDATE photos SET id = {last + 2}")  # above all that this process knows
        monkeypatch.setattr("sqla_tickets.connect.pool.identify", lambda *_: None)
        ids += [pool.next_id("photos") for _ in range(4)]
    assert_unique(ids)


def test_a_pool_that_is_closed_has_told_the_peers(ticket_urls: list[URL], pool: TicketPool) -> None:
    ids = some(pool)
    pool.dispose()
    assert marks_on(ticket_urls[0]) == {("photos", 2): max(of(ids, 2))}
    assert marks_on(ticket_urls[1]) == {("photos", 1): max(of(ids, 1))}


def test_marks_are_written_while_a_pool_draws(ticket_urls: list[URL], pool: TicketPool) -> None:
    first = draw_from(pool, 1)
    wait_for_mark(ticket_urls[1], 1, min(of(first, 1)))
    for offset in (1, 2):
        pool.servers[offset - 1].draw("photos", 20_000)
    deadline = time.monotonic() + PATIENCE
    while any(
        marks_on(url).get(("photos", o), 0) < 40_000
        for o, url in zip((2, 1), ticket_urls, strict=True)
    ):
        assert time.monotonic() < deadline
        pool.next_id("photos")
        time.sleep(0.05)


def test_hardly_any_draw_writes_marks(pool: TicketPool, monkeypatch: pytest.MonkeyPatch) -> None:
    pool.next_ids("photos", 3)
    used: list[float] = []
    for server in pool.servers:
        original = server.use

        def use(work: Callable[..., None], original: Callable[..., None] = original) -> None:
            used.append(time.monotonic())
            original(work)

        monkeypatch.setattr(server, "use", use)
    began = time.monotonic()
    for _ in range(200):
        pool.next_id("photos")
    lasted = time.monotonic() - began
    # for each write on two servers: what is met, what is written, and what is read again
    assert len(used) <= 6 + 6 * (1 + lasted / 1.5)


def test_marks_are_only_raised(ticket_urls: list[URL], open_pool: OpenPool) -> None:
    pools = [open_pool(ticket_urls) for _ in range(CLIENTS)]
    pools[0].create_table("photos")
    together = threading.Barrier(CLIENTS)
    drawn: list[list[int]] = []

    def draw(pool: TicketPool) -> None:
        together.wait()
        ids: list[int] = []
        for _ in range(10):
            ids += some(pool)
            pool._marks.begin_to_write(pool.servers[0])
        pool.dispose()
        drawn.append(ids)

    threads = [threading.Thread(target=draw, args=(pool,)) for pool in pools]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    ids = [ticket for some in drawn for ticket in some]
    assert_unique(ids)
    assert marks_on(ticket_urls[1])["photos", 1] == max(of(ids, 1))
    assert marks_on(ticket_urls[0])["photos", 2] == max(of(ids, 2))


def test_an_older_mark_lowers_none(ticket_urls: list[URL], pool: TicketPool) -> None:
    ids = some(pool)
    draw_some(ticket_urls, 9)
    before = marks_on(ticket_urls[1])
    assert before["photos", 1] > max(ids)
    pool.dispose()
    assert marks_on(ticket_urls[1]) == before


# -- what is found out


@pytest.mark.ticket_servers("mariadb")
@pytest.mark.parametrize("how", SET_BACK)
def test_a_number_that_was_set_back_before_a_process_began(
    ticket_urls: list[URL],
    open_pool: OpenPool,
    how: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    layout, statements = SET_BACK[how]
    with TicketPool(ticket_urls, hedge=False) as before:
        before.create_table("photos", layout=layout)
        ids = before.next_ids("photos", 20) + before.next_ids("photos", 20) + some(before)
    run(ticket_urls[0], *statements)
    pool = open_pool(ticket_urls)
    with suppress(TicketError):  # one that was truncated is found empty
        pool.servers[0].draw("photos", 1)
    later = [pool.next_id("photos") for _ in range(8)]
    assert_unique(ids + later)
    assert residues(later) == {0}
    if how not in ("truncated", "rows deleted and the counter altered"):
        assert_quarantined(
            pool,
            caplog,
            "expected a ticket above",
            "its peers know",
            "sqla-tickets restore --offset 1",
        )


def test_a_counter_row_that_was_lowered_before_a_process_began(
    ticket_urls: list[URL], open_pool: OpenPool, caplog: pytest.LogCaptureFixture
) -> None:
    open_pool(ticket_urls).create_table("photos", layout="counter")
    ids = draw_some(ticket_urls)
    run(ticket_urls[0], "UPDATE photos SET id = 1")
    ids += assert_refused(ticket_urls, caplog)
    assert_unique(ids)


def test_no_server_is_left_when_all_were_set_back(
    ticket_urls: list[URL], open_pool: OpenPool
) -> None:
    open_pool(ticket_urls).create_table("photos", layout="counter")
    draw_some(ticket_urls)
    for url in ticket_urls:
        lower(url, "counter")
    with pytest.raises(TicketIntegrityError, match=r"'photos'.*its peers know"):
        open_pool(ticket_urls).next_id("photos")


def draw_texts(urls: list[str], n: int) -> list[int]:
    with TicketPool(urls) as pool:
        return [pool.next_id("photos") for _ in range(n)]


def test_a_data_folder_that_was_restored_while_processes_draw(
    servers: ServerFixtures, open_pool: OpenPool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = servers.new_mariadb(), servers.mariadb(1)
    urls = [servers.fresh_database(first), servers.fresh_database(second)]
    pool = open_pool(urls)
    pool.create_table("photos")
    ids = some(pool)
    first.stop()
    shutil.copytree(first.folder / "data", tmp_path / "backup")
    first.start()
    ids += draw_some(urls, 9) + some(pool)
    first.stop()
    shutil.rmtree(first.folder / "data")
    shutil.copytree(tmp_path / "backup", first.folder / "data")
    first.start()
    texts = [url.render_as_string(hide_password=False) for url in urls]
    for drawn in in_processes(draw_texts, *[(texts, 20)] * 2):
        ids += drawn
    ids += [pool.next_id("photos") for _ in range(8)]
    assert_unique(ids)
    ids += assert_refused(urls, caplog)
    assert_unique(ids)


def wait_until_old(url: URL) -> None:
    """Wait until a server has run for so long that its next start cannot seem to be this one."""
    ((_, seconds),) = run(url, "SHOW GLOBAL STATUS LIKE 'Uptime'")
    time.sleep(max(0.0, CONNECT_TIMING.start_tolerance_seconds + 1.5 - int(str(seconds))))


def test_a_server_that_was_restored_behind_a_living_process(
    servers: ServerFixtures, open_pool: OpenPool, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = servers.new_mariadb(), servers.mariadb(1)
    urls = [servers.fresh_database(first), servers.fresh_database(second)]
    pool = open_pool(urls)
    pool.create_table("photos", layout="counter")
    ids = draw_from(pool, 1)
    ids += draw_some(urls, 20)
    lower = max(of(ids, 1)) - 10  # which is above all that `pool` has drawn
    run(urls[0], f"UPDATE photos SET id = {lower}")
    wait_until_old(urls[0])
    first.kill()
    first.start()
    ids += draw_until_back(pool)
    assert_unique(ids)
    assert "its peers know" in criticals(caplog)[0]


def draw_until_back(pool: TicketPool) -> list[int]:
    """Draw until the first server was asked again, and gave a ticket or was quarantined."""
    ids: list[int] = []
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        ids.append(pool.next_id("photos"))
        table = pool.servers[0].table("photos")
        if ids[-1] % 2 == 1 or table.state == "quarantined":
            return ids
        time.sleep(0.01)
    raise AssertionError("the server did not come back")


def test_a_server_that_was_only_restarted_is_drawn_from(
    servers: ServerFixtures, open_pool: OpenPool, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = servers.mariadb(0), servers.mariadb(1)
    urls = [servers.fresh_database(first), servers.fresh_database(second)]
    pool = open_pool(urls)
    for layout, name in (("replace", "photos"), ("counter", "albums")):
        pool.create_table(name, layout=layout)  # type: ignore[arg-type]  # of the two
        pool.next_ids(name, 9)
    ids = draw_some(urls)
    wait_until_old(urls[0])
    first.kill()
    first.start()
    ids += draw_until_back(pool) + draw_some(urls)
    assert_unique(ids)
    assert not criticals(caplog)


def test_what_a_living_process_finds_out_the_next_one_knows(
    ticket_urls: list[URL], open_pool: OpenPool, caplog: pytest.LogCaptureFixture
) -> None:
    pool = open_pool(ticket_urls)
    pool.create_table("photos", layout="counter")
    ids = draw_from(pool, 1)
    wait_for_mark(ticket_urls[1], 1, min(of(ids, 1)))
    reached = max(of(draw_from(pool, 1, 9), 1))
    run(ticket_urls[0], f"UPDATE photos SET id = {reached - 8}")
    with pytest.raises(TicketIntegrityError):
        pool.servers[0].draw("photos", 1)
    assert len(criticals(caplog)) == 1
    wait_for_mark(ticket_urls[1], 1, reached)


@MYSQL_LIKE
def test_a_server_that_was_set_back_while_its_peer_was_down(
    servers: ServerFixtures, open_pool: OpenPool, ticket_kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    _, second, urls = fresh_pair(servers, ticket_kind)
    with TicketPool(urls) as before:
        before.create_table("photos", layout="counter")
        for _ in range(2):
            before.next_ids("photos", 10**6)
    second.stop()
    lower(urls[0], "counter")
    pool = open_pool(urls)
    pool.next_id("photos")  # nobody is there to tell
    assert not criticals(caplog)
    second.start()
    deadline = time.monotonic() + PATIENCE
    while not criticals(caplog):
        assert time.monotonic() < deadline
        pool.next_id("photos")
        time.sleep(0.01)
    assert residues(pool.next_id("photos") for _ in range(4)) == {0}


# -- and by those who know less than others


def reached(url: URL) -> int:
    """What the first server's table stands at."""
    ((number,),) = run(url, "SELECT id FROM photos")
    return int(str(number))


def without_marks(pool: TicketPool) -> TicketPool:
    """A pool as of a process that is killed before it has written anything."""
    pool._marks.__dict__["on_accepted"] = lambda *_: None
    pool._marks.__dict__["flush"] = lambda: None
    pool._marks.__dict__["write_last"] = lambda: False
    return pool


@pytest.mark.parametrize("driver", ["pymysql", "asyncmy"])
@pytest.mark.ticket_servers("mariadb", "mysql")
def test_last_draws_of_an_idle_process_are_written(
    ticket_urls: list[URL], open_pool: OpenPool, monkeypatch: pytest.MonkeyPatch, driver: str
) -> None:
    """No draw follows, and nobody closes the pool; the monitor of the second pause was asleep."""
    set_timing(monkeypatch, hedging, unused_seconds=0.3)
    set_timing(monkeypatch, service, interval_seconds=0.2)
    open_pool(ticket_urls).create_table("photos")

    def is_written() -> bool:
        return marks_on(ticket_urls[1])["photos", 1] >= reached(ticket_urls[0])

    def is_asleep(pool: TicketPool) -> bool:
        return pool._monitor.poller._sleep_seconds is None

    def draw() -> None:
        with TicketPool([url.set(drivername=f"mysql+{driver}") for url in ticket_urls]) as pool:
            for _ in range(2):
                for _ in range(60):  # all but the first are drawn before the next round is due
                    pool.servers[0].draw("photos", 1)
                for condition in (is_written, partial(is_asleep, pool)):
                    if driver == "asyncmy":
                        await_only(asyncio.to_thread(wait_until, condition))
                    else:
                        wait_until(condition)

    if driver == "asyncmy":
        asyncio.run(greenlet_spawn(draw))
    else:
        draw()


@pytest.mark.parametrize("layout", ["replace", "counter"])
@pytest.mark.ticket_servers("mariadb", "mysql")
def test_a_process_that_refuses_a_server_at_first_sight_does_not_draw_from_it(
    ticket_urls: list[URL], open_pool: OpenPool, layout: LayoutName
) -> None:
    open_pool(ticket_urls).create_table("photos", layout=layout)
    ids = of(draw_some(ticket_urls, 10), 1)
    if layout == "counter":
        run(ticket_urls[0], f"UPDATE photos SET id = {ids[-3]}")
    else:
        again = f"REPLACE INTO photos (id, stub) VALUES ({ids[-3]}, 'a')"
        run(ticket_urls[0], "TRUNCATE TABLE photos", again)
    for n in (1, 50):
        pool = open_pool(ticket_urls)
        with pytest.raises(TicketIntegrityError, match="its peers know"):
            pool.servers[0].draw("photos", n)
        assert pool.next_id("photos") % 2 == 0
    assert reached(ticket_urls[0]) == ids[-3]
    wait_for_mark(ticket_urls[1], 1, ids[-1] + 2 * MARKS_TIMING.margin_tickets)


def test_what_only_killed_processes_have_drawn_is_not_drawn_again(
    ticket_urls: list[URL], open_pool: OpenPool, caplog: pytest.LogCaptureFixture
) -> None:
    pool, killed = open_pool(ticket_urls), without_marks(open_pool(ticket_urls))
    pool.create_table("photos", layout="counter")
    known = pool.servers[0].draw("photos", 20)[0][-1]
    wait_for_mark(ticket_urls[1], 1, known)
    lost = killed.servers[0].draw("photos", 100)[0][-1]
    run(ticket_urls[0], f"UPDATE photos SET id = {known - 2}")
    with pytest.raises(TicketIntegrityError):
        pool.servers[0].draw("photos", 50)
    assert known < reached(ticket_urls[0]) < lost  # all that newcomers would look at
    wait_for_mark(ticket_urls[1], 1, lost)
    for _ in range(2):
        later = open_pool(ticket_urls)
        with pytest.raises(
            TicketIntegrityError, match="has already found that this server was set back"
        ):
            later.servers[0].draw("photos", 1)
    assert marks_on(ticket_urls[1])["photos", 1] < lost + 3 * 10**6  # none raises another
    pool.raise_above("photos", 10**7)
    assert min(draw_some(ticket_urls)) > 10**7


@pytest.mark.ticket_servers("mariadb")
def test_fence_raised_while_marks_are_written(
    ticket_urls: list[URL], open_pool: OpenPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = open_pool(ticket_urls)
    pool.create_table("photos", layout="counter")
    first, second = pool.servers
    original = second.use

    def use_for_long(work: Callable[..., None]) -> None:
        original(work)
        time.sleep(0.3)

    monkeypatch.setattr(second, "use", use_for_long)
    known = first.draw("photos", 20)[0][-1]
    run(ticket_urls[0], f"UPDATE photos SET id = {known - 2}")
    with pytest.raises(TicketIntegrityError):
        first.draw("photos", 1)
    wait_for_mark(ticket_urls[1], 1, known + 1)


def test_a_server_that_is_set_back_behind_a_process_that_lags(
    ticket_urls: list[URL], open_pool: OpenPool
) -> None:
    pool = open_pool(ticket_urls)
    pool.create_table("photos", layout="counter")
    own = pool.servers[0].draw("photos", 5)[0][-1]
    wait_for_mark(ticket_urls[1], 1, own)
    own = pool.servers[0].draw("photos", 5)[0][-1]
    last = max(of(draw_some(ticket_urls, 20), 1))
    pool._marks.begin_to_write(pool.servers[1])
    deadline = time.monotonic() + PATIENCE
    while pool.servers[0].table("photos").largest_mark < last:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    run(ticket_urls[0], f"UPDATE photos SET id = {own + 2}")
    with pytest.raises(TicketIntegrityError, match=r"its peers know"):
        pool.servers[0].draw("photos", 1)


def drawn_before_a_drop(ticket_urls: list[URL], open_pool: OpenPool) -> TicketPool:
    """A pool that has drawn from a sequence which another process has since dropped and created."""
    old, other = open_pool(ticket_urls), open_pool(ticket_urls)
    old.create_table("photos", layout="counter")
    for _ in range(2):
        old.next_ids("photos", 100)
    old._marks.flush()
    other.drop_table("photos")
    other.create_table("photos", layout="counter")
    return old


def test_earlier_generation_known_raises_no_fence_in_the_present(
    ticket_urls: list[URL], open_pool: OpenPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = drawn_before_a_drop(ticket_urls, open_pool)
    set_timing(monkeypatch, server_module, idle_seconds=0.0)
    for _ in range(2):
        with pytest.raises(TicketIntegrityError):
            old.servers[0].draw("photos", 1)
    old.dispose()
    assert max(draw_some(ticket_urls)) < 100
    assert max(marks_on(ticket_urls[1]).values()) < 100


def test_fence_raised_while_a_new_generation_is_found(
    ticket_urls: list[URL], open_pool: OpenPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = drawn_before_a_drop(ticket_urls, open_pool)
    table, store = old.servers[0].table("photos"), old._marks._peer(old.servers[0]).store
    original = store.last_ticket

    def refuse_meanwhile(name: str) -> int | None:
        found = original(name)
        table.observe_mark(table.high_water + 1000)  # as a draw does whose ticket is refused
        return found

    monkeypatch.setattr(store, "last_ticket", refuse_meanwhile)
    peer = old._marks._peer(old.servers[1])
    peer.read([(old._marks._peer(old.servers[0]), table)])
    peer.write_here(old._marks._peers_of(old.servers[1]))
    assert max(marks_on(ticket_urls[1]).values()) < 100


@pytest.mark.ticket_servers("sqlite")
def test_a_late_answer_about_an_earlier_generation_leaves_the_mark_missing(
    pool: TicketPool,
) -> None:
    first, peer = pool.servers
    first.draw("photos", 1)
    table = first.table("photos")
    for generation in (first.generation + 1, first.generation):  # the second over an old connection
        table.begin_to_read_marks([peer], generation)
    first.draw("photos", 1)
    assert not table.record_mark(peer, ToldMark(1, first.generation, None))
    assert peer in table.missing_marks
    assert table.record_mark(peer, ToldMark(1, first.generation + 1, None))
    assert peer not in table.missing_marks


@pytest.mark.ticket_servers("sqlite")
def test_a_peer_is_not_taken_for_unresponsive_while_an_event_loop_stands_still(
    pool: TicketPool,
) -> None:
    store = pool._marks._peer(pool.servers[0]).store
    loop = asyncio.new_event_loop()
    with closing(loop):
        of_loop = loop.run_until_complete(greenlet_spawn(SharedCall))
        for call, may_be_asked in ((of_loop, True), (SharedCall(), False)):
            with call.under_way:
                store._asking = {call: time.monotonic() - 60}
                assert store.may_be_asked() is may_be_asked


@pytest.mark.ticket_servers("mariadb")
def test_closing_a_pool_writes_what_was_drawn_during_the_last_write(
    ticket_urls: list[URL], open_pool: OpenPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_timing(monkeypatch, service, flush_seconds=PATIENCE)
    pool = open_pool(ticket_urls)
    pool.create_table("photos", layout="counter")
    last = pool.servers[0].draw("photos", 5)[0][-1]
    wait_for_mark(ticket_urls[1], 1, last)
    peer = pool._marks._peer(pool.servers[1])
    wait_until(lambda: not peer.is_writing)
    pool.servers[1].connections.close_idle()  # so that the write has the only one
    with create_engine(ticket_urls[1]).connect() as connection:
        connection.execute(text(f"SELECT * FROM {MARKS} FOR UPDATE")).all()
        pool.servers[0].draw("photos", 1)
        pool._marks.begin_to_write(pool.servers[0])
        wait_until(lambda: bool(peer.store._asking))
        last = pool.servers[0].draw("photos", 5)[0][-1]
        release = threading.Timer(0.2, connection.rollback)
        release.start()
        pool.dispose()
        release.join()
    assert marks_on(ticket_urls[1])["photos", 1] == last


def test_a_process_that_has_been_idle_asks_the_peers_again(
    ticket_urls: list[URL], open_pool: OpenPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = open_pool(ticket_urls)
    pool.create_table("photos", layout="counter")
    own = pool.servers[0].draw("photos", 5)[0][-1]
    last = max(of(draw_some(ticket_urls, 20), 1))
    run(ticket_urls[0], f"UPDATE photos SET id = {own + 2}")
    assert own + 2 < last
    set_timing(monkeypatch, server_module, idle_seconds=0.0)
    with pytest.raises(TicketIntegrityError, match=r"its peers know"):
        pool.servers[0].draw("photos", 1)


# -- marks that were lost


def test_marks_that_were_truncated_are_written_by_all(
    ticket_urls: list[URL], open_pool: OpenPool
) -> None:
    old, new = open_pool(ticket_urls), open_pool(ticket_urls)
    old.create_table("photos", layout="counter")
    some(old)
    old._marks.flush()
    run(ticket_urls[1], f"DELETE FROM {MARKS}")
    new.servers[0].draw("photos", 1)
    for pool in (old, new, old):
        last = pool.servers[0].draw("photos", 1)[0][-1]
        deadline = time.monotonic() + PATIENCE
        while marks_on(ticket_urls[1]).get(("photos", 1), 0) < last:
            assert time.monotonic() < deadline
            pool.servers[0].draw("photos", 1)
            pool._marks.begin_to_write(pool.servers[0])
            time.sleep(0.01)


@pytest.mark.ticket_servers("mariadb")
def test_a_server_that_lost_its_marks_with_a_restart_is_told_again(
    servers: ServerFixtures, open_pool: OpenPool, ticket_kind: str
) -> None:
    _, second, urls = fresh_pair(servers, ticket_kind)
    pool = open_pool(urls)
    pool.create_table("albums", layout="counter")
    pool.create_table("photos", layout="counter")
    last = pool.servers[0].draw("albums", 50)[0][-1]
    pool.dispose()
    assert marks_on(urls[1])["albums", 1] == last
    run(urls[1], f"UPDATE {MARKS} SET mark = 1")
    wait_until_old(urls[1])
    second.kill()
    second.start()
    deadline = time.monotonic() + PATIENCE
    while marks_on(urls[1])["albums", 1] < last:
        assert time.monotonic() < deadline
        with suppress(TicketError):
            pool.next_id("photos")
        time.sleep(0.05)


def on_its_own_way(route: Route, urls: list[URL], work: Callable[[TicketPool], None]) -> None:
    """Do something with a pool of its own, on an event loop of its own where the driver needs one."""

    def do() -> None:
        with TicketPool(urls, hedge=False) as pool:
            work(pool)

    route.run(do)


@pytest.mark.parametrize("route", routes("mariadb", "postgresql", "sqlite"), ids=str)
def test_with_every_driver(
    route: Route, servers: ServerFixtures, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    urls = [route.fresh_database(servers, tmp_path, n) for n in range(2)]
    plain = [url.set(drivername=PLAIN[route.kind]) for url in urls]
    ids: list[int] = []

    def draw(pool: TicketPool) -> None:
        pool.create_table("photos", layout="counter")
        ids.extend(some(pool))
        reached = max(of(ids, 1))
        deadline = time.monotonic() + PATIENCE
        while marks_on(plain[1])["photos", 1] < reached:
            assert time.monotonic() < deadline
            ids.extend(draw_from(pool, 2))
            pause(0.05)

    def draw_again(pool: TicketPool) -> None:
        with pytest.raises(TicketIntegrityError, match="its peers know"):
            pool.servers[0].draw("photos", 1)
        ids.append(pool.next_id("photos"))

    on_its_own_way(route, urls, draw)
    lower(plain[0], "counter")
    on_its_own_way(route, urls, draw_again)
    assert_unique(ids)
    assert len(criticals(caplog)) == 1


def test_an_event_loop_that_ends_while_marks_are_written(tmp_path: Path) -> None:
    urls = [f"sqlite+aiosqlite:///{tmp_path}/tickets{n}.db" for n in range(2)]
    route = Route("sqlite+aiosqlite", "sqlite")
    pool = TicketPool(urls, hedge=False)
    route.run(lambda: pool.create_table("photos"))
    for _ in range(5):  # nobody waits for the task of the last draw
        route.run(lambda: pool.next_id("photos"))
    pool._marks.__dict__["_due"] = 0.0
    file = make_url(f"sqlite:///{tmp_path}/tickets1.db")

    def draw_on() -> None:
        deadline = time.monotonic() + PATIENCE
        while ("photos", 1) not in marks_on(file) or not marks_on(file)["photos", 1]:
            assert time.monotonic() < deadline
            pool.next_id("photos")
            pause(0.01)

    route.run(draw_on)


# -- what raises no fence


def by_drop(pool: TicketPool, other: TicketPool) -> str:
    pool.drop_table("photos")
    pool.create_table("photos")
    assert min(pool.next_ids("photos", 1)) < 10
    return "photos"


def by_tombstone(pool: TicketPool, other: TicketPool) -> str:
    operations.drop(pool, "photos")
    operations.create(pool, "photos")
    return "photos"


def by_rename(pool: TicketPool, other: TicketPool) -> str:
    operations.rename(pool, "photos", "pictures")
    return "pictures"


def by_rename_and_back(pool: TicketPool, other: TicketPool) -> str:
    operations.rename(pool, "photos", "pictures")
    operations.rename(pool, "pictures", "photos")
    return "photos"


def by_convert(pool: TicketPool, other: TicketPool) -> str:
    operations.convert(pool, "photos", "counter")
    return "photos"


def by_raise(pool: TicketPool, other: TicketPool) -> str:
    pool.raise_above("photos", 10**6)
    assert pool.next_id("photos") > 10**6
    return "photos"


def by_hand_on_one(pool: TicketPool, other: TicketPool) -> str:
    run(pool.servers[0].engine.url, "DROP TABLE photos")
    other.create_table("photos")
    return "photos"


def by_hand_on_all(pool: TicketPool, other: TicketPool) -> str:
    for server in pool.servers:
        run(server.engine.url, "DROP TABLE photos")
    other.create_table("photos")
    return "photos"


def by_hand_and_rename(pool: TicketPool, other: TicketPool) -> str:
    for server in pool.servers:
        run(server.engine.url, "DROP TABLE photos")
    other.create_table("pictures")
    operations.rename(other, "pictures", "photos")
    return "photos"


LEGITIMATE = [
    by_drop,
    by_tombstone,
    by_rename,
    by_rename_and_back,
    by_convert,
    by_raise,
    by_hand_on_one,
    by_hand_on_all,
    by_hand_and_rename,
]


@pytest.mark.ticket_servers("mariadb", "postgresql", "sqlite")
@pytest.mark.parametrize("change", LEGITIMATE, ids=lambda change: change.__name__)
def test_numbers_that_were_changed_for_a_reason(
    ticket_urls: list[URL],
    open_pool: OpenPool,
    change: Callable[[TicketPool, TicketPool], str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    pool = open_pool(ticket_urls)
    pool.create_table("photos")
    before = some(pool, 9) + pool.next_ids("photos", 300) + pool.next_ids("photos", 300)
    pool.dispose()
    name = change(pool, open_pool(ticket_urls))
    for _ in range(2):
        with TicketPool(ticket_urls, hedge=False) as later:
            after = some(later, sequence=name) + later.next_ids(name, 5)
        assert change is by_drop or not set(after) & set(before)
    assert not criticals(caplog)


def test_a_sequence_that_has_moved_to_other_servers_and_back(
    ticket_urls: list[URL],
    tmp_path: Path,
    open_pool: OpenPool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    here = open_pool(ticket_urls)
    there = TicketPool([f"sqlite:///{tmp_path}/there{n}.db" for n in range(2)], name="there")
    here.create_table("photos")
    ids = here.next_ids("photos", 50)
    for source, target in ((here, there), (there, here)):
        operations.move(source, "photos", target)
        with TicketPool([s.engine.url for s in target.servers], name=target.name) as later:
            ids += some(later)
    assert_unique(ids)
    assert not criticals(caplog)
    there.dispose()


def draw_above_the_marks(pool: TicketPool, urls: list[URL]) -> list[int]:
    """Tickets of a new table whose marks are not written yet, as others were a moment ago."""
    pool.create_table("photos")
    pool.next_ids("photos", 900)
    pool.next_ids("photos", 900)
    wait_for_mark(urls[1], 1, 1)
    return pool.next_ids("photos", 900) + pool.next_ids("photos", 900)


def test_a_mark_that_is_written_after_the_sequence_was_dropped(
    ticket_urls: list[URL], open_pool: OpenPool, caplog: pytest.LogCaptureFixture
) -> None:
    late, pool = open_pool(ticket_urls), open_pool(ticket_urls)
    draw_above_the_marks(late, ticket_urls)
    pool.drop_table("photos")
    pool.create_table("photos")
    late.dispose()
    assert max(marks_on(ticket_urls[0]).values()) == 0
    assert max(draw_some(ticket_urls)) < 100
    assert not criticals(caplog)


def test_a_mark_that_is_written_between_drop_and_create(
    ticket_urls: list[URL], open_pool: OpenPool, caplog: pytest.LogCaptureFixture
) -> None:
    late, pool = open_pool(ticket_urls), open_pool(ticket_urls)
    before = draw_above_the_marks(late, ticket_urls)
    pool.drop_table("photos")
    late.dispose()
    pool.create_table("photos")
    assert min(draw_some(ticket_urls)) > max(before)
    assert not criticals(caplog)


@pytest.mark.ticket_servers("mariadb")
def test_marks_of_another_stride_are_about_other_numbers(
    ticket_urls: list[URL], open_pool: OpenPool, caplog: pytest.LogCaptureFixture
) -> None:
    for url in ticket_urls:
        run(url, FLICKRS_TABLE.format(name="photos", engine="InnoDB"))
    run(ticket_urls[0], "REPLACE INTO photos (id, stub) VALUES (1, 'a')")
    run(ticket_urls[1], "REPLACE INTO photos (id, stub) VALUES (2, 'a')")
    wide = open_pool(ticket_urls, 10)
    wide.create_table("photos")
    wide.next_ids("photos", 30)
    wide.next_ids("photos", 30)
    wide.dispose()
    for url in ticket_urls:
        run(url, "DROP TABLE photos", FLICKRS_TABLE.format(name="photos", engine="InnoDB"))
        run(url, "REPLACE INTO photos (id, stub) VALUES (1, 'a')")
    run(ticket_urls[1], "REPLACE INTO photos (id, stub) VALUES (2, 'a')")
    draw_some(ticket_urls)
    assert not criticals(caplog)


def test_a_pool_with_its_servers_in_another_order_writes_nothing(
    ticket_urls: list[URL], open_pool: OpenPool
) -> None:
    open_pool(ticket_urls).create_table("photos")
    draw_some(ticket_urls, 10)
    before = [marks_on(url) for url in ticket_urls]
    swapped = open_pool(ticket_urls[::-1])
    with pytest.raises(Exception, match="numbered differently"):
        swapped.next_id("photos")
    swapped.dispose()
    assert [marks_on(url) for url in ticket_urls] == before


# -- servers without marks


@MYSQL_LIKE
def test_servers_that_keep_no_marks(
    ticket_urls: list[URL], open_pool: OpenPool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "sqla_tickets.high_water.service")
    for offset, url in enumerate(ticket_urls, 1):
        run(url, FLICKRS_TABLE.format(name="photos", engine="InnoDB"))
        run(url, f"REPLACE INTO photos (id, stub) VALUES ({offset}, 'a')")
    pool = open_pool(ticket_urls)
    ids = some(pool, 9)
    pool.dispose()
    assert_unique(ids)
    said = [r.getMessage() for r in caplog.records]
    assert sum("keeps no marks of its peers" in text for text in said) == 2
    assert sum("no peer can report a mark" in text for text in said) == 2
    assert len(said) == 4


@pytest.mark.ticket_servers("mariadb", "mysql")
def test_a_user_who_may_not_make_the_table(
    servers: ServerFixtures, open_pool: OpenPool, ticket_kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "sqla_tickets.high_water.service")
    first, second, urls = fresh_pair(servers, ticket_kind)
    for offset, (server, url) in enumerate(zip((first, second), urls, strict=True), 1):
        run(url, FLICKRS_TABLE.format(name="photos", engine="InnoDB"))
        run(url, f"REPLACE INTO photos (id, stub) VALUES ({offset}, 'a')")
        grant_only(server, url, "SELECT", "INSERT", "UPDATE", "DELETE", "LOCK TABLES")
    pool = open_pool(urls)
    pool.create_table("photos")
    pool.raise_above("photos", 100)
    some(pool)
    assert "the user of the migrations run `sqla-tickets create`" in caplog.text
    assert {record.breaker for record in pool.status()} == {"closed"}


def test_the_table_of_marks_is_no_sequence(ticket_urls: list[URL], pool: TicketPool) -> None:
    for name in (MARKS, MARKS.upper()):
        with pytest.raises(TicketArgumentError, match="is not a valid sequence name"):
            pool.create_table(name)
        with pytest.raises(TicketArgumentError, match="is not a valid sequence name"):
            pool.next_id(name)
    pool.next_id("photos")
    assert operations.names(pool) == {"photos"}


# -- silent peers


@MYSQL_LIKE
@pytest.mark.usefixtures("impatient")
def test_a_frozen_peer_keeps_no_draw_waiting(servers: ServerFixtures, ticket_kind: str) -> None:
    _, second, urls = fresh_pair(servers, ticket_kind)
    with TicketPool(urls) as before:
        for n in range(10):
            before.create_table(f"photos{n}")
    second.freeze()
    pool = TicketPool(urls, timeout=20)
    began = time.monotonic()
    table = pool.servers[0]
    ids = [table.draw(f"photos{n}", 1) for n in range(10)]
    lasted = time.monotonic() - began
    second.thaw()
    assert len(ids) == 10
    assert lasted < 10, f"{lasted:.1f} s"
    pool.dispose()


async def until(true: Callable[[], object]) -> None:
    end = time.monotonic() + FOR_EVER
    while not true():
        assert time.monotonic() < end
        await asyncio.sleep(0.001)


@pytest.mark.ticket_servers("mariadb")
def test_who_is_cancelled_while_it_asks_has_learned_nothing_for_others(
    ticket_urls: list[URL], open_pool: OpenPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_pool(ticket_urls).create_table("photos", layout="counter")
    draw_some(ticket_urls)
    lower(ticket_urls[0], "counter")

    async def draw_twice() -> list[object]:
        pool = TicketPool([url.set(drivername="mysql+asyncmy") for url in ticket_urls])
        server, peer = pool.servers
        answers, asked, asking = asyncio.Event(), list[object](), list[object]()
        ask_peers, use = server.ask_peers, peer.use

        def say_and_ask(*args: Any) -> None:
            asking.append(asyncio.current_task())
            ask_peers(*args)

        def use_late(work: Callable[..., None]) -> None:
            asked.append(work)
            await_only(answers.wait())
            use(work)

        monkeypatch.setattr(server, "ask_peers", say_and_ask)
        monkeypatch.setattr(peer, "use", use_late)
        draws = [asyncio.ensure_future(greenlet_spawn(server.draw, "photos", 1)) for _ in range(2)]
        await until(lambda: asked and len(asking) == 2)  # one asks, the other waits for its answers
        first, second = sorted(draws, key=asking.index)
        first.cancel()
        await until(lambda: len(asked) == 2 or second.done())
        answers.set()
        outcomes = await asyncio.gather(first, second, return_exceptions=True)
        await greenlet_spawn(pool.dispose)
        return list(outcomes)

    cancelled, refused = asyncio.run(draw_twice())
    assert isinstance(cancelled, asyncio.CancelledError)
    assert isinstance(refused, TicketIntegrityError), refused


@pytest.mark.ticket_servers("mariadb")
def test_marks_are_written_in_an_event_loop_after_a_drop(
    ticket_urls: list[URL], open_pool: OpenPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = open_pool(ticket_urls)
    other.create_table("photos", layout="counter")

    async def draw() -> None:
        pool = TicketPool([url.set(drivername="mysql+asyncmy") for url in ticket_urls])
        server, first = pool.servers[1], marks_on(ticket_urls[0])["photos", 2]

        async def draw_until_marked(above: int) -> None:
            end = time.monotonic() + FOR_EVER
            while marks_on(ticket_urls[0]).get(("photos", 2), 0) <= above:
                assert time.monotonic() < end
                await greenlet_spawn(server.draw, "photos", 1)
                await asyncio.sleep(0.01)

        await draw_until_marked(first)
        other.drop_table("photos")
        other.create_table("photos", layout="counter", start=10**7)
        await draw_until_marked(10**7 + 100)
        await greenlet_spawn(pool.dispose)

    set_timing(monkeypatch, service, interval_seconds=0.0)
    asyncio.run(draw())


@pytest.mark.parametrize("moves", [False, True])
def test_table_that_was_set_back_is_transferred_above_its_mark(
    ticket_urls: list[URL], open_pool: OpenPool, tmp_path: Path, *, moves: bool
) -> None:
    open_pool(ticket_urls).create_table("photos", layout="counter")
    ids = draw_some(ticket_urls, 40)
    lower(ticket_urls[0], "counter")
    lower(ticket_urls[1], "counter")
    pool = open_pool(ticket_urls)
    if moves:
        files = [f"sqlite:///{tmp_path}/media{n}.db" for n in range(2)]
        with TicketPool(files, name="media") as target:
            operations.move(pool, "photos", target)
            ids += some(target)
    else:
        operations.rename(pool, "photos", "pictures")
        ids += some(pool, sequence="pictures")
    assert_unique(ids)


@pytest.mark.parametrize("verb", ["raise", "drop"])
def test_tickets_buffered_by_an_earlier_name_are_dropped(pool: TicketPool, *, verb: str) -> None:
    operations.rename(pool, "photos", "pictures")
    earlier = TicketSequence("photos", block=100)
    ids = [pool.next_id(earlier)]
    if verb == "raise":
        pool.raise_above("pictures", 10**6)
        assert pool.next_id(earlier) > 10**6
    else:
        pool.drop_table("pictures")
        pool.create_table("pictures", layout="counter", start=10**6)
        assert pool.next_id(earlier) >= 10**6
    assert ids[0] < 10**6


# -- after the repair


def test_a_table_that_was_repaired_is_drawn_from_again(
    ticket_urls: list[URL], open_pool: OpenPool
) -> None:
    open_pool(ticket_urls).create_table("photos", layout="counter")
    ids = draw_some(ticket_urls)
    lower(ticket_urls[0], "counter")
    pool = open_pool(ticket_urls)
    with pytest.raises(TicketIntegrityError):
        pool.servers[0].draw("photos", 1)
    first, second = pool.servers
    with pytest.raises(TicketIntegrityError, match=r"'photos'.*its peers know"):
        pool.unquarantine("photos")
    pool.unquarantine("photos", second)
    assert residues(pool.next_id("photos") for _ in range(4)) == {0}
    pool.raise_above("photos", 10**7)
    pool.unquarantine("photos", first)
    later = some(pool)
    assert min(later) > 10**7
    assert_unique(ids + later)
    assert {record.breaker for record in pool.status()} == {"closed"}


def test_later_quarantine_is_not_ended(
    ticket_urls: list[URL], open_pool: OpenPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A draw that waited since before the first one is refused while the table is verified."""
    pool = open_pool(ticket_urls)
    pool.create_table("photos", layout="counter")
    server, later = pool.servers[0], TicketIntegrityError("of a draw that waited")
    table, accept = server.table("photos"), TicketTable.accept

    def accept_and_quarantine(self: TicketTable, blocks: list[range], before: int) -> None:
        accept(self, blocks, before)
        server.quarantine(table, later)

    server.quarantine(table, TicketIntegrityError("the first one"))
    with monkeypatch.context() as patch:
        patch.setattr(TicketTable, "accept", accept_and_quarantine)
        with pytest.raises(TicketIntegrityError, match="waited"):
            pool.unquarantine("photos", server)
    assert table.quarantine is later
    pool.unquarantine("photos", server)
    assert table.quarantine is None


def test_table_set_back_near_its_end_stays_quarantined(
    ticket_urls: list[URL], open_pool: OpenPool
) -> None:
    """No fence fits between its last ticket, which another process drew, and the end."""
    pool, other = open_pool(ticket_urls), open_pool(ticket_urls)
    pool.create_table("photos", layout="counter")
    run(ticket_urls[0], f"UPDATE photos SET id = {2**63 - 9_001}")
    ids = [pool.servers[0].draw("photos", 1)[0][0], other.servers[0].draw("photos", 500)[-1][-1]]
    other.dispose()
    pool.servers[0].table("photos").record_shown(ids[-1])  # by an inspection
    run(ticket_urls[1], f"DELETE FROM {MARKS}")
    run(ticket_urls[0], f"UPDATE photos SET id = {ids[0] + 200}")
    with pytest.raises(TicketIntegrityError):
        pool.servers[0].draw("photos", 1)
    with pytest.raises(TicketIntegrityError):
        pool.unquarantine("photos", pool.servers[0])


def test_a_server_of_another_pool_has_nothing_to_be_released(
    ticket_urls: list[URL], pool: TicketPool, open_pool: OpenPool
) -> None:
    stranger = open_pool(ticket_urls).servers[0]
    with pytest.raises(TicketArgumentError, match="is not in the pool"):
        pool.unquarantine("photos", stranger)
    pool.unquarantine("photos")


def test_a_restored_server_that_was_raised_before(
    ticket_urls: list[URL], open_pool: OpenPool, caplog: pytest.LogCaptureFixture
) -> None:
    pool = open_pool(ticket_urls)
    pool.create_table("photos", layout="counter")
    draw_some(ticket_urls, 4)
    pool.raise_above("photos", 5000)
    run(ticket_urls[0], "UPDATE photos SET id = 99")
    assert min(assert_refused(ticket_urls, caplog)) > 5000


@pytest.mark.ticket_servers("mariadb")
def test_two_addresses_of_one_server(
    servers: ServerFixtures, open_pool: OpenPool, ticket_kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    _, _, urls = fresh_pair(servers, ticket_kind)
    open_pool(urls).create_table("photos")
    open_pool(urls).next_ids("photos", 1)
    assert "are one server" not in caplog.text
    names = open_pool([urls[0], urls[0].set(host="localhost")])
    for _ in range(4):
        names.next_id("photos")
    said = [r.getMessage() for r in caplog.records if "are one server" in r.getMessage()]
    assert len(said) == 1
    assert "127.0.0.1" in said[0]
    assert "localhost" in said[0]
    wanted = r"no peer can report a mark.*it is the same server"
    required = TicketPool([urls[0], urls[0].set(host="localhost")], require_peer=True)
    with required, pytest.raises(TicketTableError, match=wanted):  # its own marks are no peer's
        required.next_id("photos")


def test_a_table_is_not_opened_while_a_server_does_not_show_its_marks(
    pool: TicketPool, ticket_urls: list[URL], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It could begin below what the lost one has issued."""
    run(ticket_urls[1], "DROP TABLE photos")
    first = pool._marks.of("photos")._peers[0].store
    monkeypatch.setattr(first, "_try", lambda *_, **__: (None, ErrorKind.TIMEOUT))
    with pytest.raises(TicketServerError, match="did not show its high-water marks of 'photos'"):
        pool.create_table("photos")
    monkeypatch.undo()
    pool.create_table("photos")
