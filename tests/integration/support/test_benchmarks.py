"""The benchmarks run, and compare what can be compared. Nothing here looks at a time."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks.figures import FIGURES, Figure
from benchmarks.harness import Comparison, Row, Side, compare
from benchmarks.parts import PARTS
from benchmarks.parts.scale import SIDES
from benchmarks.plots import plot
from benchmarks.report import comparison_table, figures_table, in_short, keys_table
from benchmarks.results import OtherMachine, Results

ROOT = Path(__file__).parents[3]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks", "--scale", "smoke", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


def of(key: str, **rows: Sequence[float]) -> Comparison:
    return Comparison(key, "", "", "rows/s", [Row(side, list(v)) for side, v in rows.items()])


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_a_smallest_run_leaves_results_tables_and_figures(tmp_path: Path) -> None:
    parts = "draw,blocks,snowflakes,flush,children,core,selecting,transactions,tasks,costs"
    done = run("--servers", "sqlite", "--parts", parts, "--out", str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    results = Results.load(tmp_path / "results.json")
    assert {"draw", "blocks, counter", "flush", "tasks", "import"} <= {
        c.key for c in results.comparisons
    }
    for comparison in results.comparisons:
        assert comparison.rows
        assert all(min(row.values) > 0 for row in comparison.rows), comparison
        assert f"### {comparison.title}\n" in (tmp_path / "tables.md").read_text()
    assert "not measured" in (tmp_path / "figures.md").read_text()
    assert results.machine["processor"] in (tmp_path / "machine.md").read_text()

    # what another machine has found stays as it is
    found = json.loads((tmp_path / "results.json").read_text())
    found["machine"]["processor"] = "a quicker one"
    (tmp_path / "results.json").write_text(json.dumps(found))
    refused = run("--servers", "sqlite", "--parts", "blocks", "--out", str(tmp_path))
    assert refused.returncode == 1
    assert "a quicker one" in refused.stderr
    assert json.loads((tmp_path / "results.json").read_text()) == found


def test_rounds_are_interleaved_and_the_first_does_not_count() -> None:
    measured: list[str] = []

    def side(name: str) -> Side:
        def take() -> float:
            measured.append(name)
            return 1.0

        return Side(name, take)

    done = compare("key", "", "", "", [side("one"), side("two")], rounds=3)
    assert [len(row.values) for row in done.rows] == [3, 3]
    assert [set(measured[n : n + 2]) for n in range(0, 8, 2)] == [{"one", "two"}] * 4


def test_a_ratio_is_that_of_the_rounds_whatever_the_machine_drifts() -> None:
    drifted = of("key", quick=[200, 100, 20], slow=[100, 50, 10])
    assert drifted.ratio("quick", "slow") == 2
    assert drifted.ratio("quick", "absent") is None
    assert "| slow | 50 | 10 | 100 | 0.5 |" in comparison_table(drifted)


def test_results_are_read_as_they_were_written(tmp_path: Path) -> None:
    results = Results("quick", comparisons=[of("key", side=[1.0, 2.0])], servers={"mysql": "9"})
    results.save(tmp_path / "results.json")
    assert Results.load(tmp_path / "results.json") == results


@pytest.mark.parametrize("what", ["machine", "versions", "scale"])
def test_runs_of_another_machine_are_not_compared(what: str) -> None:
    here, there = Results("full"), Results("full")
    here.must_be_comparable(there, "there")
    setattr(there, what, "quick" if what == "scale" else {"cores": "1000"})
    with pytest.raises(OtherMachine, match=f"another {what}"):
        here.must_be_comparable(there, "there")


def test_a_comparison_replaces_an_earlier_one() -> None:
    results = Results("full")
    for value in (1.0, 2.0):
        results.add(of("key", side=[value]))
    assert [c.rows[0].values for c in results.comparisons] == [[2.0]]


def test_figures_say_what_was_reached() -> None:
    results = Results("full", comparisons=[of("buffered", mine=[8.0], other=[1.0])])
    least = Figure("what", 8, "buffered", "mine", "other", servers=("",))
    assert least.seen(results, "") == 8
    assert least.is_reached(8)
    assert not least.is_reached(7.9)
    most = Figure("what", 8, "buffered", "mine", at_most=True)
    assert most.is_reached(7.9)
    assert not most.is_reached(8.1)
    assert "not measured" in figures_table(results)


def test_a_floor_is_shown_and_not_to_be_reached() -> None:
    floors = [figure for figure in FIGURES if figure.bound is None]
    assert floors
    for floor in floors:
        found = Comparison(floor.key, "mysql", "", "rows/s", [Row(floor.first, [3.0])])
        found.rows.append(Row(floor.second, [2.0]))
        table = figures_table(Results("full", comparisons=[found]))
        assert f"| {floor.what} | mysql |  | 1.5 |  |" in table.splitlines()


def test_the_table_of_keys_takes_each_from_where_it_was_measured() -> None:
    flush = Comparison("flush by keys", "mysql", "", "rows/s", [Row("UUIDSequence", [700.0])])
    size = Comparison("index size", "mysql", "", "bytes", [Row("UUIDv7, binary(16)", [90.0])])
    found = keys_table(Results("full", comparisons=[flush, size]))
    assert "| UUIDv7, `UUIDSequence` | 700 | 90 | not measured |" in found
    assert "| tickets | not measured | not measured | not measured |" in found


def test_crowds_are_compared_with_bare_cursors(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    found = Results("full", servers={"mysql": "9"})
    for n, ours in ((1, 9.0), (64, 8.0)):
        for who in ("processes", "tasks"):
            rows = {SIDES["counter"][0]: [10.0], SIDES["counter"][1]: [ours]}
            comparison = of(f"scale counter {who} {n}", **rows)
            comparison.server = "mysql"
            found.add(comparison)
    assert "| 64 processes together, counter layout: draws | mysql | at least 0.9 | 0.8 |" in (
        figures_table(found)
    )
    (told,) = plot(found, tmp_path).items()
    assert told[0].read_text().startswith("<?xml")
    assert "processes, counter layout: 0.9 at 1, 0.8 at 64; tasks," in told[1]


def test_three_numbers_are_those_of_the_same_rounds() -> None:
    rows = {"TicketSequence": [40.0, 20.0], "AUTO_INCREMENT": [10.0, 5.0]}
    flush = of("flush", **rows)
    flush.server = "mysql"
    told = in_short(Results("full", comparisons=[flush]))
    assert "| a flush of 10,000 new objects, against AUTO_INCREMENT | not measured | 4 |" in told


def test_every_part_and_figure_has_a_name_of_its_own() -> None:
    assert list(PARTS) == [part.name for part in PARTS.values()]
    wanted = [(figure.what, figure.key) for figure in FIGURES]
    assert len(set(wanted)) == len(wanted)
