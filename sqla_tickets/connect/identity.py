"""The identity of the database server behind a connection, and the time of its start.

A URL may lead to another server tomorrow: a promoted replica, or a restored copy. And a restarted server may have
lost its last commits. The members of one cluster are one server.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, cast

from sqlalchemy.engine.interfaces import DBAPICursor

from ..dialects import ErrorKind, Statement, TicketDialect
from .timeouts import CONNECT_TIMING

#: The view that a node shows before it joins its cluster.
_NO_CLUSTER = ("", "00000000-0000-0000-0000-000000000000")


class Identity(NamedTuple):
    """One run of one database server.

    Attributes:
        name: what distinguishes it from other servers.
        since: when it started, in seconds by its own clock.
        cluster: the identity of its Galera cluster or group; None for a plain server.
        view: the number of the Galera cluster's view, and the members in it.
    """

    name: str
    since: float
    cluster: str | None = None
    view: str = ""

    def is_same_run(self, other: Identity | None) -> bool:
        """Whether the other identity is of the same server, not restarted since."""
        return (
            other is not None
            and self.name == other.name
            and abs(self.since - other.since) <= CONNECT_TIMING.start_tolerance_seconds
        )

    def shares_cluster(self, other: Identity | None) -> bool:
        """Whether both are in one cluster."""
        return other is not None and self.cluster is not None and self.cluster == other.cluster


class KnownRuns:
    """The runs of one ticket server that make up one generation, within which its numbers cannot fall back.

    A plain server has one run, and so has a MySQL group, whose view a ticket user cannot read. The members of a
    Galera cluster agree on every commit, so the cluster has a run of each member, until its members change. Then each
    is inspected again. A cluster that is bootstrapped from a lagging member keeps its identity, but its view or that
    member's run is a new one.

    Args:
        identity: the identity of the run that began it; None if it showed none.
        known: the identities of other members in the same generation.
    """

    def __init__(self, identity: Identity | None, known: Iterable[Identity] = ()) -> None:
        self._latest = identity
        self._runs = {run.name: run for run in (*known, identity) if run is not None}

    def has(self, identity: Identity, *, is_new: bool) -> bool:
        """Whether a connection to that run brings nothing new.

        Args:
            identity: the identity that was read when it was opened.
            is_new: whether it was opened just now; an old connection has an old view.
        """
        if not identity.is_same_run(self._runs.get(identity.name)):
            return False
        return not is_new or self._is_of_view(identity)

    def followed_by(self, identity: Identity, *, is_new: bool) -> KnownRuns:
        """The next generation; it includes the known runs if this is one more member."""
        latest = self._latest
        is_one_more = identity.shares_cluster(latest) and identity.name not in self._runs
        # without its view, no client can see that it fell back
        if latest is None or not is_one_more or not identity.view:
            return KnownRuns(identity)
        if not is_new:  # its view is an old one
            identity = identity._replace(view=latest.view)
        return KnownRuns(identity, self._runs.values() if self._is_of_view(identity) else ())

    def _is_of_view(self, identity: Identity) -> bool:
        latest = self._latest
        return latest is not None and identity[2:] == latest[2:]


def identify(
    cursor: DBAPICursor, dialect: TicketDialect, last: Identity | None = None
) -> Identity | None:
    """Ask a server for its identity; None for a file, and for a server that does not show one.

    It takes one round trip, and a second one for a MySQL server that is not the one asked last.

    Args:
        cursor: the cursor that sends it.
        dialect: the server's dialect.
        last: the last identity found at this address.

    Raises:
        Exception: the driver's error, from a server that could show an identity: it may be another server now.
    """
    question = dialect.identity()
    row = None if question is None else _row(cursor, dialect, question)
    if row is None:
        return None
    try:
        name, since, cluster, view = row
        found = Identity(str(name), float(since))
    except (TypeError, ValueError):
        return None
    if cluster is not None and str(cluster) not in _NO_CLUSTER:
        return found._replace(cluster=str(cluster), view=str(view))
    group = dialect.group_name()
    if group is None:
        return found
    if last is not None and found.is_same_run(last):
        return found._replace(cluster=last.cluster)
    (member_of,) = _row(cursor, dialect, group) or (None,)
    return found._replace(cluster=str(member_of) if member_of else None)


def _row(cursor: DBAPICursor, dialect: TicketDialect, question: Statement) -> Sequence[Any] | None:
    """Read a server's one row; None if it is a substitute for MySQL that lacks the variable."""
    for is_again in (False, True):
        try:
            cursor.execute(question.text, ())
            (row,) = cursor.fetchall()
        except Exception as error:
            kind = dialect.error_kind(error)
            if kind is ErrorKind.KILLED and not is_again:
                continue
            if kind in (ErrorKind.KILLED, ErrorKind.TIMEOUT):
                raise
            return None  # if the connection is lost, no draw is sent over it
        return cast("Sequence[Any]", row)
    return None
