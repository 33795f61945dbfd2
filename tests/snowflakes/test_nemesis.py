"""The nemesis for some seconds, and that its check sees what it is there to see."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from tests.servers import Borrower

from .nemesis import check, layout_for, torment

LAYOUT = layout_for(4)


@pytest.mark.soak
@pytest.mark.ticket_servers("mariadb")
def test_ids_survive_all_that_may_fail(ticket_kind: str, servers: Borrower, tmp_path: Path) -> None:
    seed = random.randrange(2**32)
    print("seed", seed)
    both = [servers.shared(ticket_kind, number) for number in range(2)]
    urls = [servers.fresh_database(server) for server in both]
    found = torment(both, urls, tmp_path, 4, 8, seed)
    print(found)
    assert found.is_good, found


def journal(folder: Path, name: str, *lines: tuple[float, str, list[int]]) -> None:
    text = [
        json.dumps({"before": at, "after": at + 0.1, "token": token, "ids": ids})
        for at, token, ids in lines
    ]
    (folder / f"ids-{name}").write_text("\n".join(text) + '\n{"before": 1, "af')


def an_id(tick: int, node: int, sequence: int = 0) -> int:
    return LAYOUT.run(tick, node, sequence, 1)[0]


def test_the_check_sees_a_repeated_id(tmp_path: Path) -> None:
    journal(tmp_path, "1", (1, "a", [an_id(1, 1)]))
    journal(tmp_path, "2", (2, "b", [an_id(1, 1)]))
    assert check(tmp_path, LAYOUT).repeated == [an_id(1, 1)]


def test_the_check_sees_disorder(tmp_path: Path) -> None:
    journal(tmp_path, "1", (1, "a", [an_id(2, 1)]), (2, "a", [an_id(1, 1)]))
    assert len(check(tmp_path, LAYOUT).out_of_order) == 1


def test_the_check_sees_two_owners(tmp_path: Path) -> None:
    journal(tmp_path, "1", (1, "a", [an_id(1, 1)]), (3, "a", [an_id(3, 1)]))
    journal(tmp_path, "2", (2, "b", [an_id(2, 1)]))
    assert len(check(tmp_path, LAYOUT).shared) == 1


def test_the_check_finds_nothing_where_nothing_is(tmp_path: Path) -> None:
    journal(tmp_path, "1", (1, "a", [an_id(1, 1)]), (3, "a", [an_id(3, 1)]))
    journal(tmp_path, "2", (4, "b", [an_id(4, 1)]))
    assert check(tmp_path, LAYOUT).is_good
