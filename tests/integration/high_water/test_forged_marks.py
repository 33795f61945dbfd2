"""Marks that cannot be true stop no healthy server; those that can be true are kept, whatever they look like."""

from __future__ import annotations

import logging
import threading
import time

import pytest
from sqlalchemy import URL

from sqla_tickets import TicketError, TicketIntegrityError, TicketPool, TicketTableError
from sqla_tickets.high_water import service
from sqla_tickets.high_water.statements import GAP_NUMBERS, MARKS
from sqla_tickets.high_water.store import HighWaterStore
from sqla_tickets.maintenance import resize
from tests.integration.high_water.test_marks import draw_some, of, some, without_marks
from tests.support.draws import PATIENCE, OpenPool, assert_unique, residues, run, until
from tests.support.high_water_marks import marks_on
from tests.support.timing import set_timing

END = 2**63 - 1
NO_INTERVAL = pytest.mark.usefixtures("marks_at_once")


def forge(urls: list[URL], mark: int, number: int | None = None) -> None:
    """What one leaked client of the first server can write there."""
    run(urls[0], f"UPDATE {MARKS} SET mark = {mark} WHERE sequence = 'photos' AND stride > 1")
    if number is not None:
        run(urls[0], f"UPDATE photos SET id = {number}")


def reported(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno == logging.ERROR]


@pytest.fixture
def marks_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each draw writes and reads marks."""
    set_timing(monkeypatch, service, interval_seconds=0.0)


def largest_mark(url: URL) -> int:
    """That a column of marks can hold."""
    return 2**64 - 1 if url.get_backend_name() in ("mysql", "mariadb") else END


# -- what cannot be true


@NO_INTERVAL
@pytest.mark.parametrize("mark", ["largest", END, 2**62, 10**15])
def test_forged_mark_stops_no_healthy_server(
    ticket_urls: list[URL],
    open_pool: OpenPool,
    mark: int | str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Neither in new processes nor in running ones, and the other server is not told of it."""
    running = open_pool(ticket_urls)
    running.create_table("photos", layout="counter")
    ids = some(running, 5)
    forge(ticket_urls, largest_mark(ticket_urls[0]) if isinstance(mark, str) else mark)
    for pool in (running, open_pool(ticket_urls), running):
        ids += some(pool, 5)
        until(lambda: bool(reported(caplog)))
        pool._marks.flush()
    assert_unique(ids)
    assert max(ids) < 10**6
    assert {s.breaker for s in running.status()} == {"closed"}
    assert all(
        str(running.servers[0]) in text and "DELETE FROM" in text for text in reported(caplog)
    )
    assert len(reported(caplog)) == 2  # by each process
    assert marks_on(ticket_urls[1])["photos", 1] < 10**6
    run(ticket_urls[0], f"DELETE FROM {MARKS}")
    ids = some(running, 5)
    until(
        lambda: (
            bool(some(running))
            and marks_on(ticket_urls[0]).get(("photos", 2), 0) >= max(of(ids, 2))
        )
    )


@pytest.mark.ticket_servers("sqlite")
@pytest.mark.usefixtures("impatient")
def test_waiter_does_not_verify_before_peers_have_shown(
    ticket_urls: list[URL], open_pool: OpenPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who waits for another draw's questions waits for the second one, too."""
    open_pool(ticket_urls).create_table("photos", layout="counter")
    draw_some(ticket_urls)
    forge(ticket_urls, 2**62)
    asked, shown = threading.Event(), HighWaterStore.shown

    def late(store: HighWaterStore, name: str) -> list[int | None]:
        asked.set()
        time.sleep(1.3)
        return shown(store, name)

    monkeypatch.setattr(HighWaterStore, "shown", late)
    second = open_pool(ticket_urls).servers[1]
    first = threading.Thread(target=second.draw, args=("photos", 1))
    first.start()
    assert asked.wait(PATIENCE)
    assert second.draw("photos", 1)[0][0] < 10**6
    first.join()


@NO_INTERVAL
@pytest.mark.parametrize("mark", [END, 2**62])
def test_server_raised_to_its_end_stops_itself_only(
    ticket_urls: list[URL], open_pool: OpenPool, mark: int
) -> None:
    """A table that has used its numbers up supports no mark."""
    running = open_pool(ticket_urls)
    running.create_table("photos", layout="counter")
    ids = some(running, 5)
    forge(ticket_urls, mark, END)
    for pool in (running, open_pool(ticket_urls), running):
        drawn = [pool.next_id("photos") for _ in range(8)]
        assert residues(drawn) == {0}
        ids += drawn
    assert_unique(ids)


def test_forged_mark_opens_no_table(ticket_urls: list[URL], open_pool: OpenPool) -> None:
    """Nobody begins at a mark that cannot be true; what is there stays as it is."""
    pool = open_pool(ticket_urls)
    pool.create_table("photos", layout="counter")
    draw_some(ticket_urls)
    forge(ticket_urls, 2**62)
    pool.create_table("photos", layout="counter")
    run(ticket_urls[1], "DROP TABLE photos")
    with pytest.raises(TicketTableError, match="cannot be true") as refused:
        open_pool(ticket_urls).create_table("photos", layout="counter")
    assert str(pool.servers[0]) in str(refused.value)
    run(ticket_urls[0], f"DELETE FROM {MARKS} WHERE sequence = 'photos'")
    open_pool(ticket_urls).create_table("photos", layout="counter")
    assert max(draw_some(ticket_urls)) < 10**7


def test_required_peer_with_a_forged_mark_has_not_told(ticket_urls: list[URL]) -> None:
    with TicketPool(ticket_urls, hedge=False, require_peer=True) as pool:
        pool.create_table("photos", layout="counter")
        some(pool)
    forge(ticket_urls, 2**62)
    with TicketPool(ticket_urls, hedge=False, require_peer=True) as pool:
        with pytest.raises(TicketTableError, match=r"require_peer=True.*cannot be true"):
            pool.servers[1].draw("photos", 1)
        assert residues(pool.next_id("photos") for _ in range(4)) == {1}


# -- what may be true


def assert_refused_anew(urls: list[URL]) -> list[int]:
    """A new process does not draw from the second server; returns what it draws."""
    with TicketPool(urls, hedge=False) as pool:
        with pytest.raises(TicketIntegrityError, match="its peers know"):
            pool.servers[1].draw("photos", 1)
        ids = [pool.next_id("photos") for _ in range(4)]
    assert residues(ids) == {1}
    return ids


@pytest.mark.parametrize("above", [2 * 10**15, 10**18, END - 10**9])
def test_restored_server_that_was_raised_high_is_refused(
    ticket_urls: list[URL], open_pool: OpenPool, above: int
) -> None:
    """The mark is far above the server's own table, and the peer's table stands as high."""
    pool = open_pool(ticket_urls)
    pool.create_table("photos", layout="counter")
    ids = draw_some(ticket_urls)
    pool.raise_above("photos", above)
    ids += draw_some(ticket_urls)
    run(ticket_urls[1], "UPDATE photos SET id = 4", f"DELETE FROM {MARKS}")
    ids += assert_refused_anew(ticket_urls)
    assert_unique(ids)


def test_restored_server_of_high_numbers_is_refused(
    ticket_urls: list[URL], open_pool: OpenPool
) -> None:
    """It shows itself that such numbers are issued, and lacks the last of them."""
    pool = open_pool(ticket_urls)
    pool.create_table("photos", layout="counter")
    draw_some(ticket_urls)
    run(ticket_urls[1], f"UPDATE photos SET id = {10**18}")
    ids = draw_some(ticket_urls, 9)
    run(ticket_urls[1], f"UPDATE photos SET id = {10**18 + 2}")
    ids += assert_refused_anew(ticket_urls)
    assert_unique(ids)


@pytest.mark.parametrize("gap", [GAP_NUMBERS, 10**15])
def test_restored_server_that_joined_is_refused(
    ticket_urls: list[URL], open_pool: OpenPool, gap: int
) -> None:
    """Its new copy is empty, its mark stands a gap above all tables, and servers remember where it joined."""
    old = open_pool(ticket_urls[:1])
    old.create_table("photos", layout="counter")
    old.next_ids("photos", 9)
    new = open_pool(ticket_urls)
    resize.begin(old, new, "photos", gap=gap)
    resize.finish(new, "photos")
    ids = draw_some(ticket_urls)
    run(ticket_urls[1], "UPDATE photos SET id = 2", f"DELETE FROM {MARKS}")
    ids += assert_refused_anew(ticket_urls)
    assert_unique(ids)


def test_mark_whose_store_lost_its_table_is_believed(
    ticket_urls: list[URL], open_pool: OpenPool
) -> None:
    """Nobody can tell that it is wrong."""
    pool = open_pool(ticket_urls)
    pool.create_table("photos", layout="counter")
    pool.raise_above("photos", 2 * 10**15)
    draw_some(ticket_urls)
    run(ticket_urls[0], "DROP TABLE photos")
    run(ticket_urls[1], "UPDATE photos SET id = 4", f"DELETE FROM {MARKS}")
    with TicketPool(ticket_urls, hedge=False) as later:
        with pytest.raises(TicketIntegrityError):
            later.servers[1].draw("photos", 1)
        with pytest.raises(TicketError):
            later.next_id("photos")


def test_marks_of_a_32_bit_table_are_believed(ticket_urls: list[URL], open_pool: OpenPool) -> None:
    pool = open_pool(ticket_urls)
    pool.create_table("photos", layout="counter", bits=32)
    pool.raise_above("photos", 4 * 10**9)
    ids = draw_some(ticket_urls)
    run(ticket_urls[1], "UPDATE photos SET id = 4")
    ids += assert_refused_anew(ticket_urls)
    assert_unique(ids)


def test_tables_that_all_were_lowered_are_refused(
    ticket_urls: list[URL], open_pool: OpenPool
) -> None:
    """The servers' marks of each other support each other, as no table does."""
    pool = open_pool(ticket_urls)
    pool.create_table("photos", layout="counter", start=10**18)
    ids = draw_some(ticket_urls)
    for url, number in zip(ticket_urls, (3, 4), strict=True):
        run(url, f"UPDATE photos SET id = {number}")
    with (
        TicketPool(ticket_urls, hedge=False) as later,
        pytest.raises(TicketIntegrityError, match=f"a ticket above {max(ids)}"),
    ):
        later.next_id("photos")


@pytest.mark.ticket_servers("mariadb", "mysql")
def test_server_restored_from_before_it_was_widened_is_refused(
    ticket_urls: list[URL], open_pool: OpenPool
) -> None:
    """Its table cannot hold the mark, which is true all the same."""
    pool = open_pool(ticket_urls)
    pool.create_table("photos", layout="counter")
    ids = draw_some(ticket_urls)
    pool.raise_above("photos", 2 * 10**15)
    ids += draw_some(ticket_urls)
    run(ticket_urls[1], "UPDATE photos SET id = 4", f"DELETE FROM {MARKS}")
    run(ticket_urls[1], "ALTER TABLE photos MODIFY id INT UNSIGNED NOT NULL")
    ids += assert_refused_anew(ticket_urls)
    assert_unique(ids)


def test_tables_that_all_were_lost_begin_above_marks(
    ticket_urls: list[URL], open_pool: OpenPool
) -> None:
    """The servers' marks of each other support each other."""
    pool = open_pool(ticket_urls)
    pool.create_table("photos", layout="counter", start=10**18)
    ids = draw_some(ticket_urls)
    for url in ticket_urls:
        run(url, "DROP TABLE photos")
    open_pool(ticket_urls).create_table("photos", layout="counter")
    ids += draw_some(ticket_urls)
    assert_unique(ids)
    assert min(ids) > 10**17


def test_raised_fence_of_high_sequence_is_believed(
    ticket_urls: list[URL], open_pool: OpenPool, caplog: pytest.LogCaptureFixture
) -> None:
    pool = open_pool(ticket_urls)
    pool.create_table("photos", layout="counter", start=10**18)
    known = pool.servers[1].draw("photos", 50)[0][-1]
    pool._marks.begin_to_write(pool.servers[1])
    until(lambda: marks_on(ticket_urls[0])["photos", 2] >= known)
    lost = without_marks(open_pool(ticket_urls)).servers[1].draw("photos", 50)[0][-1]
    run(ticket_urls[1], f"UPDATE photos SET id = {known - 2}")
    with pytest.raises(TicketIntegrityError):
        pool.servers[1].draw("photos", 1)
    until(lambda: marks_on(ticket_urls[0])["photos", 2] > lost)
    assert_refused_anew(ticket_urls)
    assert not reported(caplog)


# -- the rule
