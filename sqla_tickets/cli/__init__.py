"""The command ``sqla-tickets``: it shows, checks and changes ticket servers for their operators.

It needs the extra ``cli``; the library itself never imports it. `commands` has the commands, and `options` what
several of them take; `config` finds their pools, `output` prints. Each calls one module: `doctor`, whose checks
are one function each, `status`, `audit` with its `shards`, or `plans`, which change servers. `inspection` asks them.
"""

from __future__ import annotations

import sys


def main() -> None:
    """Run ``sqla-tickets``, or name the package that it needs."""
    try:
        from .commands import cli  # noqa: PLC0415  # click and rich are an extra
    except ModuleNotFoundError as error:
        if error.name not in ("click", "rich"):
            raise
        sys.exit(f"sqla-tickets needs {error.name}: pip install 'sqla-tickets[cli]'")
    cli(prog_name="sqla-tickets")
