"""A pool refuses servers, strides and offsets that cannot work."""

from __future__ import annotations

import enum
import pickle
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Date,
    Enum,
    Float,
    MetaData,
    String,
    Table,
    Uuid,
    create_engine,
)
from sqlalchemy.types import TypeEngine

from sqla_tickets import (
    ServerSpec,
    SnowflakeSequence,
    TicketArgumentError,
    TicketPool,
    TicketSequence,
    TicketWarning,
)
from sqla_tickets.draw.buffer import Buffer


class Name(str, enum.Enum):
    """Names of sequences, as an application may keep them."""

    PHOTOS = "photos"


NOWHERE = "mysql+pymysql://tickets@127.0.0.1:1/tickets"


def photos_table(type_: TypeEngine[object] | None = None) -> Table:
    column: Column[object] = Column(
        "id", type_ or BigInteger(), TicketSequence("photos"), primary_key=True
    )
    return Table("photos", MetaData(), column, Column("title", String(30)))


@pytest.mark.parametrize("server", [7, None, b"sqlite://", ["sqlite://"]])
def test_a_server_that_is_none(server: str) -> None:
    with pytest.raises(TicketArgumentError, match="a URL, an Engine"):
        TicketPool([server, "sqlite://"])


@pytest.mark.parametrize("stride", [1, 0, -2, 65536, 2.0, True, "2"])
def test_a_stride_that_cannot_be(stride: int) -> None:
    with pytest.raises(TicketArgumentError, match=r"stride.*2.*65535"):
        TicketPool(["sqlite://", "sqlite://"], stride=stride)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (NOWHERE, NOWHERE),
        ("mysql+pymysql://h/t", "mysql+mysqlconnector://other:user@h/t?charset=utf8mb4"),
        ("mysql+pymysql://h/t", "mysql+pymysql://h:3306/t"),
        ("mysql+pymysql://h/t", "mariadb+pymysql://h/t"),
        ("sqlite:////tmp/tickets.db", "sqlite:////tmp/../tmp/tickets.db"),
    ],
)
def test_one_server_twice(first: str, second: str) -> None:
    with pytest.warns(TicketWarning, match="more than once.*another machine"):
        TicketPool([first, second])


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("mysql+pymysql://u@/t?unix_socket=/run/a", "mysql+pymysql://u@/t?unix_socket=/run/b"),
        ("postgresql+psycopg:///t?host=t1", "postgresql+psycopg:///t?host=t2"),
        ("postgresql+psycopg://?service=t1", "postgresql+psycopg://?service=t2"),
    ],
)
def test_servers_whose_urls_differ_in_their_options_alone(first: str, second: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pool = TicketPool([first, second])
    if "service=" not in first:
        assert len({str(server).partition(" ")[0] for server in pool.servers}) == 2
    with pytest.warns(TicketWarning, match="more than once"):
        TicketPool([first, first])


@pytest.mark.parametrize("hedge", ["no", 2, 0.5, []])
def test_a_hedge_that_is_none(hedge: Any) -> None:
    with pytest.raises(TicketArgumentError, match=r"hedge=.* expected True, False or None"):
        TicketPool(["sqlite://", "sqlite://"], hedge=hedge)


@pytest.mark.parametrize("name", [None, "", " ", 7, object()])
def test_a_name_of_a_pool_that_is_none(name: Any) -> None:
    with pytest.raises(TicketArgumentError, match="not a valid name of a pool"):
        TicketPool(["sqlite://"], name=name)
    if name is not None:
        for kind in (TicketSequence, SnowflakeSequence):
            with pytest.raises(TicketArgumentError, match="not a valid name of a pool"):
                kind("photos", pool=name)


@pytest.mark.parametrize("block", [None, 1, 10])
def test_a_sequence_of_another_pool_is_refused(block: int | None) -> None:
    """Also where this pool has tickets of that name at hand."""
    other = TicketSequence("photos", pool="media", block=10)
    with TicketPool(["sqlite://"]) as pool:
        pool.create_table("photos")
        for _ in range(3 if block else 0):
            pool.next_id(TicketSequence("photos", pool="default", block=block or 1))
        for draw in (pool.next_id, pool.buffered, lambda sequence: pool.next_ids(sequence, 3)):
            with pytest.raises(TicketArgumentError, match="belongs to the pool 'media'"):
                draw(other)
    with TicketPool(["sqlite://"], name="media") as media:
        media.create_table("photos")
        assert media.next_id(other)
        assert media.buffered(other) == 9


@pytest.mark.parametrize("name", [None, "photos"])
def test_a_columns_sequence_without_a_pool_is_the_default_ones(name: str | None) -> None:
    """A sequence of no column may be of any pool."""
    loose = TicketSequence("photos", block=10)
    table = Table("photos", MetaData(), Column("id", BigInteger, TicketSequence(name, block=10)))
    declared = table.c.id.default
    assert isinstance(declared, TicketSequence)
    copied = pickle.loads(pickle.dumps(table)).c.id.default
    with TicketPool(["sqlite://"], name="media") as media:
        media.create_table("photos")
        assert media.next_id(loose)
        assert media.buffered(loose) == 9
        for draw in (media.next_id, media.buffered, lambda sequence: media.next_ids(sequence, 3)):
            for sequence in (declared, copied):
                with pytest.raises(TicketArgumentError, match="belongs to the pool 'default'"):
                    draw(sequence)
        assert media.buffered(loose) == 9
    with TicketPool(["sqlite://"]) as default:
        default.create_table("photos")
        for sequence in (declared, copied, loose):
            assert default.next_id(sequence)
        assert default.buffered("photos") == 7


def test_threads_of_a_fork_made_in_c_forget_the_parent_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else one would forget the draw that the other has begun since."""
    with TicketPool(["sqlite://"]) as pool, ThreadPoolExecutor(2) as threads:
        forget, both, times = pool._reinit_after_fork, Barrier(2), list[float]()

        def forget_slowly() -> None:
            times.append(time.monotonic())
            time.sleep(0.1)
            forget()

        def begin() -> Buffer:
            both.wait()
            return pool._buffer_of_this_process()

        monkeypatch.setattr(pool, "_reinit_after_fork", forget_slowly)
        pool._buffer.is_owner_process = b"\0"
        first, second = (threads.submit(begin) for _ in range(2))
        assert first.result() is second.result()
        assert len(times) == 1


def test_one_engine_twice() -> None:
    engine = create_engine("sqlite://")
    with pytest.warns(TicketWarning, match="more than once"):
        TicketPool([engine, engine])


def test_one_spec_in_two_pools_is_two_servers() -> None:
    spec = ServerSpec("sqlite://", offset=2)
    servers = [TicketPool([spec, ServerSpec("sqlite://", offset=1)]).servers[0] for _ in range(2)]
    assert [server.offset for server in servers] == [2, 2]
    assert servers[0].engine is not servers[1].engine


def test_drivers_of_two_kinds_are_refused() -> None:
    """A draw from a synchronous one cannot wait for the marks that an asynchronous one keeps."""
    with pytest.raises(TicketArgumentError, match=r"\(mysql\+pymysql, mysql\+asyncmy\)"):
        TicketPool(["mysql+pymysql://t1/t", "mysql+asyncmy://t2/t"])


def test_server_of_another_pool_is_refused() -> None:
    (server,) = TicketPool(["sqlite://"]).servers
    with pytest.raises(TicketArgumentError, match="ServerSpec, not a TicketServer"):
        TicketPool([server])  # type: ignore[list-item]  # as one without a type checker would


def test_spec_shows_no_password() -> None:
    assert "secret" not in repr(ServerSpec("mysql://tickets:secret@localhost/tickets", offset=1))


@pytest.mark.parametrize("offsets", [(1, 1), (1, 3), (3, 2)])
def test_offsets_that_cannot_be(offsets: tuple[int, int]) -> None:
    servers = [ServerSpec("sqlite://", offset=offset) for offset in offsets]
    with pytest.raises(TicketArgumentError, match=r"expected different offsets"):
        TicketPool(servers)


@pytest.mark.parametrize(
    "type_",
    [String(20), Float(), Boolean(), Date(), Enum("a", "b", name="letters"), Uuid()],
    ids=str,
)
def test_a_column_that_holds_no_integers(type_: TypeEngine[object]) -> None:
    with pytest.raises(TicketArgumentError, match=r"photos\.id has the type.*BigInteger"):
        photos_table(type_)


def test_next_id_of_a_known_sequence_still_checks_what_it_is_given(tmp_path: Path) -> None:
    with TicketPool([f"sqlite:///{tmp_path / name}.db" for name in ("one", "two")]) as pool:
        pool.create_table("photos")
        assert pool.next_id("photos") != pool.next_id(Name.PHOTOS)
        mistakes: list[Any] = [Column("photos"), 7, None, ["photos"]]
        for mistake in mistakes:
            with pytest.raises(TicketArgumentError):
                pool.next_id(mistake)
