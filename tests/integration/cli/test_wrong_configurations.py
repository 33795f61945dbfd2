"""Configurations that are wrong, with a password in them: the key is named, the value never."""

from __future__ import annotations

import os
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import pytest
from alembic.config import Config
from alembic.util import CommandError
from click.testing import CliRunner

from alembic_ext.configuration import find_pools, pools_in_files
from sqla_tickets.cli.commands import cli
from tests.support.migration_contexts import configured_context

#: Every part of the password; an error may quote what stands before or behind a special character.
PARTS = ("hun%ter", "hun", "%ter", "ter2", "s3cr", "s3cr3t", "xyzzy", "tickets:")
#: With what has a meaning in URLs, in ini files and in TOML.
SECRETS = (
    "hunter2-xyzzy",
    "hun%40ter2",
    "hun%(ter2)s-xyzzy",
    "hun%ter2",
    "s3cr3t%",
    "hun:ter2#xyzzy",
)
URLS = {
    "well": "mysql+pymysql://tickets:{}@127.0.0.1:1/t",
    "no dialect": "tickets:{}@127.0.0.1/t",
    "no slash": "mysql+pymysql:/tickets:{}@127.0.0.1/t",
    "another dialect": "oracle9://tickets:{}@127.0.0.1/t",
    "another driver": "mysql+nosuchdriver://tickets:{}@127.0.0.1/t",
    "no port": "mysql+pymysql://tickets:{}@127.0.0.1:port/t",
    "password as port": "mysql+pymysql://tickets@127.0.0.1:{}/t",
    "password as dialect": "{}://tickets@127.0.0.1/t",
    "unset variable": "mysql+pymysql://tickets:{}@${{NO_SUCH_HOST}}/t",
}
FILES = {
    "alembic.ini": {
        "'ticket_servers' of [alembic]": "[alembic]\nticket_servers = {}\n",
        "'ticket_stride' of [alembic]": "[alembic]\nticket_servers = sqlite:///t\nticket_stride = {}\n",
        "[ticket_pools.media]": "[alembic]\n[ticket_pools.media]\nservers = {}\n",
        "[ticket_pools.more]": "[alembic]\n[ticket_pools.more]\nservers = sqlite:///t\nstride = {}\n",
        "alembic.ini, line 2,": "[alembic]\n{}\n",
        "alembic.ini, line 1,": "{}\n",
    },
    "pyproject.toml": {
        "'ticket_servers' of [alembic], or [tool.alembic]": '[tool.alembic]\nticket_servers = ["{}"]\n',
        "or [tool.alembic]": '[tool.alembic]\nticket_servers = "{}"\n',
        "'ticket_stride' of": '[tool.alembic]\nticket_servers = "sqlite:///t"\nticket_stride = "{}"\n',
        "[tool.alembic.ticket_pools.media]": '[tool.alembic.ticket_pools.media]\nservers = ["{}"]\n',
        "[tool.alembic.ticket_pools.odd]": '[tool.alembic.ticket_pools]\nodd = "{}"\n',
        "[tool.alembic.ticket_pools.more]": "[tool.alembic.ticket_pools.more]\n"
        'servers = ["sqlite:///t"]\nstride = "{}"\n',
        "[tool.alembic.ticket_pools]": '[tool.alembic]\nticket_pools = "{}"\n',
        "pyproject.toml, line 2,": "[tool.alembic]\n{}\n",
    },
}
WRONG_URLS = [url for name, url in URLS.items() if name != "well"]


def assert_secret(text: str) -> None:
    assert "Traceback" not in text
    for part in PARTS:
        assert part not in text


def broken(file: str, key: str) -> list[str]:
    """Invalid values of a key."""
    text = FILES[file][key]
    if "line" in key:
        return [text.format(secret) for secret in SECRETS if ":" not in secret]
    # a URL that is well is wrong as a stride, as a line of its own, and where its % is not doubled
    is_url = "ervers = " in text.splitlines()[-1]
    values = [URLS["well"].format(s) for s in SECRETS if not is_url or "%" in s]
    if is_url:
        values = [v for v in values if "%40" not in v or file.endswith("ini")]
        values += [url.format(s.replace("%", "%%")) for url in WRONG_URLS for s in SECRETS[:4]]
    return [text.format(value) for value in values]


@pytest.mark.parametrize(
    ("file", "key"), [(file, key) for file, keys in FILES.items() for key in keys]
)
def test_wrong_file_names_the_key_alone(tmp_path: Path, file: str, key: str) -> None:
    """By the command and by the plugin."""
    path = tmp_path / file
    for text in broken(file, key):
        path.write_text(text)
        done = CliRunner().invoke(cli, ["status", "--config", str(path)])
        assert isinstance(done.exception, SystemExit), text
        assert done.exit_code == 3, (text, done.output)
        config = Config(toml_file=path) if file.endswith("toml") else Config(str(path))
        with pytest.raises(CommandError) as caught:
            pools_in_files(config)
        for said in (done.output, str(caught.value)):
            assert_secret(said.replace(str(tmp_path), ""))
            assert key.partition("' of ")[0] in said
        assert caught.value.__suppress_context__ or caught.value.__context__ is None


@pytest.mark.parametrize("url", WRONG_URLS)
def test_wrong_argument_names_the_option_alone(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    """``--server``, ``--shard`` and their variables of the environment."""
    for secret in SECRETS:
        wrong = url.format(secret).replace("${NO_SUCH_HOST}", "h:x")
        for option, variable in (("--server", "SERVERS"), ("--shard", "SHARDS")):
            servers = ["--server", "sqlite:///t"] if option == "--shard" else []
            monkeypatch.delenv(f"SQLA_TICKETS_{variable}", raising=False)
            typed = CliRunner().invoke(cli, ["audit", *servers, option, wrong])
            monkeypatch.setenv(f"SQLA_TICKETS_{variable}", wrong)
            for done in (typed, CliRunner().invoke(cli, ["audit", *servers, "--json"])):
                assert done.exit_code == 3, done.output
                assert_secret(done.output)
                assert option in done.output
            monkeypatch.delenv(f"SQLA_TICKETS_{variable}")


@pytest.mark.parametrize(
    "arguments",
    [
        ["{}"],
        ["grants", "{}"],
        ["status", "--stride", "{}"],
        ["draw", "photos", "{}"],
        ["draw", "-n{}"],
    ],
)
def test_url_at_a_wrong_key_is_not_quoted(arguments: list[str]) -> None:
    for secret in SECRETS:
        url = URLS["well"].format(secret)
        done = CliRunner().invoke(cli, [argument.format(url) for argument in arguments])
        assert done.exit_code == 2, done.output
        assert_secret(done.output)


@pytest.mark.parametrize("url", WRONG_URLS)
def test_wrong_url_of_env_py_names_the_key_alone(url: str) -> None:
    for secret in SECRETS:
        wrong = url.format(secret).replace("${NO_SUCH_HOST}", "h:x")
        with pytest.raises(CommandError, match="ticket_pools") as caught:
            find_pools(configured_context(ticket_pools=[wrong]))
        assert_secret(str(caught.value))
        typed = Namespace(x=[f"ticket_servers.media={wrong}"])
        with pytest.raises(CommandError, match=r"-x ticket_servers\.media") as caught:
            find_pools(configured_context(Config(cmd_opts=typed)))
        assert_secret(str(caught.value))


def test_password_that_ends_a_url_too_soon_is_refused() -> None:
    """The rest of it would be the host and the database, which messages name."""
    for secret in ("hun@ter2/xyzzy", "hun@ter2@xyzzy"):
        done = CliRunner().invoke(cli, ["status", "--server", URLS["well"].format(secret)])
        assert done.exit_code == 3
        assert "%40" in done.output
        assert_secret(done.output)


def test_wrong_ini_file_in_a_process_of_its_own(tmp_path: Path) -> None:
    """Nothing of it comes out by a traceback, either."""
    file = tmp_path / "alembic.ini"
    file.write_text(f"[alembic]\nticket_servers = {URLS['well'].format('top%40s3cr3t')}\n")
    done = subprocess.run(
        [sys.executable, "-m", "sqla_tickets.cli", "status", "--config", str(file)],
        capture_output=True,
        text=True,
        env=dict(os.environ),
    )
    assert done.returncode == 3
    assert "ticket_servers" in done.stderr
    assert_secret(done.stdout + done.stderr)
