"""The metadata of a ticket table, which is its comment.

A number alone does not say how it is raised. The metadata does, so a pool with another stride, or a server at another
position, is refused before it issues anything. SQLite has no table comments, but keeps the text of ``CREATE TABLE``
with the SQL comments inside it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final, Literal, NamedTuple, TypeAlias, cast, get_args

from ..arguments import name_of_sequence
from ..dialects import LONGEST_COMMENT, LayoutName
from ..errors import TicketArgumentError

TombstoneKind = Literal["moved", "opening", "converting", "dropped", "retired"]

#: The name of a pool, and that of a sequence there.
Step: TypeAlias = "tuple[str, str]"
#: A sequence's former pools and names, and the present ones.
Path: TypeAlias = "tuple[Step, ...]"

_MARK = "sqla_tickets "
_TOMBSTONE_MARK = "sqla_tickets tombstone "


class TableMetadata(NamedTuple):
    """The numbering of the tickets of one table on one server.

    Attributes:
        layout: the table's columns and draw statements.
        stride: how many numbers apart two tickets of this server are.
        offset: which residue class the server owns, 1 to ``stride``.
        bits: the size of its numbers; omitted when it is 64.
        path: the sequence's former pools and names, the present ones last; omitted when it was never renamed or
            moved. A pool has the name that it had at that time.
    """

    layout: LayoutName
    stride: int
    offset: int
    bits: int = 64
    path: Path = ()

    def __str__(self) -> str:
        told = self._asdict()
        if self.bits == 64:
            del told["bits"]
        return _MARK + _written(told)

    @property
    def numbering(self) -> str:
        """What tables are compared by, in words."""
        return f"the {self.layout} layout with offset {self.offset} and stride {self.stride}"

    def matches(self, expected: TableMetadata) -> bool:
        """Whether the table's layout, stride and offset are as expected; the bits may differ."""
        return self[:3] == expected[:3]

    @classmethod
    def parse(cls, text: str | None) -> TableMetadata | None:
        """Read the metadata in a comment; None where there is none, as in a foreign table.

        Raises:
            ValueError: there is metadata, but it cannot be read.
        """
        if text is not None and len(text) > LONGEST_COMMENT:
            raise ValueError(
                f"the comment with the metadata is too long: expected at most {LONGEST_COMMENT} characters"
            )
        found = _parse(text, _MARK, _METADATA)
        metadata = None if found is None else cls(**found)
        if metadata is not None and metadata.offset > metadata.stride:
            raise ValueError(f"the metadata's offset is larger than its stride: {metadata}")
        return metadata


class Tombstone(NamedTuple):
    """The metadata of a tombstone: why no ticket may be drawn there, and where to draw instead.

    Attributes:
        kind: ``"moved"``, also by a rename; ``"opening"``, the target of a move that has not ended;
            ``"converting"`` to another layout; ``"dropped"``; ``"retired"`` with its server.
        pool: the pool that has the sequence, for ``"opening"`` the one that still has it.
        sequence: its name there.
        high_water: no ticket above it was issued from here.
        layout: the layout of the table that was here; None where there was none.
        bits: the bits of the table that was here.
        nonce: distinguishes it from an earlier or later tombstone with the same content.
        stride: the stride of the table that was here; 0 where it is unknown, or there was none.
        stub: the name of its stub column.
        path: where the sequence of the table that was here had been.
        offset: the offset of the table that was here; 0 where there was none.
    """

    kind: TombstoneKind
    pool: str
    sequence: str
    high_water: int
    layout: LayoutName | None = None
    bits: int = 64
    nonce: str = ""
    stride: int = 0
    stub: str = "stub"
    path: Path = ()
    offset: int = 0

    @property
    def end(self) -> str:
        """How a table ended that no other replaces; empty if one does, or will."""
        return {"dropped": "was dropped by a migration", "retired": "is retired"}.get(self.kind, "")

    def __str__(self) -> str:
        return _TOMBSTONE_MARK + _written(self._asdict())

    @classmethod
    def parse(cls, text: str | None) -> Tombstone | None:
        """Read the tombstone in a comment; None where there is none.

        Raises:
            ValueError: there is a tombstone, but it cannot be read.
        """
        found = _parse(text, _TOMBSTONE_MARK, _TOMBSTONE)
        return None if found is None else cls(**found)


def _written(told: dict[str, Any]) -> str:
    """Format JSON that is safe in an SQL comment, which SQLite needs; an empty path is omitted."""
    if not told["path"]:
        del told["path"]
    return json.dumps(told).replace("*/", "*\\/")


def has_metadata(text: str) -> bool:
    """Whether a comment has metadata, readable or not."""
    return _MARK + "{" in text


def leads_elsewhere(text: str, pool: str | None) -> bool:
    """Whether a comment's tombstone is of a sequence that left the pool, or is leaving it.

    Args:
        text: the comment.
        pool: the pool's name; None if another name within the pool counts, too.
    """
    try:
        found = Tombstone.parse(text)
    except ValueError:
        return True  # an inspection of the table says why
    if found is None or found.end:
        return False
    return found.kind != "moved" or found.pool != pool


class _Parts(NamedTuple):
    """The required and optional parts of a JSON object, each with a check of its value."""

    what: str
    needed: dict[str, Callable[[object], bool]]
    others: dict[str, Callable[[object], bool]]

    def fit(self, found: object) -> bool:
        """Whether an object has all required parts, and no unknown ones."""
        if not isinstance(found, dict):
            return False
        parts, known = cast("dict[str, object]", found), self.needed | self.others
        return self.needed.keys() <= parts.keys() and all(
            part in known and known[part](value) for part, value in parts.items()
        )


def _is_one_of(*values: object) -> Callable[[object], bool]:
    return lambda value: any(type(value) is type(one) and value == one for one in values)


def _is_from(least: int, most: int) -> Callable[[object], bool]:
    return lambda value: type(value) is int and least <= value <= most


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_list(value: object) -> bool:
    return isinstance(value, list)


def _is_path(value: Any) -> bool:
    return _is_list(value) and all(
        _is_list(step) and len(step) == 2 and all(map(_is_text, step)) for step in value
    )


def _is_name(value: object) -> bool:
    try:
        name_of_sequence(value)
    except TicketArgumentError:
        return False
    return True


_IS_BITS, _IS_LAYOUT = _is_one_of(64, 32), _is_one_of("replace", "counter")
_IS_STRIDE = _is_from(1, 65535)
_METADATA: Final = _Parts(
    "metadata",
    {"layout": _IS_LAYOUT, "stride": _IS_STRIDE, "offset": _IS_STRIDE},
    {"bits": _IS_BITS, "path": _is_path},
)
_TOMBSTONE: Final = _Parts(
    "tombstone",
    {
        "kind": _is_one_of(*get_args(TombstoneKind)),
        "pool": _is_text,
        "sequence": _is_name,
        "high_water": _is_from(0, 2**64 - 1),
    },
    {
        "layout": _is_one_of("replace", "counter", None),
        "bits": _IS_BITS,
        "nonce": _is_text,
        "stride": _is_from(0, 65535),
        "stub": _is_text,
        "path": _is_path,
        "offset": _is_from(0, 65535),
    },
)


def _parse(text: str | None, mark: str, parts: _Parts) -> dict[str, Any] | None:
    """Parse the JSON object after the mark, if the text has the mark.

    Raises:
        ValueError: it is no JSON object, or has other parts.
    """
    start = (text or "").find(mark + "{")
    if text is None or start < 0:
        return None
    told = text[start : start + LONGEST_COMMENT]
    try:
        found, _ = json.JSONDecoder().raw_decode(told, len(mark))
    except (ValueError, RecursionError):
        found = None
    if not parts.fit(found):
        raise ValueError(f"expected {parts.what} of this release, found {told[:200]!r}")
    fitting = cast("dict[str, Any]", found)
    steps: list[list[str]] = fitting.get("path", [])
    return {**fitting, "path": tuple((pool, sequence) for pool, sequence in steps)}
