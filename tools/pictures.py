"""Draws the handbook's pictures of flush, fail-over, move and growth from real runs: `make screenshots`.

Starts MariaDB servers, does to them what a picture shows while a client draws, and writes
`docs/pictures/*.svg`, and their words into the pages that show them. Only the architecture is drawn, and has no times.

    python tools/pictures.py [FOLDER [NAME ...]]
"""

from __future__ import annotations

import contextlib
import math
import re
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from sqlalchemy import URL, BigInteger, MetaData, String, create_engine, event
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from sqla_tickets import TicketPool, TicketSequence
from sqla_tickets.events import Draw
from tests.support.command_line import options, run_cli
from tests.support.servers import MariaDB, ServerRegistry
from tests.support.themes import BOX, COLOURS, INK, LINE, PAPER, RED, SMALL_INK, save, themed, use

DOCS: Final = Path(__file__).parents[1] / "docs"
FOLDER: Final = Path(sys.argv[1]) if sys.argv[1:] else DOCS / "pictures"
#: Between two draws of a client, and how long a run goes on before and after what it shows.
PAUSE, QUIET = 0.02, 1.0
GAP: Final = 10**9


@dataclass
class Drawn:
    """One ticket: when a client asked for it, when it came, and how the client is configured."""

    begin: float
    end: float
    ticket: int
    is_new: bool = False

    @property
    def wait(self) -> float:
        return 1000 * (self.end - self.begin)


@dataclass
class Run:
    """What happened in seconds from its beginning."""

    began: float = field(default_factory=time.perf_counter)
    drawn: list[Drawn] = field(default_factory=list[Drawn])
    #: What was done from when to when.
    spans: list[tuple[float, float, str]] = field(default_factory=list[tuple[float, float, str]])
    #: When a client got another configuration.
    changes: list[float] = field(default_factory=list[float])

    @property
    def now(self) -> float:
        return time.perf_counter() - self.began

    @contextlib.contextmanager
    def span(self, what: str) -> Iterator[None]:
        begin = self.now
        yield
        self.spans.append((begin, self.now, what))

    @contextlib.contextmanager
    def client(
        self, pool: Callable[[], TicketPool], *, old: TicketPool | None = None
    ) -> Iterator[None]:
        """Draw one ticket after the other from the pool of the moment."""
        end = threading.Event()
        failed: list[BaseException] = []

        def draw() -> None:
            try:
                while not end.wait(PAUSE):
                    now, begin = pool(), self.now
                    ticket = now.next_id("photos")
                    self.drawn.append(Drawn(begin, self.now, ticket, old not in (None, now)))
            except BaseException as error:  # noqa: BLE001  # raised below
                failed.append(error)

        thread = threading.Thread(target=draw)
        thread.start()
        try:
            yield
        finally:
            end.set()
            thread.join()
            for error in failed:
                raise error

    def slowest(self, begin: float, end: float) -> Drawn:
        return max((d for d in self.drawn if begin <= d.begin <= end), key=lambda d: d.wait)


def databases(servers: Sequence[MariaDB], name: str) -> list[URL]:
    for server in servers:
        server.create_database(name)
    return [server.url(name) for server in servers]


# -- the runs


class Base(DeclarativeBase):
    pass


class Photo(Base):
    __tablename__ = "photos"
    id: Mapped[int] = mapped_column(BigInteger, TicketSequence(), primary_key=True)
    title: Mapped[str] = mapped_column(String(100))


def flush(registry: ServerRegistry) -> str:
    """Two flushes of a hundred rows, on connections that are open already: the median of 31 such pairs."""
    urls = databases([registry.mariadb(n) for n in range(2)], "flush")
    (shard_url,) = databases([registry.mariadb(2)], "flush")
    bars: list[tuple[str, float, float, str]] = []
    shard = create_engine(shard_url)
    Base.metadata.create_all(shard)
    run = Run()

    def drawn(draw: Draw) -> None:
        ids = [ticket for block in draw.blocks for ticket in block]
        what = f"{len(ids)} ids: {ids[0]}, {ids[1]} … {ids[-1]}"
        bars.append((f"ticket{draw.server.offset}", run.now - draw.seconds, run.now, what))

    begins: list[float] = []
    with TicketPool(urls, hedge=False) as pool:
        pool.create_all(Base.metadata)
        pool.attach(Base.metadata)

        def one() -> None:
            with Session(shard) as session:
                session.add_all(Photo(title=f"IMG_{n}.jpg") for n in range(100))
                begin = run.now
                session.flush()
                bars.append(
                    ("Session.flush()", begin, run.now, f"{1000 * (run.now - begin):.1f} ms")
                )
                session.commit()

        for _ in range(20):
            one()  # opens connections, and compiles statements
        bars.clear()
        event.listen(pool, "drawn", drawn)

        @event.listens_for(shard, "before_cursor_execute")
        def before(*_: object) -> None:
            begins.append(run.now)

        @event.listens_for(shard, "after_cursor_execute")
        def after(*what: Any) -> None:
            statement, parameters = what[2:4]
            text = f"one {statement.split()[0]} of {len(parameters)} rows"
            bars.append(("shard", begins.pop(), run.now, text))

        for _ in range(2 * 31):
            one()
    shard.dispose()
    pairs = [bars[n : n + 6] for n in range(0, len(bars), 6)]
    bars = sorted(pairs, key=lambda pair: pair[-1][2] - pair[0][1])[len(pairs) // 2]
    said = []
    for n, which in enumerate(("A flush of a hundred photos", "The next flush")):
        draw, insert, whole = ((*bar, 1000 * (bar[2] - bar[1])) for bar in bars[3 * n : 3 * n + 3])
        said.append(
            f"{which} takes {whole[4]:.1f} ms: {draw[0]} gives {draw[3]}, in {draw[4]:.1f} ms, and the shard does"
            f" {insert[3]}, in {insert[4]:.1f} ms."
        )
    return _bars("flush", bars, " ".join(said))


def failover(registry: ServerRegistry) -> str:
    """Ticket1 is killed and started again, then frozen and thawed."""
    first, second = (registry.new_mariadb() for _ in range(2))
    urls = databases([first, second], "failover")
    with TicketPool(urls) as pool:
        pool.create_table("photos")
        pool.next_ids("photos", 2)
        run = Run()
        with run.client(lambda: pool):
            time.sleep(1.5 * QUIET)
            with run.span("down"):
                first.kill()
                time.sleep(2 * QUIET)
                first.start()
            time.sleep(4 * QUIET)
            with run.span("frozen"):
                first.freeze()
                time.sleep(2 * QUIET)
                first.thaw()
            time.sleep(4 * QUIET)
    said = []
    for begin, end, what in run.spans:
        slowest = run.slowest(begin - 0.1, end)
        back = next(d.end for d in run.drawn if d.begin > end and d.ticket % 2)
        said.append(
            f"While ticket1 is {what} for {end - begin:.1f} s, every draw goes to ticket2;"
            f" the slowest takes {slowest.wait:.0f} ms. Ticket1 is drawn from again {1000 * (back - end):.0f} ms after its return."
        )
    words = f"{len(run.drawn)} draws of one client over {run.drawn[-1].end:.0f} s. {' '.join(said)} No draw fails."
    rows = ["ticket1", "ticket2"]
    return _timeline("failover", run, rows, lambda d: rows[1 - d.ticket % 2], words, down="ticket1")


def move(registry: ServerRegistry) -> str:
    """The sequence moves to the servers of another pool."""
    sources = databases([registry.mariadb(n) for n in range(2)], "moved")
    targets = databases([registry.mariadb(n) for n in (2, 3)], "moved")
    metadata = MetaData()
    with (
        TicketPool(sources) as default,
        TicketPool(targets, name="media") as media,
        tempfile.TemporaryDirectory() as folder,
    ):
        default.attach(metadata)
        media.attach(metadata)
        default.create_table("photos")
        listed = [
            "\n  ".join(["servers =", *(url.render_as_string(False) for url in urls)])
            for urls in (sources, targets)
        ]
        config = Path(folder) / "alembic.ini"
        config.write_text(
            f"[alembic]\nticket_{listed[0]}\n[ticket_pools.media]\n{listed[1]}\n".replace("%", "%%")
        )
        run = Run()
        with run.client(lambda: default):
            time.sleep(0.5)
            with run.span("sqla-tickets move photos --to media"):
                done = run_cli("move", "photos", "--to", "media", "--config", str(config))
            time.sleep(1.0)
    if done.code:
        sys.exit(done.text)
    begin, end, _ = run.spans[0]
    high = _number_after("above", done.text)
    last = max(drawn.ticket for drawn in run.drawn if drawn.ticket <= high)
    first = min(drawn.ticket for drawn in run.drawn if drawn.ticket > high)
    rows = ["ticket1", "ticket2", "media1", "media2"]
    words = (
        f"One client draws from the pool that the sequence leaves. The move takes {1000 * (end - begin):.0f} ms. The ids"
        f" up to {last} come from ticket1 and ticket2; those from {first} on come from media1 and media2."
        f" The slowest draw takes {run.slowest(0, run.now).wait:.0f} ms. No draw fails."
    )
    return _timeline(
        "move",
        run,
        rows,
        lambda d: rows[(1 - d.ticket % 2) + 2 * (d.ticket >= first)],
        words,
        labels=[last, first],
    )


def grow(registry: ServerRegistry) -> str:
    """Two servers join two others; two clients get the new configuration, one after the other."""
    urls = databases([registry.mariadb(n) for n in range(4)], "grown")
    old_servers, new_servers = options(urls[:2]), [*options(urls), "--stride", "4"]
    joining = [w for url in urls[2:] for w in ("--add", url.render_as_string(False))]
    with contextlib.ExitStack() as open_:
        olds = [open_.enter_context(TicketPool(urls[:2])) for _ in range(2)]
        olds[0].create_table("photos")
        run = Run()
        changed: list[TicketPool] = []

        def pool(n: int) -> Callable[[], TicketPool]:
            return lambda: changed[n] if len(changed) > n else olds[n]

        with contextlib.ExitStack() as clients:
            for n in range(2):
                clients.enter_context(run.client(pool(n), old=olds[n]))
            time.sleep(QUIET)
            with run.span("grow --add"):
                _succeed("grow", *old_servers, *joining, "--gap", GAP, "--yes")
            for _ in range(2):
                time.sleep(QUIET)
                changed.append(open_.enter_context(TicketPool(urls, stride=4)))
                run.changes.append(run.now)
            time.sleep(QUIET)
            with run.span("grow --finish"):
                _succeed("grow", *new_servers, "--finish", "--quiet", 1, "--yes")
            time.sleep(6 * QUIET)
    rows = [f"ticket{n}" for n in range(1, 5)]

    def server(drawn: Drawn) -> str:
        if drawn.is_new:
            return rows[(drawn.ticket - 1) % 4]
        return rows[(drawn.ticket - 1) % 2]

    first = min(d.ticket for d in run.drawn if d.ticket > GAP)
    (begin, end, _), (begin2, end2, _) = run.spans
    back = next(d.end for d in run.drawn if d.is_new and server(d) in rows[:2])
    words = (
        f"Two clients draw from ticket1 and ticket2. The command grow --add takes {end - begin:.1f} s. One after the other, the"
        f" clients get the new configuration, and draw from ticket3 and ticket4, from {first:,} on. The command grow --finish"
        f" takes {end2 - begin2:.1f} s; {back - end2:.1f} s later the clients draw from all four servers. The slowest draw takes"
        f" {run.slowest(0, run.now).wait:.0f} ms. No draw fails."
    )
    return _timeline("grow", run, rows, server, words, labels=[first])


def _succeed(*arguments: str | float) -> None:
    done = run_cli(*arguments)
    if done.code:
        sys.exit(done.text)


def _number_after(word: str, text: str) -> int:
    words = text[text.index("Done:") :].split()
    return int(words[words.index(word) + 1].rstrip(".,:;"))


# -- how they are drawn

#: Boxes: left, top, width, height, the colour of the frame, and lines of text.
_BOXES: Final = (
    (10, 10, 460, 130, SMALL_INK, ("your application, any number of processes",)),
    (30, 50, 165, 70, SMALL_INK, ("Session", "100 new photos")),
    (300, 50, 150, 70, SMALL_INK, ("TicketPool", "")),
    (250, 220, 100, 70, COLOURS[0], ("ticket1", "1, 3, 5 …")),
    (370, 220, 100, 70, COLOURS[1], ("ticket2", "2, 4, 6 …")),
    (10, 220, 100, 70, COLOURS[3], ("shard 1", "")),
    (130, 220, 100, 70, COLOURS[3], ("shard 2", "")),
)
#: Arrows: their paths, and whether they are dashed.
_ARROWS: Final = (
    ("M195 74H298", False),
    ("M300 98H197", False),
    ("M350 120L310 218", False),
    ("M385 120L420 218", True),
    ("M110 120L70 218", False),
    ("M140 120L172 218", True),
)
#: Texts: where, where they are anchored, and what.
_TEXTS: Final = (
    (247, 68, "middle", "100 ids?"),
    (247, 116, "middle", "1, 3 … 199"),
    (322, 172, "end", "one draw"),
    (413, 172, "start", "the next"),
    (80, 172, "end", "INSERT"),
    (420, 312, "end", "Either may be down."),
    (12, 312, "start", "Any database."),
)


def architecture() -> str:
    """Who talks to whom."""
    text = f'<text x="{{}}" y="{{}}" text-anchor="{{}}" fill="{INK}">{{}}</text>'
    parts = [
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 480 325" width="480" height="325">',
        "<style>text { font: 15px sans-serif }</style>",
        '<defs><marker id="head" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="8"',
        f'markerHeight="8" orient="auto"><path d="M0 0L10 5L0 10z" fill="{INK}"/></marker></defs>',
        f'<rect width="480" height="325" fill="{PAPER}"/>',
    ]
    for n, (x, y, width, height, colour, lines) in enumerate(_BOXES):
        parts.append(
            f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="8" fill="{BOX if n else PAPER}" stroke="{colour}"'
            ' stroke-width="1.5"/>'
        )
        top = y + 26 + (12 if lines[-1] == "" else 4 if n else 0)
        parts += [
            text.format(x + width / 2, top + 21 * i, "middle", line)
            for i, line in enumerate(lines)
            if line
        ]
    for path, is_dashed in _ARROWS:
        dash = ' stroke-dasharray="5 4"' if is_dashed else ""
        parts.append(
            f'<path d="{path}" fill="none" stroke="{INK}" stroke-width="1.5"{dash} marker-end="url(#head)"/>'
        )
    parts += [text.format(*each) for each in _TEXTS]
    (FOLDER / "architecture.svg").write_text(themed("\n".join([*parts, "</svg>", ""])))
    return "drawn"


def _figure(height: float, ratios: Sequence[float]) -> tuple[Any, list[Axes]]:
    """A figure as wide as a telephone's screen."""
    use()
    mpl.rcParams["font.size"] = 10
    figure, axes = plt.subplots(
        len(ratios), 1, figsize=(5, height), layout="constrained", squeeze=False, sharex=True,
        gridspec_kw={"height_ratios": ratios}, facecolor=PAPER,
    )  # fmt: skip
    return figure, list(axes[:, 0])


def _save(name: str, figure: Any, words: str) -> str:
    save(figure, FOLDER / f"{name}.svg")
    plt.close(figure)
    if FOLDER == DOCS / "pictures":
        for page in DOCS.glob("*/*.md"):
            page.write_text(_with_words(page.read_text(), name, words))
    return words


def _with_words(page: str, name: str, words: str) -> str:
    """A page's text, with the words of one picture."""
    target = f"(../pictures/{name}.svg)"
    image = textwrap.fill(f"![{words}]{target}", 140, break_on_hyphens=False)
    return re.sub(rf"!\[[^]]*\]{re.escape(target)}", lambda _: image, page)


def _timeline(
    name: str,
    run: Run,
    rows: Sequence[str],
    row_of: Callable[[Drawn], str],
    words: str,
    *,
    down: str = "",
    labels: Sequence[int] = (),
) -> str:
    """Each draw where its ticket came from, and below it how long it took."""
    figure, (upper, lower) = _figure(1.6 + 0.45 * len(rows), [0.5 * len(rows), 1.3])
    for n, (row, colour) in enumerate(zip(rows, COLOURS, strict=False)):
        y, here = len(rows) - n, [drawn for drawn in run.drawn if row_of(drawn) == row]
        # one path for all of them: a marker for each is ten times as long
        ends = [x for drawn in here for x in (drawn.end, drawn.end, math.nan)]
        upper.plot(ends, [y - 0.17, y + 0.17, math.nan] * len(here), color=colour, linewidth=0.8)
        ends = [x for drawn in here for x in (drawn.end, drawn.end + 1e-3, math.nan)]
        waits = [x for drawn in here for x in (drawn.wait, drawn.wait, math.nan)]
        lower.plot(ends, waits, color=colour, linewidth=2, solid_capstyle="round")
        for drawn in here:
            if drawn.ticket in labels:
                text = upper.text(drawn.end, y + 0.3, f"{drawn.ticket:,}", fontsize=9, ha="center")
                text.set_bbox({"facecolor": PAPER, "edgecolor": "none", "pad": 1})
    for begin, end, what in run.spans:
        for axes in (upper, lower):
            axes.axvspan(begin, end, color=RED if down else SMALL_INK, alpha=0.12, linewidth=0)
        row_y, ink = (len(rows) - rows.index(down), RED) if down else (len(rows) + 0.75, INK)
        upper.text((begin + end) / 2, row_y, what, ha="center", va="center", color=ink)
    for moment in run.changes:
        upper.axvline(moment, color=SMALL_INK, linestyle=":", linewidth=1)
    upper.set_ylim(0.5, len(rows) + (0.6 if down else 1.05))
    upper.set_yticks([len(rows) - n for n in range(len(rows))], rows)
    upper.tick_params(axis="both", length=0)
    upper.spines[["left", "bottom"]].set_visible(False)
    changed = ", dotted: a client gets the new list" if run.changes else ""
    upper.set_title(f"Each line is a draw{changed}", fontsize=10)
    lower.set_yscale("log")
    lower.yaxis.set_major_formatter("{x:g}")
    lower.grid(visible=True, which="major", axis="y", color=LINE)
    lower.set_ylabel("wait, ms")
    lower.set_xlabel("seconds")
    lower.set_xlim(0, run.drawn[-1].end)
    return _save(name, figure, words)


def _bars(name: str, bars: Sequence[tuple[str, float, float, str]], words: str) -> str:
    """What each server does for flushes, one below the other."""
    rows = ["Session.flush()", "ticket1", "ticket2", "shard"]
    figure, (axes,) = _figure(3, [1])
    begin = min(bar[1] for bar in bars)
    colours = dict(zip(rows, (SMALL_INK, *COLOURS[:2], COLOURS[3]), strict=True))
    for row, start, end, what in bars:
        y = len(rows) - rows.index(row)
        axes.barh(
            y, 1000 * (end - start), left=1000 * (start - begin), height=0.3, color=colours[row]
        )
        axes.text(1000 * (start - begin), y + 0.22, what, fontsize=9, va="bottom")
    axes.set_yticks([4, 3, 2, 1], rows)
    axes.tick_params(axis="y", length=0)
    axes.spines[["left"]].set_visible(False)
    axes.set_ylim(0.6, 4.7)
    last = max(bar[2] for bar in bars)
    axes.set_xlim(0, 1400 * (last - begin))
    axes.set_xlabel("ms")
    return _save(name, figure, words)


def main() -> None:
    runs = {"flush": flush, "failover": failover, "move": move, "grow": grow}
    print(f"architecture.svg: {architecture()}")
    registry = ServerRegistry(["mariadb"])
    try:
        for name in sys.argv[2:] or runs:
            print(f"{name}.svg: {runs[name](registry)}", flush=True)
    finally:
        registry.close()


if __name__ == "__main__":
    main()
