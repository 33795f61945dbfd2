"""Flask-Migrate: `flask db` on tables and ticket tables, with one database and with binds."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.projects import REPOSITORY

pytest.importorskip("flask_migrate")

APP = """
import os
from flask import Flask
from flask_migrate import Migrate
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import BigInteger
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sqla_tickets import TicketPool, TicketSequence

class Base(DeclarativeBase):
    pass

db = SQLAlchemy(model_class=Base)

class User(db.Model):
    id: Mapped[int] = mapped_column(BigInteger, TicketSequence(), primary_key=True)
    name: Mapped[str]

class Visit(db.Model):
    __bind_key__ = "log" if "MULTIDB" in os.environ else None
    id: Mapped[int] = mapped_column(BigInteger, TicketSequence(), primary_key=True)

tickets = TicketPool(["sqlite:///tickets1.db", "sqlite:///tickets2.db"])
tickets.attach(*db.metadatas.values())

def create_app():
    app = Flask(__name__, instance_path=os.getcwd())
    app.config["SQLALCHEMY_DATABASE_URI"] = "sqlite:///app.db"
    app.config["SQLALCHEMY_BINDS"] = {"log": "sqlite:///log.db"}
    db.init_app(app)
    Migrate(app, db, autogenerate_plugins=["alembic.autogenerate.*", "sqla_tickets"])
    return app
"""
#: What a user types after `flask db`, each in a process of its own; one that was forked imports nothing again.
COMMANDS = """
import os
from app import User, Visit, create_app, db, tickets

def flask(*arguments):
    child = os.fork()
    if child == 0:
        done = create_app().test_cli_runner().invoke(args=["db", *arguments])
        print(done.output, flush=True)
        os._exit(done.exit_code)
    assert os.waitpid(child, 0)[1] == 0, arguments

flask("init", *(["--multidb"] if "MULTIDB" in os.environ else []))
flask("migrate", "--message", "first")
flask("upgrade")
flask("check")
flask("migrate", "--message", "second")
flask("downgrade")
flask("upgrade")
flask("check")
with create_app().app_context():
    db.session.add_all(kind(name="one") if kind is User else kind() for kind in (User, Visit) * 10)
    db.session.commit()
    for kind in (User, Visit):
        ids = {row.id for row in db.session.scalars(db.select(kind))}
        last = {s.last_ticket for s in tickets.status() if s.sequence == kind.__tablename__}
        print(kind.__tablename__, len(ids), max(ids) in last)
"""


@pytest.mark.parametrize("multidb", [False, True])
def test_flask_db(tmp_path: Path, multidb: bool) -> None:
    (tmp_path / "app.py").write_text(APP)
    done = subprocess.run(
        [sys.executable, "-c", COMMANDS],
        cwd=tmp_path,
        env={
            **os.environ,
            "PYTHONPATH": f"{tmp_path}{os.pathsep}{REPOSITORY}",
            **({"MULTIDB": "1"} if multidb else {}),
        },
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WARNING" not in done.stdout + done.stderr, done.stderr
    assert done.stdout.splitlines()[-2:] == ["user 10 True", "visit 10 True"]
    (migration,) = (tmp_path / "migrations" / "versions").glob("*_first.py")
    text = migration.read_text()
    assert text.count("op.create_ticket_table('user')") == 1
    assert text.count("op.create_ticket_table('visit')") == 1
    assert not list((tmp_path / "migrations" / "versions").glob("*_second.py"))
