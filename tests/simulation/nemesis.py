"""The nemesis: faults of servers, processes and the network, several at once, each for a while."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Protocol

from .checker import Health
from .models.mysql import MySQLServer
from .models.postgresql import PostgreSQLServer
from .models.protocol import Login, Query
from .models.sessions import ModelServer
from .network import Host, Link, Network
from .runtime import ServerError
from .stored import marks_on, numbers_on
from .world import Machine, World

__all__ = ["Nemesis", "Processes"]

#: The sequence whose numbers are set back.
SINGLES: Final = "photos"
#: For how long processes may be held up by connections to another server.
SWAPPED_SECONDS: Final = 6.0

#: So many kinds of faults there are.
ALL_KINDS: Final = 23
#: For each so many processes, a fault of one process is chosen once more.
PROCESSES_EACH: Final = 8
#: How old a backup is at least, and for how long before all servers have been told how far each had come.
BACKUP_SECONDS: Final = 7.0
#: How long a server is down at most whose data is replaced: clients have often told all that they have drawn by then.
RESTORE_SECONDS: Final = 5.0
#: The powers of a number between 0 and 1: most faults are short, so that a server is well in between, and some not.
SHORT: Final = 5
EVEN: Final = 1


class Processes(Protocol):
    """The client processes of a world."""

    @property
    def alive(self) -> list[Machine]:
        """Those that run, or are frozen."""
        ...

    @property
    def wanted(self) -> int:
        """How many there are to be."""
        ...

    def start(self) -> None:
        """Start another one."""
        ...

    def fork(self, machine: Machine, *, is_told: bool) -> None:
        """Fork one; ``is_told`` if Python's hooks run."""
        ...


class Nemesis:
    """Chooses faults at random, and ends each after a while.

    Args:
        world: that it is part of.
        network: with the servers.
        health: is told which server can serve which process.
        processes: the clients.
        pause: seconds between the beginnings of two faults, on average, where all kinds are chosen and there are few processes.

    Attributes:
        faults: how many there were, by kind.
        is_over: set when there are to be no more.
        swappable: the servers whose addresses may lead to each other for a while.
    """

    def __init__(
        self,
        world: World,
        network: Network,
        health: Health,
        processes: Processes,
        pause: float,
    ) -> None:
        self._world, self._network, self._health = world, network, health
        self._processes, self._pause = processes, pause
        self._random = world.random
        self.faults: Counter[str] = Counter()
        self.is_over = False
        self.swappable: Sequence[str] = tuple(network.hosts)
        self._is_swapped = False
        #: Of the ticket tables; None for the one that is usual with a kind of server.
        self.layout: str | None = None
        #: The server that flushes late.
        self._late: Host | None = None
        #: The servers whose numbers were set back.
        self.restored: set[str] = set()
        #: The servers that have lost commits which they had acknowledged.
        self.lossy: set[str] = set()
        #: Is told of tickets that a crash took back and no peer knew: sequence, offset, and between which two numbers.
        self.on_untold: Callable[[str, int, int, int], object] = lambda *_: None
        #: Is told that somebody has let the numbers of a table begin again: sequence, and server.
        self.on_reset: Callable[[str, str], object] = lambda *_: None
        #: The backups of each server, with the times when they were made.
        self.images: dict[str, list[tuple[float, object]]] = {}
        self._ends: dict[int, Callable[[], None]] = {}
        self._count = 0
        self.kinds: list[Callable[[], None]] = [
            self.crash,
            self.stop,
            self.lose_machine,
            self.freeze_server,
            self.partition,
            self.partition_there,
            self.partition_back,
            self.partition_one,
            self.cut_connections,
            self.cut_one,
            self.freeze_connections,
            self.cut_replies,
            self.kill_process,
            self.freeze_process,
            self.fork_process,
            self.slow_server,
            self.slow_network,
            self.jump_clock,
            self.jump_clock_of_server,
            self.kill_sessions,
            self.make_read_only,
            self.swap_addresses,
            self.restore,
        ]
        #: Those that strike one process.
        self._of_one: list[Callable[[], None]] = [
            self.partition_one,
            self.cut_one,
            self.freeze_connections,
            self.kill_process,
            self.freeze_process,
            self.fork_process,
            self.jump_clock,
        ]

    def start(self) -> None:
        """Begin."""
        self._back_up()
        self._later()

    def choose_only(self, *kinds: Callable[[], None]) -> None:
        """Choose these kinds alone, as often as all of them together."""
        self._pause *= len(kinds) / ALL_KINDS
        self.kinds = list(kinds)

    def _later(self) -> None:
        pause = self._pause * ALL_KINDS / len(self._choices())
        self._world.at(self._world.now + self._random.expovariate(1 / pause), self._next)

    def _next(self) -> None:
        if self.is_over:
            return
        for _ in range(self._random.choice((1, 1, 1, 2, 2, 3))):
            self._random.choice(self._choices())()
        self._later()

    def _choices(self) -> list[Callable[[], None]]:
        """The kinds of faults; what strikes one process happens the more often, the more processes there are."""
        of_one = [kind for kind in self.kinds if kind in self._of_one]
        return self.kinds + of_one * (self._processes.wanted // PROCESSES_EACH)

    def end_all(self) -> None:
        """End all faults now, and begin no other one."""
        self.is_over = True
        for end in list(self._ends.values()):
            end()
        self._network.end_dead_connections()
        # a server that was frozen takes some up only now
        self._world.at(self._world.now + 1, self._network.end_dead_connections)

    # -- helpers

    def _begin(
        self,
        kind: str,
        what: object,
        end: Callable[[], None],
        longest: float,
        power: int = SHORT,
    ) -> None:
        """Note a fault, and end it after a while."""
        self.faults[kind] += 1
        self._count += 1
        number = self._count
        seconds = longest * self._random.random() ** power
        self._world.log(f"FAULT {number} {kind} {what} for {seconds:.3f} s")

        def once() -> None:
            if self._ends.pop(number, None) is not None:
                self._world.log(f"FAULT {number} {kind} {what} ends")
                end()

        self._ends[number] = once
        self._world.at(self._world.now + seconds, once)

    def _instant(self, kind: str, what: object) -> None:
        self.faults[kind] += 1
        self._world.log(f"FAULT {kind} {what}")

    def _host(self) -> Host:
        return self._random.choice(list(self._network.hosts.values()))

    def _process(self) -> Machine:
        return self._random.choice(self._processes.alive)

    # -- servers

    def crash(self) -> None:
        """Kill a server; it starts again after a while."""
        self._stop("crash", is_crash=True, is_reachable=True)

    def stop(self) -> None:
        """Stop a server properly, and start it again after a while."""
        self._stop("stop", is_crash=False, is_reachable=True)

    def lose_machine(self) -> None:
        """Switch a machine off, so that nobody says that its server is not there."""
        self._stop("lost machine", is_crash=True, is_reachable=False)

    def _stop(self, kind: str, *, is_crash: bool, is_reachable: bool) -> None:
        host = self._host()
        if not host.is_up or host.machine.is_frozen:
            return
        host.stop(is_crash=is_crash, is_reachable=is_reachable)
        self._health.begin(host.name)

        def end() -> None:
            host.start()
            self._health.end(host.name)

        self._begin(kind, host, end, 8)

    def freeze_server(self) -> None:
        """Stop all threads of a server for a while."""
        host = self._host()
        if not host.is_up or host.machine.is_frozen:
            return
        machine = host.machine
        machine.freeze()
        self._health.begin(host.name)

        def end() -> None:
            self._health.end(host.name)
            machine.thaw()

        self._begin("frozen server", host, end, 5)

    def restore(self) -> None:
        """Replace a server's data by a backup, as one does who has not read the handbook: once in a world.

        Only while its peers have been told how far it had come: they are well for longer than marks take.
        """
        host, now = self._host(), self._world.now
        images = [
            image for when, image in self.images.get(host.name, []) if now - when > BACKUP_SECONDS
        ]
        if not images or not self._can_be_set_back(host):
            return
        image = self._random.choice(images)
        self._replace_data("restored server", host, lambda: image)

    def promote_replica(self) -> None:
        """Replace a server by its replica, which lacks the last commit: once in a world, at the same times.

        What it lacks is the last ticket that its peers know of. So the next one is the fence: it is tried there alone.
        """
        host = self._host()
        model = host.model
        if not isinstance(model, ModelServer) or not self._can_be_set_back(host):
            return
        offset = 1 + list(self._network.hosts).index(host.name)
        if not self._told(SINGLES, offset)[0]:
            return  # it has issued nothing yet

        def image() -> object:
            number, stride = self._told(SINGLES, offset)
            return model.image_before(model.image(), SINGLES, number, stride)

        self._replace_data("promoted replica", host, image)

    def _replace_data(self, kind: str, host: Host, image: Callable[[], object]) -> None:
        """Stop a server, and start it again with an older state, which is asked for then."""
        host.stop(is_crash=False)
        self._health.begin(host.name)  # nobody raises its numbers, so it is of no use any more
        self.restored.add(host.name)

        def end() -> None:
            host.model.restore(image())
            host.start()

        self._begin(kind, host, end, RESTORE_SECONDS, EVEN)

    def _can_be_set_back(self, host: Host) -> bool:
        """Whether all peers have been told how far it had come."""
        least = self._world.now - BACKUP_SECONDS
        are_well = all(
            self._health.well_since(name, machine) < least
            for machine in self._processes.alive
            for name in self._network.hosts
        )
        is_first = not (self.restored or self.lossy)
        return are_well and is_first and len(self._network.hosts) > 1 and host.is_up

    def resume_image(self) -> None:
        """Resume a server's virtual machine from an image: once in a world, with an old state and its old uptime.

        Not while a process is frozen: one that has drawn nothing since the image was made cannot tell, as docs/understand/causes.md says.
        """
        host, now = self._host(), self._world.now
        images = [
            image for when, image in self.images.get(host.name, []) if now - when > BACKUP_SECONDS
        ]
        is_model = isinstance(host.model, ModelServer)
        if not images or not is_model or not self._can_be_set_back(host):
            return
        if any(machine.is_frozen for machine in self._processes.alive):
            return
        resume(host, self._random.choice(images))
        self._health.begin(host.name)
        self.restored.add(host.name)
        self._instant("resumed image of a server", host)

    def flush_late(self) -> None:
        """Let a server acknowledge commits before they are durable, from now on."""
        self._late = self._host()
        model = self._late.model
        if isinstance(model, MySQLServer):
            model.configure("innodb_flush_log_at_trx_commit", self._random.choice((0, 2)))
        elif isinstance(model, PostgreSQLServer):
            model.variables["synchronous_commit"] = "off"

    def lose_commits(self) -> None:
        """Crash the server that flushes late: once in a world, while its peers are well."""
        host = self._late
        if host is None or not self._can_be_set_back(host):
            return
        before = numbers_on(host)
        host.stop(is_crash=True)
        self._health.begin(host.name)  # nobody raises its numbers, so it is of no use any more
        self.lossy.add(host.name)

        def end() -> None:
            host.start()
            after, offset = numbers_on(host), 1 + list(self._network.hosts).index(host.name)
            for sequence, number in before.items():
                known = max(after.get(sequence, 0), self._told(sequence, offset)[0])
                self.on_untold(sequence, offset, known, number)

        self._begin("lost commits", host, end, 2)

    def _told(self, sequence: str, offset: int) -> tuple[int, int]:
        """The largest ticket of a server that its peers know of, and its stride; twice 0 where they know none."""
        marks = [
            (number, int(key[1] or 1))
            for host in self._network.hosts.values()
            for key, number in marks_on(host).items()
            if key[0] == sequence and key[2] == offset
        ]
        return max(marks, default=(0, 0))

    def reset_numbers(self) -> None:
        """Let the numbers of a running server begin again, by a statement of somebody's."""
        host = self._host()
        model = host.model
        if not isinstance(model, ModelServer) or not self._can_be_set_back(host):
            return
        is_mysql = isinstance(model, MySQLServer)
        statement = "UPDATE photos SET id = 1"
        if is_mysql and self.layout is None:
            statement = "TRUNCATE TABLE photos"

        def work() -> None:
            session = model.connect(Login("root" if is_mysql else "postgres", "tickets"), _nothing)
            try:
                session.handle(Query(statement))
                self.on_reset(SINGLES, host.name)
            except ServerError as error:
                self._world.log(f"{statement}: {error}")
            session.close()

        self._health.begin(host.name)
        self.restored.add(host.name)
        self._instant("reset numbers", f"{host}: {statement}")
        host.work(work)

    def _back_up(self) -> None:
        for host in self._network.hosts.values():
            self.images.setdefault(host.name, []).append((self._world.now, host.model.image()))
        if not self.is_over:
            self._world.at(self._world.now + 5, self._back_up)

    def slow_server(self) -> None:
        """A server takes much longer for each request."""
        host = self._host()
        before = host.seconds
        if before > 0.001:
            return
        host.seconds = 0.1 * self._random.random()

        def end() -> None:
            host.seconds = before

        self._begin("slow server", host, end, 5)

    def kill_sessions(self) -> None:
        """Kill some sessions of a server, or what they do now."""
        host, random = self._host(), self._random
        model = host.model
        if not host.is_up or host.machine.is_frozen or not isinstance(model, ModelServer):
            return
        for number in list(model.sessions):
            if random.random() < 0.3:
                model.kill(number, query_only=random.random() < 0.5)
        self._health.touch(host.name)
        self._instant("killed sessions", host)

    def make_read_only(self) -> None:
        """A server is demoted for a while."""
        host = self._host()
        model = host.model
        if not host.is_up or not isinstance(model, MySQLServer) or model.variables["read_only"]:
            return
        model.set_global("read_only", 1)
        self._health.begin(host.name)

        def end() -> None:
            model.set_global("read_only", 0)
            self._health.end(host.name)

        self._begin("read-only server", host, end, 5)

    # -- the network

    def swap_addresses(self) -> None:
        """The addresses of two servers lead to each other for a while."""
        if self._is_swapped or not self.swappable:
            return
        one, other = self._random.sample(self.swappable, 2)
        hosts = self._network.hosts
        if type(hosts[one].model) is not type(hosts[other].model):
            return
        self._is_swapped = True
        self._network.swap(one, other)
        for name in (one, other):
            self._health.begin(name)

        def end() -> None:
            self._network.swap(one, other)
            self._is_swapped = False
            # what was opened in the meantime goes on leading to the other one, until a draw has found that out
            for name in (one, other):
                self._world.at(self._world.now + SWAPPED_SECONDS, partial(self._health.end, name))

        self._begin("swapped addresses", f"{one} {other}", end, 3)

    def partition(self) -> None:
        """Nobody reaches a server."""
        host = self._host()
        self._cut("partition", host, list(self._network.links_of(host)), there=True, back=True)

    def partition_there(self) -> None:
        """A server hears nobody."""
        host = self._host()
        links = list(self._network.links_of(host))
        self._cut("partition there", host, links, there=True, back=False)

    def partition_back(self) -> None:
        """Nobody hears a server."""
        host = self._host()
        links = list(self._network.links_of(host))
        self._cut("partition back", host, links, there=False, back=True)

    def partition_one(self) -> None:
        """One process does not reach a server."""
        host, machine = self._host(), self._process()
        link = self._network.link(machine, host)
        self._cut("partition of one", f"{machine} {host}", [link], there=True, back=True)

    def _cut(self, kind: str, what: object, links: list[Link], *, there: bool, back: bool) -> None:
        links = [link for link in links if not (link.is_cut_there or link.is_cut_back)]
        for link in links:
            link.cut(there=there, back=back)
            self._health.begin(link.host, link.machine)

        def end() -> None:
            for link in links:
                link.heal()
                self._health.end(link.host, link.machine)

        self._begin(kind, what, end, 5)

    def cut_connections(self) -> None:
        """End all connections to a server: those of one that is restarted behind a proxy."""
        host = self._host()
        for channel in list(host.channels.values()):
            channel.cut()
        self._health.touch(host.name)
        self._instant("cut connections", host)

    def cut_one(self) -> None:
        """End one connection, whatever is under way on it."""
        channels = [c for h in self._network.hosts.values() for c in h.channels.values()]
        if channels:
            channel = self._random.choice(channels)
            channel.cut()
            self._health.touch(channel.host.name)
            self._instant("cut connection", channel)

    def freeze_connections(self) -> None:
        """A firewall forgets the connections of a process: nothing arrives, and nobody is told."""
        machine = self._process()
        for channel in self._network.channels_of(machine).values():
            channel.is_frozen = True
        self._instant("frozen connections", machine)

    def cut_replies(self) -> None:
        """Replies of a server to some processes end in the middle: what was asked for was done."""
        host, share = self._host(), self._random.random()
        links = [link for link in self._network.links_of(host) if self._random.random() < 0.5]
        links = [link for link in links if not link.cut_replies]
        for link in links:
            link.cut_replies = share
            self._health.begin(link.host, link.machine)

        def end() -> None:
            for link in links:
                link.cut_replies = 0.0
                self._health.end(link.host, link.machine)

        self._begin("cut replies", host, end, 3)

    def slow_network(self) -> None:
        """The way from some processes to a server takes much longer, or loses much."""
        host = self._host()
        links = [link for link in self._network.links_of(host) if self._random.random() < 0.5]
        seconds, loss = 0.05 * self._random.random(), 0.2 * self._random.random()
        for link in links:
            link.seconds += seconds
            link.loss += loss
            self._health.begin(link.host, link.machine)

        def end() -> None:
            for link in links:
                link.seconds -= seconds
                link.loss -= loss
                self._health.end(link.host, link.machine)

        self._begin("slow network", host, end, 5)

    # -- processes

    def kill_process(self) -> None:
        """Kill a process at any moment, and start another one."""
        if len(self._processes.alive) < 2:
            self._processes.start()
        machine = self._process()
        machine.die()
        self._instant("killed process", machine)
        self._processes.alive.remove(machine)
        if len(self._processes.alive) < self._processes.wanted:
            self._world.at(self._world.now + self._random.random(), self._processes.start)

    def fork_process(self) -> None:
        """Fork a process at any moment, by a thread of it that draws nothing."""
        machine = self._process()
        if machine.is_frozen or len(self._processes.alive) > self._processes.wanted:
            return
        self._instant("fork", machine)
        self._processes.fork(machine, is_told=self._random.random() < 0.5)

    def freeze_process(self) -> None:
        """Stop all threads of a process for a while."""
        machine = self._process()
        if machine.is_frozen:
            return
        machine.freeze()
        self._begin("frozen process", machine, machine.thaw, 5)

    def jump_clock(self) -> None:
        """Set the wall clock of a process, forwards or back."""
        machine = self._process()
        machine.step_clock(self._random.uniform(-100, 100))
        self._instant("clock jump", machine)

    def jump_clock_of_server(self) -> None:
        """Set the wall clock of a server, forwards or back, until it is started again."""
        host = self._host()
        host.machine.step_clock(self._random.uniform(-100, 100))
        self._instant("clock jump of a server", host)


def resume(host: Host, image: object) -> None:
    """Resume a server's virtual machine from an image: with an old state, and its old uptime."""
    model = host.model
    assert isinstance(model, ModelServer)
    since = model.started_at
    host.stop(is_crash=False)
    model.restore(image)
    host.start()
    model.started_at = since


def _nothing() -> None:
    pass
