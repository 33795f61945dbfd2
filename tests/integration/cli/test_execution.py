"""What cannot be undone: its plan, the question, what cannot be done, and what comes next."""

from __future__ import annotations

import os
import re
import shlex
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import URL

from sqla_tickets import TicketPool
from sqla_tickets.cli import plans
from sqla_tickets.maintenance import operations
from tests.support.command_line import options, run_cli
from tests.support.draws import run
from tests.support.terminal import in_a_terminal, read_until

pytestmark = pytest.mark.ticket_servers("sqlite")
COMMAND = [sys.executable, "-m", "sqla_tickets.cli"]


def numbers(pool: TicketPool, name: str = "photos") -> list[int]:
    return [server.last_ticket(name) for server in pool.servers]


@pytest.mark.parametrize(
    ("answer", "code"), [("y", 0), ("n", 1), ("", 1)], ids=["yes", "no", "neither"]
)
@pytest.mark.parametrize("output", [[], ["--json"]], ids=["text", "json"])
def test_terminal_is_asked_after_the_plan(
    pool: TicketPool, on: list[str], answer: str, code: int, output: list[str]
) -> None:
    before = numbers(pool)
    arguments = ["raise", "photos", "--above", "5000", *on, *output]
    with in_a_terminal([*COMMAND, *arguments]) as (process, terminal):
        seen = read_until(terminal, "[y/N]")
        assert re.search(r"photos:\S*\s+- 'photos' on .* it is raised above 5000", seen)
        assert numbers(pool) == before
        os.write(terminal, f"{answer}\n".encode())
        assert process.wait(60) == code
    assert (min(numbers(pool)) > 4000) == (code == 0)


@pytest.mark.parametrize(
    "command",
    [
        ["raise", "photos", "--above", "5000"],
        ["restore", "photos"],
        ["retire"],
        ["grow", "--add", "sqlite:///{folder}/third.db"],
        ["grow", "--finish", "--quiet", "0"],
    ],
    ids=lambda command: " ".join(command[:2]),
)
def test_what_cannot_be_undone_is_asked_for(
    pool: TicketPool, on: list[str], command: list[str], tmp_path: Path
) -> None:
    arguments = [word.format(folder=tmp_path) for word in command]
    with in_a_terminal([*COMMAND, *arguments, *on]) as (_, terminal):
        assert "Do this? It cannot be undone. " in read_until(terminal, "[y/N]")


def test_interrupt_of_the_question_is_an_interrupt(pool: TicketPool, on: list[str]) -> None:
    arguments = ["raise", "photos", "--above", "5000", *on]
    with in_a_terminal([*COMMAND, *arguments]) as (process, terminal):
        read_until(terminal, "[y/N]")
        os.write(terminal, b"\x03")
        read_until(terminal, "interrupted")
        assert process.wait(60) == 3
    assert pool.next_id("photos") < 5000


@pytest.mark.ticket_servers("mariadb")
def test_plan_of_a_move_says_that_it_converts(pool: TicketPool, tmp_path: Path) -> None:
    pool.create_table("albums", layout="replace")
    with TicketPool([f"sqlite:///{tmp_path}/media.db"], stride=2, name="media") as media:
        lines = plans.move(pool, "albums", media).lines
        assert (
            lines[-1] == "convert 'albums' from 'replace' to 'counter', also for a later move back"
        )
        pool.create_table("people", layout="counter")
        assert not [line for line in plans.move(pool, "people", media).lines if "convert" in line]


@pytest.mark.parametrize("hidden", ["1", "2"], ids=["stdout", "stderr"])
def test_terminal_is_asked_while_one_of_its_outputs_is_not_shown(
    pool: TicketPool, on: list[str], hidden: str
) -> None:
    words = shlex.join([*COMMAND, "raise", "photos", "--above", "5000", *on])
    with in_a_terminal(["/bin/sh", "-c", f"{words} {hidden}>/dev/null"]) as (_, terminal):
        read_until(terminal, "[y/N]")


@pytest.mark.parametrize("option", ["--yes", "--dry-run"])
def test_nobody_is_asked(pool: TicketPool, on: list[str], option: str) -> None:
    arguments = ["raise", "photos", "--above", "5000", *on, option]
    with in_a_terminal([*COMMAND, *arguments]) as (process, terminal):
        seen = read_until(terminal, "--dry-run" if option == "--dry-run" else "Done:")
        assert process.wait(60) == 0
    assert "[y/N]" not in seen


def test_plan_is_headed_by_sequence_and_followed_by_what_comes_next(
    pool: TicketPool, on: list[str]
) -> None:
    pool.create_table("people")
    done = run_cli("restore", "--yes", *on)
    assert done.code == 0, done.text
    lines = done.text.splitlines()
    people, photos = lines.index("people:"), lines.index("photos:")
    assert all(line.startswith("- ") for line in lines[people + 1 : photos])
    assert done.text.count("Done: from now on, every ticket of") == 2
    assert lines[-1].startswith("Next: ")
    (restart,) = [line for line in lines if "pool.unquarantine(" in line]
    assert restart.endswith("The same for photos.")


@pytest.mark.parametrize("width", [400, None])
def test_plan_of_many_sequences_is_short_on_a_terminal(
    pool: TicketPool, on: list[str], width: int | None
) -> None:
    """A pipe gets every step."""
    names = [f"albums_{n:02}" for n in range(29)]
    for name in names:
        pool.create_table(name)
    if width is None:
        text = run_cli("raise", *names, "--above", 5000, *on).text
    else:
        command = [*COMMAND, "raise", *names, "--above", "5000", *on, "--yes"]
        with in_a_terminal(command, width) as (_, terminal):
            text = read_until(terminal, "Next:")
    text = re.sub(r"\x1b\[[\d;?]*\w", "", text)
    steps = re.findall(r"^\s*- 'albums_\d\d' on .*", text, re.MULTILINE)
    assert len(steps) == (2 if width else 58)
    assert text.count("Done: ") == (1 if width else 29)
    assert ("The same, with other numbers, for albums_01, " in text) == bool(width)
    assert ("--dry-run | less" in text) == bool(width)
    for name in names:
        assert name in text


def test_plan_shows_sequences_apart_that_differ_in_more_than_numbers(
    pool: TicketPool, on: list[str]
) -> None:
    for n, name in enumerate(("albums", "people", "tags")):
        pool.create_table(name, start=1 + 10_000 * n)
    command = [*COMMAND, "raise", "albums", "people", "tags", "--above", "5000", *on, "--dry-run"]
    with in_a_terminal(command, 400) as (_, terminal):
        text = read_until(terminal, "Nothing was changed")
    assert re.search(r"'albums' on .* it is raised above 5000", text)
    assert re.search(r"'people' on .* it stays", text)
    assert "The same steps, with other numbers, for tags." in text


def test_lines_have_no_blanks_at_their_ends(pool: TicketPool, on: list[str]) -> None:
    """A line that is copied from a terminal has none, even where colour follows them."""
    run_cli("raise", "photos", "--above", 5000, *on)
    for server in pool.servers:
        with server.engine.begin() as connection:
            connection.exec_driver_sql("UPDATE photos SET id = 2 + id % 2")
    command = [*COMMAND, "status", *on, "--over", "0"]
    with in_a_terminal(command, 80) as (process, terminal):
        seen = read_until(terminal, "servers.")
        assert process.wait(60) == 1
    assert "Do: " in seen
    assert re.findall(r".* (?:\x1b\[[\d;]*m)*\r\n", seen.partition("ticket servers")[2]) == []


@pytest.mark.parametrize(
    ("command", "following"),
    [(["raise", "photos", "--above", "5000"], "block_max_age"), (["create", "people"], "doctor")],
)
def test_change_ends_with_what_to_do_next(
    pool: TicketPool, on: list[str], command: list[str], following: str
) -> None:
    last = run_cli(*command, *on).text.splitlines()[-1]
    assert last.startswith("Next: ")
    assert following in last


def test_restore_does_what_it_can(pool: TicketPool, on: list[str], ticket_urls: list[URL]) -> None:
    """The backup is older than one of the sequences, and of another nothing is recorded any more."""
    for name in ("albums", "people"):
        pool.create_table(name)
    pool.next_ids("albums", 50)
    run(ticket_urls[0], "DROP TABLE albums")
    for url in ticket_urls:
        run(url, "DELETE FROM people")
    before = numbers(pool)
    done = run_cli("restore", "--yes", "--offset", 1, "--json", *on)
    assert done.code == 3
    found = done.json
    assert not found["done"]
    assert len(found["not_done"]) == 2
    assert "has no ticket table 'albums'" in found["not_done"][0]
    assert "no ticket of 'people' is recorded" in found["not_done"][1]
    assert any(step.startswith("run sqla-tickets create albums") for step in found["next"])
    assert re.match("from now on, every ticket of 'photos' from .*1\\) is above", found["proof"])
    assert numbers(pool)[0] > before[0]
    text = run_cli("restore", "--yes", "--offset", 1, *on).text
    assert text.count("NOT POSSIBLE") == 2
    assert text.count("NOT DONE") == 2
    assert run_cli("create", "albums", *on).code == 0
    assert run_cli("restore", "--yes", "albums", "--offset", 1, *on).code == 0


def test_restore_in_part_has_only_the_repair_as_its_next_step(
    pool: TicketPool, ticket_urls: list[URL], tmp_path: Path
) -> None:
    """The server starts for clients when all of its sequences are restored: one has moved since the backup."""
    pool.create_table("people")
    pool.next_ids("photos", 50)
    backup = Path(str(ticket_urls[0].database)).read_bytes()
    others = [URL.create("sqlite", database=str(tmp_path / f"media{n}.db")) for n in range(2)]
    with TicketPool(others, name="media") as media:
        operations.move(pool, "photos", media)
    Path(str(ticket_urls[0].database)).write_bytes(backup)
    done = run_cli("restore", "--yes", "--offset", 1, *options(ticket_urls))
    assert done.code == 3
    assert "Done: from now on, every ticket of 'people'" in done.text
    assert "NOT DONE: photos: 'photos' has become 'photos' of the pool 'media'" in done.text
    steps = [line for line in done.text.splitlines() if line.startswith("Next: ")]
    assert steps == [
        "Next: repair what is not done, as said above, then run the same command again."
    ]


def test_restore_does_not_ask_if_nothing_can_be_done(
    pool: TicketPool, on: list[str], ticket_urls: list[URL]
) -> None:
    run(ticket_urls[0], "DROP TABLE photos")
    before = pool.servers[1].last_ticket("photos")
    restore = ["restore", "photos", "--offset", "1", *on]
    with in_a_terminal([*COMMAND, *restore]) as (process, terminal):
        seen = read_until(terminal, "Next:")
        assert process.wait(60) == 3
    assert "has no ticket table 'photos'" in seen
    assert ("nothing can be done" in seen, "[y/N]" in seen) == (True, False)
    assert run_cli(*restore, "--dry-run").code == 1
    assert run_cli("restore", "photos", "--dry-run", *on).code == 1, "a part cannot be done"
    with in_a_terminal([*COMMAND, "restore", "photos", *on]) as (_, terminal):
        read_until(terminal, "[y/N]")
    assert pool.servers[1].last_ticket("photos") == before


def test_raise_of_several_does_what_it_can(pool: TicketPool, on: list[str]) -> None:
    pool.create_table("people", bits=32)
    dry = run_cli("raise", "people", "photos", "--above", 2**40, *on, "--dry-run")
    assert (dry.code, dry.text.count("NOT POSSIBLE")) == (1, 1)
    done = run_cli("raise", "people", "photos", "--above", 2**40, *on)
    assert done.code == 3
    assert "NOT DONE: people: " in done.text
    assert min(numbers(pool)) > 2**40 - 2


@pytest.mark.parametrize("command", [["raise", "--shard"], ["restore", "--shard"]])
def test_no_sequence_at_all_is_not_done(
    on: list[str], command: list[str], ticket_urls: list[URL]
) -> None:
    done = run_cli(*command, ticket_urls[0].render_as_string(False), *on)
    assert done.code == 3
    assert "no ticket table was found" in done.text


def test_create_takes_several_names(pool: TicketPool, on: list[str]) -> None:
    done = run_cli("create", "people", "albums", *on)
    assert done.code == 0, done.text
    assert {"people:", "albums:"} <= set(done.text.splitlines())
    assert pool.next_ids("people", 1)
    assert pool.next_ids("albums", 1)


@pytest.mark.parametrize("command", [["doctor"], ["restore", "photos"], ["status", "--watch"]])
def test_terminal_shows_which_server_is_waited_for(
    pool: TicketPool, on: list[str], command: list[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        hanging = f"127.0.0.1:{listener.getsockname()[1]}/x"
        arguments = [*command, *on, "--server", f"mysql+pymysql://{hanging}", "--stride", "3"]
        with in_a_terminal([*COMMAND, *arguments]) as (_, terminal):
            read_until(terminal, f"waiting for mysql://{hanging} (offset 3)")


def test_pipe_shows_nothing_of_it(pool: TicketPool, on: list[str]) -> None:
    done = subprocess.run([*COMMAND, "doctor", *on], capture_output=True, text=True)
    assert done.stderr == ""
    assert "\x1b" not in done.stdout


@pytest.mark.parametrize("output", [[], ["--json"]], ids=["text", "json"])
@pytest.mark.parametrize("command", ["restore", "retire"])
def test_what_is_not_known_needs_a_yes_without_a_terminal(
    pool: TicketPool, on: list[str], command: str, output: list[str]
) -> None:
    """Nobody has read the plan; it may leave out ids that the shards hold."""
    before = numbers(pool)
    refused = run_cli(command, *on, *output)
    assert refused.code == 2, refused.text
    assert "NOT KNOWN: the ids of 'photos' on the shards" in refused.text
    assert "add --yes" in refused.text
    assert numbers(pool) == before
    done = run_cli(command, "--yes", *on, *output)
    assert done.code == 0, done.text
    assert ("configure 1 server with" in done.text) is (command == "retire")
