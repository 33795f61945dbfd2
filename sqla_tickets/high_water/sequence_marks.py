"""The marks of one sequence on all servers, for the operations that create, raise or drop its tables."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from ..concurrency import random
from ..dialects import ErrorKind
from ..draw.access import ServerAccess
from ..errors import TicketServerError, TicketTableError
from ..tables.new_table import seed
from .credible import Shown, is_credible, is_far, refutation
from .peer import Peer
from .statements import JOINED, Mark, largest_of_other_strides

log = logging.getLogger("sqla_tickets.high_water.service")


class VerifiedMarks(NamedTuple):
    """The marks of one sequence that servers keep.

    Attributes:
        largest: the largest credible mark; 0 if there is none.
        refuted: the marks that cannot be true, each with the server that keeps it, and the message about it.
        absent: the largest marks of servers that the pool does not have, and that have not retired, by offset.
        retired: the number that no ticket of a server that has retired is above, by offset.
    """

    largest: int
    refuted: list[tuple[ServerAccess, int, str]]
    absent: dict[int, int]
    retired: dict[int, int]


class SequenceMarks:
    """The marks of one sequence on all servers of a pool.

    It waits for each server for as long as a draw does, since no draw waits for these calls.

    Args:
        peers: the servers of the pool.
        stride: the pool's stride.
        name: the sequence's name.
    """

    def __init__(self, peers: Sequence[Peer], stride: int, name: str) -> None:
        self._peers, self._stride, self._name = peers, stride, name

    def prepare(self, *, opens_above: int | None = None) -> int:
        """Ensure that every server can keep marks of the sequence, and return the largest credible mark.

        From here on, late writes about an earlier generation of that name are ignored, and no server of the pool counts
        as retired. So a table that is opened next is missed by a configuration that lacks its server.

        Args:
            opens_above: the number above which a table is to be opened, at least; None when none is opened.

        Raises:
            TicketServerError: a server does not show its marks, so that it is unknown where to open the table; or one
                still says that a server has retired.
            TicketTableError: a mark above it is not credible.
        """
        token = random.getrandbits(62) + 1  # distinguishes the generations of a name
        rows = [Mark(self._name, self._stride, peer.offset, token, 0) for peer in self._peers]
        prepared = {peer: peer.store.prepare(self._name, rows) for peer in self._peers}
        for peer, kept in prepared.items():
            if kept is None and opens_above is not None:
                raise self._not_shown(peer)
            if any(mark.offset < JOINED for mark in kept or ()):
                self._end_retirements(peer, {each.offset for each in self._peers})
        found = self._verified({peer: kept or [] for peer, kept in prepared.items()})
        for _, number, text in found.refuted:
            if opens_above is not None and number > opens_above:
                raise TicketTableError(text)
            log.error("%s", text)
        return found.largest

    def _end_retirements(self, peer: Peer, offsets: Collection[int]) -> None:
        if not peer.store.end_retirements(self._name, offsets):
            raise self._not_recorded(peer)

    def _not_recorded(self, peer: Peer) -> TicketServerError:
        return TicketServerError(
            f"{peer} did not record which servers of {self._name!r} have retired: check that it is running and that its user "
            "may write its table of marks, and run this again"
        )

    def verified(self) -> VerifiedMarks:
        """The marks, as far as servers answer. Changes nothing."""
        return self._verified(self._kept())

    def _kept(self) -> dict[Peer, list[Mark]]:
        return {
            peer: [Mark(self._name, self._stride, offset, 0, n) for offset, n in marks.items()]
            for peer in self._peers
            if peer.server.breaker.is_closed and (marks := peer.store.kept(self._name))
        }

    def _verified(self, kept: Mapping[Peer, list[Mark]]) -> VerifiedMarks:
        marks = {peer: [m for m in rows if m.offset > JOINED] for peer, rows in kept.items()}
        numbers = [mark.number for rows in marks.values() for mark in rows]
        rows = [row for each in kept.values() for row in each]
        if not any(is_far(number, self._stride, 0) for number in numbers):
            known = max(numbers, default=0)
            return VerifiedMarks(known, [], *self._of_others(rows, known))
        shown: Shown = {peer.server: peer.store.shown(self._name) for peer in self._peers}
        known = 0
        refuted: list[tuple[ServerAccess, int, str]] = []
        servers = {peer.offset: peer.server for peer in self._peers}
        for peer, rows in marks.items():
            others = [m.number for other in marks if other is not peer for m in marks[other]]
            for mark in rows:
                about = servers.get(mark.offset)
                own = [n for n in shown.get(about or peer.server, []) if n is not None]
                if is_credible(
                    mark.number,
                    self._stride,
                    own=max(own, default=0),
                    peer=peer.server,
                    shown=shown,
                    others=others,
                ):
                    known = max(known, mark.number)
                elif about is not None:
                    text = refutation(peer.server, about, self._name, mark.number)
                    refuted.append((peer.server, mark.number, text))
        return VerifiedMarks(known, refuted, *self._of_others(rows, known))

    def _of_others(self, rows: Iterable[Mark], known: int) -> tuple[dict[int, int], dict[int, int]]:
        """``absent`` and ``retired`` of the `VerifiedMarks`.

        A number that cannot be true counts as 0, as the server may issue tickets all the same.

        Args:
            rows: the stored rows.
            known: the largest credible mark.
        """
        largest: dict[int, int] = {}
        for row in rows:
            number = 0 if is_far(row.number, self._stride, known) else row.number
            largest[row.offset] = max(number, largest.get(row.offset, 0))
        own = {peer.offset for peer in self._peers}
        marks = {offset: largest[offset] for offset in sorted(largest) if offset > JOINED}
        retired = {o: largest[-o] for o, number in marks.items() if largest.get(-o, -1) >= number}
        absent = {o: number for o, number in marks.items() if o not in own and o not in retired}
        return absent, retired

    def kept_by(self, server: ServerAccess) -> dict[int, int] | None:
        """The marks that a server keeps, by its peers' offsets.

        Returns:
            None when the server does not answer; an empty mapping where it keeps no marks.
        """
        return next(p.store.kept(self._name) for p in self._peers if p.server is server)

    def of_other_strides(self) -> int | None:
        """The largest mark of the sequence that was written with another stride.

        Returns:
            0 if the sequence was dropped since, or has no such mark; None if the marks cannot be read.
        """
        statement = largest_of_other_strides(self._stride, self._name)
        found = [peer.store.number(statement) for peer in self._peers]
        return max((number for number in found if number is not None), default=None)

    def issued_before(self, server: ServerAccess, stride: int) -> int:
        """The largest mark that peers keep of a server, by its earlier or its present stride.

        Args:
            server: the server that is to begin with another stride.
            stride: the stride that it had.

        Raises:
            TicketServerError: a peer does not answer.
        """
        known = [
            self._kept_with(peer, known_by).get(as_offset, 0)
            for known_by, as_offset in (
                (stride, (server.offset - 1) % stride + 1),
                (self._stride, server.offset),
            )
            for peer in self._peers
            if peer.server is not server
        ]
        return max(known, default=0)

    def _kept_with(self, peer: Peer, stride: int) -> dict[int, int]:
        kept = peer.store.kept(self._name, stride)
        if kept is None:
            raise self._not_shown(peer)
        return kept

    def _not_shown(self, peer: Peer) -> TicketServerError:
        return TicketServerError(
            f"{peer} did not show its high-water marks of {self._name!r}, above which the table must open: check that it"
            " is running, and run this again"
        )

    def write_retired(self, offsets: Collection[int], above: int) -> None:
        """Record on all other servers that those with some offsets issue no ticket of the sequence any more.

        Args:
            offsets: their offsets.
            above: the largest number that they can have issued.

        Raises:
            TicketServerError: a server did not store it.
        """
        for peer in self._peers:
            if peer.offset in offsets:
                continue
            missing = self._not_retired(peer, offsets, above)
            if missing:
                # a row of an earlier generation takes no new number
                self._end_retirements(peer, {row.offset for row in missing})
                retired = [row._replace(offset=-row.offset, number=above) for row in missing]
                peer.store.write(retired, patient=True)
            if missing and self._not_retired(peer, offsets, above):
                raise self._not_recorded(peer)

    def _not_retired(self, peer: Peer, offsets: Collection[int], above: int) -> list[Mark]:
        """The marks of servers with some offsets that a server keeps without a retirement above a number."""
        rows = peer.store.rows(self._name)
        if rows is None:
            raise self._not_recorded(peer)
        retired = {row.offset for row in rows if row.number >= above}
        return [row for row in rows if row.offset in offsets and -row.offset not in retired]

    def end_smaller_strides(self) -> None:
        """Let clients of an earlier stride find nothing that they may issue, even from a server that is set back."""
        above = self.read_joined()
        if above:
            for peer in self._peers:
                peer.store.raise_smaller_strides(self._name, above)

    def read_joined(self) -> int:
        """Servers that joined with a larger stride issue only numbers above this one; 0 if unknown."""
        kept = [peer.store.kept(self._name) or {} for peer in self._peers]
        return min((marks[JOINED] for marks in kept if JOINED in marks), default=0)

    def larger_joined(self) -> dict[ServerAccess, int | None]:
        """Where servers with a larger stride joined, as each server shows it: 0 if none has, None if unknown."""
        return {
            server: None if marks is None else min((m.number for m in marks), default=0)
            for server, marks in self._larger_joins().items()
        }

    def larger_strides(self) -> set[int]:
        """The larger strides with which servers have ever joined, as far as servers answer."""
        return {mark.stride for marks in self._larger_joins().values() for mark in marks or []}

    def _larger_joins(self) -> dict[ServerAccess, list[Mark] | None]:
        """The rows that say where servers with a larger stride joined, by server; None if unknown."""
        found: dict[ServerAccess, list[Mark] | None] = {}
        for peer in self._peers:
            is_up = peer.server.breaker.is_closed
            answer = peer.store.read([self._name], patient=True) if is_up else None
            marks = answer[1] if answer else []
            larger = [m for m in marks if m.offset == JOINED and m.stride > self._stride]
            found[peer.server] = larger if answer else None
        return found

    def write_joined(self, number: int) -> None:
        """Record the number above which joined servers begin, for the command that finishes the growth."""
        for peer in self._peers:
            mark = Mark(self._name, self._stride, JOINED, 0, number)
            peer.store.write([mark], patient=True)

    def write_raised(
        self, above: int, servers: Collection[ServerAccess] | None = None
    ) -> dict[ServerAccess, ErrorKind]:
        """Write marks, for some servers or for all: every later ticket must be larger than ``above``.

        Returns:
            The servers that keep marks and did not store these, with the reason.
        """
        refused: dict[ServerAccess, ErrorKind] = {}
        for peer in self._peers:
            tables = [
                (issuer, issuer.server.table(self._name))
                for issuer in self._peers
                if issuer is not peer and (servers is None or issuer.server in servers)
            ]
            are_known = peer.read(tables, patient=True)
            raised = [(t, seed(above + 1, self._stride, t.offset)) for _, t in tables]
            numbers = [(table, number) for table, number in raised if peer.stored(table) < number]
            sent = peer.write(numbers, patient=True)
            error = peer.store.write_error
            if are_known and len(sent) < len(numbers) and error is not None:
                refused[peer.server] = error
        return refused
