"""Instagram's scheme made in the process: the shard is an object's, and several processes share it."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import (
    URL,
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
from sqlalchemy.ext.horizontal_shard import ShardedSession
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from sqla_tickets import (
    INSTAGRAM,
    SNOWFLAKE,
    SONYFLAKE,
    BitLayout,
    NodeIdsExhausted,
    SnowflakeGenerator,
    SnowflakeSequence,
    TicketArgumentError,
    TicketPool,
)
from tests.integration.snowflake.conftest import OpenPool
from tests.support.draws import in_fork


def shard_of_owner(photo: Any) -> int:
    return int(photo.owner % 8192)


class Base(DeclarativeBase):
    pass


class Photo(Base):
    __tablename__ = "photos"
    id: Mapped[int] = mapped_column(
        BigInteger, SnowflakeSequence(layout=INSTAGRAM, shard=shard_of_owner), primary_key=True
    )
    owner: Mapped[int] = mapped_column(BigInteger)


@pytest.fixture
def engines(pool: TicketPool) -> Iterator[list[Engine]]:
    engines = [create_engine("sqlite://") for _ in range(2)]
    for engine in engines:
        Base.metadata.create_all(engine)
    with pool.attached(Base.metadata):
        yield engines
    for engine in engines:
        engine.dispose()


def test_the_shard_of_each_object_is_in_its_id_before_the_flush(engines: list[Engine]) -> None:
    chosen: list[int] = []

    def choose(mapper: Any, instance: Any, clause: Any = None) -> str:
        chosen.append(INSTAGRAM.shard_of(instance.id))
        return str(chosen[-1] % 2)

    def choose_by_key(mapper: Any, primary_key: Any, **kw: Any) -> list[str]:
        return [str(INSTAGRAM.shard_of(primary_key[0]) % 2)]

    with ShardedSession(
        shard_chooser=choose,
        identity_chooser=choose_by_key,
        execute_chooser=lambda state: ["0", "1"],
        shards={str(n): engine for n, engine in enumerate(engines)},
    ) as session:
        photos = [Photo(owner=n * 37) for n in range(300)]
        session.add_all(photos)
        session.commit()
        found = [(INSTAGRAM.decode(photo.id).node, photo.owner % 8192) for photo in photos]
        ids = {photo.id for photo in photos}
        assert all(session.get(Photo, number) is not None for number in ids)
    assert all(shard == wanted for shard, wanted in found)
    assert len(ids) == 300
    assert sorted(chosen) == sorted(shard for shard, _ in found)


def test_an_object_of_a_later_listener_has_its_shard(engines: list[Engine]) -> None:
    """In a session of one database, too."""

    def add_photo(session: Session, context: object, instances: object) -> None:
        session.add(Photo(owner=38))

    with Session(engines[0]) as session:
        event.listen(session, "before_flush", add_photo, once=True)
        session.add(Photo(owner=37))
        session.commit()
        found = session.scalars(select(Photo)).all()
        assert sorted(INSTAGRAM.shard_of(photo.id) for photo in found) == [37, 38]
        assert all(INSTAGRAM.shard_of(photo.id) == photo.owner for photo in found)


def test_processes_share_a_shard(files: list[URL], open_pool: OpenPool) -> None:
    made = [SnowflakeGenerator(open_pool(files), "photos", shard=1341) for _ in range(3)]
    ids = [
        number
        for _ in range(200)
        for each in made
        for number in (each.next_id(), *each.next_ids(50))
    ]
    theirs = in_fork(lambda: " ".join(map(str, made[0].next_ids(500)))).split()
    ids += map(int, theirs)
    assert len(set(ids)) == len(ids) == 3 * 200 * 51 + 500
    assert {INSTAGRAM.decode(number).node for number in ids} == {1341}


def test_shards_do_not_hold_up_one_another(pool: TicketPool) -> None:
    ids = [SnowflakeGenerator(pool, "photos", shard=shard).next_id() for shard in range(2000)]
    assert len(set(ids)) == 2000
    assert [INSTAGRAM.shard_of(number) for number in ids] == list(range(2000))


def test_there_are_as_many_processes_as_half_the_sequence_has_bits(
    files: list[URL], open_pool: OpenPool
) -> None:
    few = BitLayout(41, 19, 3)  # one bit for the process
    for _ in range(2):
        SnowflakeGenerator(open_pool(files), "photos", few, 5).next_id()
    with pytest.raises(NodeIdsExhausted, match=r"all 2 \(1 bits\)"):
        SnowflakeGenerator(open_pool(files, 0.2), "photos", few, 5).next_id()


def test_a_statement_has_no_object_to_ask(engines: list[Engine]) -> None:
    with Session(engines[0]) as session, pytest.raises(TicketArgumentError, match=r"next_ids\(n\)"):
        session.execute(insert(Photo), [{"owner": 1}, {"owner": 2}])


def test_it_is_plain_data() -> None:
    table: Any = Photo.__table__
    for copied in (table.to_metadata(MetaData()), pickle.loads(pickle.dumps(table))):
        assert repr(copied.c.id.default) == repr(table.c.id.default)
        assert copied.c.id.default.shard is shard_of_owner


@pytest.mark.parametrize("shard", [-1, 8192, None, "5", 1.0])
def test_shards_that_cannot_be(pool: TicketPool, engines: list[Engine], shard: Any) -> None:
    column = Column(
        "id",
        BigInteger,
        SnowflakeSequence(layout=INSTAGRAM, shard=lambda _: shard),
        primary_key=True,
    )
    table = Table("others", MetaData(), column)
    with pool.attached(table.metadata), pytest.raises(TicketArgumentError, match="0 to 8191"):
        list(column.default._draw(pool, [column], 1, objects=[object()]))  # type: ignore[union-attr]


def test_bad_input(pool: TicketPool) -> None:
    with pytest.raises(TicketArgumentError, match="lowest bits"):
        SnowflakeGenerator(pool, "photos", SONYFLAKE, 5)
    with pytest.raises(TicketArgumentError, match="expected a function"):
        SnowflakeSequence(shard=5)  # type: ignore[arg-type]  # what is tested
    with pytest.raises(TicketArgumentError, match="63 bits, found 70"):
        INSTAGRAM.shard_of(1 << 69)
    assert SNOWFLAKE.shard_of(1541815603606036480) == 378


def attached(pool: TicketPool, **columns: SnowflakeSequence) -> MetaData:
    """A MetaData with a table for each declaration, served by the pool."""
    metadata = MetaData()
    for name, declared in columns.items():
        Table(name, metadata, Column("id", BigInteger, declared, primary_key=True))
    pool.attach(metadata)
    return metadata


@pytest.mark.parametrize("layout", [SNOWFLAKE, SONYFLAKE, INSTAGRAM], ids=str)
def test_a_generator_has_the_layout_of_the_attached_column(
    pool: TicketPool, layout: BitLayout
) -> None:
    sequence = SnowflakeSequence(layout=layout)
    metadata = attached(pool, photos=sequence)
    generator = SnowflakeGenerator(pool, "photos")
    assert generator.layout == layout
    assert SnowflakeGenerator(pool, sequence) is generator
    assert SnowflakeGenerator(pool, "others").layout == SNOWFLAKE
    assert SnowflakeGenerator(pool, "photos", SNOWFLAKE).layout == SNOWFLAKE, "it is given"
    del metadata


def test_a_generator_has_the_layout_of_a_column_that_is_attached_later(pool: TicketPool) -> None:
    """Of the same number of tables, too; the columns are looked at only when something has changed."""
    for layout in (SNOWFLAKE, SONYFLAKE, INSTAGRAM):
        before = SnowflakeGenerator(pool, "photos")
        metadata = attached(pool, photos=SnowflakeSequence(layout=layout))
        generator = SnowflakeGenerator(pool, "photos")
        assert (before.layout, generator.layout) == (SNOWFLAKE, layout)
        assert SnowflakeGenerator(pool, "photos") is generator
        pool.detach(metadata)


def test_a_generator_has_the_layout_of_a_column_that_is_declared_later(pool: TicketPool) -> None:
    """Or declared anew."""
    metadata = MetaData()
    column = Column("id", BigInteger, primary_key=True)
    Table("photos", metadata, column)
    pool.attach(metadata)
    assert SnowflakeGenerator(pool, "photos").layout == SNOWFLAKE
    for layout in (SONYFLAKE, INSTAGRAM):
        column.default = None
        SnowflakeSequence(layout=layout).apply_to(column)
        generator = SnowflakeGenerator(pool, "photos")
        assert generator.layout == layout
        assert SnowflakeGenerator(pool, "photos") is generator


def test_a_generator_of_a_column_with_shards_needs_the_shard(pool: TicketPool) -> None:
    """Without it, a leased number would stand where the shard belongs."""
    sequence = SnowflakeSequence("photos", layout=INSTAGRAM, shard=shard_of_owner)
    metadata = attached(pool, photos=sequence)
    for named in ("photos", sequence):
        with pytest.raises(TicketArgumentError, match=r"declares a shard: give .*shard="):
            SnowflakeGenerator(pool, named)
        number = SnowflakeGenerator(pool, named, shard=7).next_id()
        assert INSTAGRAM.shard_of(number) == 7
    del metadata


def test_a_generator_of_a_column_without_shards_takes_none(pool: TicketPool) -> None:
    """The shard would be equal to a leased number of the column's own ids."""
    metadata = attached(pool, photos=SnowflakeSequence(layout=INSTAGRAM))
    with pytest.raises(TicketArgumentError, match=r"declares no shard, found the shard 7"):
        SnowflakeGenerator(pool, "photos", shard=7)
    del metadata


def test_a_generator_of_two_layouts_is_told_which(pool: TicketPool) -> None:
    metadata = attached(
        pool, photos=SnowflakeSequence(), films=SnowflakeSequence("photos", layout=SONYFLAKE)
    )
    with pytest.raises(TicketArgumentError, match="several layouts: choose one"):
        SnowflakeGenerator(pool, "photos")
    assert SnowflakeGenerator(pool, "photos", SONYFLAKE).layout == SONYFLAKE
    del metadata
