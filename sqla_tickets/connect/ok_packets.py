"""Sends a draw's statements over PyMySQL's socket, and reads the OK packets, one of which has the ticket.

PyMySQL makes about twenty-five calls for that, and they are the larger part of a draw's work in the client: 38 us of
108 among 8 processes on two cores, and 80 us of 236 among 32, whose caches are cold (Python 3.11, PyMySQL 1.2).

MySQL's protocol, "COM_QUERY" and "OK_Packet": a packet is a length of three bytes, a sequence number and that many
bytes. Answers are taken for a ticket's only if there is one whole OK packet for each statement, and no byte more.
"""

from __future__ import annotations

import socket
import ssl
import sys
from collections.abc import Callable
from typing import Any, Final, Protocol, TypeAlias

from sqlalchemy.engine.interfaces import DBAPIConnection

from ..errors import OutOfStep
from .sockets import Poll, SocketWire, Wire


class Pollable(Protocol):
    """Who is told that a statement's answer is overdue, or that nothing limits the wait for it.

    Attributes:
        overdue_seconds: after how long the answer is overdue.
    """

    overdue_seconds: float

    def be_polled(self) -> None:
        """Have the hedging monitor poll the request from now on."""
        ...

    def be_overdue(self, read_late: Callable[[], int], /) -> None:
        """Ask another server, or have the hedging monitor poll the request.

        Args:
            read_late: reads the answer once it has come, if this raises an error and the connection is not closed.

        Raises:
            Exception: another server has answered, so the caller waits no longer.
        """
        ...


#: Sends so many statements that return no rows; returns the number that the server generated, 0 for none.
Insert: TypeAlias = "Callable[[str, Pollable | None, int], int]"

_COM_QUERY: Final = b"\x03"
_HEADER: Final = 4
#: The header of an answer that is one whole packet, the first one, minus the answer's length.
_BEGINNING: Final = (1 << 24) - _HEADER
_ERROR: Final = b"\xff"
#: A header, a zero, two numbers of a byte each, and twice two bytes: the status and the number of warnings.
_LEAST_BYTES: Final = _HEADER + 7
#: How many bytes follow the first one of a length-encoded integer; without one of these it is the number itself.
_SIZES: Final = {0xFC: 2, 0xFD: 3, 0xFE: 8}
_SMALL: Final = 0xFB
_MORE_RESULTS: Final = 0x08
#: The methods with which PyMySQL sends a statement and reads its answer.
_SENDING: Final = (
    "query",
    "_execute_command",
    "_write_bytes",
    "_read_query_result",
    "_read_packet",
    "_read_bytes",
)
#: An OK packet has some forty bytes, an error at most about 600.
_MOST_BYTES: Final = 1024


def insert_over_socket(dbapi: DBAPIConnection, wire: Wire, poll: Poll) -> Insert | None:
    """A function that sends statements as PyMySQL does.

    It uses the socket with the time-out and the TLS that PyMySQL gave it. The caller makes sure that no answer is
    unread. After any error but the server's own, the connection must be closed.

    Args:
        dbapi: a driver's connection that has read an answer before.
        wire: its socket.
        poll: waits for the socket.

    Returns:
        None for another driver, and for a connection that sends statements in its own way: of a subclass, or patched.
    """
    driver: Any = sys.modules.get("pymysql")
    if driver is None or not isinstance(dbapi, driver.connections.Connection):
        return None
    own = driver.connections.Connection
    for name in _SENDING:
        function = getattr(getattr(dbapi, name, None), "__func__", None)
        if function is not getattr(own, name, None):
            return None
    connection: Any = dbapi
    sock: socket.socket = connection._sock
    is_tls = isinstance(sock, ssl.SSLSocket)
    # of TLS, a part of a record may come, which is no data yet
    is_unlimited = is_tls and sock.gettimeout() is None
    quick = sock if is_tls or not isinstance(wire, SocketWire) else wire.socket
    send, receive, receive_ready = quick.sendall, sock.recv, quick.recv
    encoding: str = connection.encoding
    raise_error: Callable[[bytes], object] = driver.err.raise_mysql_exception

    def insert(statement: str, request: Pollable | None, answers: int) -> int:
        query = _COM_QUERY + statement.encode(encoding)
        send(len(query).to_bytes(_HEADER, "little") + query)
        answer: bytes
        if request is None:
            answer = receive(_MOST_BYTES)
        elif is_unlimited:
            request.be_polled()
            answer = receive(_MOST_BYTES)
        elif poll(1000 * request.overdue_seconds):
            answer = receive_ready(_MOST_BYTES)
        else:
            # the first answer of several may have come long before the last one, so nobody could read them late
            if answers > 1:
                request.be_polled()
            else:
                request.be_overdue(read_late)
            answer = receive(_MOST_BYTES)
        return _ticket(answer, answers, request, more, raise_error)

    def read_late() -> int:
        return _ticket(receive(_MOST_BYTES), 1, None, more, raise_error)

    def more(request: Pollable | None, is_begun: bool) -> bytes:
        # the rest of a packet may never come; what TLS has read is no longer in the socket
        is_polled = is_begun or is_tls
        if request is not None and (is_polled or not poll(1000 * request.overdue_seconds)):
            request.be_polled()
        part: bytes = receive(_MOST_BYTES)
        if not part:
            raise ConnectionError("the server closed the connection")
        return part

    return insert


def _ticket(
    answer: bytes,
    answers: int,
    request: Pollable | None,
    more: Callable[[Pollable | None, bool], bytes],
    raise_error: Callable[[bytes], object],
) -> int:
    """The number that the server generated, as its answers say, of which the first bytes have come.

    Raises:
        OutOfStep: there is anything but so many OK packets, or they have more than one number.
        ConnectionError: the server closed the connection.
        Exception: the driver's error, if the last one is an error packet.
    """
    if answers > 1:
        return _ticket_of_several(answer, answers, request, more, raise_error)
    while int.from_bytes(answer[:_HEADER], "little") != len(answer) + _BEGINNING:
        end = _HEADER + int.from_bytes(answer[:3], "little")
        # it can never become one whole packet
        if len(answer) >= _HEADER and (answer[3] != 1 or len(answer) >= end):
            raise OutOfStep("expected one packet")
        answer += more(request, True)
    return _number(answer, raise_error, is_last=True)


def _ticket_of_several(
    answer: bytes,
    answers: int,
    request: Pollable | None,
    more: Callable[[Pollable | None, bool], bytes],
    raise_error: Callable[[bytes], object],
) -> int:
    ticket = 0
    for sequence in range(1, answers + 1):
        while len(answer) < (end := _HEADER + int.from_bytes(answer[:3], "little")):
            answer += more(request, bool(answer))
        packet, answer = answer[:end], answer[end:]
        if packet[3] != sequence or (answer and packet[_HEADER:].startswith(_ERROR)):
            raise OutOfStep("expected the answers in their order")
        number = _number(packet, raise_error, is_last=sequence == answers)
        if number and ticket:
            raise OutOfStep("expected one number")
        ticket = ticket or number
    if answer:
        raise OutOfStep("expected no more answers")
    return ticket


def _number(packet: bytes, raise_error: Callable[[bytes], object], *, is_last: bool) -> int:
    """The number in one OK packet; 0 for none."""
    if len(packet) < _LEAST_BYTES:
        raise OutOfStep("expected an OK packet")
    if packet[_HEADER] == _ERROR[0]:
        raise_error(packet[_HEADER:])
        raise OutOfStep("an error packet without an error")
    # a draw changes one row or two; the number's first byte is next
    if packet[_HEADER] or packet[5] >= _SMALL:
        raise OutOfStep("expected an OK packet")
    number, end = packet[6], 7
    if number >= _SMALL:
        end += _SIZES.get(number, len(packet))
        number = int.from_bytes(packet[7:end], "little")
    if len(packet) < end + 4 or bool(packet[end] & _MORE_RESULTS) == is_last:
        raise OutOfStep("expected another number of answers")
    return number
