"""Where the command begins."""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> None:
    """Run ``sqla-tickets``, or say what it needs."""
    try:
        from .commands import cli  # noqa: PLC0415  # click and rich are an extra
    except ModuleNotFoundError as error:
        if error.name not in ("click", "rich"):
            raise
        sys.exit(f"sqla-tickets needs {error.name}: pip install 'sqla-tickets[cli]'")
    cli(prog_name="sqla-tickets")


if __name__ == "__main__":
    main()
