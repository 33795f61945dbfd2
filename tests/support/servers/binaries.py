"""Where the server programs of this machine are."""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from pathlib import Path

from tests.support.servers.base import ServerMissing

# Debian keeps servers out of an ordinary user's PATH.
_SYSTEM = ("/usr/sbin", "/usr/local/sbin", "/usr/libexec", "/opt/homebrew/bin")


def find_program(names: Sequence[str], hint: str) -> Path:
    """Return the first of some programs that is installed.

    Args:
        names: The program's names, the best first.
        hint: What to do where there is none.

    Raises:
        ServerMissing: None of them is installed.
    """
    for name in names:
        found = shutil.which(name) or shutil.which(name, path=":".join(_SYSTEM))
        if found:
            return Path(found)
    raise ServerMissing(f"{names[0]} was not found: {hint}")


def postgres_folder() -> Path:
    """Return the folder of PostgreSQL's programs, the newest version's.

    Raises:
        ServerMissing: PostgreSQL is not installed.
    """
    # Debian's own folders first: what PATH has may be a wrapper around another version.
    debian = Path("/usr/lib/postgresql").glob("*/bin/initdb")
    for initdb in sorted(debian, key=_version, reverse=True):
        return initdb.parent
    hint = "install PostgreSQL (Debian: apt-get install postgresql) or run with --servers"
    return find_program(["initdb"], hint).resolve().parent


def _version(initdb: Path) -> int:
    number = re.match(r"\d+", initdb.parts[-3])
    return int(number.group()) if number else 0
