"""The folders of the tests know nothing of each other, and all of tests/support."""

from __future__ import annotations

import ast
from pathlib import Path

TESTS = Path(__file__).parents[1]


def folder_of(module: str) -> str:
    """The folder of a module of the tests: ``tests.chaos``, ``tests.integration.draw``."""
    parts = module.split(".")
    return ".".join(parts[: 3 if parts[1] == "integration" else 2])


def imports_of(path: Path) -> set[str]:
    """The modules of the tests that a file imports."""
    found = set[str]()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
        elif isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
    return {name for name in found if name.startswith("tests.")}


def test_no_folder_imports_from_another_one() -> None:
    """A helper that two folders use stands in tests/support."""
    across = set[tuple[str, str]]()
    for path in TESTS.rglob("*.py"):
        here = ".".join(path.relative_to(TESTS.parent).with_suffix("").parts)
        for there in imports_of(path):
            if folder_of(there) not in ("tests.support", folder_of(here)):
                across.add((here, there))
    assert not across


def test_no_test_is_outside_of_the_folders() -> None:
    assert not sorted(path.name for path in TESTS.glob("test_*.py"))
