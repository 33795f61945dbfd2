"""pytest-alembic's tests, on the example application."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.migrations.projects import REPOSITORY


def test_the_example_passes_the_tests_of_pytest_alembic(tmp_path: Path) -> None:
    example = shutil.copytree(REPOSITORY / "examples" / "migrated", tmp_path / "migrated")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-c", os.devnull, "-p", "pytest_alembic", example],
        cwd=example,
        env={**os.environ, "PYTHONPATH": f"{REPOSITORY}{os.pathsep}{example}"},
        capture_output=True,
        text=True,
    )
    assert "4 passed" in done.stdout, done.stdout + done.stderr
