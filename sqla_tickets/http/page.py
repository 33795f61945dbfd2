"""The status page: the words of ``sqla-tickets status`` in a template, which escapes all values."""

from __future__ import annotations

import datetime as dt
import functools
import itertools
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from starlette.responses import HTMLResponse, Response

from .. import __version__
from ..maintenance.status import TableStatus
from ..pool import TicketPool
from ..status.measure import runs_out
from ..status.text import alike, few_of, label_of, location_of, number, problems, verdict

#: How often a browser loads it again.
REFRESH_SECONDS: Final = 5
_HEADERS: Final = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class _Row(NamedTuple):
    """A server of a sequence, in words."""

    server: str
    offset: str
    state: str
    last: str
    rate: str
    left: str
    end: str


def response(pool: TicketPool, statuses: Sequence[TableStatus]) -> Response:
    """The page.

    Args:
        pool: the pool that draws.
        statuses: the status of every sequence on every server.
    """
    text = _template().render(
        refresh=REFRESH_SECONDS,
        verdict=verdict(statuses, len(pool.servers)),
        problems=[(problem, few_of(others)) for problem, others in alike(problems(statuses))],
        sequences=list(_sequences(pool, statuses)),
        now=dt.datetime.now(dt.timezone.utc).isoformat(" ", "seconds").replace("+00:00", " UTC"),
        version=__version__,
    )
    return HTMLResponse(text, headers=_HEADERS)


def _sequences(
    pool: TicketPool, statuses: Sequence[TableStatus]
) -> Iterator[tuple[str, str, str, list[_Row]]]:
    """Each sequence: its name, its rate, how many tickets are buffered here, and its servers."""
    named = [s for s in statuses if s.sequence]
    for name, group in itertools.groupby(named, label_of):
        records = list(group)
        rates = [s.rate for s in records if s.rate is not None]
        yield (
            name,
            number(sum(rates)) if rates else "-",
            number(pool.buffered(records[0].sequence)),
            list(map(_row, records)),
        )


def _row(s: TableStatus) -> _Row:
    end = runs_out(s)
    return _Row(
        server=location_of(s),
        offset=f"{s.offset} of {s.stride}",
        state=s.state,
        last="-" if s.last_ticket is None else f"{s.last_ticket:,}",
        rate=number(s.rate),
        left=number(s.capacity_left),
        end=end.isoformat() if end else "-",
    )


@functools.cache
def _template() -> Template:
    loader = PackageLoader("sqla_tickets.http", "")
    environment = Environment(loader=loader, autoescape=True, undefined=StrictUndefined)
    return environment.get_template("page.html")
