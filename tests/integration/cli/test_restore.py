"""``sqla-tickets restore`` after a site was killed at full speed: what nobody could tell in time."""

from __future__ import annotations

import os
import random
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from sqlalchemy import URL, create_engine
from sqlalchemy.pool import NullPool

from sqla_tickets import TicketIntegrityError, TicketPool
from sqla_tickets.high_water import peer, service, store
from sqla_tickets.high_water.statements import MARKS
from sqla_tickets.high_water.timing import TIMING
from sqla_tickets.maintenance import tombstones
from tests.support.command_line import options, run_cli
from tests.support.draws import draw_from, from_one_start, run, until
from tests.support.servers import MariaDB, ServerFixtures
from tests.support.tcp_proxy import HOST, Fault, TcpProxy

#: Tickets of one draw, and processes that draw without rest.
BLOCK, PROCESSES = 20_000, 4
#: Seconds, longer than any start of a process on a machine that is busy.
PATIENCE = 90.0


def draw_on(urls: list[str], journal: str, go: str) -> None:
    """Draw from one server for ever, at full speed as soon as a file is there; write each block down."""
    patient = replace(TIMING, patience_seconds=PATIENCE, lead_wait_seconds=PATIENCE)
    for module in (peer, service, store):
        module.__dict__["TIMING"] = patient
    book = os.open(journal, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    with TicketPool(urls, hedge=False, timeout=PATIENCE) as pool:
        while True:
            is_fast = os.path.exists(go)
            for block in pool.servers[0].draw("photos", BLOCK if is_fast else 1):
                os.write(book, f"{block[0]} {block[-1]}\n".encode())
            if not is_fast:
                time.sleep(0.01)


def blocks_in(journal: Path) -> list[tuple[int, int]]:
    """The first and last ticket of each block; a process was killed in the middle of a line, maybe."""
    text = journal.read_text() if journal.exists() else ""
    lines = [line.split() for line in text.splitlines()[: text.count("\n")]]
    return [(int(first), int(last)) for first, last in lines]


@dataclass
class Site:
    """Two servers that die, of which the first one loses its data, and processes that draw from it without rest.

    Attributes:
        first: the one that loses its data.
        second: its peer.
        urls: of both.
        journals: what each process has been given.
    """

    first: MariaDB
    second: MariaDB
    urls: list[URL]
    journals: list[Path]

    def prepare(self) -> None:
        """Copy the first server's data when it has issued some tickets, far above the other one's."""
        with TicketPool(self.urls) as pool:
            pool.create_table("photos", layout="counter")
            # no number of the other one's tells how far it came
            pool.servers[0].do("photos", tombstones.raise_above, "photos", 10**12)
            draw_from(pool, 1)
        self.first.stop()
        self.first.copy_data()
        self.first.start()

    @contextmanager
    def drawn_from(self, *urls: URL) -> Iterator[None]:
        """All processes draw slowly; at the end they draw at full speed, and are killed, and so are both servers."""
        go = self.journals[0].with_name("go")
        context = from_one_start()
        texts = [url.render_as_string(False) for url in urls]
        processes = [
            context.Process(target=draw_on, args=(texts, str(journal), str(go)), daemon=True)
            for journal in self.journals
        ]
        for process in processes:
            process.start()
        until(lambda: all(len(blocks_in(journal)) > 20 for journal in self.journals), PATIENCE)
        yield
        go.touch()
        time.sleep(random.uniform(0.2, 1.5))
        for process in processes:
            process.kill()
        self.first.kill()
        self.second.kill()
        for process in processes:
            process.join()

    def restore(self) -> None:
        """Start the servers, the first one with the old data, and see that it repeats nothing after ``restore``."""
        self.first.restore_data()
        self.first.start()
        self.second.start()
        before = [block for journal in self.journals for block in blocks_in(journal)]
        last = max(last for _, last in before)
        with TicketPool(self.urls) as pool:
            mark = (pool._marks.of("photos").kept_by(pool.servers[1]) or {})[1]
        done = run_cli("restore", "--yes", "--offset", 1, *options(self.urls))
        assert done.code == 0, done.text
        with TicketPool(self.urls) as pool:
            first = pool.servers[0].draw("photos", BLOCK)[0][0]
        print(f"{len(before)} blocks, the mark {last - mark} behind; {done.text}")
        assert first > last, f"the mark was {last - mark} behind"


@pytest.fixture
def site(servers: ServerFixtures, tmp_path: Path) -> Site:
    both = servers.new_mariadb(), servers.new_mariadb()
    urls = [servers.fresh_database(server) for server in both]
    made = Site(*both, urls, [tmp_path / f"{n}.blocks" for n in range(PROCESSES)])
    made.prepare()
    return made


def test_restore_after_a_kill_at_full_speed_repeats_nothing(site: Site) -> None:
    """At this speed, more is drawn while a peer answers than in an hour elsewhere."""
    with TcpProxy(site.urls[1].port) as proxy:
        with site.drawn_from(site.urls[0], site.urls[1].set(host=HOST, port=proxy.port)):
            proxy.do(Fault("delay", 0.3))
        site.restore()


def test_restore_after_a_kill_while_the_mark_is_locked_repeats_nothing(site: Site) -> None:
    with locked_mark(site.urls[1]) as lock, site.drawn_from(*site.urls):
        lock()
    site.restore()


def test_lost_server_without_a_backup_is_created_again(servers: ServerFixtures) -> None:
    """As the page about repairs says, while a client draws: an empty server under the old address."""
    both = servers.new_mariadb(), servers.new_mariadb()
    lost = both[1]
    lost.stop()
    lost.copy_data()
    lost.start()
    user = "operator"
    urls = [servers.fresh_database(server) for server in both]
    urls = [url.set(username=user, database=urls[0].database) for url in urls]
    for server in both:
        if server is lost:
            server.create_database(str(urls[0].database))
        server.create_user(user, "migrate", str(urls[0].database))
    on = options(urls)
    assert run_cli("create", "photos", *on).code == 0
    with TicketPool(urls) as client:
        ids = [client.next_id("photos") for _ in range(40)]
        ids += [i for block in client.servers[1].draw("photos", 500_000) for i in block]
        client._marks.flush()
        lost.kill()
        lost.restore_data()
        lost.start()
        ids += [client.next_id("photos") for _ in range(40)]
        assert "1 of 2 ticket servers has NO LOGIN" in run_cli("status", *on, "--over", 0).text
        lost.create_user(user, "migrate", str(urls[0].database))
        assert "1 of 2 ticket servers has NO DATABASE" in run_cli("status", *on, "--over", 0).text
        lost.create_database(str(urls[0].database))
        dry = run_cli("create", "photos", *on, "--dry-run")
        assert re.search(r"create 'photos' on .* \(offset 2\), 64 bits, above \d{7}, or", dry.text)
        done = run_cli("create", "photos", *on)
        assert done.code == 0, done.text
        assert run_cli("doctor", *on).code == 0
        later: list[int] = []

        def draws_from_it() -> bool:
            later.append(client.next_id("photos"))
            return later[-1] % 2 == 0

        until(draws_from_it, PATIENCE)
        ids += later
    assert len(set(ids)) == len(ids)


@contextmanager
def locked_mark(url: URL) -> Iterator[Callable[[], object]]:
    """A lock of another session on the row of the mark, until the end."""
    engine = create_engine(url, poolclass=NullPool)
    with engine.connect() as connection:
        yield lambda: connection.exec_driver_sql(f"SELECT mark FROM {MARKS} FOR UPDATE")
        connection.invalidate()  # the server may be down


@pytest.mark.ticket_servers("sqlite")
def test_margin_of_restore_and_of_raised_fence_is_one(
    pool: TicketPool, ticket_urls: list[URL], on: list[str]
) -> None:
    """It is the same after any draw, raise and growth, and nothing in the table of marks changes it."""
    expected = 2 * TIMING.margin_tickets
    run(ticket_urls[1], f"INSERT INTO {MARKS} VALUES ('photos', 2, -1, 1, {10**9})")
    last = pool.servers[0].draw("photos", 10 * TIMING.margin_tickets)[-1][-1]
    rehearsal = run_cli("restore", "photos", "--dry-run", *on)
    assert (
        f"margin for unrecorded tickets is {expected // 2:,} tickets ({expected:,} numbers)"
        in rehearsal.text
    )
    run(ticket_urls[0], "UPDATE photos SET id = 1")
    with pytest.raises(TicketIntegrityError):
        pool.servers[0].draw("photos", 1)
    mark = (pool._marks.of("photos").kept_by(pool.servers[1]) or {})[1]
    assert mark == last + expected + 1


QUARANTINED = "restart each process that has quarantined 'photos'"
NOT_REACHED = "start it under its usual address. No client needs a restart"


@pytest.mark.ticket_servers("sqlite")
@pytest.mark.parametrize(
    ("state", "advice"),
    [
        ("set back", [NOT_REACHED]),
        ("quarantined", [QUARANTINED]),
        ("up", [NOT_REACHED, QUARANTINED]),
    ],
)
def test_restore_ends_with_the_next_step_for_the_state(
    pool: TicketPool, ticket_urls: list[URL], on: list[str], state: str, advice: list[str]
) -> None:
    """Only a quarantine needs restarts; of a table that was raised before, it is not known."""
    pool.servers[0].draw("photos", 50)
    pool._marks.flush()
    if state != "up":
        run(ticket_urls[0], "UPDATE photos SET id = 1")
    if state == "quarantined":
        with pytest.raises(TicketIntegrityError):
            pool.servers[0].draw("photos", 1)
    shown = run_cli("status", *on, "--over", 0)
    assert state.upper() in shown.text
    assert ("pool.unquarantine('photos')" in shown.text) == (state == "quarantined")
    done = run_cli("restore", "--yes", "--offset", 1, *on)
    assert done.code == 0, done.text
    for text in (NOT_REACHED, QUARANTINED):
        assert (text in done.text) == (text in advice)
    assert ("pool.unquarantine('photos')" in done.text) == (state != "set back")
    assert ("otherwise: restart" in done.text) == (state == "up")
    assert ("a rate/s above 0" in done.text) == (state != "set back")
