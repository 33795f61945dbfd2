"""The entry point ``sqla_tickets`` of the group ``alembic.plugins``: the module that Alembic imports.

Alembic calls `setup` on every ``import alembic``, in every program of the environment. So `setup` raises nothing and
connects to nothing. It adds to autogenerate only the comparators that ``autogenerate_plugins`` lists, and a reminder
about that option.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import logging
import os
import sys
import warnings
from collections.abc import Iterator
from types import ModuleType
from typing import TYPE_CHECKING

from .errors import TicketWarning

if TYPE_CHECKING:  # Alembic may be in the middle of its own import
    from alembic.autogenerate.api import AutogenContext
    from alembic.operations.ops import UpgradeOps
    from alembic.runtime.plugins import Plugin
    from alembic.util import PriorityDispatchResult

log = logging.getLogger("alembic.sqla_tickets")


def setup(plugin: Plugin) -> None:
    """Register the operations on ticket tables, and the comparator of autogenerate."""
    from alembic.util import CommandError, DispatchPriority  # noqa: PLC0415  # it is being imported

    problem = _import_operations()

    def compare_tickets(context: AutogenContext, upgrade_ops: UpgradeOps) -> PriorityDispatchResult:
        if problem is not None:
            raise CommandError(f"the plugin 'sqla_tickets' cannot work: {problem}")
        from alembic_ext.compare import compare_tickets  # noqa: PLC0415  # its import may fail

        return compare_tickets(context, upgrade_ops)

    # last, so that it sees what the others found: tables and columns that are to be created
    plugin.add_autogenerate_comparator(
        compare_tickets, "autogenerate", "tickets", priority=DispatchPriority.LAST
    )
    if problem is None:
        from alembic_ext.compare import keep_auto_increment  # noqa: PLC0415  # its import may fail

        plugin.add_autogenerate_comparator(
            keep_auto_increment, "column", "tickets", priority=DispatchPriority.LAST
        )
        _add_reminder()


def _import_operations() -> str | None:
    """Import `alembic_ext`, which registers the operations.

    Returns:
        The problem, which has been logged or warned of; None if there is none.
    """
    hiding = _namesake()
    if hiding is not None:
        problem = (
            f"{hiding} hides sqla-tickets' package alembic_ext, so migrations cannot create or compare ticket "
            f"tables: rename that file or folder. Ignore this warning if no migration here needs ticket tables"
        )
        warnings.warn(problem, TicketWarning, stacklevel=3)
        return problem
    try:
        importlib.import_module("alembic_ext.compare")
    except Exception as error:
        log.exception("ticket tables are left out of the migrations")
        return str(error)
    return None


def _add_reminder() -> None:
    from alembic.runtime.plugins import Plugin  # noqa: PLC0415  # it is being imported

    from alembic_ext import reminder  # noqa: PLC0415  # its import may fail

    with contextlib.suppress(ValueError):  # it is there already
        Plugin(reminder.NAME).add_autogenerate_comparator(
            reminder.remind, "autogenerate", "tickets_reminder"
        )


def _namesake() -> str | None:
    """The file of an `alembic_ext` that is not this distribution's, such as one in the user's project."""
    loaded = sys.modules.get("alembic_ext")
    # finding it does not run it
    spec = loaded.__spec__ if loaded is not None else importlib.util.find_spec("alembic_ext")
    if spec is None or spec.origin is None:
        return None  # a folder without modules, or nothing: the import will tell
    ours = os.path.abspath(f"{os.path.dirname(__file__)}/../alembic_ext")
    return None if os.path.abspath(os.path.dirname(spec.origin)) == ours else spec.origin


class _Self(ModuleType):
    """This module as a collection of itself: Alembic 1.18 to 1.20.0 iterate over an entry point."""

    def __iter__(self) -> Iterator[ModuleType]:
        yield self


sys.modules[__name__].__class__ = _Self
