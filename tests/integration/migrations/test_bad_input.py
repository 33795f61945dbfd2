"""What is refused leaves every server as it was; what broke off is mended by a second run."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from alembic.util import CommandError
from sqlalchemy import URL, text

import alembic_ext as op
from sqla_tickets import TicketPool
from sqla_tickets.maintenance import operations as maintenance
from sqla_tickets.tables.inspection import ActiveTable
from tests.integration.migrations.test_operations import states
from tests.support.fault_injection import StatementCounter
from tests.support.migration_contexts import operations
from tests.support.servers import USER, MySQLLike, Server, ServerFixtures

NAMES = [
    "photos`; DROP TABLE x",
    'pho"tos',
    "pho'tos",
    "pho tos",
    "100%",
    "%s",
    "select",
    "fotö",
    "*/",
]


def fails(call: Callable[[], object], match: str) -> str:
    with pytest.raises(CommandError, match=match) as caught:
        call()
    assert "hush" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("name", NAMES)
def test_names_that_need_quoting(name: str, default: TicketPool, media: TicketPool) -> None:
    with operations(default, media):
        op.create_ticket_table(name)
        drawn = default.next_ids(name, 5)
        op.move_ticket_table(name, to="media")
        drawn += media.next_ids(name, 5)
        op.rename_ticket_table(name, f"{name}2", pool="media")
        op.raise_ticket_table(f"{name}2", above=400, pool="media")
        drawn += media.next_ids(f"{name}2", 5)
        op.drop_ticket_table(f"{name}2", pool="media", force=True)
    assert len(set(drawn)) == 15


OPERATIONS: dict[str, Callable[[], object]] = {
    "drop": lambda: op.drop_ticket_table("photos", force=True),
    "raise": lambda: op.raise_ticket_table("photos", above=1000),
    "rename": lambda: op.rename_ticket_table("photos", "pictures"),
    "move": lambda: op.move_ticket_table("photos", to="media"),
    "create": lambda: op.create_ticket_table("tags"),
}
CONVERSION: dict[str, Callable[[], object]] = {
    "convert": lambda: op.convert_ticket_table("photos", layout="counter")
}


@pytest.mark.ticket_servers("mariadb")
def test_a_server_that_is_down(
    default: TicketPool, media: TicketPool, servers: ServerFixtures
) -> None:
    with operations(default, media):
        op.create_ticket_table("photos")
        drawn = default.next_ids("photos", 4)
        servers.mariadb(1).kill()
        for name, run in {**OPERATIONS, **CONVERSION}.items():
            fails(run, "that it is running")
            if name != "raise":
                assert isinstance(
                    maintenance.table_states(default, "photos")[default.servers[0]],
                    ActiveTable,
                )
            drawn += default.next_ids("photos", 4)
    assert len(set(drawn)) == len(drawn)


class Outage(StatementCounter):
    """Kills a server at the second change, which is on this or the other one."""

    def __init__(self, server: Server) -> None:
        super().__init__()
        self._server = server

    def change(self, send: Callable[[], object], kill: Callable[[], None]) -> object:
        if self.changes == 2:
            self._server.kill()
        return send()


@pytest.mark.ticket_servers("mariadb")
@pytest.mark.parametrize("operation", [*OPERATIONS, *CONVERSION])
def test_a_server_that_goes_down_in_the_middle(
    operation: str,
    default: TicketPool,
    ticket_urls: list[URL],
    media_urls: list[URL],
    servers: ServerFixtures,
) -> None:
    run = {**OPERATIONS, **CONVERSION}[operation]
    default.create_table("photos")
    drawn = default.next_ids("photos", 4)
    statements = Outage(servers.mariadb(1))
    source = TicketPool([statements.engine(url) for url in ticket_urls])
    target = TicketPool([statements.engine(url) for url in media_urls], name="media")
    with operations(source, target):
        fails(run, "that it is running")
        servers.mariadb(1).start()
        run()
        drawn += op.next_tickets("photos", 4) if operation != "drop" else []
    statements.close()
    assert len(set(drawn)) == len(drawn)


def test_a_table_that_is_no_ticket_table(default: TicketPool, media: TicketPool) -> None:
    with default.servers[0].engine.connect() as connection:
        connection.execute(text("CREATE TABLE photos (id INT PRIMARY KEY, title VARCHAR(9))"))
        connection.commit()
    with operations(default, media):
        for call in (
            lambda: op.create_ticket_table("photos"),
            *(OPERATIONS[each] for each in ("drop", "raise", "rename", "move")),
        ):
            fails(call, "is not a ticket table")
    assert [*maintenance.table_states(default, "photos").values()][1] is None


def test_a_table_on_one_server_only(default: TicketPool, media: TicketPool) -> None:
    with operations(default, media):
        op.create_ticket_table("photos")
        default.servers[1].drop("photos")
        before = states(default)
        fails(OPERATIONS["move"], "there is no ticket table 'photos' on")
        fails(OPERATIONS["rename"], "there is no ticket table 'photos' on")
        assert states(default) == before
        op.create_ticket_table("photos")
        op.move_ticket_table("photos", to="media")


def test_a_start_above_what_is_there(default: TicketPool) -> None:
    with operations(default):
        op.create_ticket_table("photos", start=50)
        before = states(default)
        fails(lambda: op.create_ticket_table("photos", start=5000), "below start=5000")
        assert states(default) == before


@pytest.mark.ticket_servers("mariadb", "mysql")
def test_another_layout_than_is_there(default: TicketPool) -> None:
    with operations(default):
        op.create_ticket_table("photos", layout="counter")
        fails(
            lambda: op.create_ticket_table("photos", layout="replace"), "has the layout 'counter'"
        )


def test_moves_that_lead_nowhere(
    default: TicketPool, media: TicketPool, ticket_urls: list[URL]
) -> None:
    wide = TicketPool(
        [str(u.render_as_string(hide_password=False)) for u in _urls(media)], name="wide", stride=4
    )
    same = TicketPool(ticket_urls, name="same")
    with operations(default, media, wide, same):
        op.create_ticket_table("photos")
        op.create_ticket_table("taken")
        op.create_ticket_table("taken", pool="media")
        before = states(default), states(media), states(default, "taken"), states(media, "taken")
        fails(lambda: op.move_ticket_table("photos", to="same"), "share servers")
        fails(lambda: op.move_ticket_table("photos", to="default"), "to itself.*--pool NAME")
        fails(lambda: op.move_ticket_table("photos", to="wide"), "the same stride")
        fails(lambda: op.move_ticket_table("photos", to="nowhere"), "configured: default, media")
        fails(lambda: op.move_ticket_table("taken", to="media"), "already")
        fails(lambda: op.rename_ticket_table("photos", "taken"), "already")
        fails(lambda: op.move_ticket_table("none", to="media"), "create it first")
        after = states(default), states(media), states(default, "taken"), states(media, "taken")
    assert after == before


def _urls(pool: TicketPool) -> list[URL]:
    return [server.engine.url for server in pool.servers]


@pytest.mark.every_case
@pytest.mark.ticket_servers("mariadb", "mysql")
@pytest.mark.parametrize("lacking", ["CREATE", "ALTER", "LOCK TABLES"])
def test_a_user_without_a_privilege(
    lacking: str, ticket_urls: list[URL], ticket_kind: str, servers: ServerFixtures
) -> None:
    pool = TicketPool(ticket_urls)
    if lacking != "CREATE":
        pool.create_table("photos")
    server = servers.shared(ticket_kind, 1)
    assert isinstance(server, MySQLLike)
    database = ticket_urls[1].database
    with server.administrator() as cursor:
        cursor.execute(f"REVOKE {lacking} ON `{database}`.* FROM '{USER}'@'%'")
    pool.dispose()
    with operations(pool):
        calls: dict[str, Callable[[], None]] = {
            "CREATE": lambda: op.create_ticket_table("photos"),
            "ALTER": lambda: op.drop_ticket_table("photos", force=True),
            "LOCK TABLES": lambda: op.drop_ticket_table("photos", force=True),
        }
        call = calls[lacking]
        said = fails(call, "GRANT")
        assert f"GRANT {lacking} ON {database}.*" in said.replace("`", "")
        with server.administrator() as cursor:
            cursor.execute(f"GRANT {lacking} ON `{database}`.* TO '{USER}'@'%'")
        pool.dispose()
        call()
