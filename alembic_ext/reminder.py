"""Reminders of what a run of autogenerate leaves out: ticket tables, or shards.

Ticket tables are left out if ticket servers are configured, but ``env.py`` does not list the plugin that compares them.
Without this reminder, an application would learn that from its first insert. Shards are left out if several are
configured, but ``env.py`` has no loop over them. Alembic lists this plugin by default.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from alembic.operations.ops import UpgradeOps
from alembic.util import CommandError, PriorityDispatchResult

from .configuration import find_pools, shards_of

if TYPE_CHECKING:  # Alembic may be in the middle of its own import
    from alembic.autogenerate.api import AutogenContext
    from alembic.runtime.migration import MigrationContext

log = logging.getLogger("alembic.sqla_tickets")

#: The name of that plugin: `ALEMBIC_S_OWN` has it.
NAME = "alembic.autogenerate.sqla_tickets_reminder"
#: What `autogenerate_plugins` is where nobody says otherwise, and the names by which it has this plugin.
ALEMBIC_S_OWN = ["alembic.autogenerate.*"]
NAMES = {"sqla_tickets", "~sqla_tickets", "*"}


def remind(context: AutogenContext, upgrade_ops: UpgradeOps) -> PriorityDispatchResult:
    """Warn of shards, and of ticket tables if ``autogenerate_plugins`` neither has the plugin nor excludes it."""
    made = context.migration_context
    _remind_of_shards(made)
    plugins: list[str] = made.opts.get("autogenerate_plugins") or ALEMBIC_S_OWN
    if NAMES.isdisjoint(plugins) and _has_servers(made):
        where = made.script.env_py_location if made.script is not None else "env.py"
        log.warning(
            "ticket tables are not compared: ticket servers are configured, and autogenerate_plugins of"
            " context.configure() in %s does not list 'sqla_tickets': found %s. Make it %s, as `sqla-tickets init` "
            "does, or add '~sqla_tickets' to it to silence this warning",
            where,
            plugins,
            [*plugins, "sqla_tickets"],
        )
    return PriorityDispatchResult.CONTINUE


def _remind_of_shards(context: MigrationContext) -> None:
    """Warn if the configuration has several shards, and ``env.py`` does not mention them."""
    try:
        shards = shards_of(context)
    except CommandError:
        return  # what reads them raises
    if len(shards) < 2 or context.script is None or context.connection is None:
        return
    env = Path(context.script.env_py_location)
    if "shards" not in env.read_text(encoding="utf-8"):
        log.warning(
            "only %s is migrated and compared: the configuration has %d shards, and %s does not mention them. Give it "
            "the loop that `sqla-tickets init` writes, or the word shards in a comment to silence this warning",
            context.connection.engine.url,
            len(shards),
            env,
        )


def _has_servers(context: MigrationContext) -> bool:
    """Whether ticket servers are configured, validly or not."""
    try:
        return bool(find_pools(context))
    except CommandError:
        return True
