"""The tests that others have for migrations, on applications whose ids are tickets."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.projects import REPOSITORY, Project, text_of
from tests.support.servers import ServerFixtures


def run(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-c", os.devnull, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": f"{REPOSITORY}{os.pathsep}{folder}"},
        capture_output=True,
        text=True,
    )
    return done.stdout + done.stderr


def test_the_example_passes_the_tests_of_pytest_alembic(tmp_path: Path) -> None:
    example = shutil.copytree(REPOSITORY / "examples" / "migrated", tmp_path / "migrated")
    printed = run(example, "-p", "pytest_alembic", str(example))
    assert "4 passed" in printed, printed
    assert not list(example.glob("*.db"))  # none of those in alembic.ini was touched


#: What alembic-gauntlet asks for in an `env.py`: its connection, and its schema.
RUN_ASYNC = "    asyncio.run(run_async_migrations())\n"
RUN = """\
    given = config.attributes.get("connection")
    if given is None:
        asyncio.run(run_async_migrations())
    else:
        given.exec_driver_sql(f"SET search_path TO {config.attributes['target_schema']}")
        do_run_migrations(given)
"""
SCHEMA = "version_table_schema=config.attributes.get('target_schema')"
GAUNTLET = """\
import pytest
from alembic_gauntlet import MigrationTestBase
from app import Base

class TestMigrations(MigrationTestBase):
    @pytest.fixture
    def orm_metadata(self):
        return Base.metadata

    @pytest.fixture(scope="session")
    def migration_db_url(self):
        return {url!r}
"""


@pytest.mark.parametrize("driver", ["pymysql", "asyncmy"])
def test_an_application_passes_the_tests_of_alembic_gauntlet(
    servers: ServerFixtures, tmp_path: Path, driver: str
) -> None:
    pytest.importorskip("alembic_gauntlet")
    tickets = [servers.fresh_database(servers.mariadb(n)) for n in range(2)]
    app = servers.fresh_database(servers.postgresql(), None).set(drivername="postgresql+asyncpg")
    project = Project(tmp_path / "project", "async")
    project.set_up(app, [url.set(drivername=f"mysql+{driver}") for url in tickets])
    project.revision("photos")
    project.replace(
        project.env,
        (RUN_ASYNC, RUN),
        ("connection=connection, ", f"connection=connection, {SCHEMA}, "),
    )
    (project.folder / "test_gauntlet.py").write_text(GAUNTLET.format(url=text_of(app)))
    printed = run(project.folder, "-o", "asyncio_mode=auto", "test_gauntlet.py")
    assert " passed" in printed, printed
    assert "failed" not in printed, printed
    assert "error" not in printed, printed
