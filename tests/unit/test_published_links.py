"""A publisher sets the repository once: the metadata has its URLs, and its README no relative link."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
SETTING = 'repository = ""'
REPOSITORY = "https://code.example/you/sqla_tickets"


def metadata_of(folder: Path, repository: str) -> dict[str, Any]:
    """What a build of the project would publish."""
    for name in ("pyproject.toml", "README.md", "LICENSE", "hatch_build.py"):
        shutil.copy(ROOT / name, folder)
    project = folder / "pyproject.toml"
    text = project.read_text()
    assert text.count(SETTING) == 1
    project.write_text(text.replace(SETTING, f'repository = "{repository}"'))
    command = [sys.executable, "-m", "hatchling", "metadata"]
    found: dict[str, Any] = json.loads(subprocess.check_output(command, cwd=folder, text=True))
    return found


@pytest.mark.parametrize("repository", [REPOSITORY, f"{REPOSITORY}/"])
def test_metadata_with_repository_has_urls_and_full_links(repository: str, tmp_path: Path) -> None:
    found = metadata_of(tmp_path, repository)
    assert found["urls"]["Source"] == REPOSITORY
    assert all(url.startswith(REPOSITORY) for url in found["urls"].values())
    links = re.findall(r"\]\(([^)]*)\)", found["readme"]["text"])
    assert f"{REPOSITORY}/raw/v{found['version']}/docs/pictures/architecture.svg" in links
    assert [link for link in links if not link.startswith("https://")] == []


def test_metadata_without_repository_has_no_urls(tmp_path: Path) -> None:
    found = metadata_of(tmp_path, "")
    assert "urls" not in found
    assert found["readme"]["text"] == (ROOT / "README.md").read_text()
