"""Where a migration looks for its ticket servers."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.runtime.environment import EnvironmentContext
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from sqlalchemy import MetaData, create_engine

from alembic_ext.configuration import find_pools, pool_named, pools_of
from sqla_tickets import AsyncTicketPool, TicketPool
from tests.support.migration_contexts import configured_context
from tests.support.projects import Project

ONE, TWO, THREE = (f"mysql+pymysql://u:p%40ss@{host}/t" for host in "abc")


def hosts(made: MigrationContext) -> dict[str, list[str | None]]:
    return {
        name: [server.engine.url.host for server in pool.servers]
        for name, pool in find_pools(made).items()
    }


def ini(tmp_path: Path, text: str) -> Config:
    (tmp_path / "alembic.ini").write_text(text.replace("%", "%%"))
    return Config(str(tmp_path / "alembic.ini"))


INI = f"[alembic]\nticket_servers = {ONE}\n    {TWO}\n[ticket_pools.media]\nservers = {THREE}\nstride = 4\n"


def test_the_ini_file(tmp_path: Path) -> None:
    made = configured_context(ini(tmp_path, INI))
    assert hosts(made) == {"default": ["a", "b"], "media": ["c"]}
    assert find_pools(made)["media"].stride == 4
    assert find_pools(made)["default"].servers[0].engine.url.password == "p@ss"


def test_the_toml_file(tmp_path: Path) -> None:
    file = tmp_path / "pyproject.toml"
    text = (
        f'[tool.alembic]\nticket_servers = ["{ONE}", "{TWO}"]\nticket_stride = "3"\n'
        f'[tool.alembic.ticket_pools.media]\nservers = ["{THREE}"]\nstride = 4\n'
    )
    file.write_text(text.replace("%", "%%"))
    made = configured_context(Config(toml_file=str(file)))
    assert hosts(made) == {"default": ["a", "b"], "media": ["c"]}
    assert [pool.stride for pool in find_pools(made).values()] == [3, 4]
    for pool in find_pools(made).values():
        assert pool.servers[0].engine.url.password == "p@ss"


def test_the_command_line_is_taken_literally(tmp_path: Path) -> None:
    config = ini(tmp_path, INI)
    given = [f"ticket_servers={THREE} {TWO}", "ticket_stride=6", f"ticket_servers.x={ONE}"]
    config.cmd_opts = Namespace(x=given)
    made = configured_context(config)
    assert hosts(made) == {"default": ["c", "b"], "media": ["c"], "x": ["a"]}
    assert find_pools(made)["default"].stride == 6
    assert find_pools(made)["x"].servers[0].engine.url.password == "p@ss"


@pytest.mark.parametrize("url", ["mysql+pymysql://u:${NOT_SET}@a/t", "mysql+pymysql://u:%@a/t"])
@pytest.mark.parametrize("name", ["default", "media"])
@pytest.mark.parametrize("is_toml", [False, True])
def test_the_command_line_replaces_what_cannot_be_read(
    tmp_path: Path, url: str, name: str, is_toml: bool
) -> None:
    """Another pool of the file is read, and its error told."""
    ini_file, toml_file = tmp_path / "alembic.ini", tmp_path / "pyproject.toml"
    if is_toml:
        toml_file.write_text(
            f'[tool.alembic]\nticket_servers = ["{url}"]\n'
            f'[tool.alembic.ticket_pools.media]\nservers = ["{url}"]\n'
        )
    else:
        ini_file.write_text(
            f"[alembic]\nticket_servers = {url}\n[ticket_pools.media]\nservers = {url}\n"
        )
    given = {"default": f"ticket_servers={ONE}", "media": f"ticket_servers.media={TWO}"}
    config = Config(ini_file, toml_file=toml_file, cmd_opts=Namespace(x=[*given.values()]))
    assert hosts(configured_context(config)) == {"default": ["a"], "media": ["b"]}
    config.cmd_opts = Namespace(x=[given[name]])
    with pytest.raises(CommandError, match="media" if name == "default" else "ticket_servers"):
        find_pools(configured_context(config))


def test_the_file_comes_before_what_is_attached(tmp_path: Path) -> None:
    """The application's pool may lack servers that are to come, and its user may not create tables."""
    metadata = MetaData()
    pools = [TicketPool([THREE]), TicketPool([TWO], name="other")]
    for pool in pools:
        pool.attach(metadata)
    for target in (metadata, [MetaData(), metadata]):
        made = configured_context(ini(tmp_path, INI), target_metadata=target)
        assert hosts(made) == {"default": ["a", "b"], "media": ["c"], "other": ["b"]}


@pytest.mark.parametrize("given", [[ONE, TWO], {"default": [ONE, TWO]}])
def test_attributes_come_before_what_is_attached(given: Any, tmp_path: Path) -> None:
    metadata = MetaData()
    TicketPool([THREE]).attach(metadata)
    config = ini(tmp_path, INI)
    config.attributes["ticket_pools"] = given
    assert hosts(configured_context(config, target_metadata=metadata)) == {"default": ["a", "b"]}
    made = configured_context(config, target_metadata=metadata, ticket_pools={"x": [TWO]})
    assert hosts(made) == {"x": ["b"]}


@pytest.mark.parametrize(
    "given",
    [
        {"default": TicketPool([ONE]), "media": TicketPool([TWO])},
        [TicketPool([ONE]), TicketPool([TWO])],
    ],
    ids=["by name", "list"],
)
def test_a_pool_has_one_name(given: Any) -> None:
    """A tombstone names the pool by its own name, so clients would follow it to another pool."""
    with pytest.raises(
        CommandError, match=r"^ticket_pools: .*(name='media'|two pools .*'default')"
    ):
        find_pools(configured_context(ticket_pools=given))


def test_asynchronous_pools_are_taken_like_others() -> None:
    pools = [AsyncTicketPool([ONE]), AsyncTicketPool([TWO], name="media")]
    for given in (pools, {pool.name: pool for pool in pools}, [pools[0], pools[1].sync_pool]):
        assert hosts(configured_context(ticket_pools=given)) == {"default": ["a"], "media": ["b"]}


def test_given_pools_replace_all_those_of_the_file(tmp_path: Path) -> None:
    """A test that gives its own pools must not reach the file's servers, whatever an operation names."""
    config = ini(tmp_path, INI)
    config.attributes["ticket_pools"] = {"default": [ONE]}
    pools = find_pools(configured_context(config))
    with pytest.raises(CommandError, match=r"'media' .*configured: default.* in ticket_pools,"):
        pool_named(pools, "media")


def test_each_context_of_an_environment_has_its_pools() -> None:
    """A loop over databases calls `context.configure()` for each one, and Alembic keeps the options."""
    environment = EnvironmentContext(Config(), ScriptDirectory("."))
    with create_engine("sqlite://").connect() as connection:
        for url, host in ((ONE, "a"), (TWO, "b")):
            environment.configure(connection=connection, ticket_pools=[url])
            made = environment.get_context()
            assert hosts(made) == {"default": [host]}
            assert find_pools(made) is find_pools(made)


def test_variables_of_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = ini(tmp_path, "[alembic]\nticket_servers = mysql+pymysql://u:${SECRET}@${HOST}/t\n")
    monkeypatch.setenv("HOST", "far")
    monkeypatch.delenv("SECRET", raising=False)
    with pytest.raises(CommandError, match="SECRET"):
        find_pools(configured_context(config))
    monkeypatch.setenv("SECRET", "p%40ss")
    (server,) = find_pools(configured_context(config))["default"].servers
    assert (server.engine.url.host, server.engine.url.password) == ("far", "p@ss")


def test_none_is_an_error_that_names_all_places() -> None:
    with pytest.raises(CommandError) as caught, pools_of(configured_context()):
        pass
    for address in (
        "context.configure",
        "config.attributes",
        "target_metadata",
        "alembic.ini",
        "-x",
    ):
        assert address in str(caught.value)


def test_the_command_line_comes_first(tmp_path: Path) -> None:
    project = Project(tmp_path / "project")
    from sqlalchemy import URL

    files = [URL.create("sqlite", database=str(tmp_path / f"{name}.db")) for name in "abc"]
    project.set_up(files[0], [files[1]])
    project.revision("photos")
    project.run("-x", f"ticket_servers={files[2]}", "upgrade", "head")
    assert not (tmp_path / "b.db").exists() or (tmp_path / "b.db").stat().st_size == 0
    with TicketPool([files[2]]) as pool:
        assert pool.next_id("photos") == 2
