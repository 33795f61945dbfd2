"""The operations for ids that sort by time, and PostgreSQL's function."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from alembic.autogenerate import produce_migrations, render_python_code
from alembic.migration import MigrationContext
from alembic.runtime.plugins import Plugin, _all_plugins
from alembic.util import CommandError
from sqlalchemy import (
    URL,
    BigInteger,
    Column,
    Engine,
    MetaData,
    String,
    Table,
    create_engine,
    insert,
    select,
    text,
)
from sqlalchemy.exc import IntegrityError

from sqla_tickets import (
    INSTAGRAM,
    SONYFLAKE,
    BitLayout,
    ShardIdFunction,
    SnowflakeGenerator,
    SnowflakeSequence,
    TicketArgumentError,
    TicketPool,
    alembic_plugin,
)
from tests.support.migration_contexts import offline, operations
from tests.support.servers import PostgreSQL, ServerFixtures

if "sqla_tickets" not in _all_plugins:  # the work tree need not be installed
    Plugin.setup_plugin_from_module(alembic_plugin, "sqla_tickets")


def generated(metadata: MetaData, engine: Engine) -> str:
    with engine.connect() as connection:
        opts: dict[str, Any] = {
            "target_metadata": metadata,
            "autogenerate_plugins": ["alembic.autogenerate.*", "sqla_tickets"],
        }
        context = MigrationContext.configure(connection, opts=opts)
        script = produce_migrations(context, metadata)
        assert script.upgrade_ops is not None
        assert script.downgrade_ops is not None
        parts = (script.upgrade_ops, script.downgrade_ops)
        return "\n".join(render_python_code(ops, migration_context=context) for ops in parts)


def test_the_node_table_is_created(ticket_urls: list[URL]) -> None:
    with TicketPool(ticket_urls) as pool:
        for _ in range(2):
            with operations(pool) as op:
                op.create_node_table()  # type: ignore[attr-defined]  # the plugin adds it
        SnowflakeGenerator(pool, "photos").next_id()


def test_the_node_table_is_written_down_only(ticket_urls: list[URL]) -> None:
    with TicketPool(ticket_urls) as pool, offline(pool) as (op, script):
        op.create_node_table()
    said = script.getvalue()
    assert said.count("CREATE TABLE IF NOT EXISTS ticket_nodes") == 2
    assert {line[:17] for line in said.splitlines() if line} == {"-- [sqla_tickets]"}


def test_autogenerate_writes_the_node_table_first() -> None:
    metadata = MetaData()
    for name, pool in (("photos", None), ("tags", None), ("songs", "media")):
        column = Column("id", BigInteger, SnowflakeSequence(pool=pool), primary_key=True)
        Table(name, metadata, column)
    code = generated(metadata, create_engine("sqlite://"))
    assert code.count("create_node_table()") == 2  # there and back: it is never dropped
    assert code.count("create_node_table(pool='media')") == 2
    assert code.index("create_node_table()") < code.index("create_table(")
    assert "autoincrement=False" in code


@pytest.fixture
def app(postgres: PostgreSQL, servers: Any) -> Iterator[Engine]:
    engine = create_engine(servers.fresh_database(postgres, None))
    yield engine
    engine.dispose()


def photos_of(function: ShardIdFunction) -> tuple[MetaData, Table]:
    metadata = MetaData()
    function.attach(metadata)
    id_ = Column("id", BigInteger, primary_key=True, server_default=function.default)
    return metadata, Table("photos", metadata, id_, Column("title", String(20)))


def test_ids_of_the_function_are_decoded(app: Engine) -> None:
    metadata, photos = photos_of(ShardIdFunction("insta5", 5))
    before = datetime.now(timezone.utc) - timedelta(milliseconds=1)
    metadata.create_all(app)
    with app.begin() as connection:
        connection.execute(insert(photos), [{"title": str(n)} for n in range(50)])
        ids = list(connection.scalars(select(photos.c.id).order_by(photos.c.id)))
        later = list(connection.scalars(text("SELECT insta5() FROM generate_series(1, 1025)")))
    decoded = [INSTAGRAM.decode(number) for number in ids]
    assert {each.node for each in decoded} == {5}
    assert all(before <= each.time <= datetime.now(timezone.utc) for each in decoded)
    assert sorted(each.sequence for each in decoded) == list(range(1, 51))
    assert INSTAGRAM.decode(later[0]).sequence == INSTAGRAM.decode(later[1024]).sequence
    assert len({INSTAGRAM.decode(number).sequence for number in later[:1024]}) == 1024


def test_a_millisecond_has_1024_ids_and_the_next_is_refused(servers: ServerFixtures) -> None:
    server = servers.new_postgresql()
    clock = servers.clock(server.folder / "clock")
    server.stop()
    server.environment = clock.environment
    server.start()
    app = create_engine(servers.fresh_database(server, role=None))
    metadata, photos = photos_of(ShardIdFunction("insta5", 5))
    metadata.create_all(app)
    clock.stand_still()
    all_of_it = text("INSERT INTO photos (title) SELECT 'x' FROM generate_series(1, 1024)")
    with app.begin() as connection:
        connection.execute(all_of_it)
        ids = [INSTAGRAM.decode(number) for number in connection.scalars(select(photos.c.id))]
    assert len({each.time for each in ids}) == 1
    assert sorted(each.sequence for each in ids) == list(range(1024))
    for _ in range(2):
        with pytest.raises(IntegrityError), app.begin() as connection:
            connection.execute(insert(photos), [{"title": "one more"}])
    clock.step(0)
    with app.begin() as connection:  # the same transaction, tried again
        connection.execute(all_of_it)
        assert connection.scalar(text("SELECT count(DISTINCT id) FROM photos")) == 2048
    app.dispose()


def test_the_function_comes_and_goes(app: Engine) -> None:
    metadata, _ = photos_of(ShardIdFunction("Insta 6", 6))
    code = generated(metadata, app)
    assert code.index("op.create_shard_id_function('Insta 6', shard=6)") < code.index(
        "create_table"
    )
    assert code.index("drop_table") < code.index("op.drop_shard_id_function('Insta 6', shard=6)")
    assert '"Insta 6"()' in code
    with operations(app=app.url) as op:
        op.create_shard_id_function("Insta 6", shard=6)  # type: ignore[attr-defined]  # the plugin's
    assert "shard_id_function" not in generated(metadata, app)
    with app.connect() as connection:
        number = connection.scalar(text('SELECT "Insta 6"()'))
    assert INSTAGRAM.decode(number or 0).node == 6
    with operations(app=app.url) as op:
        op.drop_shard_id_function("Insta 6", shard=6)  # type: ignore[attr-defined]  # the plugin's
    with app.connect() as connection:
        assert (
            connection.scalar(text("SELECT count(*) FROM pg_proc WHERE proname = 'Insta 6'")) == 0
        )


@pytest.mark.parametrize("other", ['other."Insta 6"()', '"Insta 6"(shard int)'])
def test_function_that_the_table_cannot_call_is_not_it(app: Engine, other: str) -> None:
    """One of another schema, or with arguments."""
    metadata, photos = photos_of(ShardIdFunction("Insta 6", 6))
    with app.begin() as connection:
        connection.execute(text("CREATE SCHEMA other"))
        connection.execute(
            text(f"CREATE FUNCTION {other} RETURNS bigint LANGUAGE sql AS 'SELECT 1'")
        )
    assert "op.create_shard_id_function('Insta 6', shard=6)" in generated(metadata, app)
    with operations(app=app.url) as op:
        op.create_shard_id_function("Insta 6", shard=6)  # type: ignore[attr-defined]  # the plugin's
    assert "shard_id_function" not in generated(metadata, app)
    photos.create(app)


def test_missing_function_of_another_layout_is_said(
    app: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    """No operation can have its layout."""
    layout = BitLayout(time=41, node=10, sequence=12, epoch=INSTAGRAM.epoch)
    metadata, _ = photos_of(ShardIdFunction("insta8", 8, layout))
    assert "shard_id_function" not in generated(metadata, app)
    assert "Detected missing function 'insta8', which no operation can create" in caplog.text
    caplog.clear()
    metadata.create_all(app, tables=[])
    generated(metadata, app)
    assert "insta8" not in caplog.text


def test_other_databases_have_no_such_function() -> None:
    metadata, _ = photos_of(ShardIdFunction("insta5", 5))
    with pytest.raises(TicketArgumentError, match="only PostgreSQL can: use SnowflakeSequence"):
        metadata.create_all(create_engine("sqlite://"))
    with (
        operations() as op,
        pytest.raises(CommandError, match="on PostgreSQL only, not on sqlite"),
    ):
        op.create_shard_id_function("insta5", shard=5)  # type: ignore[attr-defined]  # the plugin's


def test_a_database_without_the_function(app: Engine) -> None:
    function = ShardIdFunction("Insta 7", 7)
    table = Table(
        "photos",
        MetaData(),
        Column("id", BigInteger, primary_key=True, server_default=function.default),
    )
    advice = r"no function 'Insta 7': create it first, with op\.create_shard_id_function\('Insta 7', shard=7\)"
    with pytest.raises(TicketArgumentError, match=advice):
        table.create(app)
    function.attach(table.metadata)
    table.metadata.create_all(app)


def test_shards_that_cannot_be() -> None:
    with pytest.raises(TicketArgumentError, match=r"shard=8192.* from 0 to 8191"):
        ShardIdFunction("insta", 8192)
    with pytest.raises(TicketArgumentError, match="not a valid function name"):
        ShardIdFunction("a'b", 1)
    with pytest.raises(TicketArgumentError, match="no sequence in the lowest bits"):
        ShardIdFunction("insta", 1, SONYFLAKE)
