"""alembic-utils and alembic-postgresql-enum: their comparators beside the one of ticket tables."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.support.projects import Project
from tests.support.servers import ServerFixtures

MODEL = """
import enum
from sqlalchemy import BigInteger, Enum
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sqla_tickets import TicketSequence

class Base(DeclarativeBase):
    pass

class Kind(enum.Enum):
    landscape = "landscape"
    portrait = "portrait"

class Photo(Base):
    __tablename__ = "photos"
    id: Mapped[int] = mapped_column(BigInteger, TicketSequence(), primary_key=True)
    kind: Mapped[Kind] = mapped_column(Enum(Kind))
"""
MORE = """
class Tag(Base):
    __tablename__ = "tags"
    id: Mapped[int] = mapped_column(BigInteger, TicketSequence(), primary_key=True)
"""
UTILS = """
from alembic_utils.pg_function import PGFunction
from alembic_utils.pg_view import PGView
from alembic_utils.replaceable_entity import register_entities

entities = [
    PGFunction(schema="public", signature="upper_of(a text)", definition="RETURNS text LANGUAGE sql AS $$ SELECT upper(a) $$"),
    PGView(schema="public", signature="numbers", definition="SELECT 1 AS one"),
]
# Without their types it revokes the privileges of this user, too, which nobody has registered.
register_entities(entities, entity_types=[PGFunction, PGView])
"""
ENUM = "\nimport alembic_postgresql_enum\n"


@pytest.mark.parametrize("library", ["alembic_utils", "alembic_postgresql_enum", "both"])
def test_one_migration_has_what_all_comparators_find(
    library: str, servers: ServerFixtures, tmp_path: Path
) -> None:
    libraries = ["alembic_utils", "alembic_postgresql_enum"] if library == "both" else [library]
    for each in libraries:
        if not find_spec(each):
            pytest.skip(f"{each} is not installed")
    with_utils, with_enum = (
        name in libraries for name in ("alembic_utils", "alembic_postgresql_enum")
    )
    app, *tickets = [servers.fresh_database(servers.postgresql(), None) for _ in range(3)]
    project = Project(tmp_path / "project")
    # Without the second library, a downgrade leaves the type behind.
    model = MODEL if with_enum else MODEL.replace("[Kind]", "[str]").replace("Enum(Kind)", "")
    project.set_up(app, tickets, model)
    imports = (ENUM if with_enum else "") + (UTILS if with_utils else "")
    project.replace(project.env, ("from app import Base\n", f"from app import Base\n{imports}"))

    first = project.revision("first")
    assert "op.create_ticket_table('photos')" in first
    assert ("op.create_entity(public_upper_of" in first) == with_utils
    assert ("sa.Enum('landscape', 'portrait', name='kind').create(" in first) == with_enum
    project.run("upgrade", "head")
    assert "No new upgrade operations detected" in project.run("check")

    portrait = '    portrait = "portrait"\n'
    changed = model.replace(portrait, f'{portrait}    square = "square"\n') + MORE
    (project.folder / "app.py").write_text(changed)
    second = project.revision("second")
    assert "op.create_ticket_table('tags')" in second
    assert "photos')" not in second.replace("table_name='photos')", "")
    assert ("op.sync_enum_values(" in second) == with_enum
    project.run("upgrade", "head")
    assert "No new upgrade operations detected" in project.run("check")
    project.run("downgrade", "base")
    project.run("upgrade", "head")
    assert "No new upgrade operations detected" in project.run("check")
