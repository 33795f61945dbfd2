"""The tests on every supported Python, SQLAlchemy and Alembic: `nox`, or `nox -t corners`.

Arguments after `--` go to pytest: `nox -t corners -- --servers=sqlite,mariadb`.
"""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Sequence
from importlib import metadata

import nox

# pip takes seven times as long to make an environment
nox.options.default_venv_backend = "uv"
nox.options.error_on_missing_interpreters = False

SQLALCHEMY = {
    "lowest": "SQLAlchemy==2.0.52",
    "2.0": "SQLAlchemy>=2.0,<2.1",
    "2.1": "SQLAlchemy>=2.1,<2.2",
}
# SQLAlchemy 2.1 needs Python 3.11.
LEFT_OUT: dict[str, set[str]] = {"lowest": set(), "2.0": set(), "2.1": {"3.10"}}
CORNERS = {("lowest", "3.10"), ("2.1", "3.13")}
#: What asks something of a version: the ORM, its async sessions, migrations, compiled SQL; threads, forks, event
#: loops, drivers.
OF_CORNERS = [
    "tests/unit",
    *(
        f"tests/integration/{part}"
        for part in ("orm", "migrations", "draw", "high_water", "snowflake")
    ),
]
ALEMBIC = {"1.18": "alembic>=1.18,<1.19", "latest": "alembic"}
#: What asks nothing of a version that no other test asks: long draws, which try servers; each test with every
#: driver; tests that install Alembics by themselves; the tests' own tools, the simulation and the demo.
TESTS = [
    *("--one-kind", "-m", "not slow and not soak and not network"),
    *(
        f"--ignore=tests/{part}"
        for part in ("chaos", "simulation", "integration/support", "docs/test_demo.py")
    ),
]


def is_here(version: str) -> bool:
    """Return whether a Python runs; a pyenv shim may be there and run nothing."""
    try:
        done = subprocess.run([f"python{version}", "-c", ""], capture_output=True, check=False)
    except FileNotFoundError:
        return False
    return done.returncode == 0


PYTHONS = [version for version in ("3.10", "3.11", "3.12", "3.13", "3.14") if is_here(version)]


def is_ours(sqlalchemy: str, python: str) -> bool:
    """Return whether the environment that runs nox has these: there `make test` runs the tests."""
    try:
        ours = metadata.version("SQLAlchemy")
    except metadata.PackageNotFoundError:
        return False
    return python == "{}.{}".format(*sys.version_info) and ours.startswith(f"{sqlalchemy}.")


def matrix() -> Sequence[object]:
    """Return every combination; the corners are those with the ends of each range that are not ours."""
    combinations = []
    for sqlalchemy, python, alembic in itertools.product(SQLALCHEMY, PYTHONS, ALEMBIC):
        if python in LEFT_OUT[sqlalchemy]:
            continue
        # The oldest Alembic goes with the oldest SQLAlchemy, and so for the newest.
        matching = (sqlalchemy != "2.1") == (alembic == "1.18")
        corner = (sqlalchemy, python) in CORNERS and not is_ours(sqlalchemy, python)
        combinations.append(
            nox.param(
                python,
                sqlalchemy,
                alembic,
                id=f"py{python}-sa{sqlalchemy}-alembic{alembic}",
                tags=["corners"] if matching and corner else [],
            )
        )
    return combinations


@nox.session
@nox.parametrize(["python", "sqlalchemy", "alembic"], matrix())
def tests(session: nox.Session, sqlalchemy: str, alembic: str) -> None:
    """Run the tests with one combination."""
    # pip: with which a test installs Alembics
    wanted = ["pip", "-e", ".", "--group", "tests", SQLALCHEMY[sqlalchemy], ALEMBIC[alembic]]
    if sqlalchemy != "2.1":
        wanted += ["--group", "ecosystem-2-0"]
    session.install("--quiet", *wanted)
    what = OF_CORNERS if "corners" in sys.argv else []
    session.run("python", "-m", "pytest", *what, *TESTS, *session.posargs)
