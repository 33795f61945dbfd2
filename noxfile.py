"""The tests on every supported Python, SQLAlchemy and Alembic: `nox`, or `nox -s corners`.

Arguments after `--` go to pytest: `nox -s corners -- --servers=sqlite,mariadb`.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

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
CORNERS = {("lowest", "3.10"), ("2.0", "3.13"), ("2.1", "3.11"), ("2.1", "3.13")}
ALEMBIC = {"1.18": "alembic>=1.18,<1.19", "latest": "alembic"}
#: What the corners leave to a run with one combination: to draw for long, which tries servers; Alembics that
#: a test installs by itself; and what asks nothing of a version that no other test asks: the tools of the
#: tests, the demo and the benchmarks, stories, of which the same are told each time, and what comes between
#: any two statements of a migration.
ONCE = [
    *("-m", "not soak and not network"),
    *(
        f"--ignore=tests/{part}"
        for part in (
            "chaos",
            "drawing/test_properties.py",
            "migrations/test_meanwhile.py",
            "test_benchmarks.py",
            "test_demo.py",
            "test_servers.py",
        )
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


def matrix() -> Sequence[object]:
    """Return every combination; the corners are those with the ends of each range."""
    combinations = []
    for sqlalchemy, python, alembic in itertools.product(SQLALCHEMY, PYTHONS, ALEMBIC):
        if python in LEFT_OUT[sqlalchemy]:
            continue
        # The oldest Alembic goes with the oldest SQLAlchemy, and so for the newest.
        matching = (sqlalchemy != "2.1") == (alembic == "1.18")
        combinations.append(
            nox.param(
                python,
                sqlalchemy,
                alembic,
                id=f"py{python}-sa{sqlalchemy}-alembic{alembic}",
                tags=["corners"] if matching and (sqlalchemy, python) in CORNERS else [],
            )
        )
    return combinations


@nox.session
@nox.parametrize(["python", "sqlalchemy", "alembic"], matrix())
def tests(session: nox.Session, sqlalchemy: str, alembic: str) -> None:
    """Run the tests with one combination."""
    # pip: with which a test installs Alembics
    wanted = ["pip", "-e", ".", "--group", "tests", SQLALCHEMY[sqlalchemy], ALEMBIC[alembic]]
    session.install("--quiet", *wanted)
    session.run("python", "-m", "pytest", *session.posargs)


@nox.session(python=False, default=False)
def corners(session: nox.Session) -> None:
    """Run the tests at the corners, two at a time: to install and to collect takes one processor each."""
    nox_itself = [sys.executable, "-m", "nox"]
    found = subprocess.run(
        [*nox_itself, "-t", "corners", "--list", "--json"], capture_output=True, check=True
    )
    names = [each["session"] for each in json.loads(found.stdout)]

    def run(name: str) -> tuple[str, bool]:
        done = subprocess.run(
            [*nox_itself, "-s", name, "--", *ONCE, *session.posargs],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        return done.stdout, done.returncode == 0

    with ThreadPoolExecutor(2) as pairs:
        failed = []
        for name, (said, is_well) in zip(names, pairs.map(run, names), strict=True):
            sys.stdout.write(said)
            failed += [] if is_well else [name]
    if failed:
        session.error(f"failed: {', '.join(failed)}")
