"""The handbook leaves nothing out."""

from __future__ import annotations

import contextlib
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import click
import pytest
from markdown_it import MarkdownIt

from sqla_tickets import TicketPool
from sqla_tickets.cli.commands import cli
from sqla_tickets.cli.doctor import CHECKS, Code
from sqla_tickets.contrib.prometheus import TicketCollector
from sqla_tickets.maintenance.status import State

ROOT = Path(__file__).parents[2]
PAGES = [
    *sorted((ROOT / "docs" / "operate").glob("*.md")),
    ROOT / "docs" / "reference" / "commands.md",
    ROOT / "docs" / "reference" / "metrics.md",
]
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


def test_every_state_of_a_table_is_explained() -> None:
    """As the table that people read at night calls it."""
    assert [state for state in get_args(State) if f"| {state.upper()} |" not in PAGE] == []


def commands_in(page: Path) -> Iterator[list[str]]:
    """What a page would have typed, in its blocks and in its text, without ``sqla-tickets``."""
    for token in MarkdownIt().parse(page.read_text()):
        for part in (token, *(token.children or ())):
            if part.type in ("fence", "code_inline"):
                for line in part.content.replace("\\\n", " ").splitlines():
                    found = re.match(r"(?:\$ )?sqla-tickets (.+)", line)
                    if found:
                        yield shlex.split(found[1], comments=True)


def test_every_command_that_is_written_can_be_typed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MIGRATIONS_PASSWORD", "secret")
    tried: set[str] = set()
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        for name, *arguments in commands_in(page):
            tried.add(name)
            with contextlib.suppress(click.MissingParameter):  # it is only spoken of
                cli.commands[name].make_context(name, arguments)
    assert tried == cli.commands.keys()


def test_the_pages_have_the_steps_that_the_procedures_test() -> None:
    said = re.sub(r"\s+", " ", (ROOT / "docs" / "guide" / "take-over.md").read_text() + PAGE)
    for step in (
        "sqla-tickets raise --shard URL --shard URL",
        "sqla-tickets audit --above 1999999",
        r"sqla-tickets grow \ --add 'mysql+pymysql://migrations:${MIGRATIONS_PASSWORD}@ticket3/tickets'",
        "sqla-tickets grow --config old.ini --add URL --add URL",
        "sqla-tickets grow --config new.ini --finish",
        "sqla-tickets retire --last 2",
        "sqla-tickets move photos --to media",
        "sqla-tickets restore --offset 2 --shard URL --shard URL",
    ):
        assert step in said, step
