"""What a publisher sets once, `repository` in pyproject.toml, becomes the links of the published package."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

#: A link or a picture of README.md within the repository.
RELATIVE = re.compile(r"(!?)(\[[^\]]*\])\((?!https?:)([^)#][^)]*)\)")


class LinkHook(MetadataHookInterface):
    """Adds the readme and the URLs; a package index shows no relative links."""

    def update(self, metadata: dict[str, Any]) -> None:
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        repository = str(self.config.get("repository", "")).rstrip("/")
        if repository:
            at = f"v{metadata['version']}"
            text = RELATIVE.sub(
                lambda m: f"{m[1]}{m[2]}({repository}/{'raw' if m[1] else 'blob'}/{at}/{m[3]})",
                text,
            )
            metadata["urls"] = {
                "Source": repository,
                "Documentation": f"{repository}/blob/{at}/docs/index.md",
                "Changelog": f"{repository}/blob/{at}/CHANGELOG.md",
                "Issues": f"{repository}/issues",
            }
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
