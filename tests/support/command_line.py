"""The command line ``sqla-tickets``, run in this process."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from click.testing import CliRunner
from sqlalchemy import URL

from sqla_tickets.cli.commands import cli


@dataclass
class Done:
    """What a command has left."""

    code: int
    text: str

    @property
    def json(self) -> Any:
        return json.loads(self.text)


def run_cli(*arguments: str | float) -> Done:
    """Run ``sqla-tickets`` with these arguments."""
    result = CliRunner().invoke(cli, [str(argument) for argument in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Done(result.exit_code, result.output)


def options(urls: Sequence[URL]) -> list[str]:
    """The options that name these ticket servers."""
    return [word for url in urls for word in ("--server", url.render_as_string(False))]
