"""`examples/workers`: gunicorn with preload and Celery's prefork, on a pool that was used before the fork."""

from __future__ import annotations

import http.client
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
from sqlalchemy import URL, BigInteger, Column, MetaData, String, Table, create_engine, select

from sqla_tickets import TicketPool
from tests.support.draws import until
from tests.support.projects import REPOSITORY, text_of
from tests.support.server_programs import running
from tests.support.servers.ports import free_port

pytestmark = [
    pytest.mark.ticket_servers("mariadb", "postgresql"),
    pytest.mark.app_databases("mariadb", "postgresql"),
]
WORKERS = 4
#: Above any healthy run on a loaded machine, in seconds.
BOUND = 120
ROWS = 200
#: Celery's settings: a broker in files, and workers that end after some tasks.
CONFIG = """
import os
folder = os.environ["CELERY_FOLDER"]
broker_url = "filesystem://"
result_backend = f"file://{folder}"
broker_transport_options = {
    name: folder for name in ("data_folder_in", "data_folder_out", "control_folder")
}
worker_max_tasks_per_child = 20
worker_prefetch_multiplier = 1
"""
ASK = f"""
from workers.tasks import add
results = [add.delay(str(n)) for n in range({ROWS})]
print(*(result.get(timeout={BOUND}, interval=0.05) for result in results))
"""


@pytest.fixture
def photos(app_url: URL) -> Iterator[Table]:
    """The example's table, with what is in it: rows of all processes."""
    table = Table(
        "photos", MetaData(), Column("id", BigInteger, primary_key=True, autoincrement=False)
    )
    table.append_column(Column("title", String(100)))
    engine = create_engine(app_url)
    table.create(engine)
    table.info["engine"] = engine
    yield table
    engine.dispose()


@pytest.fixture
def environment(app_url: URL, pool: TicketPool, ticket_urls: list[URL]) -> dict[str, str]:
    return {
        **os.environ,
        "DATABASE_URL": text_of(app_url),
        "TICKET_SERVERS": " ".join(map(text_of, ticket_urls)),
        "PYTHONPATH": os.pathsep.join([str(REPOSITORY / "examples"), str(REPOSITORY)]),
        "PYTHONWARNINGS": "ignore",
    }


def saved(photos: Table) -> list[int]:
    with photos.info["engine"].connect() as connection:
        return list(connection.scalars(select(photos.c.id)))


def test_gunicorn_with_preload_repeats_no_id(
    photos: Table, environment: dict[str, str], tmp_path: Path
) -> None:
    pytest.importorskip("gunicorn")
    port = free_port()
    config = REPOSITORY / "examples" / "workers" / "gunicorn_config.py"
    command = ["gunicorn", f"--config={config}", f"--bind=127.0.0.1:{port}", "--max-requests=30"]
    answers: list[tuple[int, int]] = []

    def request(number: int) -> tuple[int, int] | None:
        with suppress(OSError, http.client.HTTPException, ValueError):  # a worker ends, or begins
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=BOUND)
            connection.request("GET", f"/{number}")
            pid, photo = connection.getresponse().read().split()
            return int(pid), int(photo)
        time.sleep(0.05)
        return None

    def enough() -> bool:
        with ThreadPoolExecutor(2 * WORKERS) as clients:
            answers.extend(filter(None, clients.map(request, range(40))))
        return len({pid for pid, _ in answers}) >= 2 * WORKERS and len(answers) >= ROWS

    with running([*command, "workers.photos:application"], environment, tmp_path / "log", tmp_path):
        until(enough, BOUND)
    ids = [photo for _, photo in answers]
    assert len(set(ids)) == len(ids), "an id twice"
    assert set(ids) <= set(saved(photos))  # and the one of the parent


def test_celery_s_prefork_repeats_no_id(
    photos: Table, environment: dict[str, str], tmp_path: Path
) -> None:
    pytest.importorskip("celery")
    (tmp_path / "celery_config.py").write_text(CONFIG)
    environment |= {"CELERY_FOLDER": str(tmp_path), "CELERY_CONFIG": "celery_config"}
    environment["PYTHONPATH"] += f"{os.pathsep}{tmp_path}"
    command = ["celery", "--app=workers.tasks", "worker", f"--concurrency={WORKERS}"]
    with running(
        [*command, "--without-gossip", "--without-mingle"], environment, tmp_path / "log", tmp_path
    ):
        done = subprocess.run(
            [sys.executable, "-c", ASK],
            env=environment,
            capture_output=True,
            text=True,
            timeout=BOUND,
        )
    assert done.returncode == 0, done.stderr
    ids = done.stdout.split()
    assert len(ids) == ROWS
    assert len(set(ids)) == ROWS, "an id twice"
    assert {*map(int, ids)} <= set(saved(photos))
