"""``python -m benchmarks``: every part on every server that this machine has."""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

from benchmarks import report
from benchmarks.parts import PARTS
from benchmarks.peers import is_installed
from benchmarks.plots import DECISIVE, plot
from benchmarks.results import OtherMachine, Results
from benchmarks.run import Part
from benchmarks.scale import FULL, QUICK, SMOKE, Scale
from benchmarks.testbed import Testbed, open_testbed, redis_port
from tests.support.servers import KINDS, ServerRegistry
from tests.support.servers.base import ServerMissing

SCALES = {"full": FULL, "quick": QUICK, "smoke": SMOKE}
#: Where the documentation takes the figures from, and where those of quick runs go.
DOCS, BUILD = Path("docs/understand/performance"), Path("build/benchmarks")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run what the command line says.

    Raises:
        OtherMachine: the folder has results that these cannot be compared with.
    """
    options = _options(arguments)
    out = options.out or (DOCS if options.scale == "full" else BUILD)
    out.mkdir(parents=True, exist_ok=True)
    results = _earlier(Results(options.scale), out / "results.json", fresh=options.fresh)
    begin = time.monotonic()
    scale = SCALES[options.scale]
    scale = replace(scale, rounds=options.rounds or scale.rounds)
    parts = [PARTS[name] for name in options.parts]
    seed = options.seed or random.randrange(2**32)
    random.seed(seed)
    print(f"{report.about(results)}\nseed {seed}")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        server_registry = stack.enter_context(closing(ServerRegistry(KINDS)))
        redis = _redis(stack)
        for kind in options.servers:
            here = [part for part in parts if kind in part.kinds]
            try:
                testbed = open_testbed(kind, server_registry, folder, redis) if here else None
            except ServerMissing as missing:
                print(f"\n{kind}: left out: {missing}")
                continue
            if testbed is not None:
                _run(testbed, here, scale, results, out, begin)
    _plot(results, out)
    print(f"\n{report.figures_table(results)}\n{out}/results.json, figures.md, tables.md")


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    about = "\n".join(f"  {part.name:13} {part.about}" for part in PARTS.values())
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=__doc__,
        epilog=f"parts:\n{about}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    by_default = ",".join(part.name for part in PARTS.values() if part.by_default)
    parser.add_argument(
        "--servers",
        default="mariadb,mysql,postgresql,sqlite",
        type=lambda text: _words(text, KINDS),
        help="kinds (default: %(default)s)",
    )
    parser.add_argument(
        "--parts",
        default=by_default,
        type=lambda text: _words(text, PARTS),
        help="(default: %(default)s)",
    )
    parser.add_argument("--scale", default="full", choices=SCALES, help="(default: %(default)s)")
    parser.add_argument(
        "--out",
        type=Path,
        help=f"folder of the results, which are added to those there (default: {DOCS}, or {BUILD}"
        " unless the scale is full)",
    )
    parser.add_argument("--rounds", type=int, help="of each comparison, instead of the scale's")
    parser.add_argument("--fresh", action="store_true", help="forget the results that are there")
    parser.add_argument("--seed", type=int, help="of the order of the rounds")
    return parser.parse_args(arguments)


def _words(text: str, known: object) -> list[str]:
    words = text.split(",")
    for word in words:
        if word not in known:  # type: ignore[operator]  # a dict or a tuple
            raise argparse.ArgumentTypeError(f"{word!r} is not known")
    return words


def _earlier(now: Results, path: Path, *, fresh: bool) -> Results:
    """What was found here before, to be added to."""
    if fresh or not path.exists():
        return now
    earlier = Results.load(path)
    now.must_be_comparable(earlier, path)
    return earlier


def _redis(stack: ExitStack) -> int | None:
    if not is_installed("redis"):
        print("\nredis: left out: the package redis is not installed")
        return None
    try:
        return stack.enter_context(redis_port())
    except ServerMissing as missing:
        print(f"\nredis: left out: {missing}")
        return None


def _run(
    testbed: Testbed,
    parts: Sequence[Part],
    scale: Scale,
    results: Results,
    out: Path,
    begin: float,
) -> None:
    results.servers[testbed.kind] = testbed.version
    print(f"\n## {testbed.kind} {testbed.version}", flush=True)
    for part in parts:
        start = time.monotonic()
        if start - begin > scale.seconds:
            print(f"({part.name}: left out, as the time is over)")
            continue
        for comparison in part.work(testbed, scale):
            results.add(comparison)
            _write(results, out)
            print(f"\n### {comparison.title}\n\n{report.comparison_table(comparison)}", flush=True)
        print(f"({part.name}: {time.monotonic() - start:.0f} s)", flush=True)


def _write(results: Results, out: Path) -> None:
    results.save(out / "results.json")
    (out / "machine.md").write_text(report.about(results))
    (out / "figures.md").write_text(report.figures_table(results))
    (out / "tables.md").write_text(report.tables(results))
    (out / "keys.md").write_text(report.keys_table(results))
    (out / "in-short.md").write_text(report.in_short(results))


def _plot(results: Results, out: Path) -> None:
    if not is_installed("matplotlib"):
        print("\nmatplotlib is not installed: no plots")
        return
    drawn = plot(results, out)
    images = {path.name: f"![{about}](performance/{path.name})\n" for path, about in drawn.items()}
    (out / "plot.md").write_text(images.pop(DECISIVE, ""))
    (out / "plots.md").write_text("\n".join(images.values()))


if __name__ == "__main__":
    try:
        main()
    except OtherMachine as refused:
        raise SystemExit(str(refused)) from None
