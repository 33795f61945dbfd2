"""``alembic.op`` with the operations of this package, for type checkers: ``from alembic_ext import op``.

Alembic adds a plugin's operations to ``alembic.op`` when it runs, so type checkers refuse them there. This is the same
module, and ``op.pyi`` beside it has their signatures.
"""

from __future__ import annotations

from alembic import op


def __getattr__(name: str) -> object:
    return getattr(op, name)


def __dir__() -> list[str]:
    return dir(op)
