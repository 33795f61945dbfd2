"""Which kinds of databases are known, which are refused, and how another package adds one."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from sqlalchemy import create_engine
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.dialects.mysql.mariadb import MariaDBDialect

from sqla_tickets import TicketArgumentError, TicketPool, dialects
from sqla_tickets.dialects import TicketDialect, class_of, dialect_of
from sqla_tickets.dialects.mysql import MariaDB, MySQL
from sqla_tickets.dialects.postgresql import PostgreSQL
from sqla_tickets.dialects.sqlite import SQLite

ROOT = Path(__file__).parents[3]


class Driver(ModuleType):
    """A driver that is asked for nothing but its name and its errors."""

    paramstyle = "qmark"
    version = "5.2.0"
    Error = Exception

    def __getattr__(self, name: str) -> str:
        if name.startswith("__"):
            raise AttributeError(name)
        return name


def test_list_of_what_a_kind_owes_names_what_there_is() -> None:
    owed = str(dialects.__doc__).partition("What a kind must provide")[2]
    named = set(re.findall(r"``(\w+)(?: = None)?``", owed))
    assert sorted(name for name in named if not hasattr(TicketDialect, name)) == []
    assert TicketDialect.__abstractmethods__ <= named


def test_dialect_of_each_known_database() -> None:
    assert type(dialect_of(mysql.dialect())) is MySQL
    assert type(dialect_of(MariaDBDialect())) is MariaDB
    assert type(dialect_of(postgresql.dialect())) is PostgreSQL  # type: ignore[no-untyped-call]  # as SQLAlchemy left it
    assert type(dialect_of(sqlite.dialect())) is SQLite


def test_dialect_of_a_mysql_url_that_led_to_mariadb() -> None:
    dialect = mysql.dialect()
    assert type(dialect_of(dialect)) is MySQL
    dialect.is_mariadb = True  # as SQLAlchemy finds out by the first connection
    assert type(dialect_of(dialect)) is MariaDB


@pytest.mark.parametrize(
    ("url", "name"), [("mssql+pymssql://", "mssql"), ("oracle+oracledb://", "oracle")]
)
def test_pool_of_an_unknown_database_is_refused_by_name(url: str, name: str) -> None:
    """As a URL, before its driver is missed, and as an engine."""
    words = rf"^{name} cannot be a ticket server.*mysql, mariadb, postgresql, sqlite.*'sqla_tickets\.dialects'"
    with pytest.raises(TicketArgumentError, match=words):
        TicketPool([url])
    with pytest.raises(TicketArgumentError, match=words):
        TicketPool([create_engine(url, module=Driver(name))])


def test_dialect_of_another_package_is_drawn_from(tmp_path: Path) -> None:
    """Its entry point in a distribution of its own is all that it takes."""
    (tmp_path / "photodb.py").write_text(
        "from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite\n"
        "from sqla_tickets.dialects.sqlite import SQLite\n"
        "class PhotoDB(SQLiteDialect_pysqlite):\n"
        "    name = 'photodb'\n"
        "    supports_statement_cache = True\n"
        "class PhotoDBTickets(SQLite):\n"
        "    pass\n"
    )
    info = tmp_path / "photodb-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: photodb\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[sqlalchemy.dialects]\nphotodb = photodb:PhotoDB\n"
        "[sqla_tickets.dialects]\nphotodb = photodb:PhotoDBTickets\n"
    )
    program = (
        "from sqla_tickets import TicketPool\n"
        f"pool = TicketPool(['photodb:///{tmp_path}/1.db', 'photodb:///{tmp_path}/2.db'])\n"
        "pool.create_table('photos')\n"
        "print(type(pool.servers[0].context.dialect).__name__, sorted(pool.next_ids('photos', 4)),\n"
        "      sorted(pool.next_id('photos') for _ in range(2)))\n"
    )
    ran = subprocess.run(  # its own Python
        [sys.executable, "-c", program],
        env={"PYTHONPATH": f"{tmp_path}:{ROOT}"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert ran.stderr == ""
    kind, numbers = ran.stdout.split(maxsplit=1)
    assert kind == "PhotoDBTickets"
    ids = [int(number) for number in re.findall(r"\d+", numbers)]
    assert len(ids) == len(set(ids)) == 6


def test_entry_point_that_is_no_dialect_is_refused_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / "wrongdb-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: wrongdb\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[sqla_tickets.dialects]\nwrongdb = json:JSONDecoder\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(TicketArgumentError, match=r"'wrongdb'.*JSONDecoder.*TicketDialect"):
        class_of("wrongdb")


#: What asks for the name of a dialect in place of the dialect object.
CONDITIONS = re.compile(
    r"""dialect(?:\.name)?\s+(?:==|!=|in|not\s+in)\s|is_mariadb|(?:backend|kind|scheme)\s(?:==|!=|in|not\sin)\s\(?"(?:my|ma|po|sq)"""
    r"""|@compiles\([^)]*,|(?:execute_if|with_variant)\([^)]*"(?:mysql|mariadb|postgresql|sqlite)"|get_(?:backend|driver)_name\(\)\s*=="""
)


def test_no_condition_on_a_dialect_stands_outside_of_their_folder() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for package in ("sqla_tickets", "alembic_ext")
        for path in sorted((ROOT / package).rglob("*.py"))
        if path.parent != ROOT / "sqla_tickets" / "dialects"
        for line in path.read_text().splitlines()
        if CONDITIONS.search(line)
    ]
    assert found == []
