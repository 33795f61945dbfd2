"""The command's entry point, and what importing its package costs."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from pathlib import Path

from sqla_tickets.cli import main

PROJECT = Path(__file__).parents[3] / "pyproject.toml"


def test_script_in_the_project_file_is_main() -> None:
    found = re.search(r'^sqla-tickets = "([\w.]+):(\w+)"$', PROJECT.read_text(), re.MULTILINE)
    assert found is not None
    assert getattr(importlib.import_module(found[1]), found[2]) is main


def test_module_runs_as_the_command() -> None:
    command = [sys.executable, "-m", "sqla_tickets.cli", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert re.fullmatch(r"sqla-tickets, version [\d.]+\n", done.stdout)


def test_package_is_imported_without_its_extra() -> None:
    code = "import sys, sqla_tickets.cli; assert not {'click', 'rich'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
