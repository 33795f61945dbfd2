"""The package over models of its servers, outside of the simulated world."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import pytest
from sqlalchemy import Engine

from sqla_tickets import TicketPool
from sqla_tickets.dialects import LayoutName, dialect_of
from sqla_tickets.maintenance.tombstones import lacking_privileges
from tests.simulation.models.direct import DirectNetwork, ThreadRuntime
from tests.simulation.models.drivers import model_engine
from tests.simulation.models.expressions import SyntaxNotModelled
from tests.simulation.models.mysql import MySQLServer
from tests.simulation.models.postgresql import PostgreSQLServer
from tests.simulation.models.sessions import ModelServer

VERSIONS = ("8.4.9", "10.11.19-MariaDB", "15.14")


class Pair:
    """Two models, and what reaches them."""

    def __init__(self, version: str) -> None:
        self.network = DirectNetwork({})
        self.servers: list[ModelServer] = []
        self.kind: Literal["mysql", "postgresql"] = "postgresql" if version == "15.14" else "mysql"
        for number in (1, 2):
            runtime = ThreadRuntime(number)
            model = PostgreSQLServer if self.kind == "postgresql" else MySQLServer
            server = model(runtime, version, identity=f"server {number}")
            self.network.servers[f"s{number}", None] = server, runtime
            self.servers.append(server)

    @property
    def layouts(self) -> tuple[LayoutName, ...]:
        return ("counter",) if self.kind == "postgresql" else ("replace", "counter")

    def engines(self) -> list[Engine]:
        return [model_engine(self.network, self.kind, f"s{number}") for number in (1, 2)]


@pytest.fixture(params=VERSIONS)
def pair(request: pytest.FixtureRequest) -> Pair:
    return Pair(request.param)


@pytest.fixture
def pool(pair: Pair) -> Iterator[TicketPool]:
    with TicketPool(pair.engines(), hedge=False) as pool:
        yield pool


def test_pool_draws_from_models(pair: Pair, pool: TicketPool) -> None:
    for layout in pair.layouts:
        pool.create_table(layout, layout=layout)
        drawn = [pool.next_id(layout) for _ in range(6)] + pool.next_ids(layout, 20)
        assert len(set(drawn)) == 26
        # draws leave a server alone while a mark is written over its only connection
        assert min(drawn) in (3, 4)
        assert max(drawn[:6]) <= 14


def test_tickets_after_a_crash_are_new(pair: Pair, pool: TicketPool) -> None:
    for layout in pair.layouts:
        pool.create_table(layout, layout=layout)
        before = pool.next_ids(layout, 10) + pool.next_ids(layout, 10)
        for server in pair.servers:
            server.stop(is_crash=True)
            server.start()
        after = [pool.next_id(layout) for _ in range(4)]
        assert not set(before) & set(after)
        assert len(set(after)) == 4


def test_tables_are_raised_and_moved_to_tombstones(pair: Pair, pool: TicketPool) -> None:
    from sqla_tickets.maintenance import operations

    pool.create_table("photos", layout="counter")
    operations.raise_above(pool, "photos", 1_000_000)
    if pair.kind == "mysql":
        operations.convert(pool, "photos", "replace")
    drawn = pool.next_ids("photos", 3)
    operations.rename(pool, "photos", "pictures")
    drawn += pool.next_ids("pictures", 3)
    assert min(drawn) > 1_000_000
    assert len(set(drawn)) == 6
    operations.drop(pool, "pictures")


def test_unknown_statement_is_no_error_of_a_server(pair: Pair) -> None:
    with (
        pair.engines()[0].connect() as connection,
        pytest.raises(SyntaxNotModelled, match="HANDLER photos OPEN"),
    ):
        connection.exec_driver_sql("HANDLER photos OPEN")


def test_user_of_a_model_has_privileges_on_its_tables(pair: Pair, pool: TicketPool) -> None:
    pool.create_table("photos")
    for server in pool.servers:
        assert server.do("photos", lacking_privileges, "photos", "tickets", "draw") == []
        assert server.do("photos", lacking_privileges, "other", "elsewhere", "draw")


def test_doctor_can_question_a_model_of_mysql(pair: Pair, pool: TicketPool) -> None:
    if pair.kind == "postgresql":
        return  # its catalog is not modelled
    pool.create_table("photos", layout="replace")
    engine = pair.engines()[0]
    with engine.connect() as connection:
        facts = dialect_of(engine.dialect).facts(connection.connection.cursor())
    assert facts.engines["photos"] == ("InnoDB", 2)
    assert facts.variables["innodb_flush_log_at_trx_commit"] == "1"
