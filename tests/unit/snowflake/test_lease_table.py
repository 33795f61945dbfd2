"""The statements of the table of node numbers."""

from __future__ import annotations

import re

import pytest
from sqlalchemy import make_url

from sqla_tickets.snowflake import lease_table


@pytest.mark.parametrize("kind", ["mysql", "mariadb"])
def test_script_names_the_engine(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server's default engine may lose rows in a crash."""
    monkeypatch.delitem(lease_table.TABLE.dialect_kwargs, f"{kind}_engine", raising=False)
    dialect = make_url(f"{kind}+pymysql://").get_dialect()()
    # SQLAlchemy orders a table's options by the hash seed
    assert re.search(r"[) ]ENGINE=InnoDB\b", lease_table.creation(dialect))
