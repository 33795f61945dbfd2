"""The demo's output: colour and a progress bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from sqlalchemy import URL

from audit import Audit
from sqla_tickets import TableStatus

__all__ = ["Screen"]


class Screen:
    """The demo's output, in the order of its methods.

    Args:
        photos: how many the demo inserts.
        stride: how many ticket servers there are.
    """

    def __init__(self, photos: int, stride: int) -> None:
        self._console = Console(highlight=False)
        if not self._console.is_terminal:
            self._console = Console(highlight=False, width=120)
        self._photos, self._stride, self._inserted = photos, stride, 0
        self._progress = _progress(self._console)

    def cast(
        self, tickets: Sequence[URL], shards: Sequence[URL], folder: Path | None, plan: str
    ) -> None:
        """The servers, the shards and the plan."""
        title = f"{self._photos:,} photos on {len(shards)} shards, ids from {len(tickets)} ticket servers"
        self._console.print(f"\n[bold]sqla_tickets[/]  {title}\n")
        grid = Table.grid(padding=(0, 2))
        for offset, url in enumerate(tickets, 1):
            ids = f"[cyan]{ids_of(offset, self._stride)} ids[/]"
            grid.add_row(f"ticket server {offset}", ids, _address(url, folder))
        for n, url in enumerate(shards, 1):
            grid.add_row(f"shard {n}", "", _address(url, folder))
        self._console.print(Padding(grid, (0, 2), expand=False))
        self._console.print(f"\n  [dim]{escape(plan)}[/]\n")

    def done(self, what: str, details: str = "") -> None:
        """A step that went well."""
        aside = f"  [dim]{escape(details)}[/]" if details else ""
        self._console.print(f"[green]✓[/] {what}{aside}", soft_wrap=True)

    # -- while photos are inserted

    @contextmanager
    def inserting(self) -> Iterator[None]:
        """Show the progress, and the first warning that the package logs."""
        logger, handler = logging.getLogger("sqla_tickets"), _FirstWarning(self._console)
        logger.addHandler(handler)
        try:
            with self._progress:
                self._task = self._progress.add_task("photos", total=self._photos)
                yield
        finally:
            logger.removeHandler(handler)

    def advance(self, photos: int) -> None:
        """So many more photos were inserted."""
        before, self._inserted = self._inserted, self._inserted + photos
        self._progress.advance(self._task, photos)
        quarter = 4 * self._inserted // self._photos
        if not self._console.is_terminal and quarter > 4 * before // self._photos:
            self._console.print(f"  {self._inserted:,} of {self._photos:,} photos")

    def gone(self, how: str) -> None:
        """Ticket server 1 failed."""
        self._event("[bold red]✗[/]", f"[bold]ticket server 1 is gone[/] [dim]({how})[/]")

    def back(self) -> None:
        """Ticket server 1 is back."""
        self._event("[bold green]✓[/]", "[bold]ticket server 1 is back[/]")

    def _event(self, sign: str, what: str) -> None:
        self._console.print(f"{sign} after {self._inserted:,} photos {what}")

    # -- the result

    def found(
        self, audits: Sequence[Audit], status: Sequence[TableStatus], shards: Sequence[str]
    ) -> None:
        """The ids of each table, by ticket server and by shard, and their draws."""
        offsets = range(1, self._stride + 1)
        table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="dim")
        table.add_column()
        for head in [
            "ids",
            *(ids_of(o, self._stride) for o in offsets),
            *shards,
            "draws",
            "duplicates",
        ]:
            table.add_column(head, justify="right")
        for found in audits:
            numbers = [found.rows, *(found.residues[o] for o in offsets)]
            numbers += [*(found.shards[s] for s in shards)]
            numbers += [sum(s.draws for s in status if s.sequence == found.table)]
            verdict = f"[bold {'red' if found.duplicates else 'green'}]{found.duplicates:,}[/]"
            table.add_row(found.table, *(f"{n:,}" for n in numbers), verdict)
        self._console.print(Padding(table, (1, 2), expand=False))
        self._verdict(audits, status)

    def _verdict(self, audits: Sequence[Audit], status: Sequence[TableStatus]) -> None:
        ids, twice = sum(a.rows for a in audits), sum(a.duplicates for a in audits)
        draws, failed = sum(s.draws for s in status), sum(s.errors for s in status)
        if twice:
            self.failure(f"{twice:,} of {ids:,} ids were issued twice")
        else:
            self.done(f"[bold]{ids:,} ids from {draws:,} draws, none twice over all shards[/]")
            self.done(
                "no insert failed", f"draws that failed over to another ticket server: {failed}"
            )

    def failure(self, what: str) -> None:
        """The reason of a failure."""
        self._console.print(f"[bold red]✗[/] {escape(what)}", soft_wrap=True)


def ids_of(offset: int, stride: int) -> str:
    """The residue class of one ticket server, in words."""
    return ("odd", "even")[offset - 1] if stride == 2 else f"{offset % stride} mod {stride}"


def _address(url: URL, folder: Path | None) -> str:
    shown = url.render_as_string(hide_password=True)
    if folder is not None and folder in Path(url.database or "").parents:
        shown = f"{folder.name}/{Path(url.database or '').relative_to(folder)}"
    return f"[dim]{escape(shown)}[/]"


def _progress(console: Console) -> Progress:
    return Progress(
        TextColumn("  {task.description}"),
        BarColumn(bar_width=None, complete_style="cyan", finished_style="green"),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        disable=not console.is_terminal,
    )


class _FirstWarning(logging.Handler):
    """Prints one warning: the later ones repeat it."""

    def __init__(self, console: Console) -> None:
        super().__init__(logging.WARNING)
        self._console = console
        self._said = False

    def emit(self, record: logging.LogRecord) -> None:
        if not self._said:
            message = f"  [dim]log: {escape(record.getMessage())}[/]"
            if self._console.is_terminal:
                self._console.print(message, no_wrap=True, overflow="ellipsis")
            else:
                self._console.print(message, soft_wrap=True)
        self._said = True
