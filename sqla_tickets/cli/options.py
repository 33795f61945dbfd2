"""Parts that several commands share: options, types of arguments, and exit codes."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable
from typing import IO, Any, Final, NoReturn, TypeVar

import click
from alembic.util import CommandError
from click.core import ParameterSource
from rich.text import Text

from alembic_ext.configuration import expanded

from .. import TicketArgumentError, TicketError, arguments
from ..draw.access import LARGEST_STRIDE
from ..tables.new_table import largest_ticket
from . import FAILED, output
from .config import PoolOptions, TicketUsageError

FOUND = 1
Command = TypeVar("Command", bound=Callable[..., Any])

#: A number of tickets or servers.
COUNT: Final = click.IntRange(min=1)
#: A stride, or an offset.
STRIDE: Final = click.IntRange(1, LARGEST_STRIDE)
TICKET: Final = click.IntRange(1, largest_ticket(64))
#: A number that a table can be raised above.
ABOVE: Final = click.IntRange(0, largest_ticket(64) - 1)


class _KindType(click.types.StringParamType):
    """A kind of server, which may be another package's."""

    def get_missing_message(self, param: click.Parameter, ctx: click.Context | None) -> str:
        return "Give mysql, mariadb or postgresql."


KIND: Final = _KindType()

#: The user and the password of a URL, which may have an @ or / that should be written %40 or %2F; not ``user:${NAME}``.
_PASSWORD: Final = re.compile(
    r"(?<=://)(?![^\s'\":/@]*:\$\{\w+\}@[^\s'\"@]*(?:[\s'\"]|$))[^\s'\"]*@"
)


def seconds(value: object) -> float:
    """A number of seconds; 0 for none.

    Raises:
        click.BadParameter: it is not a number of seconds.
    """
    try:
        number = float(str(value))
        return arguments.seconds("it", number) if number else 0.0
    except ValueError:
        raise click.BadParameter(
            f"{value!r} is not a number of seconds: expected 0 or more."
        ) from None


def sequence_name(value: object) -> str:
    """The name of a sequence.

    Raises:
        click.BadParameter: the name is invalid.
    """
    try:
        return arguments.name_of_sequence(value)
    except TicketArgumentError as error:
        raise click.BadParameter(f"{error}.") from None


def url(value: object) -> str:
    """A URL, with ``${NAME}`` replaced by environment variables, so that it needs no password.

    Raises:
        click.BadParameter: a variable is not set.
    """
    try:
        return expanded(str(value), "it")
    except CommandError as error:
        raise click.BadParameter(f"{error}.") from None


class Failure(click.ClickException):
    """The command failed."""

    exit_code = FAILED

    def show(self, file: IO[str] | None = None) -> None:
        """Print the message, on a terminal in lines that end with whole words."""
        output.show(Text(f"Error: {self.format_message()}"), is_error=True)


class _InvalidUsage(Failure):
    """The usage is invalid, and no option is to blame alone."""

    exit_code = click.UsageError.exit_code


def exit_with(is_well: bool) -> NoReturn:
    """Exit with the code for "all is well" or "a problem was found"."""
    raise SystemExit(0 if is_well else FOUND)


def without_passwords(text: str) -> str:
    """The text with ``***`` for each password in a URL."""
    return _PASSWORD.sub("***@", text)


def pool_options(command: Command) -> Command:
    """Add the options that name the ticket servers; the command gets one argument, ``pools``."""

    @functools.wraps(command)
    def with_pools(
        config: str | None,
        server: tuple[str, ...],
        stride: int | None,
        pool: str | None,
        as_json: bool,
        **rest: object,
    ) -> object:
        source = click.get_current_context().get_parameter_source("server")
        # --config and --pool override the environment
        if source is ParameterSource.ENVIRONMENT and (config or pool):
            server = ()
        try:
            return command(pools=PoolOptions(config, server, stride, pool), as_json=as_json, **rest)
        except TicketError as error:
            message = without_passwords(str(error))
            failure = _InvalidUsage if isinstance(error, TicketUsageError) else Failure
            if as_json:
                click.echo(json.dumps({"error": message, "kind": type(error).__name__}))
                raise SystemExit(failure.exit_code) from error
            raise failure(message) from error

    for option in (
        click.option("--json", "as_json", is_flag=True, help="Print JSON."),
        click.option("--pool", metavar="NAME", help="The pool, if the configuration has several."),
        click.option(
            "--stride",
            type=STRIDE,
            metavar="NUMBER",
            help="Stride of the --server pool; default: the number of servers.",
        ),
        click.option(
            "--server",
            multiple=True,
            type=url,
            metavar="URL",
            envvar="SQLA_TICKETS_SERVERS",
            show_envvar=True,
            help="A ticket server; repeat the option for each, in the pool's order. In the environment variable,"
            " separate the URLs with spaces; --config and --pool leave it out.",
        ),
        click.option(
            "--config",
            metavar="FILE",
            help="alembic.ini or pyproject.toml.  [env var: ALEMBIC_CONFIG]",
        ),
    ):
        with_pools = option(with_pools)
    return with_pools  # type: ignore[return-value]  # click calls it by keywords


def shard_options(command: Command) -> Command:
    """Add the options that name the application's databases."""
    for option in (
        click.option("--models", metavar="MODULE:NAME", help="A MetaData, or a declarative base."),
        click.option(
            "--column",
            "columns",
            multiple=True,
            metavar="TABLE.COLUMN[=SEQUENCE]",
            help="A column that holds tickets; default: the key of the table with the sequence's name.",
        ),
        click.option(
            "--shard",
            "shards",
            multiple=True,
            type=url,
            metavar="URL",
            envvar="SQLA_TICKETS_SHARDS",
            show_envvar=True,
            help="A database of the application; repeat the option for each. In the environment variable, separate the URLs"
            " with spaces; shards in the --config file come before it. Default: the shards in the configuration.",
        ),
    ):
        command = option(command)
    return command


dry_run_option = click.option("--dry-run", is_flag=True, help="Print the plan and do nothing.")


def change_options(command: Command) -> Command:
    """Add the options of commands that cannot be undone."""
    yes = click.option("--yes", is_flag=True, help="Do not ask.")
    return dry_run_option(yes(command))
