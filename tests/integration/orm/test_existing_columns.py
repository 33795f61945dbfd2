"""Columns that were there first get their sequence: reflected ones, automap's, those of other people's models."""

from __future__ import annotations

import gc
import pickle
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import pytest
from sqlalchemy import (
    BigInteger,
    Column,
    Computed,
    Engine,
    ForeignKey,
    Identity,
    Integer,
    MetaData,
    Sequence,
    String,
    Table,
    create_engine,
    delete,
    event,
    insert,
    text,
)
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.engine import Dialect
from sqlalchemy.ext.automap import automap_base
from sqlalchemy.ext.horizontal_shard import ShardedSession
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, registry
from sqlalchemy.schema import CreateTable

from sqla_tickets import PreflushDefault, TicketArgumentError, TicketPool, TicketSequence

#: The first number of the ticket tables: those below are the database's own.
START = 1_000


class ThirdParty(DeclarativeBase):
    """Somebody else's models."""


class Photo(ThirdParty):
    __tablename__ = "photos"
    id: Mapped[int] = mapped_column(primary_key=True)
    title: Mapped[str] = mapped_column(String(50))


@pytest.fixture
def photos(app: Engine) -> Engine:
    """A database with a table that counts for itself."""
    ThirdParty.metadata.create_all(app)
    return app


@pytest.fixture
def own(photos: Engine) -> Iterator[Any]:
    """The class of somebody else's table, mapped anew for each test: what a test applies stays with it."""
    mapped = registry()
    table = ThirdParty.metadata.tables["photos"].to_metadata(mapped.metadata)

    class Own:
        pass

    mapped.map_imperatively(Own, table)
    yield Own
    mapped.dispose()


def serve(tickets: TicketPool, metadata: MetaData, *names: str) -> None:
    for name in names or ("photos",):
        tickets.create_table(name, start=START)
    tickets.attach(metadata)


def reflected(app: Engine) -> Table:
    return Table("photos", MetaData(), autoload_with=app)


# -- every way of inserting


def by_core(app: Engine, table: Table) -> None:
    with app.begin() as connection:
        connection.execute(insert(table).values(title="core"))


def by_many(app: Engine, table: Table) -> None:
    with app.begin() as connection:
        connection.execute(insert(table), [{"title": "many"}] * 3)


def by_values(app: Engine, table: Table) -> None:
    with app.begin() as connection:
        connection.execute(insert(table).values([{"title": "values"}] * 3))


CORE = [by_core, by_many, by_values]


def ids(app: Engine) -> list[int]:
    with app.connect() as connection:
        return list(connection.scalars(text("SELECT id FROM photos ORDER BY id")))


def flush(app: Engine, mapped: Any) -> None:
    with Session(app) as session, session.begin():
        session.add_all([mapped(title="flush"), mapped(title="flush")])


def bulk_save(app: Engine, mapped: Any) -> None:
    with Session(app) as session, session.begin():
        session.bulk_save_objects([mapped(title="bulk"), mapped(title="bulk")])


def bulk_mappings(app: Engine, mapped: Any) -> None:
    with Session(app) as session, session.begin():
        session.bulk_insert_mappings(mapped, [{"title": "bulk"}] * 2)


def orm_insert(app: Engine, mapped: Any) -> None:
    with Session(app) as session, session.begin():
        session.execute(insert(mapped), [{"title": "insert"}] * 2)


def added_late(app: Engine, mapped: Any) -> None:
    """After the listener has passed, by a single object whose id the statement draws."""
    with Session(app) as session, session.begin():
        session.connection()
        state = mapped(title="late")
        session.bulk_save_objects([state], return_defaults=True)


ORM = [flush, bulk_save, bulk_mappings, orm_insert, added_late]


@pytest.mark.parametrize("write", CORE)
def test_core_inserts_into_reflected_table_before_and_after(
    photos: Engine, tickets: TicketPool, write: Callable[[Engine, Table], None]
) -> None:
    table = reflected(photos)
    write(photos, table)  # by AUTO_INCREMENT: compiled and cached
    before = ids(photos)
    assert max(before) < START
    TicketSequence().apply_to(table.c.id)
    serve(tickets, table.metadata)
    write(photos, table)
    after = ids(photos)[len(before) :]
    assert len(after) == len(before)
    assert min(after) >= START


@pytest.mark.parametrize("write", [*CORE, *ORM])
def test_inserts_after_a_python_default_was_removed(
    photos: Engine, own: Any, tickets: TicketPool, write: Callable[[Engine, Any], None]
) -> None:
    """As the refusal of a column with a default advises."""
    column = own.__table__.c.id
    PreflushDefault(count(1).__next__).apply_to(column)
    mapped = own.__table__ if write in CORE else own
    write(photos, mapped)
    before = ids(photos)
    assert max(before) < START
    column.default = None
    TicketSequence().apply_to(column)
    serve(tickets, column.table.metadata)
    write(photos, mapped)
    after = ids(photos)[len(before) :]
    assert len(after) == len(before)
    assert min(after) >= START


@pytest.mark.parametrize("write", ORM)
def test_orm_inserts_before_and_after(
    photos: Engine, own: Any, tickets: TicketPool, write: Callable[[Engine, Any], None]
) -> None:
    write(photos, own)
    before = ids(photos)
    assert max(before) < START
    TicketSequence().apply_to(own.id)
    serve(tickets, own.__table__.metadata)
    write(photos, own)
    after = ids(photos)[len(before) :]
    assert len(after) == len(before)
    assert min(after) >= START


def test_statement_objects_that_were_executed_before(
    photos: Engine, own: Any, tickets: TicketPool
) -> None:
    """They remember their key in the cache, and the ORM's has a copy of the table."""
    table = own.__table__
    statements: list[Any] = [insert(table).values(title="core"), insert(own).values(title="orm")]
    engines = [photos, photos.execution_options(isolation_level="SERIALIZABLE")]
    for statement in statements:
        for engine in engines:
            with Session(engine) as session, session.begin():
                session.execute(statement)
    TicketSequence().apply_to(table.c.id)
    serve(tickets, table.metadata)
    before = ids(photos)
    for statement in statements:
        for engine in engines:
            with Session(engine) as session, session.begin():
                session.execute(statement)
    assert min(ids(photos)[len(before) :]) >= START


def test_returning_in_order_of_parameters(photos: Engine, own: Any) -> None:
    """An older statement has a copy of the table, whose key was the database's, and ascending."""
    if not photos.dialect.insert_returning:
        pytest.skip("it has no RETURNING")
    statement = insert(own).returning(own.id, own.title, sort_by_parameter_order=True)
    rows = [{"title": str(n)} for n in range(5)]
    with Session(photos) as session, session.begin():
        session.execute(statement, rows)
    PreflushDefault(count(START, -1).__next__).apply_to(own.id)
    with Session(photos) as session, session.begin():
        returned = session.execute(statement, rows).all()
        assert returned == [(START - n, str(n)) for n in range(5)]


@pytest.mark.app_databases("sqlite")
def test_returning_is_one_insert_of_many_rows(app: Engine) -> None:
    """SQLAlchemy inserts row by row where it cannot tell the rows by their key, and remembers the key."""
    table = Table(
        "photos",
        MetaData(),
        Column("id", BigInteger, Identity(increment=-1), primary_key=True),
        Column("title", String(50)),
    )
    table.create(app)
    rows = [{"id": n, "title": str(n)} for n in range(5)]
    statement = insert(table).returning(table.c.title, sort_by_parameter_order=True)
    with app.begin() as connection:
        connection.execute(statement, rows)
    PreflushDefault(count(START).__next__).apply_to(table.c.id)
    sent: list[str] = []
    event.listen(app, "before_cursor_execute", lambda *args: sent.append(args[2]))
    with app.begin() as connection:
        connection.execute(statement, [{"title": row["title"]} for row in rows])
    assert len(sent) == 1


# -- what a column had


AUTO_INCREMENT = ("AUTO_INCREMENT", "SERIAL", "IDENTITY", "AUTOINCREMENT", "nextval")


def key(*more: Any, table: dict[str, Any] | None = None, **kw: Any) -> Column[int]:
    """The key of a table of its own."""
    column = Column("id", BigInteger, *more, primary_key=True, **kw)
    Table("photos", MetaData(), column, Column("title", String(50)), **table or {})
    return column


def ddl_of(table: Table) -> str:
    dialects: list[Dialect] = [mysql.dialect(), postgresql.dialect(), sqlite.dialect()]  # type: ignore[no-untyped-call]
    return "".join(str(CreateTable(table).compile(dialect=dialect)) for dialect in dialects)


@pytest.mark.parametrize(
    "make",
    [
        key,
        lambda: key(autoincrement=True),
        lambda: key(Identity()),
        lambda: key(Sequence("photos_id_seq")),
        lambda: key(server_default=text("nextval('photos_id_seq')")),
        lambda: key(table={"sqlite_autoincrement": True}),
    ],
    ids=["auto", "autoincrement", "identity", "sequence", "server_default", "sqlite_autoincrement"],
)
def test_what_the_database_would_make_is_replaced(make: Callable[[], Column[int]]) -> None:
    column = make()
    table = column.table
    assert isinstance(table, Table)
    assert table.autoincrement_column is column or column.server_default is not None
    TicketSequence().apply_to(column)
    for kept in (
        table,
        table.to_metadata(MetaData()),
        pickle.loads(pickle.dumps(table.metadata)).tables["photos"],
    ):
        assert repr(kept.c.id.default) == "TicketSequence()"
        assert kept.autoincrement_column is None
        assert not any(word in ddl_of(kept) for word in AUTO_INCREMENT)


def test_reflected_keys_never_count_for_themselves(photos: Engine) -> None:
    """Whatever a database tells of its key: AUTO_INCREMENT on MySQL, a server default on PostgreSQL."""
    table = reflected(photos)
    TicketSequence().apply_to(table.c.id)
    ddl = str(CreateTable(table).compile(dialect=photos.dialect))
    assert not any(word in ddl for word in AUTO_INCREMENT)


def computed() -> Column[int]:
    column = Column("double", Integer, Computed("id * 2"))
    Table("photos", MetaData(), Column("id", Integer, primary_key=True), column)
    return column


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: key(default=7),
            r"photos\.id cannot draw from TicketSequence\('a'\), as it has the default ",
        ),
        (
            lambda: key(TicketSequence("b")),
            r"it has the default TicketSequence\('b'\): expected no default",
        ),
        (computed, r"photos\.double cannot draw .* the database computes the column"),
        (lambda: Photo.__table__.c.title, r"has the type .* use BigInteger"),
        (lambda: Column("id", Integer), "expected a table column"),
        (lambda: Photo, "expected a table column"),
        (lambda: Photo.__table__.alias().c.id, "expected a table column"),
        (mapped_column, "expected a table column"),
    ],
)
def test_what_cannot_be_replaced(make: Callable[[], Any], message: str) -> None:
    """It is refused by name, and the other columns of the call stay as they were."""
    fine = key()
    with pytest.raises(TicketArgumentError, match=message):
        TicketSequence("a").apply_to(fine, make())
    assert fine.default is None
    assert fine.table.autoincrement_column is fine


def test_engines_that_are_frozen_are_not_found() -> None:
    """As gunicorn's `--preload` is often used: their compiled statements would go on as they are."""
    column = key()
    gc.freeze()
    try:
        with pytest.raises(TicketArgumentError, match=r"gc\.unfreeze\(\) first"):
            TicketSequence().apply_to(column)
    finally:
        gc.unfreeze()
    assert column.default is None
    TicketSequence().apply_to(column)


def test_an_attribute_of_several_columns_is_ambiguous() -> None:
    class Base(DeclarativeBase):
        pass

    class Person(Base):
        __tablename__ = "people"
        id: Mapped[int] = mapped_column(primary_key=True)

    class Engineer(Person):
        __tablename__ = "engineers"
        id: Mapped[int] = mapped_column(ForeignKey("people.id"), primary_key=True)

    with pytest.raises(TicketArgumentError, match=r"engineers\.id, people\.id: name the one"):
        TicketSequence().apply_to(Engineer.id)
    TicketSequence().apply_to(Person.id)
    Base.registry.dispose()


def test_applying_again_changes_nothing() -> None:
    column = key()
    sequence = TicketSequence()
    sequence.apply_to(column, column)
    TicketSequence().apply_to(column)
    assert column.default is sequence


def test_one_declaration_for_many_columns(tickets: TicketPool) -> None:
    """Without a name, each draws from the sequence of its own table."""
    metadata = MetaData()
    tables = [Table(name, metadata, Column("id", Integer, primary_key=True)) for name in "abc"]
    TicketSequence(block=5).apply_to(*(table.c.id for table in tables))
    tickets.attach(metadata)
    assert tickets.declared_sequences() == {"a", "b", "c"}


# -- the frameworks' ways


@pytest.mark.parametrize("attach_first", [True, False])
@pytest.mark.parametrize("apply_before_mapping", [True, False])
def test_before_and_after_mapping_and_attaching(
    photos: Engine, tickets: TicketPool, attach_first: bool, apply_before_mapping: bool
) -> None:
    mapped, table = registry(), reflected(photos)
    own: Any = type("Own", (), {})

    def apply() -> None:
        if attach_first:
            serve(tickets, table.metadata)
        TicketSequence().apply_to(table.c.id)
        if not attach_first:
            serve(tickets, table.metadata)

    if apply_before_mapping:
        apply()
    mapped.map_imperatively(own, table)
    if not apply_before_mapping:
        flush(photos, own)
        with Session(photos) as session, session.begin():
            session.execute(text("DELETE FROM photos"))
        apply()
    flush(photos, own)
    mapped.dispose()
    assert min(ids(photos)) >= START


def test_automap(photos: Engine, tickets: TicketPool) -> None:
    base = automap_base()
    base.prepare(autoload_with=photos)
    TicketSequence().apply_to(base.classes.photos.id)
    serve(tickets, base.metadata)
    flush(photos, base.classes.photos)
    base.registry.dispose()
    assert min(ids(photos)) >= START


def test_a_column_that_is_no_key(app: Engine, tickets: TicketPool) -> None:
    """The ORM sent NULL for it, and remembers that."""

    class Base(DeclarativeBase):
        pass

    class Invoice(Base):
        __tablename__ = "invoices"
        id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
        number: Mapped[int | None] = mapped_column(BigInteger)

    Base.metadata.create_all(app)
    for n in range(2):
        if n:
            TicketSequence("numbers").apply_to(Invoice.number)
            serve(tickets, Base.metadata, "numbers")
        for write, number in ((orm_insert_one, 10 * n), (save_one, 10 * n + 1)):
            write(app, Invoice, number)
    Base.registry.dispose()
    with app.connect() as connection:
        rows = connection.execute(text("SELECT id, number FROM invoices ORDER BY id")).all()
    assert [number is None for _, number in rows] == [True, True, False, False]


def orm_insert_one(app: Engine, mapped: Any, number: int) -> None:
    with Session(app) as session, session.begin():
        session.execute(insert(mapped), [{"id": number}])


def save_one(app: Engine, mapped: Any, number: int) -> None:
    with Session(app) as session, session.begin():
        session.bulk_save_objects([mapped(id=number)])


@pytest.mark.app_databases("sqlite")
def test_shards_of_a_reflected_table(photos: Engine, tickets: TicketPool) -> None:
    """Reflected on one shard, used on all; the chooser sees the ids."""
    other = create_engine("sqlite://")
    ThirdParty.metadata.create_all(other)
    shards = {"odd": photos, "even": other}
    mapped, table = registry(), reflected(photos)
    own: Any = type("Own", (), {})
    mapped.map_imperatively(own, table)
    flush(photos, own)
    with photos.begin() as connection:
        connection.execute(delete(table))
    TicketSequence().apply_to(own.id)
    serve(tickets, table.metadata)
    with ShardedSession(
        shards=shards,
        shard_chooser=lambda mapper, instance, clause=None: (
            "odd" if instance.id % 4 < 2 else "even"
        ),
        identity_chooser=lambda mapper, primary_key, **kw: list(shards),
        execute_chooser=lambda state: list(shards),
    ) as session:
        session.add_all([own(title=str(n)) for n in range(8)])
        session.commit()
    mapped.dispose()
    assert len({*ids(photos), *ids(other)}) == 8
    assert ids(photos)
    assert ids(other)
    other.dispose()
