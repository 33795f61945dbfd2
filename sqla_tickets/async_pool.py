"""``AsyncTicketPool``: a `TicketPool` with awaitable methods, as ``AsyncEngine`` is to SQLAlchemy's ``Engine``.

Each method runs `TicketPool`'s method in SQLAlchemy's greenlet. There an async driver's round trip is a task of the
event loop, and a synchronous driver's waits in a thread. So signatures and docstrings are the same.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine, Generator
from contextlib import AbstractContextManager, contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from .concurrency import run_in_greenlet
from .draw.server import TicketServer
from .pool import TicketPool

if TYPE_CHECKING:
    from typing_extensions import Self

P = ParamSpec("P")
T = TypeVar("T")


def _awaitable(
    method: Callable[Concatenate[TicketPool, P], T],
) -> Callable[Concatenate[AsyncTicketPool, P], Coroutine[Any, Any, T]]:
    """An awaitable version of a method of the pool."""

    @functools.wraps(method)
    async def call(self: AsyncTicketPool, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await run_in_greenlet(functools.partial(method, self.sync_pool, *args, **kwargs))

    return call


def _unchanged(
    method: Callable[Concatenate[TicketPool, P], T],
) -> Callable[Concatenate[AsyncTicketPool, P], T]:
    """A method of the pool that asks no server."""

    @functools.wraps(method)
    def call(self: AsyncTicketPool, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return method(self.sync_pool, *args, **kwargs)

    return call


def _yielding_itself(
    method: Callable[Concatenate[TicketPool, P], AbstractContextManager[TicketPool]],
) -> Callable[Concatenate[AsyncTicketPool, P], AbstractContextManager[AsyncTicketPool]]:
    """A method of the pool for a ``with`` block, which asks no server."""

    @functools.wraps(method)
    @contextmanager
    def call(
        self: AsyncTicketPool, /, *args: P.args, **kwargs: P.kwargs
    ) -> Generator[AsyncTicketPool]:
        with method(self.sync_pool, *args, **kwargs):
            yield self

    return call


def _with_arguments_of(
    constructor: Callable[Concatenate[TicketPool, P], None],
) -> Callable[[Callable[..., None]], Callable[Concatenate[AsyncTicketPool, P], None]]:
    """Gives a constructor the signature of another one."""
    return functools.wraps(constructor)


class AsyncTicketPool:
    """A `TicketPool` for coroutines, with the same arguments and names; await the methods that ask a server.

    It serves synchronous and async drivers. The event loop is never blocked.

    Attributes:
        sync_pool: the `TicketPool` that does the work, for APIs that need one, and for functions that ``run_sync()``
            calls.
    """

    @_with_arguments_of(TicketPool.__init__)
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.sync_pool = TicketPool(*args, **kwargs)

    def __repr__(self) -> str:
        return f"Async{self.sync_pool!r}"

    @property
    def name(self) -> str:
        """The name that a ``TicketSequence(pool=...)`` uses."""
        return self.sync_pool.name

    @property
    def stride(self) -> int:
        """The difference between two consecutive tickets of one server."""
        return self.sync_pool.stride

    @property
    def servers(self) -> tuple[TicketServer, ...]:
        """The ticket servers."""
        return self.sync_pool.servers

    @property
    def info(self) -> dict[Any, Any]:
        """A dictionary for extensions of the pool."""
        return self.sync_pool.info

    @property
    def block_duration(self) -> float:
        """Seconds that a block should last, for sequences whose ``block`` has two bounds."""
        return self.sync_pool.block_duration

    @property
    def block_max_age(self) -> float:
        """Seconds after which the rest of a block is dropped."""
        return self.sync_pool.block_max_age

    attach = _unchanged(TicketPool.attach)
    detach = _unchanged(TicketPool.detach)
    attached = _yielding_itself(TicketPool.attached)
    declared_sequences = _unchanged(TicketPool.declared_sequences)
    buffered = _unchanged(TicketPool.buffered)

    next_id = _awaitable(TicketPool.next_id)
    next_ids = _awaitable(TicketPool.next_ids)
    reserve = _awaitable(TicketPool.reserve)
    create_table = _awaitable(TicketPool.create_table)
    drop_table = _awaitable(TicketPool.drop_table)
    raise_above = _awaitable(TicketPool.raise_above)
    unquarantine = _awaitable(TicketPool.unquarantine)
    create_all = _awaitable(TicketPool.create_all)
    status = _awaitable(TicketPool.status)
    dispose = _awaitable(TicketPool.dispose)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # a cancelled task closes its connections, too
        await asyncio.shield(asyncio.create_task(self.dispose()))
