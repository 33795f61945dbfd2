"""SQLModel: keys by `sa_type` and `sa_column_args`, by `sa_column`, and from a base class."""

import pytest
from sqlalchemy import BigInteger, Column, create_engine, insert

from sqla_tickets import TicketSequence
from tests.integration.ecosystem.conftest import Tickets

pytest.importorskip("sqlmodel")
from sqlmodel import Field, Relationship, Session, SQLModel, select


class PilotBase(SQLModel):
    """What is read and written of a pilot."""

    name: str = Field(index=True)
    crew_id: int | None = Field(default=None, sa_type=BigInteger, foreign_key="crew.id")


class Crew(SQLModel, table=True):
    id: int | None = Field(
        default=None, sa_type=BigInteger, sa_column_args=[TicketSequence()], primary_key=True
    )
    name: str
    pilots: list["Pilot"] = Relationship(back_populates="crew")


class Pilot(PilotBase, table=True):
    id: int | None = Field(
        default=None, sa_column=Column(BigInteger, TicketSequence(), primary_key=True)
    )
    crew: Crew | None = Relationship(back_populates="pilots")


class PilotCreate(PilotBase):
    """Its input."""


class Numbered(SQLModel):
    """A base class whose one `TicketSequence` is handed to every table below it."""

    id: int | None = Field(
        default=None, sa_type=BigInteger, sa_column_args=[TicketSequence()], primary_key=True
    )


class City(Numbered, table=True):
    name: str


class River(Numbered, table=True):
    name: str


def test_session_with_relationships(tickets: Tickets) -> None:
    tickets.serve(SQLModel.metadata)
    engine = create_engine("sqlite://")
    SQLModel.metadata.create_all(engine)
    with Session(engine) as session:
        crew = Crew(name="Preventers", pilots=[Pilot(name=f"Pilot {n}") for n in range(20)])
        session.add(crew)
        session.commit()
        session.refresh(crew)
        posted = Pilot.model_validate(PilotCreate(name="Spider-Boy", crew_id=crew.id))
        session.add(posted)
        session.commit()
    with Session(engine) as session:
        pilots = session.exec(select(Pilot)).all()
        assert {pilot.crew.name for pilot in pilots if pilot.crew} == {"Preventers"}
        tickets.assert_issued([pilot.id for pilot in pilots], "pilot")
        tickets.assert_issued([crew.id for crew in session.exec(select(Crew))], "crew")
        assert len(pilots) == 21


def test_base_class_gives_each_table_its_sequence(tickets: Tickets) -> None:
    tickets.serve(SQLModel.metadata)
    engine = create_engine("sqlite://")
    SQLModel.metadata.create_all(engine)
    with Session(engine) as session:
        session.add_all(kind(name=f"{n}") for n in range(10) for kind in (City, River))
        session.commit()
        for kind, sequence in ((City, "city"), (River, "river")):
            tickets.assert_issued([row.id for row in session.exec(select(kind))], sequence)
            default = SQLModel.metadata.tables[sequence].c.id.default
            tickets.assert_issued([default.arg(None)], sequence)  # type: ignore[union-attr]  # it has one


def test_bulk_insert_of_dumped_models(tickets: Tickets) -> None:
    """`id=None` of a new model is an id for Core: `exclude_unset` leaves it out."""
    tickets.serve(SQLModel.metadata)
    engine = create_engine("sqlite://")
    SQLModel.metadata.create_all(engine)
    rows = [City(name=f"{n}").model_dump(exclude_unset=True) for n in range(10)]
    with Session(engine) as session:
        session.connection().execute(insert(City), rows)
        session.commit()
        tickets.assert_issued([city.id for city in session.exec(select(City))], "city")
