"""Runs the application in uvicorn: one process, or one that starts several workers."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import dataclasses
import functools
import logging
import math
import multiprocessing
import signal
import socket
import ssl
from types import FrameType
from typing import Any, Final

import uvicorn
from starlette.applications import Starlette
from uvicorn.config import LOGGING_CONFIG
from uvicorn.supervisors import Multiprocess

from ..errors import TicketArgumentError
from .app import LoadPools, create_app
from .settings import Settings, is_loopback

log = logging.getLogger("uvicorn.error")  # uvicorn says there what it does
#: Longer than proxies keep an idle connection, so that none is closed just when it sends a request.
KEEP_ALIVE_SECONDS: Final = 75
#: How long a worker may take to start on a busy machine; uvicorn kills one that takes longer, and tries again.
WORKER_START_SECONDS: Final = 60


@dataclasses.dataclass(frozen=True)
class Listener:
    """Where the service listens.

    Attributes:
        host: a name or an address of this machine.
        port: 0 for a free one.
        certificate: the path of a TLS certificate; None for plain HTTP.
        key: the path of its private key.
        is_open: whether other machines may connect although there are no tokens.
    """

    host: str = "127.0.0.1"
    port: int = 8080
    certificate: str | None = None
    key: str | None = None
    is_open: bool = False

    def check(self, settings: Settings) -> None:
        """Check that nobody on the network can draw without a token, and that the certificate can be used.

        Raises:
            TicketArgumentError: everyone could draw, or the certificate or its key cannot be used.
        """
        if not (settings.tokens or self.is_open or is_loopback(self.host)):
            raise TicketArgumentError(
                f"everyone who can reach {self.host} could draw tickets: give --tokens FILE, listen on 127.0.0.1, or "
                f"permit it with --no-tokens"
            )
        if self.certificate is None:
            if self.key is not None:
                raise TicketArgumentError("--key needs a certificate: give --certificate FILE, too")
            return
        try:
            ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(
                self.certificate, self.key
            )
        except OSError as error:
            key = f" and --key {self.key}" if self.key is not None else ""
            raise TicketArgumentError(
                f"--certificate {self.certificate}{key} cannot be used ({error}): give files in PEM format that this"
                " user may read; without --key, the certificate's file must have the key, too"
            ) from error

    def bind(self) -> socket.socket:
        """The socket, for all workers.

        Raises:
            TicketArgumentError: the address is unknown, or another program listens there.
        """
        try:
            found = socket.getaddrinfo(
                self.host, self.port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP
            )
            # asyncio sends without delay only where a socket names its protocol, which uvicorn's own does not
            with contextlib.ExitStack() as after_an_error:
                listening = after_an_error.enter_context(socket.socket(*found[0][:3]))
                listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                listening.bind(found[0][4])
                after_an_error.pop_all()
        except OSError as error:
            raise TicketArgumentError(
                f"cannot listen on {self.host}, port {self.port} ({error}): choose another --host or --port"
            ) from error
        listening.set_inheritable(True)
        return listening

    def url(self, listening: socket.socket) -> str:
        """The URL of the service."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http{'s' if self.certificate else ''}://{host}:{listening.getsockname()[1]}"


def run(
    load_pools: LoadPools, settings: Settings, listener: Listener, *, log_level: str = "WARNING"
) -> None:
    """Serve until SIGINT or SIGTERM. Requests in flight are answered first.

    Args:
        load_pools: returns new pools; it is pickled where there are several workers.
        settings: the application's settings.
        listener: where it listens.
        log_level: the level of this package's log messages.

    Raises:
        TicketArgumentError: it cannot listen there, or everyone on the network could draw.
        SystemExit: a worker cannot start, or a signal came.
    """
    listener.check(settings)
    is_local = not (settings.tokens or listener.is_open)
    settings = dataclasses.replace(settings, is_local=is_local)
    config = uvicorn.Config(
        functools.partial(_create_app, load_pools, settings),
        factory=True,
        host=listener.host,
        port=listener.port,
        workers=settings.workers,
        http="httptools",
        ws="none",
        lifespan="on",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        log_config=_log_config(log_level),
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_worker_healthcheck=WORKER_START_SECONDS,
        timeout_graceful_shutdown=math.ceil(settings.deadline_seconds) + 1,
        ssl_certfile=listener.certificate,
        ssl_keyfile=listener.key,
    )
    listening = listener.bind()
    log.info("listening on %s", listener.url(listening))
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _end)  # uvicorn raises it again after the shutdown
    if settings.workers > 1:
        Multiprocess(config, sockets=[listening]).run()
    else:
        uvicorn.Server(config).run(sockets=[listening])


def _create_app(load_pools: LoadPools, settings: Settings) -> Starlette:
    """The application of one worker, which ends when the process that started it ends, even by SIGKILL."""
    parent = multiprocessing.parent_process()
    if settings.workers > 1 and parent is not None:
        loop, sentinel = asyncio.get_running_loop(), parent.sentinel

        def end() -> None:
            loop.remove_reader(sentinel)
            signal.raise_signal(signal.SIGTERM)

        loop.add_reader(sentinel, end)
    return create_app(load_pools, settings)


def _end(number: int, frame: FrameType | None) -> None:
    raise SystemExit(0)


def _log_config(level: str) -> dict[str, Any]:
    """Uvicorn's logging, with this package's messages. No message has a token: they are in headers only."""
    config = copy.deepcopy(LOGGING_CONFIG)
    config["loggers"]["sqla_tickets"] = {
        "handlers": ["default"],
        "level": level,
        "propagate": False,
    }
    return config
