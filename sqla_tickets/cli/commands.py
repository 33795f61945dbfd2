"""The commands: each calls one module and prints what it returns.

Exit codes: 0 all is well, or done; 1 something needs an operator; 2 invalid usage; 3 the command failed,
and the message says why.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import NoReturn

import click
from click.core import ParameterSource
from rich.console import Console, RenderableType
from rich.live import Live
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.text import Text

from .. import (
    TicketArgumentError,
    TicketError,
    TicketPool,
    TicketTableMissing,
    TicketWarning,
    __version__,
)
from ..concurrency import time
from ..connect.engines import address_of, shown_address
from ..dialects import LayoutName, Role
from ..maintenance import operations, resize, tombstones
from ..snowflake import numbering
from ..status import measure as status_
from ..status.text import EVERY_SHARD, named
from ..tables.grants import ROLES, grants
from . import audit as audit_
from . import doctor as doctor_
from . import output, plans, project
from .config import PoolOptions, find_pool
from .execution import execute
from .inspection import joined_above
from .options import (
    ABOVE,
    COUNT,
    KIND,
    STRIDE,
    TICKET,
    Failure,
    change_options,
    dry_run_option,
    exit_with,
    pool_options,
    seconds,
    sequence_name,
    shard_options,
    url,
    without_passwords,
)
from .serve import serve
from .shards import NO_SHARDS, Shard, ShardIds, TicketColumn, columns_of
from .waiting import Asked, spinner


class Commands(click.Group):
    """The commands; a message about invalid usage never quotes the password of a URL."""

    def invoke(self, ctx: click.Context) -> object:
        """Run a command.

        Raises:
            click.UsageError: invalid usage.
            Failure: it was interrupted.
        """
        try:
            return super().invoke(ctx)
        except click.UsageError as error:
            raise click.UsageError(without_passwords(error.format_message()), error.ctx) from None
        except (KeyboardInterrupt, click.Abort):
            raise Failure("interrupted") from None


@click.group(
    cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.version_option(__version__, prog_name="sqla-tickets")
@click.option("-v", "--verbose", is_flag=True, help="Show what the library logs.")
def cli(verbose: bool) -> None:
    """Show, check and change ticket servers.

    The servers are configured in alembic.ini or pyproject.toml, as for migrations. There, and in --server, --shard
    and --add, ${NAME} stands for an environment variable, so a command line needs no password.

    Exit codes: 0 all is well; 1 a problem was found; 2 invalid usage; 3 the command failed.
    """
    log = logging.getLogger("sqla_tickets")
    if verbose:
        logging.basicConfig(format="%(levelname)s %(message)s")
        log.setLevel(logging.INFO)
    elif not log.handlers:
        log.addHandler(logging.NullHandler())


@cli.command(short_help="Show every sequence on every server.")
@click.argument("sequences", nargs=-1, type=sequence_name)
@click.option(
    "--over",
    type=seconds,
    metavar="SECONDS",
    default=1.0,
    show_default=True,
    help="How long to measure the rate.",
)
@click.option("--watch", is_flag=True, help="Refresh until Ctrl-C.")
@click.option("--wide", is_flag=True, help="Show every column, even on a narrow terminal.")
@pool_options
def status(
    pools: PoolOptions,
    as_json: bool,
    sequences: tuple[str, ...],
    over: float,
    watch: bool,
    wide: bool,
) -> None:
    """Show every sequence on every server, and which process leases which node number.

    Name SEQUENCES only to show foreign tables, such as Flickr's own: they have no metadata, so the command does not
    find them.
    """
    if watch and as_json:
        raise click.UsageError("give either --watch or --json")
    with pools.selected() as selected:
        out, servers = output.console(is_wide=wide), sum(len(pool.servers) for pool in selected)
        measure = functools.partial(status_.measure, selected, sequences)
        view = functools.partial(
            output.status_view, servers=servers, with_shards=_with_shards(pools)
        )
        if watch:
            with spinner(_asked(selected)):
                measure(over=0)  # shows at once which server is slow
            _refresh(
                out,
                lambda width: view(
                    measure(over=max(over, 0.2)), status_.nodes(selected), width=width, is_live=True
                ),
            )
        with spinner(_asked(selected)):
            found, nodes = measure(over=over), status_.nodes(selected)
    if as_json:
        click.echo(output.as_json(status=map(status_.as_record, found), nodes=map(asdict, nodes)))
    else:
        output.show(view(found, nodes, width=out.width), out)
    exit_with(all(s.is_well for s in found))


def _asked(pools: Iterable[TicketPool], opened: Iterable[Shard] = ()) -> list[Asked]:
    """The servers and shards that a command may wait for."""
    return [*(server for pool in pools for server in pool.servers), *opened]


def _refresh(out: Console, view: Callable[[int], RenderableType]) -> NoReturn:
    with Live(console=out, screen=True, auto_refresh=False) as live:
        try:
            while True:
                live.update(view(out.width), refresh=True)
                time.sleep(0.1)
        except KeyboardInterrupt:
            raise SystemExit(0) from None


@cli.command()
@click.argument("sequences", nargs=-1, type=sequence_name)
@pool_options
def doctor(pools: PoolOptions, as_json: bool, sequences: tuple[str, ...]) -> None:
    """Find causes of repeated ids and failed draws.

    Each finding shows a variable and its value, what can happen, and the fix. The exit code is 0 if there is only
    advice.
    """
    with pools.selected() as selected, spinner(_asked(selected)):
        with_shards = _with_shards(pools)
        found = doctor_.gravest_first(
            finding
            for pool in selected
            for finding in doctor_.examine(pool, sequences, with_shards)
        )
    if as_json:
        click.echo(output.as_json(findings=map(asdict, found)))
    else:
        output.show(output.findings_table(found))
    exit_with(all(finding.severity == "advice" for finding in found))


def _opened(pools: PoolOptions, urls: tuple[str, ...], *, as_json: bool) -> list[Shard]:
    """The application's databases: of the option, of the file that --config names, of their variable, of the file here.

    Says which, unless the option names them. Connects to nothing.
    """
    source = click.get_current_context().get_parameter_source("shards")
    found: Sequence[str] = urls
    where = "SQLA_TICKETS_SHARDS"
    if not urls or (pools.config and source is ParameterSource.ENVIRONMENT and pools.shards()[0]):
        found, where = pools.shards()
    opened = [Shard(each) for each in dict.fromkeys(found)]  # one named twice has each id once
    if opened and source is not ParameterSource.COMMANDLINE:
        named = Text(f"Shards of {where}: {', '.join(map(str, opened))}")
        output.show(named, is_error=as_json)
    return opened


def _with_shards(pools: PoolOptions, urls: tuple[str, ...] = ()) -> str:
    """What advice adds to the name of a command that reads the shards: nothing if they are configured."""
    source = click.get_current_context().get_parameter_source("shards")
    if source is ParameterSource.COMMANDLINE:
        return ", with the same --shard options"
    try:
        are_configured = bool(urls or os.environ.get("SQLA_TICKETS_SHARDS") or pools.shards()[0])
    except TicketArgumentError:  # they are, but not for this user: a variable is not set
        are_configured = True
    return "" if are_configured else EVERY_SHARD


def ids_on_shards(
    pool: TicketPool,
    opened: list[Shard],
    names: Iterable[str],
    columns: tuple[str, ...],
    models: str | None,
    *,
    are_needed: bool,
    with_shards: str = EVERY_SHARD,
) -> ShardIds:
    """The ids of some of a pool's sequences on the shards; empty where no shard was named."""
    if not opened:
        return ShardIds()
    found = columns_of(
        opened, names, named=columns, models=models, pool=pool.name, are_needed=are_needed
    )
    return ShardIds(opened, found, with_shards)


@cli.command(short_help="Read all ids on the shards and find duplicates.")
@click.option(
    "--above",
    type=ABOVE,
    metavar="NUMBER",
    help="Read only ids above this number, such as those after a take-over.",
)
@shard_options
@pool_options
def audit(
    pools: PoolOptions,
    as_json: bool,
    shards: tuple[str, ...],
    columns: tuple[str, ...],
    models: str | None,
    above: int | None,
) -> None:
    """Read every id on all shards, and find duplicates and ids that no ticket server issued.

    Changes nothing. Memory use does not grow with the number of rows.
    """
    with pools.one() as pool:
        opened = _opened(pools, shards, as_json=as_json)
        if not opened:
            raise click.UsageError(NO_SHARDS)
        with spinner(_asked([pool], opened)):
            names = operations.names(pool)
            if not names:
                _check_all_answer(pool)
            wanted = () if columns else names
            where = columns_of(opened, wanted, named=columns, models=models, pool=pool.name)
        with_shards = _with_shards(pools, shards)
        of_sequences: dict[str, list[TicketColumn]] = {}
        for column in where:
            of_sequences.setdefault(column.sequence, []).append(column)
        found = [_audited(pool, opened, each, above, with_shards) for each in of_sequences.values()]
    if not (columns or models):
        found += [audit_.not_read(name) for name in sorted(names - of_sequences.keys())]
    if as_json:
        click.echo(output.as_json(audit=map(asdict, found)))
    else:
        output.show(output.audit_view(found))
    exit_with(not any(report.anomalies for report in found))


def _audited(
    pool: TicketPool,
    shards: list[Shard],
    columns: list[TicketColumn],
    above: int | None,
    with_shards: str,
) -> audit_.Report:
    """Audit one sequence, with a progress bar on a terminal. Ids are read in order, so the last id shows the progress."""
    ends = [bounds for column in columns for shard in shards if (bounds := shard.bounds(column))]
    first, last = min((b[0] for b in ends), default=0), max((b[1] for b in ends), default=0)
    first = first if above is None else max(first, above + 1)
    joined = joined_above(pool, columns[0].sequence)
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
        # the numbers of a growth's gap are not used: they would count as read in a moment
        total = None if first <= joined < last else max(last - first + 1, 1)
        task = bar.add_task(", ".join(map(str, columns)), total=total, rows=0)

        def show(rows: int, seen: int) -> None:
            bar.update(task, completed=seen - first + 1, rows=rows)

        return audit_.audit(pool, shards, columns, show, above, with_shards)


# -- commands that change something


def _named(pool: TicketPool, sequences: tuple[str, ...], *, or_nodes: bool = False) -> list[str]:
    """These sequences, or all; none if the servers have node numbers only, and ``or_nodes`` is set.

    Raises:
        TicketServerError: no server has any, and one does not answer.
        TicketArgumentError: no server has any.
    """
    names = list(sequences) or sorted(operations.names(pool))
    if not names and not (or_nodes and numbering.is_divided(pool.servers)):
        _check_all_answer(pool)
        servers = ", ".join(map(str, pool.servers))
        if operations.names(pool, with_moved=True):
            raise TicketArgumentError(
                f"every sequence on {servers} has moved, or ended: run `sqla-tickets status`, and name the pool that "
                "has it now with --pool"
            )
        raise TicketArgumentError(
            f"no ticket table was found on {servers}: run `sqla-tickets status`, name the sequences, or name another"
            " pool with --pool"
        )
    return names


def _check_all_answer(pool: TicketPool) -> None:
    """Check that every server shows its tables, else nothing is known of what it has.

    Raises:
        TicketServerError: one does not.
    """
    for server in pool.servers:
        server.do("", tombstones.comments)


def _planned(names: Iterable[str], plan: Callable[[str], plans.Plan]) -> list[plans.Plan]:
    """A plan for each sequence. One that cannot be made does not stop the others.

    Raises:
        TicketError: the only plan cannot be made.
    """
    found: list[plans.Plan] = []
    for name in names:
        try:
            found.append(plan(name))
        except TicketError as error:
            found.append(plans.impossible(name, error))
    if len(found) == 1 and found[0].refusal:
        raise found[0].refusal
    return found


@cli.command("next")
@click.argument("sequence", type=sequence_name)
@click.option(
    "-n",
    "count",
    type=COUNT,
    metavar="NUMBER",
    default=1,
    show_default=True,
    help="How many tickets.",
)
@dry_run_option
@pool_options
def next_(pools: PoolOptions, as_json: bool, sequence: str, count: int, dry_run: bool) -> None:
    """Draw tickets and print them. They are used up."""
    with pools.one() as pool:
        try:
            blocks = [] if dry_run else pool.reserve(sequence, count)
        except TicketTableMissing as error:
            raise TicketTableMissing(
                f"no server of the pool {pool.name!r} has a ticket table {sequence!r} that this user can see: check"
                f" the name and the grants. If both are right: sqla-tickets create {named(sequence, pool.name)}"
            ) from error
    if dry_run and not as_json:
        click.echo(f"- draw {count} of {sequence!r}\nNothing was changed (--dry-run).")
    elif as_json:
        listed = [{"first": b[0], "last": b[-1], "step": b.step, "count": len(b)} for b in blocks]
        click.echo(json.dumps({"blocks": listed, "done": not dry_run}))
    else:
        for block in blocks:
            for ticket in block:
                click.echo(ticket)


@cli.command("raise", short_help="Raise sequences above all ids on the shards, or above a number.")
@click.argument("sequences", nargs=-1, type=sequence_name)
@shard_options
@click.option(
    "--above",
    type=ABOVE,
    metavar="NUMBER",
    help="From now on every ticket of SEQUENCES is above this number.",
)
@change_options
@pool_options
def raise_(
    pools: PoolOptions,
    as_json: bool,
    sequences: tuple[str, ...],
    shards: tuple[str, ...],
    columns: tuple[str, ...],
    models: str | None,
    above: int | None,
    dry_run: bool,
    yes: bool,
) -> None:
    """Raise SEQUENCES, or all sequences, above every id on the shards or above a number, and prove it.

    A number is never lowered. The command reads the shards again at the end, and checks that new ids are tickets.
    """
    if above is not None and not sequences:
        raise click.UsageError("--above NUMBER needs sequence names: raise SEQUENCE --above NUMBER")
    with pools.one() as pool:
        opened = _opened(pools, shards, as_json=as_json)
        if above is None and not opened:
            raise click.UsageError(f"give --above NUMBER, or {NO_SHARDS}")
        asked = _asked([pool], opened)
        with spinner(asked):
            names = _named(pool, sequences)
            are_needed = bool(shards) or above is None
            on_shards = ids_on_shards(
                pool,
                opened,
                names,
                columns,
                models,
                are_needed=are_needed,
                with_shards=_with_shards(pools, shards),
            )
            for name in sequences if above is None else ():
                if not on_shards.knows(name):
                    raise TicketArgumentError(on_shards.unknown(name)[0])
            steps = _planned(names, lambda name: plans.raise_(pool, name, above or 0, on_shards))
        execute(steps, asked, dry_run=dry_run, is_confirmed=yes, as_json=as_json)


@cli.command(short_help="Create the tables of sequences on all servers.")
@click.argument("sequences", nargs=-1, required=True, type=sequence_name)
@click.option(
    "--layout",
    type=click.Choice(["replace", "counter"]),
    help="Default: as on other servers, or the server's.",
)
@click.option(
    "--start",
    type=TICKET,
    metavar="NUMBER",
    default=1,
    show_default=True,
    help="The smallest ticket.",
)
@click.option(
    "--bits",
    type=click.Choice(["64", "32"]),
    default="64",
    show_default=True,
    help="The size of the ids.",
)
@dry_run_option
@pool_options
def create(
    pools: PoolOptions,
    as_json: bool,
    sequences: tuple[str, ...],
    layout: LayoutName | None,
    start: int,
    bits: str,
    dry_run: bool,
) -> None:
    """Create the tables of SEQUENCES on all servers, and verify existing ones."""
    with pools.all() as found:
        pool = find_pool(found, pools.pool)
        with spinner(_asked([pool])):
            steps = [
                plans.create(
                    pool,
                    name,
                    layout=layout,
                    start=start,
                    bits=int(bits),
                    with_shards=_with_shards(pools),
                    pools=found.values(),
                )
                for name in sequences
            ]
        execute(steps, _asked([pool]), dry_run=dry_run, as_json=as_json)


@cli.command(short_help="Move a sequence to the servers of another pool.")
@click.argument("sequence", type=sequence_name)
@click.option("--to", "target", required=True, metavar="POOL", help="The name of the other pool.")
@change_options
@pool_options
def move(
    pools: PoolOptions, as_json: bool, sequence: str, target: str, dry_run: bool, yes: bool
) -> None:
    """Move a sequence to the servers of another pool of the configuration, while clients draw."""
    with pools.all() as found:
        here, there = find_pool(found, pools.pool), find_pool(found, target)
        asked = _asked([here, there])
        with spinner(asked):
            plan = plans.move(here, sequence, there)
        execute(
            [plan],
            asked,
            dry_run=dry_run,
            is_confirmed=yes,
            as_json=as_json,
        )


@cli.command(short_help="Raise a restored server above every ticket that it may have issued.")
@click.argument("sequences", nargs=-1, type=sequence_name)
@shard_options
@click.option(
    "--offset",
    type=STRIDE,
    metavar="NUMBER",
    help="Offset of the restored server; default: raise all servers.",
)
@click.option(
    "--margin",
    type=click.IntRange(min=0),
    metavar="TICKETS",
    help="Margin for unrecorded tickets; default: 100,000.",
)
@change_options
@pool_options
def restore(
    pools: PoolOptions,
    as_json: bool,
    sequences: tuple[str, ...],
    shards: tuple[str, ...],
    columns: tuple[str, ...],
    models: str | None,
    offset: int | None,
    margin: int | None,
    dry_run: bool,
    yes: bool,
) -> None:
    """Raise a restored server above every ticket that it may have issued.

    It takes the largest of the peers' high-water marks, the servers' own numbers and the ids on every shard, and
    adds a margin. Run it before clients reach the server; if they already reach it, run it now.
    """
    with pools.one() as pool:
        opened = _opened(pools, shards, as_json=as_json)
        asked = _asked([pool], opened)
        with spinner(asked):
            names = _named(pool, sequences)
            on_shards = ids_on_shards(pool, opened, names, columns, models, are_needed=bool(shards))
            steps = _planned(
                names,
                lambda name: plans.restore(pool, name, on_shards, offset=offset, margin=margin),
            )
        execute(steps, asked, dry_run=dry_run, is_confirmed=yes, must_know=True, as_json=as_json)


@cli.command()
@click.argument("sequences", nargs=-1, type=sequence_name)
@click.option("--add", "joining", multiple=True, type=url, metavar="URL", help="A server to add.")
@click.option(
    "--to-stride",
    type=STRIDE,
    metavar="NUMBER",
    help="The new stride; default: the old one, or twice that.",
)
@click.option(
    "--gap",
    type=TICKET,
    metavar="NUMBERS",
    default=resize.GAP_NUMBERS,
    show_default=True,
    help="How far above the others the new servers begin.",
)
@click.option("--finish", is_flag=True, help="Give the old servers the new stride.")
@click.option(
    "--quiet",
    type=seconds,
    metavar="SECONDS",
    default=60.0,
    show_default=True,
    help="How long to check that no client draws with the old stride.",
)
@shard_options
@change_options
@pool_options
def grow(
    pools: PoolOptions,
    as_json: bool,
    sequences: tuple[str, ...],
    joining: tuple[str, ...],
    to_stride: int | None,
    gap: int,
    finish: bool,
    quiet: float,
    shards: tuple[str, ...],
    columns: tuple[str, ...],
    models: str | None,
    dry_run: bool,
    yes: bool,
) -> None:
    """Add ticket servers while clients draw.

    Run it with --add on the current configuration; the new servers begin above every id on the shards. If the stride
    has no room, the command enlarges it: then give all clients the new configuration, and run the command with
    --finish on that configuration.
    """
    if finish == bool(joining):
        raise click.UsageError("give either --add URL or --finish")
    with contextlib.ExitStack() as open_, pools.one() as pool:
        opened = [] if finish else _opened(pools, shards, as_json=as_json)
        new = pool if finish else open_.enter_context(_grown(pool, joining, to_stride))
        asked = _asked([pool, new], opened)
        with spinner(asked):
            names = _named(pool, sequences, or_nodes=True)
            if finish:
                plan = plans.finish(pool, names, quiet, _with_shards(pools, shards))
            else:
                on_shards = ids_on_shards(
                    pool, opened, names, columns, models, are_needed=bool(shards)
                )
                plan = plans.grow(pool, names, new, gap, on_shards)
        execute([plan], asked, dry_run=dry_run, is_confirmed=yes, as_json=as_json)


def _grown(pool: TicketPool, joining: tuple[str, ...], stride: int | None) -> TicketPool:
    """The pool with the new servers.

    Raises:
        TicketArgumentError: one of them is in the pool already, or is given twice.
    """
    count = len(pool.servers) + len(joining)
    least = pool.stride
    while least < count:
        least *= 2
    urls = [server.engine.url for server in pool.servers]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TicketWarning)
        new = TicketPool([*urls, *joining], stride=stride or least, name=pool.name, hedge=False)
    addresses = [address_of(server.engine) for server in new.servers]
    twice = [n for n in range(len(urls), count) if addresses[n] in addresses[:n]]
    if twice:
        raise TicketArgumentError(
            f"--add names {shown_address(new.servers[twice[0]].engine.url)}, which is in the configuration already, or is "
            "given twice: leave it out. If it has joined, there is nothing to add"
        )
    return new


@cli.command(short_help="Retire the last ticket servers while clients draw.")
@click.argument("sequences", nargs=-1, type=sequence_name)
@click.option(
    "--last",
    type=COUNT,
    metavar="NUMBER",
    help="How many servers at the end of the list to retire; default: 1.",
)
@click.option(
    "--gone",
    type=COUNT,
    metavar="OFFSET",
    help="Instead, retire a server that is gone for good, and that the configuration does not have.",
)
@shard_options
@change_options
@pool_options
def retire(
    pools: PoolOptions,
    as_json: bool,
    sequences: tuple[str, ...],
    last: int | None,
    gone: int | None,
    shards: tuple[str, ...],
    columns: tuple[str, ...],
    models: str | None,
    dry_run: bool,
    yes: bool,
) -> None:
    """Retire the last ticket servers of the configuration while clients draw.

    The other servers are raised above every ticket of the retired ones, and above every id on the shards.
    """
    if last and gone:
        raise click.UsageError("give --last or --gone, not both")
    with pools.one() as pool:
        opened = _opened(pools, shards, as_json=as_json)
        asked = _asked([pool], opened)
        with spinner(asked):
            names = _named(pool, sequences, or_nodes=True)
            on_shards = ids_on_shards(pool, opened, names, columns, models, are_needed=bool(shards))
            if gone is None:
                plan = plans.retire(pool, names, last or 1, on_shards)
            else:
                plan = plans.retire_absent(pool, names, gone, on_shards)
        execute([plan], asked, dry_run=dry_run, is_confirmed=yes, must_know=True, as_json=as_json)


@cli.command("grants", short_help="Print the SQL that grants a user the least privileges.")
@click.argument("role", type=click.Choice(ROLES))
@click.option(
    "--on",
    "kind",
    required=True,
    type=KIND,
    metavar="KIND",
    help="The kind of server: mysql, mariadb, postgresql.",
)
@click.option(
    "--user", help="The user; default: tickets to draw, migrations to migrate, monitor to monitor."
)
@click.option("--database", default="tickets", show_default=True, help="The ticket database.")
@click.option(
    "--host", default="%", show_default=True, help="The user's host, on MySQL and MariaDB."
)
@click.option(
    "--owner", default="migrations", show_default=True, help="Owner of the tables, on PostgreSQL."
)
@click.option("--schema", default="public", show_default=True, help="Schema, on PostgreSQL.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def grants_(
    role: Role,
    kind: str,
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


@cli.command(short_help="Print metrics in Prometheus' text format.")
@click.argument("sequences", nargs=-1, type=sequence_name)
@pool_options
def metrics(pools: PoolOptions, as_json: bool, sequences: tuple[str, ...]) -> None:
    """Print the servers' metrics in Prometheus' text format, for a textfile collector.

    Each process of the application exports its own metrics with sqla_tickets.contrib.prometheus.TicketCollector.
    """
    try:
        from prometheus_client import (  # noqa: PLC0415  # an extra of its own
            CollectorRegistry,
            generate_latest,
        )

        from ..contrib.prometheus import TicketCollector  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise Failure(
            f"sqla-tickets metrics needs {error.name}: pip install 'sqla-tickets[prometheus]'"
        ) from error
    with pools.selected() as selected, spinner(_asked(selected)):
        # first, as it reads the servers' marks of each other
        is_well = all(s.is_well for s in status_.measure(selected, sequences))
        registry = CollectorRegistry()
        collector = TicketCollector(*selected, ask=True, sequences=sequences)
        registry.register(collector)
        text = generate_latest(registry).decode()
    click.echo(json.dumps({"text": text}) if as_json else text, nl=as_json)
    exit_with(is_well)


@cli.command()
@click.option(
    "--config", metavar="FILE", help="alembic.ini or pyproject.toml.  [env var: ALEMBIC_CONFIG]"
)
@click.option(
    "--server",
    "servers",
    multiple=True,
    metavar="URL",
    envvar="SQLA_TICKETS_SERVERS",
    show_envvar=True,
    help="A ticket server; repeat the option for each, in the pool's order.",
)
@click.option(
    "--stride",
    type=STRIDE,
    metavar="NUMBER",
    help="Stride of the pool; default: the number of servers.",
)
@click.option(
    "--shard",
    "shards",
    multiple=True,
    metavar="URL",
    envvar="SQLA_TICKETS_SHARDS",
    show_envvar=True,
    help="A database of the application; repeat the option for each.",
)
@click.option("--models", metavar="MODULE:NAME", help="A MetaData, or a declarative base.")
@change_options
def init(
    config: str | None,
    servers: tuple[str, ...],
    stride: int | None,
    shards: tuple[str, ...],
    models: str | None,
    dry_run: bool,
    yes: bool,
) -> None:
    """Prepare a project's migrations for ticket tables.

    Edits alembic.ini, env.py and script.py.mako, and shows the difference first. Connects to nothing.
    """
    file = Path(config or os.environ.get("ALEMBIC_CONFIG", "alembic.ini"))
    try:
        found = project.changes(file, servers=servers, stride=stride, shards=shards, models=models)
    except TicketError as error:
        raise Failure(without_passwords(str(error))) from error
    if found.files:
        click.echo(without_passwords(found.difference()))
        asks = not (yes or dry_run) and sys.stdin.isatty() and sys.stderr.isatty()
        if dry_run or (asks and not click.confirm("Write this?", err=True)):
            click.echo("Nothing was changed.")
            exit_with(dry_run)
        found.write()
        click.echo(f"Written: {', '.join(path.name for path in found.files)}.")
    else:
        click.echo("Nothing needs to be changed.")
    if found.left:
        click.echo("Still to do:")
        for step in found.left:
            click.echo(output.item(step))
    else:
        click.echo("Next: alembic revision --autogenerate, then alembic upgrade head.")
    exit_with(not found.left)


@cli.command()
def template() -> None:
    """Print the path of a template for alembic init.

    For example: alembic init -t "$(sqla-tickets template)" migrations
    """
    click.echo(project.TEMPLATE)


cli.add_command(serve)
