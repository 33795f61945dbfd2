"""The command ``sqla-tickets``: it shows, checks and changes ticket servers for their operators.

It needs the extra ``cli``; the library itself never imports it. `commands` has the commands, and `options` their
common options; `config` finds the pools, `output` prints, and `waiting` shows which server is slow. Each command
calls one module: `doctor`, with a function for each check, `status`, `audit` with its `shards`, or `plans`, which
change servers; `execution` shows plans, asks for confirmation and runs them. `inspection` asks the servers. `project`
edits the files of a project with migrations, and `serve` runs the HTTP service.
"""

from __future__ import annotations

import sys
import traceback

FAILED = 3


def main() -> None:
    """Run ``sqla-tickets``, or name the package that it needs.

    Exit code 1 means that a problem was found; an unexpected error is a failure.
    """
    try:
        from .commands import cli  # noqa: PLC0415  # click and rich are an extra
    except KeyboardInterrupt:  # as the commands answer it from here on
        sys.stderr.write("Error: interrupted\n")
        sys.exit(FAILED)
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
