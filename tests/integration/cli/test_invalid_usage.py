"""Invalid usage: exit code 2, the option and what was expected; no server is asked."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.command_line import run_cli

HUGE = "9" * 5000
PAIR = ["--server", "sqlite:///a.db", "--server", "sqlite:///b.db"]
NO_SECONDS = ["nan", "inf", "-inf", "-1", "1e300", "soon", ""]
NO_NUMBERS = ["-1", "1.5", "nan", "many", "", "0x10", HUGE]
NO_NAMES = ["", " ", "a%(b", "ticket_nodes", "sqla_tickets_marks", "a\ud800b"]

INVALID = [
    *(("status", "--over", given) for given in NO_SECONDS),
    *(("grow", "--finish", "--quiet", given) for given in NO_SECONDS),
    *(("grow", "--add", "sqlite:///c.db", "--gap", given) for given in (*NO_NUMBERS, "0")),
    *(
        ("grow", "--add", "sqlite:///c.db", "--to-stride", given)
        for given in (*NO_NUMBERS, "0", "65536")
    ),
    ("grow", "--add", "sqlite:///c.db", "--finish"),
    ("grow",),
    ("status", "--watch", "--json"),
    *(("restore", "photos", "--margin", given) for given in NO_NUMBERS),
    *(("restore", "photos", "--offset", given) for given in (*NO_NUMBERS, "0", "65536")),
    *(("raise", "photos", "--above", given) for given in (*NO_NUMBERS, str(2**63 - 1))),
    *(("create", "albums", "--start", given) for given in (*NO_NUMBERS, "0", str(2**63))),
    *(("create", "albums", "--bits", given) for given in ("63", "many", "")),
    *(("create", "albums", "--layout", given) for given in ("other", "")),
    *(("next", "photos", "-n", given) for given in (*NO_NUMBERS, "0")),
    *(("retire", option, given) for option in ("--last", "--gone") for given in (*NO_NUMBERS, "0")),
    ("retire", "--last", "1", "--gone", "3"),
    *(("status", "--stride", given) for given in (*NO_NUMBERS, "0", "65536")),
    *((command, name) for command in ("next", "create") for name in NO_NAMES),
    *(("raise", name, "--above", "5") for name in NO_NAMES),
    *(("move", name, "--to", "media") for name in NO_NAMES),
    *(
        (command, "photos", name)
        for command in ("status", "doctor", "restore")
        for name in NO_NAMES
    ),
]


@pytest.mark.parametrize("command", INVALID, ids=lambda command: " ".join(command)[:50])
def test_invalid_argument_has_exit_code_2(
    command: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = run_cli(*command, *PAIR)
    assert done.code == 2, done.text
    assert "Traceback" not in done.text
    assert "Usage:" in done.text
    assert not list(tmp_path.iterdir()), "no server is asked"


@pytest.mark.parametrize("over", ["0", "0.01"])
def test_argument_at_its_bound_is_accepted(
    over: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_cli("create", "photos", "--start", 2**63 - 10, *PAIR).code == 0
    assert run_cli("status", "--over", over, *PAIR).code == 0
    assert run_cli("create", "albums", *PAIR, "--stride", 65535).code == 0
    assert run_cli("raise", "albums", "--above", 0, *PAIR, "--stride", 65535).code == 0


@pytest.mark.parametrize("output", [[], ["--json"]], ids=["text", "json"])
@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["status"], "no ticket servers are configured"),
        (["next", "photos", "--pool", "nowhere", "--config", "b.toml"], "no ticket pool named"),
        (["audit", *PAIR], "--shard"),
        (["raise", *PAIR], "--shard"),
    ],
    ids=["no servers", "no such pool", "audit", "raise"],
)
def test_what_is_not_configured_has_exit_code_2(
    command: list[str],
    said: str,
    output: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ALEMBIC_CONFIG", raising=False)
    Path("b.toml").write_text('[tool.alembic]\nticket_servers = ["sqlite:///a.db"]\n')
    done = run_cli(*command, *output)
    assert (done.code, said in done.text) == (2, True), done.text
