"""The handbook leaves nothing out, and the privileges that it names are enough."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest

from sqla_tickets import TicketPool
from sqla_tickets.metrics import TicketCollector
from sqla_tickets_cli.commands import cli
from sqla_tickets_cli.doctor import CHECKS, Code
from tests.cli.conftest import options, run_cli
from tests.drawing.conftest import OpenPool
from tests.drawing.tools import draw_from, fresh_pair, grant_only
from tests.servers import Borrower

PAGES = sorted((Path(__file__).parents[2] / "docs" / "operations").glob("*.md"))
PAGE = "\n".join(page.read_text() for page in PAGES)


def privileges(user: str) -> list[str]:
    """What the handbook grants a user."""
    found = re.search(rf"^GRANT (.*) ON .* TO '{user}'@", PAGE, re.MULTILINE)
    assert found
    return found[1].split(", ")


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


@pytest.mark.ticket_servers("mariadb", "mysql")
def test_the_privileges_are_enough(
    servers: Borrower, open_pool: OpenPool, ticket_kind: str
) -> None:
    first, second, urls = fresh_pair(servers, ticket_kind)
    third = servers.fresh_database(first)
    for server, url in ((first, urls[0]), (second, urls[1]), (first, third)):
        grant_only(server, url, *privileges("tickets"))
    pool, on = open_pool(urls), options(urls)
    for layout in ("replace", "counter"):
        assert run_cli("create", layout, "--layout", layout, *on).code == 0
        assert run_cli("raise", layout, "--above", 70, *on).code == 0
        assert pool.next_ids(layout, 20)
        draw_from(pool, 1, sequence=layout)
        draw_from(pool, 2, sequence=layout)
    pool.dispose()
    for server, url in ((first, urls[0]), (second, urls[1]), (first, third)):
        grant_only(server, url, *privileges("tickets"), *privileges("migrations"))
    three = options([*urls, third])
    added = ("--add", third.render_as_string(False), "--to-stride", 4)
    commands: list[list[str | float]] = [
        ["grow", *added, *on],
        ["grow", "--finish", "--quiet", 0, *three, "--stride", 4],
        ["retire", *three, "--stride", 4],
    ]
    for command in commands:
        done = run_cli(*command)
        assert done.code == 0, done.text
