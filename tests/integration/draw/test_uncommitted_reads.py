"""What a ticket table's row has shown counts while its server runs, and no longer; what was received counts ever after.

InnoDB shows a commit before it is on disk. A client that looks just before a crash may see a number that nobody
has received, and that is not there any more when the server is back.
"""

from __future__ import annotations

import logging

import pytest
from sqlalchemy import URL

from sqla_tickets import TicketIntegrityError, TicketServer
from sqla_tickets.dialects import LayoutName
from sqla_tickets.high_water.statements import MARKS
from tests.support.draws import OpenPool, fresh_pair, run
from tests.support.servers import ServerFixtures

pytestmark = pytest.mark.every_case

LAYOUTS: list[LayoutName] = ["replace", "counter"]
#: What the first server's row is set to: a number that others have come to, and what is left after a crash.
REACHED, LEFT = 201, 101


def set_row(url: URL, name: str, layout: LayoutName, number: int) -> None:
    """Let a table stand at a number, as if no larger one had been issued."""
    if layout == "counter":
        run(url, f"UPDATE {name} SET id = {number}")
    else:
        # its counter is lowered by nothing less
        run(url, f"TRUNCATE {name}", f"REPLACE INTO {name} (id, stub) VALUES ({number}, 'a')")


def inspect(server: TicketServer, name: str) -> None:
    """Have a process see the row without drawing from it, as it does when a migration has altered the table."""
    server.do(name, lambda *_: None)
    server.last_ticket(name)


def draw_one(server: TicketServer, name: str) -> int:
    ((ticket,),) = server.draw(name, 1)
    return ticket


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_crash_takes_back_what_nobody_had_received(
    servers: ServerFixtures,
    open_pool: OpenPool,
    layout: LayoutName,
    caplog: pytest.LogCaptureFixture,
) -> None:
    first, _, urls = fresh_pair(servers, "mariadb")
    with first.administrator() as cursor:
        cursor.execute("SET GLOBAL server_id = 4711")  # by which the next run is told from this one
    pool = open_pool(urls)
    server = pool.servers[0]
    for name in ("shown", "received"):
        pool.create_table(name, layout=layout)
        draw_one(server, name)
    run(urls[1], f"DROP TABLE {MARKS}")  # this process is all that knows
    set_row(urls[0], "shown", layout, REACHED)
    inspect(server, "shown")
    while draw_one(server, "received") < REACHED:
        server.draw("received", 30)
    for name in ("shown", "received"):
        set_row(urls[0], name, layout, LEFT)
    first.kill()
    first.start()
    assert draw_one(server, "shown") == LEFT + 2
    assert [r.getMessage() for r in caplog.records if r.levelno == logging.CRITICAL] == []
    with pytest.raises(TicketIntegrityError, match=r"'received'.*restored from a backup"):
        server.draw("received", 1)


@pytest.mark.ticket_servers("mariadb", "mysql")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_server_that_runs_has_issued_what_it_has_shown(
    ticket_urls: list[URL], open_pool: OpenPool, layout: LayoutName
) -> None:
    pool = open_pool(ticket_urls)
    pool.create_table("photos", layout=layout)
    server = pool.servers[0]
    draw_one(server, "photos")
    set_row(ticket_urls[0], "photos", layout, REACHED)
    inspect(server, "photos")
    set_row(ticket_urls[0], "photos", layout, LEFT)
    with pytest.raises(TicketIntegrityError, match=f"a ticket above {REACHED}"):
        server.draw("photos", 1)
