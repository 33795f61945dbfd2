"""The example application: a logical shard moves between two PostgreSQL servers while it is written to and read."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest
from sqlalchemy import URL, Engine, create_engine, select, text
from sqlalchemy.ext.horizontal_shard import set_shard_id
from sqlalchemy.orm import Session

from instagram.move import CannotMove, _alone, _arrive, _depart, move
from instagram.shards import create
from instagram.site import SHARDS, Like, Photo, Site, find, schema_of
from sqla_tickets import INSTAGRAM, NodeLeases, TicketPool
from tests.support.draws import in_processes, run
from tests.support.servers import PostgreSQL, ServerFixtures

#: The shard that is moved, and one that stays.
MOVED, STAYS = 7, 8


class Deployment(NamedTuple):
    """Two servers of the application's, and what its processes need."""

    urls: list[URL]
    engines: tuple[Engine, Engine]
    tickets: list[str]

    def site(self) -> tuple[Site, TicketPool]:
        pool = TicketPool(self.tickets)
        return Site({str(n): engine for n, engine in enumerate(self.engines)}, pool), pool


def deployment_of(servers: ServerFixtures, both: list[PostgreSQL], files: list[URL]) -> Deployment:
    urls = [servers.fresh_database(server, role=None) for server in both]
    with TicketPool(files) as pool:
        NodeLeases(pool, duration=10).create_table()
    tickets = [url.render_as_string(hide_password=False) for url in files]
    return Deployment(urls, engines_of(*urls), tickets)


def engines_of(first: str | URL, second: str | URL) -> tuple[Engine, Engine]:
    return create_engine(first), create_engine(second)


@pytest.fixture
def deployment(servers: ServerFixtures, files: list[URL]) -> Iterator[Deployment]:
    """Two databases of one server."""
    deployment = deployment_of(servers, [servers.postgresql()] * 2, files)
    yield deployment
    for engine in deployment.engines:
        engine.dispose()


def upload(user: int, title: str) -> Callable[[Session], tuple[int, list[int]]]:
    def work(session: Session) -> tuple[int, list[int]]:
        photo = Photo(user=user, title=title)
        session.add(photo)
        session.flush()  # the writer has a lock on one table and comes for the other
        photo.likes = [Like(by=by) for by in range(2)]
        session.flush()
        return photo.id, [like.id for like in photo.likes]

    return work


def write(urls: list[str], tickets: list[str], folder: str, name: str) -> int:
    """Upload in two threads and look at what is there, until told to stop; what was acknowledged is in a file."""
    deployment = Deployment([], engines_of(*urls), tickets)
    site, pool = deployment.site()

    def upload_all(thread: int) -> int:
        done: list[int] = []
        with Path(folder, f"{name}-{thread}").open("w") as journal:
            while not Path(folder, "stop").exists():
                title = f"{name}-{thread}-{len(done)}"
                shard = STAYS if len(done) % 5 == 4 else MOVED
                photo, likes = site.run(upload(shard + SHARDS * len(done), title))
                journal.write(json.dumps([title, photo, likes]) + "\n")
                done.append(photo)
                seen = done[len(done) * 7 % len(done)]
                found = site.run(lambda session: find(session, Photo, seen))  # noqa: B023  # called at once
                assert found is not None, f"{seen} cannot be read"
        return len(done)

    with ThreadPoolExecutor(2) as threads, pool:
        return sum(threads.map(upload_all, range(2)))


def test_a_shard_moves_under_load(
    servers: ServerFixtures, files: list[URL], tmp_path: Path
) -> None:
    deployment = deployment_of(servers, [servers.postgresql(), servers.new_postgresql()], files)
    create(deployment.engines[0], range(50))
    create(deployment.engines[1], range(SHARDS - 50, SHARDS))
    urls = [url.render_as_string(hide_password=False) for url in deployment.urls]
    moves: list[str] = []

    def move_about() -> None:
        try:
            patience = time.monotonic() + 60
            while len(list(tmp_path.glob("p*"))) < 4 and time.monotonic() < patience:
                time.sleep(0.05)
            for source, target in ((0, 1), (1, 0), (0, 1)):
                time.sleep(0.7)
                move(MOVED, deployment.engines[source], deployment.engines[target])
                moves.append(f"{source} to {target}")
            time.sleep(0.7)
        finally:
            (tmp_path / "stop").touch()

    mover = threading.Thread(target=move_about)
    mover.start()
    counts = in_processes(
        write, *[(urls, deployment.tickets, str(tmp_path), f"p{n}") for n in range(2)]
    )
    mover.join()
    assert moves == ["0 to 1", "1 to 0", "0 to 1"]

    acknowledged = [
        json.loads(line) for file in tmp_path.glob("p*") for line in file.read_text().splitlines()
    ]
    assert len(acknowledged) == sum(counts) > 20
    stored: dict[int, str] = {}
    likes: list[int] = []
    for engine, shard in ((deployment.engines[1], MOVED), (deployment.engines[0], STAYS)):
        with engine.connect() as connection:
            schema = schema_of(shard)
            rows = connection.execute(text(f"SELECT id, title FROM {schema}.photos")).all()
            of_shard = list(connection.scalars(text(f"SELECT id FROM {schema}.likes")))
        assert {INSTAGRAM.shard_of(number) for number, _ in rows} == {shard}
        assert {INSTAGRAM.shard_of(number) for number in of_shard} == {shard}
        assert stored.keys().isdisjoint(number for number, _ in rows)
        stored |= {int(number): str(title) for number, title in rows}
        likes += of_shard
    assert stored == {photo: title for title, photo, _ in acknowledged}
    assert sorted(likes) == sorted(like for _, _, some in acknowledged for like in some)
    assert len(set(likes)) == len(likes)
    (gone,) = run(
        deployment.urls[0], "SELECT count(*) FROM pg_namespace WHERE nspname ~ 'shard0007'"
    )
    assert gone == (0,)
    for engine in deployment.engines:
        engine.dispose()


def likes_made(deployment: Deployment, server: int, n: int) -> list[int]:
    statement = f"SELECT {schema_of(MOVED)}_id() FROM generate_series(1, {n})"
    return [int(str(number)) for (number,) in run(deployment.urls[server], statement)]


def test_a_server_whose_clock_is_behind_repeats_no_id(
    servers: ServerFixtures, files: list[URL]
) -> None:
    """Without the wait, the ids of the last 0.8 seconds would be made again; deleted rows hide that from the key."""
    server = servers.new_postgresql()
    clock = servers.clock(server.folder / "clock")
    clock.step(-0.8)
    server.stop()
    server.environment = clock.environment
    server.start()
    behind = deployment_of(servers, [servers.postgresql(), server], files)
    create(behind.engines[0], [MOVED])
    before: list[int] = []
    end = time.monotonic() + 1
    while time.monotonic() < end:
        before += likes_made(behind, 0, 300)
    move(MOVED, *behind.engines)
    after: list[int] = []
    end = time.monotonic() + 1
    while time.monotonic() < end:
        after += likes_made(behind, 1, 300)
    for engine in behind.engines:
        engine.dispose()
    assert min(after) >> 23 > max(before) >> 23


def test_clocks_too_far_apart_leave_the_shard_where_it_is(deployment: Deployment) -> None:
    create(deployment.engines[0], [MOVED])
    site, pool = deployment.site()
    with pool:
        photo, _ = site.run(upload(MOVED, "one"))
        ahead = likes_made(deployment, 0, 1)[0] + (60_000 << 23)
        insert = (
            f"INSERT INTO {schema_of(MOVED)}.likes (id, photo_id, by) VALUES ({ahead}, {photo}, 1)"
        )
        run(deployment.urls[0], insert)
        with pytest.raises(
            CannotMove, match=r"ms behind the last id of shard0007: expected at most 1000"
        ):
            move(MOVED, *deployment.engines)
        site.run(upload(MOVED, "two"))


def test_a_move_that_died_is_finished(deployment: Deployment) -> None:
    create(deployment.engines[0], [MOVED])
    site, pool = deployment.site()
    with pool:
        photo, likes = site.run(upload(MOVED, "one"))
        _depart(MOVED, *deployment.engines, tries=1)  # and no more
        move(MOVED, *deployment.engines)
        with pytest.raises(CannotMove, match="has no shard0007"):
            move(MOVED, *deployment.engines)
        move(MOVED, deployment.engines[1], deployment.engines[0])
        of_shard = select(Like.id).options(set_shard_id(schema_of(MOVED)))
        assert site.run(lambda session: session.scalars(of_shard).all()) == likes
        assert site.run(lambda session: find(session, Photo, photo)) is not None


def test_what_cannot_be_moved_stays(deployment: Deployment) -> None:
    first, second = deployment.engines
    create(first, [MOVED, STAYS])
    create(second, [STAYS])
    site, pool = deployment.site()
    with pool:
        photo, _ = site.run(upload(MOVED, "one"))
        with first.begin() as writer:  # for ever in its transaction
            writer.execute(text(f"UPDATE {schema_of(MOVED)}.photos SET title = 'two'"))
            with pytest.raises(CannotMove, match="never without a writer"):
                move(MOVED, first, second, tries=2)
        with _alone(MOVED, first), pytest.raises(CannotMove, match="is being moved away"):
            move(MOVED, first, second)
        with pytest.raises(CannotMove, match="which of them is the right one"):
            move(STAYS, first, second)
        found = site.run(lambda session: find(session, Photo, photo))
        assert found is not None
        assert found.title == "two"
        move(MOVED, first, second)  # the advisory lock is free again


def test_a_copy_that_is_not_whole_does_not_arrive(deployment: Deployment) -> None:
    create(deployment.engines[0], [MOVED])
    site, pool = deployment.site()
    with pool:
        site.run(upload(MOVED, "one"))
    _depart(MOVED, *deployment.engines, tries=1)
    run(deployment.urls[1], f"DELETE FROM {schema_of(MOVED)}_arriving.likes")
    with pytest.raises(CannotMove, match=r"left\.likes has 2 rows, shard0007_arriving.likes 0"):
        _arrive(MOVED, *deployment.engines)


def test_a_query_without_a_shard_is_refused(deployment: Deployment) -> None:
    create(deployment.engines[0], [MOVED])
    site, pool = deployment.site()
    with pool, pytest.raises(ValueError, match="set_shard_id"):
        site.run(lambda session: session.scalars(select(Photo)).all())
