"""What can be typed, with thin commands: each asks one module and shows what it says.

Exit codes: 0 all is well, or done; 1 something was found that needs somebody; 2 the command line
cannot be meant so; 3 what was asked for could not be done, and the message says why.
"""

from __future__ import annotations

import functools
import json
import logging
import time
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

import click
from rich.console import Console
from rich.live import Live
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from sqla_tickets import TicketError, TicketPool, __version__, moves

from . import audit as audit_
from . import doctor as doctor_
from . import status as status_
from . import views
from .places import Places
from .shards import Shard, TicketColumn, columns_of, open_shards

__all__ = ["cli"]

FOUND, FAILED = 1, 3
Command = TypeVar("Command", bound=Callable[..., Any])


class Failure(click.ClickException):
    """What was asked for could not be done."""

    exit_code = FAILED


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="sqla-tickets")
@click.option("-v", "--verbose", is_flag=True, help="Show what the library logs.")
def cli(verbose: bool) -> None:
    """Look after ticket servers.

    They are found where the migrations find them: in alembic.ini or pyproject.toml, ${VARIABLES} of the
    environment included.

    Exit codes: 0 all is well; 1 something was found; 2 wrong usage; 3 it could not be done.
    """
    log = logging.getLogger("sqla_tickets")
    if verbose:
        logging.basicConfig(format="%(levelname)s %(message)s")
        log.setLevel(logging.INFO)
    elif not log.handlers:
        log.addHandler(logging.NullHandler())


def about_pools(command: Command) -> Command:
    """Give a command the options that say where its servers are, as one argument ``places``."""

    @functools.wraps(command)
    def with_places(
        config: str | None,
        server: tuple[str, ...],
        stride: int | None,
        pool: str | None,
        as_json: bool,
        **rest: object,
    ) -> object:
        places = Places(config, server, stride, pool)
        try:
            return command(places=places, as_json=as_json, **rest)
        except TicketError as error:
            if as_json:
                click.echo(json.dumps({"error": str(error), "kind": type(error).__name__}))
                raise SystemExit(FAILED) from error
            raise Failure(str(error)) from error

    for option in (
        click.option("--json", "as_json", is_flag=True, help="For machines."),
        click.option("--pool", metavar="NAME", help="Which pool, where there are several."),
        click.option("--stride", type=int, help="Of the pool of --server; default: their number."),
        click.option(
            "--server",
            multiple=True,
            metavar="URL",
            envvar="SQLA_TICKETS_SERVERS",
            help="A ticket server, in the pool's order; once for each.",
        ),
        click.option("--config", metavar="FILE", help="alembic.ini or pyproject.toml."),
    ):
        with_places = option(with_places)
    return with_places  # type: ignore[return-value]  # click calls it by keywords


def leave(is_well: bool) -> NoReturn:
    raise SystemExit(0 if is_well else FOUND)


@cli.command()
@click.argument("sequences", nargs=-1)
@click.option("--over", default=1.0, show_default=True, help="Seconds to measure the rate over.")
@click.option("--watch", is_flag=True, help="Show it again and again, until Ctrl-C.")
@about_pools
def status(
    places: Places, as_json: bool, sequences: tuple[str, ...], over: float, watch: bool
) -> None:
    """Show how every server stands in every sequence.

    SEQUENCES are only needed for foreign tables, such as Flickr's own, which have no note to find them by.
    """
    with places.wanted() as pools:
        if watch:
            _watch(lambda: status_.standings(pools, sequences, over=max(over, 0.2)))
        found = status_.standings(pools, sequences, over=over)
    if as_json:
        click.echo(views.as_json("status", found))
    else:
        views.console().print(views.status_table(found))
    leave(all(s.up for s in found))


def _watch(look: Callable[[], list[status_.Standing]]) -> NoReturn:
    with Live(console=views.console(), screen=True, auto_refresh=False) as live:
        try:
            while True:
                live.update(views.status_table(look()), refresh=True)
                time.sleep(0.1)
        except KeyboardInterrupt:
            raise SystemExit(0) from None


@cli.command()
@click.argument("sequences", nargs=-1)
@about_pools
def doctor(places: Places, as_json: bool, sequences: tuple[str, ...]) -> None:
    """Look for everything that can make ids repeat, or drawing stop.

    Each finding has its variable, why it matters, and the fix. Advice alone leaves the exit code 0.
    """
    with places.wanted() as pools:
        found = [finding for pool in pools for finding in doctor_.examine(pool, sequences)]
    if as_json:
        click.echo(views.as_json("findings", found))
    else:
        views.console().print(views.findings_table(found))
    leave(all(finding.severity == "advice" for finding in found))


def about_shards(command: Command) -> Command:
    """Give a command the options that say where the application's databases are."""
    for option in (
        click.option("--models", metavar="MODULE:NAME", help="A MetaData, or a declarative base."),
        click.option(
            "--column",
            "columns",
            multiple=True,
            metavar="TABLE.COLUMN[=SEQUENCE]",
            help="A column that holds tickets; default: the key of the table named as the sequence.",
        ),
        click.option(
            "--shard",
            "shards",
            multiple=True,
            metavar="URL",
            envvar="SQLA_TICKETS_SHARDS",
            help="A database of the application; once for each.",
        ),
    ):
        command = option(command)
    return command


@cli.command()
@about_shards
@about_pools
def audit(
    places: Places,
    as_json: bool,
    shards: tuple[str, ...],
    columns: tuple[str, ...],
    models: str | None,
) -> None:
    """Read every id on all shards: is one there twice, or from elsewhere than a ticket server?

    Changes nothing, and needs little memory, however many rows there are.
    """
    with places.one() as pool:
        opened = open_shards(shards)
        found = [
            _audited(pool, opened, column)
            for column in columns_of(opened, moves.names(pool), named=columns, models=models)
        ]
    if as_json:
        click.echo(views.as_json("audit", found))
    else:
        views.console().print(views.audit_view(found))
    leave(not any(report.anomalies for report in found))


def _audited(pool: TicketPool, shards: list[Shard], column: TicketColumn) -> audit_.Report:
    shown = TextColumn("{task.description} {task.completed:,} ids"), TimeElapsedColumn()
    stderr = Console(stderr=True)
    with Progress(
        SpinnerColumn(), *shown, console=stderr, transient=True, disable=not stderr.is_terminal
    ) as bar:
        task = bar.add_task(str(column), total=None)
        return audit_.audit(
            pool, shards, column, lambda rows, last: bar.update(task, completed=rows)
        )
