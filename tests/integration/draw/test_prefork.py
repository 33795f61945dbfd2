"""Programs that import their application, whose pool draws at once, and make processes afterwards."""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import URL

from sqla_tickets import TicketPool
from tests.support.draws import assert_unique, connections_to, residues, until
from tests.support.server_programs import running
from tests.support.servers import ServerFixtures
from tests.support.servers.ports import free_port

if TYPE_CHECKING:  # it makes its pool when it is imported
    from tests.support.application import Answer

pytestmark = pytest.mark.ticket_servers("mariadb")
WORKERS = 3
#: Above any healthy run on a loaded machine, in seconds; a child that hangs in a lock never ends.
BOUND = 120
IN_PROCESSES = """
import json, multiprocessing, sys
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from tests.support import application
context = multiprocessing.get_context(sys.argv[1])
context.set_forkserver_preload(["tests.support.application"])
with ThreadPoolExecutor(2) as threads, ProcessPoolExecutor(3, mp_context=context) as processes:
    drawing = [where.submit(application.draw) for _ in range(8) for where in (threads, processes)]
    print(json.dumps([drawn.result() for drawn in drawing]))
"""
# As a program written in C does that has Python inside: nobody tells Python of the fork. Python's own
# lock does not survive that while another thread waits for it, so the pool's threads must be asleep.
ASLEEP = """
import ctypes, json, os, threading, time
from tests.support import application
def wait_until_asleep():
    monitor = application.pool._monitor.poller
    while monitor.awake.is_set() or threading.active_count() > 2:  # marks are written
        time.sleep(0.01)
    time.sleep(0.5)  # from there to its wait
"""
FORKED_BY_C = """
wait_until_asleep()
child = ctypes.PyDLL(None).fork()
print(json.dumps([application.draw()]), flush=True)
if child == 0:
    os._exit(0)
os.waitpid(child, 0)
"""
# The same, and what the child does first is no draw: it asks which connections it is let in by.
ASKED_BY_C = """
def ask(context):
    context.cursor.execute("SELECT CONNECTION_ID()", ())
    return context.cursor.fetchall()[0][0]
servers = application.pool.servers
opened = [server.connections.open() for server in servers]
newest = [ask(server.context.over(at.cursor)) for server, at in zip(servers, opened)]
del opened
wait_until_asleep()
child = ctypes.PyDLL(None).fork()
if child == 0:
    print(json.dumps([newest, [server.do("photos", ask) for server in servers]]), flush=True)
    os._exit(0)
os.waitpid(child, 0)
"""


# A fork waits for ever for an import that another thread had begun.
IMPORTS = """
import sys, tempfile
from sqla_tickets import NodeLeases, SnowflakeGenerator, TicketPool
with tempfile.TemporaryDirectory() as folder, TicketPool([f"sqlite:///{folder}/{n}.db" for n in "12"]) as pool:
    before = set(sys.modules)
    pool.create_table("photos")
    NodeLeases(pool).create_table()
    pool.raise_above("photos", pool.next_id("photos"))
    SnowflakeGenerator(pool, "tags").next_id()
    pool.status(), NodeLeases(pool).status(), pool.unquarantine("photos")
    print(*(name for name in sys.modules if name not in before and name.startswith("sqla_tickets")))
"""


@pytest.fixture
def environment(pool: TicketPool, ticket_urls: list[URL]) -> dict[str, str]:
    """For a program that imports the application."""
    urls = " ".join(url.render_as_string(hide_password=False) for url in ticket_urls)
    return {**os.environ, "TICKET_URLS": urls, "PYTHONWARNINGS": "ignore"}


def run_program(environment: dict[str, str], program: str, *arguments: str) -> list[Any]:
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=BOUND,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return [answer for line in done.stdout.splitlines() for answer in json.loads(line)]


def assert_apart(answers: Sequence[Answer]) -> None:
    """No process shared a ticket, or a connection, with another or with its parent."""
    before = {answer["imported_by"]: answer["before"] for answer in answers}
    ids = [ticket for answer in answers for ticket in answer["ids"]]
    assert_unique([*ids, *(ticket for tickets in before.values() for ticket in tickets)])
    assert residues(ids) == {0, 1}
    assert {answer["errors"] for answer in answers} == {0}


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_a_process_pool(environment: dict[str, str], method: str) -> None:
    answers = run_program(environment, IN_PROCESSES, method)
    assert_apart(answers)
    assert len({answer["pid"] for answer in answers}) > 1
    # The parent; each child that began anew; or the server that forks, which no child is.
    importers = {answer["imported_by"] for answer in answers}
    children = {answer["pid"] for answer in answers} - importers
    assert bool(children) == (method != "spawn")


def test_a_pool_imports_nothing_after_it_was_made() -> None:
    done = subprocess.run([sys.executable, "-c", IMPORTS], capture_output=True, text=True)
    assert (done.stdout.strip(), done.returncode) == ("", 0), done.stderr


@pytest.mark.ticket_servers("mariadb", "postgresql")
def test_a_pool_imports_what_a_first_draw_would() -> None:
    """A fork beside it waits for ever for greenlet; and the codec of hosts' names it never has whole."""
    code = "import sys; from sqla_tickets import TicketPool; TicketPool(['sqlite://'])"
    code += "; assert {'encodings.idna', 'greenlet'} <= sys.modules.keys()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_fork_that_python_is_not_told_of(environment: dict[str, str]) -> None:
    answers = run_program({**environment, "PATIENCE": "2"}, ASLEEP + FORKED_BY_C)
    assert_apart(answers)
    assert len(answers) == 2
    assert len({answer["imported_by"] for answer in answers}) == 1


@pytest.mark.ticket_servers("mariadb", "mysql")
def test_a_fork_that_python_is_not_told_of_asks_before_it_draws(
    environment: dict[str, str],
) -> None:
    newest, childs = run_program({**environment, "PATIENCE": "2"}, ASLEEP + ASKED_BY_C)
    assert all(child > parent for child, parent in zip(childs, newest, strict=True))


def test_gunicorn_with_preload(
    environment: dict[str, str], servers: ServerFixtures, ticket_urls: list[URL], tmp_path: Path
) -> None:
    """Workers come and go, since each ends after a few requests."""
    pytest.importorskip("gunicorn")
    port = free_port()
    command = ["gunicorn", "--preload", f"--workers={WORKERS}", f"--bind=127.0.0.1:{port}"]
    command += ["--max-requests=10", "tests.support.application:application"]

    def request(_: int) -> Answer | None:
        with suppress(OSError, http.client.HTTPException):  # a worker ends, or has not begun
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=BOUND)
            connection.request("GET", "/")
            answer: Answer = json.loads(connection.getresponse().read())
            return answer
        time.sleep(0.05)
        return None

    answers: list[Answer] = []
    with (
        running(command, environment, tmp_path / "log"),
        ThreadPoolExecutor(2 * WORKERS) as clients,
    ):

        def asked() -> bool:
            answers.extend(answer for answer in clients.map(request, range(20)) if answer)
            return len({answer["pid"] for answer in answers}) >= 3 * WORKERS

        def connected() -> bool:
            asked()
            counts = [
                len(connections_to(servers.mariadb(number), url))
                for number, url in enumerate(ticket_urls)
            ]
            # The parent's own, and each worker's.
            return min(counts) > WORKERS

        until(asked, BOUND)
        until(connected, BOUND)
    assert_apart(answers)
    (parent,) = {answer["imported_by"] for answer in answers}
    assert parent not in {answer["pid"] for answer in answers}


ASKS_CELERY = """
import json
from tests.support.celery_application import draw
results = [draw.delay() for _ in range(12)]
print(json.dumps([result.get(timeout=60, interval=0.05) for result in results]))
"""


def test_celery_s_prefork(environment: dict[str, str], tmp_path: Path) -> None:
    """Workers come and go, since each ends after a few tasks."""
    pytest.importorskip("celery")
    environment["CELERY_FOLDER"] = str(tmp_path)
    command = ["celery", "--app=tests.support.celery_application", "worker", "--pool=prefork"]
    command += [f"--concurrency={WORKERS}", "--without-gossip", "--without-mingle"]
    with running(command, environment, tmp_path / "log"):
        answers = run_program(environment, ASKS_CELERY)
    assert_apart(answers)
    assert len({answer["pid"] for answer in answers}) >= WORKERS
    assert len({answer["imported_by"] for answer in answers}) == 1
