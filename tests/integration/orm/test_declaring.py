"""Declaring: every spelling of a ticket column, and what becomes of it in copies and in DDL."""

from __future__ import annotations

import pickle
from typing import Annotated, Any

import pytest
from sqlalchemy import (
    BigInteger,
    Column,
    Integer,
    MetaData,
    String,
    Table,
)
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.orm import (
    DeclarativeBase,
    Mapped,
    MappedAsDataclass,
    declared_attr,
    mapped_column,
    registry,
    sessionmaker,
)
from sqlalchemy.schema import CreateTable

from sqla_tickets import TicketPool, TicketSequence, TicketsExhausted
from tests.integration.orm.conftest import Serve
from tests.support.counting import Site

TicketId = Annotated[int, mapped_column(BigInteger, TicketSequence(), primary_key=True)]
GlobalId = Annotated[int, mapped_column(BigInteger, TicketSequence("ids"), primary_key=True)]


class Base(DeclarativeBase):
    pass


class Cat(Base):
    __tablename__ = "cats"
    id: Mapped[TicketId]


class Dog(Base):
    __tablename__ = "dogs"
    id: Mapped[TicketId]


class Horse(Base):
    __tablename__ = "horses"
    id: Mapped[GlobalId]


class Mixin:
    id: Mapped[int] = mapped_column(BigInteger, TicketSequence(), primary_key=True)


class Apple(Mixin, Base):
    __tablename__ = "apples"


class Pear(Mixin, Base):
    __tablename__ = "pears"


class DeclaredMixin:
    @declared_attr
    def id(cls) -> Mapped[int]:  # noqa: N805  # declared_attr makes it a class method
        return mapped_column(BigInteger, TicketSequence(block=2), primary_key=True)


class Plum(DeclaredMixin, Base):
    __tablename__ = "plums"


class Entity(Base):
    __abstract__ = True
    id: Mapped[int] = mapped_column(TicketSequence(), primary_key=True)


class House(Entity):
    __tablename__ = "houses"


class Tower(Entity):
    __tablename__ = "towers"


class Positional(MappedAsDataclass, Base):
    __tablename__ = "positional"
    id: Mapped[int] = mapped_column(
        BigInteger, TicketSequence(), primary_key=True, init=False, repr=False
    )
    title: Mapped[str] = mapped_column(String(50), default="untitled")


class InsertDefault(MappedAsDataclass, Base):
    __tablename__ = "insert_default"
    id: Mapped[int] = mapped_column(
        BigInteger, insert_default=TicketSequence(), primary_key=True, init=False
    )
    title: Mapped[str] = mapped_column(String(50), default="untitled")


class Optional(MappedAsDataclass, Base):
    """Its id can be set by hand, and is None else."""

    __tablename__ = "optional"
    id: Mapped[int | None] = mapped_column(
        BigInteger, TicketSequence(), primary_key=True, default=None
    )


class Keyword(Base):
    __tablename__ = "keyword"
    id: Mapped[int] = mapped_column(BigInteger, default=TicketSequence(), primary_key=True)


class Small(Base):
    """The type comes from the annotation: an Integer."""

    __tablename__ = "small"
    id: Mapped[int] = mapped_column(TicketSequence(), primary_key=True)


class Imperative:
    pass


imperative = Table(
    "imperative", Base.metadata, Column("id", Integer, TicketSequence(), primary_key=True)
)
registry(metadata=Base.metadata).map_imperatively(
    Imperative, imperative, properties={"number": imperative.c.id}
)

OWN_NAME = {
    "cats": Cat,
    "dogs": Dog,
    "ids": Horse,
    "apples": Apple,
    "pears": Pear,
    "plums": Plum,
    "houses": House,
    "towers": Tower,
    "positional": Positional,
    "insert_default": InsertDefault,
    "optional": Optional,
    "keyword": Keyword,
    "small": Small,
    "imperative": Imperative,
}


@pytest.mark.parametrize("table", Base.metadata.sorted_tables, ids=str)
def test_no_column_becomes_autoincrement(table: Table) -> None:
    """Neither in the models, nor in what would be created from them."""
    (column,) = table.primary_key
    assert column.autoincrement is False
    assert isinstance(column.default, TicketSequence)
    create = CreateTable(table)
    on_mysql, on_postgresql, on_sqlite = (
        str(create.compile(dialect=module.dialect())) for module in (mysql, postgresql, sqlite)
    )
    assert "AUTO_INCREMENT" not in on_mysql
    assert "SERIAL" not in on_postgresql
    assert "GENERATED" not in on_postgresql
    assert "AUTOINCREMENT" not in on_sqlite


@pytest.mark.app_databases("sqlite", "mysql")
@pytest.mark.parametrize(("sequence", "kind"), OWN_NAME.items(), ids=list(OWN_NAME))
def test_every_spelling_draws_from_its_sequence(serve: Serve, sequence: str, kind: Any) -> None:
    site = serve(Base.metadata)
    with site.count() as counted, site.session() as session, session.begin():
        session.add_all([kind(), kind()])
    assert set(counted.draws) <= {sequence}
    assert len(site.rows(kind.__mapper__.primary_key[0])) == 2


def test_tables_that_share_one_sequence_take_one_draw(serve: Serve) -> None:
    class Own(DeclarativeBase):
        pass

    class Photo(Own):
        __tablename__ = "photos"
        id: Mapped[GlobalId]

    class Tag(Own):
        __tablename__ = "tags"
        id: Mapped[GlobalId]

    site = serve(Own.metadata)
    objects: list[Photo | Tag] = [Photo(), Tag(), Photo(), Tag()]
    with site.count() as counted, site.session() as session, session.begin():
        session.add_all(objects)
        session.flush()
        ids = [each.id for each in objects]
    assert counted.draws == {"ids": 1}
    assert counted.tickets == {"ids": 4}
    assert ids == sorted(ids)


@pytest.mark.app_databases("mysql", "mariadb")
def test_the_server_agrees_that_nothing_counts(serve: Serve) -> None:
    site = serve(Base.metadata)
    with site.engine.connect() as connection:
        row = connection.exec_driver_sql("SHOW CREATE TABLE cats").one()
    assert "AUTO_INCREMENT" not in row[1].upper()


# -- copies


def table_of(sequence: TicketSequence, name: str = "photos") -> Table:
    return Table(name, MetaData(), Column("id", BigInteger, sequence, primary_key=True))


def default_of(table: Table) -> TicketSequence:
    default = table.c.id.default
    assert isinstance(default, TicketSequence)
    return default


def plain(sequence: TicketSequence) -> tuple[str | None, str | None, int | tuple[int, int]]:
    return sequence.name, sequence.pool, sequence.block


def test_a_table_copied_to_another_metadata(serve: Serve) -> None:
    original = table_of(TicketSequence("photos", block=(2, 20)))
    other = MetaData()
    copied = original.to_metadata(other)
    assert plain(default_of(copied)) == ("photos", None, (2, 20))
    assert default_of(copied) is not default_of(original)
    assert copied.c.id.autoincrement is False
    site = serve(other)
    with site.engine.begin() as connection:
        connection.execute(copied.insert(), [{}, {}, {}])
    assert len(site.rows(copied)) == 3


def test_a_sequence_without_a_name_follows_the_table(tickets: TicketPool) -> None:
    original = table_of(TicketSequence())
    renamed = original.to_metadata(MetaData(), name="pictures", schema="archive")
    tickets.create_table("photos")
    tickets.create_table("pictures")
    tickets.attach(original.metadata)
    tickets.attach(renamed.metadata)
    default_of(original).arg(None)
    default_of(renamed).arg(None)
    drawn = {s.sequence for s in tickets.status() if s.draws}
    assert drawn == {"photos", "pictures"}


def test_metadata_can_be_pickled_while_a_pool_is_attached(serve: Serve) -> None:
    table = table_of(TicketSequence(block=3))
    with TicketPool(["sqlite://"]).attached(table.metadata):
        metadata = pickle.loads(pickle.dumps(table.metadata))
    again = metadata.tables["photos"]
    assert plain(default_of(again)) == (None, None, 3)
    site = serve(metadata)
    with site.engine.begin() as connection:
        connection.execute(again.insert(), [{}, {}, {}])
    assert len(site.rows(again)) == 3


def test_objects_can_be_pickled_before_and_after_the_flush(serve: Serve) -> None:
    site = serve(Base.metadata)
    with sessionmaker(site.engine).begin() as session:
        session.add(pickle.loads(pickle.dumps(Cat())))
        session.add(cat := Cat())
        session.flush()
        key = cat.id
        assert pickle.loads(pickle.dumps(cat)).id == key
    assert len(site.rows(Cat.id)) == 2


# -- invalid declarations


@pytest.mark.app_databases("sqlite")
def test_a_ticket_that_the_column_cannot_hold(serve: Serve) -> None:
    site: Site = serve(Base.metadata)
    site.pool.drop_table("small")
    site.pool.create_table("small", start=2**31 - 2)
    with site.session() as session:
        session.add_all([Small() for _ in range(5)])
        with pytest.raises(TicketsExhausted, match=r"small\.id .*BigInteger"):
            session.commit()
    assert site.rows(Small.id) == []
