"""What each operation does, on real servers."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from alembic import op as untyped_op
from alembic.util import CommandError
from sqlalchemy import URL, create_engine, text

import alembic_ext
import alembic_ext as op
from sqla_tickets import TicketPool, TicketTableMissing
from sqla_tickets.high_water.statements import MARKS
from sqla_tickets.maintenance import operations as maintenance
from sqla_tickets.tables.inspection import ActiveTable
from sqla_tickets.tables.metadata import Tombstone
from tests.support.migration_contexts import operations

EVERY_FUNCTION = sorted(alembic_ext.__all__)


def states(pool: TicketPool, name: str = "photos") -> list[object]:
    return list(maintenance.table_states(pool, name).values())


def layouts(pool: TicketPool) -> set[str]:
    return {state.layout for state in states(pool) if isinstance(state, ActiveTable)}


def kinds(pool: TicketPool, name: str = "photos") -> set[str]:
    return {state.kind for state in states(pool, name) if isinstance(state, Tombstone)}


def test_create_is_repeatable_and_verified(default: TicketPool) -> None:
    with operations(default):
        op.create_ticket_table("photos", start=1000)
        drawn = default.next_ids("photos", 4)
        op.create_ticket_table("photos", start=1000)
        op.create_ticket_table("photos")
    assert min(drawn) >= 1000
    assert len({*drawn, *default.next_ids("photos", 4)}) == 8


def test_every_function_is_in_op_and_typed(default: TicketPool) -> None:
    assert all(callable(getattr(untyped_op, function)) for function in EVERY_FUNCTION)
    with operations(default):
        alembic_ext.create_ticket_table("photos", bits=32)
        assert len(set(alembic_ext.next_tickets("photos", 5))) == 5
        alembic_ext.raise_ticket_table("photos", above=700)
        alembic_ext.rename_ticket_table("photos", "pictures")
        alembic_ext.drop_ticket_table("pictures", force=True)
    assert kinds(default, "pictures") == {"dropped"}


def test_drop_keeps_the_table_unless_told(
    default: TicketPool, caplog: pytest.LogCaptureFixture
) -> None:
    with operations(default):
        op.create_ticket_table("photos")
        with caplog.at_level(logging.WARNING):
            op.drop_ticket_table("photos")
        assert "is kept" in caplog.text
        drawn = default.next_ids("photos", 4)
        op.drop_ticket_table("photos", force=True)
        with pytest.raises(TicketTableMissing, match="was dropped by a migration"):
            default.next_id("photos")
        op.drop_ticket_table("photos", force=True)
        op.create_ticket_table("photos")
    assert min(default.next_ids("photos", 4)) > max(drawn)


def alembics(caplog: pytest.LogCaptureFixture) -> str:
    """The messages of the loggers that a migration's ``alembic.ini`` shows."""
    records = [record for record in caplog.records if record.name.startswith("alembic.")]
    return "\n".join(record.getMessage() for record in records)


@pytest.mark.ticket_servers("mariadb", "sqlite")
def test_drop_and_move_are_logged(
    default: TicketPool, media: TicketPool, caplog: pytest.LogCaptureFixture
) -> None:
    """With alembic's loggers, as ``fileConfig`` disables those that exist before it."""
    caplog.set_level(logging.INFO)
    with operations(default, media):
        op.create_ticket_table("photos")
        op.create_ticket_table("people")
        op.move_ticket_table("photos", to="media")
        assert "'photos' of the pool 'default' has become 'photos' of the pool 'media'" in alembics(
            caplog
        )
        op.drop_ticket_table("people", force=True)
        dropped = "the ticket table 'people' is dropped on every server of the pool 'default'"
        assert dropped in alembics(caplog)
        op.drop_ticket_table("photos")
    assert "which drop nothing if the sequence has moved" in alembics(caplog)


def test_raise_never_lowers(default: TicketPool) -> None:
    with operations(default):
        op.create_ticket_table("photos")
        op.raise_ticket_table("photos", above=10_000)
        high = default.next_ids("photos", 4)
        assert min(high) > 10_000
        op.raise_ticket_table("photos", above=50)
    assert min(default.next_ids("photos", 4)) > 10_000
    assert len(set(high)) == 4


@pytest.mark.ticket_servers("mariadb", "sqlite")
def test_a_sequence_that_has_moved_is_found(
    default: TicketPool, media: TicketPool, tmp_path: Path
) -> None:
    """However often, by the older revisions that run for one more shard after the others."""
    shard = URL.create("sqlite", database=str(tmp_path / "shard.db"))
    with create_engine(shard).begin() as connection:
        connection.execute(text("CREATE TABLE photos (id BIGINT PRIMARY KEY)"))
        connection.execute(text("INSERT INTO photos VALUES (50000)"))
    with operations(default, media, app=shard):
        op.create_ticket_table("photos")
        op.rename_ticket_table("photos", "pictures")
        op.move_ticket_table("pictures", to="media")
        drawn = op.next_tickets("photos", 3)
        op.raise_ticket_table("photos", above=9_000)
        drawn += op.next_tickets("photos", 3)
        assert min(drawn[3:]) > 9_000
        op.create_ticket_table("photos", start_above=("photos", "id"))
        assert min(media.next_ids("pictures", 4)) > 50_000
    assert len(set(drawn)) == 6


@pytest.mark.ticket_servers("mariadb", "sqlite")
def test_a_sequence_that_has_moved_is_not_dropped_where_it_was(
    default: TicketPool, media: TicketPool, caplog: pytest.LogCaptureFixture
) -> None:
    """What would be created there again later would begin where the sequence has long been."""
    with operations(default, media):
        op.create_ticket_table("photos")
        op.move_ticket_table("photos", to="media")
        drawn = media.next_ids("photos", 9)
        before = states(default)
        op.drop_ticket_table("photos", force=True)
        assert states(default) == before
        skip = "the ticket table 'photos' is not dropped, as the sequence is left unchanged: it is now 'photos' of"
        assert f"{skip} the pool 'media'" in alembics(caplog)
        op.create_ticket_table("photos")
        drawn += op.next_tickets("photos", 9)
    assert len(set(drawn)) == 18


@pytest.mark.ticket_servers("mariadb", "mysql")
def test_convert_there_and_back(default: TicketPool) -> None:
    with operations(default):
        op.create_ticket_table("photos")
        drawn = default.next_ids("photos", 6)
        op.convert_ticket_table("photos", layout="counter")
        assert layouts(default) == {"counter"}
        drawn += default.next_ids("photos", 6)
        op.convert_ticket_table("photos", layout="counter")
        op.convert_ticket_table("photos", layout="replace")
    assert layouts(default) == {"replace"}
    drawn += default.next_ids("photos", 6)
    assert len(set(drawn)) == 18


def test_convert_to_what_a_server_cannot_have(default: TicketPool) -> None:
    if default.servers[0].engine.dialect.name in ("mysql", "mariadb"):
        pytest.skip("it can")
    with operations(default):
        op.create_ticket_table("photos")
        with pytest.raises(CommandError, match="does not have this layout"):
            op.convert_ticket_table("photos", layout="replace")
    default.next_id("photos")


def test_a_table_of_32_bits_stays_one(default: TicketPool, media: TicketPool) -> None:
    """Until its numbers come near the end of 32 bits: then it is let through."""

    def bits(pool: TicketPool, name: str) -> set[int]:
        return {
            s.metadata.bits for s in states(pool, name) if isinstance(s, ActiveTable) and s.metadata
        }

    with operations(default, media):
        op.create_ticket_table("photos", bits=32)
        if default.servers[0].engine.dialect.name in ("mysql", "mariadb"):
            op.convert_ticket_table("photos", layout="counter")
            assert bits(default, "photos") == {32}
        op.rename_ticket_table("photos", "pictures")
        assert bits(default, "pictures") == {32}
        op.move_ticket_table("pictures", to="media")
        assert bits(media, "pictures") == {32}
        assert all(2**30 < (s.capacity_left or 0) < 2**31 for s in media.status())
        op.raise_ticket_table("pictures", above=2**32 - 100, pool="media")
        op.move_ticket_table("pictures", to="default", pool="media")
    assert bits(default, "pictures") == {64}
    assert default.next_ids("pictures", 100)[-1] > 2**32


@pytest.mark.ticket_servers("mariadb", "mysql")
def test_flickrs_own_table_is_converted_moved_and_renamed(
    default: TicketPool, media: TicketPool, ticket_urls: list[URL]
) -> None:
    """The table of the blog post, with no metadata, of 32 bits, its number far behind its counter."""
    for server in default.servers:
        with server.engine.connect() as connection:
            connection.execute(
                text(
                    "CREATE TABLE Tickets32 (id int unsigned NOT NULL auto_increment, stub char(1)"
                    " NOT NULL default '', PRIMARY KEY (id), UNIQUE KEY stub (stub))"
                    " AUTO_INCREMENT=70000 SELECT 5 AS id, 'a' AS stub"
                )
            )
    name = "Tickets32"
    default.raise_above(name, 70_000)
    drawn = default.next_ids(name, 4)
    with operations(default, media):
        op.convert_ticket_table(name, layout="counter")
        drawn += default.next_ids(name, 4)
        op.move_ticket_table(name, to="media")
        drawn += media.next_ids(name, 4)
        op.rename_ticket_table(name, "photos", pool="media")
    drawn += media.next_ids("photos", 4)
    assert len(set(drawn)) == 16
    assert drawn == sorted(drawn) or min(drawn) > 70_000
    with media.servers[0].engine.connect() as connection:
        shown = connection.execute(text("SHOW CREATE TABLE photos")).one()[1]
    assert "int" in shown
    assert "bigint" not in shown


@pytest.mark.ticket_servers("mariadb", "mysql")
def test_the_counter_is_the_high_water_not_the_row(default: TicketPool, media: TicketPool) -> None:
    """The row of Flickr's table may be behind what was issued: its REPLACE came late."""
    with operations(default, media):
        op.create_ticket_table("photos")
        issued = default.next_ids("photos", 10)
        for server in default.servers:
            with server.engine.connect() as connection:
                connection.execute(text("REPLACE INTO photos (id, stub) VALUES (1, 'a')"))
                connection.commit()
        op.move_ticket_table("photos", to="media")
    assert min(media.next_ids("photos", 4)) > max(issued)


def test_a_history_is_run_for_each_shard(default: TicketPool, media: TicketPool) -> None:
    """As the multidb template and loops over shards do: all revisions, for one after another."""
    drawn: list[int] = []
    for _shard in range(3):
        with operations(default, media):
            op.create_ticket_table("a")
            op.rename_ticket_table("a", "b")
            op.create_ticket_table("c")
            drawn += default.next_ids("c", 3)
            op.drop_ticket_table("c", force=True)
            op.raise_ticket_table("b", above=500)
            op.move_ticket_table("b", to="media")
        drawn += media.next_ids("b", 3)
    assert len(set(drawn)) == len(drawn)
    assert kinds(default, "a") == kinds(default, "b") == {"moved"}
    assert kinds(default, "c") == {"dropped"}


@pytest.mark.parametrize("of_others", [0, 100])
def test_table_lost_before_its_first_mark_begins_above_what_it_had_issued(
    of_others: int, default: TicketPool
) -> None:
    """A client that dies with it has not told its peers."""
    default.create_table("photos")
    first, lost = default.servers
    drawn = [first.draw("photos", of_others) if of_others else [], lost.draw("photos", 20_000)]
    lost.drop("photos")
    for server in default.servers:
        with server.engine.begin() as connection:
            connection.exec_driver_sql(f"DROP TABLE {MARKS}")
    assert not default._marks.of("photos").verified().largest
    default.create_table("photos")
    again = lost.draw("photos", 100)
    assert min(again[0]) > max(tickets[-1] for ranges in drawn for tickets in ranges)


def test_a_table_that_one_server_lost_begins_above_the_others(default: TicketPool) -> None:
    with operations(default):
        op.create_ticket_table("photos")
        drawn = default.next_ids("photos", 40)
        default.servers[0].drop("photos")
        drawn += default.next_ids("photos", 40)
        op.create_ticket_table("photos")
    for _ in range(20):
        drawn += default.next_ids("photos", 2)
    assert len(set(drawn)) == len(drawn)
