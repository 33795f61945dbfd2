"""Plans that change ticket servers: each lists its steps, runs them, and ends with a proof.

A module for each change makes its `plan`, and proves it with `proofs`: `creating`, `raising`, `restoring`, `moving` and
`resizing`.
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
