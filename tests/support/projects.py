"""Project folders with migrations, driven by the `alembic` command line as a user does."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from sqlalchemy import URL

from tests.support.preloaded import alembic

REPOSITORY = Path(__file__).parents[2]
#: The model of the first page of the documentation.
MODEL = (Path(__file__).parent / "photos_app.py").read_text()
#: What the first page of the documentation has its readers write into `env.py`.
PLUGINS = 'autogenerate_plugins=["alembic.autogenerate.*", "sqla_tickets"]'


def text_of(url: URL) -> str:
    return url.render_as_string(hide_password=False)


class Project:
    """A folder with `alembic init` done and its files edited."""

    def __init__(self, folder: Path, template: str = "generic") -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)
        self.template = template
        self.run("init", "-t", template, "migrations")

    @property
    def env(self) -> Path:
        return self.folder / "migrations" / "env.py"

    def set_up(self, app: URL, tickets: Sequence[URL], model: str = MODEL) -> None:
        """Do what the first page of the documentation says."""
        (self.folder / "app.py").write_text(model)
        self.replace(
            self.env,
            ("target_metadata = None", "from app import Base\n\ntarget_metadata = Base.metadata"),
            (
                "target_metadata=target_metadata\n",
                f"target_metadata=target_metadata,\n            {PLUGINS},\n",
            ),
            (
                "context.configure(connection=connection, target_metadata=target_metadata)",
                (
                    "context.configure(connection=connection, target_metadata=target_metadata,"
                    f" {PLUGINS})"
                ),
            ),
        )
        servers = " ".join(map(text_of, tickets)).replace("%", "%%")
        self.replace(
            self.folder / "alembic.ini",
            (
                "sqlalchemy.url = driver://user:pass@localhost/dbname",
                f"sqlalchemy.url = {text_of(app).replace('%', '%%')}\nticket_servers = {servers}",
            ),
        )

    def replace(self, file: Path, *pairs: tuple[str, str]) -> None:
        """Replace what is there of some texts in a file, and one of them at the least."""
        text = before = file.read_text()
        for old, new in pairs:
            text = text.replace(old, new)
        assert text != before, f"none of it is in {file}"
        file.write_text(text)

    def run(self, *arguments: str, fails: bool = False, **variables: str) -> str:
        """Run `alembic`, and return what it printed."""
        done = alembic(arguments, self.folder, {**os.environ, **variables})
        assert bool(done.code) == fails, done.text
        return done.text

    def revision(self, message: str) -> str:
        """Generate a migration, and return its two functions and its imports, without comments."""
        self.run("revision", "--autogenerate", "-m", message)
        return self.text(message)

    def text(self, message: str) -> str:
        """A migration's imports and functions, without comments and docstrings."""
        text = self.file(message).read_text()
        text = re.sub(r'""".*?"""\n', "", text, flags=re.DOTALL)
        lines = [line for line in text.splitlines() if line.strip() and "#" not in line]
        skipped = ("revision", "down_revision", "branch_labels", "depends_on")
        return "\n".join(line for line in lines if not line.startswith(skipped))

    def file(self, message: str) -> Path:
        """The file of a migration."""
        (file,) = (self.folder / "migrations" / "versions").glob(f"*_{message}.py")
        return file

    def python(self, code: str, **variables: str) -> str:
        """Run a program in the project's folder, and return what it printed."""
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", code],
            cwd=self.folder,
            env={
                **os.environ,
                "PYTHONPATH": f"{self.folder}{os.pathsep}{REPOSITORY}",
                **variables,
            },
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout
