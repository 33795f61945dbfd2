"""A table's comment is read as metadata or a tombstone, or refused."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from sqla_tickets.tables.metadata import TableMetadata, Tombstone, TombstoneKind
from tests.support.table_comments import (
    UNREADABLE_METADATA,
    UNREADABLE_TOMBSTONES,
    metadata_comment,
)

NAMES = [
    f"{n}: {comment[:60]}" for n, comment in enumerate(UNREADABLE_METADATA + UNREADABLE_TOMBSTONES)
]


@pytest.mark.parametrize(
    "comment", [metadata_comment(), metadata_comment(bits=32), metadata_comment(bits=64)]
)
def test_metadata_that_is_ours_is_read(comment: str) -> None:
    found = TableMetadata.parse(f"Made by hand. {comment} Keep it.")
    assert found is not None
    assert TableMetadata.parse(str(found)) == found


@pytest.mark.parametrize("kind", get_args(TombstoneKind))
def test_tombstone_that_is_ours_is_read(kind: Any) -> None:
    shortest = Tombstone(kind, "b", "photos */ фото", 2**63 - 1)
    for found in (shortest, shortest._replace(layout="replace", bits=32, nonce="ab", stride=4)):
        assert Tombstone.parse(f"CREATE TABLE x (/* {found} */ a INT)") == found


@pytest.mark.parametrize("comment", UNREADABLE_METADATA, ids=NAMES[: len(UNREADABLE_METADATA)])
def test_metadata_that_is_none_is_a_value_error(comment: str) -> None:
    with pytest.raises(ValueError, match="metadata"):
        TableMetadata.parse(comment)


@pytest.mark.parametrize("comment", UNREADABLE_TOMBSTONES, ids=NAMES[len(UNREADABLE_METADATA) :])
def test_tombstone_that_is_none_is_a_value_error(comment: str) -> None:
    with pytest.raises(ValueError, match="tombstone"):
        Tombstone.parse(comment)
