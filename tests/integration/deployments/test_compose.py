"""The Compose example: its servers as the file says, its application as processes with the file's environment."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pymysql
import pytest
import yaml
from pymysql.constants import CLIENT
from sqlalchemy import make_url
from testcontainers.core.container import DockerContainer

from sqla_tickets.tables.grants import grants
from tests.support.draws import PATIENCE, assert_unique, residues, until
from tests.support.servers.base import ServerMissing
from tests.support.servers.mysql import require_image
from tests.support.servers.ports import free_port

FOLDER = Path(__file__).parents[3] / "examples/compose"
INIT = "/docker-entrypoint-initdb.d/"
SERVERS = ("ticket1", "ticket2", "shard1", "shard2")
Service = dict[str, Any]
#: Longer than four servers take that create their data at once on a machine that is busy.
START_SECONDS = 300.0

pytestmark = pytest.mark.slow


def services() -> dict[str, Service]:
    """The services of the file, with their anchors merged."""
    found: dict[str, Service] = yaml.safe_load((FOLDER / "compose.yaml").read_text())["services"]
    return found


class Database:
    """A MySQL service, started through testcontainers."""

    def __init__(self, service: Service, image: str, folder: Path) -> None:
        self.port = free_port()
        self._password = service["environment"]["MYSQL_ROOT_PASSWORD"]
        volumes = [volume.split(":")[:2] for volume in service["volumes"]]
        self._scripts = [FOLDER / source for source, target in volumes if target.startswith(INIT)]
        self.health: list[str] = service["healthcheck"]["test"][1:]
        # as the tests' other servers: Docker's proxy would listen for one that was killed
        options = [f"--port={self.port}", "--bind-address=127.0.0.1", "--skip-mysqlx"]
        self.container = (
            DockerContainer(image)
            .with_name(f"tickets-compose-{uuid.uuid4().hex[:12]}")
            .with_envs(**service["environment"])
            .with_command([*service["command"], *options])
            .with_kwargs(network_mode="host")
        )
        for source, target in volumes:
            # a named volume; another user could not remove its files
            if not source.startswith(".") and os.geteuid() == 0:
                (folder / source).mkdir()
                (folder / source).chmod(0o777)
                self.container.with_volume_mapping(str(folder / source), target, "rw")

    def start(self) -> None:
        """Start it as the file says."""
        self.container.start()

    def prepare(self) -> None:
        """Wait until it takes connections; run its scripts, where the image has not."""
        until(self._answers, START_SECONDS)
        with self._connect() as connection, connection.cursor() as cursor:
            cursor.execute("SELECT COUNT(*) FROM mysql.user WHERE user = 'migrations'")
            if cursor.fetchall() != ((0,),):
                return
            for script in self._scripts:
                cursor.execute(script.read_text())
                while cursor.nextset():
                    pass

    def is_healthy(self) -> bool:
        """Whether the file's check succeeds."""
        check = [*self.health, f"--port={self.port}"]
        return bool(self.container.get_wrapped_container().exec_run(check).exit_code == 0)

    def _answers(self) -> bool:
        with suppress(pymysql.err.MySQLError):
            self._connect().close()
            return True
        return False

    def _connect(self) -> pymysql.Connection[pymysql.cursors.Cursor]:
        return pymysql.connect(
            host="127.0.0.1",
            port=self.port,
            user="root",
            password=self._password,
            autocommit=True,
            client_flag=CLIENT.MULTI_STATEMENTS,
        )


@pytest.fixture
def databases(pytestconfig: pytest.Config, tmp_path: Path) -> Iterator[dict[str, Database]]:
    """The four servers."""
    if "mysql" not in str(pytestconfig.getoption("--servers")):
        pytest.skip("MySQL is left out")
    try:
        image = require_image()
    except ServerMissing as missing:
        if pytestconfig.getoption("--require-all-servers"):
            pytest.fail(str(missing), pytrace=False)
        pytest.skip(str(missing))
    defined = services()
    found = {name: Database(defined[name], image, tmp_path) for name in SERVERS}
    try:
        for database in found.values():
            database.start()
        for database in found.values():
            database.prepare()
            until(database.is_healthy)
        yield found
    finally:
        for database in found.values():
            with suppress(Exception):
                database.container.stop()


Run = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def run(databases: dict[str, Database]) -> Iterator[Run]:
    """Start the command of a service here, with its environment, but for the servers' addresses."""
    started: list[subprocess.Popen[bytes]] = []

    def here(value: str) -> str:
        url = make_url(value)
        return url.set(host="127.0.0.1", port=databases[str(url.host)].port).render_as_string(False)

    def start(name: str, *more: str) -> subprocess.Popen[bytes]:
        service = services()[name]
        environment = {key: here(value) for key, value in service["environment"].items()}
        environment["PYTHONDONTWRITEBYTECODE"] = "1"
        command = [sys.executable, "-m", *service["command"], *more]
        started.append(subprocess.Popen(command, cwd=FOLDER, env=os.environ | environment))
        return started[-1]

    yield start
    for process in started:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@pytest.mark.timeout(600)
def test_site_works_without_a_ticket_server(databases: dict[str, Database], run: Run) -> None:
    assert run("migrate").wait(PATIENCE) == 0
    assert run("migrate").wait(PATIENCE) == 0  # as at the next `docker compose up`
    port = free_port()
    run("web", "--port", str(port))
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30, trust_env=False) as site:

        def state(n: int) -> list[str]:
            try:
                answer = site.get("/health")
            except httpx.TransportError:
                return []
            return sorted(answer.json().values()) if answer.status_code == n else []

        def post(n: int) -> list[int]:
            answers = [site.post("/photos", params={"title": f"Photo {k}"}) for k in range(n)]
            assert {answer.status_code for answer in answers} == {201}
            assert {answer.json()["shard"] for answer in answers} == {"SHARD1", "SHARD2"}
            return [answer.json()["id"] for answer in answers]

        until(lambda: state(200) == ["up", "up"])
        ids = post(20)
        assert residues(ids) == {0, 1}
        databases["ticket1"].container.get_wrapped_container().kill()
        others = post(20)
        assert residues(others[-10:]) == {0}
        assert state(200) == ["down", "up"]
        databases["ticket1"].container.get_wrapped_container().start()
        until(lambda: state(200) == ["up", "up"])
        ids += others
        end = time.monotonic() + PATIENCE
        while residues(ids[-2:]) != {0, 1}:
            assert time.monotonic() < end
            ids += post(4)
        assert site.get(f"/photos/{ids[0]}").json() == {"id": ids[0], "title": "Photo 0"}
        assert site.get("/photos/1").status_code == 404
        assert site.get("/photos").json() == sorted(ids)
    assert_unique(ids)


def test_users_have_the_least_grants() -> None:
    """Those of the command `sqla-tickets grants`, which are those of the tests' own users."""
    granted = re.findall(r"^GRANT .*(?=;$)", (FOLDER / "sql/tickets.sql").read_text(), re.MULTILINE)
    assert granted == [
        statement
        for role, user in (("draw", "tickets"), ("migrate", "migrations"))
        for statement in grants("mysql", role, user=user, database="tickets")  # type: ignore[arg-type]  # a role
    ]


def test_services_wait_for_what_they_need() -> None:
    defined = services()
    assert set(defined["migrate"]["depends_on"]) == set(SERVERS)
    assert defined["web"]["depends_on"] == {
        "migrate": {"condition": "service_completed_successfully"}
    }
    for name in SERVERS:
        assert defined["migrate"]["depends_on"][name] == {"condition": "service_healthy"}
        assert defined[name]["healthcheck"]["test"][:2] == ["CMD", "mysqladmin"]


def test_compose_accepts_the_file() -> None:
    """Where a Compose is installed, as Docker's plugin or a program of its own."""
    for command in (["docker", "compose"], ["docker-compose"]):
        if not shutil.which(command[0]):
            continue
        if subprocess.run([*command, "version"], capture_output=True).returncode == 0:
            done = subprocess.run(
                [*command, "config", "--quiet"], cwd=FOLDER, capture_output=True, text=True
            )
            assert done.returncode == 0, done.stderr
            return
    pytest.skip("no Compose is installed")
