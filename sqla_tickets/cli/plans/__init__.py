"""Plans that change ticket servers: each lists its steps, runs them, and ends with a proof.

A module for each change makes its `Plan`, and proves it with `proofs`.
"""

from .creating import create
from .moving import move
from .plan import PartlyDone, Plan, impossible
from .raising import raise_
from .resizing import finish, grow, retire, retire_absent
from .restoring import restore

__all__ = [
    "PartlyDone",
    "Plan",
    "create",
    "finish",
    "grow",
    "impossible",
    "move",
    "raise_",
    "restore",
    "retire",
    "retire_absent",
]
