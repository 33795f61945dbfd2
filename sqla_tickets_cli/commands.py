"""What can be typed, with thin commands: each asks one module and shows what it says.

Exit codes: 0 all is well, or done; 1 something was found that needs somebody; 2 the command line
cannot be meant so; 3 what was asked for could not be done, and the message says why.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import time
from collections.abc import Callable, Iterable
from typing import Any, NoReturn, TypeVar

import click
from rich.console import Console, RenderableType
from rich.live import Live
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from sqla_tickets import TicketError, TicketPool, __version__, growth, moves
from sqla_tickets.grants import KINDS, ROLES, Kind, Role, grants
from sqla_tickets.note import LayoutName

from . import audit as audit_
from . import doctor as doctor_
from . import operations, views
from . import status as status_
from .places import Places, pool_of
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
    """Show how every server stands in every sequence, and which process leases which node number.

    SEQUENCES are only needed for foreign tables, such as Flickr's own, which have no note to find them by.
    """
    with places.wanted() as pools:
        if watch:
            _watch(lambda: views.status_view(*look(pools, sequences, max(over, 0.2))))
        found, nodes = look(pools, sequences, over)
    if as_json:
        click.echo(views.as_json(status=found, nodes=nodes))
    else:
        views.console().print(views.status_view(found, nodes))
    leave(all(s.is_well for s in found))


def look(
    pools: list[TicketPool], sequences: Iterable[str], over: float
) -> tuple[list[status_.Standing], list[status_.Node]]:
    return status_.standings(pools, sequences, over=over), status_.nodes(pools)


def _watch(view: Callable[[], RenderableType]) -> NoReturn:
    with Live(console=views.console(), screen=True, auto_refresh=False) as live:
        try:
            while True:
                live.update(view(), refresh=True)
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
        click.echo(views.as_json(findings=found))
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
        opened, names = open_shards(shards), moves.names(pool)
        where = columns_of(opened, names, named=columns, models=models)
        found = [_audited(pool, opened, column) for column in where]
    if not (columns or models):
        found += [audit_.not_read(name) for name in sorted(names - {c.sequence for c in where})]
    if as_json:
        click.echo(views.as_json(audit=found))
    else:
        views.console().print(views.audit_view(found))
    leave(not any(report.anomalies for report in found))


def _audited(pool: TicketPool, shards: list[Shard], column: TicketColumn) -> audit_.Report:
    """Audit one column, and show on a terminal how far it is: by the ids, which are read in order."""
    ends = [bounds for shard in shards if (bounds := shard.bounds(column))]
    first, last = min((b[0] for b in ends), default=0), max((b[1] for b in ends), default=0)
    stderr = Console(stderr=True)
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[rows]:,} ids"),
        TimeRemainingColumn(elapsed_when_finished=True),
        console=stderr,
        transient=True,
        disable=not stderr.is_terminal,
    ) as bar:
        task = bar.add_task(str(column), total=last - first + 1, rows=0)

        def show(rows: int, seen: int) -> None:
            bar.update(task, completed=seen - first + 1, rows=rows)

        return audit_.audit(pool, shards, column, show)


# -- what changes something


def carried_out(plan: operations.Plan, *, dry_run: bool, as_json: bool) -> None:
    """Show a plan, do it unless it is only to be shown, and show the proof."""
    if not as_json:
        for line in plan.words:
            click.echo(f"- {line}")
    proof = None if dry_run else plan.run()
    if as_json:
        click.echo(
            json.dumps({"plan": list(plan.words), "done": not dry_run, "proof": proof}, indent=2)
        )
    else:
        click.echo("Nothing was done (--dry-run)." if dry_run else f"Done: {proof}.")


dry = click.option("--dry-run", is_flag=True, help="Show the plan, and do nothing.")


@cli.command("next")
@click.argument("sequence")
@click.option("-n", "count", default=1, show_default=True, help="How many.")
@dry
@about_pools
def next_(places: Places, as_json: bool, sequence: str, count: int, dry_run: bool) -> None:
    """Draw tickets, which are used up by that, and print them."""
    with places.one() as pool:
        blocks = [] if dry_run else pool.reserve(sequence, count)
    if dry_run and not as_json:
        click.echo(f"- draw {count} of {sequence!r}\nNothing was done (--dry-run).")
    elif as_json:
        listed = [{"first": b[0], "last": b[-1], "step": b.step, "count": len(b)} for b in blocks]
        click.echo(json.dumps({"blocks": listed, "done": not dry_run}))
    else:
        for block in blocks:
            for ticket in block:
                click.echo(ticket)


@cli.command("raise")
@click.argument("sequence")
@click.option("--above", type=int, required=True, help="No ticket from now on is this or below.")
@dry
@about_pools
def raise_(places: Places, as_json: bool, sequence: str, above: int, dry_run: bool) -> None:
    """Raise a sequence on all servers; a number is never lowered."""
    with places.one() as pool:
        plan = operations.raise_(pool, sequence, above)
        carried_out(plan, dry_run=dry_run, as_json=as_json)


@cli.command()
@click.argument("sequence")
@click.option("--layout", type=click.Choice(["replace", "counter"]), help="Default: the server's.")
@click.option("--start", default=1, show_default=True, help="No ticket is below.")
@click.option("--bits", type=click.Choice(["64", "32"]), default="64", show_default=True)
@dry
@about_pools
def create(
    places: Places,
    as_json: bool,
    sequence: str,
    layout: LayoutName | None,
    start: int,
    bits: str,
    dry_run: bool,
) -> None:
    """Create a sequence's tables on all servers; those that are there are verified."""
    with places.one() as pool:
        plan = operations.create(pool, sequence, layout=layout, start=start, bits=int(bits))
        carried_out(plan, dry_run=dry_run, as_json=as_json)


@cli.command()
@click.argument("sequence")
@click.option("--to", "target", required=True, metavar="POOL", help="The name of the other pool.")
@dry
@about_pools
def move(places: Places, as_json: bool, sequence: str, target: str, dry_run: bool) -> None:
    """Move a sequence to the servers of another pool of the configuration, while clients draw."""
    with places.all() as pools:
        plan = operations.move(pool_of(pools, places.pool), sequence, pool_of(pools, target))
        carried_out(plan, dry_run=dry_run, as_json=as_json)


@cli.command()
@click.argument("sequences", nargs=-1)
@about_shards
@click.option("--offset", type=int, help="Of the server that came back; default: raise all.")
@click.option("--margin", default=operations.DEFAULT_MARGIN, show_default=True)
@dry
@about_pools
def restore(
    places: Places,
    as_json: bool,
    sequences: tuple[str, ...],
    shards: tuple[str, ...],
    columns: tuple[str, ...],
    models: str | None,
    offset: int | None,
    margin: int,
    dry_run: bool,
) -> None:
    """Raise a server that came back from a backup above whatever it may have issued.

    That is the largest of: its peers' marks, their own numbers, the ids on every --shard; and a margin. Do
    it before any client is let in.
    """
    with places.one() as pool:
        opened = open_shards(shards) if shards else []
        names = sequences or sorted(moves.names(pool))
        found = columns_of(opened, names, named=columns, models=models) if opened else []
        plans = [
            operations.restore(
                pool,
                name,
                opened,
                [column for column in found if column.sequence == name],
                offset=offset,
                margin=margin,
            )
            for name in names
        ]
        carried_out(all_of(plans), dry_run=dry_run, as_json=as_json)


def all_of(plans: list[operations.Plan]) -> operations.Plan:
    """Several plans as one."""
    words = [line for plan in plans for line in plan.words]
    return operations.Plan(words, lambda: "; ".join(plan.run() for plan in plans))


@cli.command()
@click.argument("sequences", nargs=-1)
@click.option("--add", "joining", multiple=True, metavar="URL", help="A server that joins.")
@click.option("--to-stride", type=int, help="The new stride; default: the old one, or its double.")
@click.option("--gap", default=growth.GAP, show_default=True, help="How far above they begin.")
@click.option("--finish", is_flag=True, help="Give the old servers the new stride.")
@click.option("--quiet", default=60.0, show_default=True, help="Seconds without an old client.")
@dry
@about_pools
def grow(
    places: Places,
    as_json: bool,
    sequences: tuple[str, ...],
    joining: tuple[str, ...],
    to_stride: int | None,
    gap: int,
    finish: bool,
    quiet: float,
    dry_run: bool,
) -> None:
    """Let ticket servers join, while clients draw.

    With --add, on the configuration as it is. Where the stride has no room it becomes larger: give all clients
    the new configuration then, and run this once more with --finish, on the new configuration.
    """
    if finish == bool(joining):
        raise click.UsageError("give either --add URL or --finish")
    with contextlib.ExitStack() as open_, places.one() as pool:
        if finish:
            names = list(sequences) or sorted(moves.names(pool))
            plan = operations.widen(pool, names, quiet)
        else:
            names = list(sequences) or sorted(moves.names(pool))
            new = open_.enter_context(_grown(pool, joining, to_stride))
            plan = operations.grow(pool, names, new, gap)
        carried_out(plan, dry_run=dry_run, as_json=as_json)


def _grown(pool: TicketPool, joining: tuple[str, ...], stride: int | None) -> TicketPool:
    """The pool as it will be."""
    count = len(pool.servers) + len(joining)
    least = pool.stride
    while least < count:
        least *= 2
    urls = [server.engine.url for server in pool.servers]
    return TicketPool([*urls, *joining], stride=stride or least, name=pool.name, hedge=False)


@cli.command()
@click.argument("sequences", nargs=-1)
@click.option("--last", default=1, show_default=True, help="How many of the last servers go.")
@dry
@about_pools
def retire(
    places: Places, as_json: bool, sequences: tuple[str, ...], last: int, dry_run: bool
) -> None:
    """Let the last ticket servers of the configuration go, while clients draw."""
    with places.one() as pool:
        names = list(sequences) or sorted(moves.names(pool))
        plan = operations.retire(pool, names, last)
        carried_out(plan, dry_run=dry_run, as_json=as_json)


@cli.command("grants")
@click.argument("role", type=click.Choice(ROLES))
@click.option("--on", "kind", type=click.Choice(KINDS), required=True, help="The kind of server.")
@click.option("--user", help="Who gets them; default: tickets, migrations, monitor.")
@click.option("--database", default="tickets", show_default=True, help="The ticket database.")
@click.option("--host", default="%", show_default=True, help="Whence, on MySQL and MariaDB.")
@click.option("--owner", default="migrations", show_default=True, help="Of tables, on PostgreSQL.")
@click.option("--schema", default="public", show_default=True, help="On PostgreSQL.")
@click.option("--json", "as_json", is_flag=True, help="For machines.")
def grants_(
    role: Role,
    kind: Kind,
    user: str | None,
    database: str,
    host: str,
    owner: str,
    schema: str,
    as_json: bool,
) -> None:
    """Print the SQL that gives a user the least privileges to draw, to migrate, or to monitor.

    Connects to nothing.
    """
    user = user or {"draw": "tickets", "migrate": "migrations", "monitor": "monitor"}[role]
    try:
        found = grants(
            kind, role, user=user, database=database, host=host, owner=owner, schema=schema
        )
    except TicketError as error:
        raise click.UsageError(str(error)) from error
    click.echo(json.dumps({"grants": found}) if as_json else ";\n".join(found) + ";")


@cli.command()
@click.argument("sequences", nargs=-1)
@about_pools
def metrics(places: Places, as_json: bool, sequences: tuple[str, ...]) -> None:
    """Print what the servers know in Prometheus' text format, for a textfile collector.

    What each process of the application sees it tells itself: sqla_tickets.metrics.TicketCollector.
    """
    try:
        from prometheus_client import (  # noqa: PLC0415  # an extra of its own
            CollectorRegistry,
            generate_latest,
        )

        from sqla_tickets.metrics import TicketCollector  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise Failure(
            f"metrics need {error.name}: pip install 'sqla-tickets[prometheus]'"
        ) from error
    with places.wanted() as pools:
        registry = CollectorRegistry()
        collector = TicketCollector(*pools, ask=True, sequences=sequences)
        registry.register(collector)
        text = generate_latest(registry).decode()
        is_well = all(s.is_well for s in status_.standings(pools, sequences))
    click.echo(json.dumps({"text": text}) if as_json else text, nl=as_json)
    leave(is_well)
