"""What every command has in common: where it finds servers, `--json`, exit codes. A new one has to be named here."""

from __future__ import annotations

import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from sqla_tickets import TicketPool
from sqla_tickets.cli import FAILED, main
from sqla_tickets.cli.commands import cli
from sqla_tickets.cli.options import FOUND
from tests.support.command_line import Done, run_cli
from tests.support.terminal import in_a_terminal, read_until

#: Each command with what it needs, in the folder of `project`.
COMMANDS: dict[str, list[str]] = {
    "audit": ["--column", "photos.id", "--shard", "sqlite:///shard.db"],
    "create": ["people"],
    "doctor": [],
    "grants": ["draw", "--on", "mariadb"],
    "grow": ["--add", "sqlite:///c.db", "--to-stride", "4"],
    "metrics": [],
    "move": ["photos", "--to", "media"],
    "next": ["photos"],
    "raise": ["photos", "--above", "900"],
    "restore": ["photos", "--yes"],
    "retire": ["--yes"],
    "status": ["--over", "0"],
}
#: They work on a project's files, and are in `test_project.py`.
ON_FILES = {"init", "template"}
#: It runs until a signal comes, and is in `tests/integration/http`.
SERVING = {"serve"}
ASKING = sorted(COMMANDS.keys() - {"grants"})
PAGE = Path(__file__).parents[3] / "docs" / "reference" / "commands.md"
FILES = {
    "alembic.ini": (
        "[alembic]\nticket_servers = sqlite:///${WHERE}/a.db sqlite:///${WHERE}/b.db\n"
        "[ticket_pools.media]\nservers = sqlite:///${WHERE}/m.db\nstride = 2\n"
    ),
    "pyproject.toml": (
        "[tool.alembic]\nticket_servers = ['sqlite:///${WHERE}/a.db', 'sqlite:///${WHERE}/b.db']\n"
        "[tool.alembic.ticket_pools.media]\nservers = ['sqlite:///${WHERE}/m.db']\nstride = 2\n"
    ),
}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder without configuration, with two ticket servers and a shard."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ALEMBIC_CONFIG", raising=False)
    monkeypatch.setenv("WHERE", str(tmp_path))
    with TicketPool(["sqlite:///a.db", "sqlite:///b.db"]) as pool:
        pool.create_table("photos")
        number = pool.next_id("photos")
        with pool.servers[0].engine.connect() as connection:
            connection.exec_driver_sql(f"ATTACH '{tmp_path}/shard.db' AS shard")
            connection.exec_driver_sql("CREATE TABLE shard.photos (id BIGINT PRIMARY KEY)")
            connection.exec_driver_sql(f"INSERT INTO shard.photos VALUES ({number})")
            connection.commit()
    return tmp_path


def ask(command: str, *more: str) -> Done:
    return run_cli(command, *COMMANDS[command], *more)


def test_every_command_is_here() -> None:
    assert set(cli.commands) == COMMANDS.keys() | ON_FILES | SERVING


@pytest.mark.parametrize("command", sorted(cli.commands))
def test_help_fits_a_terminal_and_explains_each_option(command: str) -> None:
    result = CliRunner().invoke(cli, [command, "--help"], terminal_width=80)
    assert max(map(len, result.output.splitlines())) <= 80
    for option in cli.commands[command].params:
        if isinstance(option, click.Option):
            assert option.help, option
            assert "RANGE" not in option.make_metavar(click.Context(cli)), option


@pytest.mark.parametrize("command", sorted(COMMANDS))
@pytest.mark.parametrize("file", FILES)
def test_it_reads_the_configuration_and_answers_in_json(
    file: str, command: str, project: Path
) -> None:
    (project / file).write_text(FILES[file])
    done = ask(command, "--json")
    assert done.code == 0, done.text
    assert isinstance(done.json, dict)


@pytest.mark.parametrize("command", ASKING)
def test_it_reads_a_file_that_is_named(command: str, project: Path) -> None:
    (project / "other.toml").write_text(FILES["pyproject.toml"])
    assert ask(command, "--json", "--config", "other.toml").code == 0


@pytest.mark.parametrize("command", [c for c in ASKING if c != "move"])
def test_it_reads_the_environment(
    command: str, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SQLA_TICKETS_SERVERS", "sqlite:///a.db sqlite:///b.db")
    assert ask(command, "--json").code == 0


def test_it_names_the_variable_of_a_missing_file(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ALEMBIC_CONFIG", "nowhere.ini")
    asked = ask("status")
    assert asked.code == FAILED
    assert "there is no file nowhere.ini: set ALEMBIC_CONFIG to" in asked.text


@pytest.mark.parametrize(
    ("given", "code", "said"),
    [
        (["--config", "other.toml"], 0, "b.db"),
        (["--config", "nowhere.ini"], FAILED, "there is no file nowhere.ini: set --config to"),
        (["--config", "other.toml", "--pool", "media"], 0, "m.db"),
        (["--pool", "default"], 0, "b.db"),
        (["--server", "sqlite:///b.db", "--pool", "media"], 0, "b.db"),
        ([], 0, "environment.db"),
    ],
)
def test_options_come_before_the_environment(
    given: list[str], code: int, said: str, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a command would show, or change, other servers than those that its line names."""
    monkeypatch.setenv("SQLA_TICKETS_SERVERS", "sqlite:///environment.db")
    (project / "other.toml").write_text(FILES["pyproject.toml"])
    (project / "alembic.ini").write_text(FILES["alembic.ini"])
    done = run_cli("create", "people", "--dry-run", *given)
    assert (done.code, said in done.text) == (code, True), done.text
    assert ("environment.db" in done.text) is (said == "environment.db")


#: The commands that read the application's databases, with what they need besides.
READING_SHARDS = {
    "audit": [],
    "grow": ["--add", "sqlite:///c.db", "--to-stride", "4", "--dry-run"],
    "raise": ["--dry-run"],
    "restore": ["--dry-run"],
    "retire": ["--dry-run"],
}


def test_every_command_that_reads_shards_is_here() -> None:
    found = {n for n, c in cli.commands.items() if "shards" in {p.name for p in c.params}}
    assert found == READING_SHARDS.keys() | {"init"}


@pytest.mark.parametrize("command", READING_SHARDS)
@pytest.mark.parametrize("file", FILES)
def test_shards_are_those_of_the_configuration(
    command: str, file: str, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless an option or a variable names them, and said unless the option does."""
    shard, arguments = f"sqlite:///{project}/shard.db", [command, *READING_SHARDS[command]]
    value = "sqlite:///${WHERE}/shard.db"
    line = f"shards = {value}" if file.endswith("ini") else f"shards = ['{value}']"
    (project / file).write_text(FILES[file].replace("]\n", f"]\n{line}\n", 1))
    done = run_cli(*arguments)
    assert done.code == 0, done.text
    assert re.match(rf"Shards of \S*{re.escape(file)}: {shard}\n", done.text)
    assert done.text.count(shard) > (command != "audit")
    result = CliRunner().invoke(cli, [*arguments, "--json"])
    assert "Shards of" in result.stderr
    assert isinstance(json.loads(result.stdout), dict)
    named = run_cli(*arguments, "--shard", "sqlite:///shard.db")
    assert (named.code, "Shards of" in named.text) == (0, False)
    monkeypatch.setenv("SQLA_TICKETS_SHARDS", "sqlite:///shard.db")
    assert "Shards of SQLA_TICKETS_SHARDS: sqlite:///" in run_cli(*arguments).text
    assert f"{file}: {shard}\n" in run_cli(*arguments, "--config", file).text, "a file beats it"
    monkeypatch.delenv("SQLA_TICKETS_SHARDS")
    servers = ["--server", "sqlite:///a.db", "--server", "sqlite:///b.db"]
    assert "Shards of" not in run_cli(*arguments, *servers).text, "they replace the file"


@pytest.mark.parametrize("are_configured", [True, False])
def test_advice_names_shards_only_where_it_must(project: Path, are_configured: bool) -> None:
    """A command that follows finds those of the configuration, and not those of an option."""
    line = f"shards = sqlite:///{project}/shard.db\n" * are_configured
    (project / "alembic.ini").write_text(FILES["alembic.ini"].replace("]\n", f"]\n{line}", 1))
    named = ["--shard", "sqlite:///shard.db"]

    def advice(*command: str) -> str:
        return " ".join(run_cli(*command).text.split())

    after = ". After a take-over, add --above NUMBER"
    assert f"sqla-tickets audit, with the same --shard options{after}" in advice("raise", *named)
    if are_configured:
        assert f"sqla-tickets audit{after}" in advice("raise")
    run_cli("raise", "photos", "--above", 5000)
    with closing(sqlite3.connect("a.db")) as connection, connection:
        connection.execute("UPDATE photos SET id = id - 4000")
    text = advice("audit", *named)
    assert "sqla-tickets restore --offset 1 now, with the same --shard options. Until" in text
    end = "" if are_configured else ", with --shard URL for every shard"
    commands = (["status", "--over", "0"], ["doctor"], *([["audit"]] if are_configured else []))
    for command in commands:
        assert f"sqla-tickets restore --offset 1 now{end}. Until" in advice(*command), command
    refused = advice("raise", "photos", "--above", "4000")
    assert f"Run sqla-tickets restore --offset 1 now{end}. Until" in refused


def test_shards_of_the_configuration_are_listed_in_whole_lines(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "alembic.ini").write_text(FILES["alembic.ini"])
    shards = [f"sqlite:///shard{n}.db" for n in range(9)]
    for n in range(9):
        shutil.copy(project / "shard.db", project / f"shard{n}.db")
    monkeypatch.setenv("SQLA_TICKETS_SHARDS", " ".join(shards))
    command = [sys.executable, "-m", "sqla_tickets.cli", "restore", "photos", "--dry-run"]
    with in_a_terminal(command, 80) as (_, terminal):
        shown = read_until(terminal, "photos:")
    # a machine that is busy shows the server that it waits for, too
    listed = shown.partition("photos:")[0].partition("waiting for")[0]
    assert max(map(len, listed.splitlines())) <= 80
    assert len(listed.splitlines()) > 2
    assert all(shard in listed for shard in shards), "a URL that is split cannot be copied"


def test_shards_of_the_configuration_may_lack_the_column(project: Path) -> None:
    """As without shards; those of an option must have it."""
    line = f"shards = sqlite:///{project}/other.db\n"
    (project / "alembic.ini").write_text(FILES["alembic.ini"].replace("]\n", f"]\n{line}", 1))
    done = run_cli("restore", "photos", "--dry-run")
    assert done.code == 0, done.text
    assert "NOT KNOWN: the ids of 'photos' on the shards; name the column with" in done.text
    for command in (["restore", "photos", "--shard", "sqlite:///other.db"], ["raise"], ["audit"]):
        refused = run_cli(*command)
        assert (refused.code, "no column that holds tickets" in refused.text) == (FAILED, True)
    assert run_cli("raise", "photos", "--above", 900).code == 0


@pytest.mark.parametrize("command", ASKING)
def test_it_says_in_json_why_it_cannot(command: str, project: Path) -> None:
    for more in ([], ["--config", "nowhere.ini"], ["--server", "nonsense://x"]):
        done = ask(command, "--json", *more)
        assert done.code == (FAILED if more else 2), done.text
        assert done.json["error"]
        assert done.json["kind"].startswith("Ticket")


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_invalid_usage_and_help(command: str) -> None:
    assert run_cli(command, "--nonsense").code == 2
    assert run_cli(command, "--help").code == 0


@pytest.mark.parametrize(
    "command", [[], *([name] for name in sorted(COMMANDS.keys() | ON_FILES | SERVING))]
)
def test_help_is_whole_at_80_columns(command: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = run_cli(*command, "--help").text.splitlines()[1:]
    assert [line for line in lines if len(line) > 80 or re.search(r"\w\.\.\.$", line)] == []


def test_help_names_the_variables_of_the_environment() -> None:
    text = " ".join(run_cli("audit", "--help").text.split())
    for variable in ("SQLA_TICKETS_SERVERS", "SQLA_TICKETS_SHARDS", "ALEMBIC_CONFIG"):
        assert f"[env var: {variable}]" in text


def test_url_of_an_option_has_its_password_in_the_environment(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = ["--server", "sqlite:///a.${END}", "--server", "sqlite:///b.${END}"]
    refused = run_cli("status", *pair)
    assert refused.code == 2
    assert "the environment variable END, which is not set" in refused.text
    monkeypatch.setenv("END", "db")
    audited = run_cli("audit", "--shard", "sqlite:///shard.${END}", *pair)
    assert audited.code == 0, audited.text
    arguments = ["--add", "sqlite:///c.${END}", "--to-stride", "4", *pair]
    assert run_cli("grow", *arguments).code == 0
    assert (project / "c.db").exists()


def test_what_nobody_has_foreseen_is_no_finding(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("sqla_tickets.status.measure.measure", fail)
    monkeypatch.setattr("sys.argv", ["sqla-tickets", "status", "--server", "sqlite:///a.db"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == FAILED
    assert "ZeroDivisionError" in capsys.readouterr().err


def test_words_are_completed_as_the_handbook_says() -> None:
    """The lines for a shell's start-up file run; the command then answers the shell."""
    scripts = re.findall(r"_SQLA_TICKETS_COMPLETE=(\w+) sqla-tickets", PAGE.read_text())
    assert scripts == ["bash_source", "zsh_source", "fish_source"]
    for script in scripts:
        assert "_SQLA_TICKETS_COMPLETE=" in complete(script)
    assert complete("bash_complete", words="sqla-tickets sta") == "plain,status\n"


def complete(instruction: str, words: str = "") -> str:
    """What the command tells a shell that is to complete the last of these words."""
    more = {"COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    done = subprocess.run(
        [sys.executable, "-c", "from sqla_tickets.cli import main; main()"],
        env={**os.environ, **more, "_SQLA_TICKETS_COMPLETE": instruction},
        stdout=subprocess.PIPE,
        text=True,
    )
    return done.stdout


def test_the_handbook_and_the_help_list_the_exit_codes() -> None:
    told = re.findall(r"^\| (\d) \|", PAGE.read_text(), re.MULTILINE)
    assert [int(code) for code in told] == [0, FOUND, 2, FAILED]
    text = " ".join(run_cli("--help").text.split())
    assert f"{FOUND} a problem was found; 2 invalid usage; {FAILED} the command failed." in text
