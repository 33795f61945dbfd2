"""Where a migration finds the ticket servers.

The first of these places that names any pool counts, and the command line's ``-x`` above all:

1. ``context.configure(ticket_pools=...)`` in ``env.py``;
2. ``config.attributes["ticket_pools"]``;
3. the pools attached to ``target_metadata``;
4. ``ticket_servers`` in ``alembic.ini`` or ``[tool.alembic]`` of ``pyproject.toml``, and a section
   ``ticket_pools.NAME`` for each pool that is not the default one.
"""

from __future__ import annotations

import os
import re
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

from alembic.util import CommandError
from sqlalchemy import MetaData

from sqla_tickets import TicketError, TicketPool
from sqla_tickets.aio import in_event_loop
from sqla_tickets.sequence import attached_pools

if TYPE_CHECKING:  # Alembic may be in the middle of its own import
    from alembic.config import Config
    from alembic.runtime.migration import MigrationContext

__all__ = ["find_pools", "option", "pool_named", "pools_in_files", "pools_of"]

_PLACES = (
    "context.configure(ticket_pools=...) in env.py, config.attributes['ticket_pools'], pools attached"
    " to target_metadata, 'ticket_servers' in alembic.ini or in [tool.alembic] of pyproject.toml, or"
    " -x ticket_servers=..."
)


@contextmanager
def pools_of(context: MigrationContext) -> Generator[dict[str, TicketPool]]:
    """The pools of a migration by name; their connections are closed at the end.

    Raises:
        CommandError: none is configured, or a `TicketError` came up in the block.
    """
    try:
        pools = find_pools(context)
        if not pools:
            raise CommandError(
                f"no ticket servers are configured; they are looked for in: {_PLACES}"
            )
        try:
            yield pools
        finally:
            for pool in pools.values():
                _close(pool)
    except TicketError as error:
        raise CommandError(str(error)) from error


def pool_named(pools: Mapping[str, TicketPool], name: str | None) -> TicketPool:
    """The pool of that name; for None the default one, or the only one.

    Raises:
        CommandError: there is none of that name.
    """
    if name is None and "default" not in pools and len(pools) == 1:
        return next(iter(pools.values()))
    try:
        return pools[name or "default"]
    except KeyError:
        there = ", ".join(sorted(pools))
        raise CommandError(
            f"no ticket pool named {name or 'default'!r} is configured (there are: {there}); pools are"
            f" looked for in: {_PLACES}"
        ) from None


def find_pools(context: MigrationContext) -> dict[str, TicketPool]:
    """The pools of a migration by name; empty when none is configured. Connects to nothing."""
    made: dict[str, TicketPool] | None = context.opts.get("_ticket_pools")
    if made is None:
        made = context.opts["_ticket_pools"] = {**_configured(context), **_of_command_line(context)}
    return made


def option(context: MigrationContext, name: str) -> str | None:
    """An option from ``context.configure()``, the command line's ``-x``, or the configuration file."""
    found = context.opts.get(name) or _x_arguments(context).get(name)
    if found is None and context.config is not None:
        found = context.config.get_alembic_option(name)
    return None if found is None else str(found)


def _configured(context: MigrationContext) -> dict[str, TicketPool]:
    config = context.config
    given = context.opts.get("ticket_pools")
    if given is None and config is not None:
        given = config.attributes.get("ticket_pools")
    if given is not None:
        return _made_of(given)
    attached: dict[str, TicketPool] = {}
    for each in _listed(context.opts.get("target_metadata")):
        if isinstance(each, MetaData):
            attached.update(attached_pools(each))
    if attached or config is None:
        return attached
    return pools_in_files(config)


def pools_in_files(config: Config) -> dict[str, TicketPool]:
    """The pools of ``alembic.ini`` and ``pyproject.toml`` by name. Connects to nothing.

    Raises:
        CommandError: a variable of the environment that a server's URL refers to is not set.
    """
    return {name: _pool(name, *settings) for name, settings in _in_files(config)}


def _made_of(given: Any) -> dict[str, TicketPool]:
    """What env.py gives: a pool, pools, a list of servers, or either by name."""
    if isinstance(given, TicketPool):
        return {given.name: given}
    if isinstance(given, Mapping):
        by_name = cast("Mapping[str, Any]", given)
        return {
            name: pool if isinstance(pool, TicketPool) else TicketPool(pool, name=name)
            for name, pool in by_name.items()
        }
    each = _listed(given)
    if all(isinstance(pool, TicketPool) for pool in each):
        return {pool.name: pool for pool in each}
    return {"default": TicketPool(each)}


def _in_files(config: Config) -> Iterator[tuple[str, tuple[object, object]]]:
    """Every pool of ``alembic.ini`` and ``pyproject.toml``: its name, its servers, its stride."""
    servers = config.get_alembic_option("ticket_servers")
    if servers:
        yield "default", (servers, config.get_alembic_option("ticket_stride"))
    for section in config.file_config.sections():
        if section.startswith("ticket_pools."):
            found = config.get_section(section, {})
            yield section.partition(".")[2], (found.get("servers"), found.get("stride"))
    toml = getattr(config, "toml_alembic_config", {}).get("ticket_pools", {})
    for name, found in toml.items():
        arguments = config.toml_args
        urls = [server % arguments for server in _words(found.get("servers"))]
        yield str(name), (urls, found.get("stride"))


def _of_command_line(context: MigrationContext) -> dict[str, TicketPool]:
    """``-x ticket_servers="URL URL"``, and ``-x ticket_servers.media=...`` for the pool ``media``."""
    found: dict[str, TicketPool] = {}
    given = _x_arguments(context)
    for key, value in given.items():
        option, _, name = key.partition(".")
        if option == "ticket_servers":
            stride = given.get(key.replace(option, "ticket_stride", 1))
            found[name or "default"] = _pool(name or "default", value, stride)
    return found


def _x_arguments(context: MigrationContext) -> dict[str, Any]:
    environment = context.environment_context
    return environment.get_x_argument(as_dictionary=True) if environment is not None else {}


def _pool(name: str, servers: object, stride: object) -> TicketPool:
    urls = [_expanded(word) for word in _words(servers)]
    return TicketPool(urls, name=name, stride=int(str(stride)) if stride else None)


def _words(servers: Any) -> list[str]:
    """Servers of a configuration file: a list of its own, or one text with spaces."""
    if isinstance(servers, list):
        return [str(server) for server in _listed(servers)]
    return str(servers or "").split()


def _listed(value: Any) -> list[Any]:
    """A list or a tuple as a list, and anything else as a list of one."""
    return list(cast("list[Any]", value)) if isinstance(value, (list, tuple)) else [value]


def _expanded(text: str) -> str:
    """``text`` with every ``${NAME}`` replaced by the environment variable of that name."""

    def value(match: re.Match[str]) -> str:
        try:
            return os.environ[match[1]]
        except KeyError:
            raise CommandError(
                f"the environment variable {match[1]}, which is part of 'ticket_servers', is not set"
            ) from None

    return re.sub(r"\$\{(\w+)\}", value, text)


def _close(pool: TicketPool) -> None:
    asynchronous = any(server.engine.dialect.is_async for server in pool.servers)
    if not asynchronous or in_event_loop():
        pool.dispose()
