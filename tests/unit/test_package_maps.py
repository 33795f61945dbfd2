"""The docstring of each package is a map of its modules."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = sorted(
    folder.parent
    for top in ("sqla_tickets", "alembic_ext")
    for folder in (ROOT / top).rglob("__init__.py")
    if folder.parent not in (ROOT / "sqla_tickets", ROOT / "alembic_ext/templates")
)


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.name)
def test_package_names_each_of_its_modules(package: Path) -> None:
    text = (package / "__init__.py").read_text(encoding="utf-8")
    names = {path.stem for path in package.glob("*.py")} - {"__init__", "__main__"}
    assert not {name for name in names if f"`{name}`" not in text}
