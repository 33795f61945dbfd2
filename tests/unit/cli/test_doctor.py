"""Checks of the doctor on settings that no server at hand can have."""

from __future__ import annotations

import pytest

from sqla_tickets import TicketPool
from sqla_tickets.cli.doctor import duplicate_servers, read_only, version
from sqla_tickets.cli.inspection import PoolInspection, ServerInspection
from sqla_tickets.connect.identity import Identity


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


@pytest.mark.parametrize(("since", "is_one"), [(1_700_000_000.0, True), (1_700_009_999.0, False)])
def test_machines_with_one_name_are_two_servers(since: float, is_one: bool) -> None:
    """Copies of one image: the hostname, the port and the folder are the same, but not the start."""
    with TicketPool(["sqlite://", "sqlite://"]) as pool:
        facts = [ServerInspection(server, "mariadb") for server in pool.servers]
        for each, start in zip(facts, (1_700_000_000.0, since), strict=True):
            each.server.identity = Identity("vm 3306 1 /var/lib/mysql/", start)
            each.variables = {"hostname": "vm", "port": "3306", "datadir": "/var/lib/mysql/"}
        found = [list(duplicate_servers(each, PoolInspection(pool, facts))) for each in facts]
    assert [[f.code for f in each] for each in found] == [["same-server"] * is_one] * 2


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
