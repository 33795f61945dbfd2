"""Findings of an audit that are the same are told together."""

from __future__ import annotations

import pytest

from sqla_tickets.cli.audit import merged


@pytest.mark.parametrize(
    "pages_of_shards",
    [
        [[[1, 2, 3], [4, 9]], [[2, 5], [6], [9]]],
        [[[1]], []],
        [[[5]], [[1], [2], [3], [4], [5]], [[5, 6, 7]]],
        [],
    ],
)
def test_what_is_the_same_comes_together(pages_of_shards: list[list[list[int]]]) -> None:
    found = [
        sorted(i for part in parts for i in part)
        for parts in merged([iter(s) for s in pages_of_shards])
    ]
    ids = [i for part in found for i in part]
    assert ids == sorted(i for pages in pages_of_shards for page in pages for i in page)
    assert sum(len(set(part)) for part in found) == len(set(ids))
