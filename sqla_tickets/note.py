"""The note that stands beside the number: the comment of a ticket table.

A number alone does not say how it may be raised. The note does, so that a pool of another stride, or
a server in another place of the list, is refused before it issues anything. SQLite has no table
comments, but keeps the text of ``CREATE TABLE`` with the SQL comments inside it.
"""

from __future__ import annotations

import json
from typing import Any, Literal, NamedTuple

__all__ = ["LayoutName", "Note", "Tombstone", "TombstoneKind"]

LayoutName = Literal["replace", "counter"]
TombstoneKind = Literal["moved", "opening", "converting", "dropped"]

_MARK = "sqla_tickets "
_TOMBSTONE_MARK = "sqla_tickets tombstone "


class Note(NamedTuple):
    """How the tickets of one table on one server are numbered.

    Attributes:
        layout: how the table looks and is drawn from.
        stride: how many numbers apart two tickets of this server are.
        offset: which residue class the server owns, 1 to ``stride``.
        bits: how large its numbers can grow; not told when it is 64.
    """

    layout: LayoutName
    stride: int
    offset: int
    bits: int = 64

    def __str__(self) -> str:
        told = self._asdict()
        if self.bits == 64:
            del told["bits"]
        return _MARK + json.dumps(told)

    def agrees_with(self, expected: Note) -> bool:
        """Whether the table is numbered as expected, however large its numbers can grow."""
        return self[:3] == expected[:3]

    @classmethod
    def found_in(cls, text: str | None) -> Note | None:
        """Read the note out of a comment; None where there is none, as in a foreign table.

        Raises:
            ValueError: there is a note, and it cannot be read.
        """
        found = _found_in(text, _MARK)
        if found is None:
            return None
        try:
            found.update({key: int(found[key]) for key in ("stride", "offset")})
            return cls(**found)
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"not a note: {text!r}") from error


class Tombstone(NamedTuple):
    """What stands where a sequence may not be drawn from: why, and where it is to be had instead.

    Attributes:
        kind: ``"moved"`` or renamed; ``"opening"``, the target of a move that has not ended;
            ``"converting"`` to another layout; ``"dropped"``.
        pool: the pool that has the sequence, for ``"opening"`` the one that still has it.
        sequence: its name there.
        high_water: no ticket above it was issued from here.
        layout: of the table that was here; None where there was none.
        bits: of the table that was here.
        nonce: tells it from others that say the same, before a table was here and after.
    """

    kind: TombstoneKind
    pool: str
    sequence: str
    high_water: int
    layout: LayoutName | None = None
    bits: int = 64
    nonce: str = ""

    def __str__(self) -> str:
        text = json.dumps(self._asdict()).replace(
            "*/", "*\\/"
        )  # it stands in an SQL comment on SQLite
        return _TOMBSTONE_MARK + text

    @classmethod
    def found_in(cls, text: str | None) -> Tombstone | None:
        """Read the tombstone out of a comment; None where there is none.

        Raises:
            ValueError: there is one, and it cannot be read.
        """
        found = _found_in(text, _TOMBSTONE_MARK)
        if found is None:
            return None
        try:
            return cls(**found)
        except TypeError as error:
            raise ValueError(f"not a tombstone: {text!r}") from error


def _found_in(text: str | None, mark: str) -> dict[str, Any] | None:
    """The JSON object after the mark, if the text has the mark."""
    start = (text or "").find(mark + "{")
    if text is None or start < 0:
        return None
    found, _ = json.JSONDecoder().raw_decode(text, start + len(mark))
    return dict(found)
