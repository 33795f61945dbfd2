# What is protected is hidden from users, not from this package.
# pyright: reportPrivateUsage=false
"""A move or a rename of a sequence: its steps, and the ones that an interrupted one has left.

The steps are tombstones on the target ("not open yet"), tombstones on the source, the largest high water of all, and
ticket tables above it on the target. Buffered blocks of clients stay valid: they were issued, and are below that.
"""

from __future__ import annotations

from collections.abc import Container

from ..dialects import LayoutName
from ..errors import TicketTableError, TicketTableMissing
from ..high_water.sequence_marks import SequenceMarks
from ..tables.inspection import ActiveTable, check_locks
from ..tables.metadata import Tombstone
from . import redirect_paths, tombstones
from .handle import TableHandle, bits_for
from .tombstones import Destination, FoundTable


class Transfer:
    """A move or a rename of a sequence, from one pool and name to another.

    A target is opened only after all sources are closed. So it is inspected first: a target that is open while all
    sources are open existed before this move. If only some are open, they were restored from a backup since. If sources
    and targets lead to each other, this transfer or the one back was interrupted, and is finished now.

    Attributes:
        here: what the sources have.
        there: what the targets have.
        is_repeated: whether a source is closed already.
        has_gone_on: whether the sequence has since left the targets for another place.
        takes_back: whether a transfer from the targets was interrupted before it closed a table, and is taken back.
    """

    def __init__(self, sources: list[TableHandle], targets: list[TableHandle]) -> None:
        self._sources, self._targets = sources, targets
        self._placed: dict[TableHandle, Tombstone] = {}
        self.there = {handle: handle.inspect() for handle in targets}
        self.here = {handle: handle.inspect() for handle in sources}
        arrived = [
            state
            for state in self.there.values()
            if isinstance(state, ActiveTable) or _leads_to(state, self.source)
        ]
        left = [state for state in self.there.values() if isinstance(state, Tombstone)]
        self.is_repeated = any(isinstance(state, Tombstone) for state in self.here.values())
        self.has_gone_on = self.is_repeated and bool(left) and not arrived
        self.takes_back = (
            any(_leads_to(state, targets[0], ("opening",)) for state in self.here.values())
            and not any(isinstance(state, ActiveTable) for state in self.here.values())
            and all(isinstance(state, ActiveTable) for state in self.there.values())
        )

    @property
    def source(self) -> TableHandle:
        """The first source; all have the same pool and name."""
        return self._sources[0]

    def is_to_be_done(self) -> bool:
        """Whether something is left to do; raises if it cannot be done.

        Raises:
            TicketTableError: the source does not exist, or the target exists already.
        """
        source, target = self._sources[0], self._targets[0]
        for handle, state in self.here.items():
            if state is None or (isinstance(state, Tombstone) and state.end):
                if self.takes_back:
                    continue
                raise TicketTableMissing(
                    f"there is no ticket table {handle}: check the name, or create it first"
                )
            if isinstance(state, Tombstone) and not _leads_to(state, target):
                raise handle.closed_error(state)
        if self.takes_back:
            return True
        closed = [state for state in self.here.values() if isinstance(state, Tombstone)]
        if len(closed) == len(self.here):
            is_interrupted = any(_leads_to(state, source) for state in self.there.values())
            for handle, state in self.there.items():
                if state is None and not is_interrupted:
                    raise self._lost(handle, max(state.high_water for state in closed))
            return is_interrupted
        for handle, state in self.there.items():
            if isinstance(state, ActiveTable) and not self.is_repeated:
                raise TicketTableError(
                    f"the ticket table {handle} exists already: run this again if another move is running. Else choose another"
                    " name, or drop the table if no client draws from it"
                )
            if not isinstance(state, Tombstone) or _leads_to(state, source):
                continue
            if state.kind in ("opening", "converting"):
                raise handle.closed_error(state)
        return True

    def _lost(self, handle: TableHandle, issued: int) -> TicketTableMissing:
        """The error of a target whose table is gone."""
        advice = "create it again"
        if not any(isinstance(state, ActiveTable) for state in self.there.values()):
            advice += (
                f" with a start above {issued} and above every id on the shards, as no other server shows how far the "
                "sequence has come"
            )
        return TicketTableMissing(f"there is no ticket table {handle}: {advice}")

    def refuse_to_lock(self) -> None:
        """Check that every target can have the layout, before the source is closed.

        Raises:
            TicketTableError: a target is in a cluster, which Flickr's layout does not suit.
        """
        layouts: list[LayoutName] = [
            state.layout for state in self.here.values() if isinstance(state, ActiveTable)
        ]
        for target in self._targets if layouts else ():
            default = target.server.context.dialect.layouts[0]
            target.run(check_locks, target.layout_for(layouts[0]) or default)

    def finish(
        self, is_to_be_done: bool, before: SequenceMarks, after: SequenceMarks, margin: int
    ) -> None:
        """Do the steps that are left.

        Args:
            is_to_be_done: the answer of the method of that name.
            before: the marks of the sources.
            after: the marks of the targets.
            margin: how many numbers above a mark may have been issued.
        """
        if self.takes_back:
            moved = Destination("moved", self._targets[0].pool, self._targets[0].sequence)
            for handle, state in self.here.items():
                _ = handle.place_tombstone(moved, state)
            return
        if is_to_be_done:
            known = after.prepare(opens_above=0)
            self.claim_targets()
            self.run(known, margin, before, after)
        self.raise_marks(before)

    def raise_marks(self, marks: SequenceMarks) -> None:
        """Raise the marks of the closed sources, so that one that is restored from an older backup is refused."""
        states = [handle.inspect() for handle in self._sources]
        closed = [state for state in states if isinstance(state, Tombstone)]
        if len(closed) == len(states):  # else another migration has opened one
            above = max(state.high_water for state in closed) + self.source.stride
            marks.write_raised(above, [handle.server for handle in self._sources])

    def claim_targets(self) -> None:
        """Leave tombstones on the targets, so that nobody creates a table there before the sources are closed."""
        opening = Destination("opening", self.source.pool, self.source.sequence)
        self._placed = {
            handle: handle.place_tombstone(opening, state)
            for handle, state in self.there.items()
            if not isinstance(state, ActiveTable) and not self.has_gone_on
        }

    def run(self, known: int, margin: int, before: SequenceMarks, after: SequenceMarks) -> None:
        """Do the remaining steps, after `claim_targets`.

        Args:
            known: the largest mark of an earlier generation of the target's name.
            margin: how many numbers above a mark may have been issued.
            before: the marks of the sources.
            after: the marks of the targets.
        """
        source, target = self._sources[0], self._targets[0]
        # a source may have been set back, and only its peers know
        issued = [before.issued_before(handle.server, handle.stride) for handle in self._sources]
        closed = [
            handle.close("moved", target.pool, target.sequence, state)
            for handle, state in self.here.items()
        ]
        everywhere = (*closed, *self._placed.values())
        high = max(tombstone.high_water for tombstone in everywhere)
        unseen = [
            mark
            for mark, tombstone in zip(issued, closed, strict=True)
            if mark > tombstone.high_water
        ]
        unseen += [known] if known > high else []
        if any(not tombstone.layout for tombstone in closed):  # a source was lost as it moved
            unseen.append(high)
        high = max([high, *(mark + margin for mark in unseen)])
        last = next((tombstone for tombstone in everywhere if tombstone.layout), closed[0])
        path = redirect_paths.extended(
            closed[0].path, (source.pool, source.sequence), (target.pool, target.sequence)
        )
        stub = tombstones.stub_column(target.stride, *everywhere)
        for handle, tombstone in self._placed.items():
            layout, bits = handle.layout_for(last.layout), bits_for(last, high)
            element = handle.element(high + 1, layout=layout, bits=bits, stub=stub, path=path)
            handle.open(element, tombstone)
        for handle, state in self.there.items():
            if isinstance(state, ActiveTable):
                handle.raise_above(high)
        # a server may be lost before anybody has drawn from it; before they open, another run would add a margin
        after.write_raised(high, [handle.server for handle in self._placed])


def _leads_to(
    state: FoundTable, handle: TableHandle, kinds: Container[str] = ("moved", "opening")
) -> bool:
    return (
        isinstance(state, Tombstone)
        and state.kind in kinds
        and (state.pool, state.sequence) == (handle.pool, handle.sequence)
    )
