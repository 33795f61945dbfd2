"""The command ``serve``: tickets over HTTP, for programs in any language."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from .. import TicketArgumentError
from ..arguments import BlockBounds
from .config import PoolOptions, find_pool
from .options import COUNT, Failure, pool_options, seconds, sequence_name

if TYPE_CHECKING:
    from ..http import Tokens

TOKENS_VARIABLE = "SQLA_TICKETS_TOKENS"


def bounds(value: object) -> BlockBounds:
    """The size of a block: a number, or two numbers separated by a colon.

    Raises:
        click.BadParameter: it is neither.
    """
    least, colon, most = str(value).partition(":")
    try:
        found = int(least), int(most if colon else least)
    except ValueError:
        found = 0, 0
    if not 1 <= found[0] <= found[1]:
        raise click.BadParameter(f"{value!r} is neither a number of tickets nor LEAST:MOST.")
    return found


@click.command(short_help="Answer HTTP requests for tickets.")
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    metavar="NUMBER",
    default=8080,
    show_default=True,
    help="The port to listen on; 0: a free one.",
)
@click.option(
    "--workers",
    type=COUNT,
    metavar="NUMBER",
    default=1,
    show_default=True,
    help="Processes, each with its own pool.",
)
@click.option(
    "--sequence",
    "sequences",
    multiple=True,
    type=sequence_name,
    metavar="NAME",
    help="A sequence to serve; default: all that sqla-tickets has created.",
)
@click.option(
    "--block",
    type=bounds,
    metavar="LEAST:MOST",
    default="1:10000",
    show_default=True,
    help="How many tickets one draw takes.",
)
@click.option(
    "--max-tickets",
    "most",
    type=click.IntRange(1, 10**9 - 1),
    metavar="NUMBER",
    default=10_000,
    show_default=True,
    help="The most tickets that one request may ask for.",
)
@click.option(
    "--deadline",
    type=seconds,
    metavar="SECONDS",
    default=10.0,
    show_default=True,
    help="How long a request waits for tickets.",
)
@click.option(
    "--tokens",
    "tokens_file",
    metavar="FILE",
    help=f"A file with a token and its sequences on each line.  [env var: {TOKENS_VARIABLE}, with the lines]",
)
@click.option("--no-tokens", is_flag=True, help="Listen on any address, and let everyone draw.")
@click.option("--public-status", is_flag=True, help="Show the status page and metrics to everyone.")
@click.option("--certificate", metavar="FILE", help="TLS: the certificate.")
@click.option("--key", metavar="FILE", help="TLS: its private key.")
@pool_options
def serve(
    pools: PoolOptions,
    as_json: bool,
    host: str,
    port: int,
    workers: int,
    sequences: tuple[str, ...],
    block: BlockBounds,
    most: int,
    deadline: float,
    tokens_file: str | None,
    no_tokens: bool,
    public_status: bool,
    certificate: str | None,
    key: str | None,
) -> None:
    """Answer HTTP requests for tickets: POST /v1/sequences/NAME/tickets?n=100

    The page / shows the status. Ctrl-C or SIGTERM stops the service after the requests in flight.
    """  # noqa: D415  # a URL ends it
    try:
        from ..http import Settings  # noqa: PLC0415  # an extra of its own
        from ..http.server import Listener, run  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise Failure(
            f"sqla-tickets serve needs {error.name}: pip install 'sqla-tickets[http]'"
        ) from error
    if not deadline:
        raise click.BadParameter("it must be above 0", param_hint="--deadline")
    settings = Settings(
        sequences=sequences,
        pool=find_pool(pools.load(), pools.pool).name,
        block=block,
        most=most,
        deadline_seconds=deadline,
        tokens=_tokens(tokens_file),
        is_status_public=public_status,
        workers=workers,
    )
    log = logging.getLogger("sqla_tickets")
    level = "INFO" if log.isEnabledFor(logging.INFO) else "WARNING"
    listener = Listener(host, port, certificate, key, is_open=no_tokens)
    run(pools.load, settings, listener, log_level=level)


def _tokens(file: str | None) -> Tokens:
    """The tokens from a file, or else from the environment, or none.

    Raises:
        TicketArgumentError: they are invalid, or the file cannot be read.
    """
    from ..http import Tokens  # noqa: PLC0415  # an extra of its own

    if file is not None:
        try:
            text = Path(file).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise TicketArgumentError(f"--tokens {file} cannot be read: {error}") from error
        return Tokens.parse(text, f"--tokens {file}")
    given = os.environ.get(TOKENS_VARIABLE)
    return Tokens() if given is None else Tokens.parse(given, TOKENS_VARIABLE)
