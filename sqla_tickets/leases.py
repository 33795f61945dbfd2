"""Node numbers, leased from the ticket servers: no number has two owners, and no two owners' ids meet.

The numbers are divided between the servers as tickets are: a number is leased on the one server whose
residue it has. When that server dies its numbers run to the end of their leases, and their owners lease
numbers of another server.

Two owners of a number could only make the same id at the same time, and a lease is for a span of times: every id
of it is at or before the *horizon* that stands in the number's row, and the next owner's ids are all
after it. So ids stay unique whatever the clocks do, however long a process is frozen, and however late an
answer comes. That a number has one owner at a time rests on elapsed time as well: an owner stops before its
lease ends, counted from before it was asked for; and a number that was not given back is free only when
its lease has ended by the server's clock *and* some process has seen the row unchanged for a whole lease.

A server that is set back to an older state has forgotten leases and horizons. So every owner tells the other
servers its horizon before it makes ids up to it, and a new owner asks them; so does one who comes back after the
end of its lease. By the same way two pools find out that they divide the numbers between other servers.

Each renewal changes the token by which the server knows the lease: of two copies of one process, which were
resumed from the same image, one keeps the number.
"""

from __future__ import annotations

import contextlib
import logging
import os
import random
import secrets
import socket
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Final, Protocol
from weakref import WeakSet

from . import clock, lease_table
from .aio import in_event_loop, pause
from .beside import beside
from .errors import (
    NoNodeLeft,
    NoTicketServer,
    TicketArgumentError,
    TicketError,
    TicketTableMissing,
)
from .forks import mark
from .lease_table import Claim, Row
from .place import Place
from .status import NodeLease

if TYPE_CHECKING:
    from sqlalchemy.engine.interfaces import DBAPICursor

    from .server import TicketServer

__all__ = ["Lease", "Nodes", "User"]

log = logging.getLogger(__name__)

#: The part of a lease after which its owner stops: clocks of two machines may run unlike by the rest.
USED: Final = 0.9
#: The part after which it is renewed.
RENEWED: Final = 1 / 3
#: The part after which a number of another server is taken, when it could not be renewed.
LEFT: Final = 0.6
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)
#: How often a number is tried for while other processes are quicker.
TRIES: Final = 200


class Lease:
    """A node number, as its owner has it.

    Attributes:
        node: the number.
        bits: of the layouts that it is for.
        server: that it is leased on.
        token: by which the server knows the lease, until it is renewed.
        next_token: by which it will, or already does when the answer to a renewal was lost.
        since: ids have later times, in microseconds since 1970.
        horizon: and none has a time after this one.
        told: the same as the other servers were told.
        deadline: when its owner stops, by `clock.elapsed`.
        renew_at: when it is renewed, by the same.
        leave_at: when another number is taken, by the same.
        ended: whether it is known to be over.
        renewing: whether it is being renewed now.
    """

    def __init__(self, node: int, bits: int, server: TicketServer, token: str, since: int) -> None:
        self.node, self.bits, self.server, self.token, self.since = node, bits, server, token, since
        self.next_token, self.told = token, since
        self.horizon, self.deadline, self.renew_at, self.leave_at = since, 0.0, 0.0, 0.0
        self.ended = self.renewing = False

    def __repr__(self) -> str:
        return f"<lease of node {self.node} on {self.server}>"

    def new_token(self) -> str:
        """What a renewal puts in the token's place; the same as long as no answer came."""
        if self.next_token == self.token:
            self.next_token = secrets.token_hex(16)
        return self.next_token

    def granted(self, asked: float, seconds: float, claim: Claim) -> None:
        """It was granted, or renewed, for so long, after it was asked for at ``asked``."""
        horizon, self.token = claim.horizon, claim.token
        self.horizon = max(self.horizon, horizon)
        self.renew_at = asked + seconds * RENEWED
        self.leave_at = asked + seconds * LEFT
        self.deadline = max(self.deadline, asked + seconds * USED)

    @property
    def is_live(self) -> bool:
        """Whether its owner may make ids."""
        return not self.ended and clock.elapsed() < self.deadline


class User(Protocol):
    """What makes ids with leases."""

    def stop(self) -> int:
        """Make no more ids of this lease; the latest time of one, in microseconds since 1970, or 0."""
        ...


class Nodes:
    """The node numbers that this process leases from the servers of a pool: one for all widths that it fits.

    Args:
        name: of the pool.
        servers: that lease them.
        stride: by which the numbers are divided between the servers.
        seconds: how long a lease lasts.
    """

    def __init__(
        self, name: str, servers: Sequence[TicketServer], stride: int, seconds: float
    ) -> None:
        self._name, self._servers, self._stride, self.seconds = name, servers, stride, seconds
        self._users: WeakSet[User] = WeakSet()
        self.forget_parent()

    def forget_parent(self) -> None:
        """In a fork: use none of the parent's numbers."""
        self._leases: dict[int, Lease] = {}
        self._leasing: set[int] = set()
        self._seen: dict[tuple[TicketServer, int], tuple[int, float]] = {}
        self.here = mark()  # the last, as it says that all is done

    def add(self, user: User) -> None:
        """Stop it, and ask it for its latest time, when a number is given back."""
        self._users.add(user)

    # -- a lease for now

    def lease(self, bits: int) -> Lease:
        """A live lease of a number of so many bits; its renewal is begun when it is due.

        Raises:
            NoNodeLeft: every number has an owner.
            NoTicketServer: there is no lease, and no server to ask for one.
        """
        if not self.here[0]:  # a fork that Python was not told of
            self.forget_parent()
        lease = self._leases.get(bits) or self._fitting(bits)
        if lease is not None and lease.is_live:
            if clock.elapsed() >= lease.renew_at:
                self._renew_beside(lease)
            return lease
        return self._one_at_a_time(bits, lambda: self._begin(bits))

    def _fitting(self, bits: int) -> Lease | None:
        """A live number of another width that is small enough: a process needs one, not one for each layout."""
        fitting = (lease for lease in list(self._leases.values()) if lease.node < 1 << bits)
        return next((lease for lease in fitting if lease.is_live), None)

    def _one_at_a_time(self, bits: int, begin: Callable[[], Lease]) -> Lease:
        """Begin a lease, or wait for the thread or task that is about to."""
        while bits in self._leasing:
            pause(0.002)
        lease = self._leases.get(bits)
        if lease is not None and lease.is_live:
            return lease
        self._leasing.add(bits)
        try:
            return begin()
        finally:
            self._leasing.discard(bits)

    def _begin(self, bits: int) -> Lease:
        before = self._leases.get(bits)
        if before is not None and not before.ended:
            self.extend(before)
            if not before.ended:  # nobody has taken it meanwhile
                return before
        lease = self._leases[bits] = self._lease_anew(bits, self._servers)
        return lease

    def extend(self, lease: Lease) -> None:
        """Renew it when it has ended, or when this machine's clock is past its horizon; or do without it."""
        try:
            if self._known(lease) <= lease.told:
                self._renew(lease)
                return
            log.warning("%r is over: its number has had another owner since", lease)
        except TicketError as error:
            log.warning("%r could not be renewed: %s", lease, error)
        lease.ended = True

    # -- renewing

    def _renew_beside(self, lease: Lease) -> None:
        if lease.renewing:
            return
        lease.renewing = True
        in_a_task = lease.server.engine.dialect.is_async
        if lease.server.engine.dialect.name == "sqlite":  # it survives no fork beside
            self._try_to_renew(lease)
        elif (in_a_task and not in_event_loop()) or not beside(
            lambda: self._try_to_renew(lease),
            f"sqla_tickets renewal of {lease!r}",
            in_a_task=in_a_task,
        ):
            lease.renewing = False

    def _try_to_renew(self, lease: Lease) -> None:
        here = self.here
        try:
            if self._renew(lease):
                self._look_for_abandoned(lease.server, 1 << lease.bits)
                return
        except TicketError as error:
            lease.renew_at = clock.elapsed() + self.seconds / 20
            log.warning("%r could not be renewed: %s", lease, error)
        finally:
            lease.renewing = False
        if lease.ended or clock.elapsed() >= lease.leave_at:
            self._replace(lease, here)

    def _replace(self, lease: Lease, here: object) -> None:
        """Lease a number of another server, while the old one still lives."""
        others = [server for server in self._servers if server is not lease.server]
        try:
            other = self._lease_anew(lease.bits, others)
        except TicketError as error:
            log.warning("%r could not be replaced: %s", lease, error)
            return
        if self.here is here:
            self._leases[lease.bits] = other

    def _renew(self, lease: Lease) -> bool:
        """Renew a lease; False when the number is another's, or its server does not know of it."""
        asked, token, claim = clock.elapsed(), lease.token, self._claim(lease.new_token())
        kept = lease.server.do(
            lease_table.NAME,
            lambda cursor, place: lease_table.renew(cursor, place, lease.node, token, claim),
        )
        if kept:
            lease.told = max(lease.told, claim.horizon)
            self._tell_peers(lease, claim)
            lease.granted(asked, self.seconds, claim)
        else:
            lease.ended = True
            log.warning(
                "%r is over: another process has it, or the server was set back to an older state",
                lease,
            )
        return kept

    def _claim(self, token: str) -> Claim:
        lasts = int(self.seconds * 1_000_000)
        return Claim(token, _holder(), lasts, clock.wall() + lasts)

    # -- leasing

    def _lease_anew(self, bits: int, servers: Sequence[TicketServer]) -> Lease:
        """Lease a number of any of the servers.

        Raises:
            NoNodeLeft: none has one left.
            NoTicketServer: none answered.
        """
        if not servers:
            raise NoTicketServer(f"the pool {self._name!r} has no other ticket server", {})
        end = clock.elapsed() + self._longest_wait
        while True:
            failures: dict[str, TicketError] = {}
            for server in sorted(servers, key=lambda s: (not s.breaker.is_closed, random.random())):  # noqa: S311  # spreads the load
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
            pause(self.seconds / 20)

    @property
    def _longest_wait(self) -> float:
        return self.seconds * 1.5 + 0.5

    def _none_left(self, bits: int, failures: dict[str, TicketError]) -> TicketError:
        reasons = "".join(f"; {failure}" for failure in failures.values())
        if failures and all(isinstance(f, TicketTableMissing) for f in failures.values()):
            return TicketTableMissing(
                f"no ticket server of {self._name!r} has the table of node numbers"
                f" {lease_table.NAME!r}: create it with pool.create_node_table(){reasons}"
            )
        if failures and not any(isinstance(f, NoNodeLeft) for f in failures.values()):
            return NoTicketServer(
                f"no ticket server of {self._name!r} can lease a node number{reasons}", failures
            )
        return NoNodeLeft(
            f"the pool {self._name!r} has no node number left: expected one of {1 << bits} ({bits} bits)"
            f" without an owner, found none{reasons}. Use a layout with more bits for the node, fewer"
            " processes, or pool.dispose() at their end, which gives their numbers back"
        )

    def _lease_on(self, server: TicketServer, bits: int) -> Lease | None:
        """Lease a number on one server; None when it may have one to give soon.

        Raises:
            NoNodeLeft: every number has an owner that lives.
            TicketError: the server failed.
        """
        self._look_for_abandoned(server, 1 << bits)
        for _ in range(TRIES):
            lease = self._take_on(server, bits)
            if lease is None or self._is_remembered(lease):
                return lease
        return None

    def _take_on(self, server: TicketServer, bits: int) -> Lease | None:
        token = secrets.token_hex(16)

        def work(cursor: DBAPICursor, place: Place) -> Lease | None:
            asked, claim = clock.elapsed(), self._claim(token)
            taken = _take(cursor, place, 1 << bits, self._stride, claim)
            if taken is None:
                if not any(seen_on is server for seen_on, _ in self._seen) and not (
                    lease_table.released(cursor, place, 1 << bits, claim.horizon + claim.lasts)
                ):
                    raise NoNodeLeft(f"{server} has none")
                return None
            node, horizon = taken
            lease = Lease(node, bits, server, token, max(horizon, claim.horizon - claim.lasts))
            lease.granted(asked, self.seconds, claim)
            return lease

        return server.do(lease_table.NAME, work)

    # -- what the other servers know

    def _is_remembered(self, lease: Lease) -> bool:
        """Whether the number's server remembers its last owner; if not, its ids may be still to come."""
        lasts = int(self.seconds * 1_000_000)
        claim, lease.told = Claim(lease.token, _holder(), lasts, lease.horizon), lease.horizon
        known = self._ask_peers(
            lease,
            lambda cursor, place: lease_table.tell_owner(
                cursor, place, lease.node, lease.since, claim
            ),
        )
        if known <= lease.since:
            return True
        log.critical(
            "%s was set back to an older state, or another pool divides the node numbers otherwise between"
            " the servers: it leases node %d, whose ids may have times until %d (microseconds since 1970) as"
            " its peers know. That number is left alone until then.",
            lease.server,
            lease.node,
            known,
        )
        lease.ended = True
        self._give_back(lease, known)
        return False

    def _known(self, lease: Lease) -> int:
        """The latest horizon of its number that another server knows of."""
        return self._ask_peers(
            lease, lambda cursor, place: lease_table.known_horizon(cursor, place, lease.node)
        )

    def _ask_peers(self, lease: Lease, question: Callable[[DBAPICursor, Place], int]) -> int:
        """The largest of their answers, or 0."""
        known = 0
        for peer in self._peers(lease):
            with contextlib.suppress(TicketError):  # what it knows cannot be known now
                known = max(known, peer.do(lease_table.NAME, question))
        return known

    def _tell_peers(self, lease: Lease, claim: Claim) -> None:
        def tell(cursor: DBAPICursor, place: Place) -> None:
            lease_table.tell_horizon(cursor, place, lease.node, claim)

        for peer in self._peers(lease):
            try:
                peer.do(lease_table.NAME, tell)
            except TicketError as error:
                log.info("%s does not know the horizon of %r: %s", peer, lease, error)

    def _peers(self, lease: Lease) -> list[TicketServer]:
        return [s for s in self._servers if s is not lease.server and s.breaker.is_closed]

    # -- numbers that nobody gave back

    def _look_for_abandoned(self, server: TicketServer, limit: int) -> None:
        """Free the numbers whose rows this process has seen unchanged for a whole lease.

        The server's clock says that their leases have ended, but it may have stepped.

        Raises:
            TicketError: the server failed.
        """
        seen = self._seen

        def work(cursor: DBAPICursor, place: Place) -> list[Row]:
            rows = lease_table.abandoned(cursor, place, limit)
            now = clock.elapsed()
            for row in rows:
                fence, since = seen.setdefault((server, row.node), (row.fence, now))
                if fence != row.fence:
                    seen[server, row.node] = (row.fence, now)
                elif now - since > max(row.lasts / 1_000_000, self.seconds):
                    if lease_table.free(cursor, place, row):
                        log.info("node %d on %s was left by %s", row.node, server, row.holder)
                    seen.pop((server, row.node), None)
            return rows

        expired = {(server, row.node) for row in server.do(lease_table.NAME, work)}
        for key in [key for key in list(seen) if key[0] is server and key not in expired]:
            seen.pop(key, None)

    # -- giving back, looking

    def listed(self) -> list[NodeLease]:
        """Every number that was ever leased, of all servers that answer.

        Raises:
            NoTicketServer: none does.
        """
        found: list[NodeLease] = []
        failures: dict[str, TicketError] = {}
        for server in self._servers:
            try:
                rows = server.do(lease_table.NAME, lease_table.all_rows)
            except TicketError as error:
                failures[str(server)] = error
                log.warning("its node numbers are left out: %s", error)
            else:
                found += [_as_told(row, str(server)) for row in rows]
        if len(failures) == len(self._servers):
            reasons = "; ".join(map(str, failures.values()))
            message = f"no ticket server of {self._name!r} tells its node numbers: {reasons}"
            raise NoTicketServer(message, failures)
        return sorted(found, key=lambda lease: lease.node)

    def release(self) -> None:
        """Give every number back, so that others need not wait for the end of its lease.

        A server that does not answer is left alone: its leases end by themselves.
        """
        if not self.here[0]:
            return
        leases, self._leases = list(self._leases.values()), {}
        for lease in leases:
            lease.ended = True
        used = max((user.stop() for user in list(self._users)), default=0)
        for lease in leases:
            if lease.deadline > clock.elapsed():
                self._give_back(lease, max(lease.since, min(used, lease.horizon)))

    def _give_back(self, lease: Lease, used: int) -> None:
        if not self._peers_took_back(lease, used):
            used = max(used, lease.horizon)  # else they would say that its server has forgotten it
        tokens = (lease.token, lease.next_token)
        try:
            lease.server.do(
                lease_table.NAME,
                lambda cursor, place: lease_table.release(cursor, place, lease.node, tokens, used),
            )
        except TicketError as error:
            log.info("%r is not given back: %s", lease, error)

    def _peers_took_back(self, lease: Lease, used: int) -> bool:
        """Whether every other server knows that no id of the number has a time after ``used``."""

        def take_back(cursor: DBAPICursor, place: Place) -> None:
            lease_table.take_back(cursor, place, lease.node, lease.horizon, used)

        peers = self._peers(lease)
        for peer in peers:
            try:
                peer.do(lease_table.NAME, take_back)
            except TicketError as error:
                log.info("%s does not take back the horizon of %r: %s", peer, lease, error)
                return False
        return len(peers) == len(self._servers) - 1


def _as_told(row: Row, server: str) -> NodeLease:
    return NodeLease(
        node=row.node,
        server=server,
        holder=row.holder,
        is_live=row.owner != "" and row.expires >= row.now,
        expires=_EPOCH + timedelta(microseconds=row.expires),
        horizon=_EPOCH + timedelta(microseconds=row.horizon),
    )


def _holder() -> str:
    return f"{socket.gethostname()}:{os.getpid()}"[:100]


def _take(
    cursor: DBAPICursor, place: Place, limit: int, stride: int, claim: Claim
) -> tuple[int, int] | None:
    """Take a number below ``limit``; it, and the horizon of its last owner."""
    for _ in range(TRIES):
        rows = lease_table.released(cursor, place, limit, clock.wall())
        if rows:
            row = random.choice(rows)  # noqa: S311  # spreads the takers
            if lease_table.claim(cursor, place, row, claim):
                return row.node, row.horizon
            continue
        last = lease_table.highest(cursor, place, limit)
        node = place.offset % stride if last is None else last + stride
        if node >= limit:
            return None
        if lease_table.claim_new(cursor, place, node, claim):
            return node, 0
    return None
