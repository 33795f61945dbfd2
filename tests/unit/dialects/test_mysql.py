"""Which releases of MySQL keep their counter over a restart."""

from __future__ import annotations

import pytest
from sqlalchemy.dialects import mysql

from sqla_tickets.dialects import dialect_of


@pytest.mark.parametrize(("version", "kept"), [((5, 7, 44), False), ((8, 0, 11), True)])
def test_which_mysql_keeps_its_counter(version: tuple[int, ...], kept: bool) -> None:
    dialect = mysql.dialect()
    dialect.server_version_info = version
    assert dialect_of(dialect).keeps_counter() is kept
