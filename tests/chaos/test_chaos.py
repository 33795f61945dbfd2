"""Short runs of the chaos suite, and proof that its checker sees what it is there to see.

``TICKETS_CHAOS_SECONDS`` says how long each run draws.
"""

from __future__ import annotations

import os
import random
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.chaos import workloads
from tests.chaos.checker import Event, Ledger, check
from tests.chaos.cluster import Cluster
from tests.chaos.journal import Journal
from tests.chaos.run import Act, Settings, outages
from tests.chaos.table import text_of
from tests.chaos.workloads import see_what_is_left
from tests.support.draws import held, mysql_like
from tests.support.servers import ServerFixtures

SECONDS = float(os.environ.get("TICKETS_CHAOS_SECONDS", "8"))
#: Where a process waits for a CPU for so much of the time, healthy servers do not answer in time.
STARVED = 0.1


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["mariadb", "mysql"])
def test_outages(servers: ServerFixtures, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    cluster = Cluster([mysql_like(servers, kind, n) for n in range(2)], ["replace", "counter"])
    settings = Settings(SECONDS, random.randrange(2**32), pace=0.05, longest=1.0)
    assert_harmless(cluster, outages, settings, capsys)


def assert_harmless(
    cluster: Cluster,
    play: Callable[[Cluster, Settings], Act],
    settings: Settings,
    capsys: pytest.CaptureFixture[str],
) -> None:
    try:
        act = play(cluster, settings)
    finally:
        cluster.close()
    with capsys.disabled():
        print(f"\n{text_of(act)}")
    assert act.report.all.acknowledged
    assert not act.report.all.duplicated
    assert not act.complaints
    if act.starved < STARVED:
        assert not act.broken


def test_a_ledger_finds_what_counting_finds() -> None:
    seed = random.randrange(2**32)
    print("seed", seed)
    chooser = random.Random(seed)
    for _ in range(50):
        ledger, seen = Ledger(), Counter[int]()
        for _ in range(chooser.randint(1, 60)):
            first = chooser.randint(1, 300)
            block = range(first, first + 2 * chooser.randint(1, 30), 2)
            again = [ticket for part in ledger.add(block) for ticket in part]
            assert again == [ticket for ticket in block if seen[ticket]]
            seen.update(block)
        assert ledger.bounds == (min(seen), max(seen))


def test_the_checker_counts_as_jepsen_does(tmp_path: Path) -> None:
    one, two = Journal(tmp_path / "singles-0.journal"), Journal(tmp_path / "blocks-1.journal")
    one.start()
    one.draw("photos", 3, lambda: [range(1, 7, 2)])
    one.attempt("photos", 5)  # and was killed
    two.draw("photos", 2, lambda: [range(5, 9, 2)])
    two.draw("photos", 1, lambda: [range(2, 3, 2)])
    two.draw("users", 1, lambda: [range(2, 3, 2)])
    two.draw("users", 2, lambda: [range(4, 5, 2)])
    with (tmp_path / "singles-0.journal").open("a") as torn:
        torn.write("+ 1.0 2.0 7 photos 9-1")
    report = check(sorted(tmp_path.iterdir()), [])
    counters = report.all
    assert (counters.attempted, counters.acknowledged, counters.lost) == (14, 7, 7)
    assert (counters.duplicated, counters.unannounced, report.torn) == (1, 1, 1)
    assert [(d.sequence, d.tickets[0], d.by[:8]) for d in report.duplicates] == [
        ("photos", 5, "blocks-1")
    ]
    assert counters.errors == {"ValueError": 1}
    assert counters.needless == 1
    assert report.workloads["singles"].acknowledged == 3
    assert report.bounds == {"photos": (1, 7), "users": (2, 2)}


def test_what_a_pool_leaves_behind_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workloads, "SECONDS_TO_LEAVE", 0.2)
    journal, before, over = Journal(tmp_path / "singles-0.journal"), held(), threading.Event()
    see_what_is_left(journal, before)
    left = threading.Thread(target=over.wait, name="a forgotten thread")
    left.start()
    see_what_is_left(journal, before)
    over.set()
    left.join()
    report = check([tmp_path / "singles-0.journal"], [])
    assert [c.partition("behind: ")[2] for c in report.complaints] == ["a forgotten thread"]


def test_a_failure_is_excused_only_while_every_server_is_hurt(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "singles-0.journal")
    began = journal.attempt("photos", 1)
    journal.fail(began, "photos", 1, OSError("all gone"))
    journals, during = [tmp_path / "singles-0.journal"], (began - 1, began + 60)
    one, two = Event("killed", 1, *during), Event("frozen", 2, *during)
    assert check(journals, [one]).all.needless == 1
    assert check(journals, [one, two]).all.needless == 0
    long_ago = Event("frozen", 2, began - 9, began - 8)
    report = check(journals, [long_ago, one])
    assert report.all.needless == 1
    [(_, told)] = report.failures
    assert (
        "killed (server 1) from -1.000 to +60.000, frozen (server 2) from -9.000 to -8.000" in told
    )


def test_a_duplicate_is_announced_by_a_critical_message_before_it(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "singles-0.journal")
    began = journal.attempt("photos", 1)
    event = Event("truncated", 1, began, began + 60)
    journal.acknowledge(began, "photos", 1, [range(1, 2, 2)])
    journal.acknowledge(began, "photos", 1, [range(1, 2, 2)])
    journal.say("a server has broken its promise for the sequence 'photos'")
    journal.acknowledge(began, "photos", 1, [range(1, 2, 2)])
    journal.start()
    journal.acknowledge(began, "photos", 1, [range(1, 2, 2)])
    report = check([tmp_path / "singles-0.journal"], [event])
    assert (report.all.duplicated, report.all.unannounced) == (3, 1)
    assert report.repeats == {("truncated", False): 2, ("truncated", True): 1}
