"""A TCP proxy in front of one server, in a process of its own, that misbehaves when told to."""

from __future__ import annotations

import errno
import heapq
import itertools
import selectors
import socket
import struct
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Literal

from typing_extensions import Self

from tests.support.draws import from_one_start
from tests.support.servers.ports import free_port
from tests.support.waiting import has_input

__all__ = ["HOST", "Fault", "TcpProxy"]

Kind = Literal["nothing", "delay", "freeze", "drop", "cut", "half", "repeat", "refuse", "close"]
HOST = "127.0.0.1"
#: ``select()``, whose time-out is exact to the microsecond, knows no more sockets.
MOST_CONNECTIONS = 480
#: Longer than the packets of one answer are apart.
GAP_S = 0.05


@dataclass(frozen=True)
class Fault:
    """What a proxy does to its connections.

    Attributes:
        kind: One of

            * ``delay``: each reply travels so much longer, and what follows travels behind it;
            * ``freeze``: swallow what is sent; connections outlive it, without the lost bytes;
            * ``drop``: swallow what is sent, and end the connections when it is over;
            * ``cut``: end a connection in the middle of its reply;
            * ``half``: send half of a reply and nothing after it;
            * ``repeat``: send the next reply twice, once;
            * ``refuse``: refuse connections, and end those that there are;
            * ``close``: accept connections and end them at once, and those that there are.
        seconds: The delay of a reply, or the time between a reply and its repetition; with 0 one packet holds both.
    """

    kind: Kind = "nothing"
    seconds: float = 0.0


@dataclass(frozen=True)
class _Forget:
    """Stay silent on the connections that there are."""


@dataclass
class _Counts:
    """What was counted since the start."""

    connections: int = 0
    repeats: int = 0


class TcpProxy:
    """A proxy to one port.

    Args:
        target: The port that it leads to.
        fault: What it does from the start.
        host: The target's host.

    Attributes:
        port: Where clients find it, on loopback.
    """

    def __init__(self, target: int | None, fault: Fault | None = None, host: str = HOST) -> None:
        assert target is not None
        self.port = free_port()
        self._lock = threading.Lock()
        context = from_one_start()
        self._pipe, far = context.Pipe()
        arguments = (far, self.port, host, target, fault or Fault())
        self._process = context.Process(target=_serve, args=arguments, daemon=True)
        self._process.start()
        far.close()
        if not self._pipe.poll(60):
            raise TimeoutError("the proxy does not start")
        self._pipe.recv()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def do(self, fault: Fault) -> None:
        """Misbehave like this from now on."""
        self._ask(fault)

    def lead_to(self, target: int) -> None:
        """End all connections; new ones lead to another port."""
        self._ask(target)

    def forget(self) -> None:
        """Swallow without a word what is sent on any connection that there is now, as a firewall does."""
        self._ask(_Forget())

    @property
    def connections(self) -> int:
        """How many connections were accepted since the start."""
        return self._ask(None).connections

    @property
    def repeats(self) -> int:
        """How many replies were sent twice."""
        return self._ask(None).repeats

    @property
    def waited(self) -> float:
        """For how many seconds the process was ready to run and had no CPU; 0 where none can tell."""
        try:
            words = Path(f"/proc/{self._process.pid}/schedstat").read_text().split()
        except OSError:
            return 0.0
        return int(words[1]) / 1e9

    def close(self) -> None:
        """End the process, and with it all connections."""
        with suppress(OSError):  # a fork may hold the pipe open
            self._pipe.send("end")
        self._pipe.close()
        self._process.join(5)
        if self._process.is_alive():
            self._process.kill()

    def _ask(self, order: Fault | _Forget | int | None) -> _Counts:
        with self._lock:
            self._pipe.send(order)
            if not self._pipe.poll(60):
                raise TimeoutError(f"the proxy on port {self.port} does not obey")
            counts = self._pipe.recv()
        assert isinstance(counts, _Counts)
        return counts


def _serve(
    pipe: Connection[object, object], port: int, host: str, target: int, fault: Fault
) -> None:
    _Loop(pipe, port, host, target, fault).run()


@dataclass(eq=False)
class _End:
    """One of the two sockets of a connection.

    Attributes:
        arrives: When the last that was read here arrives at the other end.
        drops_input: Whether nothing that is read here is passed on any more.
    """

    socket: socket.socket
    is_server: bool
    other: _End = field(init=False)
    arrives: float = 0.0
    drops_input: bool = False
    has_ended: bool = False


class _Loop:
    def __init__(
        self, pipe: Connection[object, object], port: int, host: str, target: int, fault: Fault
    ) -> None:
        self._pipe, self._port, self._host, self._target = pipe, port, host, target
        self._fault, self._counts = fault, _Counts()
        self._ends: set[_End] = set()
        self._under_way: list[tuple[float, int, _End, bytes]] = []
        self._number = itertools.count()
        self._selector = selectors.SelectSelector()
        self._listener: socket.socket | None = None

    def run(self) -> None:
        """Pass on, and obey what comes through the pipe, until its other end is closed."""
        self._listen()
        self._selector.register(self._pipe, selectors.EVENT_READ)
        self._pipe.send("ready")
        while True:
            due = max(0.0, self._under_way[0][0] - time.monotonic()) if self._under_way else None
            ready = [key for key, _ in self._selector.select(due)]
            for key in ready:
                if key.fileobj is self._pipe:
                    if not self._obey():
                        return
                elif key.fileobj is self._listener:
                    self._accept()
                elif key.data in self._ends:
                    self._read(key.data)
            while self._under_way and self._under_way[0][0] <= time.monotonic():
                self._deliver(*heapq.heappop(self._under_way)[2:])

    # -- orders

    def _obey(self) -> bool:
        try:
            order = self._pipe.recv()
        except (EOFError, OSError):
            return False
        if order == "end":
            return False
        if isinstance(order, int):
            self._target = order
            self._end_all()
        elif isinstance(order, _Forget):
            for end in self._ends:
                end.drops_input = True
        elif isinstance(order, Fault):
            self._change(order)
        self._pipe.send(self._counts)
        return True

    def _change(self, fault: Fault) -> None:
        # what was swallowed is missing from these conversations for good
        if self._fault.kind in ("drop", "half") or fault.kind in ("refuse", "close"):
            self._end_all()
        if fault.kind == "refuse" and self._listener is not None:
            self._selector.unregister(self._listener)
            self._listener.close()
            self._listener = None
        elif fault.kind != "refuse" and self._listener is None:
            self._listen()
        self._fault = fault

    def _listen(self) -> None:
        self._listener = socket.create_server((HOST, self._port), backlog=512)
        self._selector.register(self._listener, selectors.EVENT_READ)

    # -- connections

    def _accept(self) -> None:
        assert self._listener is not None
        near, _ = self._listener.accept()
        self._counts.connections += 1
        if self._fault.kind == "close" or len(self._ends) >= 2 * MOST_CONNECTIONS:
            near.close()
            return
        far = socket.socket()
        far.setblocking(False)
        error = far.connect_ex((self._host, self._target))
        if error not in (0, errno.EINPROGRESS):  # the server is down: so is this connection
            _reset(near)
            far.close()
            return
        client, server = _End(near, is_server=False), _End(far, is_server=True)
        client.other, server.other = server, client
        for end in (client, server):
            end.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._ends.add(end)
        # a server that is frozen lets nobody wait but its own clients
        self._selector.register(far, selectors.EVENT_WRITE, server)

    def _read(self, end: _End) -> None:
        if self._selector.get_key(end.socket).events == selectors.EVENT_WRITE:
            self._connected(end)
            return
        try:
            data = end.socket.recv(1 << 18)
        except OSError:
            self._end(end)
            return
        if not data:
            self._selector.unregister(end.socket)
        self._pass_on(end, data)

    def _connected(self, server: _End) -> None:
        if server.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self._end(server)  # the server is down: so is this connection
            return
        self._selector.unregister(server.socket)
        for end in (server, server.other):
            end.socket.settimeout(10)
            self._selector.register(end.socket, selectors.EVENT_READ, end)

    def _pass_on(self, source: _End, data: bytes) -> None:
        fault, is_reply = self._fault, source.is_server
        if source.drops_input:
            return
        if data and fault.kind in ("drop", "freeze"):
            return
        if not (data and is_reply):
            self._send(source, data)
        elif fault.kind == "delay":
            self._send(source, data, fault.seconds)
        elif fault.kind == "repeat":
            self._repeat(source, data, fault.seconds)
        elif fault.kind in ("cut", "half"):
            self._deliver(source, data[: len(data) // 2])
            if fault.kind == "cut":
                self._end(source)
            source.drops_input = source.other.drops_input = True
        else:
            self._send(source, data)

    def _repeat(self, source: _End, data: bytes, pause: float) -> None:
        while has_input(source.socket, GAP_S):
            data += source.socket.recv(1 << 18)
        self._fault = Fault()
        if pause:
            self._deliver(source, data)
            time.sleep(pause)
            self._deliver(source, data)
        else:
            self._deliver(source, data + data)
        self._counts.repeats += 1

    def _send(self, source: _End, data: bytes, delay: float = 0.0) -> None:
        now = time.monotonic()
        due = max(source.arrives, now + delay)
        if due <= now:
            self._deliver(source, data)
        else:
            source.arrives = due
            heapq.heappush(self._under_way, (due, next(self._number), source, data))

    def _deliver(self, source: _End, data: bytes) -> None:
        if source not in self._ends:
            return
        try:
            if data:
                source.other.socket.sendall(data)
                return
            source.other.socket.shutdown(socket.SHUT_WR)
        except OSError:
            self._end(source)
            return
        source.has_ended = True
        if source.other.has_ended:
            self._end(source)

    def _end_all(self) -> None:
        for end in list(self._ends):
            self._end(end)

    def _end(self, one: _End) -> None:
        """End a connection at once."""
        for end in (one, one.other):
            if end not in self._ends:
                continue
            self._ends.discard(end)
            with suppress(KeyError):
                self._selector.unregister(end.socket)
            _reset(end.socket)


def _reset(end: socket.socket) -> None:
    """Close a socket as a crash or a firewall would: with RST, whatever is unsent."""
    with suppress(OSError):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    end.close()
