"""MariaDB as a local process on a folder of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.support.servers.base import PASSWORD, USER, ServerFailed
from tests.support.servers.binaries import find_program
from tests.support.servers.folders import Folder
from tests.support.servers.mysqllike import MySQLLike
from tests.support.servers.process import ProcessServer
from tests.support.servers.reaper import Reaper

_HINT = "install MariaDB (Debian: apt-get install mariadb-server) or run with --servers"
# root in the machine's name over TCP, and a user with no rights but those on its databases.
_ACCOUNTS = f"""\
CREATE OR REPLACE USER 'root'@'127.0.0.1' IDENTIFIED BY '{PASSWORD}';
GRANT ALL ON *.* TO 'root'@'127.0.0.1' WITH GRANT OPTION;
CREATE USER IF NOT EXISTS '{USER}'@'%' IDENTIFIED BY '{PASSWORD}';
"""


class MariaDBTemplate:
    """An installed, empty data folder; copying it is quicker than installing another."""

    def __init__(self, reaper: Reaper) -> None:
        install = find_program(["mariadb-install-db", "mysql_install_db"], _HINT)
        self._folder = Folder(reaper)
        done = subprocess.run(
            [
                str(install),
                "--no-defaults",
                f"--datadir={self._data}",
                # Another installation at the same time would remove its temporary tables from /tmp.
                f"--tmpdir={self._folder.path}",
                "--auth-root-authentication-method=normal",
                "--skip-test-db",
                # The redo log is most of what is copied.
                "--innodb-log-file-size=8M",
                *_as_root(),
            ],
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise ServerFailed(f"mariadb-install-db: {done.stdout}{done.stderr}")

    @property
    def _data(self) -> Path:
        return self._folder.path / "data"

    def copy_to(self, folder: Path) -> None:
        """Copy the data folder to where there is none."""
        shutil.copytree(self._data, folder)


class MariaDB(MySQLLike, ProcessServer):
    """A MariaDB server with its stock settings, durable, and small.

    Attributes:
        options: more of `mariadbd`, from the next start on.
    """

    kind = "mariadb"

    def __init__(
        self,
        reaper: Reaper,
        template: MariaDBTemplate,
        options: Sequence[str] = (),
        *,
        owner: str | None = None,
    ) -> None:
        self._program = find_program(["mariadbd", "mysqld"], _HINT)
        self.options = list(options)
        super().__init__(reaper, owner)
        template.copy_to(self.data)
        (self.folder / "accounts.sql").write_text(_ACCOUNTS)
        if owner is not None:
            for path in (self.data, *self.data.glob("**/*")):
                shutil.chown(path, owner)

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def socket(self) -> Path:
        """Its Unix socket."""
        return self.folder / "socket"

    def copy_data(self) -> None:
        copy = self.folder / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(self.data, copy)

    def restore_data(self) -> None:
        shutil.rmtree(self.data)
        shutil.copytree(self.folder / "copy", self.data)

    def command(self) -> list[str]:
        return [
            str(self._program),
            "--no-defaults",
            f"--datadir={self.data}",
            f"--socket={self.socket}",
            f"--pid-file={self.folder / 'pid'}",
            # At its start it removes what looks like its temporary tables, another server's too.
            f"--tmpdir={self.folder}",
            f"--init-file={self.folder / 'accounts.sql'}",
            f"--port={self.port}",
            f"--bind-address={self.host}",
            "--skip-name-resolve",
            "--skip-log-bin",
            # Spelled out: tests of lost power and the benchmarks rest on it.
            "--innodb-flush-log-at-trx-commit=1",
            "--innodb-log-file-size=8M",
            "--innodb-buffer-pool-size=32M",
            "--key-buffer-size=1M",
            *([] if self._owner else _as_root()),
            *self.options,
        ]


def _as_root() -> list[str]:
    # MariaDB refuses to run as root unless it is told to.
    return ["--user=root"] if os.geteuid() == 0 else []
