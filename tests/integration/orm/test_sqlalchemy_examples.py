"""SQLAlchemy's own examples, with tickets under all their keys: they print the same but for the numbers.

They are taken from SQLAlchemy's source distribution of the installed version, and changed by text.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import sqlalchemy

pytestmark = [pytest.mark.network, pytest.mark.ticket_servers("sqlite")]

REPOSITORY = Path(__file__).parents[3]
EXAMPLES = [
    *(f"inheritance/{name}.py" for name in ("single", "joined", "concrete")),
    *(
        f"sharding/{name}.py"
        for name in (
            "separate_databases",
            "separate_tables",
            "separate_schema_translates",
            "asyncio",
        )
    ),
    *(
        f"association/{name}.py"
        for name in ("basic_association", "proxied_association", "dict_of_sets_with_default")
    ),
    *(
        f"custom_attributes/{name}.py"
        for name in ("active_column_defaults", "custom_management", "listen_for_events")
    ),
]
#: A key's declaration, and what stands in its place; the last two are assertions about them.
CHANGES = [
    (r"mapped_column\((?=\s*ForeignKey\([^()]*\), primary_key=True)", "mapped_column(TICKETS, "),
    (
        r"mapped_column\(primary_key=True(, default=id_generator)?\)",
        "mapped_column(TICKETS, primary_key=True)",
    ),
    (
        r"(Column\(\s*(?:\"\w+\", )?)Integer, (?=(?:ForeignKey\([^()]*\), )?primary_key=True)",
        r"\1TICKETS, ",
    ),
    (r"(?<=primary_key=True), autoincrement=True", ""),
    # an AUTO_INCREMENT of SQLite's own, which it refuses for a BIGINT
    (r'"sqlite_autoincrement": True', ""),
    # literal ids: a server's first ticket is one stride above its offset
    (r"\bid=(\d)\b", r"id=\1 + 1"),
    # the id that each of two shards gave by itself
    (r"(inspect\((\w+)\)\.identity_key == \(\s*Report,\s*)\(1,\)", r"\1(\2.id,)"),
]
IMPORTS = "from sqlalchemy import BigInteger\nfrom sqla_tickets import TicketSequence\n"


class Run(NamedTuple):
    """What a program printed, its errors, and what it drew."""

    said: str
    errors: str
    report: dict[str, Any]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the source distribution."""
    folder = tmp_path_factory.mktemp("sqlalchemy")
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    what = ["--no-deps", "--no-binary", "SQLAlchemy", f"SQLAlchemy=={sqlalchemy.__version__}"]
    # the registry is one of those whom this machine trusts, other than the tests' servers
    trusting = {name: value for name, value in os.environ.items() if name != "SSL_CERT_FILE"}
    done = subprocess.run([*pip, *what], cwd=folder, capture_output=True, text=True, env=trusting)
    assert done.returncode == 0, done.stderr
    (archive,) = folder.glob("*.tar.gz")
    subprocess.run(["tar", "-xzf", archive.name], cwd=folder, check=True)
    (unpacked,) = (path for path in folder.iterdir() if path.is_dir())
    for file in (unpacked / "examples").rglob("*.py"):  # statements differ, and are not compared
        file.write_text(re.sub(r"echo ?= ?True", "echo=False", file.read_text()))
    return unpacked


@pytest.fixture(scope="module")
def changed(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the examples whose keys take tickets."""
    folder = tmp_path_factory.mktemp("changed")
    shutil.copytree(source / "examples", folder / "examples")
    for file in (folder / "examples").rglob("*.py"):
        file.write_text(with_tickets(file.read_text()))
    return folder


def with_tickets(text: str) -> str:
    """An example whose integer keys all have a `TicketSequence`."""
    before = text
    for pattern, by in CHANGES:
        text = re.sub(pattern, by.replace("TICKETS", "BigInteger, TicketSequence()"), text)
    if text == before or "TicketSequence" not in text:
        return text
    # after the docstring, and after what has to come first
    at = [
        m.end()
        for m in re.finditer(
            r"^from __future__ import .*\n|\A\"\"\"(?s:.*?)\"\"\"\n", text, re.MULTILINE
        )
    ]
    end = max(at, default=0)
    return text[:end] + IMPORTS + text[end:]


def run(folder: Path, program: list[str], servers: int = 2) -> Run:
    done = subprocess.run(
        [
            *(sys.executable, "-W", "ignore::DeprecationWarning"),
            *("-m", "tests.support.run_example", str(servers), *program),
        ],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (REPOSITORY, folder)))},
        capture_output=True,
        text=True,
        timeout=120,
    )
    errors, _, report = done.stderr.rstrip().rpartition("\n")
    return Run(done.stdout, errors, json.loads(report))


def without_numbers(text: str) -> str:
    return re.sub(r"0x[0-9a-f]+|\d+", "#", text)


@pytest.mark.parametrize("example", EXAMPLES)
def test_example_with_tickets_prints_the_same(source: Path, changed: Path, example: str) -> None:
    """All keys are tickets, and no sequence is there but those that are drawn from."""
    before = run(source, [f"examples/{example}"])
    after = run(changed, [f"examples/{example}"])
    assert before.errors == ""
    assert after.errors == ""
    assert without_numbers(after.said) == without_numbers(before.said)
    assert before.report["tickets"] == {}
    assert after.report["left_out"] == []
    assert after.report["tickets"].keys() == set(after.report["tables"])
    inserts_nothing = example == "custom_attributes/listen_for_events.py"
    assert bool(after.report["tickets"]) != inserts_nothing


def test_versioned_history_with_tickets_passes_the_same(source: Path, changed: Path) -> None:
    """Its unit tests have literal ids: one server gives 2, 3, 4 and so on."""
    program = ["unittest", "-v", "examples.versioned_history.test_versioning"]
    before, after = run(source, program), run(changed, program, servers=1)
    assert outcomes(after.errors) == outcomes(before.errors)
    assert len(outcomes(before.errors)) > 30
    assert all("_history." in column for column in after.report["left_out"])  # copies of keys
    assert sum(after.report["tickets"].values()) > 30


def outcomes(errors: str) -> dict[str, str]:
    """By test: how it ended, as unittest tells."""
    return dict(re.findall(r"^(test_\w+ \(.*\))(?:\n.*)?? \.\.\. (\w+)$", errors, re.MULTILINE))
