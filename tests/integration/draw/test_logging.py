"""The loggers: which there are, and at which levels they tell of what."""

from __future__ import annotations

import ast
import logging
import re
import subprocess
import sys
from pathlib import Path

import pytest

from sqla_tickets import TicketPool

ROOT = Path(__file__).parents[3]
LEVELS = ["CRITICAL", "ERROR", "WARNING", "INFO", "DEBUG"]
LOGGER = re.compile(r'= logging\.getLogger\((?:__name__|"(\S+)")\)')
ROW = re.compile(r"^\| `((?:sqla_tickets|alembic|uvicorn)\.[\w.]+)` \| ([A-Z, ]+) \|", re.MULTILINE)


def levels_of(module: Path) -> set[str]:
    """The levels at which a module logs."""
    found, tree = set[str](), ast.parse(module.read_text())
    asked = {  # those that are compared with, and not logged at
        argument
        for call in ast.walk(tree)
        if isinstance(call, ast.Call) and getattr(call.func, "attr", "") == "isEnabledFor"
        for argument in call.args
    }
    for node in ast.walk(tree):
        if (
            node not in asked
            and isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
        ):
            if node.value.id == "log" and node.attr not in ("log", "isEnabledFor"):
                found.add(node.attr.upper().replace("EXCEPTION", "ERROR"))
            if node.value.id == "logging" and node.attr in LEVELS:
                found.add(node.attr)
    return found


def test_the_handbook_has_every_logger() -> None:
    there: dict[str, set[str]] = {"alembic.sqla_tickets": set()}
    for module in (ROOT / "sqla_tickets").rglob("*.py"):
        logger = LOGGER.search(module.read_text())
        if logger is not None and module.parent.name != "cli":  # which only sets the level of all
            name = logger[1] or ".".join(module.relative_to(ROOT).with_suffix("").parts)
            there.setdefault(name, set()).update(levels_of(module))
    for module in (ROOT / "alembic_ext").rglob("*.py"):
        there["alembic.sqla_tickets"].update(levels_of(module))
    page = (ROOT / "docs" / "reference" / "metrics.md").read_text()
    told = {name: levels.split(", ") for name, levels in ROW.findall(page)}
    assert told == {name: sorted(levels, key=LEVELS.index) for name, levels in there.items()}


def test_importing_configures_nothing() -> None:
    code = (
        "import logging, sqla_tickets, sqla_tickets.pool, alembic_ext;"
        "there = [logging.getLogger(n) for n in logging.root.manager.loggerDict if 'tickets' in n];"
        "assert len(there) > 3;"
        "assert not [log for log in there if log.handlers or log.level or not log.propagate];"
        "assert not logging.root.handlers"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.ticket_servers("sqlite")
def test_every_draw_at_the_level_debug(pool: TicketPool, caplog: pytest.LogCaptureFixture) -> None:
    pool.next_ids("photos", 3)
    assert not caplog.records
    with caplog.at_level(logging.DEBUG, "sqla_tickets"):
        pool.next_ids("photos", 3)
    (record,) = (r for r in caplog.records if r.name == "sqla_tickets.events")
    assert re.fullmatch(r"'photos' from .*\(offset 2\), in \d+\.\d ms: 3", record.getMessage())
