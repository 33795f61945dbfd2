"""``init`` and ``template``: a project's migrations prepared for ticket tables, from the first file to the first insert."""

from __future__ import annotations

import os
import pty
import re
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import URL

from sqla_tickets import TicketPool
from sqla_tickets.cli import FAILED
from sqla_tickets.cli.options import FOUND
from sqla_tickets.cli.project import PLUGINS, TEMPLATE, with_option, with_plugin
from tests.support.command_line import run_cli
from tests.support.projects import MODEL, REPOSITORY, Project, text_of

SECRET = "mysql+pymysql://tickets:p%40ss@ticket1/tickets"
SERVERS = ["--server", SECRET, "--server", SECRET.replace("ticket1", "ticket2")]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, in which the commands run."""
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.delenv("ALEMBIC_CONFIG", raising=False)
    return folder


def migrate(project: Project) -> None:
    """From the first revision to a check that finds nothing."""
    (project.folder / "app.py").write_text(MODEL)
    assert "op.create_ticket_table('photos')" in project.revision("photos")
    imports = [line for line in project.text("photos").splitlines() if "alembic_ext" in line]
    assert imports == ["from alembic_ext import op"]
    project.run("upgrade", "head")
    assert "No new upgrade operations" in project.run("check")


def assert_shards_have_photos(files: list[Path]) -> None:
    for file in files:
        with sqlite3.connect(file) as connection:
            assert connection.execute("SELECT count(*) FROM photos").fetchone() == (0,)


def sqlite_options(ticket_urls: list[URL], files: list[Path]) -> list[str]:
    servers = [word for url in ticket_urls for word in ("--server", text_of(url))]
    shards = [word for file in files for word in ("--shard", f"sqlite:///{file}")]
    return [*servers, *shards, "--models", "app:Base"]


@pytest.mark.ticket_servers("sqlite")
@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("template", ["generic", str(TEMPLATE)])
def test_from_init_to_check(
    ticket_urls: list[URL], folder: Path, shards: int, template: str
) -> None:
    """One database, or shards; Alembic's files or our own."""
    project = Project(folder, template)
    files = [folder / f"shard{n}.db" for n in range(shards)]
    options = sqlite_options(ticket_urls, files)
    done = run_cli("init", *options)
    assert done.code == 0, done.text
    migrate(project)
    assert_shards_have_photos(files)
    with TicketPool(ticket_urls) as pool:
        assert pool.next_id("photos") > 0
    again = run_cli("init", *options)
    assert (again.code, again.text.splitlines()[0]) == (0, "Nothing needs to be changed.")
    assert "'photos' is kept" in project.run("downgrade", "base")


@pytest.mark.ticket_servers("sqlite")
def test_a_shard_that_differs_is_found(
    ticket_urls: list[URL], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`alembic check` compares each of them. Their URLs have a variable of the environment."""
    project = Project(folder, str(TEMPLATE))
    files = [folder / f"shard{n}.db" for n in range(2)]
    monkeypatch.setenv("FOLDER", str(folder))
    shards = [Path("${FOLDER}") / file.name for file in files]
    run_cli("init", *sqlite_options(ticket_urls, shards))
    migrate(project)
    with sqlite3.connect(files[1]) as connection:
        connection.execute("ALTER TABLE photos DROP COLUMN title")
    assert "add_column" in project.run("check", fails=True)
    assert "--" in project.run("upgrade", "head", "--sql")


@pytest.mark.ticket_servers("sqlite")
@pytest.mark.parametrize("template", ["generic", str(TEMPLATE)])
def test_variable_in_the_url_of_the_only_shard_is_expanded(
    ticket_urls: list[URL], folder: Path, template: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Alembic expands none in sqlalchemy.url."""
    project = Project(folder, template)
    monkeypatch.setenv("FOLDER", str(folder))
    assert run_cli("init", *sqlite_options(ticket_urls, [Path("${FOLDER}/shard.db")])).code == 0
    migrate(project)
    assert_shards_have_photos([folder / "shard.db"])


@pytest.mark.ticket_servers("sqlite")
@pytest.mark.parametrize("template", ["generic", str(TEMPLATE)])
def test_shards_that_are_left_out_are_said(
    ticket_urls: list[URL], folder: Path, template: str
) -> None:
    """By `alembic check`; with the loop, each command names all databases."""
    project = Project(folder, template)
    files = [folder / f"shard{n}.db" for n in range(2)]
    run_cli("init", *sqlite_options(ticket_urls, files[:1]))
    migrate(project)
    ini = folder / "alembic.ini"
    shards = " ".join(f"sqlite:///{file}" for file in files)
    ini.write_text(with_option(ini.read_text(), "shards", [shards]))
    warning = f"only sqlite:///{files[0]} is migrated and compared: the configuration has 2 shards"
    if template == "generic":
        assert warning in project.run("check")
        return
    done = [project.run("upgrade", "head"), project.run("check")]
    for text in done:
        assert warning not in text
        assert text.count(f"Database sqlite:///{files[0]}") == 1
        assert text.count(f"Database sqlite:///{files[1]}") == 1
    reached = project.run("current", "-v")
    assert re.findall(r"Current revision.*for (\S+):", reached) == shards.split()


@pytest.mark.ticket_servers("sqlite")
@pytest.mark.parametrize("copied", [False, True])
def test_an_env_that_names_its_models_gets_the_loop(
    ticket_urls: list[URL], folder: Path, copied: bool
) -> None:
    """Written by `init`, or copied as `init` says where the functions are edited."""
    project = Project(folder)
    models = '"""The models\nimport Base"""\nfrom __future__ import annotations\n\nfrom app import Base\n'
    project.replace(
        project.env, ("target_metadata = None", "metadata = target_metadata = Base.metadata")
    )
    project.env.write_text(f"{models}{project.env.read_text()}")
    files = [folder / f"shard{n}.db" for n in range(2)]
    options = sqlite_options(ticket_urls, files)
    if copied:
        project.replace(project.env, ("with connectable", "with  connectable"))
        assert run_cli("init", *options).code == FOUND
        theirs = TEMPLATE.joinpath("env.py").read_text()
        imports = theirs[theirs.index("import ") : theirs.index("# this is")]
        functions = theirs[theirs.index("def run") : theirs.index("if context.is_offline")]
        text = project.env.read_text().replace("from app", f"{imports}from app")
        own = text[text.index("def run_migrations_off") : text.index("if context.is_offline")]
        project.env.write_text(text.replace(own, functions))
    done = run_cli("init", *options)
    assert done.code == 0, done.text
    migrate(project)
    assert_shards_have_photos(files)
    assert "Nothing needs to be changed." in run_cli("init", *options).text
    reached = project.run("current", "-v")
    assert len(re.findall(r"Current revision.*for (\S+):", reached)) == 2


@pytest.mark.ticket_servers("sqlite")
@pytest.mark.parametrize("template", ["pyproject", "async", "multidb"])
def test_other_templates_get_the_plugin(folder: Path, template: str) -> None:
    (folder / "pyproject.toml").write_text("")
    project = Project(folder, template)
    config = "pyproject.toml" if template == "pyproject" else "alembic.ini"
    done = run_cli("init", *SERVERS, "--stride", 4, "--config", config)
    assert done.code == FOUND, "the models, and the URLs of the databases, are left"
    assert PLUGINS in project.env.read_text()
    text = (folder / config).read_text()
    assert "ticket_stride" in text
    assert SECRET.replace("%", "%%") in text


def test_passwords_are_not_shown(folder: Path) -> None:
    Project(folder)
    done = run_cli("init", *SERVERS, "--dry-run")
    assert done.code == 0
    assert "+ticket_servers = mysql+pymysql://***@ticket1/tickets" in done.text
    assert "p%" not in done.text
    assert "ticket_servers" not in (folder / "alembic.ini").read_text()


def test_variable_for_password_is_shown(folder: Path) -> None:
    """The user sees that the file has no password."""
    Project(folder)
    servers = [
        f"mysql+pymysql://migrations:${{WORD}}{more}@ticket{n}/x"
        for n, more in ((1, ""), (2, "@p"))
    ]
    options = [option for server in servers for option in ("--server", server)]
    text = run_cli("init", *options, "--dry-run").text
    assert "mysql+pymysql://migrations:${WORD}@ticket1/x" in text
    assert "mysql+pymysql://***@ticket2/x" in text


def test_what_is_left_is_named(folder: Path) -> None:
    """An ``env.py`` of one's own is not replaced by the loop over shards."""
    project = Project(folder)
    project.replace(project.env, ("import engine_from_config", "import engine_from_config as make"))
    project.replace(project.env, ("context.configure(", "migrations.configure("))
    done = run_cli("init", *SERVERS, "--shard", "sqlite:///a", "--shard", "sqlite:///b")
    assert done.code == FOUND
    assert "the migrations on each shard" in " ".join(run_cli("init").text.split()), (
        "the file has the shards"
    )
    written, left = done.text.split("Still to do:\n")
    assert written.endswith("\nWritten: alembic.ini, script.py.mako.\n")
    assert f"\n  {PLUGINS}\n" in left
    assert "sqlalchemy.url" not in left
    paths = {str(project.env): "ENV", str(TEMPLATE / "env.py"): "TEMPLATE"}
    for path, name in paths.items():
        left = left.replace(path, name)
    assert max(map(len, left.splitlines())) <= 80
    assert " ".join(left.split()) == (
        "- In ENV, run the migrations on each shard: replace the functions by those of TEMPLATE and"
        " add its imports. Keep your target_metadata and your own arguments of context.configure(). Then `alembic current -v` names each shard."
        f" - In ENV, give context.configure() the argument {PLUGINS}"
        " - In ENV, set target_metadata to the MetaData of your models."
    )


def test_line_that_the_loop_ignores_is_named(folder: Path) -> None:
    """It decided which database Alembic reaches; an ``env.py`` without our loop needs it."""
    project = Project(folder)
    setting = 'config.set_main_option("sqlalchemy.url", os.environ["DATABASE_URL"])'
    project.replace(project.env, ("target_metadata = None", f"import os\n\n{setting}"))
    assert run_cli("init", *SERVERS, "--shard", "sqlite:///a").code == 0, "one database"
    shards = ["--shard", "sqlite:///a", "--shard", "sqlite:///b"]
    done = run_cli("init", *SERVERS, *shards)
    assert done.code == FOUND
    left = done.text.split("Still to do:\n")[1].replace(str(project.env), "ENV")
    assert max(map(len, left.splitlines())) <= 80
    assert " ".join(left.split()) == (
        "- In ENV, remove the line that sets sqlalchemy.url: the loop over the shards ignores it."
    )
    project.replace(project.env, (setting, ""))
    assert run_cli("init", *SERVERS, *shards).code == 0
    project.replace(
        project.env,
        ("shards_or_database(config)", 'config.get_main_option("shards").split()'),
        ("import os\n", f"import os\n{setting}\n"),
    )
    assert run_cli("init", *SERVERS, *shards).code == 0, "the loop is the project's own"


@pytest.mark.ticket_servers("sqlite")
@pytest.mark.parametrize("template", ["generic", str(TEMPLATE)])
def test_loop_refuses_a_variable_that_is_not_set(
    ticket_urls: list[URL], folder: Path, template: str
) -> None:
    """A driver would take its name for the password."""
    project = Project(folder, template)
    (folder / "app.py").write_text(MODEL)
    run_cli("init", *sqlite_options(ticket_urls, [Path("${FOLDER}") / n for n in "ab"]))
    message = "FAILED: shards refers to the environment variable FOLDER, which is not set"
    assert message in project.run("current", "-v", fails=True)


@pytest.mark.ticket_servers("sqlite")
@pytest.mark.parametrize("has_url", [False, True])
def test_loop_reads_shards_of_pyproject(
    ticket_urls: list[URL], folder: Path, has_url: bool
) -> None:
    """As the commands do; also beside a database of ``alembic.ini``, which is then none of them."""
    project = Project(folder, str(TEMPLATE))
    files = [folder / f"shard{n}.db" for n in range(2)]
    run_cli("init", *sqlite_options(ticket_urls, [folder / "other.db"]))
    if not has_url:
        ini = folder / "alembic.ini"
        ini.write_text(re.sub(r"(?m)^sqlalchemy\.url.*\n", "", ini.read_text()))
    shards = [f"sqlite:///{file}" for file in files]
    (folder / "pyproject.toml").write_text(f"[tool.alembic]\nshards = {shards}\n")
    migrate(project)
    assert_shards_have_photos(files)
    assert not (folder / "other.db").exists()
    assert "CREATE TABLE photos" in project.run("upgrade", "head", "--sql")


@pytest.mark.ticket_servers("sqlite")
@pytest.mark.parametrize("shards", [1, 2])
def test_shards_in_pyproject_get_the_loop(
    ticket_urls: list[URL], folder: Path, shards: int
) -> None:
    (folder / "pyproject.toml").write_text("")
    project = Project(folder, "pyproject")
    files = [folder / f"shard{n}.db" for n in range(shards)]
    options = [*sqlite_options(ticket_urls, files), "--config", "pyproject.toml"]
    assert run_cli("init", *options).code == 0
    assert "sqlalchemy.url" not in (folder / "pyproject.toml").read_text()
    migrate(project)
    assert_shards_have_photos(files)
    assert "Nothing needs to be changed." in run_cli("init", *options).text


@pytest.mark.ticket_servers("sqlite")
def test_init_of_ini_finds_shards_in_pyproject(ticket_urls: list[URL], folder: Path) -> None:
    files = [folder / f"shard{n}.db" for n in range(2)]
    shards = [f"sqlite:///{file}" for file in files]
    (folder / "pyproject.toml").write_text(f"[tool.alembic]\nshards = {shards}\n")
    project = Project(folder, "generic")
    done = run_cli("init", *sqlite_options(ticket_urls, []))
    assert "set sqlalchemy.url" not in done.text
    migrate(project)
    assert_shards_have_photos(files)


@pytest.mark.parametrize("command", [["upgrade", "head"], ["upgrade", "head", "--sql"], ["check"]])
@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("", "name the application's database"),
        ("sqlalchemy.url =", "name the application's database"),
        ("shards =", "name the application's database"),
        ("shards = sqlite:///a.db ${EMPTY}", "shards has an empty URL"),
        ("sqlalchemy.url = ${EMPTY}", "name the application's database"),
        ("sqlalchemy.url = sqlite:///%a", "sqlalchemy.url cannot be read"),
    ],
)
def test_no_database_is_an_error(
    folder: Path, command: list[str], option: str, message: str
) -> None:
    """Else a run that migrates nothing looks like one that had nothing to do."""
    project = Project(folder, str(TEMPLATE))
    ini = folder / "alembic.ini"
    ini.write_text(re.sub(r"(?m)^sqlalchemy\.url.*$", option, ini.read_text()))
    failed = project.run(*command, fails=True, EMPTY="")
    assert f"FAILED: {message}" in failed
    assert not (folder / "a.db").exists()


@pytest.mark.ticket_servers("sqlite")
def test_only_database_may_have_a_space(ticket_urls: list[URL], folder: Path) -> None:
    project = Project(folder, str(TEMPLATE))
    file = folder / "my app.db"
    run_cli("init", *sqlite_options(ticket_urls, [file]))
    migrate(project)
    assert_shards_have_photos([file])


@pytest.mark.ticket_servers("sqlite")
def test_loop_of_the_project_s_own_is_kept(ticket_urls: list[URL], folder: Path) -> None:
    """However it reads the shards."""
    project = Project(folder)
    own = "\nshards = config.get_{}_option('shards')\n"
    before = project.env.read_text().replace(
        "target_metadata = None", "from app import Base\n\ntarget_metadata = Base.metadata"
    )
    options = sqlite_options(ticket_urls, [folder / "a.db", folder / "b.db"])
    for section in ("main", "alembic"):
        project.env.write_text(before + own.format(section))
        assert run_cli("init", *options).code == 0
        assert "shards_or_database" not in project.env.read_text()


@pytest.mark.parametrize(
    ("setup", "arguments", "message"),
    [
        (
            [],
            SERVERS,
            'there is no file alembic.ini: run `alembic init -t "$(sqla-tickets template)"',
        ),
        (["alembic.ini"], SERVERS, "the file has no section [alembic]"),
        (["init"], [], "names no ticket servers: give one --server URL for each"),
        (
            ["init"],
            [*SERVERS, "--models", "app.Base"],
            "expected MODULE:NAME, such as app.models:Base",
        ),
    ],
)
def test_what_cannot_be_prepared(
    folder: Path, setup: list[str], arguments: list[str], message: str
) -> None:
    if setup == ["init"]:
        Project(folder)
    for name in setup:
        (folder / name).touch()
    done = run_cli("init", *arguments)
    assert done.code == FAILED
    assert message in done.text


@pytest.mark.parametrize(("answer", "is_written"), [(b"y\n", True), (b"\n", False)])
def test_a_terminal_is_asked(folder: Path, answer: bytes, is_written: bool) -> None:
    project = Project(folder)
    main, terminal = pty.openpty()
    code = "from sqla_tickets.cli import main; main()"
    process = subprocess.Popen(
        [sys.executable, "-c", code, "init", *SERVERS],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        stdin=terminal,
        stdout=subprocess.PIPE,
        stderr=terminal,
    )
    os.write(main, answer)
    printed, _ = process.communicate(timeout=60)
    os.close(main)
    os.close(terminal)
    assert (b"Nothing was changed." in printed) != is_written
    assert (PLUGINS in project.env.read_text()) == is_written


# -- the edits


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("context.configure(connection=c)", f"context.configure({PLUGINS}, connection=c)"),
        (
            "context.configure(\n    connection=c,\n)",
            f"context.configure(\n    {PLUGINS},\n    connection=c,\n)",
        ),
        (  # Alembic's, in a line of their own
            "context.configure(\n    connection=c, target_metadata=m\n)",
            f"context.configure(\n    {PLUGINS},\n    connection=c, target_metadata=m\n)",
        ),
        (
            "context.configure(connection=c,\n                  target_metadata=m)",
            f"context.configure({PLUGINS}, connection=c,\n                  target_metadata=m)",
        ),
        (
            "context.configure(connection=c, autogenerate_plugins=['a.*'])  # é",
            "context.configure(connection=c, autogenerate_plugins=[\"sqla_tickets\", 'a.*'])  # é",
        ),
        ("é = context.configure(connection=é)", f"é = context.configure({PLUGINS}, connection=é)"),
        (  # Flask-Migrate's
            "context.configure(\n    connection=c,\n    **more\n)",
            f"context.configure(\n    {PLUGINS},\n    connection=c,\n    **more\n)",
        ),
        (
            "context.configure(**more, connection=c)",
            f"context.configure({PLUGINS}, **more, connection=c)",
        ),
        (
            "context.configure(*more, connection=(c))",
            f"context.configure(*more, {PLUGINS}, connection=(c))",
        ),
        (
            "context.configure(connection=c, include_object=(a or b))",
            f"context.configure({PLUGINS}, connection=c, include_object=(a or b))",
        ),
        (
            "context.configure(connection=c, autogenerate_plugins=[('a.*'), ('b')])",
            "context.configure(connection=c, autogenerate_plugins=[\"sqla_tickets\", ('a.*'), ('b')])",
        ),
        (
            "context.configure(connection=c, autogenerate_plugins=[\n    'a.*',\n])",
            "context.configure(connection=c, autogenerate_plugins=[\n    \"sqla_tickets\",\n    'a.*',\n])",
        ),
        ("context.configure(connection=c, autogenerate_plugins=[])", None),
        ("context.configure(url=u)", None),
        ("context.configure(connection=c, autogenerate_plugins=PLUGINS)", None),
        ("context.configure(connection=c, autogenerate_plugins=['~sqla_tickets'])", None),
    ],
)
def test_plugin_in_env(before: str, after: str | None) -> None:
    assert with_plugin(before) == (after or before)
    assert with_plugin(after or before) == (after or before)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("[alembic]\na = 1\n[b]\n", "[alembic]\nkeys = x%%40 y\na = 1\n[b]\n"),
        (
            "[alembic]\nsqlalchemy.url = u\na = 1\n",
            "[alembic]\nsqlalchemy.url = u\nkeys = x%%40 y\na = 1\n",
        ),
        (
            "[alembic]\nkeys = 1\n  2\n# 3\n[b]\nkeys = 4",
            "[alembic]\nkeys = x%%40 y\n# 3\n[b]\nkeys = 4",
        ),
        ("[z]\n[alembic]\n", "[z]\n[alembic]\nkeys = x%%40 y\n"),
    ],
)
def test_option_in_ini(before: str, after: str) -> None:
    assert with_option(before, "keys", ["x%40", "y"]) == after


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("[tool.alembic]\na = 1\n", '[tool.alembic]\nkeys = ["x%%40", "y"]\na = 1\n'),
        (
            '[tool.alembic]\nkeys = [\n  "a",\n]\nb = 1',
            '[tool.alembic]\nkeys = ["x%%40", "y"]\nb = 1',
        ),
    ],
)
def test_option_in_toml(before: str, after: str) -> None:
    assert with_option(before, "keys", ["x%40", "y"], is_toml=True) == after
