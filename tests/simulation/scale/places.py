"""Where the figures of the page stand."""

from __future__ import annotations

from pathlib import Path
from typing import Final

__all__ = ["FOLDER"]

FOLDER: Final = Path(__file__).parents[3] / "docs" / "understand" / "scale"
