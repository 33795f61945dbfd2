"""Core: the column default draws once for a whole statement, however many rows it has."""

from __future__ import annotations

import pytest
from sqlalchemy import (
    URL,
    BigInteger,
    Column,
    Executable,
    Integer,
    MetaData,
    String,
    Table,
    bindparam,
    create_engine,
    delete,
    func,
    insert,
    lambda_stmt,
    select,
)
from sqlalchemy.exc import DBAPIError

from sqla_tickets import TicketArgumentError, TicketPool, TicketSequence, TicketsExhausted
from tests.integration.orm.conftest import Serve
from tests.support.counting import Site, many, one

metadata = MetaData()
photos = Table(
    "photos",
    metadata,
    Column("id", BigInteger, TicketSequence("photos"), primary_key=True),
    Column("title", String(50)),
)
# An id under another key than its name, a number that is no primary key, and two of one sequence.
orders = Table(
    "orders",
    metadata,
    Column("id", BigInteger, TicketSequence(), primary_key=True, key="order_id"),
    Column("invoice", BigInteger, TicketSequence("papers"), nullable=False),
    Column("receipt", BigInteger, TicketSequence("papers"), nullable=False),
    Column("customer", String(50)),
)
bills = Table("bills", metadata, Column("number", BigInteger, primary_key=True))
tags = Table(
    "tags",
    metadata,
    Column("id", Integer, TicketSequence(), primary_key=True),
    Column("word", String(50)),
)
visits = Table("visits", metadata, Column("id", BigInteger, TicketSequence(), primary_key=True))
TITLES = [{"title": title} for title in "abcde"]


@pytest.fixture
def site(serve: Serve) -> Site:
    return serve(metadata)


def test_one_row(site: Site) -> None:
    with site.count() as counted, site.engine.begin() as connection:
        key = connection.execute(insert(photos).values(title="a")).inserted_primary_key
    assert counted.draws == counted.tickets == {"photos": 1}
    assert counted.inserts == [one("photos")]
    assert key is not None
    assert site.rows(photos) == [(key[0], "a")]


def test_a_row_of_nothing_but_its_id(site: Site) -> None:
    with site.count() as counted, site.engine.begin() as connection:
        connection.execute(insert(visits))
    assert counted.draws == counted.tickets == {"visits": 1}
    assert len(site.rows(visits)) == 1


def test_the_same_statement_again_draws_again(site: Site) -> None:
    statement = insert(photos).values(title=bindparam("title"))
    with site.count() as counted, site.engine.begin() as connection:
        for title in "ab":
            connection.execute(statement, {"title": title})
    assert counted.draws == counted.tickets == {"photos": 2}
    assert len(site.rows(photos)) == 2


def test_executemany(site: Site) -> None:
    with site.count() as counted, site.engine.begin() as connection:
        connection.execute(insert(photos), TITLES)
    assert counted.draws == {"photos": 1}
    assert counted.tickets == {"photos": 5}
    assert counted.inserts == [many("photos", 5)]
    assert "".join(title for _, title in site.rows(photos)) == "abcde"


def test_the_caller_keeps_its_parameters_as_they_were(site: Site) -> None:
    rows = [dict(row) for row in TITLES]
    with site.engine.begin() as connection:
        connection.execute(insert(photos), rows)
    assert rows == TITLES


def test_executemany_in_batches(serve: Serve) -> None:
    site = serve(metadata)
    with site.count() as counted, site.engine.begin() as connection:
        rows = [{"title": str(n)} for n in range(2500)]
        statement = insert(photos)
        if site.returning:
            connection.execute(statement.returning(photos.c.id), rows)
        else:
            connection.execute(statement, rows)
    assert counted.draws == {"photos": 1}
    assert counted.tickets == {"photos": 2500}
    assert [int(title) for _, title in site.rows(photos)] == list(range(2500))


@pytest.mark.app_databases("mariadb", "postgresql", "sqlite")
def test_executemany_returns_the_ids_in_order(site: Site) -> None:
    statement = insert(photos).returning(photos.c.id, photos.c.title, sort_by_parameter_order=True)
    with site.count() as counted, site.engine.begin() as connection:
        returned = [tuple(row) for row in connection.execute(statement, TITLES)]
    assert counted.draws == {"photos": 1}
    assert counted.inserts == [many("photos", 5)]
    assert returned == site.rows(photos)


def test_values_of_many_rows(site: Site) -> None:
    with site.count() as counted, site.engine.begin() as connection:
        key = connection.execute(insert(photos).values(TITLES)).inserted_primary_key
    assert counted.draws == {"photos": 1}
    assert counted.tickets == {"photos": 5}
    assert counted.inserts == [one("photos")]
    rows = site.rows(photos)
    assert "".join(title for _, title in rows) == "abcde"
    assert key is not None
    assert key[0] == rows[0][0]


def test_several_ticket_columns(site: Site) -> None:
    with site.count() as counted, site.engine.begin() as connection:
        connection.execute(insert(orders), [{"customer": name} for name in "abc"])
    assert counted.draws == {"orders": 1, "papers": 1}
    assert counted.tickets == {"orders": 3, "papers": 6}
    papers = [number for order in site.rows(orders) for number in order[1:3]]
    assert len(set(papers)) == 6


def test_values_of_many_rows_of_a_sequence_without_a_name(site: Site) -> None:
    with site.count() as counted, site.engine.begin() as connection:
        connection.execute(insert(tags).values([{"word": word} for word in "abc"]))
    assert counted.draws == {"tags": 1}
    assert counted.tickets == {"tags": 3}
    assert "".join(word for _, word in site.rows(tags)) == "abc"


def test_values_of_many_rows_beyond_the_column(site: Site) -> None:
    site.pool.drop_table("tags")
    site.pool.create_table("tags", start=2**31 - 3)
    with site.engine.begin() as connection, pytest.raises(TicketsExhausted, match=r"tags\.id"):
        connection.execute(insert(tags).values([{"word": word} for word in "abc"]))
    assert site.rows(tags) == []


def test_several_ticket_columns_of_many_values(site: Site) -> None:
    with site.count() as counted, site.engine.begin() as connection:
        connection.execute(insert(orders).values([{"customer": name} for name in "abc"]))
    assert counted.draws == {"orders": 1, "papers": 1}
    assert counted.tickets == {"orders": 3, "papers": 6}
    assert len({number for order in site.rows(orders) for number in order[1:3]}) == 6


def test_an_id_set_by_hand_stays(site: Site) -> None:
    with site.count() as counted, site.engine.begin() as connection:
        connection.execute(insert(photos).values(id=7, title="a"))
        connection.execute(insert(photos), [{"id": 8, "title": "b"}, {"id": 9, "title": "c"}])
        connection.execute(insert(photos).values([{"id": 10, "title": "d"}]))
        connection.execute(insert(photos).values(id=func.abs(-11)))
    assert not counted.draws
    assert [key for key, _ in site.rows(photos)] == [7, 8, 9, 10, 11]


def test_a_number_set_by_hand_next_to_tickets(site: Site) -> None:
    with site.count() as counted, site.engine.begin() as connection:
        connection.execute(insert(orders), [{"invoice": 7}, {"invoice": 8}])
    assert counted.tickets == {"orders": 2, "papers": 2}
    assert [invoice for _, invoice, *_ in site.rows(orders)] == [7, 8]


def test_ids_set_by_hand_in_later_values(site: Site) -> None:
    rows: list[dict[str, object]]
    rows = [{"title": "a"}, {"title": "b", "id": 1_000_001}, {"title": "c"}]
    with site.count() as counted, site.engine.begin() as connection:
        connection.execute(insert(photos).values(rows))
    assert counted.draws == {"photos": 1}
    assert counted.tickets == {"photos": 2}
    assert (1_000_001, "b") in site.rows(photos)


def test_ids_set_by_hand_in_later_parameters(site: Site) -> None:
    rows: list[dict[str, object]]
    rows = [{"title": "a"}, {"title": "b", "id": 1_000_001}, {"title": "c"}]
    with site.count() as counted, site.engine.begin() as connection:
        connection.execute(insert(photos), rows)
    assert counted.draws == {"photos": 1}
    assert (1_000_001, "b") in site.rows(photos)


def test_rows_that_were_selected_are_refused(site: Site) -> None:
    with site.engine.begin() as connection:
        connection.execute(insert(photos), TITLES)
    with site.count() as counted, site.engine.connect() as connection:
        copy = insert(photos).from_select(["title"], select(photos.c.title))
        with pytest.raises(
            TicketArgumentError, match=r"one id of TicketSequence\('photos'\) to every row"
        ):
            connection.execute(copy)
        # What the transaction held before is still there to be committed.
        connection.execute(insert(photos).values(title="f"))
        connection.commit()
    assert counted.draws == {"photos": 1}
    assert len(site.rows(photos)) == 6


def test_selected_rows_in_a_lambda_are_refused(site: Site) -> None:
    """Its statement wraps the INSERT, and nothing but the database keeps numbers apart."""
    with site.engine.begin() as connection:
        connection.execute(insert(photos), TITLES)
        copy = lambda_stmt(
            lambda: insert(orders).from_select(
                ["order_id", "customer"], select(photos.c.id, photos.c.title)
            )
        )
        with pytest.raises(TicketArgumentError, match=r"one id of .*'papers'.* to every row"):
            connection.execute(copy)
    assert site.rows(orders) == []


def test_rows_that_were_selected_with_ids_of_their_own(site: Site) -> None:
    with site.engine.begin() as connection:
        connection.execute(insert(photos), TITLES)
        ids = [key for key, _ in connection.execute(select(photos))]
        moved = select(photos.c.id + 1_000_000, photos.c.title)
        connection.execute(insert(photos).from_select(["id", "title"], moved))
        connection.execute(delete(photos).where(photos.c.id.in_(ids)))
    assert [key - 1_000_000 for key, _ in site.rows(photos)] == sorted(ids)


@pytest.mark.app_databases("postgresql")
@pytest.mark.parametrize("outer", ["select", "insert", "delete"])
def test_rows_that_were_selected_are_refused_in_a_cte(site: Site, outer: str) -> None:
    copies = insert(photos).from_select(["title"], select(photos.c.title)).returning(photos.c.id)
    copied = copies.cte("copied")
    statements: dict[str, Executable] = {
        "select": select(copied.c.id),
        "insert": insert(bills).values(number=select(func.count(copied.c.id)).scalar_subquery()),
        "delete": delete(bills).where(bills.c.number.in_(select(copied.c.id))),
    }
    with site.engine.begin() as connection:
        connection.execute(insert(photos), TITLES)
        with pytest.raises(
            TicketArgumentError, match=r"one id of TicketSequence\('photos'\) to every row"
        ):
            connection.execute(statements[outer])
    assert len(site.rows(photos)) == 5


@pytest.mark.app_databases("postgresql")
@pytest.mark.parametrize("rows", [1, 3])
def test_inserts_in_a_cte(site: Site, rows: int) -> None:
    inserted = insert(photos).values(TITLES[:rows]).returning(photos.c.id).cte("inserted")
    with site.count() as counted, site.engine.begin() as connection:
        connection.execute(insert(bills).from_select(["number"], select(inserted.c.id)))
        ids = list(connection.scalars(select(inserted.c.id)))
    assert counted.draws == {"photos": 2}
    assert counted.tickets == {"photos": 2 * rows}
    assert len(site.rows(photos)) == 2 * rows
    assert {(number,) for number in ids} < {row[:1] for row in site.rows(photos)}


@pytest.mark.app_databases("postgresql", "sqlite")
def test_ids_that_sqlalchemy_would_lose_are_refused(site: Site) -> None:
    """It forgets the defaults of one INSERT at the next, and would send NULL."""
    photo = insert(photos).returning(photos.c.id).cte("photo")
    order = insert(orders).returning(orders.c.order_id).cte("placed")
    lost: dict[str, Executable] = {
        "orders.id": insert(orders).add_cte(photo),
        "orders.invoice": insert(orders).values(order_id=1).add_cte(photo),
        "photos.id": select(photo.c.id).union_all(select(order.c.order_id)),
    }
    with site.count() as counted, site.engine.connect() as connection:
        for name, statement in lost.items():
            with pytest.raises(TicketArgumentError, match=rf"^{name} would be NULL"):
                connection.execute(statement)
    assert not counted.draws


@pytest.mark.app_databases("postgresql")
def test_ids_by_hand_next_to_an_insert_in_a_cte(site: Site) -> None:
    photo = insert(photos).returning(photos.c.id).cte("photo")
    by_hand = insert(orders).values(order_id=1, invoice=2, receipt=3)
    with site.count() as counted, site.engine.begin() as connection:
        connection.execute(by_hand.add_cte(photo))
    assert counted.draws == {"photos": 1}
    assert site.rows(orders) == [(1, 2, 3, None)]


def test_the_sequence_itself_can_be_asked(site: Site) -> None:
    with site.count() as counted, site.engine.connect() as connection:
        default = photos.c.id.default
        assert isinstance(default, TicketSequence)
        tickets = [connection.scalar(default), default.arg(None), site.pool.next_id(default)]
    assert counted.draws == counted.tickets == {"photos": 3}
    assert len(set(tickets)) == 3


def test_a_sequence_without_a_name_can_be_asked_in_its_table(site: Site) -> None:
    with site.count() as counted, site.engine.connect() as connection:
        default = visits.c.id.default
        assert isinstance(default, TicketSequence)
        assert isinstance(connection.scalar(default), int)
    assert counted.draws == {"visits": 1}


def test_no_default_with_an_id_of_none(site: Site) -> None:
    # NULL was asked for, and NULL is refused by the database: no id comes from elsewhere.
    statement = insert(photos).values(id=None, title="a")
    with (
        site.count() as counted,
        site.engine.connect() as connection,
        pytest.raises(DBAPIError),
    ):
        connection.execute(statement)
    assert not counted.draws
    assert site.rows(photos) == []


@pytest.mark.app_databases("sqlite")
def test_a_buffered_block_serves_later_statements(serve: Serve) -> None:
    own = MetaData()
    table = Table("t", own, Column("id", Integer, TicketSequence(block=10), primary_key=True))
    site = serve(own)
    with site.count() as counted, site.engine.begin() as connection:
        for _ in range(4):  # at the fifth the next block would be fetched
            connection.execute(insert(table))
    assert counted.draws == {"t": 1}
    assert counted.tickets == {"t": 10}


@pytest.mark.app_databases("mariadb")
def test_the_dialect_named_mariadb(app_url: URL, tickets: TicketPool) -> None:
    engine = create_engine(app_url.set(drivername="mariadb+pymysql"))
    site = Site(engine, tickets, metadata)
    with tickets.attached(metadata), site.count() as counted, engine.begin() as connection:
        returned = connection.scalars(insert(photos).returning(photos.c.id), TITLES).all()
    assert counted.draws == {"photos": 1}
    assert counted.inserts == [many("photos", 5)]
    assert sorted(returned) == [key for key, _ in site.rows(photos)]
    engine.dispose()
