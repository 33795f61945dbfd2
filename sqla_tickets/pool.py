"""``TicketPool``: the ticket servers that share the id space of some sequences.

It decides which server is asked, keeps blocks in hand, and survives the loss of all servers but one.
"""

from __future__ import annotations

import functools
import itertools
import logging
import os
import warnings
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from importlib import import_module
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING, Final
from weakref import WeakSet

from sqlalchemy import URL, Engine, MetaData, event

from . import flush, prefetch, trail
from .aio import current_loop
from .arrivals import WAITS
from .beside import wait_for_tasks
from .choice import in_turn
from .default import IdDefault
from .engines import place_of
from .errors import (
    NoTicketServer,
    TicketArgumentError,
    TicketError,
    TicketsExhausted,
    TicketTableError,
    TicketTableMissing,
    TicketTableMoved,
    TicketViolation,
    TicketWarning,
)
from .events import Moments, TicketEvents
from .flight import Cut, Flight
from .hand import Hand, count
from .marks import Marks
from .note import LayoutName
from .sequence import Bounds, TicketSequence, attached_pools, is_name, sequence_of
from .server import TicketServer
from .statements import largest_ticket
from .survey import last_tickets
from .watch import Watch

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine
    from typing_extensions import Self

    from .bits import BitLayout
    from .snowflake import Snowflakes, SnowflakeSequence
    from .status import NodeLease, TicketStatus

__all__ = ["TicketPool"]

log = logging.getLogger(__name__)

#: MySQL manual 19.1.6.2: the largest auto_increment_increment.
LARGEST_STRIDE: Final = 65535


class TicketPool(event.EventTarget):
    """Ticket servers, of which any may be down. Connects to nothing until the first draw.

    Args:
        servers: URLs, ``Engine`` s, ``AsyncEngine`` s or `TicketServer` s. The place in the list,
            counted from 1, is the server's offset: never change the order of a list in use.
        stride: how many numbers apart two tickets of one server are; by default the number of
            servers. A larger one leaves room for servers to come.
        name: what a ``TicketSequence(pool=...)`` calls it.
        timeout: seconds after which a server that does not answer is given up, for the connections
            that the pool opens from URLs.
        hedge: whether a draw that takes unusually long is sent to another server, too, whose answer
            is taken when it comes first. By default it is, where there is another server.
        block_lasts: seconds that a block should last, for sequences whose ``block`` has two bounds.
        block_age: seconds after its draw when what is left of a block is dropped, which is a gap.
            ``float("inf")`` keeps it for as long as the process lives.
        node_lease: seconds that a node number is leased for, by processes that make ids for a
            `SnowflakeSequence`. It is for how long they go on when every server is down, at most, and
            for how long the number of a process that was killed is out of use, at least.

    Raises:
        TicketArgumentError: no servers, too many for the stride, two with the same offset, or a time
            that is none.
    """

    #: Who listens to `TicketEvents`.
    dispatch = event.dispatcher(TicketEvents)

    def __init__(
        self,
        servers: Sequence[str | URL | Engine | AsyncEngine | TicketServer],
        *,
        stride: int | None = None,
        name: str = "default",
        timeout: float = 1.0,
        hedge: bool | None = None,
        block_lasts: float = 10.0,
        block_age: float = 600.0,
        node_lease: float = 60.0,
    ) -> None:
        from .leases import Nodes

        # a URL is a tuple, too
        if isinstance(servers, URL) or not isinstance(servers, (list, tuple)) or not servers:
            raise TicketArgumentError(
                f"TicketPool({name!r}) needs a list of ticket servers, of two for one to be able to die"
            )
        self.name = name
        self.stride = len(servers) if stride is None else stride
        known = type(self.stride) is int
        if not known or not len(servers) <= self.stride <= LARGEST_STRIDE:
            raise TicketArgumentError(
                f"TicketPool({name!r}): stride={stride!r}; it is {len(servers)} (the number of servers)"
                f" to {LARGEST_STRIDE}"
            )
        times = {"block_lasts": block_lasts, "block_age": block_age, "node_lease": node_lease}
        for argument, seconds in times.items():
            if type(seconds) not in (int, float) or not seconds > 0:
                raise TicketArgumentError(
                    f"TicketPool({name!r}): {argument}={seconds!r}; it is a number of seconds above 0"
                )
        self.block_lasts, self.block_age = block_lasts, block_age
        self.servers = tuple(s if isinstance(s, TicketServer) else TicketServer(s) for s in servers)
        for place, server in enumerate(self.servers, 1):
            server.join(place, self.stride, timeout)
        #: Whether a ticket server is a SQLite file.
        self.on_sqlite = any(server.engine.dialect.name == "sqlite" for server in self.servers)
        self._check_offsets()
        self._warn_of_twins()
        self._nodes = Nodes(name, self.servers, self.stride, node_lease)
        self._snowflakes: dict[tuple[str, BitLayout, int | None], Snowflakes] = {}
        self._moments = Moments(name, self.dispatch)
        self._hand = Hand(self._moments.discarded)
        #: What the servers know of each other.
        self.marks = Marks(self.servers, self.stride)
        for server in self.servers:
            server.listen_to(self.marks, self._moments)
        hedge = len(servers) > 1 if hedge is None else hedge
        self._watch = Watch(self.servers, hedge=hedge, moments=self._moments)
        self._metadatas: WeakSet[MetaData] = WeakSet()
        #: Where the sequences are that have moved away: a pool attached beside this one, and a name.
        self.trails: dict[str, tuple[TicketPool, str]] = {}
        _pools.add(self)
        _look_after_forks()

    def __repr__(self) -> str:
        servers = ", ".join(map(str, self.servers))
        return f"TicketPool([{servers}], stride={self.stride}, name={self.name!r})"

    def _check_offsets(self) -> None:
        offsets = [server.offset or 0 for server in self.servers]
        if len(set(offsets)) < len(offsets) or not all(1 <= o <= self.stride for o in offsets):
            raise TicketArgumentError(
                f"TicketPool({self.name!r}): the offsets {offsets} must differ, and be 1 to"
                f" {self.stride}: two servers with one offset would issue the same tickets"
            )

    def _warn_of_twins(self) -> None:
        places = [place_of(server.engine) for server in self.servers]
        for place, server in zip(places, self.servers, strict=True):
            if places.count(place) > 1:
                warnings.warn(
                    f"TicketPool({self.name!r}) has the server {server} more than once: that makes two"
                    " offsets and no second machine, so nothing goes on when it dies",
                    TicketWarning,
                    stacklevel=3,
                )
                return

    # -- which sequences it serves

    def attach(self, metadata: MetaData) -> None:
        """Serve every `TicketSequence` of ``metadata`` whose ``pool`` is this pool's name.

        Another pool of that name is replaced. The first call of a process installs the
        ``before_flush`` listener on SQLAlchemy's ``Session``.
        """
        attached_pools(metadata)[self.name] = self
        self._metadatas.add(metadata)
        flush.install()

    def detach(self, metadata: MetaData) -> None:
        """Serve ``metadata`` no longer; nothing happens when another pool has taken the place."""
        pools = attached_pools(metadata)
        if pools.get(self.name) is self:
            del pools[self.name]
        self._metadatas.discard(metadata)

    @contextmanager
    def attached(self, metadata: MetaData) -> Generator[TicketPool]:
        """Serve ``metadata`` for a while, then give the place back to the pool that had it."""
        before = attached_pools(metadata).get(self.name)
        self.attach(metadata)
        try:
            yield self
        finally:
            self.detach(metadata)
            if before is not None:
                before.attach(metadata)

    def neighbour(self, moved: TicketTableMoved) -> TicketPool:
        """The pool that a tombstone of this pool's names: attached to the same MetaData.

        Raises:
            TicketTableMoved: ``moved`` itself; there is no such pool.
        """
        if moved.pool == self.name:
            return self
        for metadata in self._metadatas:
            pool = attached_pools(metadata).get(moved.pool)
            if pool is not None:
                return pool
        raise moved

    def serves_beside(self, pool: TicketPool) -> bool:
        """Whether this pool is still what ``pool`` finds under its name."""
        return pool is self or any(
            attached_pools(metadata).get(self.name) is self for metadata in pool._metadatas
        )

    # -- drawing

    def next_id(self, sequence: str | TicketSequence) -> int:
        """One ticket.

        Args:
            sequence: its name, or a `TicketSequence`, whose ``block`` then counts.

        Raises:
            NoTicketServer: every server failed; its message has the last error of each.
            TicketTableError: no server has a table for the sequence that may be drawn from.
            TicketsExhausted: no number is left.
        """
        hand = self._hand
        try:
            ticket = hand.streams[sequence.name].pop()  # type: ignore[index,union-attr]  # caught below, and rare
            if hand.here[0]:
                return ticket
        except (AttributeError, KeyError, IndexError):
            pass
        name, bounds = _meant(sequence)
        if bounds[1] > 1:
            return self.next_in_hand(name, bounds)
        return self.reserve_for(name, 1, bounds)[0][0]

    def next_in_hand(self, name: str, bounds: Bounds) -> int:
        """`next_id` by the name of a sequence and the bounds of its blocks, for single tickets now and then."""
        hand = self._hand_of_this_process()
        stream = hand.stream(name)
        if stream.lay_out():
            if stream.is_low:
                prefetch.fetch(self, name, stream, bounds)
            try:
                ticket = stream.pop()
                if hand.here[0]:
                    return ticket
            except IndexError:  # others were faster
                pass
        return self.reserve_for(name, 1, bounds)[0][0]

    def next_ids(self, sequence: str | TicketSequence, n: int) -> list[int]:
        """Exactly ``n`` tickets, ascending within each block.

        Raises:
            TicketArgumentError: ``n`` is not 1 or more.
            TicketError: as `next_id`.
        """
        return list(itertools.chain.from_iterable(self.reserve(sequence, n)))

    def reserve(self, sequence: str | TicketSequence, n: int) -> list[range]:
        """Exactly ``n`` tickets as blocks, so that memory does not grow with ``n``.

        Raises:
            TicketArgumentError: ``n`` is not 1 or more.
            TicketError: as `next_id`.
        """
        name, bounds = _meant(sequence)
        return self.reserve_for(name, n, bounds)

    def reserve_for(self, name: str, n: int, bounds: Bounds) -> list[range]:
        """`reserve` by the name of a sequence and the bounds of its blocks."""
        if type(n) is not int or n < 1:
            raise TicketArgumentError(f"{n!r} tickets of {name!r}: ask for 1 or more")
        hand = self._hand_of_this_process()
        stream = hand.stream(name)
        if n == bounds[1] == 1 and stream.is_empty:  # neither from the hand nor for it
            single = trail.draw(self, name, 1)
            return single if hand.has(stream, name) else self._drawn_in_vain(hand, name, 1, bounds)
        blocks = stream.take(n)
        in_hand = total = count(blocks) if blocks else 0
        try:
            for _ in range(WAITS):
                missing = n - total
                if not 0 < missing < bounds[1] or not stream.arrivals.wait_for(missing):
                    break
                blocks += stream.take(missing)
                in_hand = total = count(blocks)
            while total < n:
                drawn = prefetch.draw(self, name, stream, n - total, bounds)
                blocks += drawn
                total += count(drawn)
        except BaseException:
            if hand.has(stream, name):
                stream.put(blocks)  # nobody has seen them
            raise
        if not hand.has(stream, name):
            return self._drawn_in_vain(hand, name, n, bounds)
        if in_hand and bounds != (1, 1):
            prefetch.fetch(self, name, stream, bounds)
        return [block.tickets for block in blocks]

    def _drawn_in_vain(self, hand: Hand, name: str, n: int, bounds: Bounds) -> list[range]:
        """Others, as those of a hand that was dropped meanwhile are nobody's."""
        if hand.here[0]:  # in a fork they are the parent's
            self._moments.discarded(name, n, "dropped")
        return self.reserve_for(name, n, bounds)

    def snowflakes(
        self,
        sequence: str | SnowflakeSequence,
        layout: BitLayout | None = None,
        shard: int | None = None,
    ) -> Snowflakes:
        """What makes the ids of a `SnowflakeSequence` in this process, with a leased node number.

        Args:
            sequence: its name, or a `SnowflakeSequence`, whose ``layout`` then counts.
            layout: of the ids; by default ``SNOWFLAKE``, with a shard ``INSTAGRAM``.
            shard: that stands in the node's bits; the leased number then takes the upper half of the
                sequence's.

        Raises:
            TicketArgumentError: a shard beyond its bits, or a layout that has the node in the lowest bits.
        """
        from .bits import INSTAGRAM, SNOWFLAKE
        from .snowflake import Snowflakes, SnowflakeSequence

        if isinstance(sequence, SnowflakeSequence):
            name, layout = sequence_of(sequence), sequence.layout
        else:
            name = sequence
        layout = layout or (SNOWFLAKE if shard is None else INSTAGRAM)
        made = self._snowflakes.get((name, layout, shard))
        return made or self._snowflakes.setdefault(
            (name, layout, shard), Snowflakes(name, layout, self._nodes, shard)
        )

    def _hand_of_this_process(self) -> Hand:
        if not self._hand.here[0]:  # a fork that Python was not told of
            self.forget_parent()
        return self._hand

    def draw_here(self, name: str, n: int) -> list[range]:
        """One draw, from the first server of this pool that answers.

        Raises:
            TicketTableMoved: the sequence is not here any more, or not yet.
            TicketError: as `next_id`.
        """
        turn = self._hand_of_this_process().stream(name).turn() % len(self.servers)
        failures: dict[TicketServer, TicketError] = {}
        began, first = monotonic(), self.servers[turn]
        drawn = self._ask(first, name, n, failures) if first.is_idle(name) else None
        return drawn or self._ask_others(name, n, turn, began, failures)

    def _ask_others(
        self, name: str, n: int, turn: int, began: float, failures: dict[TicketServer, TicketError]
    ) -> list[range]:
        failed = next(iter(failures), None)
        for server in in_turn(self.servers, name, turn, began, failures):
            if failed is not None:
                self._moments.tell("failed_over", name, failed, failures[failed])
            drawn = self._ask(server, name, n, failures)
            if drawn is not None:
                return drawn
            failed = server
        raise self._none_left(name, failures)

    def _ask(
        self, server: TicketServer, name: str, n: int, failures: dict[TicketServer, TicketError]
    ) -> list[range] | None:
        was_well = server.breaker.reason is None
        flight = Flight(server, server.table(name), n, current_loop())
        flight.is_patient = server in failures
        try:
            return self._moments.draw(flight, self._watch.draw)
        except TicketArgumentError:
            raise
        except TicketError as error:
            if flight.answer is not None:
                return flight.answer
            failures[server] = error
            level = logging.WARNING if was_well else logging.INFO  # it has been said
            log.log(level, "drawing from the next ticket server: %s", error)
            return None
        except BaseException:  # a cancelled task, whose draw may go on in a thread
            flight.cut(Cut.RELEASED)
            raise

    def _none_left(self, name: str, failures: dict[TicketServer, TicketError]) -> TicketError:
        reasons = "; ".join(map(str, failures.values()))
        message = f"no ticket server of {self.name!r} can give a ticket of {name!r}: {reasons}"
        for failure in failures.values():
            if isinstance(failure, TicketTableMoved):
                return failure
        kinds: tuple[type[TicketError], ...]
        kinds = (TicketTableMissing, TicketTableError, TicketsExhausted, TicketViolation)
        for kind in kinds:
            if all(isinstance(failure, kind) for failure in failures.values()):
                return kind(message)
        return NoTicketServer(message, {str(server): e for server, e in failures.items()})

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
        """Create the sequence's table on every server; those that are there are verified.

        Args:
            name: of the sequence.
            layout: None for ``"replace"`` on MySQL and MariaDB and ``"counter"`` elsewhere.
            start: no ticket of a new table is below it.
            bits: 64, or 32 for tickets up to 4,294,967,295.
            engine: the storage engine, on MySQL and MariaDB.

        Raises:
            TicketError: a server failed, or has another table of that name. Call it again when that
                is mended: what was done is kept.
        """
        if not 1 <= start <= largest_ticket(bits):
            raise TicketArgumentError(f"start={start!r}: a ticket is 1 to {largest_ticket(bits)}")
        from . import moves

        moves.create(self, name, layout=layout, start=start, bits=bits, engine=engine)

    def drop_table(self, name: str) -> None:
        """Drop the sequence's table on every server. Its numbers begin anew when it is created again.

        Raises:
            TicketError: a server failed.
        """
        try:
            for server in self.servers:
                server.drop(name)
            self.marks.drop(name)
        finally:
            self._hand.drop(name)

    def raise_above(self, name: str, above: int) -> None:
        """See that every server's next ticket is larger than ``above``; none is ever lowered.

        What this pool has in hand of the sequence is dropped.

        Raises:
            TicketError: a server failed, or has no table for the sequence.
        """
        from . import moves

        try:
            moves.raise_above(self, name, above)
        finally:
            self._hand.drop(name)

    def unquarantine(self, name: str, server: TicketServer | None = None) -> None:
        """Draw again from tables that broke a promise, and that a person has repaired since.

        Each is compared with what its peers know and what this process has seen, by drawing a ticket
        that nobody gets. Call it in every process, or restart them.

        Args:
            name: of the sequence.
            server: one of ``pool.servers``; None for all of them.

        Raises:
            TicketViolation: a table still issues old numbers, or another server's; it stays quarantined.
            TicketError: a server failed; its table stays quarantined.
        """
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
            TicketError: as `create_table`.
        """
        for name in self._sequences_of(metadata):
            self.create_table(name)
        if self._needs_nodes(metadata):
            self.create_node_table()

    def create_node_table(self) -> None:
        """Create the table of node numbers on every server, for `SnowflakeSequence` s; idempotent.

        Raises:
            TicketError: a server failed.
        """
        from . import lease_table

        for server in self.servers:
            server.do(lease_table.NAME, lease_table.create)

    def node_leases(self) -> list[NodeLease]:
        """One record per node number that was ever leased; every server is asked now.

        Raises:
            NoTicketServer: none answers, or none has the table.
        """
        return self._nodes.listed()

    def _needs_nodes(self, metadata: MetaData) -> bool:
        return any(
            isinstance(column.default, IdDefault) and column.default.node_pool == self.name
            for table in metadata.tables.values()
            for column in table.columns
        )

    def _sequences_of(self, metadata: MetaData) -> list[str]:
        return sorted(
            {
                sequence_of(column.default, column)
                for table in metadata.tables.values()
                for column in table.columns
                if isinstance(column.default, TicketSequence)
                and (column.default.pool or "default") == self.name
            }
        )

    # -- looking after it

    def status(self, sequences: Iterable[str] = ()) -> list[TicketStatus]:
        """One record per sequence and server; every server is asked now. Raises nothing for one down.

        The sequences are those of the attached MetaDatas, those that were drawn from, and ``sequences``.
        """
        from . import lease_table

        names = set(sequences)
        names |= {name for metadata in self._metadatas for name in self._sequences_of(metadata)}
        names.update(name for server in self.servers for name in server.known_sequences() if name)
        names.discard(lease_table.NAME)
        answers = last_tickets(self, names)
        return [self._status_of(*asked, answer) for asked, answer in answers.items()]

    def in_hand(self, sequence: str) -> int:
        """How many tickets of the sequence of that name this process holds."""
        return self._hand.count(sequence)

    def _status_of(
        self, name: str, server: TicketServer, answer: int | TicketError
    ) -> TicketStatus:
        from .status import TicketStatus

        error = answer if isinstance(answer, TicketError) else None
        last = answer if isinstance(answer, int) else None
        table = server.table(name)
        largest = largest_ticket(table.note.bits if table.note else 64)
        breaker = max(server.breaker, table.breaker, key=lambda b: _GRAVITY.index(b.state))
        return TicketStatus(
            sequence=name,
            server=str(server),
            up=last is not None,
            last_ticket=last,
            layout=table.layout.name if table.layout else None,
            stride=table.note.stride if table.note else None,
            offset=table.note.offset if table.note else None,
            capacity_left=None if last is None else max(0, largest - last) // self.stride,
            in_hand=self._hand.count(name),
            draws=table.draws,
            errors=table.errors,
            breaker=breaker.state,
            error=str(error or breaker.reason) if error or breaker.reason else None,
        )

    def refuse_database_of(self, engine: Engine) -> None:
        """See that the application's database is not a SQLite file that issues tickets.

        The application's transaction would hold the file's only write lock while it waits for a
        ticket, which needs that lock.

        Raises:
            TicketArgumentError: it is.
        """
        if engine.dialect.name == "sqlite" and self.on_sqlite:
            for server in self.servers:
                if server.is_database_of(engine):
                    raise TicketArgumentError(
                        f"the ticket server {server} is the application's own SQLite database, whose"
                        " one write lock the insert holds while it waits for its ticket: give the"
                        " tickets a file of their own"
                    )

    def forget_parent(self) -> None:
        """In a fork: use none of the parent's blocks, connections and locks."""
        for server in self.servers:
            server.forget_parent()
        self._nodes.forget_parent()
        for made in list(self._snowflakes.values()):
            made.forget_parent()
        self._watch.forget_parent()
        self.marks.forget_parent()
        self._hand = Hand(self._moments.discarded)  # the last, as it says that all is done

    def dispose(self) -> None:
        """Close every idle connection, end every thread, give back node numbers.

        The pool can go on; blocks in hand stay.
        """
        self._nodes.release()
        self._watch.close()
        self.marks.flush()
        wait_for_tasks(max(server.timeout for server in self.servers))
        for server in self.servers:
            server.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.dispose()


def _meant(sequence: str | TicketSequence) -> tuple[str, Bounds]:
    """The name of a sequence, and the bounds of its blocks."""
    if is_name(sequence):
        return sequence, (1, 1)
    if isinstance(sequence, TicketSequence):
        return sequence_of(sequence), sequence.bounds
    raise TicketArgumentError(f"{sequence!r} is no sequence: expected a name or a TicketSequence")


_GRAVITY = ("closed", "open", "quarantined")
_pools: WeakSet[TicketPool] = WeakSet()


_NEEDED_LATER = (
    "concurrent.futures.thread",
    ".lease_table",
    ".leases",
    ".moves",
    ".snowflake",
    ".status",
)


@functools.cache
def _look_after_forks() -> None:
    """Tell every pool of every ``os.fork()``: once for a process, when its first pool is made.

    A fork waits for ever for an import that another thread had begun. So what the methods of a pool import
    is imported now.
    """
    for module in _NEEDED_LATER:
        import_module(module, __package__)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_forget_parents)


def _forget_parents() -> None:
    for pool in list(_pools):
        pool.forget_parent()
