"""Other time limits for one module, while a test runs."""

from __future__ import annotations

from dataclasses import replace
from types import ModuleType

import pytest


def set_timing(monkeypatch: pytest.MonkeyPatch, module: ModuleType, **changes: float) -> None:
    """Change fields of the ``TIMING`` that a module has imported; a name that is none raises."""
    monkeypatch.setattr(module, "TIMING", replace(module.TIMING, **changes))
