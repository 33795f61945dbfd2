"""The statements about marks: compiled once for each engine, with their values beside them."""

from __future__ import annotations

import pytest
from sqlalchemy import create_engine

from sqla_tickets.dialects import Statement, dialect_of
from sqla_tickets.dialects.base import MAX_COMPILED
from sqla_tickets.high_water.statements import JOINED, Mark, rows_of, upsert

URLS = ("sqlite://", "mysql+pymysql://host/db", "postgresql+psycopg://host/db")


@pytest.mark.parametrize("url", URLS)
def test_marks_of_two_writes_share_a_text_and_no_value(url: str) -> None:
    dialect = dialect_of(create_engine(url).dialect)
    marks = [Mark("photos", 2, 1, 7, 41), Mark("videos", 2, 1, 8, 43)]
    later = [mark._replace(number=mark.number + 2) for mark in marks]
    first, first_values = upsert(dialect, marks)
    second, second_values = upsert(dialect, later)
    assert first is second
    assert _sent(first, first_values).issuperset({"photos", "videos", 41, 43})
    assert _sent(second, second_values).issuperset({"photos", "videos", 43, 45})
    assert 41 not in _sent(second, second_values)


@pytest.mark.parametrize("url", URLS)
def test_rows_are_asked_for_by_any_names(url: str) -> None:
    dialect = dialect_of(create_engine(url).dialect)
    one, values = rows_of(dialect, 3, ["photos"])
    assert _sent(one, values) == {3, JOINED, "photos"}
    two, values = rows_of(dialect, 3, ["photos", "videos"])
    assert _sent(two, values) == {3, JOINED, "photos", "videos"}
    assert rows_of(dialect, 5, ["others"])[0] is one


def test_compiled_statements_are_no_more_than_so_many() -> None:
    dialect = dialect_of(create_engine("sqlite://").dialect)
    kept = {id(dialect.statement(f"SELECT \0n\0 + {n}")) for n in range(3)}
    assert {id(dialect.statement(f"SELECT \0n\0 + {n}")) for n in range(3)} == kept
    for n in range(MAX_COMPILED):
        dialect.statement(f"SELECT \0n\0 - {n}")
    assert dialect.statement("SELECT \0n\0 + 0").text == "SELECT ? + 0"
    assert id(dialect.statement("SELECT \0n\0 + 0")) not in kept


def _sent(statement: Statement, values: dict[str, int | str]) -> set[object]:
    parameters = statement.parameters(**values)
    return set(parameters.values() if isinstance(parameters, dict) else parameters)
