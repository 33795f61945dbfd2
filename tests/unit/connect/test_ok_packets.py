"""The answer to a draw is one whole OK packet; nothing else is taken for a ticket."""

from __future__ import annotations

import contextlib
import random
import select
import socket
from collections.abc import Callable, Iterator
from typing import Any, cast

import pymysql
import pytest
from pymysql.connections import Connection

from sqla_tickets.connect.ok_packets import Insert, Pollable, insert_over_socket
from sqla_tickets.connect.sockets import SocketWire
from sqla_tickets.errors import OutOfStep

#: Status "autocommit", and no warnings.
USUAL = b"\x02\x00\x00\x00"
#: The same, and another answer follows.
MORE = b"\x0a\x00\x00\x00"


def packet(payload: bytes, number: int = 1) -> bytes:
    return len(payload).to_bytes(3, "little") + bytes([number]) + payload


def integer(value: int) -> bytes:
    """A length-encoded integer (MySQL's protocol, "Integer Types")."""
    for limit, first, size in ((251, b"", 1), (1 << 16, b"\xfc", 2), (1 << 24, b"\xfd", 3)):
        if value < limit:
            return first + value.to_bytes(size, "little")
    return b"\xfe" + value.to_bytes(8, "little")


def ok(ticket: int, rest: bytes = USUAL, rows: int = 1, number: int = 1) -> bytes:
    return packet(b"\x00" + integer(rows) + integer(ticket) + rest, number)


def error(code: int, text: bytes, number: int = 1) -> bytes:
    return packet(b"\xff" + code.to_bytes(2, "little") + b"#40001" + text, number)


def three(*tickets: int) -> list[bytes]:
    """The answers to three statements."""
    return [
        ok(ticket, MORE if number < 3 else USUAL, rows=number == 2, number=number)
        for number, ticket in enumerate(tickets, 1)
    ]


def over_socket(connection: object, wire: SocketWire | None) -> Insert | None:
    poll = select.poll().poll if wire is None else wire.poller()
    assert poll is not None
    return insert_over_socket(cast("Any", connection), cast("Any", wire), poll)


class Wire:
    """A PyMySQL connection, and the other end of its socket."""

    def __init__(self, kind: type[Connection[Any]] = Connection) -> None:
        here, self.there = socket.socketpair()
        here.settimeout(5)
        self.connection = cast("Any", kind(defer_connect=True))
        self.connection._sock = here
        self.wire = SocketWire(here.fileno())
        self.insert = over_socket(self.connection, self.wire)

    def answer(self, *parts: bytes, request: Pollable | None = None, answers: int = 1) -> int:
        """What a draw of so many statements returns if the server sends this."""
        assert self.insert is not None
        for part in parts:
            self.there.send(part)
        return self.insert("UPDATE", request, answers)

    def close(self) -> None:
        self.there.close()
        self.wire.close()
        self.connection._force_close()


@pytest.fixture
def wire() -> Iterator[Wire]:
    with contextlib.closing(Wire()) as opened:
        yield opened


def test_statement_is_sent_as_one_packet(wire: Wire) -> None:
    wire.answer(ok(5))
    assert wire.there.recv(100) == b"\x07\x00\x00\x00\x03UPDATE"


@pytest.mark.parametrize("ticket", [0, 1, 250, 251, 252, 65535, 65536, 2**24, 2**32, 2**64 - 1])
def test_ticket_of_any_size_is_read(wire: Wire, ticket: int) -> None:
    assert wire.answer(ok(ticket)) == ticket
    assert wire.answer(ok(ticket, USUAL + b"Rows matched: 1  Changed: 1", rows=2)) == ticket


def test_answer_in_pieces_is_waited_for(wire: Wire) -> None:
    for ticket in (7, 2**40):
        whole = ok(ticket)
        for end in range(1, len(whole)):
            assert wire.answer(whole[:end], whole[end:]) == ticket


@pytest.mark.parametrize(
    "parts",
    [
        (ok(5), ok(7)),
        (ok(5, b"\x0a\x00\x00\x00"), ok(7)),
        (ok(5, b"\x0a\x00\x00\x00"),),
        (ok(5), b"\x01"),
        (packet(b"\x00\x01\x05" + USUAL, number=2),),
        (packet(b"\x05"),),
        (packet(b"\xfe\x00\x00\x02\x00"),),
        (packet(b""),),
        (packet(b"\x00\x01\xfe\x05" + USUAL),),
        (packet(b"\x00\x01\xfb" + USUAL),),
        (packet(b"\x00\x01\xff" + USUAL + bytes(8)),),
        (packet(b"\x00\xfc\x01\x01\x05" + USUAL),),
        (packet(b"\x00\x01\x05\x02"),),
    ],
    ids=[
        "two answers",
        "an answer and its next",
        "more answers to come",
        "a byte too much",
        "out of order",
        "rows",
        "the end of rows",
        "an empty packet",
        "a number cut off",
        "a null",
        "an error for a number",
        "many rows",
        "no status",
    ],
)
def test_anything_but_one_ok_packet_is_no_ticket(wire: Wire, parts: tuple[bytes, ...]) -> None:
    with pytest.raises(OutOfStep):
        wire.answer(b"".join(parts))


@pytest.mark.parametrize("ticket", [0, 1, 2**33, 2**64 - 1])
def test_ticket_is_the_number_of_one_of_three_answers(wire: Wire, ticket: int) -> None:
    whole = b"".join(three(0, ticket, 0))
    assert wire.answer(whole, answers=3) == ticket
    for end in range(1, len(whole)):
        assert wire.answer(whole[:end], whole[end:], answers=3) == ticket


@pytest.mark.parametrize(
    "parts",
    [
        [*three(0, 5, 0), ok(0)],
        [*three(0, 5, 0), b"\x00"],
        three(5, 7, 0),
        three(0, 5, 7),
        three(0, 5, 0)[::-1],
        [*three(0, 5, 0)[:2], three(0, 5, 0)[1]],
        [ok(0, MORE), ok(5, USUAL, number=2)],
        [ok(5)],
        [*three(0, 5, 0)[:2], packet(b"\x01", 3)],
        [ok(0, MORE), error(1213, b"", number=2), ok(5, number=3)],
    ],
    ids=[
        "a fourth answer",
        "a byte too much",
        "two numbers",
        "two numbers at the end",
        "out of order",
        "an answer twice",
        "two answers",
        "one answer",
        "rows",
        "an answer after an error",
    ],
)
def test_anything_but_three_ok_packets_is_no_ticket_of_three(
    wire: Wire, parts: list[bytes]
) -> None:
    with pytest.raises(OutOfStep):
        wire.answer(b"".join(parts), answers=3)


def test_error_of_one_of_three_statements_is_pymysql_s_own(wire: Wire) -> None:
    for before in range(3):
        parts = [*three(0, 5, 0)[:before], error(1213, b"Deadlock found", before + 1)]
        with pytest.raises(pymysql.err.OperationalError) as deadlock:
            wire.answer(*parts, answers=3)
        assert deadlock.value.args[0] == 1213
        assert wire.answer(*three(0, 9, 0), answers=3) == 9, "the connection is still in step"


def test_no_random_bytes_are_taken_for_another_ticket(wire: Wire) -> None:
    """One byte of an answer is changed; what is still read as a ticket is what PyMySQL reads, too."""
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    chance = random.Random(seed)
    for _ in range(300):
        good = ok(chance.choice([9, 300, 70_000, 2**33]), USUAL + b"abc")
        index = chance.randrange(4, len(good))
        changed = good[:index] + bytes([chance.randrange(256)]) + good[index + 1 :]
        with contextlib.closing(Wire()) as fresh:
            try:
                ticket = fresh.answer(changed)
            except (OutOfStep, pymysql.MySQLError):
                continue
        assert (
            ticket
            == pymysql.protocol.OKPacketWrapper(  # type: ignore[attr-defined]  # not in its stubs
                pymysql.protocol.MysqlPacket(changed[4:], "utf8")  # type: ignore[attr-defined]  # not in its stubs
            ).insert_id
        )


def test_error_of_the_server_is_pymysql_s_own(wire: Wire) -> None:
    with pytest.raises(pymysql.err.OperationalError) as deadlock:
        wire.answer(error(1213, b"Deadlock found " + b"x" * 2000))
    assert deadlock.value.args[0] == 1213
    assert wire.answer(ok(5)) == 5, "the connection is still in step"
    with pytest.raises(pymysql.err.IntegrityError):
        wire.answer(error(1062, b"Duplicate entry"))


@pytest.mark.parametrize("before", [b"", ok(5)[:2], ok(5)[:9]])
def test_closed_connection_gives_no_ticket(wire: Wire, before: bytes) -> None:
    wire.there.send(before)
    wire.there.shutdown(socket.SHUT_WR)
    with pytest.raises(ConnectionError):
        wire.answer()


class Impatience:
    """A draw whose answer is overdue at once; the server answers when it is polled."""

    overdue_seconds = 0.0

    def __init__(self, wire: Wire, answer: bytes = b"") -> None:
        self._wire, self._answer, self.polls = wire, answer, 0

    def be_polled(self) -> None:
        """Count it, and let the server answer."""
        self.polls += 1
        self._wire.there.send(self._answer)

    def be_overdue(self, read_late: Callable[[], int]) -> None:
        """Do the same."""
        self.be_polled()


def test_only_an_overdue_answer_is_polled_for(wire: Wire) -> None:
    late, soon = Impatience(wire, ok(7)), Impatience(wire)
    assert (wire.answer(request=late), late.polls) == (7, 1)
    assert (wire.answer(ok(9), request=soon), soon.polls) == (9, 0)


class Leaving(Impatience):
    """A draw that another server answers while its own answer is overdue."""

    read_late: Callable[[], int]

    def be_overdue(self, read_late: Callable[[], int]) -> None:
        """Leave the answer unread."""
        self.read_late = read_late
        raise TimeoutError


def test_late_answer_is_read_before_the_next_statement(wire: Wire) -> None:
    draw = Leaving(wire)
    with pytest.raises(TimeoutError):
        wire.answer(request=draw)
    wire.there.send(ok(7))
    assert (draw.read_late(), wire.answer(ok(9))) == (7, 9)


@pytest.mark.parametrize("late", [ok(7) + ok(9), packet(ok(7)[4:], 2), packet(b"\xfe" * 9)])
def test_late_answer_is_one_whole_packet(wire: Wire, late: bytes) -> None:
    draw = Leaving(wire)
    with pytest.raises(TimeoutError):
        wire.answer(request=draw)
    wire.there.send(late)
    with pytest.raises(OutOfStep):
        draw.read_late()


def test_rest_of_an_answer_is_polled_for(wire: Wire) -> None:
    """What has come is no answer, and the rest may never come."""
    whole = ok(7)
    late = Impatience(wire, whole[3:])
    late.overdue_seconds = 5.0
    assert (wire.answer(whole[:3], request=late), late.polls) == (7, 1)


def test_next_answer_is_polled_for_once_it_is_overdue(wire: Wire) -> None:
    first, *others = three(0, 7, 0)
    soon = Impatience(wire)
    soon.overdue_seconds = 5.0
    assert (wire.answer(first, *others, request=soon, answers=3), soon.polls) == (7, 0)
    late = Impatience(wire, b"".join(others))
    late.overdue_seconds = 0.01
    assert (wire.answer(first, request=late, answers=3), late.polls) == (7, 1)


def test_late_answers_to_three_statements_are_read_by_who_waits(wire: Wire) -> None:
    """Once the first has come, one who reads them would have to wait for the others."""
    draw = Leaving(wire, b"".join(three(0, 7, 0)))
    assert (wire.answer(request=draw, answers=3), draw.polls) == (7, 1)


def test_server_without_an_answer_is_given_up(wire: Wire) -> None:
    wire.connection._sock.settimeout(0.01)
    with pytest.raises(TimeoutError):
        wire.answer()


@pytest.mark.parametrize("name", ["query", "_execute_command", "_read_packet"])
def test_subclass_that_sends_in_its_own_way_does_so(name: str) -> None:
    def other(*_: object) -> None:
        raise NotImplementedError

    subclasses: Callable[[dict[str, object]], type[Connection[Any]]]
    subclasses = lambda members: type("Other", (Connection,), members)  # noqa: E731  # its type
    with contextlib.closing(Wire(subclasses({"close": Connection.close}))) as same:
        assert same.insert is not None
    with contextlib.closing(Wire(subclasses({name: other}))) as wire:
        assert wire.insert is None


def test_patched_connection_sends_in_its_own_way() -> None:
    """As a tracer patches it."""
    connection = Connection(defer_connect=True)
    connection.query = lambda *_: 0  # type: ignore[method-assign]  # what a tracer does
    assert over_socket(connection, None) is None


def test_other_driver_has_none() -> None:
    assert over_socket(object(), None) is None
