# What is protected is hidden from users, not from this package.
# pyright: reportPrivateUsage=false
"""``TicketPool``: the ticket servers that share the id space of some sequences.

It has the configuration and the public methods; `draw` does the work. It survives the loss of all servers but one.
"""

from __future__ import annotations

import functools
import importlib
import itertools
import logging
import math
import os
import warnings
from collections.abc import Callable, Generator, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any
from weakref import WeakSet, ref

from sqlalchemy import URL, Column, Engine, MetaData, event

from .arguments import (
    NODES,
    BlockBounds,
    metadata_of,
    metadatas_of,
    name_of_pool,
    name_of_sequence,
    names_of_sequences,
    seconds,
    whole_number,
)
from .concurrency import (
    WeakRegistry,
    elapsed,
    has_running_loop,
    in_background,
    in_event_loop,
    process_id,
    threading,
    wait_for_tasks,
)
from .connect.engines import address_of
from .connect.timeouts import Timeouts
from .dialects import LayoutName
from .draw import redirects
from .draw.access import LARGEST_STRIDE, ServerAccess, ServerSpec
from .draw.buffer import Buffer, drop_everything
from .draw.failover import Failover, random_start
from .draw.hedging import HedgingMonitor
from .draw.server import TicketServer
from .errors import (
    TicketArgumentError,
    TicketError,
    TicketTableError,
    TicketTableMoved,
    TicketWarning,
)
from .events import Dispatcher, TicketEvents
from .high_water.service import HighWaterService
from .maintenance import operations
from .maintenance.status import ask_tables
from .orm import flush, mappers
from .orm.default import IdDefault, create_tables
from .orm.sequence import TicketSequence, attached_sources, bounds_of, sequence_of

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine
    from typing_extensions import Self

    from .maintenance.status import TableStatus

log = logging.getLogger(__name__)


class TicketPool(event.EventTarget):
    """A pool of ticket servers, any of which may be down. It connects to nothing before the first draw.

    Args:
        servers: URLs, ``Engine`` s, ``AsyncEngine`` s or `ServerSpec` s. The position in the
            list, counted from 1, is the server's offset: never change the order of a list in use.
        stride: the difference between two consecutive tickets of one server; by default the number of servers. A
            larger stride leaves room for more servers.
        name: the name that a ``TicketSequence(pool=...)`` uses.
        timeout: how long one server may send nothing, in seconds; 1 by default, at most a year. Every driver supports
            fractions.
        lock_wait: the longest wait for a lock on a ticket table, or of a draw in a queue, in seconds; 1 by default.
            MySQL and MariaDB round it up to whole seconds. A draw ends after servers x (timeout + lock_wait);
            `sqla_tickets.connect.timeouts` has the exceptions.
        hedge: whether to send a slow draw to another server, too, and take the first answer; by default True if
            there is another server.
        block_duration: seconds that a block should last, for sequences whose ``block`` has two bounds.
        block_max_age: seconds after which the rest of a block is dropped, which is a gap. ``float("inf")`` keeps it
            for as long as the process lives.
        require_peer: whether this process refuses a table until another server of the pool has reported the
            table's high-water mark. Then a server that is restored while its peers are down repeats no ids, but a
            process that starts while all peers are down gets no ids.

    Attributes:
        info: a dictionary for extensions of the pool.
        dispatch: the listeners to its `TicketEvents`.

    Raises:
        TicketArgumentError: there are no servers, too many for the stride, two with the same offset, or an invalid
            time.
    """

    dispatch = event.dispatcher(TicketEvents)
    _random_start = staticmethod(random_start)

    def __init__(
        self,
        servers: Sequence[str | URL | Engine | AsyncEngine | ServerSpec],
        *,
        stride: int | None = None,
        name: str = "default",
        timeout: float = Timeouts.timeout_seconds,
        lock_wait: float = Timeouts.lock_wait_seconds,
        hedge: bool | None = None,
        block_duration: float = 10.0,
        block_max_age: float = 600.0,
        require_peer: bool = False,
    ) -> None:
        # a URL is a tuple, too
        if isinstance(servers, URL) or not isinstance(servers, (list, tuple)) or not servers:
            raise TicketArgumentError(
                f"TicketPool({name!r}) needs a list of ticket servers: name two or more, so that one may fail"
            )
        self.name = name_of_pool(name)
        self.stride = len(servers) if stride is None else stride
        this = f"TicketPool({name!r})"
        whole_number(f"{this} of {len(servers)}: stride", self.stride, len(servers), LARGEST_STRIDE)
        timeouts = Timeouts(
            seconds(f"{this}: timeout", timeout), seconds(f"{this}: lock_wait", lock_wait)
        )
        self.block_duration = seconds(f"{this}: block_duration", block_duration, math.inf)
        self.block_max_age = seconds(f"{this}: block_max_age", block_max_age, math.inf)
        if hedge not in (None, True, False):
            raise TicketArgumentError(f"{this}: hedge={hedge!r}: expected True, False or None")
        is_flag = type(require_peer) is bool
        if not is_flag or (require_peer and len(servers) < 2):
            raise TicketArgumentError(
                f"{this} of {len(servers)}: require_peer={require_peer!r}: expected True or False; True needs at "
                f"least two servers, because a server's marks are on its peers"
            )
        self.servers = tuple(
            TicketServer(_spec_of(given), position, self.stride, timeouts)
            for position, given in enumerate(servers, 1)
        )
        #: The ticket servers that are SQLite files.
        self._files = tuple(s for s in self.servers if s.context.dialect.is_embedded)
        #: Whether the drivers are async, so that only SQLAlchemy's greenlet can wait for them.
        self._is_async = any(server.is_async for server in self.servers)
        if self._is_async and not all(server.is_async for server in self.servers):
            drivers = ", ".join(server.engine.url.drivername for server in self.servers)
            raise TicketArgumentError(
                f"{this} has synchronous and asynchronous drivers ({drivers}): expected one kind, because a draw asks all "
                "servers how far its own has come. Give all URLs drivers of one kind"
            )
        self._check_offsets()
        self._warn_of_duplicates()
        self.info: dict[Any, Any] = {}
        self._events = Dispatcher(name, self.dispatch)
        self._buffer = self._new_buffer()
        self._failover = Failover(name, self.servers, self._events, self._random_start)
        #: What the servers know of each other.
        self._marks = HighWaterService(self.servers, self.stride, require_peer=require_peer)
        hedge = len(servers) > 1 if hedge is None else hedge
        self._monitor = HedgingMonitor(self.servers, hedge=hedge, events=self._events)
        on_quarantine = functools.partial(_on_quarantine, self._events, ref(self._marks))
        for server in self.servers:
            server.connect_peers(self._marks, on_quarantine, self._monitor, self._events)
        self._metadatas = WeakRegistry[MetaData]()
        #: Where the sequences are that have moved away: another attached pool, and a name there.
        self._redirects: dict[str, tuple[TicketPool, str]] = {}
        #: By process: the lock of the thread that forgets what is the parent's.
        self._reinitializing: dict[int, threading.Lock] = {}
        _pools.add(self)
        _install_fork_hook()

    def __repr__(self) -> str:
        servers = ", ".join(map(str, self.servers))
        return f"TicketPool([{servers}], stride={self.stride}, name={self.name!r})"

    def _check_offsets(self) -> None:
        offsets = [server.offset for server in self.servers]
        if len(set(offsets)) < len(offsets) or not all(1 <= o <= self.stride for o in offsets):
            raise TicketArgumentError(
                f"TicketPool({self.name!r}): expected different offsets from 1 to {self.stride}, found {offsets}:"
                " two servers with one offset would issue the same tickets"
            )

    def _warn_of_duplicates(self) -> None:
        addresses = [address_of(server.engine) for server in self.servers]
        for address, server in zip(addresses, self.servers, strict=True):
            if addresses.count(address) > 1:
                warnings.warn(
                    f"TicketPool({self.name!r}) has the server {server} more than once: when it fails, all of its"
                    " offsets fail. Replace one entry with a server on another machine",
                    TicketWarning,
                    stacklevel=3,
                )
                return

    # -- which sequences it serves

    def attach(self, *metadatas: MetaData) -> None:
        """Serve every `TicketSequence` of ``metadatas`` whose ``pool`` is this pool's name.

        It replaces another pool of that name. The first call in a process installs the listeners on SQLAlchemy's
        ``Session``.

        Raises:
            TicketArgumentError: there is no MetaData, or an argument is not a MetaData. Then nothing is attached.
        """
        for metadata in metadatas_of(self.name, metadatas):
            attached_sources(metadata)[self.name] = self
            self._metadatas.add(metadata)
        mappers.inspect_mappers()
        flush.install()

    def detach(self, *metadatas: MetaData) -> None:
        """Stop serving ``metadatas``, except those that another pool of this name now serves."""
        for metadata in metadatas_of(self.name, metadatas):
            sources = attached_sources(metadata)
            if sources.get(self.name) is self:
                del sources[self.name]
            self._metadatas.discard(metadata)

    @contextmanager
    def attached(self, *metadatas: MetaData) -> Generator[TicketPool]:
        """Serve ``metadatas`` within a ``with`` block; afterwards the previous pools serve them again."""
        before = [
            (metadata, attached_pools(metadata).get(self.name))
            for metadata in metadatas_of(self.name, metadatas)
        ]
        self.attach(*metadatas)
        try:
            yield self
        finally:
            self.detach(*metadatas)
            for metadata, pool in before:
                if pool is not None:
                    pool.attach(metadata)

    def _resolve(self, moved: TicketTableMoved) -> TicketPool:
        """The pool that a tombstone of this pool names, attached to the same MetaData.

        Raises:
            TicketTableMoved: ``moved`` itself, if there is no such pool.
        """
        if moved.pool == self.name:
            return self
        for metadata in self._metadatas:
            pool = attached_pools(metadata).get(moved.pool)
            if pool is not None:
                return pool
        raise moved

    def _check_caller(self) -> None:
        """Check, before asking any server, that the caller can wait for every driver.

        Raises:
            TicketArgumentError: a driver is async, but the caller is synchronous code.
        """
        if not in_event_loop():
            for server in self.servers:
                server.check_caller()

    def _is_reachable_from(self, pool: TicketPool) -> bool:
        """Whether ``pool`` still finds this pool by its name."""
        return pool is self or any(
            attached_sources(metadata).get(self.name) is self for metadata in pool._metadatas
        )

    # -- drawing

    def next_id(self, sequence: str | TicketSequence) -> int:
        """Draw one ticket.

        Args:
            sequence: its name, or a `TicketSequence`, whose ``block`` then applies.

        Raises:
            NoTicketServer: every server failed; its message has the last error of each.
            TicketTableError: no server has a usable table for the sequence.
            TicketsExhausted: no number is left.
        """
        buffer = self._buffer
        try:
            name: str = (
                sequence.name  # type: ignore[assignment]  # None and another pool's sequence are no keys
                if type(sequence) is TicketSequence
                and (sequence._only_pool is None or sequence._only_pool == self.name)
                else sequence
            )
            buffered = buffer.direct[name]
        except (KeyError, TypeError):  # a new sequence, another pool's, or no sequence
            return self._next_buffered(*self._name_and_bounds(sequence))
        ready = buffered.ready
        try:
            if elapsed() < ready.until:
                ticket = ready.pop()
                if buffer.is_owner_process[0]:  # else the ticket is the parent's
                    return ticket
        except IndexError:  # there was none, or others were faster
            pass
        block = sequence.block if type(sequence) is TicketSequence else 1
        is_empty = not ready.tickets and not buffered.blocks
        if block == 1 and is_empty and buffer.is_owner_process[0]:
            drawn = self._draw(name, 1)
            if buffered.is_open and buffer.is_owner_process[0]:
                return drawn[0][0]
            self._events.discarded(name, buffer.is_owner_process[0], "dropped")
        return self._next_buffered(*self._name_and_bounds(sequence))

    def _name_and_bounds(self, sequence: str | TicketSequence) -> tuple[str, BlockBounds]:
        """The name of a sequence, and the bounds of its blocks.

        Raises:
            TicketArgumentError: it has no valid name, or belongs to another pool.
        """
        if not isinstance(sequence, TicketSequence):
            return name_of_sequence(sequence), (1, 1)
        if sequence._only_pool not in (None, self.name):
            raise TicketArgumentError(
                f"{sequence!r} belongs to the pool {sequence._only_pool!r}, and this is {self.name!r}: draw from that pool"
            )
        return sequence.name or sequence_of(sequence), bounds_of(sequence.block)

    def _next_buffered(self, name: str, bounds: BlockBounds) -> int:
        """The part of `next_id` that may draw, by the sequence's name and the bounds of its blocks."""
        if bounds[1] > 1:
            if self._is_async:
                self._check_caller()
            buffer = self._buffer_of_this_process()
            ticket = buffer.take_one(name, bounds, self._draw, self._begin_fetch)
            if ticket is not None:
                return ticket
        return self._reserve(name, 1, bounds)[0][0]

    def next_ids(self, sequence: str | TicketSequence, n: int) -> list[int]:
        """Draw exactly ``n`` tickets, ascending within each block.

        Raises:
            TicketArgumentError: ``n`` is not 1 or more.
            TicketError: as `next_id` raises it.
        """
        return list(itertools.chain.from_iterable(self.reserve(sequence, n)))

    def reserve(self, sequence: str | TicketSequence, n: int) -> list[range]:
        """Draw exactly ``n`` tickets as blocks, so that memory does not grow with ``n``.

        Raises:
            TicketArgumentError: ``n`` is not 1 or more.
            TicketError: as `next_id` raises it.
        """
        name, bounds = self._name_and_bounds(sequence)
        return self._reserve(name, n, bounds)

    def _reserve(self, name: str, n: int, bounds: BlockBounds) -> list[range]:
        """The same as `reserve`, by the sequence's name and the bounds of its blocks."""
        if type(n) is not int or n < 1:
            whole_number(f"tickets of {name!r}: n", n, 1)
        if self._is_async:
            self._check_caller()
        while True:
            buffer = self._buffer
            if not buffer.is_owner_process[0]:  # asked here, too, as it costs less than the call
                buffer = self._buffer_of_this_process()
            blocks = buffer.take(name, n, bounds, self._draw, self._begin_fetch)
            if blocks is not None:  # else the buffer was dropped while we drew: that is a gap
                return blocks

    def _draw(self, name: str, n: int) -> list[range]:
        """Draw from the sequence's present pool."""
        if name not in self._redirects:
            try:
                return self._failover.draw(name, n)
            except TicketTableMoved:
                pass
        return self._draw_redirected(name, n)

    def _draw_redirected(self, name: str, n: int) -> list[range]:
        """Draw a moved sequence from the pool where it was last found, or is found now."""
        known = self._redirects.get(name)
        if known is not None and known[0]._is_reachable_from(self):
            try:
                return known[0]._draw_from_servers(known[1], n)
            except TicketTableError:  # it has moved on
                pass
        self._redirects.pop(name, None)
        drawn, found = _follow(self, name, n)
        if found != (self, name):
            self._redirects[name] = found
            if found != known:  # a client without that pool has an error instead, at each draw
                where, there = found
                log.info(
                    "following the sequence %r: it is now %r of the pool %r",
                    name,
                    there,
                    where.name,
                )
        return drawn

    def _begin_fetch(self, name: str, fetch: Callable[[], None]) -> bool:
        """Begin to fetch a block in the background, if the driver permits it.

        SQLite does not: a fork during another thread's call can crash it.
        """
        pool, _ = self._redirects.get(name, (self, name))
        if pool._files or (pool._is_async and not has_running_loop()):
            return False
        return in_background(fetch, f"sqla_tickets block of {name!r}", in_a_task=pool._is_async)

    def _buffer_of_this_process(self) -> Buffer:
        if not self._buffer.is_owner_process[0]:  # a fork that Python was not told of
            with self._reinitializing.setdefault(process_id(), threading.Lock()):
                if not self._buffer.is_owner_process[0]:  # no other thread has done it
                    self._reinit_after_fork()
        return self._buffer

    def _new_buffer(self) -> Buffer:
        return Buffer(
            self._events.discarded,
            self.block_duration,
            self.block_max_age,
            needs_loop=self._is_async,
        )

    def _draw_from_servers(self, name: str, n: int) -> list[range]:
        """Draw from the first server of this pool that answers.

        Raises:
            TicketTableMoved: the sequence has left this pool, or has not arrived yet.
            TicketError: as `next_id` raises it.
        """
        self._buffer_of_this_process()
        return self._failover.draw(name, n)

    # -- ticket tables

    def create_table(
        self,
        name: str,
        *,
        layout: LayoutName | None = None,
        start: int = 1,
        bits: int = 64,
        engine: str = "InnoDB",
    ) -> None:
        """Create the sequence's table on every server, and verify existing ones.

        Args:
            name: the sequence's name.
            layout: None for the one that the sequence has on other servers, or else ``"replace"`` on MySQL and MariaDB
                and ``"counter"`` elsewhere.
            start: the smallest ticket of a new table.
            bits: 64, or 32 for tickets up to 4,294,967,295.
            engine: the storage engine, on MySQL and MariaDB.

        Raises:
            TicketError: a server failed, or has another table of that name. Call it again after the repair: finished
                steps are kept.
        """
        self._check_caller()
        whole_number(f"the ticket table {name!r}: start", start, 1)
        operations.create(self, name, layout=layout, start=start, bits=bits, engine=engine)

    def drop_table(self, name: str) -> None:
        """Drop the sequence's table on every server. If it is created again, its numbers begin anew.

        Raises:
            TicketError: a server failed.
        """
        self._check_caller()
        name = name_of_sequence(name)
        try:
            for server in self.servers:
                server.drop(name)
            self._marks.drop(name)
        finally:
            self._redirects.pop(name, None)
            drop_everything()  # moved tickets are buffered by their earlier name, and in their earlier pool

    def raise_above(self, name: str, above: int) -> None:
        """Raise a sequence, so that every server's next ticket is larger than ``above``; never lowers a number.

        It drops the buffered tickets of every pool of this process, as a moved sequence has them by another name.

        Raises:
            TicketError: a server failed, or has no table for the sequence.
        """
        self._check_caller()
        name = name_of_sequence(name)
        try:
            operations.raise_above(self, name, above)
        finally:
            drop_everything()

    def unquarantine(self, name: str, server: TicketServer | None = None) -> None:
        """End the quarantine of tables that broke a promise and were repaired.

        It draws and discards one ticket of each, and compares it with the peers' marks and the tickets that this
        process has seen. It waits for each server as long as a draw does. Call it in every process, or restart them.

        Args:
            name: the sequence's name.
            server: one of ``pool.servers``; None for all of them.

        Raises:
            TicketIntegrityError: a table still issues old numbers, or another server's; it stays quarantined.
            TicketError: a server failed; its table stays quarantined.
        """
        self._check_caller()
        name_of_sequence(name)
        if server is not None and server not in self.servers:
            raise TicketArgumentError(f"{server} is not in the pool {self.name!r}")
        failures: list[TicketError] = []
        for each in self.servers if server is None else [server]:
            try:
                each.unquarantine(name)
            except TicketError as error:
                failures.append(error)
        if failures:
            raise failures[0]

    def create_all(self, metadata: MetaData) -> None:
        """Create the tables of all sequences of ``metadata`` that this pool serves.

        Raises:
            TicketError: as `create_table` raises it.
        """
        self._check_caller()
        create_tables(self, self._columns_of(metadata_of(self.name, metadata)))

    def _sequences_of(self, metadata: MetaData) -> list[str]:
        return sorted(
            {
                sequence_of(column.default, column)
                for column in self._columns_of(metadata)
                if isinstance(column.default, TicketSequence)
            }
        )

    def _columns_of(self, metadata: MetaData) -> Iterator[Column[Any]]:
        """The columns whose ids, tickets or others, are declared to come from this pool."""
        for column in _ticket_columns(metadata):
            if (getattr(column.default, "pool", None) or "default") == self.name:
                yield column

    def _declared_in(self) -> Hashable:
        """What changes when a MetaData is attached, or gets another table, or a column its ids."""
        tables = sum(len(metadata.tables) for metadata in self._metadatas)
        return frozenset(self._metadatas.refs), tables, IdDefault._last_declared

    def _declarations(self) -> Iterator[object]:
        """The declarations of ids in the attached MetaDatas, of tickets and of others."""
        for metadata in self._metadatas:
            for column in self._columns_of(metadata):
                yield column.default

    def declared_sequences(self) -> set[str]:
        """The names of the sequences that the attached MetaDatas declare."""
        return {name for metadata in self._metadatas for name in self._sequences_of(metadata)}

    # -- operations

    def status(self, sequences: Iterable[str] = ()) -> list[TableStatus]:
        """Ask every server; returns one record for each sequence and server. A server that is down raises no error.

        It covers the sequences of the attached MetaDatas, those that were drawn from, and ``sequences``.
        """
        names = names_of_sequences(sequences) | self.declared_sequences()
        names.update(name for server in self.servers for name in server.known_sequences() if name)
        names.discard(NODES)
        return ask_tables(self, names)

    def buffered(self, sequence: str | TicketSequence) -> int:
        """How many tickets of the sequence this process has buffered."""
        name = sequence if isinstance(sequence, str) else self._name_and_bounds(sequence)[0]
        return self._buffer.count(name)

    def _reinit_after_fork(self) -> None:
        """In a fork: forget the parent's blocks, connections and locks."""
        for server in self.servers:
            server.reinit_after_fork()
        self._monitor.reinit_after_fork()
        self._marks.reinit_after_fork()
        self._failover.reinit_after_fork()
        # the last, as it says that all is done
        self._buffer = self._new_buffer()

    def dispose(self) -> None:
        """Close idle connections, end threads, and give node numbers back.

        Connections of running background calls are closed when these end. The pool can be used again; its buffers
        stay.
        """
        self._check_loop()
        self._events.dispatch_event("disposing")
        self._monitor.close()
        self._marks.flush()
        wait_for_tasks(max(server.timeouts.timeout_seconds for server in self.servers))
        for server in self.servers:
            server.close()

    def _check_loop(self) -> None:
        """The same as `_check_caller` while an event loop runs; after its end, connections are closed silently."""
        if has_running_loop():
            self._check_caller()

    def __enter__(self) -> Self:
        self._check_loop()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.dispose()


def attached_pools(metadata: MetaData) -> dict[str, TicketPool]:
    """The pools that serve this MetaData's sequences, by name."""
    sources = dict(attached_sources(metadata)).items()  # in one step, as other threads attach
    return {name: source for name, source in sources if isinstance(source, TicketPool)}


def _follow(pool: TicketPool, name: str, n: int) -> tuple[list[range], tuple[TicketPool, str]]:
    return redirects.follow(
        (pool, name), lambda at, there: at._draw_from_servers(there, n), TicketPool._resolve
    )


def _spec_of(given: str | URL | Engine | AsyncEngine | ServerSpec) -> ServerSpec:
    return given if isinstance(given, ServerSpec) else ServerSpec(given)


def _ticket_columns(metadata: MetaData) -> list[Column[Any]]:
    return mappers.drawing_columns(
        column for table in list(metadata.tables.values()) for column in table.columns
    )


def _on_quarantine(
    events: Dispatcher,
    marks: Callable[[], HighWaterService | None],
    server: ServerAccess,
    sequence: str,
    error: TicketError,
) -> None:
    """Drop buffered tickets, notify the listeners, and write the server's marks to its peers.

    It has no reference to the pool, which the server would keep alive.
    """
    drop_everything()
    events.dispatch_event("quarantined", sequence, server, error)
    peers = marks()
    if peers is not None:
        peers.begin_to_write(server)


_pools: WeakSet[TicketPool] = WeakSet()


@functools.cache
def _install_fork_hook() -> None:
    """Notify all pools of every ``os.fork()``; installed once in a process, with its first pool."""
    with suppress(ImportError):
        # else the first draw in an event loop does, and a fork beside it waits for ever
        importlib.import_module("greenlet")
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_reinit_after_fork)


def _reinit_after_fork() -> None:
    for pool in list(_pools):
        pool._reinit_after_fork()
