"""Attaching: which pool serves which sequence, and that nothing else is touched."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import (
    BigInteger,
    Column,
    Engine,
    MetaData,
    Table,
    create_engine,
    event,
    insert,
    select,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from sqla_tickets import PoolNotAttached, TicketArgumentError, TicketPool, TicketSequence
from sqla_tickets.orm.flush import assign_tickets
from sqla_tickets.pool import attached_pools


class Base(DeclarativeBase):
    pass


class Photo(Base):
    """Of the default pool, and a number of another."""

    __tablename__ = "photos"
    id: Mapped[int] = mapped_column(BigInteger, TicketSequence(), primary_key=True)
    number: Mapped[int] = mapped_column(BigInteger, TicketSequence("photos", pool="invoices"))


def pool_of(folder: Path, name: str, start: int) -> TicketPool:
    pool = TicketPool([f"sqlite:///{folder / name}-tickets.db"], name=name)
    pool.create_table("photos", start=start)
    return pool


@pytest.fixture
def app() -> Iterator[Engine]:
    engine = create_engine("sqlite://")
    Base.metadata.create_all(engine)
    yield engine
    engine.dispose()


@pytest.fixture
def default(tmp_path: Path) -> Iterator[TicketPool]:
    with pool_of(tmp_path, "default", 1_000) as pool:
        yield pool
        pool.detach(Base.metadata)


@pytest.fixture
def invoices(tmp_path: Path) -> Iterator[TicketPool]:
    with pool_of(tmp_path, "invoices", 2_000) as pool:
        yield pool
        pool.detach(Base.metadata)


def add_one(engine: Engine) -> tuple[int, int]:
    with Session(engine) as session, session.begin():
        session.add(photo := Photo())
        session.flush()
        return photo.id, photo.number


def insert_one(engine: Engine) -> tuple[int, int]:
    with engine.begin() as connection:
        connection.execute(insert(Photo))
        row = connection.exec_driver_sql("SELECT id, number FROM photos ORDER BY id DESC").first()
        assert row is not None
        return row[0], row[1]


@pytest.mark.parametrize("write", [add_one, insert_one])
def test_pools_are_found_by_their_names(
    app: Engine, default: TicketPool, invoices: TicketPool, write: object
) -> None:
    assert callable(write)
    default.attach(Base.metadata)
    invoices.attach(Base.metadata)
    assert write(app) == (1_000, 2_000)
    assert write(app) == (1_001, 2_001)


@pytest.mark.parametrize("write", [add_one, insert_one])
def test_a_pool_that_is_missing_is_named(app: Engine, default: TicketPool, write: object) -> None:
    assert callable(write)
    default.attach(Base.metadata)
    with pytest.raises(
        PoolNotAttached, match=r"'invoices'.*photos\.number.*attached: default.*attach"
    ):
        write(app)


@pytest.mark.parametrize("write", [add_one, insert_one])
def test_nothing_is_attached(app: Engine, write: object) -> None:
    assert callable(write)
    with pytest.raises(PoolNotAttached, match=r"none is attached.*\.attach\(metadata\)"):
        write(app)


def test_a_pool_replaces_another(
    app: Engine, default: TicketPool, invoices: TicketPool, tmp_path: Path
) -> None:
    invoices.attach(Base.metadata)
    default.attach(Base.metadata)
    with TicketPool([f"sqlite:///{tmp_path / 'other.db'}"]) as other:
        other.create_table("photos", start=5_000)
        other.attach(Base.metadata)
        assert add_one(app)[0] == 5_000
        default.detach(Base.metadata)  # it has lost its place: nothing happens
        assert add_one(app)[0] == 5_001
        other.detach(Base.metadata)
        with pytest.raises(PoolNotAttached):
            add_one(app)


def test_a_pool_for_a_while(
    app: Engine, default: TicketPool, invoices: TicketPool, tmp_path: Path
) -> None:
    invoices.attach(Base.metadata)
    default.attach(Base.metadata)
    with TicketPool(["sqlite://"]) as other:
        other.create_table("photos", start=5_000)
        with other.attached(Base.metadata) as entered:
            assert entered is other
            assert add_one(app)[0] == 5_000
        assert add_one(app)[0] == 1_000


def test_a_pool_for_a_while_that_ends_in_an_error(
    app: Engine, default: TicketPool, invoices: TicketPool
) -> None:
    invoices.attach(Base.metadata)
    default.attach(Base.metadata)

    def fail() -> None:
        with TicketPool(["sqlite://"]).attached(Base.metadata):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert add_one(app)[0] == 1_000


def test_a_pool_for_a_while_where_there_was_none(default: TicketPool) -> None:
    table = Table("photos", MetaData(), Column("id", BigInteger, TicketSequence()))
    with default.attached(table.metadata):
        pass
    column_default = table.c.id.default
    assert isinstance(column_default, TicketSequence)
    with pytest.raises(PoolNotAttached):
        column_default.arg(None)


def test_one_pool_serves_several_metadatas(tmp_path: Path, default: TicketPool) -> None:
    tables = [
        Table("photos", MetaData(), Column("id", BigInteger, TicketSequence(), primary_key=True))
        for _ in range(2)
    ]
    keys = []
    for number, table in enumerate(tables):
        default.attach(table.metadata)
        engine = create_engine(f"sqlite:///{tmp_path / f'app{number}.db'}")
        table.metadata.create_all(engine)
        with engine.begin() as connection:
            keys.append(connection.execute(insert(table)).inserted_primary_key)
        engine.dispose()
    assert keys == [(1_000,), (1_001,)]


def test_several_metadatas_at_once(default: TicketPool) -> None:
    """As an application with Flask-SQLAlchemy's binds has them; each goes back to the pool it had before."""
    one, other = MetaData(), MetaData()
    with TicketPool(["sqlite://"]) as before:
        before.attach(other)
        with default.attached(one, other):
            assert [attached_pools(each) for each in (one, other)] == [{"default": default}] * 2
        assert attached_pools(one) == {}
        assert attached_pools(other) == {"default": before}
    default.attach(one, other)
    default.detach(one, other)
    assert [attached_pools(each) for each in (one, other)] == [{}, {}]


def test_all_of_several_metadatas_are_checked_first(default: TicketPool) -> None:
    metadata = MetaData()
    with pytest.raises(TicketArgumentError, match=r"only a MetaData.*found \["):
        default.attach(metadata, [MetaData()])  # type: ignore[arg-type]
    assert attached_pools(metadata) == {}
    for call in (default.attach, default.detach, default.attached().__enter__):
        with pytest.raises(TicketArgumentError, match="at least one MetaData"):
            call()


def test_a_sequence_in_no_table_has_no_pool() -> None:
    with pytest.raises(PoolNotAttached, match=r"pool\.next_id"):
        TicketSequence("photos").arg(None)


def test_a_declaration_of_two_tables_draws_for_each_from_its_own(tmp_path: Path) -> None:
    shared, metadata = TicketSequence(block=10), MetaData()
    engine = create_engine("sqlite://")
    with pool_of(tmp_path, "default", 1) as pool, pool.attached(metadata), engine.begin() as app:
        pool.create_table("tags")
        for name in ("photos", "tags"):
            Table(name, metadata, Column("id", BigInteger, shared, primary_key=True)).create(app)
        for table in metadata.sorted_tables:
            app.execute(insert(table))
        assert [pool.buffered(name) for name in ("photos", "tags")] == [9, 9]
    engine.dispose()


def test_a_declaration_of_two_tables_answers_for_the_first(default: TicketPool) -> None:
    """Outside of inserts too; the second table has a declaration of its own."""
    shared, metadata = TicketSequence(block=10), MetaData()
    photos, tags = (
        Table(name, metadata, Column("id", BigInteger, shared, primary_key=True))
        for name in ("photos", "tags")
    )
    default.create_table("tags", start=3_000)
    engine = create_engine("sqlite://")
    metadata.create_all(engine)
    with default.attached(metadata), engine.begin() as app:
        for table, start in ((photos, 1_000), (tags, 3_000)):
            declared = table.c.id.default
            assert isinstance(declared, TicketSequence)
            drawn = [
                declared.arg(None),
                default.next_id(declared),
                *default.next_ids(declared, 2),
                app.scalar(declared),
                app.scalar(select(declared.next_value())),
            ]
            key = app.execute(insert(table).values(id=declared.next_value())).inserted_primary_key
            assert sorted([*drawn, *(key or ())]) == list(range(start, start + 7))
    assert photos.c.id.default is shared
    engine.dispose()


def test_the_listener_is_installed_once(
    app: Engine, default: TicketPool, invoices: TicketPool
) -> None:
    for _ in range(3):
        default.attach(Base.metadata)
        invoices.attach(Base.metadata)
        default.attach(MetaData())
    assert list(Session().dispatch.before_flush) == [assign_tickets]
    assert event.contains(Session, "before_flush", assign_tickets)
    add_one(app)
    assert [status.draws for status in default.status()] == [1]


def test_the_application_may_not_be_the_ticket_server(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'both.db'}"
    engine = create_engine(url)
    table = Table("things", MetaData(), Column("id", BigInteger, TicketSequence("tickets")))
    table.metadata.create_all(engine)
    with (
        TicketPool([url]).attached(table.metadata),
        engine.begin() as connection,
        pytest.raises(TicketArgumentError, match="a file of their own"),
    ):
        connection.execute(insert(table))
    engine.dispose()


SCRIPT = """
from sqlalchemy import BigInteger, Column, MetaData, Table, create_engine
from sqlalchemy.events import ConnectionEvents, DDLEvents, DialectEvents, PoolEvents
from sqlalchemy.orm import Session, SessionEvents, sessionmaker

def listeners():
    engine = create_engine("sqlite://")
    targets = [
        (Session(), SessionEvents),
        (engine, ConnectionEvents),
        (engine.dialect, DialectEvents),
        (engine.pool, PoolEvents),
        (Table("t", MetaData(), Column("id")), DDLEvents),
    ]
    return {
        (events.__name__, name): len(list(getattr(target.dispatch, name)))
        for target, events in targets
        for name in vars(events)
        if not name.startswith("_") and name != "dispatch"
    }

before, maker = listeners(), sessionmaker()
import sqla_tickets, sqla_tickets.orm.flush
metadata = MetaData()
Table("t", metadata, Column("id", BigInteger, sqla_tickets.TicketSequence(), primary_key=True))
pool = sqla_tickets.TicketPool(["sqlite:///nowhere/at/all"])
assert listeners() == before, "importing and declaring change nothing"
pool.attach(metadata)
after = listeners()
changed = {name for name in after if after[name] != before[name]}
added = ("before_flush", "after_transaction_create")
assert changed == {("SessionEvents", name) for name in added}
installed = [sqla_tickets.orm.flush.assign_tickets]
assert list(Session().dispatch.before_flush) == installed
assert list(maker().dispatch.before_flush) == installed, "makers of before are served too"
import sys
assert "alembic" not in sys.modules
"""


def test_importing_changes_nothing() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", SCRIPT], capture_output=True, text=True
    )
    assert done.stderr == ""
    assert done.returncode == 0
