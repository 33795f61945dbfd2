"""What a crash leaves of a model: all that was acknowledged, unless the server is told to be quicker than that."""

from __future__ import annotations

from collections.abc import Callable

import greenlet  # type: ignore[import-untyped]  # its stubs are a package of their own
import pytest

from tests.simulation.models.mysql import MySQLServer
from tests.simulation.models.postgresql import PostgreSQLServer
from tests.simulation.models.protocol import Login, Query, Result
from tests.simulation.models.scripts import StepRuntime
from tests.simulation.models.sessions import Costs, ModelServer
from tests.simulation.runtime import ConnectionLost

FLUSH_SECONDS = 0.01
#: Seeds of what a crash loses.
SEEDS = range(20)

_CREATE_REPLACE = (
    "CREATE TABLE photos (id BIGINT UNSIGNED NOT NULL AUTO_INCREMENT, stub CHAR(1) NOT NULL DEFAULT '',"
    " PRIMARY KEY (id), UNIQUE KEY stub (stub)) SELECT 1 AS id, 'a' AS stub"
)
_REPLACE = "REPLACE INTO photos (stub) VALUES ('a')"
_CREATE_COUNTER = "CREATE TABLE photos (stub CHAR(1) NOT NULL PRIMARY KEY, id BIGINT NOT NULL)"
_INSERT = "INSERT INTO photos (id, stub) VALUES (1, 'c')"


class Client:
    """A session of a model, and how it draws."""

    def __init__(self, server: ModelServer) -> None:
        self._session = server.connect(Login(database="d", autocommit=True), lambda: None)
        self.draw_statement = _REPLACE
        if isinstance(server, PostgreSQLServer):
            self.draw_statement = "UPDATE photos SET id = id + 1 WHERE stub = 'c' RETURNING id"

    def send(self, text: str) -> Result:
        answer = self._session.handle(Query(text))
        assert isinstance(answer, tuple)
        (result,) = answer
        assert isinstance(result, Result)
        return result

    def draw(self) -> int:
        result = self.send(self.draw_statement)
        return result.insert_id or int(str((result.rows or ((0,),))[0][0]))


def _mysql(seed: int, version: str = "8.4.9", costs: Costs | None = None) -> MySQLServer:
    server = MySQLServer(StepRuntime(seed), version, costs=costs)
    Client(server).send(_CREATE_REPLACE)
    return server


def _postgresql(seed: int, costs: Costs | None = None) -> PostgreSQLServer:
    server = PostgreSQLServer(StepRuntime(seed))
    client = Client(server)
    client.send(_CREATE_COUNTER)
    client.send(_INSERT)
    server.costs = costs or server.costs
    return server


def _restart(server: ModelServer, *, is_crash: bool = True) -> Client:
    server.stop(is_crash=is_crash)
    server.start()
    return Client(server)


@pytest.mark.parametrize("make", [_mysql, _postgresql])
def test_acknowledged_ticket_outlives_a_crash(make: Callable[[int], ModelServer]) -> None:
    for seed in SEEDS:
        server = make(seed)
        last = Client(server).draw()
        assert _restart(server).draw() == last + 1


@pytest.mark.parametrize("make", [_mysql, _postgresql])
def test_ticket_that_is_being_flushed_may_be_lost_or_kept(
    make: Callable[..., ModelServer],
) -> None:
    after: set[int] = set()
    for seed in SEEDS:
        server = make(seed, costs=Costs(flush=lambda random: FLUSH_SECONDS))
        runtime = server.runtime
        assert isinstance(runtime, StepRuntime)
        lost: list[bool] = []

        def draw(server: ModelServer = server, lost: list[bool] = lost) -> None:
            try:
                Client(server).draw()
            except ConnectionLost:
                lost.append(True)

        greenlet.greenlet(draw).switch()
        server.stop(is_crash=True)
        runtime.pass_time()
        assert lost == [True]
        server.costs = Costs()
        server.start()
        after.add(Client(server).draw())
    assert after == {2, 3}


def test_server_that_flushes_later_loses_the_last_second() -> None:
    lost = 0
    for seed in SEEDS:
        server = _mysql(seed)
        server.configure("innodb_flush_log_at_trx_commit", 2)
        runtime = server.runtime
        assert isinstance(runtime, StepRuntime)
        client = Client(server)
        old = client.draw()
        runtime.time += 2
        new = [client.draw() for _ in range(5)][-1]
        next_one = _restart(server).draw()
        assert old < next_one <= new + 1
        lost += next_one <= new
    assert lost


def test_session_of_an_earlier_start_leaves_later_ones_alone() -> None:
    server = _mysql(0)
    old = server.connect(Login(), lambda: None)
    server.stop(is_crash=True)
    server.start()
    new = [server.connect(Login(), lambda: None) for _ in range(3)]
    old.close()
    assert list(server.sessions.values()) == new


def test_clean_stop_loses_nothing() -> None:
    server = _mysql(0)
    server.configure("innodb_flush_log_at_trx_commit", 0)
    last = Client(server).draw()
    assert _restart(server, is_crash=False).draw() == last + 1


@pytest.mark.parametrize(
    ("version", "above"),
    [("5.7.44", 0), ("8.0.11", 1), ("10.2.3-MariaDB", 0), ("10.2.4-MariaDB", 2)],
)
def test_counter_after_a_restart_depends_on_the_version(version: str, above: int) -> None:
    server = _mysql(0, version)
    client = Client(server)
    client.draw()
    client.send("BEGIN")
    rolled_back = client.draw()
    client.send("ROLLBACK")
    assert _restart(server, is_crash=False).draw() == rolled_back + above


@pytest.mark.parametrize("make", [_mysql, _postgresql])
def test_restored_image_sets_numbers_back(make: Callable[[int], ModelServer]) -> None:
    server = make(0)
    client = Client(server)
    before = client.draw()
    image = server.image()
    client.draw()
    server.stop(is_crash=False)
    server.restore(image)
    server.start()
    assert Client(server).draw() == before + 1
