# What is protected is hidden from users, not from this package.
# pyright: reportPrivateUsage=false
"""The allocator of node numbers: it leases them, so that no two owners make the same id.

The numbers are divided between the servers as tickets are: each number belongs to the server of its residue class,
whose table says so (`numbering`). If that server dies, its numbers stay valid until their leases end, and their
owners lease numbers of another server.

Two owners of a number could only make the same id for the same time, and a lease covers a span of times: every id
made under it is at or before the *horizon* in the number's row, and the next owner's ids are all after it. So ids
stay unique whatever the clocks do, however long a process is frozen, and however late an answer comes. Elapsed time
also keeps a number with one owner: an owner stops before its lease ends, counted from before the request. And a
number that was not given back is free only when its lease has ended by the server's clock *and* some process has seen
the row unchanged for a whole lease.

A server that is set back to an older state has forgotten leases and horizons. So every owner stores its horizon on
the other servers before it makes ids up to it. A new owner asks them for it, and so does one that comes back after
the end of its lease.

Each renewal changes the token by which the server knows the lease: of two copies of one process, resumed from the
same image, only one keeps the number.
"""

from __future__ import annotations

import functools
import logging
import socket
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from sqlalchemy import event

from .. import concurrency as clock
from ..arguments import seconds as number_of_seconds
from ..concurrency import (
    SharedCall,
    SingleFlight,
    in_background,
    in_event_loop,
    owner_mark,
    pause,
    process_id,
    random,
    random_bytes,
)
from ..errors import (
    NodeIdsExhausted,
    NoTicketServer,
    TicketArgumentError,
    TicketError,
    TicketServerError,
    TicketTableMissing,
    reasons_of,
)
from ..pool import TicketPool
from ..tables.context import StatementContext
from . import lease_table, numbering
from .lease import Lease
from .lease_table import Claim, Told
from .peers import PeerHorizons
from .reclaimer import Reclaimer
from .timing import TIMING

if TYPE_CHECKING:
    from ..draw.server import TicketServer

log = logging.getLogger(__name__)


class Registered(NamedTuple):
    """A generator that makes ids with leases.

    Attributes:
        generator: the generator.
        stop: ends the use of its lease; returns the latest time of an id, in microseconds since 1970, or 0.
        reinit_after_fork: drops the parent's ids.
    """

    generator: object
    stop: Callable[[], int]
    reinit_after_fork: Callable[[], None]


def allocator_of(pool: TicketPool, seconds: float | None = None) -> LeaseAllocator:
    """The only allocator that leases this process's node numbers from a pool.

    Args:
        pool: the pool whose servers lease them.
        seconds: how long a lease lasts; None for what was chosen before, or 60.

    Raises:
        TicketArgumentError: the duration is invalid, or differs from the one chosen before; or this is no `TicketPool`.
    """
    if not isinstance(pool, TicketPool):  # pyright: ignore[reportUnnecessaryIsInstance]  # untyped callers
        raise TicketArgumentError(
            f"node numbers are leased from a TicketPool, not from {pool!r}: of an AsyncTicketPool, give its sync_pool"
        )
    this = f"NodeLeases of the pool {pool.name!r}: duration"
    wanted = None if seconds is None else number_of_seconds(this, seconds)
    allocator: LeaseAllocator | None = pool.info.get(LeaseAllocator)
    if allocator is None:
        new = LeaseAllocator(
            pool.name,
            pool.servers,
            wanted or TIMING.lease_seconds,
            requires_peer=pool._marks.requires_peer,
        )
        allocator = pool.info.setdefault(LeaseAllocator, new)
        if allocator is new:
            event.listen(pool, "disposing", new.release_on_dispose)
    assert isinstance(allocator, LeaseAllocator)
    if wanted not in (None, allocator.seconds):
        raise TicketArgumentError(
            f"{this}={seconds}, but the pool's leases already last {allocator.seconds} seconds. Choose the duration "
            f"once, before the first id"
        )
    return allocator


class LeaseAllocator:
    """The node numbers that this process leases from a pool's servers, one for all node widths that it fits.

    Args:
        name: the pool's name.
        servers: the servers that lease them.
        seconds: how long a lease lasts.
        requires_peer: whether no number is leased unless another server answers.

    Attributes:
        generators: the generators that make ids with the leases, by their keys.
    """

    def __init__(
        self, name: str, servers: Sequence[TicketServer], seconds: float, *, requires_peer: bool
    ) -> None:
        self._name, self._servers, self.seconds = name, servers, seconds
        self._requires_peer = requires_peer
        self.generators: dict[Hashable, Registered] = {}
        self._begin_anew()

    def _begin_anew(self) -> None:
        """In a fork: forget the parent's numbers."""
        self._leases: dict[int, Lease] = {}
        self._leasing = SingleFlight[int]()
        self._reclaimer = Reclaimer(self.seconds)
        self._peers = PeerHorizons(self._servers)
        self.is_owner_process = owner_mark()  # the last, as it says that all is done
        for generator in list(self.generators.values()):
            generator.reinit_after_fork()

    # -- a lease for now

    def lease(self, bits: int) -> Lease:
        """A live lease of a number with this many bits; begins its renewal when it is due.

        Raises:
            NodeIdsExhausted: every number has an owner.
            NoTicketServer: there is no live lease, and no server answers.
        """
        if not self.is_owner_process[0]:  # a fork that Python was not told of
            self._begin_anew()
        lease = self._leases.get(bits) or self._fitting(bits)
        if lease is not None and lease.is_live:
            if clock.elapsed() >= lease.renew_at:
                self._renew_in_background(lease)
            return lease
        return self._one_at_a_time(bits, lambda: self._begin(bits))

    def _fitting(self, bits: int) -> Lease | None:
        """A live lease for another width whose number is small enough: a process needs only one, not one per layout."""
        fitting = (lease for lease in list(self._leases.values()) if lease.node < 1 << bits)
        return next((lease for lease in fitting if lease.is_live), None)

    def _one_at_a_time(self, bits: int, begin: Callable[[], Lease]) -> Lease:
        """Begin a lease, or wait for the thread or task that is beginning one, for as long as it may take."""
        own, end = SharedCall(), clock.elapsed() + self._longest_wait
        with own.under_way:
            while (other := self._leasing.of(bits, own)) is not own:
                if other.is_suspended or clock.elapsed() >= end:
                    break  # a second lease does no harm
                pause(0.002)
            lease = self._leases.get(bits)
            return lease if lease is not None and lease.is_live else begin()

    def _begin(self, bits: int) -> Lease:
        before = self._leases.get(bits)
        if before is not None and not before.ended:
            self.extend(before)
            if not before.ended:  # no other process has taken it
                return before
        lease = self._leases[bits] = self._lease_anew(bits, self._servers)
        return lease

    def extend(self, lease: Lease) -> None:
        """Renew a lease that has ended, or whose horizon this machine's clock has passed; or drop it.

        Raises:
            TicketArgumentError: the caller cannot wait for the driver.
        """
        # first: while this process is frozen, the number may get another owner
        asked = clock.elapsed()
        try:
            if self._peers.known(lease) <= lease.published_horizon:
                self._renew(lease, asked)
                return
            log.warning("%r has ended: its number has had another owner since", lease)
        except TicketArgumentError:
            raise
        except TicketError as error:
            log.warning("%r could not be renewed: %s", lease, error)
        lease.ended = True

    # -- renewing

    def _renew_in_background(self, lease: Lease) -> None:
        if lease.renewals.refs:
            return
        work = functools.partial(self._try_to_renew, lease)
        lease.renewals.add(work)
        in_a_task = lease.server.is_async
        if (
            lease.server.context.dialect.is_embedded
        ):  # it survives no fork while a thread is inside of it
            work()
        elif (in_a_task and not in_event_loop()) or not in_background(
            work, f"sqla_tickets renewal of {lease!r}", in_a_task=in_a_task
        ):
            lease.renewals.discard(work)

    def _try_to_renew(self, lease: Lease) -> None:
        here = self.is_owner_process
        if self._keeps(lease):
            return
        if lease.ended or lease.replace_at <= clock.elapsed() < lease.deadline:
            self._replace(lease, here)

    def _keeps(self, lease: Lease) -> bool:
        """Renew a live lease in the background; returns whether that succeeded."""
        asked = clock.elapsed()
        try:
            # later, the number may have another owner whom only the peers know: `extend` asks them
            if asked < lease.deadline and self._renew(lease, asked):
                self._reclaimer.reclaim(lease.server, 1 << lease.bits)
                return True
        except TicketError as error:
            lease.renew_at = clock.elapsed() + self.seconds * TIMING.retry_part
            log.warning("%r could not be renewed: %s", lease, error)
        finally:
            lease.renewals.refs.clear()
        return False

    def _replace(self, lease: Lease, here: object) -> None:
        """Lease a number of another server while the old lease lives."""
        if self._leases.get(lease.bits) is not lease:
            return  # it was given back
        others = [server for server in self._servers if server is not lease.server]
        try:
            other = self._lease_anew(lease.bits, others)
        except TicketError as error:
            log.warning("%r could not be replaced: %s", lease, error)
            return
        if self.is_owner_process is not here:
            return
        if self._leases.get(lease.bits) is lease:
            self._leases[lease.bits] = other
        else:  # all were given back in the meantime
            other.ended = True
            self._give_back(other, other.since)

    def _renew(self, lease: Lease, asked: float) -> bool:
        """Renew a lease; False if another process has the number, or its server does not know the lease.

        Args:
            lease: the lease.
            asked: when it was known to have no other owner, by `clock.elapsed`; the renewed lease begins then.
        """
        # a peer may not know the horizon from before this machine's clock stepped back
        claim = self._claim("", lease.published_horizon)
        claim = claim._replace(token=lease.new_token(claim.horizon))
        if lease.ended:  # `release` may have read the tokens before this one
            return False
        kept = numbering.ask(lease.server, lease_table.renew, lease.node, lease.token, claim)
        if kept:
            lease.published_horizon = max(lease.published_horizon, claim.horizon)
            self._peers.publish(lease, claim)
            lease.granted(asked, self.seconds, claim)
        else:
            lease.ended = True
            log.warning(
                "%r has ended: another process has its number, the pool has grown, or the server was set back to an "
                "older state",
                lease,
            )
        return kept

    def _claim(self, token: str, least_horizon: int = 0) -> Claim:
        duration = int(self.seconds * 1_000_000)
        return Claim(token, _holder(), duration, max(clock.wall() + duration, least_horizon))

    # -- leasing

    def _lease_anew(self, bits: int, servers: Sequence[TicketServer]) -> Lease:
        """Lease a number of any server.

        Raises:
            NodeIdsExhausted: no server has one left.
            NoTicketServer: no server answered.
        """
        if not servers:
            raise NoTicketServer(f"the pool {self._name!r} has no other ticket server", {})
        end = clock.elapsed() + self._longest_wait
        while True:
            failures: dict[str, TicketError] = {}
            for server in sorted(
                servers, key=lambda s: (not s.breaker.is_closed, random.random())
            ):  # spreads the load
                try:
                    lease = self._lease_on(server, bits)
                except TicketArgumentError:
                    raise
                except TicketError as error:
                    failures[str(server)] = error
                    continue
                if lease is not None:
                    log.info("%r was taken", lease)
                    return lease
            if len(failures) == len(servers) or clock.elapsed() >= end:
                raise self._none_left(bits, failures)
            pause(self.seconds * TIMING.retry_part)

    @property
    def _longest_wait(self) -> float:
        return self.seconds * 1.5 + 0.5

    def _none_left(self, bits: int, failures: dict[str, TicketError]) -> TicketError:
        reasons = f"; {reasons_of(failures.values())}" if failures else ""
        if failures and all(isinstance(f, TicketTableMissing) for f in failures.values()):
            return TicketTableMissing(
                f"no ticket server of {self._name!r} has the table of node numbers"
                f" {lease_table.NAME!r}: create it with NodeLeases(pool).create_table(){reasons}"
            )
        if failures and not any(isinstance(f, NodeIdsExhausted) for f in failures.values()):
            return NoTicketServer(
                f"no ticket server of {self._name!r} can lease a node number{reasons}", failures
            )
        return NodeIdsExhausted(
            f"the pool {self._name!r} has no node number left: all {1 << bits} ({bits} bits) have owners{reasons}. "
            "Use a layout with more bits for the node, run fewer processes, or call pool.dispose() when each one ends, "
            f"which gives their numbers back"
        )

    def _lease_on(self, server: TicketServer, bits: int) -> Lease | None:
        """Lease a number on one server; None if one may be free soon.

        Raises:
            NodeIdsExhausted: every number has a live owner.
            TicketError: the server failed.
        """
        self._reclaimer.reclaim(server, 1 << bits)
        for _ in range(TIMING.claims):
            lease = self._take_on(server, bits)
            if lease is None or self._is_remembered(lease):
                return lease
        return None

    def _take_on(self, server: TicketServer, bits: int) -> Lease | None:
        token = random_bytes(16).hex()

        def work(context: StatementContext) -> Lease | None:
            asked, claim = clock.elapsed(), self._claim(token)
            since = numbering.opened(context)
            if since >= clock.wall():
                return None
            taken = _take(context, 1 << bits, claim)
            if taken is None:
                if not self._reclaimer.expects_some(server) and not (
                    lease_table.released(context, 1 << bits, claim.horizon + claim.duration)
                ):
                    raise NodeIdsExhausted(f"{server} has none")
                return None
            node, horizon = taken
            since = max(since, horizon, claim.horizon - claim.duration)
            lease = Lease(node, bits, server, token, since)
            lease.granted(asked, self.seconds, claim)
            return lease

        return numbering.ask(server, work)

    def _is_remembered(self, lease: Lease) -> bool:
        """Whether the number's server remembers its last owner; if not, that owner may still make ids."""
        duration = int(self.seconds * 1_000_000)
        claim, lease.published_horizon = (
            Claim(lease.token, _holder(), duration, lease.horizon),
            lease.horizon,
        )

        def record(context: StatementContext) -> Told:
            return lease_table.record_owner(context, lease.node, lease.since, claim)

        known = self._peers.ask(lease, record)
        if known is None:
            self._report_without_peer(lease)
            return True
        if known <= lease.since:
            return True
        if lease.deadline > clock.elapsed():  # else another process may have it by now
            log.critical(
                "%s was set back to an older state: it leases node %d, although its peers know of a horizon of %d "
                "(microseconds since 1970). This process does not use that number before that time.",
                lease.server,
                lease.node,
                known,
            )
        lease.ended = True
        self._give_back(lease, known)
        return False

    def _report_without_peer(self, lease: Lease) -> None:
        """Report a number of which no peer could say whether its last owner may still make ids.

        Raises:
            TicketServerError: the pool requires a peer. The number is given back.
        """
        why = (
            f"node {lease.node} of {lease.server}: no other server answers. If this one was set back to an older state, "
            "another process may have that number, and ids repeat. Bring another server back"
        )
        if self._requires_peer:
            lease.ended = True
            self._give_back(lease, lease.since)
            raise TicketServerError(f"{why}: the pool has require_peer=True")
        log.warning("%s. TicketPool(require_peer=True) leases no number then", why)

    # -- giving back

    def release(self) -> None:
        """Give every number back, so that other processes need not wait for the end of its lease.

        It skips a server that does not answer, whose leases end by themselves.
        """
        if not self.is_owner_process[0]:
            return
        leases, self._leases = list(self._leases.values()), {}
        for lease in leases:
            lease.ended = True
        latest = max((made.stop() for made in list(self.generators.values())), default=0)
        for lease in leases:
            if lease.deadline > clock.elapsed():
                self._give_back(lease, max(lease.since, min(latest, lease.horizon)))

    def release_on_dispose(self, pool: str) -> None:
        """`release`, as a listener of `TicketEvents`."""
        self.release()

    def _give_back(self, lease: Lease, latest: int) -> None:
        tokens = (lease.token, lease.next_token)
        # then the peers may be told of it at any moment
        is_renewed = tokens[0] != tokens[1] or lease.next_horizon > lease.horizon
        if is_renewed or not self._peers.take_back(lease, latest):
            # else they would say that its server has forgotten it
            latest = max(latest, lease.horizon, lease.next_horizon)
        try:
            lease.server.do(lease_table.NAME, lease_table.release, lease.node, tokens, latest)
        except TicketError as error:
            log.info("%r is not given back: %s", lease, error)


def _holder() -> str:
    return f"{socket.gethostname()}:{process_id()}"[:100]


def _take(context: StatementContext, limit: int, claim: Claim) -> tuple[int, int] | None:
    """Take a number below ``limit``; returns it with the horizon of its last owner."""
    for _ in range(TIMING.claims):
        rows = lease_table.released(context, limit, clock.wall())
        if rows:
            row = random.choice(rows)  # spreads the takers
            if lease_table.claim(context, row, claim):
                return row.node, row.horizon
            continue
        last = lease_table.highest(context, limit)
        node = context.offset % context.stride if last is None else last + context.stride
        if node >= limit:
            return None
        if lease_table.claim_new(context, node, claim):
            return node, 0
    return None
