"""pytest-alembic: its tests on a project whose own ticket servers they must not touch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import URL

from tests.support.projects import REPOSITORY, Project

pytest.importorskip("pytest_alembic")

#: The recipe's: a database and ticket servers for each test.
TESTS = """
import pytest
from alembic.config import Config
from pytest_alembic.tests import (
    test_model_definitions_match_ddl,
    test_single_head_revision,
    test_up_down_consistency,
    test_upgrade,
)
from sqlalchemy import create_engine

@pytest.fixture
def alembic_config(tmp_path):
    config = Config("alembic.ini")
    servers = [f"sqlite:///{tmp_path}/tickets{n}.db" for n in (1, 2)]
    config.attributes["ticket_pools"] = {"default": servers}
    return config

@pytest.fixture
def alembic_engine(tmp_path):
    return create_engine(f"sqlite:///{tmp_path}/app.db")
"""
#: What pytest-alembic asks for in an `env.py`: its connection.
GIVEN = (
    "    connectable = engine_from_config(",
    "    connectable = context.config.attributes.get('connection') or engine_from_config(",
)


def test_its_tests_have_ticket_servers_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "production").mkdir()
    files = [tmp_path / "production" / f"{name}.db" for name in ("app", "one", "two")]
    app, *servers = [URL.create("sqlite", database=str(file)) for file in files]
    project = Project(tmp_path / "project")
    project.set_up(app, servers)
    project.replace(project.env, GIVEN)
    project.revision("photos")
    for file in files:
        file.unlink(missing_ok=True)
    (project.folder / "test_migrations.py").write_text(TESTS)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-c", os.devnull, "test_migrations.py"],
        cwd=project.folder,
        env={**os.environ, "PYTHONPATH": f"{REPOSITORY}{os.pathsep}{project.folder}"},
        capture_output=True,
        text=True,
    )
    assert "4 passed" in done.stdout, done.stdout + done.stderr
    assert not list((tmp_path / "production").iterdir())
