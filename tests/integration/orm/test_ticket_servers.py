"""The insert paths with every kind of ticket server, in both layouts; applications of the other kinds have tests of their own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import BigInteger, Engine, ForeignKey, String, insert
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship

from sqla_tickets import TicketPool, TicketSequence
from tests.support.counting import Site, many
from tests.support.drivers import routes
from tests.support.servers import KINDS, ServerFixtures


class Base(DeclarativeBase):
    pass


class Photo(Base):
    __tablename__ = "photos"
    id: Mapped[int] = mapped_column(BigInteger, TicketSequence("photos"), primary_key=True)
    title: Mapped[str | None] = mapped_column(String(50))
    tags: Mapped[list[Tag]] = relationship()


class Tag(Base):
    """Its sequence has a name that needs quoting."""

    __tablename__ = "tags"
    id: Mapped[int] = mapped_column(BigInteger, TicketSequence("my-tags"), primary_key=True)
    photo_id: Mapped[int] = mapped_column(ForeignKey("photos.id"))


# By each kind's first driver: tests/integration/draw/test_drivers.py has them all.
TICKETS = [(routes(kind)[0], layout) for kind in KINDS for layout in routes(kind)[0].layouts]


@pytest.fixture(params=TICKETS, ids=lambda tickets: "-".join(map(str, tickets)))
def site(
    request: pytest.FixtureRequest, servers: ServerFixtures, app: Engine, tmp_path: Path
) -> Iterator[Site]:
    route, layout = request.param
    urls = [route.fresh_database(servers, tmp_path, n) for n in range(2)]
    with TicketPool(urls, hedge=False) as pool, pool.attached(Base.metadata):
        yield Site(app, pool, Base.metadata, layout)
        assert {status.layout for status in pool.status()} == {layout}


def test_core(site: Site) -> None:
    photos = Photo.__table__
    with site.count() as counted, site.engine.begin() as connection:
        connection.execute(insert(Photo).values(title="a"))
        connection.execute(insert(Photo), [{"title": title} for title in "bcdef"])
        connection.execute(insert(Photo).values([{"title": title} for title in "ghi"]))
    assert counted.draws == {"photos": 3}
    assert len(set(site.rows(photos.c.id))) == 9


@pytest.mark.app_databases("sqlite")
def test_flush(site: Site) -> None:
    photos = [Photo(title=title, tags=[Tag(), Tag(), Tag()]) for title in "abcd"]
    with site.count() as counted, site.session() as session, session.begin():
        session.add_all(photos)
        session.flush()
        ids = [photo.id for photo in photos]
    assert counted.draws == {"photos": 1, "my-tags": 1}
    assert counted.inserts == [many("photos", 4), many("tags", 12)]
    assert ids == sorted(ids)
    assert len({key % 2 for key in ids}) == 1
    assert site.rows(Photo.id, Photo.title) == list(zip(ids, "abcd", strict=True))


@pytest.mark.app_databases("sqlite")
def test_bulk(site: Site) -> None:
    rows = [{"title": str(n)} for n in range(500)]
    with site.count() as counted, site.session() as session, session.begin():
        session.execute(insert(Photo), rows)
        session.execute(insert(Photo), rows)
    assert counted.draws == {"photos": 2}
    ids = [key for (key,) in site.rows(Photo.id)]
    assert len(ids) == 1000
    # Round robin: a block of odd ids and one of even ones.
    assert sum(key % 2 for key in ids) == 500
    assert counted.inserts == [many("photos", 500)] * 2
