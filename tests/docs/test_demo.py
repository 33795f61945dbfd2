"""The demo does what it shows, on every kind of server, and clears away after itself."""

from __future__ import annotations

import os
import re
import runpy
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from sqlalchemy import URL, Column, Integer, MetaData, Table, create_engine, insert, inspect

from sqla_tickets.high_water.statements import MARKS
from tests.support.servers import PASSWORD

EXAMPLES = Path(__file__).parents[2] / "examples"
NOWHERE = f"mysql+pymysql://u:{PASSWORD}@127.0.0.1:1/x"
COMMAND = [sys.executable, str(EXAMPLES / "demo.py")]


def demo(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments], capture_output=True, text=True, env={**os.environ, **environment}
    )


def places(ticket_urls: Sequence[URL], shard_urls: Sequence[URL]) -> list[str]:
    """The arguments that name these databases."""
    named = [("--tickets", url) for url in ticket_urls] + [("--shard", url) for url in shard_urls]
    return [word for flag, url in named for word in (flag, url.render_as_string(False))]


def tables_in(url: URL) -> list[str]:
    engine = create_engine(url)
    try:
        return inspect(engine).get_table_names()
    finally:
        engine.dispose()


def test_it_needs_nothing_and_leaves_nothing(tmp_path: Path) -> None:
    done = demo("--photos", "600", TMPDIR=str(tmp_path))
    assert done.stderr == ""
    assert done.returncode == 0
    assert "after 240 photos ticket server 1 is gone" in done.stdout
    assert "after 420 photos ticket server 1 is back" in done.stdout
    assert "2,400 ids from 60 draws, none twice over all shards" in done.stdout
    assert "\x1b" not in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_on_a_terminal_there_is_colour_and_a_bar() -> None:
    done = demo("--photos", "40", FORCE_COLOR="1", TERM="xterm-256color", COLUMNS="100")
    assert done.returncode == 0
    assert "\x1b[" in done.stdout
    assert "━" in done.stdout


@pytest.mark.parametrize("photos", ["1", "7", "20"])
def test_a_few_photos_are_enough(photos: str) -> None:
    done = demo("--photos", photos)
    assert done.returncode == 0, done.stdout
    assert f"{photos} of {photos} photos" in done.stdout


@pytest.mark.ticket_servers("mariadb", "sqlite")
@pytest.mark.app_databases("mysql", "sqlite")
def test_real_servers_are_left_as_they_were(ticket_urls: list[URL], shard_urls: list[URL]) -> None:
    done = demo("--photos", "400", *places(ticket_urls, shard_urls))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "ticket server 1 is gone" in done.stdout
    assert re.search(r"another ticket server: [1-9]", done.stdout)
    assert "1,600 ids from 60 draws, none twice" in done.stdout
    assert PASSWORD not in done.stdout + done.stderr
    assert [tables_in(url) for url in ticket_urls + shard_urls] == [[], [], [], []]


@pytest.mark.ticket_servers("sqlite")
@pytest.mark.app_databases("sqlite")
def test_what_it_did_not_create_is_not_touched(
    ticket_urls: list[URL], shard_urls: list[URL]
) -> None:
    engine = create_engine(shard_urls[1])
    Table("comments", MetaData(), Column("precious", Integer)).create(engine)
    engine.dispose()
    done = demo("--photos", "40", *places(ticket_urls, shard_urls))
    assert done.returncode == 2
    assert "tables that this demo did not create: comments" in done.stdout
    assert [tables_in(url) for url in ticket_urls + shard_urls] == [[], [], [], ["comments"]]


@pytest.mark.ticket_servers("sqlite")
@pytest.mark.app_databases("sqlite")
def test_what_is_kept_stays(ticket_urls: list[URL], shard_urls: list[URL]) -> None:
    done = demo("--photos", "40", "--keep", *places(ticket_urls, shard_urls))
    assert done.returncode == 0
    names = ["comments", "photos", "tags"]
    assert [tables_in(url) for url in shard_urls] == [names] * 2
    assert [tables_in(url) for url in ticket_urls] == [sorted([*names, MARKS])] * 2


@pytest.mark.ticket_servers("sqlite", "mariadb")
@pytest.mark.app_databases("sqlite")
def test_an_interrupt_in_the_outage_leaves_nothing(
    ticket_urls: list[URL], shard_urls: list[URL]
) -> None:
    running = subprocess.Popen(
        [*COMMAND, "--photos", "5000", *places(ticket_urls, shard_urls)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    assert running.stdout is not None
    with running:
        while "is gone" not in running.stdout.readline():
            assert running.poll() is None
        running.send_signal(signal.SIGINT)
        rest = running.stdout.read()
    assert running.returncode == 130
    assert "interrupted" in rest
    assert [tables_in(url) for url in ticket_urls + shard_urls] == [[], [], [], []]


class InterruptsAtItsEnd:
    """The moment at which Python drops a KeyboardInterrupt."""

    def __del__(self) -> None:
        os.kill(os.getpid(), signal.SIGINT)


def test_an_interrupt_that_meets_a_finalizer_is_not_lost() -> None:
    before, done = signal.getsignal(signal.SIGINT), list[int]()
    interruptible = runpy.run_path(str(EXAMPLES / "interrupts.py"))["interruptible"]
    with pytest.raises(KeyboardInterrupt):  # noqa: PT012
        for step in interruptible(range(5)):
            if step == 2:
                InterruptsAtItsEnd()
            done.append(step)
    assert done == [0, 1, 2]
    assert signal.getsignal(signal.SIGINT) is before


def test_a_second_interrupt_acts_at_once() -> None:
    interruptible = runpy.run_path(str(EXAMPLES / "interrupts.py"))["interruptible"]
    done: list[str] = []
    with pytest.raises(KeyboardInterrupt):  # noqa: PT012
        for _ in interruptible(range(5)):
            os.kill(os.getpid(), signal.SIGINT)
            done.append("first")
            os.kill(os.getpid(), signal.SIGINT)
            done.append("second")
    assert done == ["first"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--tickets", "sqlite:///one.db"], "two or more"),
        (["--tickets", "sqlite:///a.db", "--tickets", "sqlite:///a.db"], "of its own"),
        (["--tickets", "sqlite://", "--tickets", "sqlite:///a.db"], "in memory"),
        (["--tickets", NOWHERE, "--tickets", NOWHERE], "of its own"),
        (["--tickets", NOWHERE, "--tickets", "sqlite:///a.db"], "cannot be used"),
    ],
)
def test_bad_places_are_refused(arguments: list[str], message: str) -> None:
    done = demo(*arguments)
    assert done.returncode == 2
    assert message in done.stdout
    assert PASSWORD not in done.stdout + done.stderr


def test_the_audit_finds_an_id_that_two_shards_have(tmp_path: Path) -> None:
    photos = Table("photos", MetaData(), Column("id", Integer, primary_key=True))
    shards = {n: create_engine(f"sqlite:///{tmp_path / n}") for n in ("one", "two")}
    for engine, ids in zip(shards.values(), [(1, 2, 5), (2, 4, 5)], strict=True):
        photos.create(engine)
        with engine.begin() as connection:
            connection.execute(insert(photos), [{"id": n} for n in ids])
    found = runpy.run_path(str(EXAMPLES / "audit.py"))["audit"](photos, shards, 2)
    assert (found.rows, found.duplicates) == (6, 2)
    assert found.residues == {1: 3, 2: 3}
    assert found.shards == {"one": 3, "two": 3}
    for engine in shards.values():
        engine.dispose()
