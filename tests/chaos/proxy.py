"""A TCP proxy in front of a ticket server, in a process of its own, that misbehaves when told to."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Literal

from tests.drawing.tools import from_one_start
from tests.servers.ports import free_port

__all__ = ["Fault", "Proxy"]

Kind = Literal["nothing", "delay", "drop", "cut", "half", "refuse"]
HOST = "127.0.0.1"


@dataclass(frozen=True)
class Fault:
    """What a proxy does to its connections.

    Attributes:
        kind: ``delay`` replies, ``drop`` what is sent in both directions, ``cut`` the connection in
            the middle of a reply, send ``half`` of a reply and then nothing, ``refuse`` connections.
        seconds: how long a reply is delayed.
    """

    kind: Kind = "nothing"
    seconds: float = 0.0


class Proxy:
    """A relay to one port of loopback.

    Attributes:
        port: where clients find it.
        target: the port that it leads to.
    """

    def __init__(self, target: int) -> None:
        self.port, self.target = free_port(), target
        context = from_one_start()
        self._pipe, far = context.Pipe()
        self._process = context.Process(target=_serve, args=(far, self.port, target), daemon=True)
        self._process.start()
        far.close()
        self._pipe.recv()

    def do(self, fault: Fault) -> None:
        """Misbehave like this from now on. Connections that have lost bytes are ended first."""
        self._tell(fault)

    def lead_to(self, target: int) -> None:
        """End all connections; new ones lead to another port."""
        self._tell(target)

    @property
    def waited(self) -> float:
        """For how many seconds the process was ready to run and had no CPU; 0 where none can tell."""
        try:
            words = Path(f"/proc/{self._process.pid}/schedstat").read_text().split()
        except OSError:
            return 0.0
        return int(words[1]) / 1e9

    def close(self) -> None:
        """End the process."""
        self._pipe.close()
        self._process.join(5)
        if self._process.is_alive():
            self._process.kill()

    def _tell(self, what: Fault | int) -> None:
        self._pipe.send(what)
        if not self._pipe.poll(10):
            raise TimeoutError(f"the proxy on port {self.port} does not obey")
        self._pipe.recv()


def _serve(pipe: Connection[object, object], port: int, target: int) -> None:
    asyncio.run(_Relay(port, target).serve(pipe))


class _Cut(Exception):
    """This connection ends here."""


class _Relay:
    def __init__(self, port: int, target: int) -> None:
        self._port, self._target, self._fault = port, target, Fault()
        self._lines: set[asyncio.StreamWriter] = set()
        self._listener: asyncio.AbstractServer | None = None

    async def serve(self, pipe: Connection[object, object]) -> None:
        """Relay, and obey what comes through the pipe, until its other end is closed."""
        await self._listen()
        told = asyncio.Event()
        asyncio.get_running_loop().add_reader(pipe.fileno(), told.set)
        pipe.send("ready")
        while True:
            await told.wait()
            told.clear()
            try:
                while pipe.poll():
                    await self._obey(pipe.recv())
                    pipe.send("done")
            except (EOFError, OSError):
                # asyncio has a word to say on every stream that is cancelled at the end
                asyncio.get_running_loop().set_exception_handler(lambda *_: None)
                return

    async def _listen(self) -> None:
        self._listener = await asyncio.start_server(self._line, HOST, self._port, backlog=512)

    async def _obey(self, order: object) -> None:
        if isinstance(order, int):
            self._target = order
            self._end_all()
            return
        assert isinstance(order, Fault)
        # what was swallowed is missing from these conversations for good
        if self._fault.kind in ("drop", "half") or order.kind == "refuse":
            self._end_all()
        if order.kind == "refuse" and self._listener is not None:
            self._listener.close()
            self._listener = None
        elif self._listener is None:
            await self._listen()
        self._fault = order

    def _end_all(self) -> None:
        for writer in list(self._lines):
            _reset(writer)

    async def _line(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One client's connection."""
        self._lines.add(writer)
        far: asyncio.StreamWriter | None = None
        try:
            answers, far = await asyncio.open_connection(HOST, self._target)
            self._lines.add(far)
            for end in (writer, far):
                end.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            both = [
                asyncio.ensure_future(self._pass_on(reader, far, reply=False)),
                asyncio.ensure_future(self._pass_on(answers, writer, reply=True)),
            ]
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            for task in both:
                task.cancel()
            await asyncio.gather(*both, return_exceptions=True)
        except OSError:  # the server is down: so is this connection
            pass
        finally:
            for end in filter(None, (writer, far)):
                self._lines.discard(end)
                _reset(end)

    async def _pass_on(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, *, reply: bool
    ) -> None:
        silent = False
        with contextlib.suppress(OSError, _Cut):
            while data := await source.read(65536):
                fault = self._fault
                if fault.kind == "drop" or silent:
                    continue
                if fault.kind == "delay" and reply:
                    await asyncio.sleep(fault.seconds)
                if fault.kind in ("cut", "half") and reply:
                    sink.write(data[: len(data) // 2])
                    await sink.drain()
                    if fault.kind == "cut":
                        raise _Cut
                    silent = True
                    continue
                sink.write(data)
                await sink.drain()


def _reset(writer: asyncio.StreamWriter) -> None:
    """End a connection at once, as a crash or a firewall would: with RST, whatever is unsent."""
    with contextlib.suppress(OSError):
        end = writer.get_extra_info("socket")
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
