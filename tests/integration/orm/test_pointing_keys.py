"""Keys that point: a joined subclass's row has its base's id, whatever stands at its own key."""

import re
from collections.abc import Callable, Iterator
from typing import Annotated, Any, NamedTuple

import pytest
from sqlalchemy import (
    BigInteger,
    Column,
    Engine,
    ForeignKey,
    MetaData,
    String,
    Table,
    Uuid,
    create_engine,
    insert,
    select,
)
from sqlalchemy.ext.horizontal_shard import ShardedSession
from sqlalchemy.orm import (
    DeclarativeBase,
    Mapped,
    Session,
    column_property,
    declared_attr,
    has_inherited_table,
    mapped_column,
    registry,
    relationship,
)
from sqlalchemy.orm.exc import UnmappedClassError
from sqlalchemy.schema import ColumnDefault
from sqlalchemy.types import TypeEngine

from sqla_tickets import (
    PreflushDefault,
    SnowflakeSequence,
    TicketArgumentError,
    TicketPool,
    TicketSequence,
    UUIDSequence,
)
from tests.support.counting import Site

pytestmark = pytest.mark.filterwarnings("ignore:Implicitly combining column")


class Ids(NamedTuple):
    """A type, and what makes a new default for it."""

    type: TypeEngine[Any]
    make: Callable[[], ColumnDefault]

    def key(self, *args: Any, **kw: Any) -> Any:
        return mapped_column(self.type, self.make(), *args, primary_key=True, **kw)

    def column(self, *args: Any) -> Column[Any]:
        return Column("id", self.type, self.make(), *args, primary_key=True)


def named(identity: str, **options: object) -> dict[str, object]:
    """A class's arguments to its mapper."""
    return {"polymorphic_identity": identity, **options}


TICKETS = Ids(BigInteger(), TicketSequence)


class Family(NamedTuple):
    """A base and a class of each level under it, with the columns of their keys."""

    metadata: MetaData
    classes: list[type[Any]]

    @property
    def base(self) -> Column[Any]:
        return self.classes[0].__table__.c.id  # type: ignore[no-any-return]  # a class of any kind

    @property
    def keys(self) -> list[Column[Any]]:
        """Those of the subclasses, each the first column of its table."""
        return [c.__table__.columns[0] for c in self.classes[1:]]


def annotated(ids: Ids) -> Family:
    """SQLAlchemy's own examples/inheritance/joined.py."""

    class Base(DeclarativeBase):
        pass

    intpk = Annotated[Any, ids.key()]

    class Person(Base):
        __tablename__ = "person"
        id: Mapped[intpk]  # pyright: ignore[reportInvalidTypeForm]  # each call has its own
        type: Mapped[str] = mapped_column(String(20))
        __mapper_args__: Any = named("person", polymorphic_on="type")

    class Engineer(Person):
        __tablename__ = "engineer"
        id: Mapped[intpk] = mapped_column(ForeignKey("person.id"))  # pyright: ignore[reportInvalidTypeForm]
        __mapper_args__: Any = named("engineer")

    class Chief(Engineer):
        __tablename__ = "chief"
        id: Mapped[intpk] = mapped_column(ForeignKey("engineer.id"))  # pyright: ignore[reportInvalidTypeForm]
        __mapper_args__: Any = named("chief")

    return Family(Base.metadata, [Person, Engineer, Chief])


def properties(ids: Ids) -> Family:
    """As in examples/versioned_history: no foreign key at the key, and joined by another column."""

    class Base(DeclarativeBase):
        pass

    class Person(Base):
        __tablename__ = "person"
        id: Mapped[Any] = ids.key()
        type: Mapped[str] = mapped_column(String(20))
        __mapper_args__: Any = named("person", polymorphic_on="type")

    class Engineer(Person):
        __tablename__ = "engineer"
        id: Mapped[Any] = column_property(ids.column(), Person.id)
        person_id = Column(ids.type, ForeignKey("person.id"))
        __mapper_args__: Any = named("engineer")

    return Family(Base.metadata, [Person, Engineer])


def without_foreign_keys(ids: Ids) -> Family:
    """SQLAlchemy's own JoinedNoFKSortingTest, with one level more."""
    mappers = registry()
    family = Family(mappers.metadata, [type(name, (), {}) for name in ("A",)])
    above: Any = None
    for name in "abc":
        table = Table(name, mappers.metadata, ids.column())
        if above is None:
            mappers.map_imperatively(family.classes[0], table)
        else:
            family.classes.append(type(name.upper(), (family.classes[-1],), {}))
            mappers.map_imperatively(
                family.classes[-1],
                table,
                inherits=family.classes[-2],
                inherit_condition=above.c.id == table.c.id,
                inherit_foreign_keys=table.c.id,
            )
        above = table
    return family


def other_names(ids: Ids) -> Family:
    """The subclass's key is an attribute of its own; once without a foreign key."""

    class Base(DeclarativeBase):
        pass

    class Person(Base):
        __tablename__ = "person"
        id: Mapped[Any] = ids.key()
        type: Mapped[str] = mapped_column(String(20))
        __mapper_args__: Any = named("person", polymorphic_on="type")

    class Engineer(Person):
        __tablename__ = "engineer"
        engineer_id: Mapped[Any] = ids.key(ForeignKey("person.id"))
        __mapper_args__: Any = named("engineer")

    class Manager(Person):
        __table__ = Table(
            "manager", Base.metadata, Column("manager_id", ids.type, ids.make(), primary_key=True)
        )
        __mapper_args__: Any = named(
            "manager",
            inherit_condition=__table__.c.manager_id == Person.id,
            inherit_foreign_keys=__table__.c.manager_id,
        )

    return Family(Base.metadata, [Person, Engineer, Manager])


def mixed_in(ids: Ids) -> Family:
    """A mixin that gives every class of the hierarchy its key."""

    class Base(DeclarativeBase):
        pass

    class HasId:
        @declared_attr.cascading
        @classmethod
        def id(cls) -> Mapped[Any]:
            key: Mapped[Any] = (
                ids.key(ForeignKey("person.id")) if has_inherited_table(cls) else ids.key()
            )
            return key

    class Person(HasId, Base):
        __tablename__ = "person"
        type: Mapped[str] = mapped_column(String(20))
        __mapper_args__: Any = named("person", polymorphic_on="type")

    class Engineer(Person):
        __tablename__ = "engineer"
        __mapper_args__: Any = named("engineer")

    return Family(Base.metadata, [Person, Engineer])


SHAPES = pytest.mark.parametrize(
    "shape", [annotated, properties, without_foreign_keys, other_names, mixed_in]
)
Shape = Callable[[Ids], Family]


@pytest.fixture
def shards() -> Iterator[dict[str, Engine]]:
    engines = {name: create_engine("sqlite://") for name in "ab"}
    yield engines
    for engine in engines.values():
        engine.dispose()


def ready(family: Family, shards: dict[str, Engine], tickets: TicketPool) -> None:
    for engine in shards.values():
        family.metadata.create_all(engine)
    tickets.attach(family.metadata)
    tickets.create_all(family.metadata)


def sessions(shards: dict[str, Engine]) -> ShardedSession:
    """Objects go to the shards in rotation, whatever their ids are."""
    rotation = iter("ab" * 1000)
    chosen: dict[int, str] = {}
    return ShardedSession(
        shards=shards,
        shard_chooser=lambda mapper, instance, clause=None: chosen.setdefault(
            id(instance), next(rotation)
        ),
        identity_chooser=lambda *args, **kw: list(shards),
        execute_chooser=lambda context: list(shards),
    )


def ids_in(shards: dict[str, Engine], column: Any) -> list[Any]:
    found: list[Any] = []
    for engine in shards.values():
        with engine.connect() as connection:
            found += connection.scalars(select(column))
    return found


def check(family: Family, shards: dict[str, Engine], rows: dict[int, int]) -> None:
    """No id is there twice, and each subclass's rows have ids of their base's."""
    everyone = ids_in(shards, family.base)
    assert len(set(everyone)) == len(everyone) == sum(rows.values())
    for n, key in enumerate(family.keys, 1):
        theirs = ids_in(shards, key)
        assert len(theirs) >= rows.get(n, 0)
        assert set(theirs) <= set(everyone)


@SHAPES
@pytest.mark.parametrize(
    "ids",
    [TICKETS, Ids(BigInteger(), SnowflakeSequence), Ids(Uuid(), UUIDSequence)],
    ids=["tickets", "snowflakes", "uuids"],
)
def test_flush_of_joined_classes_gives_no_id_twice(
    shape: Shape, ids: Ids, shards: dict[str, Engine], tickets: TicketPool
) -> None:
    """Persons stand between engineers, so that the sequence of either may come last."""
    family = shape(ids)
    ready(family, shards, tickets)
    count = 0
    for _ in range(4):
        with sessions(shards) as session, session.begin():
            new = [kind() for kind in (*family.classes, *family.classes[::-1])]
            session.add_all(new)
            count += len(new)
    each = count // len(family.classes)
    check(family, shards, dict.fromkeys(range(len(family.classes)), each))


@SHAPES
def test_flush_of_joined_classes_draws_from_the_base_only(
    shape: Shape, app: Engine, tickets: TicketPool
) -> None:
    """One draw, as many tickets as objects, and no other ticket table is there."""
    family = shape(TICKETS)
    site = Site(app, tickets, family.metadata)
    with site.count() as counted, site.session() as session, session.begin():
        session.add_all(kind() for _ in range(5) for kind in family.classes)
    name = family.base.table.name
    assert counted.draws == {name: 1}
    assert counted.tickets == {name: 5 * len(family.classes)}


@SHAPES
@pytest.mark.parametrize("how", ["bulk_insert_mappings", "bulk_save_objects", "insert"])
def test_bulk_insert_of_joined_classes_draws_from_the_base(
    shape: Shape, how: str, shards: dict[str, Engine], tickets: TicketPool
) -> None:
    family = shape(TICKETS)
    ready(family, shards, tickets)
    rows: list[dict[str, Any]] = [{} for _ in range(3)]
    if "type" in family.base.table.c:
        rows = [{"type": "person"} for _ in range(3)]
    for kind in family.classes:
        with Session(shards["a"]) as session, session.begin():
            if how == "bulk_insert_mappings":
                session.bulk_insert_mappings(kind.__mapper__, rows)
            elif how == "bulk_save_objects":
                session.bulk_save_objects([kind() for _ in rows])
            else:
                session.execute(insert(kind), rows)
    check(family, shards, dict.fromkeys(range(len(family.classes)), 3))
    assert {status.sequence for status in tickets.status()} == {family.base.table.name}


@SHAPES
def test_core_insert_into_a_joined_table_names_the_base(
    shape: Shape, shards: dict[str, Engine], tickets: TicketPool
) -> None:
    """A ticket, of whatever sequence, would be the id of no row of the base's table."""
    family = shape(TICKETS)
    ready(family, shards, tickets)
    with shards["a"].begin() as connection:
        for key in family.keys:
            with pytest.raises(
                TicketArgumentError, match=f"points to {re.escape(str(family.base))}:"
            ):
                connection.execute(insert(key.table))
        connection.execute(
            insert(family.base.table), {"type": "person"} if "type" in family.base.table.c else {}
        )
        theirs = connection.scalar(select(family.base))
        connection.execute(insert(family.keys[0].table), {family.keys[0].name: theirs})


@SHAPES
def test_default_of_a_joined_key_called_by_hand_is_of_the_base(
    shape: Shape, shards: dict[str, Engine], tickets: TicketPool
) -> None:
    """Libraries that set ids on new objects ask the subclass's column."""
    family = shape(TICKETS)
    ready(family, shards, tickets)
    drawn = [key.default.arg({}) for key in (family.base, *family.keys) for _ in range(3)]  # type: ignore[union-attr]  # a column without one would fail the test
    assert len(set(drawn)) == len(drawn)
    assert {status.sequence for status in tickets.status()} == {family.base.table.name}


def test_key_of_a_one_to_one_row_draws_nothing(
    shards: dict[str, Engine], tickets: TicketPool
) -> None:
    """A row that extends another one gets its id by the relationship, and is refused without."""

    class Base(DeclarativeBase):
        pass

    class User(Base):
        __tablename__ = "users"
        id: Mapped[int] = TICKETS.key()

    class Profile(Base):
        __tablename__ = "profiles"
        id: Mapped[int] = TICKETS.key(ForeignKey("users.id"))
        user: Mapped[User] = relationship()

    ready(Family(Base.metadata, [User]), shards, tickets)
    with Session(shards["a"]) as session, session.begin():
        session.add_all([User(), Profile(user=User())])
    assert {status.sequence for status in tickets.status()} == {"users"}
    assert set(ids_in(shards, Profile.__table__.c.id)) < set(ids_in(shards, User.__table__.c.id))
    with Session(shards["a"]) as session:
        session.add(Profile())
        with pytest.raises(TicketArgumentError, match=r"points to users\.id"):
            session.flush()


def test_concrete_classes_keep_their_sequences(
    shards: dict[str, Engine], tickets: TicketPool
) -> None:
    """Each has all in its own table; that a key refers to the base's is no promise that a row is there."""

    class Base(DeclarativeBase):
        pass

    class Page(Base):
        __tablename__ = "pages"
        id: Mapped[int] = TICKETS.key()

    class Article(Page):
        __tablename__ = "articles"
        id: Mapped[int] = TICKETS.key(ForeignKey("pages.id"))
        __mapper_args__: Any = named("article", concrete=True)

    class Report(Article):
        __tablename__ = "reports"
        id: Mapped[int] = TICKETS.key(ForeignKey("articles.id"))

    ready(Family(Base.metadata, [Page]), shards, tickets)
    with Session(shards["a"]) as session, session.begin():
        session.add_all([Page(), Article(), Report(), Page()])
    assert {status.sequence for status in tickets.status()} == {"pages", "articles"}
    assert len(set(ids_in(shards, Page.__table__.c.id))) == 2
    articles = set(ids_in(shards, Article.__table__.c.id))
    assert set(ids_in(shards, Report.__table__.c.id)) < articles
    assert len(articles) == 2


def test_key_under_a_base_without_tickets_draws(
    shards: dict[str, Engine], tickets: TicketPool
) -> None:
    """Its sequence is the only one that there is: the base's AUTO_INCREMENT would repeat ids."""

    class Base(DeclarativeBase):
        pass

    class Person(Base):
        __tablename__ = "person"
        id: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)

    class Engineer(Person):
        __tablename__ = "engineer"
        id: Mapped[int] = TICKETS.key(ForeignKey("person.id"))

    ready(Family(Base.metadata, [Person]), shards, tickets)
    with sessions(shards) as session, session.begin():
        session.add_all(Engineer() for _ in range(6))
    assert len(set(ids_in(shards, Person.__table__.c.id))) == 6


def test_keys_in_a_circle_draw_for_themselves(tickets: TicketPool) -> None:
    """Two tables whose rows must have each other: no row comes first, so none would have drawn."""
    metadata = MetaData()
    left = Table("left", metadata, TICKETS.column(ForeignKey("right.id")))
    right = Table("right", metadata, TICKETS.column(ForeignKey("left.id", use_alter=True)))
    engine = create_engine("sqlite://")
    with tickets.attached(metadata), engine.begin() as connection:
        tickets.create_all(metadata)
        for table in (left, right):
            connection.exec_driver_sql(f'CREATE TABLE "{table.name}" (id BIGINT PRIMARY KEY)')
            connection.execute(insert(table))
    engine.dispose()
    assert {status.sequence for status in tickets.status()} == {"left", "right"}


def test_class_mapped_to_a_join_draws_once(shards: dict[str, Engine], tickets: TicketPool) -> None:
    """The attribute spans both tables: the one that is inserted first draws, as it does in bulk."""
    mappers = registry()
    users = Table("users", mappers.metadata, TICKETS.column())
    extras = Table("extras", mappers.metadata, TICKETS.column(ForeignKey("users.id")))
    plain = Table("plain", mappers.metadata, TICKETS.column())

    class User:
        pass

    class Both:
        pass

    mappers.map_imperatively(User, extras.join(users), properties={"id": [extras.c.id, users.c.id]})
    joined = users.join(plain, users.c.id == plain.c.id)
    mappers.map_imperatively(Both, joined, properties={"id": [plain.c.id, users.c.id]})
    ready(Family(mappers.metadata, [User]), shards, tickets)
    with Session(shards["a"]) as session, session.begin():
        session.add_all([User(), User()])
    for _ in range(3):
        with Session(shards["a"]) as session, session.begin():
            session.add_all([Both(), Both()])
            session.flush()
            session.bulk_save_objects([Both(), Both()])
    ids = ids_in(shards, users.c.id)
    assert len(set(ids)) == 2 + 3 * 4
    assert {*ids_in(shards, extras.c.id), *ids_in(shards, plain.c.id)} == {*ids}


def test_preflush_default_of_a_joined_key_is_called_once(
    shards: dict[str, Engine], tickets: TicketPool
) -> None:
    """Three levels without foreign keys: one call for each object."""
    calls: list[int] = []

    def make() -> int:
        calls.append(1)
        return len(calls)

    family = without_foreign_keys(Ids(BigInteger(), lambda: PreflushDefault(make)))
    ready(family, shards, tickets)
    with Session(shards["a"]) as session, session.begin():
        session.add_all(kind() for kind in family.classes)
    assert len(calls) == len(family.classes)


def test_mappers_made_before_any_pool_are_known() -> None:
    """Autogenerate and `audit` read models that nothing was attached to, and that are not configured."""
    family = without_foreign_keys(TICKETS)
    with TicketPool(["sqlite://", "sqlite://"]) as pool:
        pool.create_all(family.metadata)
        assert {status.sequence for status in pool.status()} == {"a"}


def test_class_whose_mapping_failed_stops_nobody(tickets: TicketPool) -> None:
    """Somebody's broken class stays in its registry, instrumented and without a mapper."""
    kept = []

    class Base(DeclarativeBase):
        def __init_subclass__(cls, **kw: Any) -> None:
            kept.append(cls)
            super().__init_subclass__(**kw)

    wrong = mapped_column(String(20), TicketSequence(), primary_key=True)
    with pytest.raises(TicketArgumentError, match="titles"):
        type("Title", (Base,), {"__tablename__": "titles", "id": wrong})
    with pytest.raises(UnmappedClassError):
        assert Base.registry.mappers
    tickets.attach(MetaData())
