"""What tests replace is there: a name that is gone would leave the code as it is, or fail in the set-up."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]


def modules_in(tree: ast.Module) -> dict[str, str]:
    """The modules of the package that a file imports, by the names that it has for them."""
    found: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                found[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    return {name: module for name, module in found.items() if module.startswith("sqla_tickets.")}


def replaced_in(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Names of modules, and the attributes of theirs that ``setattr`` replaces."""
    modules = modules_in(tree)
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or len(node.args) < 2:
            continue
        called, target, name = node.func, node.args[0], node.args[1]
        if not isinstance(called, ast.Attribute) or called.attr != "setattr":
            continue
        if isinstance(target, ast.Name) and target.id in modules and isinstance(name, ast.Constant):
            yield modules[target.id], str(name.value)


def is_module(name: str) -> bool:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError:
        return False
    return True


@pytest.mark.parametrize("file", sorted(TESTS.rglob("*.py")), ids=lambda file: file.stem)
def test_replaced_names_of_modules_are_there(file: Path) -> None:
    for module, name in replaced_in(ast.parse(file.read_text())):
        if is_module(module):
            assert hasattr(importlib.import_module(module), name), f"{module} has no {name}"
