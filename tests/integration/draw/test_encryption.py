"""What a connection needs before it can be encrypted must cost no time, and hang no fork."""

from __future__ import annotations

import json
import ssl
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from sqla_tickets import TicketPool
from tests.support.draws import assert_unique, in_fork

pytestmark = pytest.mark.ticket_servers("mariadb", "mysql")


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_forks_while_threads_connect(pool: TicketPool) -> None:
    """A child must find no lock that another thread held while it prepared to encrypt."""
    over = threading.Event()

    def reconnect(_: int) -> list[int]:
        ids: list[int] = []
        while not over.is_set():
            pool.dispose()
            ids.append(pool.next_id("photos"))
        return ids

    with ThreadPoolExecutor(4) as threads:
        drawing = [threads.submit(reconnect, n) for n in range(4)]
        try:
            answers = [in_fork(lambda: json.dumps([pool.next_id("photos")])) for _ in range(10)]
        finally:
            over.set()
        ids = [t for drawn in drawing for t in drawn.result()]
    for answer in answers:
        assert answer.startswith("["), answer
        ids += json.loads(answer)
    assert_unique(ids)


def test_no_certificates_are_read_that_nobody_asked_for(
    pool: TicketPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(context: ssl.SSLContext, purpose: ssl.Purpose = ssl.Purpose.SERVER_AUTH) -> None:
        raise AssertionError("read the system's certificates")

    with monkeypatch.context() as patched:
        patched.setattr(ssl.SSLContext, "load_default_certs", read)
        pool.dispose()
        assert_unique([pool.next_id("photos") for _ in range(4)])
    assert {(record.errors, record.breaker) for record in pool.status()} == {(0, "closed")}
