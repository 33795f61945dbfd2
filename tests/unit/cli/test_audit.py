"""Findings of an audit that are the same are told together."""

from __future__ import annotations

import pytest

from sqla_tickets.cli.audit import merged, not_read
from sqla_tickets.cli.shards import Shard


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


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("mysql+pymysql://u:hush@shard1:3306/app?ssl_key_password=hush", "mysql://shard1:3306/app"),
        ("mysql+pymysql://u:hush@/app?unix_socket=/run/a.sock", "mysql:///run/a.sock/app"),
        (
            "postgresql+psycopg://u@/app?host=a:1&host=b:2&options=-cpassword=hush",
            "postgresql://a:1,b:2/app",
        ),
    ],
)
def test_name_of_a_shard_has_its_socket_and_no_secret(url: str, name: str) -> None:
    assert str(Shard(url)) == name


def test_names_in_advice_are_quoted_for_the_shell() -> None:
    assert "--column TABLE.COLUMN='my photos'," in not_read("my photos").anomalies[0].fix
