"""Histories that moved a sequence, run for a new shard after the move has ended."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from alembic.operations.ops import MigrateOperation
from alembic.util import CommandError
from sqlalchemy import URL

from alembic_ext.operations import (
    ConvertTicketTableOp,
    CreateTicketTableOp,
    MoveTicketTableOp,
    NextTicketsOp,
    RaiseTicketTableOp,
    RenameTicketTableOp,
)
from sqla_tickets import TicketPool
from sqla_tickets.maintenance import operations as maintenance
from tests.support.migration_contexts import operations
from tests.support.projects import Project, text_of

Servers = Mapping[str, Sequence[URL]]
#: What a shard's configuration says after a move from ``default`` to ``media``.
Ending = Callable[[Sequence[URL], Sequence[URL]], Servers]


def nowhere(urls: Sequence[URL]) -> list[URL]:
    """Addresses where no server is any more."""
    if urls[0].get_backend_name() == "sqlite":
        return [url.set(database=f"{url.database}.gone/tickets.db") for url in urls]
    return [url.set(host="127.0.0.1", port=1) for url in urls]


def renamed(old: Sequence[URL], new: Sequence[URL]) -> Servers:
    """The new pool has the old one's name, and its own is forgotten."""
    return {"default": new}


def switched_off(old: Sequence[URL], new: Sequence[URL]) -> Servers:
    """Both pools are configured still."""
    return {"default": nowhere(old), "media": new}


def one_is_off(old: Sequence[URL], new: Sequence[URL]) -> Servers:
    """One of the old servers is left."""
    return {"default": [old[0], *nowhere(old[1:])], "media": new}


def both_names(old: Sequence[URL], new: Sequence[URL]) -> Servers:
    """The new servers are configured under either name."""
    return {"default": new, "media": new}


def untouched(old: Sequence[URL], new: Sequence[URL]) -> Servers:
    """The old servers are there, with their tombstones."""
    return {"default": old, "media": new}


ENDINGS = pytest.mark.parametrize(
    "ending", [renamed, switched_off, one_is_off, both_names, untouched]
)


def configure(project: Project, servers: Servers) -> None:
    """Write the pools into ``alembic.ini``, in the place of those that are there."""
    ini = project.folder / "alembic.ini"
    text = re.sub(r"(?ms)^\[ticket_pools\.media\]\n.*?\n\n", "", ini.read_text())
    listed = {
        name: " ".join(map(text_of, urls)).replace("%", "%%") for name, urls in servers.items()
    }
    line = f"ticket_servers = {listed['default']}"
    text = re.sub(r"(?m)^ticket_servers = .*$", lambda _: line, text)
    if "media" in listed:
        text = f"[ticket_pools.media]\nservers = {listed['media']}\n\n" + text
    ini.write_text(text)


def tables_of(urls: Sequence[URL]) -> set[str]:
    with TicketPool(list(urls)) as pool:
        return maintenance.names(pool)


@pytest.mark.ticket_servers("mariadb")
@pytest.mark.app_databases("sqlite")
@pytest.mark.parametrize("ending", [renamed, switched_off, both_names])
def test_upgrade_of_a_new_shard_after_a_move_ended(
    ending: Ending,
    ticket_urls: list[URL],
    media_urls: list[URL],
    shard_urls: list[URL],
    tmp_path: Path,
) -> None:
    """The first shard creates and moves; the second one finds it done, by whatever is configured then."""
    project = Project(tmp_path / "project")
    project.set_up(shard_urls[0], ticket_urls)
    configure(project, untouched(ticket_urls, media_urls))
    project.revision("photos")
    project.run("revision", "-m", "move")
    for name in ("upgrade", "downgrade"):
        there, back = ("media", "default") if name == "upgrade" else ("default", "media")
        project.replace(
            project.file("move"),
            (
                f'def {name}() -> None:\n    """{name.title()} schema."""\n    pass',
                f"def {name}() -> None:\n    op.move_ticket_table('photos', to={there!r}, pool={back!r})",
            ),
        )
    project.run("upgrade", "head")
    with TicketPool(media_urls) as pool:
        drawn = pool.next_ids("photos", 10)
    tables = tables_of(media_urls)
    configure(project, ending(ticket_urls, media_urls))
    project.replace(
        project.folder / "alembic.ini",
        (text_of(shard_urls[0]).replace("%", "%%"), text_of(shard_urls[1]).replace("%", "%%")),
    )
    project.run("upgrade", "head")
    assert "move" in project.run("current", "-v")
    with TicketPool(media_urls) as pool:
        drawn += pool.next_ids("photos", 10)
    assert len(set(drawn)) == 20
    assert tables_of(media_urls) == tables


#: One sequence, by all of its names; the last of its pools is the one that stays.
HISTORY: list[MigrateOperation] = [
    CreateTicketTableOp("a"),
    RenameTicketTableOp("a", "b"),
    RaiseTicketTableOp("b", above=100),
    NextTicketsOp("b", 3),
    ConvertTicketTableOp("b", layout="counter"),
    MoveTicketTableOp("b", to="archive"),
    RaiseTicketTableOp("b", above=200, pool="archive"),
    RenameTicketTableOp("b", "c", pool="archive"),
    MoveTicketTableOp("c", to="media", pool="archive"),
    NextTicketsOp("c", 3, pool="media"),
    ConvertTicketTableOp("c", layout="counter", pool="media"),
]


@pytest.fixture
def archive_urls(tmp_path: Path) -> list[URL]:
    return [URL.create("sqlite", database=str(tmp_path / f"archive{n}.db")) for n in range(2)]


@pytest.fixture
def closing() -> Iterator[list[TicketPool]]:
    opened: list[TicketPool] = []
    yield opened
    for pool in opened:
        pool.dispose()


@pytest.mark.ticket_servers("mariadb", "postgresql", "sqlite")
@ENDINGS
def test_long_history_of_names_and_pools_is_replayed(
    ending: Ending,
    ticket_urls: list[URL],
    media_urls: list[URL],
    archive_urls: list[URL],
    closing: list[TicketPool],
) -> None:
    """Renamed, moved on, renamed and moved once more; the pool in the middle is gone in each case."""

    def run(servers: Servers) -> None:
        pools = [TicketPool(urls, name=name) for name, urls in servers.items()]
        closing.extend(pools)
        with operations(*pools) as running:
            for op in HISTORY:
                running.invoke(op)

    run({"default": ticket_urls, "archive": archive_urls, "media": media_urls})
    with TicketPool(media_urls) as pool:
        drawn = pool.next_ids("c", 10)
        statuses = pool.status(["c"])
    run(ending(ticket_urls, media_urls))
    run({**ending(ticket_urls, media_urls), "archive": nowhere(archive_urls)})
    with TicketPool(media_urls) as pool:
        drawn += pool.next_ids("c", 10)
        assert {s.layout for s in pool.status(["c"])} == {s.layout for s in statuses}
    assert len(set(drawn)) == 20
    assert tables_of(media_urls) == {"c"}


@pytest.mark.parametrize("has_tombstone", [True, False])
def test_rename_in_the_only_pool_is_replayed_whatever_its_name(
    media: TicketPool, has_tombstone: bool
) -> None:
    with operations(media) as running:
        running.invoke(CreateTicketTableOp("photos"))
        running.invoke(RenameTicketTableOp("photos", "pictures"))
        drawn = media.next_ids("pictures", 10)
        for server in () if has_tombstone else media.servers:
            server.drop("photos")
        running.invoke(CreateTicketTableOp("photos"))
        running.invoke(RaiseTicketTableOp("photos", above=1000))
        running.invoke(RenameTicketTableOp("photos", "pictures"))
    assert maintenance.names(media) == {"pictures"}
    assert min(media.next_ids("pictures", 10)) > max(1000, *drawn)


def test_move_to_a_pool_that_is_not_configured_is_an_error(
    default: TicketPool, media: TicketPool
) -> None:
    """Nothing says that it has been done: neither before any move, nor after one that was taken back."""
    move = MoveTicketTableOp("photos", to="media")
    with operations(default) as running:
        running.invoke(CreateTicketTableOp("photos"))
        with pytest.raises(CommandError, match="no ticket pool named 'media'"):
            running.invoke(move)
    with operations(default, media) as running:
        running.invoke(move)
        running.invoke(move.reverse())
    with operations(default) as running, pytest.raises(CommandError, match="'media' is configured"):
        running.invoke(move)


def test_move_that_was_half_done_is_no_ended_one(
    default: TicketPool, media: TicketPool, ticket_urls: list[URL]
) -> None:
    """While a target is not open yet, a run that cannot reach the source fails, and says why."""
    move = MoveTicketTableOp("photos", to="media")
    with operations(default, media) as running:
        running.invoke(CreateTicketTableOp("photos"))
        running.invoke(move)
    media.servers[1].drop("photos")
    gone = TicketPool(nowhere(ticket_urls))
    with operations(gone, media) as running, pytest.raises(CommandError):
        running.invoke(move)
