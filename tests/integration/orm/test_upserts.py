"""Upserts draw for every row they offer; a row that was there already keeps the id it had."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import BigInteger, String
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from sqla_tickets import TicketSequence
from tests.integration.orm.conftest import Serve
from tests.support.counting import Site, many, one


class Base(DeclarativeBase):
    pass


class Word(Base):
    __tablename__ = "words"
    id: Mapped[int] = mapped_column(BigInteger, TicketSequence("words"), primary_key=True)
    text: Mapped[str] = mapped_column(String(50), unique=True)
    seen: Mapped[str] = mapped_column(String(50))


ROWS = [{"text": text, "seen": "now"} for text in "abc"]


@pytest.fixture
def site(serve: Serve) -> Site:
    return serve(Base.metadata)


def upsert(site: Site) -> Any:
    """INSERT, or else UPDATE, in the words of the application's database."""
    match site.engine.dialect.name:
        case "postgresql":
            statement = postgresql.insert(Word)
            return statement.on_conflict_do_update(
                index_elements=["text"], set_={"seen": statement.excluded.seen}
            )
        case "sqlite":
            lite = sqlite.insert(Word)
            return lite.on_conflict_do_update(
                index_elements=["text"], set_={"seen": lite.excluded.seen}
            )
        case _:
            mine = mysql.insert(Word)
            return mine.on_duplicate_key_update(seen=mine.inserted.seen)


def insert_or_ignore(site: Site) -> Any:
    match site.engine.dialect.name:
        case "postgresql":
            return postgresql.insert(Word).on_conflict_do_nothing()
        case "sqlite":
            return sqlite.insert(Word).on_conflict_do_nothing()
        case _:
            return mysql.insert(Word).prefix_with("IGNORE")


def one_word(site: Site) -> int:
    with site.session() as session, session.begin():
        session.add(word := Word(text="b", seen="before"))
        session.flush()
        return word.id


def test_one_row_that_is_new(site: Site) -> None:
    with site.count() as counted, site.engine.begin() as connection:
        connection.execute(upsert(site).values(text="a", seen="now"))
    assert counted.draws == counted.tickets == {"words": 1}
    assert counted.inserts == [one("words")]


def test_one_row_that_was_there_keeps_its_id(site: Site) -> None:
    key = one_word(site)
    with site.count() as counted, site.engine.begin() as connection:
        connection.execute(upsert(site).values(text="b", seen="now"))
    assert counted.tickets == {"words": 1}  # of no use to anybody: a gap
    assert site.rows(Word.id, Word.seen) == [(key, "now")]


@pytest.mark.parametrize("way", ["core", "orm", "values"])
def test_many_rows(site: Site, way: str) -> None:
    key = one_word(site)
    with site.count() as counted, site.session() as session, session.begin():
        if way == "core":
            session.connection().execute(upsert(site), ROWS)
        elif way == "orm":
            session.execute(upsert(site), ROWS)
        else:
            session.execute(upsert(site).values(ROWS))
    assert counted.draws == {"words": 1}
    assert counted.tickets == {"words": 3}
    assert counted.inserts == [one("words") if way == "values" else many("words", 3)]
    words = dict(row[::-1] for row in site.rows(Word.id, Word.text))
    assert set(words) == set("abc")
    assert words["b"] == key


def test_rows_that_are_there_are_ignored(site: Site) -> None:
    key = one_word(site)
    with site.count() as counted, site.engine.begin() as connection:
        connection.execute(insert_or_ignore(site), ROWS)
    assert counted.draws == {"words": 1}
    assert counted.tickets == {"words": 3}
    assert (key, "before") in site.rows(Word.id, Word.seen)
    assert len(site.rows(Word.id)) == 3


@pytest.mark.app_databases("postgresql", "sqlite")
def test_an_upsert_that_returns_tells_the_id_of_the_row(site: Site) -> None:
    key = one_word(site)
    with site.session() as session, session.begin():
        statement = upsert(site).returning(Word.id, Word.text)
        returned = {row.text: row.id for row in session.execute(statement, ROWS)}
    assert returned["b"] == key
    assert returned == {text: key for key, text in site.rows(Word.id, Word.text)}


def test_an_upsert_that_does_not_return_tells_the_id_it_offered(site: Site) -> None:
    """As SQLAlchemy does for every default: ask the database, not `inserted_primary_key`."""
    key = one_word(site)
    statement = upsert(site).values(text="b", seen="now")
    with site.engine.begin() as connection:
        offered = connection.execute(statement.inline()).inserted_primary_key
    assert offered is not None
    assert site.rows(Word.id) == [(key,)]
    assert offered[0] != key
