"""What one or more runs have found, as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

from benchmarks.harness import Comparison, Row
from benchmarks.machine import machine, versions

__all__ = ["OtherMachine", "Results"]


class OtherMachine(Exception):
    """Figures of two machines tell nothing about each other."""


@dataclass
class Results:
    """Comparisons, and where they were made.

    Attributes:
        scale: ``full``, ``quick`` or ``smoke``.
        machine: as `benchmarks.machine.machine` says.
        versions: of Python and of packages.
        servers: the versions of the servers, by their kinds.
        comparisons: each at most once for a server.
    """

    scale: str
    machine: dict[str, str] = field(default_factory=machine)
    versions: dict[str, str] = field(default_factory=versions)
    servers: dict[str, str] = field(default_factory=dict)
    comparisons: list[Comparison] = field(default_factory=list)

    def find(self, key: str, server: str) -> Comparison | None:
        """The comparison of that key."""
        return next((c for c in self.comparisons if (c.key, c.server) == (key, server)), None)

    def add(self, comparison: Comparison) -> None:
        """Take a comparison in, in the place of an earlier one."""
        earlier = self.find(comparison.key, comparison.server)
        if earlier is None:
            self.comparisons.append(comparison)
        else:
            self.comparisons[self.comparisons.index(earlier)] = comparison

    def must_be_comparable(self, other: Results, where: object) -> None:
        """See that both were found on one machine, with the same versions and sizes.

        Raises:
            OtherMachine: they were not.
        """
        pairs = (
            ("machine", self.machine, other.machine),
            ("versions", self.versions, other.versions),
            ("scale", {"": self.scale}, {"": other.scale}),
        )
        for what, here, there in pairs:
            if here != there:
                raise OtherMachine(
                    f"{where} has another {what}: {there} there, {here} here. Their figures cannot be"
                    " compared: move it away, or name another folder with --out."
                )

    def save(self, path: Path) -> None:
        """Write everything."""
        path.write_text(json.dumps(asdict(self), indent=1) + "\n")

    @classmethod
    def load(cls, path: Path) -> Results:
        """Read what `save` has written."""
        found = json.loads(path.read_text())
        comparisons = [
            Comparison(**{**c, "rows": [Row(**row) for row in c["rows"]]})
            for c in found.pop("comparisons")
        ]
        return cls(**found, comparisons=comparisons)
