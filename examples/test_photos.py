"""An application's tests with tickets: `pytest -p sqla_tickets.testing.pytest_plugin examples/test_photos.py`.

They need no server; with SQLA_TICKETS_TEST_SERVERS="URL URL" the last test runs on real ones, too.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import Engine, create_engine, select
from sqlalchemy.orm import Session
from sqlalchemy.pool import StaticPool

from photos import Base, Comment, Photo, Tag
from sqla_tickets.testing.pytest_plugin import OpenTickets


@pytest.fixture
def engine() -> Iterator[Engine]:
    engine = create_engine("sqlite://", poolclass=StaticPool)
    Base.metadata.create_all(engine)
    yield engine
    engine.dispose()


def save_photos(engine: Engine) -> None:
    with Session(engine) as session:
        for n in range(10):
            tags, comments = [Tag(word="sea")], [Comment(text="Nice!"), Comment(text="Where?")]
            session.add(Photo(title=f"Beach {n}", tags=tags, comments=comments))
        session.commit()
        for model, rows in ((Photo, 10), (Tag, 10), (Comment, 20)):
            assert len(set(session.scalars(select(model.id)))) == rows


def test_photos_are_saved(engine: Engine, tickets_in_memory: OpenTickets) -> None:
    pool = tickets_in_memory(Base.metadata, stride=16)
    save_photos(engine)
    assert {status.up for status in pool.status()} == {True}


def test_photos_are_saved_with_tickets_of_real_servers(
    engine: Engine, tickets_at_servers: OpenTickets
) -> None:
    tickets_at_servers(Base.metadata)
    save_photos(engine)
