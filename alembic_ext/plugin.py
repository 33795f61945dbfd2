"""The entry point ``sqla_tickets`` of the group ``alembic.plugins``: what Alembic itself imports.

It runs on every ``import alembic``, in every program of the environment. So `setup` raises nothing,
connects to nothing, and adds to autogenerate only what somebody lists in ``autogenerate_plugins``.
"""

from __future__ import annotations

import importlib
import logging
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import TYPE_CHECKING

from alembic.util import CommandError, DispatchPriority, PriorityDispatchResult

if TYPE_CHECKING:  # Alembic may be in the middle of its own import
    from alembic.autogenerate.api import AutogenContext
    from alembic.operations.ops import UpgradeOps
    from alembic.runtime.plugins import Plugin

__all__ = ["register", "setup"]

log = logging.getLogger("alembic.sqla_tickets")


def register() -> Exception | None:
    """Make ``op`` and the renderers know the operations.

    Returns:
        What went wrong, which was logged as well; None when all is well.
    """
    try:
        for module in ("ops", "impl", "render", "time_sorted_ops", "compare", "time_sorted"):
            importlib.import_module(f"alembic_ext.{module}")  # which registers what is in it
    except Exception as error:
        log.exception("ticket tables are left out of the migrations")
        return error
    return None


def setup(plugin: Plugin) -> None:
    """Register the operations, and the comparators of this plugin."""
    error = register()

    def compare_tickets(context: AutogenContext, upgrade_ops: UpgradeOps) -> PriorityDispatchResult:
        if error is not None:
            raise CommandError(f"the plugin 'sqla_tickets' cannot work: {error}") from error
        from .compare import compare_tickets  # noqa: PLC0415  # it may have failed

        return compare_tickets(context, upgrade_ops)

    # last, so that it sees what the others found: tables and columns that are to be created
    plugin.add_autogenerate_comparator(
        compare_tickets, "autogenerate", "tickets", priority=DispatchPriority.LAST
    )


class _Self(ModuleType):
    """This module as a collection of itself: Alembic 1.18 to 1.20.0 iterate over an entry point."""

    def __iter__(self) -> Iterator[ModuleType]:
        yield self


sys.modules[__name__].__class__ = _Self
