"""Comments of ticket tables that cannot be read, and some that can."""

from __future__ import annotations

import json

__all__ = [
    "METADATA",
    "TOMBSTONE",
    "UNREADABLE_METADATA",
    "UNREADABLE_TOMBSTONES",
    "metadata_comment",
    "tombstone_comment",
]

METADATA: dict[str, object] = {"layout": "counter", "stride": 2, "offset": 1}


TOMBSTONE: dict[str, object] = {"kind": "moved", "pool": "b", "sequence": "photos", "high_water": 9}


DEEP = '{"kind": ' + "[" * 9000


#: One number that is too large to be read, and what JSON does not have but Python reads.
LARGE = '{"layout": "counter", "stride": ' + "9" * 5000 + ', "offset": 1}'


INFINITE = '{"layout": "counter", "stride": Infinity, "offset": 1}'


NOT_A_NUMBER = '{"kind": "moved", "pool": "b", "sequence": "photos", "high_water": NaN}'


def metadata_comment(**changed: object) -> str:
    return "sqla_tickets " + json.dumps(METADATA | changed)


def tombstone_comment(**changed: object) -> str:
    return "sqla_tickets tombstone " + json.dumps(TOMBSTONE | changed)


UNREADABLE_METADATA = [
    metadata_comment(layout=None),
    metadata_comment(layout="other"),
    metadata_comment(layout=["counter"]),
    metadata_comment(stride="2"),
    metadata_comment(stride=2.0),
    metadata_comment(stride=0),
    metadata_comment(stride=True),
    metadata_comment(stride=10**9),
    metadata_comment(offset=3),
    metadata_comment(offset=0),
    metadata_comment(offset=None),
    metadata_comment(bits="many"),
    metadata_comment(bits=63),
    metadata_comment(bits=64.0),
    metadata_comment(color="red"),
    metadata_comment(path="default"),
    metadata_comment(path=[["default"]]),
    metadata_comment(path=[["default", 7]]),
    metadata_comment(path={"default": "photos"}),
    "sqla_tickets {}",
    'sqla_tickets {"stride": 2}',
    "sqla_tickets {broken",
    f"sqla_tickets {LARGE}",
    f"sqla_tickets {INFINITE}",
    f"sqla_tickets {DEEP}",
    metadata_comment() + " " * 100_000,
]


UNREADABLE_TOMBSTONES = [
    tombstone_comment(kind="archived"),
    tombstone_comment(kind=None),
    tombstone_comment(kind=["moved"]),
    tombstone_comment(pool={}),
    tombstone_comment(pool=5),
    tombstone_comment(sequence={}),
    tombstone_comment(sequence=5),
    tombstone_comment(sequence=""),
    tombstone_comment(sequence="a\0b"),
    tombstone_comment(high_water="9"),
    tombstone_comment(high_water=-1),
    tombstone_comment(high_water=1e3),
    tombstone_comment(high_water=2**70),
    tombstone_comment(layout="other"),
    tombstone_comment(bits="many"),
    tombstone_comment(nonce=5),
    tombstone_comment(stride="2"),
    tombstone_comment(stub=None),
    tombstone_comment(color="red"),
    "sqla_tickets tombstone {}",
    "sqla_tickets tombstone {broken",
    f"sqla_tickets tombstone {DEEP}",
    f"sqla_tickets tombstone {NOT_A_NUMBER}",
    tombstone_comment(sequence="x" * 100_000),
]
