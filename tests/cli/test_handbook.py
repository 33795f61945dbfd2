"""The handbook leaves nothing out."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest

from sqla_tickets import TicketPool
from sqla_tickets.metrics import TicketCollector
from sqla_tickets_cli.commands import cli
from sqla_tickets_cli.doctor import CHECKS, Code

PAGES = sorted((Path(__file__).parents[2] / "docs" / "operations").glob("*.md"))
PAGE = "\n".join(page.read_text() for page in PAGES)


@pytest.mark.ticket_servers("sqlite")
def test_every_command_check_and_metric_is_there(pool: TicketPool) -> None:
    pool.next_id("photos")
    metrics = [metric.name for metric in TicketCollector(pool).collect()]
    for name in [*cli.commands, *(check.__name__ for check in CHECKS)]:
        assert re.search(rf"`(sqla-tickets )?{name}\b|sqla-tickets {name}\b", PAGE), name
    for code in get_args(Code):
        assert f"`{code}`" in PAGE, code
    for name in metrics:
        assert name.removeprefix("sqla_tickets_") in PAGE
