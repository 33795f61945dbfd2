"""What migrations do to the ticket tables of a sequence, on all servers of a pool or of two.

Each function looks at every server before it changes one, and does only what is still to be done. So
whatever has stopped it, a lost connection or a killed process, it is repaired by calling it again.

A move has four steps: tombstones on the target ("not open yet"), tombstones on the source, the
largest high water of all, ticket tables above it on the target. Blocks that clients have in hand stay
valid: they were issued, and lie below.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from sqlalchemy.engine.interfaces import DBAPICursor

from . import tombstones
from .engines import place_of
from .errors import TicketArgumentError, TicketError, TicketTableError, TicketTableMissing
from .note import LayoutName, Tombstone, TombstoneKind
from .place import Place
from .statements import CreateTicketTable, default_layout, largest_ticket, seed
from .tables import check_locks
from .tombstones import Destination, Live, State

if TYPE_CHECKING:
    from .pool import TicketPool
    from .server import TicketServer

__all__ = ["convert", "create", "drop", "move", "names", "raise_above", "rename", "survey"]

log = logging.getLogger(__name__)
T = TypeVar("T")

#: How many numbers are left free above a high water that may have been read too early.
MARGIN: Final = 10_000


class _Site(NamedTuple):
    """A sequence under one name on one server.

    Attributes:
        server: the ticket server.
        pool: the name of its pool.
        sequence: the name of the sequence there.
        stride: the pool's.
    """

    server: TicketServer
    pool: str
    sequence: str
    stride: int

    def look(self) -> State:
        return self._do(tombstones.look)

    def refuse_to_lock(self, layout: LayoutName) -> None:
        self._do(lambda cursor, place, name: check_locks(cursor, place, name, layout))

    def bury(self, kind: TombstoneKind, pool: str, sequence: str, seen: State = None) -> Tombstone:
        to = Destination(kind, pool, sequence)
        return self._do(lambda cursor, place, name: tombstones.bury(cursor, place, name, to, seen))

    def erect(self, kind: TombstoneKind, pool: str, sequence: str, seen: State) -> Tombstone:
        to = Destination(kind, pool, sequence)
        return self._do(lambda cursor, place, name: tombstones.erect(cursor, place, name, to, seen))

    def open(self, element: CreateTicketTable, expected: Tombstone) -> None:
        self._do(lambda cursor, place, _: tombstones.open_(cursor, place, element, expected))

    def raise_above(self, above: int) -> None:
        self._do(lambda cursor, place, name: tombstones.raise_above(cursor, place, name, above))

    def element(
        self,
        start: int,
        *,
        layout: LayoutName | None = None,
        bits: int = 64,
        engine: str = "InnoDB",
    ) -> CreateTicketTable:
        return CreateTicketTable(
            self.sequence,
            layout=layout,
            stride=self.stride,
            offset=self.server.offset or 0,
            start=start,
            bits=bits,
            engine=engine,
        )

    def _do(self, work: Callable[[DBAPICursor, Place, str], T]) -> T:
        name = self.sequence
        return self.server.do(name, lambda cursor, place: work(cursor, place, name))

    def __str__(self) -> str:
        return f"{self.sequence!r} on {self.server}"


def _sites(pool: TicketPool, name: str) -> list[_Site]:
    return [_Site(server, pool.name, name, pool.stride) for server in pool.servers]


def survey(pool: TicketPool, name: str) -> dict[TicketServer, State | TicketError]:
    """What each server of the pool has under that name, or why that is not known."""
    found: dict[TicketServer, State | TicketError] = {}
    for site in _sites(pool, name):
        try:
            found[site.server] = site.look()
        except TicketError as error:
            found[site.server] = error
    return found


def names(pool: TicketPool) -> set[str]:
    """The sequences whose tables carry a note on any server that answers."""
    found: set[str] = set()
    for server in pool.servers:
        try:
            found.update(server.do("", tombstones.names))
        except TicketError as error:
            log.warning("the ticket tables on %s are not known: %s", server, error)
    return found


# -- create, raise, drop


def create(
    pool: TicketPool,
    name: str,
    *,
    layout: LayoutName | None = None,
    start: int | None = None,
    above: int = 0,
    bits: int = 64,
    engine: str = "InnoDB",
) -> bool:
    """Create the sequence's table on every server; those that are there are verified.

    Args:
        pool: the pool of the servers.
        name: of the sequence.
        layout: None for the server's own.
        start: no ticket of a new table is below it, and a table that is there may not be.
        above: no ticket from now on is this number or below: a table that is there is raised.
        bits: 64 or 32.
        engine: the storage engine, on MySQL and MariaDB.

    Returns:
        False when the sequence has moved away or been renamed since, and nothing was done.

    Raises:
        TicketError: a server failed, or has another table of that name. Call it again when that is
            mended: what was done is kept.
    """
    sites = _sites(pool, name)
    states = {site: site.look() for site in sites}
    if _is_elsewhere(name, states):
        return False
    dropped = [s.high_water for s in states.values() if isinstance(s, Tombstone)]
    first = max(start or 1, above + 1, *(high + 1 for high in dropped))
    lost = max(_lost_below(states), _lost_by_marks(pool, name, states, first))
    if lost >= first:
        log.warning(
            "%r is missing on a server of the pool %r, and others stand, or know it, at %d: it begins"
            " above that. Raise it if the server had issued more before it lost its table.",
            name,
            pool.name,
            lost - MARGIN,
        )
    for site, state in states.items():
        if isinstance(state, Tombstone) and state.kind == "converting":
            raise _in_the_way(site, state)
        if isinstance(state, Live):
            site.server.create(site.element(first, layout=layout, bits=bits, engine=engine))
            _check_start(site, state, start)
    for site, state in states.items():
        element = site.element(max(first, lost + 1), layout=layout, bits=bits, engine=engine)
        if state is None:
            site.server.create(element)
        elif isinstance(state, Tombstone):
            site.open(element, state)
        # somebody may have created a new one meanwhile, and lower
        least = above if isinstance(state, Live) else element.start - 1
        if least:
            site.raise_above(least)
    if above:
        pool.marks.raised(name, above)
    return True


def _lost_by_marks(pool: TicketPool, name: str, states: Mapping[_Site, State], first: int) -> int:
    """Where a table that was lost may begin, by what the servers know of each other; else 0."""
    known = pool.marks.prepare(name)
    is_lost = any(not isinstance(state, Live) for state in states.values())
    return known + MARGIN if is_lost and known >= first else 0


def _lost_below(states: Mapping[_Site, State]) -> int:
    """Where a table that is missing on some servers may begin, by what the others have; else 0."""
    numbers = [
        (state.number or 0 if isinstance(state, Live) else state.high_water, site.stride)
        for site, state in states.items()
        if state is not None
    ]
    fresh = all(number <= stride for number, stride in numbers)
    return 0 if fresh or None not in states.values() else max(numbers)[0] + MARGIN


def _check_start(site: _Site, state: Live, start: int | None) -> None:
    if start is None or state.number is None:
        return
    if state.number < seed(start, site.stride, site.server.offset or 0):
        raise TicketTableError(
            f"the ticket table {site} is there and stands at {state.number}, below start={start}:"
            f" raise it above {start - 1}, or leave start out"
        )


def _is_elsewhere(name: str, states: Mapping[_Site, State], level: int = logging.INFO) -> bool:
    """Whether the sequence has moved away or been renamed, as a run for another shard finds.

    Raises:
        TicketTableError: some of it has, and some has not.
    """
    for site, state in states.items():
        if isinstance(state, Tombstone) and state.kind in ("moved", "opening"):
            if any(isinstance(each, Live) for each in states.values()):
                raise _in_the_way(site, state)
            where = f"{state.sequence!r} of the pool {state.pool!r}"
            log.log(level, "nothing is done about %r: it is %s now", name, where)
            return True
    return False


def _in_the_way(site: _Site, grave: Tombstone) -> TicketTableError:
    where = f"{grave.sequence!r} of the pool {grave.pool!r}"
    what, advice = {
        "moved": (f"has gone to {where}", "start from there or, if that migration broke off, "),
        "opening": (f"is the target of a move of {where} that has not ended", ""),
        "converting": ("is being converted to another layout", ""),
        "dropped": ("was dropped", "create it again or, if that migration broke off, "),
    }[grave.kind]
    return TicketTableError(f"the ticket table {site} {what}: {advice}run that migration again")


def raise_above(pool: TicketPool, name: str, above: int) -> None:
    """See that every server's next ticket is larger than ``above``; none is ever lowered.

    Raises:
        TicketArgumentError: there is no such ticket.
        TicketError: a server failed, or has no table that can be drawn from.
    """
    if not 0 <= above < largest_ticket(64):
        raise TicketArgumentError(f"raise {name!r} above {above!r}: a ticket is 1 to 2**63 - 1")
    for site in _sites(pool, name):
        site.raise_above(above)
    pool.marks.raised(name, above)


def drop(pool: TicketPool, name: str) -> None:
    """Put a tombstone in the place of the table on every server: no ticket is issued any more.

    The high water stays, and `create` begins above it.

    Raises:
        TicketError: a server failed. Call it again when that is mended.
    """
    states = {site: site.look() for site in _sites(pool, name)}
    if _is_elsewhere(name, states, logging.WARNING):
        return  # a table that is made of such a tombstone later would begin too low
    for site, state in states.items():
        if state is not None:
            site.bury("dropped", pool.name, name, state)


# -- convert, rename, move


def convert(pool: TicketPool, name: str, layout: LayoutName) -> None:
    """Give the table on every server another layout; its tickets go on above the old ones.

    One server at a time: clients draw from the others.

    Raises:
        TicketArgumentError: a server cannot have this layout.
        TicketTableError: nor can one that is in a cluster.
        TicketError: a server failed, or has no table. Call it again when that is mended.
    """
    sites = _sites(pool, name)
    for site in sites:
        dialect = site.server.engine.dialect.name
        if layout not in ("replace", "counter") or (
            layout == "replace" and default_layout(dialect) != "replace"
        ):
            raise TicketArgumentError(f"layout={layout!r}: {site.server} has no such layout")
    states = {site: site.look() for site in sites}
    if _is_elsewhere(name, states):
        return
    for site, state in states.items():
        if state is None:
            raise TicketTableMissing(f"there is no ticket table {site}: create it first")
        if isinstance(state, Tombstone) and state.kind != "converting":
            raise _in_the_way(site, state)
    for site in sites:
        site.refuse_to_lock(layout)
    for site, state in states.items():
        if isinstance(state, Live) and state.layout == layout:
            continue
        grave = site.bury("converting", pool.name, name)
        start, bits = grave.high_water + 1, _bits(grave, grave.high_water)
        site.open(site.element(start, layout=layout, bits=bits), grave)


def rename(pool: TicketPool, old: str, new: str) -> None:
    """Give a sequence another name; who draws by the old one is led to the new one.

    Raises:
        TicketError: a server failed, has no table ``old``, or one of either name. Call it again when
            that is mended.
    """
    if old == new:
        raise TicketArgumentError(f"rename {old!r}: the new name is the old one")
    transfers = [
        _Transfer([source], [target])
        for source, target in zip(_sites(pool, old), _sites(pool, new), strict=True)
    ]
    known = pool.marks.prepare(new)
    for transfer in [transfer for transfer in transfers if transfer.is_to_be_done()]:
        transfer.run(known)


def move(source: TicketPool, name: str, target: TicketPool) -> None:
    """Move a sequence to the servers of another pool, while clients draw from it.

    Raises:
        TicketArgumentError: the pools share a server, or differ in their stride.
        TicketTableError: a server of the target is in a cluster, where the table could not be drawn from.
        TicketError: a server failed, the source has no table, or the target has one. Call it again
            when that is mended.
    """
    if source.stride != target.stride:
        raise TicketArgumentError(
            f"{name!r} cannot move from the pool {source.name!r} with a stride of {source.stride} to"
            f" {target.name!r} with {target.stride}: give both the same stride"
        )
    places = [{place_of(server.engine) for server in pool.servers} for pool in (source, target)]
    if source is target or source.name == target.name or places[0] & places[1]:
        raise TicketArgumentError(
            f"{name!r} cannot move from the pool {source.name!r} to {target.name!r}: they share"
            " servers, or are one"
        )
    transfer = _Transfer(_sites(source, name), _sites(target, name))
    if transfer.is_to_be_done():
        transfer.refuse_to_lock()
        transfer.run(target.marks.prepare(name))


class _Transfer:
    """From some servers and a name to some servers and a name, one of which is another.

    A target is opened only after all sources are closed; so it is looked at first, and a target that
    is found open beside a source that is found open was there before this move. When sources and
    targets lead to each other, this transfer or the one back broke off: it is carried out now.
    """

    def __init__(self, sources: list[_Site], targets: list[_Site]) -> None:
        self._sources, self._targets = sources, targets
        self._there = {site: site.look() for site in targets}
        self._here = {site: site.look() for site in sources}

    def is_to_be_done(self) -> bool:
        """Whether something is left to do, and nothing stands against it.

        Raises:
            TicketTableError: the source is not there, or the target is there already.
        """
        source, target = self._sources[0], self._targets[0]
        for site, state in self._here.items():
            if state is None or (isinstance(state, Tombstone) and state.kind == "dropped"):
                raise TicketTableMissing(f"there is no ticket table {site}: create it first")
            if isinstance(state, Tombstone) and not _leads_to(state, target):
                raise _in_the_way(site, state)
        if all(isinstance(state, Tombstone) for state in self._here.values()):
            for site, state in self._there.items():
                if state is None:
                    raise TicketTableMissing(f"there is no ticket table {site}: create it again")
            return any(_leads_to(state, source) for state in self._there.values())
        for site, state in self._there.items():
            if isinstance(state, Live):
                raise TicketTableError(
                    f"there is a ticket table {site} already: drop it, or choose another name"
                )
            if state is None or _leads_to(state, source):
                continue
            if state.kind in ("opening", "converting"):
                raise _in_the_way(site, state)
        return True

    def refuse_to_lock(self) -> None:
        """See that every target can have the layout, while there is still a source to draw from.

        Raises:
            TicketTableError: one is in a cluster that Flickr's layout does not suit.
        """
        layouts: list[LayoutName] = [
            state.layout for state in self._here.values() if isinstance(state, Live)
        ]
        for target in self._targets if layouts else ():
            own = default_layout(target.server.engine.dialect.name)
            target.refuse_to_lock(layouts[0] if own == "replace" else own)

    def run(self, known: int) -> None:
        """Do what is left to do.

        Args:
            known: the largest mark of a former sequence of the target's name.
        """
        source, target = self._sources[0], self._targets[0]
        graves = {
            site: site.erect("opening", source.pool, source.sequence, state)
            for site, state in self._there.items()
            if not isinstance(state, Live)
        }
        closed = [
            site.bury("moved", target.pool, target.sequence, state)
            for site, state in self._here.items()
        ]
        everywhere = (*closed, *graves.values())
        high = max(grave.high_water for grave in everywhere)
        high = high if known <= high else known + MARGIN
        last = next((grave for grave in everywhere if grave.layout), closed[0])
        for site, grave in graves.items():
            layout, bits = _layout_for(site, last), _bits(last, high)
            site.open(site.element(high + 1, layout=layout, bits=bits), grave)


def _leads_to(state: State, site: _Site) -> bool:
    return (
        isinstance(state, Tombstone)
        and state.kind in ("moved", "opening")
        and (state.pool, state.sequence) == (site.pool, site.sequence)
    )


def _bits(grave: Tombstone, high_water: int) -> int:
    """32 where the table had 32 and there is room left; else 64."""
    return 32 if grave.bits == 32 and high_water + MARGIN < largest_ticket(32) else 64


def _layout_for(site: _Site, grave: Tombstone) -> LayoutName | None:
    """The layout that the sequence had, where the server can have it."""
    own = default_layout(site.server.engine.dialect.name)
    return None if grave.layout == "replace" and own != "replace" else grave.layout
