"""Addresses that lead to another server in the middle of something."""

from __future__ import annotations

import contextlib
import re
from typing import Any

import pytest

from sqla_tickets import TicketPool
from sqla_tickets.connect.connection import Connection
from sqla_tickets.connect.identity import KnownRuns
from sqla_tickets.draw.access import ServerAccess
from sqla_tickets.draw.table_access import TableAccess
from sqla_tickets.errors import TicketError
from sqla_tickets.high_water.service import HighWaterService
from sqla_tickets.maintenance import operations, resize, tombstones
from sqla_tickets.tables import inspection
from sqla_tickets.tables.context import StatementContext
from sqla_tickets.tables.metadata import TableMetadata

from .directed import play
from .models.sessions import ModelSession
from .scenario import Configuration, Scenario
from .servers import Kind
from .test_seeds import drawn_before_a_restore


@pytest.mark.parametrize(
    ("owner", "step", "is_before"),
    [
        (ServerAccess, "recognise", False),
        (TableAccess, "ask_peers", True),
        (HighWaterService, "read_marks", False),
    ],
)
def test_own_answer_counts_for_nothing_while_servers_change(
    monkeypatch: pytest.MonkeyPatch, owner: type, step: str, is_before: bool
) -> None:
    """Both addresses led to the restored server; it told its own mark while the first address led to its peer."""
    tickets: list[int] = []
    refused: list[str] = []
    original, strikes = getattr(owner, step), list[int]()

    def work(scenario: Scenario) -> None:
        tickets.extend(drawn_before_a_restore(scenario))
        network, second = scenario.network, scenario.pool()
        here = second.servers[0]

        def find_other() -> None:
            strikes.append(here.generation)
            network.lead("t1", "t2")
            with contextlib.suppress(TicketError):
                here.draw("photos", 1)
            network.lead("t1", "t1")
            here.connections.close_idle()

        def struck(this: object, *arguments: Any) -> Any:
            strikes_now = here in (this, *arguments) and not strikes
            if strikes_now and is_before:
                find_other()
            answer = original(this, *arguments)
            if strikes_now and not is_before:
                find_other()
            return answer

        monkeypatch.setattr(owner, step, struck)
        with contextlib.suppress(TicketError):
            tickets.extend(here.draw("photos", 1)[0])
        for _ in range(12):
            try:
                tickets.append(second.next_id("photos"))
            except TicketError as error:
                refused.append(str(error))
        assert here.generation > strikes[0]
        second.dispose()

    play("mysql", work)
    assert len(tickets) == len(set(tickets)), tickets
    assert "no peer can report a mark" in refused[0]


def test_two_runs_that_are_found_at_once_have_two_generations(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else what a peer has told while an address led to one of them would count for the other."""
    found: list[Connection] = []
    has = KnownRuns.has

    def work(scenario: Scenario) -> None:
        scenario.create_tables()
        world, network, pool = scenario.world, scenario.network, scenario.pool()
        here = pool.servers[0]
        here.draw("photos", 1)
        network.lead("t1", "t2")
        found.append(here.connections.open())
        network.lead("t1", "t1")
        network.hosts["t1"].stop(is_crash=False)
        network.hosts["t1"].start()
        found.append(here.connections.open())

        def has_meanwhile(*arguments: Any, **options: Any) -> bool:
            monkeypatch.undo()
            world.machine.spawn(lambda: here.recognise(found[1]), "other")
            world.sleep(1)
            return has(*arguments, **options)

        monkeypatch.setattr(KnownRuns, "has", has_meanwhile)
        here.recognise(found[0])
        world.sleep(1)
        pool.dispose()

    play("mysql", work)
    assert 1 < found[0].generation != found[1].generation > 1


@pytest.mark.parametrize("is_swapped", [False, True])
@pytest.mark.parametrize("change", ["create", "create again", "convert", "finish", "rename"])
def test_no_server_is_given_the_numbers_of_another(
    monkeypatch: pytest.MonkeyPatch, change: str, is_swapped: bool
) -> None:
    """An operator was killed between two servers; for the next one, addresses lead to other servers."""
    sequence = {"create": "albums", "rename": "pictures"}.get(change, "photos")
    refused: list[str] = []
    offsets: list[int] = []

    def change_tables(pool: TicketPool) -> None:
        try:
            if change == "convert":
                operations.convert(pool, sequence, "counter")
            elif change == "finish":
                resize.finish(pool, sequence)
            elif change == "rename":
                operations.rename(pool, "photos", sequence)
            else:
                pool.create_table(sequence)
        except TicketError as error:
            refused.append(str(error))

    def kill_before_second(owner: object, name: str) -> None:
        original = getattr(owner, name)

        def kill(context: StatementContext, *arguments: Any) -> Any:
            if context.offset == 2:
                raise TicketError("killed")
            return original(context, *arguments)

        monkeypatch.setattr(owner, name, kill)

    def work(scenario: Scenario) -> None:
        scenario._layout = None
        scenario.create_tables()
        stride = 4 if change == "finish" else 2
        before, configuration = scenario.pool(), Configuration(("t1", "t2"), stride)
        before.next_ids("photos", 10)
        if change == "create again":
            operations.drop(before, sequence)
        kill_before_second(inspection, "create")
        kill_before_second(tombstones, "open_table")
        change_tables(scenario.pool(configuration))
        monkeypatch.undo()
        if is_swapped:
            scenario.network.swap("t1", "t2")
        else:
            scenario.network.lead("t1", "t2")
        change_tables(scenario.pool(configuration))
        for name in scenario.network.hosts:
            scenario.network.lead(name, name)
        for server in scenario.pool(configuration).servers:
            metadata = TableMetadata.parse(server.do("", tombstones.comments).get(sequence))
            offsets.extend([] if metadata is None else [metadata.offset])
        change_tables(scenario.pool(configuration))
        assert scenario.pool(configuration).next_ids(sequence, 10)

    play("mysql", work)
    assert refused[0] == "killed"
    assert re.search("its address leads to|is numbered differently", refused[1])
    assert len(refused) == 2
    assert offsets == [1]


@pytest.mark.parametrize("kind", ["mysql", "postgresql"])
def test_killed_question_for_its_identity_hides_no_restored_server(
    monkeypatch: pytest.MonkeyPatch, kind: Kind
) -> None:
    """It was taken for a server that tells none, and so for the one of before, whose table was verified."""
    tickets: list[int] = []
    killed: list[int] = []
    handle = ModelSession.handle

    def work(scenario: Scenario) -> None:
        scenario.create_tables()
        world, host, pools = (
            scenario.world,
            scenario.network.hosts["t1"],
            [scenario.pool() for _ in range(2)],
        )
        (idle, _), (busy, _) = (pool.servers for pool in pools)
        tickets.extend(idle.draw("photos", 1)[0])
        image = host.model.image()
        for _ in range(20):
            tickets.extend(busy.draw("photos", 1)[0])
        world.sleep(5)
        tickets.extend(busy.draw("photos", 1)[0])
        world.sleep(1)  # the peer is told
        pools[1].dispose()
        host.stop(is_crash=False)
        host.model.restore(image)
        host.start()

        def handle_and_kill(session: ModelSession, request: object) -> object:
            question = idle.context.dialect.identity()
            if question is not None and question.text in str(request) and not killed:
                killed.append(session.id)
                raise session.interrupted("query")
            return handle(session, request)

        monkeypatch.setattr(ModelSession, "handle", handle_and_kill)
        idle.connections.close_idle()
        for _ in range(3):
            with contextlib.suppress(TicketError):
                tickets.extend(idle.draw("photos", 1)[0])
        pools[0].dispose()

    play(kind, work)
    assert killed
    assert len(tickets) == len(set(tickets)), tickets
