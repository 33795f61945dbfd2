"""A world with operators: clients draw, the nemesis strikes, and a page of the handbook is being done."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from sqlalchemy import event

from sqla_tickets import TicketPool
from sqla_tickets.draw.timing import TIMING

from .operator import Operations
from .plain import PlainClient, create_plain_table
from .procedures import GAP, MEDIA, PAGES
from .scenario import Configuration, Scenario
from .servers import Kind
from .workload import Workload
from .world import Machine, World

__all__ = ["MaintainedScenario"]

#: The pages about tables that PostgreSQL does not have.
MYSQL_PAGES: Final = ("take-over", "change")

#: How long operators may take for what is left when no fault comes any more.
LAST_SECONDS: Final = 240.0
#: For how long a client sleeps that is forgotten at a deployment.
ASLEEP_SECONDS: Final = 40.0


class MaintainedScenario(Scenario):
    """The world of one seed, with operators.

    Args:
        world: with its seed.
        seconds: for which there are faults.
        processes: how many clients there are; None for what the seed says.
        servers: is not looked at: each page says how many.
        kind: of the servers; None for what the seed says.
        page: of the handbook; None for what the seed says.
    """

    def __init__(
        self,
        world: World,
        seconds: float = 60.0,
        processes: int | None = None,
        servers: int | None = None,
        kind: Kind | None = None,
        page: str | None = None,
    ) -> None:
        if page in MYSQL_PAGES and kind is None:
            kind = "mysql" if world.seed % 2 else "mariadb"
        super().__init__(world, seconds, processes, 4, kind)
        random, self._is_to_be_restored, self.checker.needs_peer = world.random, False, False
        is_mysql = not {"postgresql", "toy"} & set(self.kinds)
        pages = [name for name in PAGES if is_mysql or name not in MYSQL_PAGES]
        self.procedure = PAGES[page or random.choice(pages)](random)
        self.configuration = self.procedure.before
        self._choose_habits()
        if self.procedure.name == "take-over":
            self._layout = None
            self.nemesis.swappable = ()  # a plain client sees no offset
        if self.procedure.name == "change tables":  # which creates what a server of no pool lacks
            self.nemesis.swappable = self.configuration.servers
        self.slots = [self.configuration] * self.wanted
        #: The number of a slot that is forgotten at a deployment.
        self._forgotten = random.randrange(self.wanted) if random.random() < 0.3 else None
        self._usable: dict[Configuration, Sequence[str]] = {
            self.configuration: self.configuration.servers
        }
        #: The servers whose disks were lost.
        self.lost: set[str] = set()
        self.operations = Operations(self, self.procedure, random.choice((0, 1, 3, 8, 20)))
        self.checker.may_serve = self._may_serve
        stride = max(self.procedure.before.stride, self.procedure.after.stride)
        before = self.procedure.before.stride
        self.checker.issuer = lambda ticket: 1 + (ticket - 1) % (stride if ticket > GAP else before)
        self.checker.issuers = len(self.procedure.after.servers)
        self.checker.under_work = self.procedure.works
        if not self.procedure.is_in_order:
            self.checker.sees_order, self.checker.issuers = False, 0
            self._usable[self.configuration] = ()
        if self.procedure.name == "move":  # a draw waits until it has ended, and asks both pools
            self.checker.longest += self.checker.longest / 2 + TIMING.move_seconds

    def _choose_habits(self) -> None:
        """How clients draw: not too often, so that more is done by operators."""
        habits, random = self.habits, self.world.random
        # a process with the old configuration raises the servers alone that it knows
        weights = {**habits.weights, "raise_above": 0.0}
        layout = habits.layout if self.procedure.name.startswith("grow") else None
        if layout is None:
            weights["make_ids"] = 0.0
        seconds = habits.think_seconds * random.choice((1, 5, 20))
        self.habits = replace(habits, weights=weights, layout=layout, think_seconds=seconds)

    # -- which servers can be drawn from

    def serve(self, usable: Mapping[Configuration, Sequence[str]]) -> None:
        """From now on, processes of these configurations can draw from these servers alone."""
        if not self.procedure.is_in_order:
            return
        for configuration, names in usable.items():
            before = self._usable.get(configuration, ())
            for name in set(names) - set(before):
                self.health.touch(name)
            self._usable[configuration] = names

    def _may_serve(self, name: str, machine: Machine) -> bool:
        configuration = machine.state["configuration"]
        assert isinstance(configuration, Configuration)
        return name in self._usable.get(configuration, ())

    def set_back(self) -> set[str]:
        return super().set_back() | self.lost

    # -- processes

    def _start(self) -> None:
        used = {machine.state["slot"] for machine in self.alive}
        free = [slot for slot in range(len(self.slots)) if slot not in used]
        if not free:
            free = [len(self.slots)]
            self.slots.append(self.world.random.choice(self.slots))
        self._start_in(free[0])

    def _start_in(self, slot: int) -> None:
        super()._start()
        machine = self.alive[-1]
        machine.state["slot"], machine.state["configuration"] = slot, self.slots[slot]

    def client_pool(self) -> TicketPool:
        state = self.world.machine.state
        configuration = state["configuration"]
        assert isinstance(configuration, Configuration)
        pool = self.pool(configuration)
        if self.procedure.name == "move" and configuration == self.procedure.before:
            other = state["other pool"] = self.pool(MEDIA)
            other.attach(self.metadata)
            event.listen(other, "quarantined", self._by_process(self.checker.distrusted))
        return pool

    def _by_process(self, listener: Callable[..., object]) -> Callable[..., object]:
        """A listener that is told which process it hears of: its own, or a fork of it."""
        return lambda *told: listener(self.world.machine, *told)

    def _client(self) -> None:
        machine = self.world.machine
        if self.procedure.name == "take-over" and machine.number % 2:
            self._plain_client(machine)
        else:
            super()._client()
        self._end_client(machine)

    def _client_in_fork(self, workload: Workload, is_told: bool) -> None:
        super()._client_in_fork(workload, is_told)
        self._end_client(self.world.machine)

    def _end_client(self, machine: Machine) -> None:
        other = machine.state.get("other pool")
        if isinstance(other, TicketPool):
            other.dispose()
        if "is to end" in machine.state:
            machine.die()

    def _plain_client(self, machine: Machine) -> None:
        """What a process of Flickr's does."""
        configuration = machine.state["configuration"]
        assert isinstance(configuration, Configuration)
        client = PlainClient(self.world, self.network, self.checker, configuration)
        while not (self._are_to_end or "is to end" in machine.state):
            self.world.sleep(self.world.random.expovariate(1 / self.habits.think_seconds))
            client.draw()
        client.close()

    def slots_to_deploy(self, configuration: Configuration) -> list[int]:
        """The slots whose processes have another configuration."""
        return [
            slot
            for slot, one in enumerate(self.slots)
            if one != configuration and slot != self._forgotten
        ]

    def deploy(self, slot: int, configuration: Configuration) -> None:
        """End a process with its forks, and start another one with this configuration."""
        world, random = self.world, self.world.random
        self.slots[slot] = configuration
        if self._forgotten is not None:
            self._let_sleep(self._forgotten)
        replaced = [machine for machine in self.alive if machine.state["slot"] == slot]
        for machine in replaced:
            world.log(f"{machine} is replaced by one with {configuration}")
            self.alive.remove(machine)
            if random.random() < 0.5:
                machine.die()
            else:
                machine.state["is to end"] = True
        if replaced:
            self._start_in(slot)

    def remember_forgotten(self) -> None:
        """A message says that processes with the old configuration are left: the next deployment is of all."""
        self._forgotten = None

    def _let_sleep(self, slot: int) -> None:
        """Freeze a process with an old configuration for long."""
        for machine in self.alive:
            if machine.state["slot"] == slot and not machine.is_frozen:
                machine.freeze()
                seconds = self.world.random.uniform(0, ASLEEP_SECONDS)
                self.world.at(self.world.now + seconds, machine.thaw)

    # -- the whole

    def create_tables(self) -> None:
        self.operations.connect()
        if self.procedure.name == "take-over":
            for engine in self.engines.values():
                engine.connect().close()
            with self.pool() as pool:
                create_plain_table(pool)
        super().create_tables()
        self.world.at(self.world.now + 60, self.operations.begin_later)

    def after_faults(self) -> None:
        world, end = self.world, self.world.now + LAST_SECONDS
        while not self.operations.is_over and world.now < end:
            world.run(world.now + 1)
        self.operations.interruptions_left = 0
        if not self.operations.is_over:
            self.checker.broken("unfinished", self.procedure.name)
        self.checker.under_work = 0
