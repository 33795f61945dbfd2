"""`import alembic` goes well with this package installed, whatever Alembic's release."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.migrations.projects import REPOSITORY

#: 1.18 to 1.20.0 iterate over an entry point; 1.20.1 takes a module.
RELEASES = ["1.18.4", "1.20.0", "1.20.1"]
ORDERS = [
    "import alembic",
    "import alembic.command",
    "import alembic.autogenerate.render",
    "import alembic_ext",
    "import alembic_ext.compare",
    "import alembic_ext.plugin",
    "from alembic_ext import create_ticket_table",
    "import sqla_tickets, alembic",
]
SEEN = """
import alembic, os
from alembic import op
from alembic.runtime.plugins import _all_plugins
assert "sqla_tickets" in _all_plugins, list(_all_plugins)
assert callable(op.create_ticket_table)
assert alembic.__file__.startswith(os.environ["PYTHONPATH"].split(os.pathsep)[0])
"""


@pytest.fixture(scope="module", params=RELEASES)
def packages(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with that Alembic and this package's entry point, for the front of the path."""
    folder = tmp_path_factory.mktemp("packages")
    install = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    place = ["--target", str(folder), "--no-deps", f"alembic=={request.param}"]
    # the registry is one of those whom this machine trusts, other than the tests' servers
    trusting = {name: value for name, value in os.environ.items() if name != "SSL_CERT_FILE"}
    done = subprocess.run(
        [sys.executable, *install, *place], capture_output=True, text=True, env=trusting
    )
    assert done.returncode == 0, done.stderr
    declare_entry_point(folder)
    return folder


def declare_entry_point(folder: Path) -> None:
    """Do what an installation of this work tree would do, without building it."""
    info = folder / "sqla_tickets-0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: sqla-tickets\nVersion: 0\n")
    (info / "entry_points.txt").write_text("[alembic.plugins]\nsqla_tickets = alembic_ext.plugin\n")


@pytest.mark.network
@pytest.mark.parametrize("order", ORDERS)
def test_alembic_imports_with_the_entry_point(packages: Path, order: str) -> None:
    done = run(order + SEEN, packages, REPOSITORY)
    assert done.stderr == ""
    assert done.returncode == 0


@pytest.mark.network
def test_a_plugin_that_cannot_start_harms_nobody(packages: Path, tmp_path: Path) -> None:
    (tmp_path / "sqla_tickets.py").write_text("raise RuntimeError('broken on purpose')\n")
    code = "import logging; logging.basicConfig()\nimport alembic\nfrom alembic import op"
    done = run(code, tmp_path, packages, REPOSITORY)
    assert done.returncode == 0, done.stderr
    assert "ticket tables are left out of the migrations" in done.stderr


def run(code: str, *path: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=path[0],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path))},
        capture_output=True,
        text=True,
    )


def test_nobody_connects_and_nobody_compares_unless_asked() -> None:
    code = (
        "import socket\n"
        "socket.socket.connect = None\n"
        "from alembic.runtime.plugins import Plugin\n"
        "from alembic.util import PriorityDispatcher\n"
        "import alembic_ext.plugin\n"
        "from alembic.runtime.plugins import _all_plugins\n"
        "if 'sqla_tickets' not in _all_plugins:\n"
        "    Plugin.setup_plugin_from_module(alembic_ext.plugin, 'sqla_tickets')\n"
        "def found(*names):\n"
        "    dispatcher = PriorityDispatcher()\n"
        "    Plugin.populate_autogenerate_priority_dispatch(dispatcher, list(names))\n"
        "    return 'compare_tickets' in repr(dispatcher.__dict__)\n"
        "assert not found('alembic.autogenerate.*')\n"
        "assert found('alembic.autogenerate.*', 'sqla_tickets')\n"
    )
    done = run(code, REPOSITORY)
    assert done.returncode == 0, done.stderr
