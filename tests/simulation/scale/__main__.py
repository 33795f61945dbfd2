"""``python -m tests.simulation.scale``: simulate what docs/understand/scale.md says, and write its tables and plots.

Without arguments it simulates what is missing in ``docs/understand/scale/simulated.json``, for as long as it takes: half an hour
of one core. ``--quick`` simulates three small runs in seconds, and writes nothing.
"""

from __future__ import annotations

import argparse

from .measured import measured
from .page import write_tables
from .plots import plot
from .sweeps import FULL, QUICK, Results, comparisons, load_results, run_all


def main() -> None:
    """Do what the arguments say."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.scale", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small runs, in seconds")
    parser.add_argument("--fresh", action="store_true", help="forget the figures that are there")
    parser.add_argument("--only", default="", help="runs whose names contain this")
    parser.add_argument("--list", action="store_true", help="the names of the runs")
    given = parser.parse_args()
    full = {**comparisons(measured()), **FULL}
    runs = {
        name: run for name, run in (QUICK if given.quick else full).items() if given.only in name
    }
    if given.list:
        print("\n".join(runs))
        return
    results: Results = {} if given.quick or given.fresh else load_results()
    run_all(runs, results, keep=not given.quick)
    if not given.quick:
        write_tables(results, measured())
        print(", ".join(plot(results, measured())))


if __name__ == "__main__":
    main()
