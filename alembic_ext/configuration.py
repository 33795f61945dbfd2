"""Finds the ticket servers of a migration.

It uses the first of these sources that names a pool; the command line's ``-x`` overrides all of them. Either of the
first two replaces all that follow: a test with its own pools never reaches the servers in a file.

1. ``context.configure(ticket_pools=...)`` in ``env.py``;
2. ``config.attributes["ticket_pools"]``;
3. ``ticket_servers`` in ``alembic.ini`` or ``[tool.alembic]`` of ``pyproject.toml``, and a section
   ``ticket_pools.NAME`` for each pool that is not the default one;
4. the pools attached to ``target_metadata``.
"""

from __future__ import annotations

import configparser
import os
import re
from collections.abc import Callable, Container, Generator, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

from alembic.util import CommandError
from sqlalchemy import MetaData

from sqla_tickets import AsyncTicketPool, TicketArgumentError, TicketError, TicketPool
from sqla_tickets.concurrency import in_event_loop
from sqla_tickets.pool import attached_pools

if TYPE_CHECKING:  # Alembic may be in the middle of its own import
    from alembic.config import Config
    from alembic.runtime.migration import MigrationContext

#: The pools of a migration by name.
Pools = Mapping[str, TicketPool]


@contextmanager
def pools_of(context: MigrationContext) -> Generator[dict[str, TicketPool]]:
    """The pools of a migration by name; their connections are closed at the end.

    Raises:
        CommandError: none is configured, or the block raised a `TicketError`.
    """
    try:
        pools = find_pools(context)
        if not pools:
            raise CommandError(
                "no ticket servers are configured. Name them in one of these: "
                "context.configure(ticket_pools=...) in env.py, config.attributes['ticket_pools'], pools"
                " attached to target_metadata, 'ticket_servers' in alembic.ini or in [tool.alembic] of"
                " pyproject.toml, or -x ticket_servers=..."
            )
        try:
            yield pools
        finally:
            for pool in pools.values():
                _close(pool)
    except TicketError as error:
        raise CommandError(str(error)) from error


def pool_named(pools: Pools, name: str | None) -> TicketPool:
    """The pool of that name; for None the default pool, or the only one.

    Raises:
        CommandError: there is no such pool.
    """
    if name is None and "default" not in pools and len(pools) == 1:
        return next(iter(pools.values()))
    try:
        return pools[name or "default"]
    except KeyError:
        wanted, there = name or "default", ", ".join(sorted(pools))
        where = "ticket_servers" if wanted == "default" else f"a section [ticket_pools.{wanted}]"
        raise CommandError(
            f"no ticket pool named {wanted!r} is configured (configured: {there}): name one of these, or configure it "
            f"where they are: in ticket_pools, or as {where} of alembic.ini"
        ) from None


def possible_names(pools: Pools, name: str | None) -> list[str]:
    """The names of the pools that ``name`` may mean: None is the default pool, which may be gone, or the only one."""
    if name is not None:
        return [name]
    return ["default", *pools] if len(pools) == 1 else ["default"]


def find_pools(context: MigrationContext) -> dict[str, TicketPool]:
    """The pools of a migration by name; empty if none is configured. Connects to nothing."""
    # Alembic shares the options between the contexts of one `env.py`
    known: tuple[MigrationContext, dict[str, TicketPool]] | None
    known = context.opts.get("_ticket_pools")
    if known is None or known[0] is not context:
        given = _of_command_line(context)
        made = {**_configured(context, given), **given}
        known = context.opts["_ticket_pools"] = (context, made)
    return known[1]


def option(context: MigrationContext, name: str) -> str | None:
    """An option from ``context.configure()``, the command line's ``-x``, or the configuration file."""
    found = context.opts.get(name) or _x_arguments(context).get(name)
    if found is None and context.config is not None:
        found = context.config.get_alembic_option(name)
    return None if found is None else str(found)


def shards_of(context: MigrationContext) -> list[str]:
    """The URLs of the application's databases that the configuration file names; empty if it names none.

    Raises:
        CommandError: the value cannot be read, or an environment variable in it is not set or empty.
    """
    return [] if context.config is None else shards_in_files(context.config)


def shards_in_files(config: Config) -> list[str]:
    """The same, of ``alembic.ini`` or ``pyproject.toml``."""
    with _naming("shards"):
        words = _words(config.get_alembic_option("shards"))
        urls = [expanded(word, "shards") for word in words]
    if not all(urls):
        raise CommandError(
            f"shards has an empty URL, number {urls.index('') + 1} of {len(urls)}: set the environment variable that "
            f"is this URL, or remove it from shards"
        )
    return urls


def shards_or_database(config: Config) -> list[str]:
    """The URLs of the databases that ``env.py`` migrates: the shards, or ``sqlalchemy.url`` alone.

    Raises:
        CommandError: there is none, or one is empty or cannot be read, so a run would migrate nothing.
    """
    key = "sqlalchemy.url"
    with _naming(key):
        # not read where shards replace it, and not split: a path may have spaces
        urls = shards_in_files(config) or [expanded(config.get_main_option(key, ""), key)]
    if not all(urls):
        raise CommandError(
            "name the application's database, as neither shards nor sqlalchemy.url has a URL: set sqlalchemy.url in "
            "alembic.ini, or shards there or in [tool.alembic] of pyproject.toml; a variable in it may be empty"
        )
    return urls


def _configured(context: MigrationContext, replaced: Container[str]) -> dict[str, TicketPool]:
    config = context.config
    given = context.opts.get("ticket_pools")
    if given is None and config is not None:
        given = config.attributes.get("ticket_pools")
    if given is not None:
        with _naming("ticket_pools"):
            return _made_of(given)
    attached: dict[str, TicketPool] = {}
    for each in _listed(context.opts.get("target_metadata")):
        if isinstance(each, MetaData):
            attached.update(attached_pools(each))
    # an attached pool is the application's: its user may not create tables, and it may lack servers that are to come
    return attached if config is None else {**attached, **pools_in_files(config, replaced)}


def pools_in_files(config: Config, replaced: Container[str] = ()) -> dict[str, TicketPool]:
    """The pools of ``alembic.ini`` and ``pyproject.toml`` by name. Connects to nothing.

    Args:
        config: the files.
        replaced: names of pools that are not read, as another source has them.

    Raises:
        CommandError: a file or a value cannot be read, or an environment variable in a server's URL is not set. The
            message names the key, never its value, which may hold a password.
    """
    _check(config.config_file_name, lambda: config.file_config)
    toml_file = getattr(config, "toml_file_name", None)
    _check(toml_file, lambda: getattr(config, "toml_alembic_config", None))
    return {name: _pool(name, *settings) for name, settings in _in_files(config, replaced)}


def _check(file: object, read: Callable[[], object]) -> None:
    """Check that a file can be parsed, as the parser's own error quotes the invalid line."""
    try:
        read()
    except CommandError:
        raise
    except Exception as error:  # noqa: BLE001  # each parser has its own
        found = re.search(r"\bline:? +(\d+)", str(error))
        line = f", line {found[1]}," if found else ""
        raise CommandError(f"{file}{line} cannot be read ({type(error).__name__})") from None


@contextmanager
def _naming(key: str) -> Generator[None]:
    """Lets errors name a key, never its value, which may hold a password."""
    try:
        yield
    except CommandError:
        raise
    except TicketError as error:
        raise CommandError(f"{key}: {error}") from None
    except configparser.Error:
        raise CommandError(f"{key} cannot be read: write each % in it as %%") from None
    except Exception as error:  # noqa: BLE001  # of whatever stands there instead of text or a table
        raise CommandError(
            f"{key} cannot be read ({type(error).__name__}): expected a string or a list of strings, a number for a "
            f"stride, and %% for every %"
        ) from None


def _made_of(given: Any) -> dict[str, TicketPool]:
    """The pools that env.py passes: a pool, several pools, a list of servers, or either by name.

    Raises:
        TicketArgumentError: a pool has another name than its key, or the same as another pool.
    """
    if isinstance(given, Mapping):
        by_name = [*cast("Mapping[str, Any]", given).items()]
    else:
        each = _listed(given)
        are_pools = all(isinstance(pool, (TicketPool, AsyncTicketPool)) for pool in each)
        by_name = [(pool.name, pool) for pool in each] if are_pools else [("default", each)]
    made: dict[str, TicketPool] = {}
    for name, servers in by_name:
        pool = servers.sync_pool if isinstance(servers, AsyncTicketPool) else servers
        if not isinstance(pool, TicketPool):
            pool = TicketPool(pool, name=name)
        # the tables' metadata has the pool's own name
        if pool.name != name:
            raise TicketArgumentError(
                f"the pool under the key {name!r} has the name {pool.name!r}: expected the same, so give it name={name!r}"
            )
        if name in made:
            raise TicketArgumentError(f"two pools have the name {name!r}: give each its own name=")
        made[name] = pool
    return made


def _in_files(
    config: Config, replaced: Container[str]
) -> Iterator[tuple[str, tuple[str, object, object]]]:
    """Every pool of ``alembic.ini`` and ``pyproject.toml``: its name, its key, its servers, its stride."""
    key, servers = "'ticket_servers' of [alembic], or [tool.alembic],", None
    if "default" not in replaced:
        with _naming(key):
            servers = config.get_alembic_option("ticket_servers")
    if servers:
        with _naming(key.replace("servers", "stride")):
            stride = config.get_alembic_option("ticket_stride")
        yield "default", (key, servers, stride)
    for section in config.file_config.sections():
        name = section.partition(".")[2]
        if section.startswith("ticket_pools.") and name not in replaced:
            key = f"'servers' of [{section}]"
            with _naming(key):
                found = config.get_section(section, {})
            yield name, (key, found.get("servers"), found.get("stride"))
    yield from _in_toml(config, replaced)


def _in_toml(
    config: Config, replaced: Container[str]
) -> Iterator[tuple[str, tuple[str, object, object]]]:
    """The pools of ``pyproject.toml`` that are not the default one."""
    with _naming("[tool.alembic.ticket_pools]"):
        toml = dict(getattr(config, "toml_alembic_config", {}).get("ticket_pools", {}))
    for name, found in toml.items():
        if name in replaced:
            continue
        key = f"'servers' of [tool.alembic.ticket_pools.{name}]"
        with _naming(key):
            urls = [server % config.toml_args for server in _words(found.get("servers"))]
            stride = found.get("stride")
        yield str(name), (key, urls, stride)


def _of_command_line(context: MigrationContext) -> dict[str, TicketPool]:
    """``-x ticket_servers="URL URL"``, and ``-x ticket_servers.media=...`` for the pool ``media``."""
    found: dict[str, TicketPool] = {}
    given = _x_arguments(context)
    for key, value in given.items():
        option, _, name = key.partition(".")
        if option == "ticket_servers":
            stride = given.get(key.replace(option, "ticket_stride", 1))
            found[name or "default"] = _pool(name or "default", f"-x {key}", value, stride)
    return found


def _x_arguments(context: MigrationContext) -> dict[str, Any]:
    environment = context.environment_context
    return environment.get_x_argument(as_dictionary=True) if environment is not None else {}


def _pool(name: str, key: str, servers: object, stride: object) -> TicketPool:
    with _naming(key.replace("servers", "stride")):
        wanted = int(str(stride)) if stride else None
    with _naming(key):
        urls = [expanded(word, key) for word in _words(servers)]
        return TicketPool(urls, name=name, stride=wanted)


def _words(servers: Any) -> list[str]:
    """The servers in a configuration file: a list, or one string with spaces."""
    if isinstance(servers, list):
        return [str(server) for server in _listed(servers)]
    return str(servers or "").split()


def _listed(value: Any) -> list[Any]:
    """A list or a tuple as a list, and anything else as a list of one."""
    return list(cast("list[Any]", value)) if isinstance(value, (list, tuple)) else [value]


def expanded(text: str, key: str) -> str:
    """``text`` with every ``${NAME}`` replaced by the environment variable of that name.

    Raises:
        CommandError: a variable is not set. The error names ``key``, not the text, which may hold a password.
    """

    def value(match: re.Match[str]) -> str:
        try:
            return os.environ[match[1]]
        except KeyError:
            raise CommandError(
                f"{key} refers to the environment variable {match[1]}, which is not set"
            ) from None

    return re.sub(r"\$\{(\w+)\}", value, text)


def _close(pool: TicketPool) -> None:
    asynchronous = any(server.engine.dialect.is_async for server in pool.servers)
    if not asynchronous or in_event_loop():
        pool.dispose()
