"""A region: data centres, and what lies between them."""

from __future__ import annotations

from collections import Counter
from typing import Final, Literal

from ..network import Channel, Host, Link, Network
from ..world import Machine, World

__all__ = ["ROUND_TRIPS", "Distance", "Region"]

Distance = Literal["one machine", "region", "continent"]

#: Milliseconds of a round trip within a data centre and between two, the least and the most.
ROUND_TRIPS: Final[dict[Distance, tuple[tuple[float, float], tuple[float, float]]]] = {
    "one machine": ((0.02, 0.04), (0.02, 0.04)),
    "region": ((0.2, 0.5), (1.0, 2.0)),
    "continent": ((0.2, 0.5), (30.0, 40.0)),
}
#: How likely a message is lost, and sent again after 0.2 s.
LOSS: Final = 1e-6
#: A message travels for up to half as long again as its link says: a quarter on average.
USUAL: Final = 1.25


class Region(Network):
    """A network in which each machine stands in a data centre.

    Args:
        world: that it is part of.
        distance: of the data centres.

    Attributes:
        places: the number of each machine's data centre, by its name.
        attempts: how many connections were asked for, whether a server listened or not, by its name.
    """

    def __init__(self, world: World, distance: Distance) -> None:
        super().__init__(world)
        self.loss = LOSS
        self.places: dict[str, int] = {}
        self.attempts: Counter[str] = Counter()
        self._near, self._far = ROUND_TRIPS[distance]

    def connect(
        self, host: str, port: int | None, request: object, timeout: float | None = None
    ) -> Channel:
        self.attempts[host] += 1
        return super().connect(host, port, request, timeout)

    def link(self, machine: Machine, host: Host) -> Link:
        is_new = (machine.number, host.name) not in self._links
        link = super().link(machine, host)
        if is_new:
            is_near = self.places.get(machine.name) == self.places.get(host.name)
            least, most = self._near if is_near else self._far
            round_trip = self.world.random.uniform(least, most) / 1000
            link.seconds = round_trip / 2 / USUAL
        return link

    def lose(self, zone: int) -> None:
        """Let a data centre vanish: its servers and its clients, without a word to the others."""
        for host in self.hosts.values():
            if self.places[host.name] == zone:
                host.stop(is_crash=True, is_reachable=False)
        for machine in self.world.machines:
            if self.places.get(machine.name) == zone and machine.name not in self.hosts:
                machine.die()
