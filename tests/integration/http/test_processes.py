"""The command ``sqla-tickets serve`` in processes of its own: signals, kills and several workers."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time

import psutil
import pytest
from sqlalchemy import URL

from sqla_tickets import TicketPool
from tests.integration.http.conftest import Start
from tests.support.command_line import options, run_cli
from tests.support.http_service import BOUND, Answer, HTTPLoad, call, repeated, tickets_of, wait_for
from tests.support.servers import ServerFixtures

MARIADB = pytest.mark.ticket_servers("mariadb")
BLOCK = ("--block", "50:200")
PATH = "/v1/sequences/photos/tickets"


@pytest.mark.parametrize("workers", [1, 2])
def test_terminated_under_load_sends_no_ticket_twice(
    workers: int, pool: TicketPool, ticket_urls: list[URL], start: Start
) -> None:
    """After the restart, no ticket is sent again of those that were sent, or were buffered."""
    process = start(ticket_urls, *BLOCK, "--workers", str(workers))
    with HTTPLoad(process.port, rest=0.005) as load:
        load.wait_for(300)
        process.terminate()
        assert process.wait() == 0, process.log
        process.start()
        load.wait_for(300)
    assert set(load.statuses) == {200}
    assert not repeated(load.tickets)
    assert "Traceback" not in process.log


@pytest.mark.parametrize("workers", [1, 2])
def test_killed_under_load_sends_no_ticket_twice(
    workers: int, pool: TicketPool, ticket_urls: list[URL], start: Start
) -> None:
    process = start(ticket_urls, *BLOCK, "--workers", str(workers))
    with HTTPLoad(process.port, rest=0.005) as load:
        for _ in range(2):
            load.wait_for(300)
            process.kill()
            process.start()
        load.wait_for(300)
    assert set(load.statuses) == {200}
    assert not repeated(load.tickets)


@MARIADB
def test_killed_worker_is_replaced(pool: TicketPool, ticket_urls: list[URL], start: Start) -> None:
    process = start(ticket_urls, *BLOCK, "--workers", "2")
    wait_for(lambda: len(process.pids) == 2, lambda: process.log)
    with HTTPLoad(process.port, rest=0.005) as load:
        load.wait_for(300)
        killed = process.pids[0]
        os.kill(killed, signal.SIGKILL)
        wait_for(lambda: len(process.pids) == 2 and killed not in process.pids, lambda: process.log)
        load.wait_for(300)
    assert set(load.statuses) == {200}
    assert not repeated(load.tickets)


@pytest.mark.ticket_servers("sqlite")
def test_loopback_answers_to_its_own_names_only(
    pool: TicketPool, ticket_urls: list[URL], start: Start
) -> None:
    elsewhere = {"Host": "elsewhere.example"}
    assert call(start(ticket_urls).port, PATH, "POST", elsewhere).status == 403
    opened = start(ticket_urls, "--no-tokens")
    assert call(opened.port, PATH, "POST", elsewhere).status == 200


@pytest.mark.ticket_servers("sqlite")
def test_interrupted_ends_with_0(pool: TicketPool, ticket_urls: list[URL], start: Start) -> None:
    process = start(ticket_urls)
    assert call(process.port, PATH, "POST").status == 200
    os.kill(process.pids[0], signal.SIGINT)
    assert process.wait() == 0, process.log
    assert "Aborted" not in process.log


@pytest.mark.ticket_servers("sqlite")
def test_workers_end_with_their_parent(
    pool: TicketPool, ticket_urls: list[URL], start: Start
) -> None:
    process = start(ticket_urls, "--workers", "2")
    wait_for(lambda: len(process.pids) == 2, lambda: process.log)
    workers = [psutil.Process(pid) for pid in process.pids]
    os.kill(workers[0].ppid(), signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    try:
        _, alive = psutil.wait_procs(workers, BOUND)
        assert not [worker for worker in alive if worker.status() != psutil.STATUS_ZOMBIE]
    finally:
        for worker in workers:
            with contextlib.suppress(psutil.Error):
                worker.kill()


@MARIADB
def test_request_in_flight_is_answered_before_the_end(
    ticket_kind: str,
    pool: TicketPool,
    ticket_urls: list[URL],
    start: Start,
    servers: ServerFixtures,
) -> None:
    """It waits for frozen servers when SIGTERM comes, and gets its tickets when they go on."""
    process = start(ticket_urls, "--block", "1:1")
    assert call(process.port, PATH, "POST").status == 200
    both = [servers.shared(ticket_kind, number) for number in (0, 1)]
    for server in both:
        server.freeze()
    answers: list[Answer] = []
    client = threading.Thread(target=lambda: answers.append(call(process.port, PATH, "POST")))
    client.start()
    time.sleep(0.3)
    process.terminate()
    time.sleep(0.3)
    for server in both:
        server.thaw()
    client.join()
    assert process.wait() == 0, process.log
    assert [answer.status for answer in answers] == [200], process.log
    assert len(tickets_of(answers[0])) == 1


@pytest.mark.ticket_servers("sqlite")
def test_invalid_usage_says_what_to_do(
    pool: TicketPool, ticket_urls: list[URL], start: Start
) -> None:
    first = start(ticket_urls)
    given = ["serve", *options(ticket_urls)]
    taken = run_cli(*given, "--port", first.port)
    assert taken.code == 3
    assert "choose another --host or --port" in taken.text
    refused = run_cli(*given, "--host", "0.0.0.0")
    assert refused.code == 3
    assert "--tokens FILE" in refused.text
    assert run_cli(*given, "--tokens", "nowhere").code == 3
    for tls, advice in {
        ("--key", "nowhere"): "give --certificate FILE",
        ("--certificate", "nowhere"): "--certificate nowhere cannot be used",
        ("--certificate", __file__, "--key", "nowhere"): "and --key nowhere cannot be used",
    }.items():
        refused = run_cli(*given, *tls)
        assert (refused.code, advice in refused.text) == (3, True), refused.text
    for block in ("0", "5:1", "x", "1:2:3", ""):
        assert run_cli(*given, "--block", block).code == 2, block
    assert run_cli(*given, "--deadline", "0").code == 2
    assert run_cli("serve", "--config", "nowhere.ini").code == 3
