"""Build the release, the same bytes wherever it is built, and try it as its users get it.

    python tools/release/check.py          builds into dist/
    python tools/release/check.py --try    and tries what was built; needs a package registry

It is built from what git has of the work tree. `SOURCE_DATE_EPOCH` is the time of the last commit.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
DIST = ROOT / "dist"
PACKAGES = ("sqla_tickets", "alembic_ext", "sqla_tickets_cli")
OLDEST = ("python3.10", "python3.11")
#: What the tests of an unpacked sdist are asked: all are found, and these few pass.
FEW = (
    "tests/drawing/test_statements.py",
    "tests/inserts/test_testing.py",
    "tests/cli/test_handbook.py",
)


def run(*command: str | Path, cwd: Path = ROOT, **environment: str) -> str:
    """Run a command and return what it printed; end with that if it fails."""
    done = subprocess.run(
        command,
        cwd=cwd,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))} in {cwd}:\n{done.stdout}")
    return done.stdout


def copy_tree(folder: Path) -> Path:
    """Copy what git has, as it is in the work tree."""
    for name in run("git", "ls-files", "-co", "--exclude-standard", "-z").rstrip("\0").split("\0"):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    return folder


def build(tree: Path, out: Path, epoch: str) -> list[Path]:
    """Build sdist and wheel of a tree."""
    run(sys.executable, "-m", "hatchling", "build", "-d", out, cwd=tree, SOURCE_DATE_EPOCH=epoch)
    return sorted(out.iterdir())


def same(ones: Iterable[Path], others: Iterable[Path]) -> None:
    """Compare files byte by byte."""
    for one, other in zip(ones, others, strict=True):
        if one.name != other.name or one.read_bytes() != other.read_bytes():
            sys.exit(f"not reproducible: {one} and {other} differ")


def built(work: Path) -> tuple[Path, Path]:
    """Build twice, in folders of different names, and the wheel once more from the sdist."""
    epoch = os.environ.get("SOURCE_DATE_EPOCH") or run("git", "log", "-1", "--format=%ct").strip()
    first = build(copy_tree(work / "a"), work / "dist-a", epoch)
    same(first, build(copy_tree(work / "another" / "folder"), work / "dist-b", epoch))
    sdist, wheel = sorted(first, key=lambda path: path.suffix != ".gz")
    run("tar", "-xzf", sdist, "-C", work)
    again = build(unpacked(work, sdist), work / "dist-c", epoch)
    same([wheel], [path for path in again if path.suffix == ".whl"])
    shutil.rmtree(DIST, ignore_errors=True)
    shutil.copytree(work / "dist-a", DIST)
    return sdist, wheel


def unpacked(work: Path, sdist: Path) -> Path:
    return work / sdist.name.removesuffix(".tar.gz")


def check_contents(sdist: Path, wheel: Path) -> None:
    """See that the wheel has the packages, typed, and nothing else; and the sdist what makes them."""
    with zipfile.ZipFile(wheel) as packed:
        names = set(packed.namelist())
    (info,) = {name.split("/")[0] for name in names if ".dist-info/" in name}
    strange = {name.split("/")[0] for name in names} - {*PACKAGES, info}
    lacking = {f"{package}/py.typed" for package in PACKAGES} - names
    lacking |= {f"{info}/{name}" for name in ("licenses/LICENSE", "entry_points.txt")} - names
    if strange or lacking:
        sys.exit(f"{wheel.name} has {strange or 'nothing strange'}, lacks {lacking or 'nothing'}")
    with tarfile.open(sdist) as packed_sources:
        found = {name.partition("/")[2] for name in packed_sources.getnames()}
    tracked = run("git", "ls-files", "-z").rstrip("\0").split("\0")
    apart = re.compile(r"\.ci/|\.git|changelog\.d/")
    forgotten = {
        name for name in tracked if not apart.match(name) and (ROOT / name).exists()
    } - found
    if forgotten:
        sys.exit(f"{sdist.name} lacks {sorted(forgotten)}")


def lowest(wheel: Path) -> list[str]:
    """The lowest versions that the wheel allows, as it says itself."""
    with zipfile.ZipFile(wheel) as packed:
        (name,) = (name for name in packed.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = packed.read(name).decode()
    found = re.findall(r"^Requires-Dist: ([\w-]+)>=([\d.]+)$", metadata, re.MULTILINE)
    return [f"{package}=={version}" for package, version in found]


def oldest_python() -> str:
    """The oldest Python that the package allows, or this one; a shim may be there and run nothing."""
    for found in filter(None, map(shutil.which, OLDEST)):
        if not subprocess.run(
            [found, "-c", "import venv"], capture_output=True, check=False
        ).returncode:
            return found
    return sys.executable


def environment_with(wheel: Path, work: Path) -> Path:
    """Install the wheel into an empty environment, with the lowest versions, and return its Python."""
    run(oldest_python(), "-m", "venv", work / "empty")
    python = work / "empty" / "bin" / "python"
    (work / "constraints.txt").write_text("\n".join(lowest(wheel)))
    run(python, "-m", "pip", "install", "-q", "-c", work / "constraints.txt", wheel)
    run(python, "-m", "pip", "check")
    return python


def try_types(python: Path, work: Path) -> str:
    """Check a user's module with both type checkers against what is installed."""
    project = work / "user"
    project.mkdir()
    shutil.copy(HERE / "user.py", project)
    (project / "pyrightconfig.json").write_text(
        '{"typeCheckingMode": "strict", "reportUnnecessaryTypeIgnoreComment": true,'
        ' "enableTypeIgnoreComments": false}'
    )
    mypy: list[str | Path] = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--no-incremental",
        "--python-executable",
        python,
    ]
    with ThreadPoolExecutor(2) as checkers:
        said = [
            checkers.submit(run, *mypy, "user.py", cwd=project),
            checkers.submit(
                run, sys.executable, "-m", "pyright", "--pythonpath", python, "user.py", cwd=project
            ),
        ]
    return ", ".join(each.result().strip().splitlines()[-1] for each in said)


def try_sdist(tree: Path) -> str:
    """Run a few tests of an unpacked sdist, and see that all of them are found."""
    pytest = [sys.executable, "-m", "pytest", "-q", "--servers=sqlite", "-p", "no:cacheprovider"]
    run(*pytest, "--collect-only", cwd=tree, PYTHONPATH=str(tree))
    return run(*pytest, *FEW, cwd=tree, PYTHONPATH=str(tree)).strip().splitlines()[-1]


def main() -> None:
    arguments = argparse.ArgumentParser(description="Build the release, and try it.")
    arguments.add_argument("--try", dest="tries", action="store_true", help="try what was built")
    tries = arguments.parse_args().tries
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        sdist, wheel = built(work)
        check_contents(sdist, wheel)
        print(f"{sdist.name}, {wheel.name}: the same bytes from two folders, and from the sdist")
        if not tries:
            return
        run(sys.executable, "-m", "twine", "check", "--strict", sdist, wheel)
        print("twine: well")
        tests = ThreadPoolExecutor(1).submit(try_sdist, unpacked(work, sdist))
        python = environment_with(wheel, work)
        (work / "nowhere").mkdir()
        print(run(python, "-I", HERE / "smoke.py", cwd=work / "nowhere").strip())
        print(f"types: {try_types(python, work)}")
        print(f"sdist: {tests.result()}")


if __name__ == "__main__":
    main()
