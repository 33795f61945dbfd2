"""The first two real servers: started, drawn from and ended by a page's commands, as a newcomer would."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
from markdown_it import MarkdownIt

from tests.docs.test_docs import ROOT, MakeUrl, run
from tests.support.markdown_blocks import Block, blocks_of
from tests.support.servers import ServerFixtures
from tests.support.servers.ports import free_port
from tests.support.servers.reaper import Reaper

README, PAGE = ROOT / "README.md", ROOT / "docs" / "start" / "two-servers.md"
CREATION = "tickets.create_all(Base.metadata)"
#: Seconds after which a command hangs, on the slowest machine.
BOUND = 150.0


class Terminal:
    """A shell in an empty folder, with free ports in the place of 3301 and 3302.

    Args:
        folder: the folder.
        reaper: ends what was begun here and still runs, at its end at the latest.
    """

    def __init__(self, folder: Path, reaper: Reaper) -> None:
        self._folder, self._reaper = folder, reaper
        self._ports = {"3301": free_port(), "3302": free_port()}

    def with_ports(self, text: str) -> str:
        """The page's text with the ports of this test."""
        first, second = self._ports.values()
        text = text.replace("330$n", f"$((n == 1 ? {first} : {second}))")
        return re.sub(r"\b330[12]\b", lambda found: str(self._ports[found[0]]), text)

    def enter(self, command: str) -> tuple[int, str]:
        """Run a command of the page; its exit code and what it printed."""
        command = command.replace("sqla-tickets ", f"{sys.executable} -m sqla_tickets.cli ")
        process = subprocess.Popen(
            ["bash", "-c", self.with_ports(command)],
            cwd=self._folder,
            # where a server clears away what looks like its own
            env={**os.environ, "TMPDIR": str(self._folder)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        order = self._reaper.promise(["bash", "-c", f"kill -KILL -- -{process.pid}"])
        printed, _ = process.communicate(timeout=BOUND)
        if not has_members(process.pid):
            self._reaper.withdraw(order)
        return process.returncode, printed


def has_members(group: int) -> bool:
    """Whether something of a process group runs on."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.fixture
def terminal(servers: ServerFixtures) -> Iterator[Terminal]:
    servers.mariadb()  # skips, or fails, where there is none
    with (
        tempfile.TemporaryDirectory(prefix="tickets-") as folder,
        contextlib.closing(Reaper()) as reaper,
    ):
        yield Terminal(Path(folder), reaper)


def command(word: str) -> str:
    """The one shell block with a word in it."""
    fences = [token for token in MarkdownIt().parse(PAGE.read_text()) if token.type == "fence"]
    (found,) = (f.content for f in fences if f.info == "sh" and word in f.content)
    return found


def insert(program: Block, module: ModuleType, make_url: MakeUrl) -> list[int]:
    """Run the README's program, and return the ids that it prints."""
    ids: list[int] = json.loads(run(program, module, make_url))
    vars(module)["tickets"].dispose()
    return ids


def test_a_newcomer_starts_servers_and_ends_one(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = ModuleType("page")  # SQLAlchemy looks annotations up in it
    monkeypatch.setitem(sys.modules, module.__name__, module)
    text = PAGE.read_text()
    urls = {
        host: f"mysql+pymysql://tickets:secret@127.0.0.1:{where}"
        for host, where in {
            "ticket1": "3301/tickets",
            "ticket2": "3302/tickets",
            "shard7": "3301/app",
        }.items()
    }
    assert all(url in text for url in urls.values())
    (program,) = (block for block in blocks_of(README) if not block.info)
    assert CREATION in program.text

    def make_url(host: str, driver: str) -> str:
        return terminal.with_ports(urls[host])

    code, said = terminal.enter(command("mariadb-install-db "))
    assert code == 0, said
    ids = insert(program, module, make_url)
    code, said = terminal.enter(command("sqla-tickets status"))
    assert code == 0, said
    code, said = terminal.enter(command(" shutdown"))
    assert code == 0, said
    later = insert(replace(program, text=program.text.replace(CREATION, "")), module, make_url)
    code, said = terminal.enter(command("sqla-tickets status"))
    assert (code, "DOWN" in said) == (1, True), said
    assert len({*ids, *later}) == 6
    assert {number % 2 for number in later} == {1}
