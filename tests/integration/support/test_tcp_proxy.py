"""The proxy does to a connection what its faults are called."""

from __future__ import annotations

import socket
import socketserver
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from tests.support.draws import until
from tests.support.tcp_proxy import HOST, Fault, TcpProxy

REPLY = b"0123456789"
#: In which silence is taken for silence, in seconds.
SILENCE = 0.3


class Server(socketserver.ThreadingTCPServer):
    """Answers whatever it is asked with the same reply."""

    daemon_threads = True
    reply = REPLY


class Line(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        assert isinstance(self.server, Server)
        with suppress(OSError):
            while self.request.recv(100):
                self.request.sendall(self.server.reply)


@contextmanager
def serving(reply: bytes = REPLY) -> Iterator[int]:
    with Server((HOST, 0), Line) as server:
        server.reply = reply
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


@pytest.fixture
def proxy() -> Iterator[TcpProxy]:
    with serving() as port, TcpProxy(port) as proxy:
        yield proxy


def ask(line: socket.socket, *, seconds: float = 10.0) -> bytes:
    """What comes back until the reply is whole, the connection ends, or it stays silent."""
    line.settimeout(seconds)
    got = b""
    try:
        line.sendall(b"?")
        while len(got) < len(REPLY) and (part := line.recv(100)):
            got += part
    except TimeoutError:
        return got + b" silence"
    except OSError:
        return got + b" cut"
    return got if len(got) == len(REPLY) else got + b" end"


def receive(line: socket.socket, count: int) -> bytes:
    """So many bytes."""
    got = b""
    while len(got) < count:
        got += line.recv(count)
    return got


def connect(proxy: TcpProxy) -> socket.socket:
    return socket.create_connection((HOST, proxy.port))


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        (Fault(), REPLY),
        (Fault("delay", 0.05), REPLY),
        (Fault("drop"), b" silence"),
        (Fault("freeze"), b" silence"),
        (Fault("cut"), b"01234 cut"),
        (Fault("half"), b"01234 silence"),
        (Fault("refuse"), b" cut"),
        (Fault("close"), b" cut"),
    ],
    ids=lambda value: value.kind if isinstance(value, Fault) else "",
)
def test_faults(proxy: TcpProxy, fault: Fault, expected: bytes) -> None:
    with connect(proxy) as line:
        assert ask(line) == REPLY
        proxy.do(fault)
        answer = ask(line, seconds=SILENCE if b"silence" in expected else 10)
        # half of a reply may be lost with the connection
        assert answer in (expected, expected.replace(b"01234", b""))
    proxy.do(Fault())
    with connect(proxy) as line:
        assert ask(line) == REPLY


def test_a_delay_goes_on(proxy: TcpProxy) -> None:
    with connect(proxy) as line:
        assert ask(line) == REPLY
        proxy.do(Fault("delay", 0.2))
        begun = time.monotonic()
        assert ask(line) == REPLY
        assert time.monotonic() - begun > 0.15


def test_delayed_replies_keep_their_order() -> None:
    """What is sent after the delay is over travels behind what was sent before."""
    with (
        socket.create_server((HOST, 0)) as server,
        TcpProxy(server.getsockname()[1]) as proxy,
        connect(proxy) as line,
        server.accept()[0] as far,
    ):
        proxy.do(Fault("delay", 0.3))
        far.sendall(b"first ")
        time.sleep(0.05)  # it is on its way
        proxy.do(Fault())
        far.sendall(b"second")
        line.settimeout(10)
        assert receive(line, 12) == b"first second"


@pytest.mark.parametrize("pause", [0.0, 0.1])
def test_a_reply_is_repeated_once(proxy: TcpProxy, pause: float) -> None:
    with connect(proxy) as line:
        proxy.do(Fault("repeat", pause))
        line.settimeout(10)
        line.sendall(b"?")
        assert receive(line, 2 * len(REPLY)) == REPLY + REPLY
        until(lambda: proxy.repeats == 1)
        assert ask(line) == REPLY


def test_forgotten_connections_get_no_answer(proxy: TcpProxy) -> None:
    with connect(proxy) as line:
        assert ask(line) == REPLY
        proxy.forget()
        assert ask(line, seconds=SILENCE) == b" silence"
        with connect(proxy) as new:
            assert ask(new) == REPLY
        assert proxy.connections == 2


def test_a_frozen_connection_goes_on(proxy: TcpProxy) -> None:
    with connect(proxy) as line:
        proxy.do(Fault("freeze"))
        assert ask(line, seconds=SILENCE) == b" silence"
        proxy.do(Fault())
        assert ask(line) == REPLY


def test_closed_connections_are_accepted_and_counted(proxy: TcpProxy) -> None:
    proxy.do(Fault("close"))
    with connect(proxy) as line:
        assert ask(line) in (b" cut", b" end")
    assert proxy.connections == 1


def test_refused_is_refused(proxy: TcpProxy) -> None:
    proxy.do(Fault("refuse"))
    with pytest.raises(ConnectionRefusedError):
        connect(proxy)


def test_leading_to_another_server(proxy: TcpProxy) -> None:
    with connect(proxy) as line, serving(b"abcdefghij") as other:
        assert ask(line) == REPLY
        proxy.lead_to(other)
        assert b"abc" not in ask(line)
        with connect(proxy) as new:
            assert ask(new) == b"abcdefghij"
