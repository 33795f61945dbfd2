"""A photo site over two shards and two ticket servers, one of which fails while it inserts.

    make demo
    make demo ARGS="--tickets URL --tickets URL --shard URL --shard URL"

Without URLs everything is a SQLite file in a temporary folder. With them it runs on real servers: it
creates the tables `photos`, `tags` and `comments` in each of these databases and drops them at the
end; where one of them exists, it changes nothing.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

from sqlalchemy import URL, create_engine, func, inspect, make_url, select, text
from sqlalchemy.exc import ArgumentError, DBAPIError, SQLAlchemyError

from audit import audit
from interrupts import interruptible
from outage import Outage, outage_of
from photos import Base, Comment, Photo, Shards, Tag
from screen import Screen
from sqla_tickets import TicketError, TicketPool
from sqla_tickets.high_water.statements import MARKS

#: When the first ticket server fails and when it is back, as shares of all photos.
GONE, BACK = 0.4, 0.7
#: The most photos that one transaction inserts, and the fewest transactions.
BATCH, BATCHES = 1000, 20
WORDS = ("sunset", "cat", "harbour", "snow", "bicycle")


class Refused(Exception):
    """The demo will not run, and nothing was changed."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo; 0 when every id is unique."""
    options = _parser().parse_args(arguments)
    screen = Screen(options.photos, stride=len(options.tickets) or 2)
    try:
        with ExitStack() as undo:
            unique = run(options, screen, undo)
    except Refused as error:
        screen.failure(str(error))
        return 2
    except (TicketError, SQLAlchemyError) as error:
        screen.failure(f"{type(error).__name__}: {error}")
        return 1
    except KeyboardInterrupt:
        screen.failure("interrupted")
        return 130
    screen.done("kept the tables" if options.keep else "dropped the tables")
    return 0 if unique else 1


def run(options: argparse.Namespace, screen: Screen, undo: ExitStack) -> bool:
    """Set up, insert, and check that all ids differ; `undo` collects the cleanup."""
    ticket_urls, shard_urls, folder = databases(options, undo)
    names = ", ".join(Base.metadata.tables)
    ending = "kept" if options.keep else "dropped at the end"
    screen.cast(
        ticket_urls, shard_urls, folder, f"Creates the tables {names} in each of them, {ending}."
    )
    refuse_foreign_tables(ticket_urls, shard_urls)
    shards = Shards({f"shard {n}": create_engine(url) for n, url in enumerate(shard_urls, 1)})

    outage = outage_of(ticket_urls[0])
    undo.callback(outage.close)
    pool = undo.enter_context(TicketPool([outage.url, *ticket_urls[1:]]))
    if not options.keep:
        undo.callback(drop_marks, [url for url in ticket_urls if MARKS not in tables_in(url)])
    create_tables(pool, shards, options.keep, undo)
    screen.done("created the ticket tables, and the tables of the shards")

    pool.attach(Base.metadata)
    undo.callback(pool.dispose)  # a second Ctrl-C may leave connections that the outage has closed
    undo.callback(outage.end)
    with screen.inserting():
        insert(options.photos, shards, outage, screen)
    audits = [audit(table, shards.engines, pool.stride) for table in Base.metadata.tables.values()]
    screen.found(audits, pool.status(), shards.names)
    find_again(shards, screen)
    return not any(found.duplicates for found in audits)


# -- what every application has


def insert(photos: int, shards: Shards, outage: Outage, screen: Screen) -> None:
    """Add all photos, a batch per transaction, while a ticket server fails and comes back."""
    batch = max(1, min(BATCH, photos // BATCHES))
    for first in interruptible(range(0, photos, batch)):
        if first >= photos * BACK and outage.on:
            outage.end()
            screen.back()
        elif photos * GONE <= first < photos * BACK and not outage.on:
            outage.begin()
            screen.gone(outage.how)
        last = min(first + batch, photos)
        with shards.session() as session:
            session.add_all(new_photos(first, last))
            session.commit()
        screen.advance(last - first)


def new_photos(first: int, last: int) -> Iterator[Photo]:
    """Photos with two tags and a comment each."""
    for n in range(first, last):
        words = WORDS[n % len(WORDS)], WORDS[n // 7 % len(WORDS)]
        yield Photo(
            title=f"IMG_{n:05}.jpg",
            tags=[Tag(word=word) for word in words],
            comments=[Comment(text="Great light!")],
        )


def find_again(shards: Shards, screen: Screen) -> None:
    """Find a photo by its id alone, which names the shard, too."""
    with shards.session() as session:
        of_each_shard = session.scalars(select(func.max(Photo.id)))
        photo = session.get_one(Photo, max(id_ for id_ in of_each_shard if id_))
        tags = ", ".join(tag.word for tag in photo.tags)
        screen.done(
            f"found photo {photo.id:,} on {shards.of_photo(photo.id)}", f"{photo.title}: {tags}"
        )


# -- what only a demo has


def databases(
    options: argparse.Namespace, undo: ExitStack
) -> tuple[list[URL], list[URL], Path | None]:
    """The ticket servers, the shards, and the folder of those that are SQLite files of its own."""
    tickets, shards, folder = list(options.tickets), list(options.shard), None
    if len(tickets) == 1 or len(shards) == 1:
        raise Refused(
            "give two or more ticket servers (--tickets), and two or more shards (--shard)"
        )
    if not tickets or not shards:
        folder = _folder(options.keep, undo)
        tickets = tickets or [_file(folder, f"ticket-server-{n}") for n in (1, 2)]
        shards = shards or [_file(folder, f"shard-{n}") for n in (1, 2)]
    places = [(url.host, url.port, url.database) for url in tickets + shards]
    if len(set(places)) < len(places):
        raise Refused("every ticket server and every shard needs a database of its own")
    if any(url.get_backend_name() == "sqlite" and not url.database for url in tickets + shards):
        raise Refused("a SQLite database in memory ends with its connection: name a file")
    return tickets, shards, folder


def _folder(keep: bool, undo: ExitStack) -> Path:
    if keep:
        return Path(tempfile.mkdtemp(prefix="sqla_tickets-demo-"))
    return Path(undo.enter_context(tempfile.TemporaryDirectory(prefix="sqla_tickets-demo-")))


def _file(folder: Path, name: str) -> URL:
    (folder / name).mkdir()
    return URL.create("sqlite", database=str(folder / name / "data.db"))


def tables_in(url: URL) -> set[str]:
    """The tables of a database."""
    engine = create_engine(url)
    try:
        return set(inspect(engine).get_table_names())
    except DBAPIError as error:
        shown = url.render_as_string(hide_password=True)
        raise Refused(f"{shown} cannot be used: {error.orig}") from error
    finally:
        engine.dispose()


def refuse_foreign_tables(ticket_urls: Sequence[URL], shard_urls: Sequence[URL]) -> None:
    """Refuse when a table exists that the demo would create, and drop at the end."""
    for url in [*ticket_urls, *shard_urls]:
        shown = url.render_as_string(hide_password=True)
        foreign = tables_in(url) & set(Base.metadata.tables)
        if foreign:
            raise Refused(
                f"{shown} has tables that this demo did not create: {', '.join(sorted(foreign))}."
                " Give it an empty database; nothing was changed."
            )


def create_tables(pool: TicketPool, shards: Shards, keep: bool, undo: ExitStack) -> None:
    """Create the tables on the ticket servers and on the shards, to be dropped at the end."""
    for engine in shards.engines.values():
        undo.callback(engine.dispose)
        if not keep:
            undo.callback(Base.metadata.drop_all, engine)
        Base.metadata.create_all(engine)
    if not keep:
        for name in Base.metadata.tables:
            undo.callback(pool.drop_table, name)
    pool.create_all(Base.metadata)


def drop_marks(ticket_urls: Sequence[URL]) -> None:
    """Drop the high-water marks on these ticket servers."""
    for url in ticket_urls:
        engine = create_engine(url)
        with engine.begin() as connection:
            connection.execute(text(f"DROP TABLE {MARKS}"))
        engine.dispose()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description="Two ticket servers, two shards, and an outage in the middle."
    )
    parser.add_argument("--tickets", type=_url, action="append", default=[], metavar="URL")
    parser.add_argument("--shard", type=_url, action="append", default=[], metavar="URL")
    parser.add_argument("--photos", type=_number, default=20_000, metavar="N")
    parser.add_argument("--keep", action="store_true", help="leave the tables where they are")
    return parser


def _url(text: str) -> URL:
    try:
        return make_url(text)
    except ArgumentError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _number(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError("it is 1 or more")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
