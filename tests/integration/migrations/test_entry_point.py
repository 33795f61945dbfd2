"""`import alembic` goes well with this package installed, whatever Alembic's release."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.projects import REPOSITORY

#: From 1.18 to 1.20.0 they iterate over an entry point; 1.20.1 takes a module.
RELEASES = ["1.18.4", "1.20.1"]
ORDERS = [
    "import alembic",
    "import alembic.command",
    "import alembic.autogenerate.render",
    "import alembic_ext",
    "import alembic_ext.compare",
    "import sqla_tickets.alembic_plugin",
    "from alembic_ext import create_ticket_table",
    "import sqla_tickets, alembic",
]
#: The entry point in ``pyproject.toml``.
DECLARED = re.compile(r'entry-points."alembic.plugins"\]\nsqla_tickets = "(\S+)"')
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
    target = ["--target", str(folder), "--no-deps", f"alembic=={request.param}"]
    # the registry is one of those whom this machine trusts, other than the tests' servers
    trusting = {name: value for name, value in os.environ.items() if name != "SSL_CERT_FILE"}
    done = subprocess.run(
        [sys.executable, *install, *target], capture_output=True, text=True, env=trusting
    )
    assert done.returncode == 0, done.stderr
    declare_entry_point(folder)
    return folder


def declare_entry_point(folder: Path) -> None:
    """Do what an installation of this work tree would do, without building it."""
    info = folder / "sqla_tickets-0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: sqla-tickets\nVersion: 0\n")
    declared = DECLARED.search((REPOSITORY / "pyproject.toml").read_text())
    assert declared is not None
    (info / "entry_points.txt").write_text(f"[alembic.plugins]\nsqla_tickets = {declared[1]}\n")


@pytest.mark.network
@pytest.mark.parametrize("order", ORDERS)
def test_alembic_imports_with_the_entry_point(packages: Path, order: str) -> None:
    done = run(order + SEEN, packages, REPOSITORY)
    assert done.stderr == ""
    assert done.returncode == 0


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A folder with this package's entry point, for the front of the path."""
    folder = tmp_path / "installed"
    folder.mkdir()
    declare_entry_point(folder)
    return folder


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """The folder of somebody's program."""
    folder = tmp_path / "project"
    folder.mkdir()
    return folder


def test_a_plugin_that_cannot_start_harms_nobody(installed: Path, project: Path) -> None:
    broken = "import sys\nsys.modules['sqla_tickets.maintenance.operations'] = None\n"
    (project / "sitecustomize.py").write_text(broken)
    code = (
        f"import logging; logging.basicConfig()\nimport alembic\nfrom alembic import op\n{LISTED}"
    )
    done = run(code, project, installed, REPOSITORY)
    assert "ticket tables are left out of the migrations" in done.stderr
    assert "CommandError: the plugin 'sqla_tickets' cannot work: " in done.stderr


#: Compares a database with models, in an environment that lists the plugin.
LISTED = """
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import MetaData, create_engine
engine = create_engine("sqlite://")
with engine.connect() as connection:
    plugins = ["alembic.autogenerate.*", "sqla_tickets"]
    context = MigrationContext.configure(connection, opts={"autogenerate_plugins": plugins})
    compare_metadata(context, MetaData())
engine.dispose()
"""
#: What a project may have under the name of this package's `alembic_ext`.
NAMESAKES = {
    "package": ("alembic_ext/__init__.py", "mine = True\n"),
    "module": ("alembic_ext.py", "mine = True\n"),
    "broken package": ("alembic_ext/__init__.py", "raise RuntimeError('broken on purpose')\n"),
}


@pytest.mark.parametrize("namesake", NAMESAKES)
def test_a_namesake_in_the_project_warns_once(
    namesake: str, installed: Path, project: Path
) -> None:
    """`import alembic` goes well in every program of such a project, and imports nothing of it."""
    file, text = NAMESAKES[namesake]
    (project / file).parent.mkdir(exist_ok=True)
    (project / file).write_text(text)
    code = (
        "import sys, alembic.command\n"
        "assert 'alembic_ext' not in sys.modules\n"
        "from alembic import op\n"
        "assert not hasattr(op, 'create_ticket_table')\n"
    )
    done = run(code, project, installed, REPOSITORY, warnings="always")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("TicketWarning: ") == 1
    assert f"{project / file} hides sqla-tickets' package alembic_ext" in done.stderr
    assert "rename that file or folder" in done.stderr
    done = run(code + LISTED, project, installed, REPOSITORY, warnings="ignore")
    assert "CommandError: the plugin 'sqla_tickets' cannot work: " in done.stderr
    assert "rename that file or folder" in done.stderr


def test_a_namesake_that_was_imported_before_warns(installed: Path, project: Path) -> None:
    (project / "alembic_ext.py").write_text("mine = True\n")
    code = "import alembic_ext, alembic\nassert alembic_ext.mine"
    done = run(code, project, installed, REPOSITORY, warnings="always")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("TicketWarning: ") == 1


def test_a_folder_without_a_module_hides_nothing(installed: Path, project: Path) -> None:
    (project / "alembic_ext" / "notes").mkdir(parents=True)
    code = "import alembic\nfrom alembic import op\nassert callable(op.create_ticket_table)\n"
    done = run(code + LISTED, project, installed, REPOSITORY)
    assert (done.returncode, done.stderr) == (0, "")


def run(code: str, *path: Path, warnings: str = "error") -> subprocess.CompletedProcess[str]:
    """Run a program in the first of these folders, all of which are on its path."""
    return subprocess.run(
        [sys.executable, "-W", warnings, "-c", code],
        cwd=path[0],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path))},
        capture_output=True,
        text=True,
    )


def test_nobody_connects_and_nobody_compares_unless_asked(installed: Path) -> None:
    code = (
        "import socket\n"
        "socket.socket.connect = None\n"
        "from alembic.runtime.plugins import Plugin\n"
        "from alembic.util import PriorityDispatcher\n"
        "def found(*names):\n"
        "    dispatcher = PriorityDispatcher()\n"
        "    Plugin.populate_autogenerate_priority_dispatch(dispatcher, list(names))\n"
        "    return 'compare_tickets' in repr(dispatcher.__dict__)\n"
        "assert not found('alembic.autogenerate.*')\n"
        "assert found('alembic.autogenerate.*', 'sqla_tickets')\n"
    )
    done = run(code, installed, REPOSITORY)
    assert done.returncode == 0, done.stderr
