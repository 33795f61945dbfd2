"""The pools that a command works on: from the configuration files, or from its options."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path

from alembic.config import Config
from alembic.util import CommandError

from alembic_ext.configuration import pool_named, pools_in_files, shards_in_files

from .. import TicketArgumentError, TicketPool

NOT_CONFIGURED = (
    "no ticket servers are configured: name them with --server URL --server URL, in SQLA_TICKETS_SERVERS (URLs "
    "separated by spaces), or as ticket_servers in alembic.ini or [tool.alembic] of pyproject.toml (--config FILE)"
)


class TicketUsageError(TicketArgumentError):
    """The command line asks for what is not there: invalid usage."""


@dataclass(frozen=True)
class PoolOptions:
    """The options of a command that name its ticket servers.

    Attributes:
        config: ``alembic.ini`` or ``pyproject.toml``; None for the files in the working folder.
        servers: URLs; if given, no file is read. The environment's are not given where ``config`` or ``pool`` is.
        stride: the stride of the pool of these URLs; None for the number of servers.
        pool: the name of the pool; None for the default pool, or the only one.
    """

    config: str | None
    servers: tuple[str, ...]
    stride: int | None
    pool: str | None

    @contextlib.contextmanager
    def all(self) -> Generator[dict[str, TicketPool]]:
        """Every pool by name, closed at the end. Connects to nothing.

        Raises:
            TicketUsageError: none is configured.
            TicketArgumentError: the configuration is invalid, or a driver is async.
        """
        pools = self.load(hedge=False)
        for server in [server for pool in pools.values() for server in pool.servers]:
            server.check_caller()
        try:
            yield pools
        finally:
            for pool in pools.values():
                pool.dispose()

    @contextlib.contextmanager
    def selected(self) -> Generator[list[TicketPool]]:
        """The named pool, or all pools."""
        with self.all() as pools:
            yield [find_pool(pools, self.pool)] if self.pool else list(pools.values())

    @contextlib.contextmanager
    def one(self) -> Generator[TicketPool]:
        """The named pool, the default pool, or the only one."""
        with self.all() as pools:
            yield find_pool(pools, self.pool)

    def load(self, *, hedge: bool | None = None) -> dict[str, TicketPool]:
        """Every pool by name; the caller closes them. Connects to nothing.

        Args:
            hedge: whether the pool of ``servers`` hedges; a single command does not.

        Raises:
            TicketUsageError: none is configured.
            TicketArgumentError: the configuration is invalid.
        """
        try:
            pools = self._load(hedge)
        except CommandError as error:
            raise TicketArgumentError(str(error)) from error
        if not pools:
            raise TicketUsageError(NOT_CONFIGURED)
        return pools

    def shards(self) -> tuple[list[str], str]:
        """The URLs of the application's databases, and the file that has them; none if ``servers`` replace the file.

        Raises:
            TicketArgumentError: the file, or a URL in it, is invalid.
        """
        if self.servers:
            return [], ""
        config = self._file()
        is_in_ini = config.file_config.has_option(config.config_ini_section, "shards")
        try:
            return shards_in_files(config), str(
                config.config_file_name if is_in_ini else config.toml_file_name
            )
        except CommandError as error:
            raise TicketArgumentError(str(error)) from error

    def _load(self, hedge: bool | None) -> dict[str, TicketPool]:
        if self.servers:
            name = self.pool or "default"
            try:
                return {name: TicketPool(self.servers, stride=self.stride, name=name, hedge=hedge)}
            except TicketArgumentError as error:
                raise TicketArgumentError(
                    f"--server, or SQLA_TICKETS_SERVERS, or --stride: {error}"
                ) from None
        return pools_in_files(self._file())

    def _file(self) -> Config:
        """The configuration file.

        Raises:
            TicketArgumentError: there is no such file.
        """
        named = self.config or os.environ.get("ALEMBIC_CONFIG")
        if named and not Path(named).is_file():
            option = "--config" if self.config else "ALEMBIC_CONFIG"
            raise TicketArgumentError(
                f"there is no file {named}: set {option} to the path of alembic.ini or pyproject.toml"
            )
        return read_config(Path(named or "alembic.ini"))


def read_config(file: Path) -> Config:
    """Alembic's configuration in a file; beside ``alembic.ini``, Alembic also reads ``pyproject.toml``."""
    if file.suffix == ".toml":
        return Config(toml_file=file)
    return Config(file, toml_file="pyproject.toml")


def find_pool(pools: dict[str, TicketPool], name: str | None) -> TicketPool:
    """The pool of that name; without a name, the default pool, or the only one.

    Raises:
        TicketUsageError: there is no such pool.
    """
    try:
        return pool_named(pools, name)
    except CommandError as error:
        raise TicketUsageError(str(error)) from error
