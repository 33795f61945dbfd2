"""The nemesis for some seconds, and that its check sees what it is there to see."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from tests.support.servers import ServerFixtures
from tests.support.snowflake_nemesis import FAULTS, check, layout_for, torment, with_clock

LAYOUT = layout_for(4)


@pytest.mark.soak
@pytest.mark.ticket_servers("mariadb")
def test_ids_survive_all_that_may_fail(
    ticket_kind: str, servers: ServerFixtures, tmp_path: Path
) -> None:
    """The clocks of processes and servers are among it; simulated worlds set the clocks of other kinds of servers, too."""
    servers.clock(tmp_path / "clock")  # skips, or fails, where the workers can have none
    seed = random.randrange(2**32)
    print("seed", seed)
    both = [with_clock(servers, ticket_kind, number) for number in range(2)]
    urls = [servers.fresh_database(server) for server, _ in both]
    found = torment(both, urls, tmp_path, 4, 6, seed, FAULTS)
    print(found)
    assert found.is_good, found


def journal(folder: Path, name: str, *lines: tuple[float, str, list[int]]) -> None:
    text = [
        json.dumps({"before": at, "after": at + 0.1, "lease": lease, "ids": ids})
        for at, lease, ids in lines
    ]
    (folder / f"ids-{name}").write_text("\n".join(text) + '\n{"before": 1, "af')


def an_id(tick: int, node: int, sequence: int = 0) -> int:
    return LAYOUT._run(tick, node, sequence, 1)[0]


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
