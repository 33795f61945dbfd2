"""The promises, held against everything that happened: each draw of each process, and what is left at the end."""

from __future__ import annotations

import math
from bisect import bisect_right, insort
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, NamedTuple

from sqla_tickets import TicketPool
from sqla_tickets.draw.table_state import TicketTable
from sqla_tickets.errors import TicketError, TicketsExhausted

from .announcements import Announcements, known_hosts
from .network import Host
from .number_set import NumberSet
from .snowflakes import IdChecker
from .world import Machine, Task, World

__all__ = ["BrokenPromise", "Checker", "Health", "told_of_answers"]

#: What a draw may take beyond what the docs say, in seconds: for its own work between two waits.
SLACK_SECONDS: Final = 0.1
#: For how long a server has to have been well so that no draw may fail.
WELL_SECONDS: Final = 0.25
#: The same where another server has to tell, which is asked again when it is known to be back.
PEER_SECONDS: Final = 7.0
#: A server that takes longer for a request may be too slow for a probe that a draw waits for.
SLOW_SECONDS: Final = 0.02
#: How often a draw queues again at a table that serves others, as the docs say.
QUEUES: Final = 3
#: In place of an issuer: above what a sequence was raised on all of them.
RAISED: Final = -1
#: So many draws of one process reach all servers that are well.
FEW_DRAWS: Final = 20


class BrokenPromise(NamedTuple):
    """A broken promise."""

    time: float
    kind: str
    text: str


class Health:
    """When each server could last not serve a process, as the nemesis says.

    Attributes:
        last_end: when the last fault of any server has ended.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._faults: dict[tuple[str, int | None], int] = {}
        self._ended: dict[tuple[str, int | None], float] = {}
        self.last_end = 0.0

    def begin(self, host: str, machine: Machine | None = None) -> None:
        """A server cannot serve a process, or any."""
        key = host, None if machine is None else machine.number
        self._faults[key] = self._faults.get(key, 0) + 1

    def end(self, host: str, machine: Machine | None = None) -> None:
        """It can again, as far as this fault goes."""
        key = host, None if machine is None else machine.number
        self._faults[key] -= 1
        self._ended[key] = self.last_end = self._world.now

    def ended(self, machine: Machine) -> float:
        """When the last fault has ended that has kept a process from a server."""
        return max(
            (at for (_, n), at in self._ended.items() if n in (None, machine.number)), default=0.0
        )

    def touch(self, host: str) -> None:
        """It has been disturbed just now."""
        self.begin(host)
        self.end(host)

    def well_since(self, host: str, machine: Machine) -> float:
        """Since when a server can serve a process; infinity while it cannot."""
        keys = ((host, None), (host, machine.number))
        if any(self._faults.get(key) for key in keys):
            return math.inf
        return max(self._ended.get(key, 0.0) for key in keys)


class _Answer(NamedTuple):
    """A block that a server has given a process."""

    first: int
    last: int
    at: float


class _Reset(NamedTuple):
    """A table whose numbers somebody let begin again.

    Attributes:
        at: when.
        host: the server.
        issued: the tickets that were handed out since.
    """

    at: float
    host: str
    issued: NumberSet


#: The sequence that each process draws from all servers.
SINGLES: Final = "photos"
#: No ticket is larger.
_LAST: Final = 2**64


class Checker:
    """What was drawn, and what was broken.

    Args:
        world: in which it happens.
        health: of the servers.
        hosts: the servers, by name, in the order of their offsets.
        longest: seconds that a draw may take.

    Attributes:
        ids: those that sort by time.
        draws: how many draws were answered.
        failed: how many were not, by the classes of their errors.
        raises: how often a sequence was raised.
        announced: tickets that came twice after their table was emptied by hand, as other processes had announced.
        broken_promises: the broken promises.
        max_age_seconds: for how long tickets may be buffered.
    """

    def __init__(
        self, world: World, health: Health, hosts: dict[str, Host], longest: float
    ) -> None:
        self._world, self._health, self._hosts, self.longest = world, health, hosts, longest
        stride = len(hosts)
        #: Which server has issued a ticket.
        self.issuer: Callable[[int], int] = lambda ticket: ticket % stride
        #: How many servers issue tickets.
        self.issuers = stride
        #: Whether a process may draw from a server at all.
        self.may_serve: Callable[[str, Machine], bool] = lambda name, machine: True
        self._issued: dict[str, NumberSet] = {}
        self._latest: dict[str, dict[int, int]] = {}
        self.announcements = Announcements(world, self.broken, lambda: self.needs_peer)
        self.ids = IdChecker(world, self.broken, self._can_lease)
        self.draws = self.tickets = self.raises = self.announced = 0
        self.max_age_seconds = math.inf
        #: Whether a process is asked itself for each answer of a server.
        self.sees_answers = True
        #: The blocks that each process has drawn of a sequence, by issuer.
        self._blocks: dict[tuple[Machine, str, int], list[_Answer]] = {}
        #: Tickets that nobody knows to be issued but who has them: sequence, issuer, above what, and the last.
        self._untold: list[tuple[str, int, int, int]] = []
        #: Tables that were emptied by hand: by sequence and issuer.
        self._resets: dict[tuple[str, int], _Reset] = {}
        #: When each process has last distrusted what it had buffered.
        self._distrusted: dict[Machine, float] = {}
        self.failed: Counter[str] = Counter()
        self.broken_promises: list[BrokenPromise] = []
        world.on_wait_with_lock = self._waited_with_lock
        self.slowest = 0.0
        #: Whether a server alone is not drawn from.
        self.needs_peer = False
        #: Since when issuers are retired.
        self.retired: dict[int, float] = {}
        #: Whether tickets of one issuer have to ascend.
        self.sees_order = True
        #: On how many servers an operator works.
        self.under_work = 0
        #: How often each process drew from each residue class since all faults have ended; None before.
        self.calm: defaultdict[str, Counter[int]] | None = None

    def broken(self, kind: str, text: str) -> None:
        """Note a broken promise."""
        self.broken_promises.append(BrokenPromise(self._world.now, kind, text))
        self._world.log(f"BROKEN {kind}: {text}")

    def _waited_with_lock(self, task: Task, made_in: str) -> None:
        self.broken("lock held across a wait", f"{task.machine}/{task.name}: {made_in}")

    def latest(self, sequence: str) -> dict[int, int]:
        """The largest ticket of each issuer that any process has: to be read before a draw begins."""
        return dict(self._latest.get(sequence, {}))

    def drawn(
        self,
        sequence: str,
        blocks: list[range],
        before: dict[int, int] | None,
        began: float,
        seconds: float,
    ) -> None:
        """A draw was answered.

        Args:
            sequence: that it was from.
            blocks: of tickets.
            before: `latest` when it began; None for tickets that may have been buffered.
            began: when it did.
            seconds: that it has taken, without those in which its process was frozen.
        """
        self.draws += 1
        self._timed(sequence, began, seconds)
        issued = self._issued.get(sequence)
        if issued is None:
            issued = self._issued[sequence] = NumberSet()
        latest = self._latest.setdefault(sequence, {})
        for block in blocks:
            self.tickets += len(block)
            issuer = self.issuer(block[0])
            is_untold = self._untold and self._is_untold(sequence, issuer, block[0])
            is_repeated = issued.add(block)
            if self._resets and self._was_announced(sequence, issuer, block, began):
                is_untold = True
                self.announced += is_repeated * len(block)
            if is_repeated and not is_untold:
                self.broken("repeated", f"{sequence}: {block}")
            latest[issuer] = max(latest.get(issuer, 0), block[-1])
            if before is None:
                self._see_age(sequence, block, began)
                continue
            if began > self.retired.get(issuer, math.inf):
                self.broken("retired server", f"{sequence}: {block}")
            above = max(before.get(issuer, 0), before.get(RAISED, 0))
            if block[0] <= above and self.sees_order and not is_untold:
                self.broken("descending", f"{sequence}: {block} after {above}")

        if self.calm is not None and before is not None:
            for issuer in {self.issuer(block[0]): None for block in blocks}:
                self.calm[self._world.machine.name][issuer] += 1

    def may_repeat(self, sequence: str, offset: int, above: int, last: int) -> None:
        """A crash has taken back what a server had acknowledged, and no peer was told of tickets above a number."""
        self._untold.append((sequence, self.issuer(offset), above, last))

    def _is_untold(self, sequence: str, issuer: int, first: int) -> bool:
        return any(
            name == sequence and server == issuer and above < first <= last
            for name, server, above, last in self._untold
        )

    def reset_by_hand(self, sequence: str, host: str) -> None:
        """Somebody has let the numbers of a table begin again."""
        issuer = self.issuer(1 + list(self._hosts).index(host))
        self._resets[sequence, issuer] = _Reset(self._world.now, host, NumberSet())

    def _was_announced(self, sequence: str, issuer: int, block: range, began: float) -> bool:
        """Whether tickets may be old ones, as docs/causes.md says in 6.

        Their table was emptied by hand, and some process has logged that before they were handed out. The process that got
        them knew the server before, and had no ticket above them. Nobody got them since the table was emptied.
        """
        reset = self._resets.get((sequence, issuer))
        if reset is None:
            return False
        machine = self._world.machine
        is_old = not reset.issued.add(block)
        knew_server = known_hosts(machine).get(reset.host, math.inf) < reset.at
        answers = self._blocks.get((machine, sequence, issuer), [])
        above = bisect_right(answers, _Answer(block[-1], _LAST, 0.0))
        had_later = any(answer.at < began for answer in answers[above:])
        told = self.announcements.has_told(sequence, reset.host, reset.at)
        return is_old and knew_server and not had_later and told

    # -- buffered tickets

    def server_answered(self, sequence: str, blocks: Sequence[range]) -> None:
        """The process that runs has accepted an answer of a server."""
        for block in blocks:
            key = self._world.machine, sequence, self.issuer(block[0])
            answer = _Answer(block[0], block[-1], self._world.now)
            insort(self._blocks.setdefault(key, []), answer)

    def distrusted(self, machine: Machine, *_: object) -> None:
        """A process has seen a broken promise, and drops what it had buffered: the listener to its pool's quarantines."""
        self._distrusted[machine] = self._world.now

    def _see_age(self, sequence: str, block: range, began: float) -> None:
        """Tickets that may have been buffered are handed out to a caller who has asked at a moment."""
        machine = self._world.machine
        blocks = self._blocks.get((machine, sequence, self.issuer(block[0])), [])
        at = bisect_right(blocks, _Answer(block[0], _LAST, 0.0)) - 1
        if at < 0 or block[0] > blocks[at].last:
            if self.sees_answers:
                self.broken("unknown ticket", f"{sequence}: {block} was in no answer to {machine}")
            return
        answer = blocks[at]
        drawn_at = answer.at
        age = (began - drawn_at) * machine.rate
        if age > self.max_age_seconds:
            self.broken("too old", f"{sequence}: {block} was drawn {age:.3f} s before")
        if drawn_at < self._distrusted.get(machine, 0.0) < began:
            self.broken("distrusted", f"{sequence}: {block} was drawn before a broken promise")

    # -- raising

    def raised(self, sequence: str, above: int) -> None:
        """A sequence was raised: each draw that begins from now on gets larger tickets."""
        self.raises += 1
        latest = self._latest.setdefault(sequence, {})
        latest[RAISED] = max(latest.get(RAISED, 0), above)

    def not_raised(self, sequence: str, error: TicketError, began: float) -> None:
        """It could not be raised on all servers."""
        self.failed[f"raising: {type(error).__name__}"] += 1
        machine, least = self._world.machine, began - PEER_SECONDS
        since = {name: self._health.well_since(name, machine) for name in self._hosts}
        if all(moment < least for moment in since.values()):
            self.broken("not raised", f"{sequence}: {error}")

    # -- failures

    def _can_lease(self, began: float) -> list[str]:
        """The servers that could lease a node number to the process that runs, since a moment."""
        return self._well(began - PEER_SECONDS)

    def _well(self, since: float) -> list[str]:
        """The servers that could serve the process that runs, since a moment and now."""
        machine, health = self._world.machine, self._health
        return [
            name
            for name in self._hosts
            if health.well_since(name, machine) < since and self.may_serve(name, machine)
        ]

    def not_drawn(self, sequence: str, error: Exception, began: float, seconds: float) -> None:
        """A draw has failed."""
        self._timed(sequence, began, seconds)
        self.failed[type(error).__name__] += 1
        if not isinstance(error, TicketError) or isinstance(error, TicketsExhausted):
            self.broken("wrong error", f"{sequence}: {error!r}")
            return
        well = [
            name
            for name in self._well(began - (PEER_SECONDS if self.needs_peer else WELL_SECONDS))
            if not self._was_too_slow(name)
        ]
        if len(well) > self.needs_peer + self.under_work:
            self.broken("failed", f"{sequence}: {', '.join(well)} could serve: {error}")

    def _was_too_slow(self, name: str) -> bool:
        """Whether a draw that failed has only waited for a probe of a server, a moment as the docs say.

        The server had been unresponsive, and a probe is three requests at least.
        """
        pool = self._world.machine.state.get("pool")
        if self._hosts[name].seconds < SLOW_SECONDS or not isinstance(pool, TicketPool):
            return False
        return any(s.breaker.timed_out for s in pool.servers if s.engine.url.host == name)

    def _timed(self, sequence: str, began: float, seconds: float) -> None:
        self.slowest = max(self.slowest, seconds)
        longest = self.longest
        if self._health.last_end > began and self._health.ended(self._world.machine) > began:
            longest *= 1 + QUEUES  # a server that answers others again passes for one with a queue
        if seconds > longest + SLACK_SECONDS:
            self.broken("slow", f"{sequence}: {seconds:.3f} s, and not {longest:.1f} s")

    def begin_calm(self) -> None:
        """All faults have ended: from now on each process is to draw from all servers."""
        self.calm = defaultdict(Counter)

    def at_end(self, machines: list[Machine], restored: set[str], lossy: set[str]) -> None:
        """Nothing is left of processes that have closed their pools.

        Args:
            machines: those that ended by themselves.
            restored: the servers that are of no use any more.
            lossy: those that may be.
        """
        for name, drawn in (self.calm or {}).items():
            used = self.issuers - len(restored | lossy)
            if drawn.total() >= FEW_DRAWS and len(drawn) < used:
                self.broken("unused server", f"{name} draws from {dict(drawn)} only")
        for task, error in self._world.errors:
            self.broken("error in a thread", f"{task.machine}/{task.name}: {error!r}")
        for machine in machines:
            for task in machine.tasks.values():
                self.broken("leaked thread", f"{machine}/{task.name}")
            pool = machine.state.get("pool")
            if not isinstance(pool, TicketPool):
                continue  # a client of another program
            self._world.machine = machine  # by whose clock it tells the age of tickets
            self.announcements.check(machine, pool.buffered)
            self._world.machine = self._world.outside
            self._sees_set_back(machine, restored)
        for host in self._hosts.values():
            for channel in host.channels.values():
                self.broken("leaked connection", f"{channel} of {channel.machine}")

    def _sees_set_back(self, machine: Machine, restored: set[str]) -> None:
        """A process that has drawn while all was calm has met the servers that were set back, and said so."""
        drawn = Counter[int]() if self.calm is None else self.calm[machine.name]
        if drawn.total() >= FEW_DRAWS:
            unused = [
                host
                for n, (name, host) in enumerate(self._hosts.items(), 1)
                if name in restored and self.issuer(n) not in drawn
            ]
            self.announcements.check_set_back(machine, SINGLES, unused)


@contextmanager
def told_of_answers(checker: Checker) -> Iterator[None]:
    """A context in which a checker is told of all answers: a pool's draws are quicker without a listener."""
    accept = TicketTable.accept

    def accept_and_record(table: TicketTable, blocks: list[range], before: int) -> None:
        accept(table, blocks, before)
        checker.server_answered(table.name, blocks)

    setattr(TicketTable, "accept", accept_and_record)  # noqa: B010  # not its type
    try:
        yield
    finally:
        setattr(TicketTable, "accept", accept)  # noqa: B010  # not its type
