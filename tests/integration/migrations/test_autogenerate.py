"""What autogenerate finds, and how it reads."""

from __future__ import annotations

import logging
import sqlite3
from pathlib import Path
from typing import Any, cast

import pytest
from alembic.autogenerate import compare_metadata, produce_migrations, render_python_code
from alembic.migration import MigrationContext
from alembic.runtime.plugins import Plugin, _all_plugins
from sqlalchemy import URL, BigInteger, Column, ForeignKey, MetaData, Table, create_engine, text
from sqlalchemy.orm import registry
from sqlalchemy.pool import NullPool

from alembic_ext.operations import CreateTicketTableOp, MoveTicketTableOp, RaiseTicketTableOp
from sqla_tickets import (
    NodeLeases,
    ServerSpec,
    SnowflakeSequence,
    TicketPool,
    TicketSequence,
    alembic_plugin,
)
from sqla_tickets.dialects import LayoutName
from sqla_tickets.maintenance import operations, tombstones
from sqla_tickets.maintenance.handle import handles
from sqla_tickets.maintenance.tombstones import Destination
from tests.support.migration_contexts import MEMORY

if "sqla_tickets" not in _all_plugins:  # the work tree need not be installed
    Plugin.setup_plugin_from_module(alembic_plugin, "sqla_tickets")
PLUGINS = ["alembic.autogenerate.*", "sqla_tickets"]
NOWHERE = "mysql+pymysql://nobody@127.0.0.1:1/none"


def table(metadata: MetaData, table_name: str = "photos", **kw: Any) -> Table:
    return Table(
        table_name, metadata, Column("id", BigInteger, TicketSequence(**kw), primary_key=True)
    )


def generated(
    metadata: MetaData | list[MetaData],
    *setup: str,
    opts: dict[str, Any] | None = None,
    app: URL = MEMORY,
) -> str:
    """The body of the `upgrade` that a revision would have."""
    with create_engine(app, poolclass=NullPool).connect() as connection:
        for statement in setup:
            connection.execute(text(statement))
        merged = {
            "target_metadata": metadata,
            "autogenerate_plugins": PLUGINS,
            **(opts or {}),
        }
        context = MigrationContext.configure(connection, opts=merged)
        script = produce_migrations(context, cast("MetaData", metadata))  # or several
        assert script.upgrade_ops is not None
        return render_python_code(script.upgrade_ops, migration_context=context)


def calls(code: str) -> list[str]:
    return [line.strip() for line in code.splitlines() if "ticket_table(" in line]


def test_a_reflected_column_takes_over(tmp_path: Path) -> None:
    """Its sequence begins above the ids that are there, and the column is not touched."""
    app = URL.create("sqlite", database=str(tmp_path / "app.db"))
    with TicketPool([f"sqlite:///{tmp_path / 'tickets.db'}"]) as pool:
        metadata, engine = MetaData(), create_engine(app)
        Table("photos", MetaData(), Column("id", BigInteger, primary_key=True)).create(engine)
        photos = Table("photos", metadata, autoload_with=engine)
        engine.dispose()
        pool.attach(metadata)
        TicketSequence().apply_to(photos.c.id)
        code = generated(metadata, app=app, opts={"compare_server_default": True})
    assert calls(code) == ["op.create_ticket_table('photos', start_above=('photos', 'id'))"]
    assert "alter_column" not in code
    new = generated(metadata, opts={"ticket_pools": [pool]})
    assert "sa.Column('id', sa.BIGINT(), autoincrement=False" in new


REMINDER = "ticket tables are not compared: ticket servers are configured"


@pytest.mark.parametrize(
    ("plugins", "servers", "reminds"),
    [
        (None, [NOWHERE], True),
        (["alembic.autogenerate.*"], [NOWHERE], True),
        (["alembic.autogenerate.*"], ["no-url"], True),
        (None, None, False),
        (["alembic.autogenerate.*", "~sqla_tickets"], [NOWHERE], False),
        (["alembic.autogenerate.*", "sqla_tickets"], [NOWHERE], False),
    ],
)
def test_a_plugin_that_is_not_listed(
    caplog: pytest.LogCaptureFixture,
    plugins: list[str] | None,
    servers: list[str] | None,
    reminds: bool,
) -> None:
    opts: dict[str, Any] = {"autogenerate_plugins": plugins or ["alembic.autogenerate.*"]}
    if servers:
        opts["ticket_pools"] = servers
    with caplog.at_level(logging.WARNING, "alembic.sqla_tickets"):
        code = generated(MetaData(), opts=opts)
    assert calls(code) == []
    assert (REMINDER in caplog.text) == reminds


def test_new_tables_need_no_server() -> None:
    metadata = MetaData()
    table(metadata)
    table(metadata, "tags", pool="media")
    table(metadata, "comments", name="photos")
    pool = TicketPool([NOWHERE], timeout=0.1)
    pool.attach(metadata)
    assert calls(generated(metadata)) == [
        "op.create_ticket_table('photos')",
        "op.create_ticket_table('tags', pool='media')",
    ]


def test_nothing_is_found_when_nobody_listed_the_plugin() -> None:
    metadata = MetaData()
    table(metadata)
    code = generated(metadata, opts={"autogenerate_plugins": ["alembic.autogenerate.*"]})
    assert calls(code) == []
    assert "autoincrement=False" in code


def test_a_new_column_and_several_metadatas_and_schemas() -> None:
    first, second = MetaData(), MetaData(naming_convention={"pk": "pk_%(table_name)s"})
    Table("photos", first, Column("x", BigInteger), Column("t", BigInteger, TicketSequence("t")))
    table(second, "tags")
    Table("notes", second, Column("id", BigInteger, TicketSequence()), schema="main")
    code = generated([first, second], "CREATE TABLE photos (x BIGINT)")
    assert calls(code) == [f"op.create_ticket_table('{name}')" for name in ("notes", "t", "tags")]


def test_keys_that_point_need_no_ticket_table(default: TicketPool) -> None:
    """By a foreign key, and by a mapper, in tables that are new and in those that are there."""
    mappers = registry()
    person = table(mappers.metadata, "person")
    for name, args in (("engineer", [ForeignKey("person.id")]), ("manager", [])):
        key = Column("id", BigInteger, TicketSequence(), *args, primary_key=True)
        Table(name, mappers.metadata, key)

    class Person:
        pass

    class Manager(Person):
        pass

    manager = mappers.metadata.tables["manager"]
    mappers.map_imperatively(Person, person)
    mappers.map_imperatively(
        Manager,
        manager,
        inherits=Person,
        inherit_condition=person.c.id == manager.c.id,
        inherit_foreign_keys=manager.c.id,
    )
    opts = {"ticket_pools": default}
    assert calls(generated(mappers.metadata, opts=opts)) == ["op.create_ticket_table('person')"]
    there = [f"CREATE TABLE {n} (id BIGINT NOT NULL PRIMARY KEY)" for n in mappers.metadata.tables]
    taken_over = ["op.create_ticket_table('person', start_above=('person', 'id'))"]
    assert calls(generated(mappers.metadata, *there, opts=opts)) == taken_over
    default.create_table("person")
    assert calls(generated(mappers.metadata, *there, opts=opts)) == []


def test_snowflake_key_that_points_needs_no_node_table() -> None:
    """Its base's nodes may be another pool's, which are known where the base was created."""
    metadata = MetaData()
    Table("person", metadata, Column("id", BigInteger, SnowflakeSequence(), primary_key=True))
    pointing = SnowflakeSequence(pool="nobodys")
    key = Column("id", BigInteger, pointing, ForeignKey("person.id"), primary_key=True)
    Table("engineer", metadata, key)
    found = [line for line in generated(metadata).splitlines() if "create_node_table" in line]
    assert [line.strip() for line in found] == ["op.create_node_table()"]


def test_prefix_and_imports_of_the_environment() -> None:
    metadata = MetaData()
    table(metadata)
    with create_engine("sqlite://").connect() as connection:
        opts = {
            "target_metadata": metadata,
            "autogenerate_plugins": PLUGINS,
            "alembic_module_prefix": "alembic.op.",
        }
        context = MigrationContext.configure(connection, opts=opts)
        script = produce_migrations(context, metadata)
        assert script.upgrade_ops is not None
        code = render_python_code(
            script.upgrade_ops, alembic_module_prefix="alembic.op.", migration_context=context
        )
    assert "alembic.op.create_ticket_table('photos')" in code


def test_filters_by_the_type_ticket_table() -> None:
    metadata = MetaData()
    table(metadata)
    table(metadata, "tags")
    by_name = {"include_name": lambda name, kind, parents: kind != "ticket_table" or name == "tags"}
    by_object = {
        "include_object": lambda each, name, kind, reflected, to: (
            kind != "ticket_table" or (isinstance(each, TicketSequence) and name == "photos")
        )
    }
    assert calls(generated(metadata, opts=by_name)) == ["op.create_ticket_table('tags')"]
    assert calls(generated(metadata, opts=by_object)) == ["op.create_ticket_table('photos')"]


def test_missing_tables_begin_above_what_is_there(default: TicketPool) -> None:
    metadata = MetaData()
    table(metadata)
    there = "CREATE TABLE photos (id BIGINT NOT NULL PRIMARY KEY)"
    taken_over = ["op.create_ticket_table('photos', start_above=('photos', 'id'))"]
    opts = {"ticket_pools": default}
    assert calls(generated(metadata, there, opts=opts)) == taken_over
    default.create_table("photos")
    assert calls(generated(metadata, there, opts=opts)) == []
    default.servers[1].drop("photos")
    assert calls(generated(metadata, there, opts=opts)) == taken_over
    operations.drop(default, "photos")
    assert calls(generated(metadata, there, opts=opts)) == taken_over


def test_check_says_what_is_missing(default: TicketPool) -> None:
    metadata = MetaData()
    table(metadata)
    with create_engine("sqlite://").connect() as connection:
        connection.execute(text("CREATE TABLE photos (id BIGINT NOT NULL PRIMARY KEY)"))
        opts = {"ticket_pools": default, "autogenerate_plugins": PLUGINS}
        context = MigrationContext.configure(connection, opts=opts)
        assert compare_metadata(context, metadata) == [("add_ticket_table", "photos")]


@pytest.mark.ticket_servers("mariadb", "mysql")
def test_what_is_wrong_is_reported_and_stays(
    default: TicketPool, media: TicketPool, caplog: pytest.LogCaptureFixture
) -> None:
    metadata = MetaData()
    for name in ("photos", "tags", "albums", "videos", "notes", "users"):
        table(metadata, name)
    there = [f"CREATE TABLE {n} (id BIGINT NOT NULL PRIMARY KEY)" for n in metadata.tables]
    for name in ("photos", "nobodys", "videos"):
        default.create_table(name)
    operations.move(default, "videos", media)
    for site in handles(default, "notes"):
        site.run(tombstones.place_tombstone, Destination("opening", "media", "notes"), None)
    with TicketPool([str(_url(default, n)) for n in (1, 0)], name="swapped") as swapped:
        swapped.create_table("tags")
    layouts: list[LayoutName] = ["counter", "replace"]
    for server, layout in zip(default.servers, layouts, strict=True):
        alone = ServerSpec(str(server.engine.url.render_as_string(False)), offset=server.offset)
        with TicketPool([alone], stride=2) as one:
            one.create_table("users", layout=layout)
        with server.engine.connect() as connection:
            connection.execute(text("CREATE TABLE albums (id INT PRIMARY KEY, title TEXT)"))
    with caplog.at_level(logging.INFO, "alembic"):
        assert calls(generated(metadata, *there, opts={"ticket_pools": default})) == []
    assert "wrong ticket table 'tags'" in caplog.text
    assert "is numbered differently" in caplog.text
    assert "wrong ticket table 'albums'" in caplog.text
    assert "'nobodys' in the pool 'default', which no model declares" in caplog.text
    assert "the sequence 'videos' has moved to 'videos' of the pool 'media'" in caplog.text
    assert "an unfinished migration of the ticket table 'notes'" in caplog.text
    assert "more than one layout of the ticket table 'users'" in caplog.text
    assert default.next_id("nobodys")


def test_table_of_another_metadata_of_the_pool_is_not_reported(
    default: TicketPool, caplog: pytest.LogCaptureFixture
) -> None:
    """Each run for one of several databases sees one MetaData; the pool serves them all."""
    here, there = MetaData(), MetaData()
    table(here)
    table(there, "audit")
    for name in ("photos", "audit", "nobodys"):
        default.create_table(name)
    with default.attached(here), default.attached(there):
        for metadata in (here, there):
            caplog.clear()
            setup = [f"CREATE TABLE {n} (id BIGINT NOT NULL PRIMARY KEY)" for n in metadata.tables]
            assert calls(generated(metadata, *setup)) == []
            reported = [r.args for r in caplog.records if "which no model declares" in r.msg]
            assert reported == [("nobodys", "default", "nobodys")]


def _url(pool: TicketPool, number: int) -> str:
    return pool.servers[number].engine.url.render_as_string(hide_password=False)


def test_ticket_tables_in_the_applications_own_database_stay(
    default: TicketPool, ticket_urls: list[URL]
) -> None:
    metadata = MetaData()
    table(metadata, name="photo_ids")
    for name in ("photo_ids", "undeclared", "dropped"):
        default.create_table(name)
    operations.drop(default, "dropped")
    NodeLeases(default).create_table()
    setup = ["CREATE TABLE old (id INT)"]
    if ticket_urls[0].get_backend_name() == "mysql":  # Flickr's, which has no metadata
        table(metadata, "videos", name="Tickets64")
        columns = (
            "id BIGINT AUTO_INCREMENT PRIMARY KEY, stub CHAR(1) NOT NULL, UNIQUE KEY stub (stub)"
        )
        setup.append(f"CREATE TABLE Tickets64 ({columns})")
    opts = {"ticket_pools": default}
    code = generated(metadata, *setup, opts=opts, app=ticket_urls[0])
    assert [line.strip() for line in code.splitlines() if "drop_" in line] == [
        "op.drop_table('old')"
    ]


def test_a_server_that_is_down_is_no_obstacle(caplog: pytest.LogCaptureFixture) -> None:
    metadata = MetaData()
    table(metadata)
    pool = TicketPool([NOWHERE], timeout=0.1)
    there = "CREATE TABLE photos (id BIGINT NOT NULL PRIMARY KEY)"
    with caplog.at_level(logging.WARNING):
        assert calls(generated(metadata, there, opts={"ticket_pools": pool})) == []
    assert "is not compared" in caplog.text


@pytest.mark.parametrize("declares", [True, False])
def test_servers_that_are_not_configured_warn_who_declares(
    declares: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """`alembic check` finds nothing then, whatever the servers lack."""
    metadata = MetaData()
    if declares:
        table(metadata)
    with caplog.at_level(logging.INFO):
        generated(metadata, "CREATE TABLE photos (id BIGINT NOT NULL PRIMARY KEY)")
    (record,) = (r for r in caplog.records if "are not compared" in r.message)
    assert record.levelno == (logging.WARNING if declares else logging.INFO)
    assert "no ticket servers are configured" in record.message


@pytest.mark.parametrize(
    ("op", "text"),
    [
        (
            CreateTicketTableOp("ph'otos", start=7, layout="counter", bits=32, engine="MyISAM"),
            (
                "op.create_ticket_table(\"ph'otos\", start=7, layout='counter', bits=32,"
                " engine='MyISAM')"
            ),
        ),
        (
            CreateTicketTableOp("photos").reverse(),
            "op.drop_ticket_table('photos')",
        ),
        (
            MoveTicketTableOp("a", to="b").reverse(),
            "op.move_ticket_table('a', to='default', pool='b')",
        ),
        (RaiseTicketTableOp("a", above=0), "op.raise_ticket_table('a', above=0)"),
    ],
)
def test_how_operations_read(op: Any, text: str) -> None:
    from alembic.operations.ops import UpgradeOps

    assert render_python_code(UpgradeOps([op])).splitlines()[1].strip() == text


def test_generated_columns_take_no_ids_of_their_own(tmp_path: Path) -> None:
    metadata = MetaData()
    table(metadata)
    code = generated(metadata)
    assert "sa.Column('id', sa.BigInteger(), autoincrement=False, nullable=False)" in code
    assert sqlite3.sqlite_version
