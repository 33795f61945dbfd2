"""The handbook's pages as lists of steps, and what each step does by the package's own plans."""

from __future__ import annotations

import re
from collections.abc import Iterator
from random import Random
from typing import Final

from sqla_tickets import TicketPool
from sqla_tickets.cli import plans
from sqla_tickets.cli.shards import ShardIds
from sqla_tickets.dialects import LayoutName
from sqla_tickets.errors import TicketArgumentError
from sqla_tickets.maintenance import operations
from sqla_tickets.snowflake.leases import NodeLeases

from .checker import RAISED, Checker
from .operator import Operator, Procedure, Step, Usable
from .scenario import Configuration
from .workload import SEQUENCES, SINGLES
from .world import Machine

__all__ = ["PAGES"]

#: For how long `grow --finish` watches.
QUIET_SECONDS: Final = 2.0
#: How far above the others servers join: more than any world draws.
GAP: Final = 10**9

# -- the pages

TWO_OF_2: Final = Configuration(("t1", "t2"), 2)
TWO_OF_4: Final = Configuration(("t1", "t2"), 4)
THREE_OF_4: Final = Configuration(("t1", "t2", "t3"), 4)
FOUR_OF_4: Final = Configuration(("t1", "t2", "t3", "t4"), 4)
MEDIA: Final = Configuration(("t3", "t4"), 2, "media")
MEDIA_AS_DEFAULT: Final = Configuration(("t3", "t4"), 2)


def grow_by_doubling(random: Random) -> Procedure:
    """A stride that is used up: two servers become four."""
    joined = {TWO_OF_2: ("t1", "t2"), FOUR_OF_4: ("t3", "t4")}
    return Procedure(
        "grow 2 to 4",
        TWO_OF_2,
        [
            grow(TWO_OF_2, FOUR_OF_4, joined),
            create_nodes(FOUR_OF_4),
            deploy(FOUR_OF_4),
            finish(FOUR_OF_4, {TWO_OF_2: (), FOUR_OF_4: ("t3", "t4")}),
        ],
        FOUR_OF_4,
    )


def grow_one_by_one(random: Random) -> Procedure:
    """Two servers become three of a doubled stride, and then four."""
    joined = {TWO_OF_2: ("t1", "t2"), THREE_OF_4: ("t3",)}
    return Procedure(
        "grow 2 to 3 to 4",
        TWO_OF_2,
        [
            grow(TWO_OF_2, THREE_OF_4, joined),
            create_nodes(THREE_OF_4),
            deploy(THREE_OF_4),
            finish(THREE_OF_4, {TWO_OF_2: (), THREE_OF_4: ("t3",)}),
            grow(THREE_OF_4, FOUR_OF_4, {FOUR_OF_4: FOUR_OF_4.servers}),
            create_nodes(FOUR_OF_4),
            deploy(FOUR_OF_4),
        ],
        FOUR_OF_4,
    )


def grow_and_retire(random: Random) -> Procedure:
    """A stride with room: two servers, four, and two again."""
    return Procedure(
        "grow and retire",
        TWO_OF_4,
        [
            grow(TWO_OF_4, THREE_OF_4, {THREE_OF_4: THREE_OF_4.servers}),
            create_nodes(THREE_OF_4),
            deploy(THREE_OF_4),
            grow(THREE_OF_4, FOUR_OF_4, {FOUR_OF_4: FOUR_OF_4.servers}),
            create_nodes(FOUR_OF_4),
            deploy(FOUR_OF_4),
            retire(FOUR_OF_4, 2, dict.fromkeys((TWO_OF_4, THREE_OF_4, FOUR_OF_4), ("t1", "t2"))),
            deploy(TWO_OF_4),
        ],
        TWO_OF_4,
    )


def move_to_other_servers(random: Random) -> Procedure:
    """A move, and how it ends: the new servers get the old pool's name."""
    usable = {MEDIA_AS_DEFAULT: ("t3", "t4")}
    steps = [move(TWO_OF_2, MEDIA, {TWO_OF_2: ("t3", "t4")}), deploy(MEDIA_AS_DEFAULT, usable)]
    return Procedure("move", TWO_OF_2, steps, MEDIA_AS_DEFAULT)


def move_back_and_forth(random: Random) -> Procedure:
    """A move and its reverse, again and again. Who was frozen may turn it back at any time."""
    nowhere: Usable = {TWO_OF_2: ()}
    steps = [move(TWO_OF_2, MEDIA, nowhere)]
    for _ in range(random.randint(1, 3)):
        steps += [move(MEDIA, TWO_OF_2, nowhere), move(TWO_OF_2, MEDIA, nowhere)]
    return Procedure("move", TWO_OF_2, steps, TWO_OF_2)


def take_over(random: Random) -> Procedure:
    """A table of Flickr's, from which plain clients draw, gets metadata and two servers more."""
    return grow_by_doubling(random)._replace(name="take-over")


def against_the_order(random: Random) -> Procedure:
    """A growth whose steps are done in any order, some twice and some never."""
    nowhere: Usable = {}
    steps = [
        grow(TWO_OF_2, FOUR_OF_4, nowhere),
        grow(TWO_OF_2, THREE_OF_4, nowhere),
        deploy(TWO_OF_2),
        deploy(THREE_OF_4),
        deploy(FOUR_OF_4),
        finish(FOUR_OF_4, nowhere),
        finish(THREE_OF_4, nowhere),
        retire(FOUR_OF_4, 2, nowhere),
        retire(TWO_OF_2, 1, nowhere),
        raise_(TWO_OF_2, random.randint(1, 2 * GAP)),
        raise_(FOUR_OF_4, random.randint(1, 2 * GAP)),
        create(TWO_OF_2),
        create(FOUR_OF_4),
        rename(TWO_OF_2, SINGLES, "pictures"),
        move(TWO_OF_2, MEDIA, nowhere),
    ]
    half = [grow(TWO_OF_2, FOUR_OF_4, nowhere), deploy(FOUR_OF_4), finish(FOUR_OF_4, nowhere)]
    for step in random.choices(steps, k=random.randint(1, 6)):
        half.insert(random.randint(0, len(half)), step)
    return Procedure("against the order", TWO_OF_2, half, FOUR_OF_4, is_in_order=False)


def restore_from_backup(random: Random) -> Procedure:
    """A server comes back from a backup."""
    return Procedure(
        "restore",
        THREE_OF_4,
        [
            lose("t2", {THREE_OF_4: ("t1", "t3")}),
            restore(THREE_OF_4, 2, None),
            let_in("t2", {THREE_OF_4: THREE_OF_4.servers}),
        ],
        THREE_OF_4,
    )


def change_tables(random: Random) -> Procedure:
    """Tables are verified, raised and converted, one server at a time."""
    return Procedure(
        "change tables",
        TWO_OF_4,
        [
            create(TWO_OF_4),
            raise_(TWO_OF_4, random.randint(1, 10_000_000)),
            convert(TWO_OF_4, "counter"),
            raise_(TWO_OF_4, random.randint(1, 20_000_000)),
            rename(TWO_OF_4, SINGLES, "pictures"),
        ],
        TWO_OF_4,
    )


#: By the names for the command line.
PAGES: Final = {
    "grow": grow_by_doubling,
    "one-by-one": grow_one_by_one,
    "retire": grow_and_retire,
    "move": move_to_other_servers,
    "back-and-forth": move_back_and_forth,
    "restore": restore_from_backup,
    "take-over": take_over,
    "disorder": against_the_order,
    "change": change_tables,
}


# -- what is known of the shards


class OnShards(ShardIds):
    """The ids that the application has inserted.

    Args:
        checker: who has seen them all.
    """

    def __init__(self, checker: Checker) -> None:
        super().__init__()
        self._checker = checker

    def __bool__(self) -> bool:
        return True

    def knows(self, sequence: str) -> bool:
        return True

    def largest_ids(self, sequence: str) -> list[tuple[int, str]]:
        latest = self._checker.latest(sequence)
        largest = max((n for issuer, n in latest.items() if issuer != RAISED), default=0)
        return [(largest, "the largest id on the shards")]

    def above(self, sequence: str, number: int) -> Iterator[tuple[int, str]]:
        return iter(())

    def unknown(self, sequence: str) -> list[str]:
        return []


# -- the steps


def create(configuration: Configuration, layout: LayoutName | None = None) -> Step:
    """``sqla-tickets create``: what is there is verified."""

    def do(operator: Operator) -> None:
        with operator.pool(configuration) as pool:
            for name in SEQUENCES:
                operator.run(plans.create(pool, name, layout=layout, start=1, bits=64))

    return Step("create the tables that are missing", do)


def raise_(configuration: Configuration, above: int) -> Step:
    """``sqla-tickets raise``."""

    def do(operator: Operator) -> None:
        with operator.pool(configuration) as pool:
            for name in SEQUENCES:
                operator.run(plans.raise_(pool, name, above, ShardIds()))
                operator.site.checker.raised(name, above)

    return Step(f"raise above {above}", do)


def convert(configuration: Configuration, layout: LayoutName) -> Step:
    """The migration ``op.convert_ticket_table``."""

    def do(operator: Operator) -> None:
        with operator.pool(configuration) as pool:
            for name in SEQUENCES:
                operations.convert(pool, name, layout)

    return Step(f"convert to the layout {layout}", do)


def rename(configuration: Configuration, old: str, new: str) -> Step:
    """The migration ``op.rename_ticket_table``."""

    def do(operator: Operator) -> None:
        with operator.pool(configuration) as pool:
            operations.rename(pool, old, new)

    return Step(
        f"rename {old} to {new}", do, {configuration: ()}, {configuration: configuration.servers}
    )


def deploy(configuration: Configuration, usable: Usable | None = None) -> Step:
    """Give every client a new configuration, one after the other, at random."""

    def do(operator: Operator) -> None:
        site, world = operator.site, operator.world
        while slots := site.slots_to_deploy(configuration):
            site.deploy(world.random.choice(slots), configuration)
            world.sleep(world.random.expovariate(4))

    return Step(f"give every client the configuration {configuration}", do, usable)


def grow(old: Configuration, new: Configuration, usable: Usable) -> Step:
    """``sqla-tickets grow --add``, on the old configuration."""

    def do(operator: Operator) -> None:
        shards = OnShards(operator.site.checker)
        with (
            operator.pool(old) as before,
            operator.pool(new) as after,
            operator.operations.opening(
                operator, [server.offset for server in after.servers[len(before.servers) :]]
            ),
        ):
            plan = plans.grow(before, SEQUENCES, after, GAP, shards)
            for _ in before.servers:
                try:
                    operator.run(plan)
                except TicketArgumentError as error:  # a table of Flickr's has no metadata
                    if not operator.is_at_work():  # the message is of another day
                        raise
                    _send_advised(before, error)
                else:
                    return
            operator.run(plan)

    return Step("grow --add, on the old configuration", do, None, usable)


def _send_advised(pool: TicketPool, error: TicketArgumentError) -> None:
    """Send the statement to a server that a message says to write first."""
    for server in pool.servers:
        found = re.search(
            rf" on {re.escape(str(server))} has no metadata.*: (ALTER .*)", str(error)
        )
        if found is not None:
            statement = found[1]
            server.do(SINGLES, lambda context: context.cursor.execute(statement))  # noqa: B023  # at once
            return
    raise error


def create_nodes(configuration: Configuration) -> Step:
    """The migration ``op.create_node_table``, by the new configuration."""

    def do(operator: Operator) -> None:
        with operator.pool(configuration) as pool:
            NodeLeases(pool).create_table()

    return Step("create the tables of node numbers that are missing", do)


def finish(new: Configuration, during: Usable) -> Step:
    """``sqla-tickets grow --finish``, on the new configuration."""

    def do(operator: Operator) -> None:
        with operator.pool(new) as pool:
            operator.run(plans.finish(pool, SEQUENCES, QUIET_SECONDS))

    return Step("grow --finish, on the new configuration", do, during, {new: new.servers})


def retire(configuration: Configuration, leaving: int, usable: Usable) -> Step:
    """``sqla-tickets retire --last``."""

    def do(operator: Operator) -> None:
        shards, operations = OnShards(operator.site.checker), operator.operations
        openings = operations.openings
        with operator.pool(configuration) as pool:
            operator.run(plans.retire(pool, SEQUENCES, leaving, shards))
        if operations.openings == openings and not operations.is_opening:
            for server in pool.servers[-leaving:]:
                operator.site.checker.retired.setdefault(server.offset, operator.world.now)

    return Step(f"retire --last {leaving}", do, usable, usable)


def move(source: Configuration, target: Configuration, after: Usable) -> Step:
    """``sqla-tickets move``, one sequence after the other; clients know both pools."""

    def do(operator: Operator) -> None:
        with operator.pool(source) as here, operator.pool(target) as there:
            for name in SEQUENCES:
                operator.run(plans.move(here, name, there))

    return Step(f"move to {target.name}", do, dict.fromkeys(after, ()), after)


def lose(name: str, usable: Usable) -> Step:
    """A server's disk is lost; it comes back from a backup, and its firewall lets no client in."""

    def do(operator: Operator) -> None:
        site = operator.site
        host = site.network.hosts[name]
        if name in site.lost:
            return
        site.lost.add(name)
        _, image = operator.world.random.choice(site.nemesis.images[name])
        host.admits = _is_operator
        host.stop(is_crash=True)
        host.model.restore(image)
        host.start()

    return Step(f"{name} comes back from a backup, before any client connects", do, usable)


def restore(configuration: Configuration, offset: int, margin: int | None) -> Step:
    """``sqla-tickets restore``."""

    def do(operator: Operator) -> None:
        shards = OnShards(operator.site.checker)
        with operator.pool(configuration) as pool:
            for name in SEQUENCES:
                operator.run(plans.restore(pool, name, shards, offset=offset, margin=margin))

    return Step(f"restore --offset {offset} --shard URL", do)


def let_in(name: str, usable: Usable) -> Step:
    """Let clients connect again."""

    def do(operator: Operator) -> None:
        host = operator.site.network.hosts[name]
        host.admits = _everybody

    return Step(f"let clients connect to {name}", do, None, usable)


def _everybody(machine: Machine) -> bool:
    return True


def _is_operator(machine: Machine) -> bool:
    return "operator" in machine.state
