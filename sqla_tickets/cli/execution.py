"""Runs plans: shows their steps, asks for confirmation, makes the changes, and prints the proof and the next steps."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import click
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from .. import TicketError
from ..status.text import few_of
from . import FAILED, output
from .config import TicketUsageError
from .options import FOUND, without_passwords
from .plans import PartlyDone, Plan
from .shards import NOT_KNOWN
from .waiting import Asked, spinner

#: The last step when a part is done: what follows is true only when all is.
REPEAT: Final = "repair what is not done, as said above, then run the same command again"


@dataclass
class _Outcome:
    """The results of plans.

    Attributes:
        proofs: the guarantees from now on.
        failures: why plans failed, or parts of them, by the plan's sequences.
        idle: the plans of which nothing was done.
    """

    proofs: list[str] = field(default_factory=list[str])
    failures: list[tuple[str, TicketError]] = field(default_factory=list[tuple[str, TicketError]])
    idle: list[Plan] = field(default_factory=list[Plan])


def execute(
    plans: Sequence[Plan],
    asked: Iterable[Asked],
    *,
    dry_run: bool = False,
    is_confirmed: bool = True,
    must_know: bool = False,
    as_json: bool,
) -> None:
    """Show plans, execute them unless this is a dry run, and print the proof.

    A plan that fails does not stop those that come after it.

    Args:
        plans: the plans.
        asked: the servers and shards that may be waited for.
        dry_run: whether the plans are only shown.
        is_confirmed: whether to skip the question, which is also skipped without a terminal. If nothing can be done,
            it is not asked, and nothing is tried.
        must_know: whether a plan that has something NOT KNOWN is not executed without a question or a confirmation.
        as_json: whether to print the result as JSON; the plan and the question then go to stderr.

    Raises:
        TicketUsageError: something is NOT KNOWN, and nobody can be asked.
        TicketError: the only plan failed completely.
    """
    is_seen = sys.stderr.isatty() or sys.stdout.isatty()
    asks = not (dry_run or is_confirmed) and sys.stdin.isatty() and is_seen
    is_short = output.console(is_error=as_json).is_terminal
    refuses = (
        must_know
        and not (asks or dry_run or is_confirmed)
        and any(line.startswith(NOT_KNOWN) for p in plans if p.is_possible for line in p.lines)
    )
    if asks or refuses or not as_json:
        output.show(_steps(plans, is_short=is_short), is_error=as_json)
    if refuses:
        raise TicketUsageError(
            f"nothing was changed: the plan says {NOT_KNOWN}, and without a terminal nobody can be asked. Give what is"
            " missing, or add --yes to go on without it"
        )
    if asks and not any(plan.is_possible for plan in plans):
        click.echo("Nothing was changed, as nothing can be done.", err=as_json)
        repairs = _next_steps(plans, _Outcome(idle=list(plans)))
        output.show(_result([], [], repairs), is_error=as_json)
        raise SystemExit(FAILED)
    if asks and not _is_agreed(plans):
        click.echo("Nothing was changed.", err=as_json)
        raise SystemExit(FOUND)
    with spinner(asked):
        done = _Outcome() if dry_run else _carry_out(plans)
    following = _next_steps(plans, done)
    failures = [f"{names}: {without_passwords(str(error))}" for names, error in done.failures]
    if as_json:
        shown = {
            "plan": [line for plan in plans for line in plan.lines],
            "done": not (dry_run or failures),
            "proof": None if dry_run else "; ".join(done.proofs),
            "not_done": failures,
            "next": [] if dry_run else following,
        }
        click.echo(json.dumps(shown, indent=2))
    elif dry_run:
        click.echo("Nothing was changed (--dry-run).")
    else:
        proofs = _by_sequence(plans, done.proofs, is_short=is_short)
        output.show(_result(proofs, failures, following))
    if failures:
        raise SystemExit(FAILED)
    if dry_run and not all(plan.is_complete for plan in plans):
        raise SystemExit(FOUND)


def _next_steps(plans: Sequence[Plan], done: _Outcome) -> list[str]:
    """The operator's next steps: the repairs; and if everything is done, what follows.

    A step that differs only in the sequence's name comes once.
    """
    steps = [(plan, step) for plan in plans for step in plan.repairs]
    if not done.failures:
        steps += [
            (plan, step) for plan in plans if plan not in done.idle for step in plan.following
        ]
    named = [(next(iter(plan.steps), ""), [step]) for plan, step in steps]
    return [
        f"{_sentence(step)} The same for {few_of(others)}" if others and name in step else step
        for name, (step,), others in _alike(named, is_short=True)
    ] + [REPEAT] * bool(done.failures and len(done.idle) < len(plans))


def _is_agreed(plans: Iterable[Plan]) -> bool:
    """Ask on the output that the user sees; `input` would ask on stderr only."""
    warning = "" if all(plan.can_be_undone for plan in plans) else " It cannot be undone."
    click.echo(f"Do this?{warning} [y/N] ", nl=False, err=sys.stderr.isatty())
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _carry_out(plans: Sequence[Plan]) -> _Outcome:
    """Run the plans.

    Raises:
        TicketError: the only plan failed completely, or the user interrupted them.
    """
    outcome = _Outcome()
    for plan in plans:
        names = ", ".join(filter(None, plan.steps))
        try:
            outcome.proofs += plan.run()
        except PartlyDone as error:
            outcome.proofs += filter(None, [error.proof])
            outcome.failures.append((names, error))
            outcome.idle += [] if error.proof else [plan]
        except KeyboardInterrupt:
            raise TicketError(
                "interrupted. Some steps may be done, and draws may fail until the others are: run the same command"
                " again, which does the remaining steps"
            ) from None
        except TicketError as error:
            if len(plans) == 1:
                raise
            outcome.failures.append((names, error))
            outcome.idle.append(plan)
    return outcome


#: A separate number, not part of an address or an offset.
_NUMBER: Final = re.compile(r"(?<![\w.:-])(?<!offset )\d+(?!\w|[.:]\w)")


def _alike(
    parts: Iterable[tuple[str, Sequence[str]]], *, is_short: bool
) -> Iterator[tuple[str, Sequence[str], list[str]]]:
    """The lines of each sequence, with the other sequences whose lines differ only in names and numbers.

    Args:
        parts: the sequences, each with its lines.
        is_short: whether similar lines are shown once; else no sequence has others.
    """
    groups: dict[tuple[str, ...], list[tuple[str, Sequence[str]]]] = {}
    for name, lines in parts:
        own = re.compile(rf"\b{re.escape(name)}\b" if name else "(?!)")
        what = tuple(_NUMBER.sub("", own.sub("", line)) for line in lines)
        groups.setdefault(what if is_short else (name, *lines), []).append((name, lines))
    for (name, lines), *others in groups.values():
        yield name, lines, [other for other, _ in others]


def _steps(plans: Sequence[Plan], *, is_short: bool) -> RenderableType:
    """The steps under the names of their sequences; on a terminal, similar ones once."""
    parts: list[RenderableType] = []
    steps = [(name, lines) for plan in plans for name, lines in plan.steps.items() if lines]
    alike = list(_alike(steps, is_short=is_short))
    for name, lines, others in alike:
        parts += [Text(f"{name or 'all sequences'}:", "bold"), _list("-", lines)]
        if others:
            parts.append(Text(f"The same steps, with other numbers, for {', '.join(others)}."))
    if len(alike) < len(steps):
        parts.append(Text("To see all steps: --dry-run | less", "dim"))
    return Group(*parts)


def _by_sequence(plans: Sequence[Plan], proofs: Sequence[str], *, is_short: bool) -> list[str]:
    """The proofs; on a terminal, similar ones once."""
    names = [name for plan in plans for name in plan.steps if name]
    named = [
        (next((name for name in names if repr(name) in proof), ""), [proof]) for proof in proofs
    ]
    return [
        f"{proof}. The same, with other numbers, for {few_of(others)}" if others else proof
        for _, (proof,), others in _alike(named, is_short=is_short)
    ]


def _result(
    proofs: Sequence[str], failures: Sequence[str], following: Sequence[str]
) -> RenderableType:
    parts = [
        (Text("Done:", "green"), proofs),
        (Text("NOT DONE:", "bold red"), failures),
        (Text("Next:", "bold"), following),
    ]
    return Group(*(_list(title, map(_sentence, lines)) for title, lines in parts if lines))


def _sentence(text: str) -> str:
    return text if text.endswith((".", "?")) else f"{text}."


def _list(label: str | Text, lines: Iterable[str]) -> Table:
    """Lines wrapped at words, each next to its label."""
    table = Table.grid(padding=(0, 1, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for line in lines:
        table.add_row(label, Text(line))
    return table
