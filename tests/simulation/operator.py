"""An operator who does what the handbook says while clients draw, and is interrupted at any step.

A `Procedure` is a list of steps, as a page of the handbook has them. A process of its own does them, with the package's own
plans. The world kills it before or after any of its statements, or freezes it; then another operator begins from the
start. A step that refuses because it was done before is left out by the next one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, NamedTuple

from sqlalchemy import Engine

from sqla_tickets import TicketPool
from sqla_tickets.cli import plans
from sqla_tickets.errors import TicketError

from .models.drivers import model_engine
from .models.protocol import Query
from .network import Channel, Network
from .scenario import Configuration
from .world import Machine

if TYPE_CHECKING:
    from .maintained import MaintainedScenario

__all__ = ["Operations", "Operator", "Procedure", "Step", "Usable"]

#: Of an operator who is interrupted: before which of the statements of a step, at most.
LAST_STATEMENT: Final = 200
#: The same of those that lock or change something.
LAST_CHANGE: Final = 60
#: What such a statement begins with.
CHANGES: Final = (
    "ALTER",
    "BEGIN",
    "COMMIT",
    "CREATE",
    "DROP",
    "INSERT",
    "LOCK",
    "REPLACE",
    "UNLOCK",
    "UPDATE",
)
#: How long the world stops an operator, at most.
FROZEN_SECONDS: Final = 20.0


class Refused(TicketError):
    """The operator does not go on: the plan says that something is not known."""


#: For each configuration, the servers that its processes can draw from.
Usable = Mapping[Configuration, Sequence[str]]


class Step(NamedTuple):
    """One sentence of the handbook.

    Attributes:
        says: the sentence.
        do: does it; may be done again from its beginning.
        during: from which servers processes can draw while it is not done.
        after: the same once it is.
    """

    says: str
    do: Callable[[Operator], None]
    during: Usable | None = None
    after: Usable | None = None


class Procedure(NamedTuple):
    """A page of the handbook.

    Attributes:
        name: of the page.
        before: how the processes are configured before it.
        steps: to be done in this order.
        after: how they are configured after it.
        works: how many servers a step may disturb at once.
        is_in_order: whether the steps are those of the page; else they only have to do no harm.
    """

    name: str
    before: Configuration
    steps: Sequence[Step]
    after: Configuration
    works: int = 1
    is_in_order: bool = True


# -- the operator's process


class Operator:
    """One process that does a procedure from its first step, until it is over or interrupted.

    Args:
        operations: that it is part of.
        number: of the operator.
    """

    def __init__(self, operations: Operations, number: int) -> None:
        self.operations, self.site = operations, operations.site
        self.world = operations.world
        self.machine = Machine(self.world, f"operator {number}")
        self.machine.state["operator"] = self
        self.machine.at_death.append(self._replace)
        self._statements_left = self._changes_left = 0
        self._is_replaced = False

    def start(self) -> None:
        """Begin."""
        self.machine.spawn(self._work, "main")

    def _work(self) -> None:
        procedure, done = self.operations.procedure, self.operations.done
        while not self._is_replaced:
            for number, step in enumerate(procedure.steps):
                self._plan_interruption()
                if number not in done and step.during is not None:
                    self.site.serve(step.during)
                self.world.log(f"OPERATOR {procedure.name}: {step.says}")
                try:
                    step.do(self)
                except TicketError as error:
                    self.world.log(f"OPERATOR refused: {error}")
                    self.operations.refusals[step.says] += 1
                    if "old configuration" in str(error):
                        self.site.remember_forgotten()
                    if number not in done and procedure.is_in_order:
                        break
                if self._is_replaced:
                    return
                if number not in done:
                    done.add(number)
                    if step.after is not None:
                        self.site.serve(step.after)
            else:
                self.operations.finish()
                return
            self._statements_left = self._changes_left = 0
            self.world.sleep(self.world.random.uniform(0.5, 3))

    # -- interruptions

    def _plan_interruption(self) -> None:
        random = self.world.random
        self._statements_left = self._changes_left = 0
        if not self.operations.may_interrupt():
            return
        if random.random() < 0.5:
            self._statements_left = random.randint(1, LAST_STATEMENT)
        else:
            self._changes_left = random.randint(1, LAST_CHANGE)

    def is_at_work(self) -> bool:
        """Whether nobody has replaced it; then it is not interrupted before the next step, either."""
        self._statements_left = self._changes_left = 0
        return not self._is_replaced

    def before_statement(self, text: str) -> None:
        """The operator's process is about to send something."""
        self._statements_left -= 1
        is_now = self._statements_left == 0
        if text.startswith(CHANGES):
            self._changes_left -= 1
            is_now = is_now or self._changes_left == 0
        if is_now:
            self.operations.interruptions_left -= 1
            self._interrupt()

    def _interrupt(self) -> None:
        world, machine = self.world, self.machine
        self.operations.thaw_others(self)
        what = world.random.random()
        if what < 0.4:
            self.operations.interrupted("killed before a statement")
            machine.die()
            world.park()
        elif what < 0.7:
            self.operations.interrupted("killed during a statement")
            world.at(world.now + world.random.random() * 0.003, machine.die)
        else:
            self.operations.interrupted("frozen")
            machine.freeze()
            world.at(world.now + world.random.random() * FROZEN_SECONDS, self.thaw)
            self.operations.frozen.append(self)
            self._replace()
            world.sleep(0)

    def thaw(self) -> None:
        """Let it go on where it was."""
        if self.machine.is_frozen and not self.machine.is_dead:
            self.machine.thaw()

    def _replace(self) -> None:
        """Let another operator begin, a while later."""
        if not self._is_replaced:
            self._is_replaced = True
            self.operations.replace()

    # -- what steps are made of

    def pool(self, configuration: Configuration) -> TicketPool:
        """A pool of the command line."""
        engines = [self.operations.engines[name] for name in configuration.servers]
        return TicketPool(engines, stride=configuration.stride, name=configuration.name)

    def run(self, plan: plans.Plan) -> None:
        """Read a plan, and carry it out."""
        for line in plan.lines:
            self.world.log(f"OPERATOR plan: {line}")
            if line.startswith("NOT KNOWN: the high-water marks"):
                raise Refused(line)
        self.world.log(f"OPERATOR proof: {plan.run()}")


class _Network:
    """The operators' way to the servers: it counts what they send."""

    def __init__(self, network: Network) -> None:
        self._network = network

    def connect(
        self, host: str, port: int | None, request: object, timeout: float | None = None
    ) -> Channel:
        operator = self._network.world.machine.state["operator"]
        assert isinstance(operator, Operator)
        operator.before_statement("connect")
        channel = self._network.connect(host, port, request, timeout)
        send = channel.send

        def send_counted(request: object) -> None:
            operator.before_statement(request.text if isinstance(request, Query) else "")
            send(request)

        channel.send = send_counted  # type: ignore[method-assign]  # of this one
        return channel


class Operations:
    """All operators of a world, one after the other.

    Args:
        site: where they work.
        procedure: that they do.
        interruptions: how often they are interrupted, at most.

    Attributes:
        done: the numbers of the procedure's steps that were done once.
        refusals: how often each step was refused.
        is_over: whether all is done.
        frozen: the operators that were frozen and not let go on again.
        openings: how often an operator has begun to open tables on servers.
    """

    def __init__(self, site: MaintainedScenario, procedure: Procedure, interruptions: int) -> None:
        self.site, self.world, self.procedure = site, site.world, procedure
        self.interruptions_left = interruptions
        self.done = set[int]()
        self.refusals: Counter[str] = Counter()
        self.is_over = False
        self.frozen: list[Operator] = []
        self.openings = 0
        self._opening = set[Operator]()
        self._count = 0
        network = _Network(site.network)
        self.engines: dict[str, Engine] = {
            name: model_engine(network, "postgresql" if kind == "postgresql" else "mysql", name)
            for name, kind in zip(site.network.hosts, site.kinds, strict=True)
        }

    def connect(self) -> None:
        """SQLAlchemy takes a lock of its own at the first connection of an engine."""
        operator = Operator(self, 0)
        self.world.machine.state["operator"] = operator
        for engine in self.engines.values():
            engine.connect().close()

    @contextmanager
    def opening(self, operator: Operator, offsets: Iterable[int]) -> Iterator[None]:
        """An operator opens tables on servers: they are not retired from now on, even if another operator closes them."""
        self.openings += 1
        self._opening.add(operator)
        for offset in offsets:
            self.site.checker.retired.pop(offset, None)
        try:
            yield
        finally:
            self._opening.discard(operator)

    @property
    def is_opening(self) -> bool:
        """Whether an operator is about to open tables; one who was frozen does so when it goes on."""
        return any(not operator.machine.is_dead for operator in self._opening)

    def begin_later(self) -> None:
        """Let an operator begin, a while later."""
        seconds = self.world.random.uniform(0.5, 4)
        self.world.at(self.world.now + seconds, self._begin)

    def _begin(self) -> None:
        self._count += 1
        Operator(self, self._count).start()

    def may_interrupt(self) -> bool:
        """Whether the next step may be interrupted."""
        return self.interruptions_left > 0 and self.world.random.random() < 0.6

    def interrupted(self, how: str) -> None:
        """Note an interruption."""
        self.site.nemesis.faults[f"operator {how}"] += 1
        self.world.log(f"OPERATOR is {how}")

    def thaw_others(self, operator: Operator) -> None:
        """Where one operator is interrupted, those that were frozen before may go on at that very moment."""
        if self.world.random.random() < 0.5:
            frozen, self.frozen = self.frozen, []
            for other in frozen:
                self.world.at(self.world.now, other.thaw)

    def replace(self) -> None:
        """An operator was interrupted: another one begins."""
        if not self.is_over:
            self.begin_later()

    def finish(self) -> None:
        """The procedure was done."""
        if not self.is_over:
            self.is_over = True
            self.site.nemesis.faults[f"procedure {self.procedure.name}"] += 1
            self.world.log(f"OPERATOR has done: {self.procedure.name}")
