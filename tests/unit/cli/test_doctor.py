"""Checks of the doctor on settings that no server at hand can have."""

from __future__ import annotations

import pytest

from sqla_tickets import TicketPool
from sqla_tickets.cli.doctor import read_only, version
from sqla_tickets.cli.inspection import PoolInspection, ServerInspection


@pytest.mark.parametrize(
    ("kind", "old", "new"),
    [("mysql", (5, 7, 44), (8, 0)), ("mariadb", (10, 2, 3), (10, 2, 4)), ("sqlite", (), (3, 7))],
)
def test_releases_that_cannot_be_had(kind: str, old: tuple[int, ...], new: tuple[int, ...]) -> None:
    """Nobody packages them any more: what the check says of their numbers, without a server."""
    with TicketPool(["sqlite://"]) as pool:
        facts = [ServerInspection(pool.servers[0], kind, number) for number in (old, new)]
        before, since = (list(version(each, PoolInspection(pool, facts))) for each in facts)
    assert [finding.code for finding in before] == ["old-version"] * bool(old)
    assert since == []


def test_read_only_as_no_server_here_can_be() -> None:
    """MariaDB 12: keeps others from locks, too."""
    with TicketPool(["sqlite://"]) as pool:
        inspection = ServerInspection(pool.servers[0], "mariadb")
        whole = PoolInspection(pool, [inspection])
        inspection.variables = {"read_only": "NO_LOCK"}
        (finding,) = read_only(inspection, whole)
        inspection.variables = {"read_only": "OFF", "innodb_read_only": "0"}
        assert list(read_only(inspection, whole)) == []
    assert (finding.code, finding.variable, finding.value) == ("read-only", "read_only", "NO_LOCK")
