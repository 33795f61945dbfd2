"""pytest-alembic's own tests, on the migrations of this folder: `pytest examples/migrated`."""

from __future__ import annotations

from pathlib import Path

import pytest
from alembic.config import Config
from pytest_alembic.tests import (  # noqa: F401  # collected from here
    test_model_definitions_match_ddl,
    test_single_head_revision,
    test_up_down_consistency,
    test_upgrade,
)
from sqlalchemy import Engine, create_engine

HERE = Path(__file__).parent


@pytest.fixture
def alembic_config(tmp_path: Path) -> Config:
    """Ticket servers of the test's own, which come before those of `alembic.ini`."""
    config = Config(HERE / "alembic.ini")
    servers = [f"sqlite:///{tmp_path}/tickets{n}.db" for n in (1, 2)]
    config.attributes["ticket_pools"] = {"default": servers}
    return config


@pytest.fixture
def alembic_engine(tmp_path: Path) -> Engine:
    return create_engine(f"sqlite:///{tmp_path}/app.db")
