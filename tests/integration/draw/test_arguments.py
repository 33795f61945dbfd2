"""Invalid numbers, times and names: each is a `TicketArgumentError` that says what was expected."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from sqlalchemy import URL

from sqla_tickets import (
    NodeLeases,
    SnowflakeGenerator,
    TicketArgumentError,
    TicketPool,
    TicketSequence,
    TicketTableError,
)
from tests.support.draws import OpenPool, draw_from, residues, run

SQLITE = pytest.mark.ticket_servers("sqlite")
#: Python writes no number of so many digits.
TOO_LONG: Any = pytest.param(10**5000, id="too long")
NO_NAMES = ["a\0b", "a\ud800b", "", " ", None, 5, b"photos", ["photos"], "a%(b"]
RESERVED = ["ticket_nodes", "Ticket_Nodes", "sqla_tickets_marks"]
# An owner that closes its pool when it is collected may be the last of all.
CLOSES_AT_THE_END = """
import sys
from sqla_tickets import TicketPool
class Application:
    def __init__(self):
        self.pool = TicketPool(sys.argv[1:])
        self.pool.next_id("photos")
    def __del__(self):
        self.pool.dispose()
application = Application()
"""


def breakers(pool: TicketPool) -> set[str]:
    """The states of all breakers of a pool's servers and tables."""
    tables = {table.state for server in pool.servers for table in server.known_tables()}
    return {*tables, *(server.breaker.state for server in pool.servers)}


# -- numbers and times


@SQLITE
@pytest.mark.parametrize("above", ["5", None, 1.5, True, -1, 2**63 - 1, TOO_LONG])
def test_raise_above_what_is_no_number_is_refused(pool: TicketPool, above: int) -> None:
    before = [record.last_ticket for record in pool.status()]
    with pytest.raises(TicketArgumentError, match=r"'photos'.*above=.*whole number from 0 to"):
        pool.raise_above("photos", above)
    assert [record.last_ticket for record in pool.status()] == before
    assert breakers(pool) == {"closed"}


@SQLITE
@pytest.mark.parametrize(
    "wrong",
    [
        *({"start": start} for start in ("5", None, 1.5, True, 0, 2**63)),
        {"start": 2**32, "bits": 32},
        *({"bits": bits} for bits in (64.0, "64", None, True, 16)),
        {"engine": "InnoDB; DROP"},
        {"engine": "Inno DB"},
        {"layout": "other"},
    ],
)
def test_create_table_of_what_is_none_is_refused(pool: TicketPool, wrong: dict[str, Any]) -> None:
    with pytest.raises(TicketArgumentError, match=f"{next(iter(wrong))}="):
        pool.create_table("albums", **wrong)
    assert {record.sequence for record in pool.status()} == {"photos"}
    assert breakers(pool) == {"closed"}


@SQLITE
@pytest.mark.parametrize("sequences", [[None], [5], "photos", None, 5, [["photos"]], ["a\0b"]])
def test_status_of_what_is_no_name_is_refused(pool: TicketPool, sequences: list[str]) -> None:
    with pytest.raises(TicketArgumentError, match="sequence"):
        pool.status(sequences)
    assert breakers(pool) == {"closed"}
    assert {record.sequence for record in pool.status()} == {"photos"}


# -- names


@pytest.mark.parametrize("name", NO_NAMES)
def test_name_that_is_none_is_nobodys_fault(pool: TicketPool, name: str) -> None:
    """No driver can send it, which says nothing about its server."""
    calls: list[Callable[[], object]] = [
        lambda: pool.next_id(name),
        lambda: pool.reserve(name, 3),
        lambda: pool.create_table(name),
        lambda: pool.raise_above(name, 5),
        lambda: pool.drop_table(name),
        lambda: pool.unquarantine(name),
    ]
    for call in calls:
        with pytest.raises(TicketArgumentError, match="sequence"):
            call()
    assert breakers(pool) <= {"closed"}
    assert residues(pool.next_id("photos") for _ in range(4)) == {0, 1}


@pytest.mark.parametrize("name", ["📷", "фото", "a/b", "x" * 70, "photos "])
def test_name_that_a_server_cannot_have_is_no_outage(pool: TicketPool, name: str) -> None:
    """Whether it can is the server's to say; that it cannot opens no breaker of another table."""
    with suppress(TicketArgumentError):
        pool.create_table(name)
        pool.next_id(name)
    assert {server.breaker.state for server in pool.servers} == {"closed"}
    assert residues(pool.next_id("photos") for _ in range(4)) == {0, 1}


@pytest.mark.ticket_servers("mariadb")
def test_name_beyond_the_characters_of_the_connection_is_no_outage(
    ticket_urls: list[URL], open_pool: OpenPool
) -> None:
    open_pool(ticket_urls).create_table("photos")
    pool = open_pool([url.update_query_dict({"charset": "latin1"}) for url in ticket_urls])
    with pytest.raises(TicketArgumentError, match="фото"):
        pool.next_id("фото")
    assert breakers(pool) == {"closed"}
    assert residues(pool.next_id("photos") for _ in range(4)) == {0, 1}


@SQLITE
@pytest.mark.parametrize("name", RESERVED)
def test_name_of_a_table_of_ours_is_refused(pool: TicketPool, name: str) -> None:
    with pytest.raises(
        TicketArgumentError, match=rf"'{name}' is not a valid sequence name.*use the table"
    ):
        pool.create_table(name)
    with pytest.raises(
        TicketArgumentError, match=rf"'{name}' is not a valid sequence name.*use the table"
    ):
        pool.next_id(name)
    with pytest.raises(
        TicketArgumentError, match=rf"'{name}' is not a valid sequence name.*use the table"
    ):
        TicketSequence(name)
    NodeLeases(pool).create_table()
    assert SnowflakeGenerator(pool, "likes").next_id()


def test_create_node_table_sees_that_it_is_its_own(
    ticket_urls: list[URL], open_pool: OpenPool
) -> None:
    """One that an older release has made of a sequence's name, say."""
    pool = open_pool(ticket_urls)
    run(ticket_urls[1], "CREATE TABLE ticket_nodes (stub CHAR(1) PRIMARY KEY, id BIGINT)")
    wanted = r"'ticket_nodes'.*\(offset 2\).*expected the columns.*horizon.*found.*stub.*Rename"
    with pytest.raises(TicketTableError, match=wanted):
        NodeLeases(pool).create_table()
    assert pool.servers[1].breaker.is_closed
    run(ticket_urls[1], "DROP TABLE ticket_nodes")
    NodeLeases(pool).create_table()
    NodeLeases(pool).create_table()
    assert SnowflakeGenerator(pool, "likes").next_id()


# -- at the end of the interpreter


@SQLITE
def test_dispose_when_the_interpreter_ends_prints_nothing(
    pool: TicketPool, ticket_urls: list[URL]
) -> None:
    draw_from(pool, 1)
    urls = [url.render_as_string(hide_password=False) for url in ticket_urls]
    arguments = [sys.executable, "-c", CLOSES_AT_THE_END, *urls]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
