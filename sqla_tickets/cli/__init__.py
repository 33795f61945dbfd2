"""The command ``sqla-tickets``: it shows, checks and changes ticket servers for their operators.

It needs the extra ``cli``; the library itself never imports it. `commands` has the commands, and `options` what
several of them take; `config` finds their pools, `output` prints, and `waiting` shows who is waited for. Each calls one
module: `doctor`, whose checks are one function each, `status`, `audit` with its `shards`, or `plans`, which change
servers and which `execution` shows, asks for and runs. `inspection` asks the servers.
"""

from __future__ import annotations

import sys
import traceback

FAILED = 3


def main() -> None:
    """Run ``sqla-tickets``, or name the package that it needs.

    Exit code 1 says that something was found; what nobody has foreseen is a failure.
    """
    try:
        from .commands import cli  # noqa: PLC0415  # click and rich are an extra
    except ModuleNotFoundError as error:
        if error.name not in ("click", "rich"):
            raise
        sys.stderr.write(f"sqla-tickets needs {error.name}: pip install 'sqla-tickets[cli]'\n")
        sys.exit(FAILED)
    try:
        cli(prog_name="sqla-tickets")
    except Exception:  # noqa: BLE001  # Python's own exit code for it is 1
        traceback.print_exc()
        sys.exit(FAILED)
