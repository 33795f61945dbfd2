"""From two ticket servers to four and back, while processes of every configuration draw."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import URL

from sqla_tickets import (
    NodeLeases,
    SnowflakeGenerator,
    TicketArgumentError,
    TicketError,
    TicketPool,
    TicketServer,
    TicketsExhausted,
    TicketTableError,
)
from sqla_tickets.high_water.statements import MARKS
from sqla_tickets.maintenance import operations, resize
from sqla_tickets.maintenance.handle import TableHandle
from tests.support.command_line import options, run_cli
from tests.support.draws import (
    FLICKRS_TABLE,
    OpenPool,
    assert_unique,
    from_one_start,
    grant_only,
    mysql_like,
    run,
    until,
)
from tests.support.fault_injection import BetweenStatements, StatementCounter
from tests.support.servers import ServerFixtures

#: Longer than any wait of a breaker, on a machine that is busy.
PATIENCE = 90.0


def draw_on(urls: list[str], stride: int, journal: str, end: str) -> None:
    """Draw one, a few and a block in turn until the file ``end`` is there, and write all down."""
    with TicketPool(urls, stride=stride) as pool, open(journal, "w") as book:
        number = 0
        while not Path(end).exists():
            number += 1
            try:
                drawn = pool.next_ids("photos", (1, 1, 3, 20)[number % 4])
            except TicketError as error:
                book.write(f"FAILED {type(error).__name__}: {error}\n")
            else:
                book.writelines(f"{ticket}\n" for ticket in drawn)
            book.flush()
            time.sleep(0.005)


class Client:
    """A process that draws with some configuration."""

    def __init__(self, urls: list[URL], stride: int, folder: Path, name: str) -> None:
        self._journal, self._end = folder / f"{name}.ids", folder / f"{name}.end"
        texts = [url.render_as_string(False) for url in urls]
        self._process = from_one_start().Process(
            target=draw_on, args=(texts, stride, str(self._journal), str(self._end)), daemon=True
        )
        self._process.start()

    @property
    def lines(self) -> list[str]:
        text = self._journal.read_text() if self._journal.exists() else ""
        return text.splitlines()[: text.count("\n")]

    @property
    def ids(self) -> list[int]:
        return [int(line) for line in self.lines if not line.startswith("FAILED")]

    @property
    def failures(self) -> list[str]:
        return [line for line in self.lines if line.startswith("FAILED")]

    def draws(self, more: int = 30) -> None:
        """Wait until it has drawn so many more."""
        wanted = len(self.ids) + more
        wait_until(lambda: len(self.ids) >= wanted, f"{self._journal.name}: {self.failures[-1:]}")

    def draws_from_all(self, stride: int) -> None:
        """Wait until it has drawn from every server."""
        wait_until(
            lambda: len({ticket % stride for ticket in self.ids}) == stride,
            "not all are drawn from",
        )

    def stop(self) -> None:
        self._end.touch()
        self._process.join(PATIENCE)
        assert self._process.exitcode == 0


def wait_until(is_so: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not is_so():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


@pytest.fixture
def urls(ticket_kind: str, servers: ServerFixtures, tmp_path: Path) -> list[URL]:
    """Four ticket databases."""
    if ticket_kind == "sqlite":
        return [URL.create("sqlite", database=str(tmp_path / f"{n}.db")) for n in range(4)]
    return [servers.fresh_database(servers.shared(ticket_kind, n % 2)) for n in range(4)]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[list[URL], int], Client]]:
    clients: list[Client] = []

    def start(urls: list[URL], stride: int) -> Client:
        clients.append(Client(urls, stride, tmp_path, f"client{len(clients)}"))
        return clients[-1]

    yield start
    with contextlib.suppress(AssertionError):
        for client in clients:
            client.stop()


def joining(urls: list[URL]) -> list[str]:
    return [word for url in urls for word in ("--add", url.render_as_string(False))]


def test_from_two_to_four_and_back_while_all_draw(
    urls: list[URL],
    start: Callable[[list[URL], int], Client],
    open_pool: OpenPool,
) -> None:
    two, four = options(urls[:2]), options(urls)
    idle = open_pool(urls[:2])
    idle.create_table("photos")
    seen = idle.next_ids("photos", 5) + idle.next_ids("photos", 5)

    old = [start(urls[:2], 2) for _ in range(2)]
    for client in old:
        client.draws()
    grown = run_cli("grow", *two, *joining(urls[2:]))
    assert grown.code == 0, grown.text
    new = [start(urls, 4) for _ in range(2)]
    for client in [*new, *old]:
        client.draws()
    # what is drawn now comes from the old servers to the old clients, from the new ones to the new
    assert {ticket % 4 for client in new for ticket in client.ids} == {0, 3}

    refused = run_cli("grow", "--finish", "--quiet", 1000, *four)  # it does not wait for so long
    assert refused.code == 3, refused.text
    assert "old configuration" in refused.text
    for client in old:
        client.stop()
    ended = run_cli("grow", "--finish", "--quiet", 0.2, *four, "--json")
    assert ended.code == 0, ended.text
    assert "stride 4" in ended.json["proof"]
    again = run_cli("grow", "--finish", *four, "--json")
    assert (again.code, again.json["plan"]) == (0, ["every server already has the stride 4"])
    for client in new:
        client.draws_from_all(4)
    with pytest.raises(TicketTableError, match="numbered differently"):
        idle.next_id("photos")

    assert run_cli("retire", *four, "--last", 2, "--dry-run").code == 0
    retired = run_cli("retire", "--yes", *four, "--last", 2)
    assert retired.code == 0, retired.text
    last = [*new, start(urls[:2], 4), start(urls[:2], 4)]
    for client in last:
        client.draws()
    high = {ticket for client in new for ticket in client.ids if ticket % 4 in (0, 3)}
    assert min(last[-1].ids) > max(high)
    assert run_cli("grow", *two, "--stride", 4, *joining(urls[2:])).code == 0
    for client in last:
        client.draws()
    for client in last:
        client.stop()
    everybody = [*old, *last]
    assert [failure for client in everybody for failure in client.failures] == []
    assert_unique([*seen, *(ticket for client in everybody for ticket in client.ids)])


def test_retired_servers_in_the_list_are_called_retired(
    urls: list[URL],
    open_pool: OpenPool,
    servers: ServerFixtures,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """By the plan, status, doctor, audit and the log of a client: one word for one thing."""
    pool = open_pool(urls, 4)
    pool.create_table("photos")
    shard = servers.fresh_database(servers.mariadb(0), None)
    run(shard, "CREATE TABLE photos (id BIGINT NOT NULL PRIMARY KEY)")
    on = options(urls)
    retired = run_cli("retire", "--yes", *on, "--last", 2)
    assert retired.code == 0
    assert retired.text.count("- retire 'photos' on ") == 2
    status, doctor, audit = (
        run_cli("status", *on, "--over", 0),
        run_cli("doctor", *on),
        run_cli("audit", *on, "--shard", shard.render_as_string(False)),
    )
    for done in (status, doctor, audit):
        assert done.code == 1
        assert (
            done.text.count("Do: Remove that server from the configuration, and keep the stride.")
            == 2
        )
        assert done.text.count("s retired") >= 2
        assert "dropped" not in done.text
        assert "NO TABLE" not in done.text
    assert status.text.startswith("2 of 4 ticket servers are RETIRED. Ids are still issued.")
    for _ in range(8):
        pool.next_id("photos")
    warnings = [r.getMessage() for r in caplog.records if "is retired" in r.getMessage()]
    assert warnings
    assert all("remove that server from the configuration" in w for w in warnings)


@pytest.fixture
def pools(urls: list[URL], open_pool: OpenPool) -> tuple[TicketPool, TicketPool]:
    old = open_pool(urls[:2])
    old.create_table("photos")
    old.next_ids("photos", 9)
    return old, open_pool(urls, 4)


SQLITE = pytest.mark.ticket_servers("sqlite")


@SQLITE
def test_the_servers_that_join_begin_a_gap_above(pools: tuple[TicketPool, TicketPool]) -> None:
    old, new = pools
    above = resize.begin(old, new, "photos", gap=5000)
    assert above >= 5009
    assert {new.next_id("photos") % 4 for _ in range(4)} <= {0, 3}
    assert min(new.next_ids("photos", 10)) > above
    assert max(old.next_ids("photos", 10)) < 100
    # once more, as after an interruption, it changes nothing
    last = [server.last_ticket("photos") for server in new.servers[2:]]
    resize.begin(old, new, "photos", gap=9000)
    assert [server.last_ticket("photos") for server in new.servers[2:]] == last


@SQLITE
def test_a_growth_that_was_interrupted_is_ended(
    pools: tuple[TicketPool, TicketPool], monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = pools
    resize.begin(old, new, "photos")
    ids = old.next_ids("photos", 4) + new.next_ids("photos", 4)

    def dies(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(TableHandle, "open", dies)
        with pytest.raises(KeyboardInterrupt):
            resize.finish(new, "photos")
    ids += new.next_ids("photos", 4)
    resize.finish(new, "photos")
    assert resize.unfinished(new, "photos") == {}
    deadline = time.monotonic() + PATIENCE
    while {t % 4 for t in ids[8:]} != {0, 1, 2, 3}:
        assert time.monotonic() < deadline
        ids += new.next_ids("photos", 4)
    assert_unique(ids)
    assert resize.finish(new, "photos") == []


@SQLITE
@pytest.mark.parametrize("killed_at", [1, 2])
def test_grow_finish_after_a_kill_between_close_and_open(
    pools: tuple[TicketPool, TicketPool],
    urls: list[URL],
    monkeypatch: pytest.MonkeyPatch,
    killed_at: int,
) -> None:
    """One of the old servers is closed, and nobody draws from it before the command is given again."""
    old, new = pools
    resize.begin(old, new, "photos")
    ids = old.next_ids("photos", 4) + new.next_ids("photos", 4)
    opened, calls = TableHandle.open, []

    def open_or_die(*arguments: Any) -> None:
        calls.append(arguments)
        if len(calls) == killed_at:
            raise KeyboardInterrupt
        opened(*arguments)

    finish = ("grow", "--finish", "--quiet", "0", *options(urls))
    with monkeypatch.context() as patch:
        patch.setattr(TableHandle, "open", open_or_die)
        interrupted = run_cli(*finish)
        assert (interrupted.code, "run the same command again" in interrupted.text) == (3, True)
    if killed_at == 2:
        assert "which an interrupted run has closed" in run_cli(*finish, "--dry-run", "--json").text
    done = run_cli(*finish)
    assert done.code == 0, done.text
    assert resize.unfinished(new, "photos") == {}
    ids += [i for server in new.servers for i in server.draw("photos", 60)[0]]
    assert_unique(ids)


@SQLITE
def test_growth_with_a_server_down_at_its_finish_is_finished(
    pools: tuple[TicketPool, TicketPool], urls: list[URL], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one that has the new stride already is not taken for one of those that joined."""
    old, new = pools
    resize.begin(old, new, "photos")

    def is_down(*_: object) -> None:
        raise TicketError("down")

    with monkeypatch.context() as patch:
        patch.setattr(new.servers[1], "do", is_down)
        with pytest.raises(TicketError, match="down"):
            resize.finish(new, "photos")
    ids = [*old.servers[1].draw("photos", 50)[0]]
    done = run_cli("grow", "--finish", "--quiet", 0, *options(urls))
    assert done.code == 0, done.text
    ids += [i for server in new.servers for i in server.draw("photos", 60)[0]]
    assert_unique(ids)


@SQLITE
@pytest.mark.parametrize("restored", ["before", "between", "after"])
def test_growth_of_a_restored_server_repeats_nothing(
    restored: str, urls: list[URL], open_pool: OpenPool
) -> None:
    """What it had issued by the stride of before, only its peer knows by then."""
    file, copy = Path(str(urls[0].database)), Path(f"{urls[0].database}.copy")
    old = open_pool(urls[:2], 2)
    old.create_table("photos")
    shutil.copy(file, copy)
    ids = [old.next_id("photos") for _ in range(400)]
    old.dispose()  # which writes the marks

    def restore(at: str) -> None:
        if at == restored:
            shutil.copy(copy, file)

    restore("before")
    resize.begin(open_pool(urls[:2], 2), open_pool(urls, 4), "photos")
    restore("between")
    resize.finish(open_pool(urls, 4), "photos")
    restore("after")
    resize.finish(open_pool(urls, 4), "photos")
    ids += [open_pool(urls, 4).next_id("photos") for _ in range(8)]
    ids += open_pool(urls, 4).next_ids("photos", 400)
    assert_unique(ids)


@SQLITE
def test_finish_for_one_restored_server_demands_its_restore(
    pools: tuple[TicketPool, TicketPool], urls: list[URL]
) -> None:
    """A growth ends with several servers; later, one of them comes back from a backup from before."""
    old, new = pools
    file = Path(str(urls[1].database))
    backup = file.read_bytes()
    resize.begin(old, new, "photos")
    finish = ["grow", "--finish", "--quiet", "0", *options(urls)]
    step = f"if {old.servers[1]} came from a backup: sqla-tickets restore --offset 2, with --shard"
    ended = run_cli(*finish)
    assert (ended.code, step in ended.text) == (0, False)
    file.write_bytes(backup)
    again = run_cli(*finish)
    assert (again.code, step in again.text) == (0, True), again.text


@SQLITE
def test_growth_under_way_refuses_renames_and_moves(urls: list[URL], open_pool: OpenPool) -> None:
    """The servers that joined have the sequence by the name, and in the pool, of before."""
    old = open_pool(urls[:2], 2)
    old.create_table("photos")
    resize.begin(old, open_pool(urls, 4), "photos")
    with pytest.raises(TicketTableError, match="is being resized"):
        operations.rename(old, "photos", "pictures")
    others = [URL.create("sqlite", database=f"{url.database}.media") for url in urls[:2]]
    media = TicketPool(others, name="media")
    with media, pytest.raises(TicketTableError, match="is being resized"):
        operations.move(old, "photos", media)


@SQLITE
def test_growth_under_way_is_shown_with_the_new_configuration(
    urls: list[URL], open_pool: OpenPool
) -> None:
    """As a state of its own, with its own next step, by status and doctor."""
    old = open_pool(urls[:2], 2)
    old.create_table("photos")
    resize.begin(old, open_pool(urls, 4), "photos")
    status = run_cli("status", *options(urls), "--over", 0)
    assert status.text.startswith("2 of 4 ticket servers are GROWING. Ids are still issued.")
    for done in (status, run_cli("doctor", *options(urls))):
        text = " ".join(done.text.split())
        assert text.count("This pool has the stride 4, the table 2. ") == 2
        assert text.count("Do: If the pool grows, run sqla-tickets grow --finish when every") == 2
        assert "that is expected" not in text


@pytest.mark.ticket_servers("sqlite", "mariadb")
def test_gap_that_is_used_up_is_shown_by_every_command(
    urls: list[URL], open_pool: OpenPool
) -> None:
    """The column has numbers left, but they are the joined servers'."""
    old = open_pool(urls[:2], 2)
    old.create_table("photos")
    resize.begin(old, open_pool(urls, 4), "photos", gap=200)
    with pytest.raises(TicketsExhausted, match="stride=4"):
        until(lambda: old.next_id("photos") < 0)
    on = options(urls[:2])
    status = run_cli("status", *on, "--over", 0)
    assert status.code == 1
    assert status.text.startswith(
        "2 of 2 ticket servers are USED UP. This configuration gets no ids."
    )
    text = " ".join(status.text.split())
    assert text.count("above which servers with a stride of 4 issue tickets. Do: Give every") == 2
    assert text.count("then run sqla-tickets grow --finish") == 2
    listed = run_cli("status", *on, "--over", 0, "--json").json["status"]
    assert {(s["state"], s["capacity_left"], s["bits"]) for s in listed} == {("used up", 0, 64)}
    examined = run_cli("doctor", *on, "--json").json["findings"]
    used = [f for f in examined if f["code"] == "numbers-used"]
    assert [f["sequence"] for f in used] == ["photos", "photos"]
    assert all("grow --finish" in f["fix"] for f in used)
    metrics = run_cli("metrics", *on)
    ratios = re.findall(r"^sqla_tickets_capacity_ratio{.*} (.*)$", metrics.text, re.MULTILINE)
    assert metrics.code == 1
    assert len(ratios) == 2
    assert all(0.9 < float(ratio) <= 1 for ratio in ratios)
    run(urls[1], f"DELETE FROM {MARKS} WHERE stride = 4")  # as in a backup: one server shows it
    assert run_cli("status", *on, "--over", 0).text.startswith("2 of 2 ticket servers are USED UP.")


@pytest.mark.ticket_servers("sqlite", "mariadb")
def test_growth_under_way_refuses_what_needs_its_end(urls: list[URL], open_pool: OpenPool) -> None:
    """Between the first step and the last, the old configuration can neither finish nor retire."""
    open_pool(urls[:2], 2).create_table("photos")
    old = options(urls[:2])
    assert run_cli("grow", *old, *joining(urls[2:]), "photos").code == 0
    for command in (["retire", "--last", "1"], ["grow", "--finish", "--quiet", "0"]):
        done = run_cli(*command, *old, "photos")
        assert done.code == 3
        assert "is being resized" in done.text
        assert "grow --finish" in done.text
    new = [*options(urls), "--stride", "4"]
    assert run_cli("grow", "--finish", "--quiet", "0", *new, "photos").code == 0
    assert run_cli("retire", "--yes", "--last", "2", *new, "photos").code == 0


def as_another_program(*urls: URL) -> None:
    """Draw tickets as a client does that reads no marks."""
    for url in urls:
        number = number_of(url) + 4000
        if url.get_backend_name() in ("mysql", "mariadb"):
            run(url, f"REPLACE INTO photos (id, stub) VALUES ({number}, 'a')")
        else:
            run(url, f"UPDATE photos SET id = {number}")


def number_of(url: URL) -> int:
    ((number,),) = run(url, "SELECT id FROM photos")
    assert isinstance(number, int)
    return number


@SQLITE
def test_gap_that_clients_may_use_up_before_they_read_it_is_refused(
    pools: tuple[TicketPool, TicketPool], urls: list[URL]
) -> None:
    refused = run_cli("grow", *options(urls[:2]), *joining(urls[2:]), "--gap", 1000)
    assert refused.code == 3
    assert "at least 200000" in refused.text
    grown = run_cli("grow", *options(urls[:2]), *joining(urls[2:]), "--gap", 200_000)
    assert grown.code == 0, grown.text


def test_growth_by_a_server_that_is_there_has_no_plan(urls: list[URL], open_pool: OpenPool) -> None:
    """As after the configuration was changed, and the command given again."""
    open_pool(urls[:2], stride=4).create_table("photos")
    for added in ([urls[1]], [urls[2], urls[2]]):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            done = run_cli("grow", *options(urls[:2]), "--stride", 4, *joining(added), "--dry-run")
        assert (done.code, "leave it out" in done.text) == (3, True), done.text


def test_growth_with_servers_that_do_not_exist_has_no_plan(
    pools: tuple[TicketPool, TicketPool], urls: list[URL], ticket_kind: str
) -> None:
    """A dry run asks them, too."""
    nowhere = [url.set(port=1) for url in urls[2:]]
    if ticket_kind == "sqlite":
        nowhere = [url.set(database=f"{url.database}/no/folder") for url in urls[2:]]
    refused = run_cli("grow", *options(urls[:2]), *joining(nowhere), "--dry-run")
    assert refused.code == 3, refused.text
    planned = run_cli("grow", *options(urls[:2]), *joining(urls[2:]), "--dry-run")
    assert planned.code == 0, planned.text
    assert "the new servers have the stride 4" in " ".join(planned.text.split())
    assert list(operations.table_states(pools[1], "photos").values())[2:] == [None, None]


@pytest.mark.ticket_servers("mariadb", "mysql")
def test_growth_by_a_user_who_may_not_create_tables_has_no_plan(
    pools: tuple[TicketPool, TicketPool],
    urls: list[URL],
    ticket_kind: str,
    servers: ServerFixtures,
) -> None:
    grant_only(mysql_like(servers, ticket_kind, 0), urls[2], "SELECT, INSERT, UPDATE, DELETE")
    refused = run_cli("grow", *options(urls[:2]), *joining(urls[2:]), "--dry-run")
    assert refused.code == 3, refused.text
    assert "CREATE" in refused.text


@SQLITE
def test_used_up_gap_is_refused(pools: tuple[TicketPool, TicketPool], urls: list[URL]) -> None:
    old, new = pools
    resize.begin(old, new, "photos", gap=1000)
    as_another_program(urls[0])
    done = run_cli("grow", "--finish", "--quiet", 0, *options(urls))
    assert done.code == 3
    assert "the gap is used up" in done.text


@pytest.mark.ticket_servers("sqlite", "mariadb", "postgresql")
def test_growth_after_a_used_up_gap_is_begun_again_and_ended(
    pools: tuple[TicketPool, TicketPool], urls: list[URL], open_pool: OpenPool
) -> None:
    """What the refusal says to do works: all that is issued from then on is new."""
    old, new = pools
    resize.begin(old, new, "photos", gap=1000)
    ids = [i for s in new.servers[2:] for b in s.draw("photos", 700) for i in b]
    as_another_program(*urls[:2])
    ids += [number_of(url) for url in urls[:2]]
    refused = run_cli("grow", "--finish", "--quiet", 0, *options(urls))
    assert refused.code == 3, refused.text
    assert "sqla-tickets grow --add on the old configuration again" in " ".join(
        refused.text.split()
    )

    again = run_cli("grow", *options(urls[:2]), *joining(urls[2:]))
    assert again.code == 0, again.text
    assert "so the gap is used up" in " ".join(again.text.split())
    for pool in (open_pool(urls[:2]), open_pool(urls, 4)):
        ids += [i for _ in range(4) for i in pool.next_ids("photos", 500)]
    finished = run_cli("grow", "--finish", "--quiet", 0, *options(urls))
    assert finished.code == 0, finished.text
    ids += [i for s in open_pool(urls, 4).servers for b in s.draw("photos", 700) for i in b]
    assert_unique(ids)


@SQLITE
@pytest.mark.parametrize("killed_at", [1, 2, 3, 4])
def test_growth_begun_again_after_a_kill_repeats_nothing(
    pools: tuple[TicketPool, TicketPool],
    open_pool: OpenPool,
    urls: list[URL],
    monkeypatch: pytest.MonkeyPatch,
    killed_at: int,
) -> None:
    """Where the others join is written last: until then old clients are stopped, and another run does all of it."""
    old, new = pools
    resize.begin(old, new, "photos", gap=1000)
    ids = [i for s in new.servers[2:] for b in s.draw("photos", 700) for i in b]
    as_another_program(*urls[:2])
    raised, calls = TableHandle.raise_above, []

    def raise_or_die(*arguments: Any, **keywords: Any) -> int:
        calls.append(arguments)
        if len(calls) == killed_at:
            raise KeyboardInterrupt
        return raised(*arguments, **keywords)

    with monkeypatch.context() as patch:
        patch.setattr(TableHandle, "raise_above", raise_or_die)
        with pytest.raises(KeyboardInterrupt):
            resize.begin(old, new, "photos", gap=1000)
    with pytest.raises(TicketsExhausted):
        open_pool(urls[:2]).next_id("photos")
    ids += open_pool(urls, 4).next_ids("photos", 9)
    resize.begin(old, new, "photos", gap=1000)
    for pool in (open_pool(urls[:2]), open_pool(urls, 4)):
        ids += [i for s in pool.servers for b in drawn(s, 200) for i in b]
    assert_unique(ids)


def drawn(server: TicketServer, n: int) -> list[range]:
    """The tickets of one server; none if its table is not for this stride."""
    try:
        return server.draw("photos", n)
    except TicketTableError:
        return []


@SQLITE
def test_used_up_gap_is_refused_however_far_new_servers_are(
    pools: tuple[TicketPool, TicketPool], urls: list[URL]
) -> None:
    old, new = pools
    resize.begin(old, new, "photos", gap=1000)
    for server in new.servers[2:]:
        server.draw("photos", 2000)
    as_another_program(urls[0])
    done = run_cli("grow", "--finish", "--quiet", 0, *options(urls))
    assert done.code == 3, done.text
    assert "the gap is used up" in done.text


@SQLITE
def test_what_does_not_fit_is_refused(
    pools: tuple[TicketPool, TicketPool], urls: list[URL], open_pool: OpenPool
) -> None:
    old, _ = pools
    for wrong in (open_pool(urls[:3], 3), open_pool(urls[:2], 4)):
        with pytest.raises(TicketArgumentError, match="cannot grow"):
            resize.begin(old, wrong, "photos")
    old.create_table("small", bits=32)
    with pytest.raises(TicketArgumentError, match="end at 4294967295"):
        resize.begin(old, open_pool(urls, 4), "small")
    two = options(urls[:2])
    assert run_cli("grow", *two).code == 2
    assert run_cli("retire", "--yes", *two, "--last", 2).code == 3


@SQLITE
def test_room_in_the_stride_needs_no_second_step(urls: list[URL], open_pool: OpenPool) -> None:
    old = open_pool(urls[:2], 16)
    old.create_table("photos")
    ids = old.next_ids("photos", 9)
    grown = run_cli("grow", *options(urls[:2]), "--stride", 16, *joining(urls[2:]), "--json")
    assert grown.code == 0
    assert not any("--finish" in line for line in [*grown.json["plan"], *grown.json["next"]])
    assert grown.json["next"][0].startswith("append the new servers to ticket_servers")
    assert grown.json["next"][1].endswith("4 servers in this order, stride 16")
    new = open_pool(urls, 16)
    ids += old.next_ids("photos", 9) + [i for _ in range(8) for i in new.next_ids("photos", 3)]
    assert_unique(ids)
    assert {i % 16 for i in ids} == {1, 2, 3, 4}


@SQLITE
@pytest.mark.parametrize("stride", [2, 16])
def test_new_servers_redirect_clients_of_an_earlier_name(
    stride: int, urls: list[URL], open_pool: OpenPool
) -> None:
    old = open_pool(urls[:2], stride)
    old.create_table("photos")
    operations.rename(old, "photos", "pictures")
    on = ("--stride", stride)
    grown = run_cli("grow", *options(urls[:2]), *on, *joining(urls[2:]), "--json")
    assert grown.code == 0, grown.text
    assert any("'photos' has moved to 'pictures'" in line for line in grown.json["plan"])
    if stride == 2:
        assert run_cli("grow", "--finish", "--quiet", 0, *options(urls)).code == 0
    for check in ("status", "doctor"):
        done = run_cli(check, *options(urls), "--stride", max(stride, 4))
        assert done.code == 0, done.text


@SQLITE
def test_table_that_a_joining_server_has_left_over_is_raised(
    urls: list[URL], open_pool: OpenPool
) -> None:
    """It may be a reused server's, or a backup's; its next ids could be those of rows on the shards."""
    old, new = open_pool(urls[:2], 16), open_pool(urls[:3], 16)
    old.create_table("photos")
    old.raise_above("photos", 10**6)
    handle = TableHandle(new.servers[2], "default", "photos")
    handle.server.create(handle.element(1))
    begin = resize.begins_above(old, new, "photos", gap=10**12, held=5 * 10**6)
    assert resize.begin(old, new, "photos", held=5 * 10**6) == begin > 5 * 10**6
    assert new.servers[2].draw("photos", 1)[0][0] > begin


@SQLITE
def test_room_in_the_stride_of_32_bits_is_room(urls: list[URL], open_pool: OpenPool) -> None:
    """No gap is left there, so the numbers need not suffice for one."""
    old, new = open_pool(urls[:2], 16), open_pool(urls[:3], 16)
    old.create_table("photos", bits=32)
    assert resize.begin(old, new, "photos") < 10**7


@SQLITE
def test_finish_widens_a_table_of_32_bits_that_ends_below_the_margin(
    urls: list[URL], open_pool: OpenPool
) -> None:
    """A restored server goes on above what it may have issued; a table that could not would stay closed."""
    old, new = open_pool(urls[:2]), open_pool(urls, 4)
    old.create_table("photos", bits=32)
    old.raise_above("photos", 2**32 - 300_000)
    resize.begin(old, new, "photos", gap=250_000)
    (ids,) = old.servers[0].draw("photos", 100)
    old.dispose()  # which writes the marks
    run(urls[0], "UPDATE photos SET id = id - 200")
    resize.finish(new, "photos")
    with open_pool(urls, 4) as later:
        assert later.servers[0].draw("photos", 1)[0][0] > ids[-1]


@SQLITE
def test_creation_during_growth_raises_no_restored_server_into_the_gap(
    urls: list[URL], open_pool: OpenPool
) -> None:
    """Its backup is older than the growth, so only its peers know where the others joined."""
    old, new = open_pool(urls[:2]), open_pool(urls, 4)
    old.create_table("photos")
    above = resize.begin(old, new, "photos", gap=10**6)
    run(urls[0], f"DELETE FROM {MARKS} WHERE mark = {above}")
    before = old.servers[0].last_ticket("photos")
    with pytest.raises(TicketTableError, match=f"above {above}"):
        operations.create(old, "photos", above=above + 10_000)
    assert old.servers[0].last_ticket("photos") == before


@SQLITE
@pytest.mark.parametrize("command", [["retire"], ["restore", "photos", "--offset", 1]])
def test_plan_with_another_stride_is_refused(
    urls: list[URL], open_pool: OpenPool, command: list[str | float]
) -> None:
    """The configuration of a pool that a server has left needs the stride of before."""
    open_pool(urls[:2], 4).create_table("photos")
    refused = run_cli(*command, "--dry-run", *options(urls[:2]))
    assert refused.code == 3
    assert "give this process stride=4" in refused.text


@SQLITE
def test_finish_without_the_table_of_a_joined_server_names_the_next_step(
    urls: list[URL], open_pool: OpenPool
) -> None:
    old, new = open_pool(urls[:2]), open_pool(urls, 4)
    old.create_table("photos")
    resize.begin(old, new, "photos")
    run(urls[2], "DROP TABLE photos")
    finish = ["grow", "--finish", "--quiet", "0"]
    for command in ([*finish, "--yes"], [*finish, "--dry-run"], ["create", "photos"]):
        refused = run_cli(*command, *options(urls))
        assert refused.code == 3
        assert "first run sqla-tickets grow --add on the old configuration again" in refused.text
    again = run_cli("grow", *options(urls[:2]), *joining(urls[2:]))
    assert again.code == 0, again.text
    done = run_cli("grow", "--finish", "--yes", "--quiet", 0, *options(urls))
    assert done.code == 0, done.text


@SQLITE
def test_growth_and_retirement_divide_node_numbers(urls: list[URL], open_pool: OpenPool) -> None:
    numbering = "SELECT holder FROM ticket_nodes WHERE node = -1"
    old = open_pool(urls[:2], 2)
    old.create_table("photos")
    NodeLeases(old).create_table()
    made = SnowflakeGenerator(old, "likes")
    ids = made.next_ids(3)
    grown = run_cli("grow", *options(urls[:2]), *joining(urls[2:]))
    assert grown.code == 0, grown.text
    assert "divide the node numbers" in grown.text
    assert [run(url, numbering) for url in urls] == [
        [(f"stride 4, offset {n}",)] for n in (1, 2, 3, 4)
    ]
    assert run_cli("grow", *options(urls), "--finish", "--quiet", 0).code == 0
    new = SnowflakeGenerator(open_pool(urls, 4), "likes")
    retired = run_cli("retire", "--yes", *options(urls), "--last", 2)
    assert retired.code == 0, retired.text
    assert "retire the node numbers" in retired.text
    assert [run(url, numbering) for url in urls[2:]] == [[], []]
    left = SnowflakeGenerator(open_pool(urls[:2], 4), "likes")
    assert_unique([*ids, *made.next_ids(3), *new.next_ids(3), *left.next_ids(3)])


@SQLITE
def test_servers_begin_above_what_the_shards_hold(
    urls: list[URL], open_pool: OpenPool, tmp_path: Path
) -> None:
    """Old processes have run ahead of the tickets in a class of their own, which now is a server's."""
    old = open_pool(urls[:2], 16)
    old.create_table("photos")
    shard = URL.create("sqlite", database=str(tmp_path / "shard.db"))
    ahead = 100_000 * 16 + 3
    run(
        shard, "CREATE TABLE photos (id BIGINT PRIMARY KEY)", f"INSERT INTO photos VALUES ({ahead})"
    )
    on, shards = ("--stride", "16"), ("--shard", shard.render_as_string(False))
    rehearsal = run_cli("grow", *options(urls[:2]), *on, *joining(urls[2:3]), "--dry-run")
    assert "NOT KNOWN: the ids of 'photos' on the shards" in rehearsal.text
    rehearsal = run_cli("grow", *options(urls[:2]), *on, *joining(urls[2:3]), *shards, "--dry-run")
    begins = re.findall(r"open 'photos' on .* above (\d+), or higher", rehearsal.text)
    grown = run_cli("grow", *options(urls[:2]), *on, *joining(urls[2:3]), *shards)
    assert grown.code == 0, grown.text
    assert "NOT KNOWN" not in grown.text
    assert (
        re.findall(r"every ticket of 'photos' from the new servers is above (\d+)", grown.text)
        == begins
    )
    three = open_pool(urls[:3], 16)
    assert three.servers[2].draw("photos", 1)[0][0] > ahead

    further = 200_000 * 16 + 3
    run(shard, f"INSERT INTO photos VALUES ({further})")
    retire = ("retire", *options(urls[:3]), *on)
    assert "NOT KNOWN: the ids of 'photos'" in run_cli(*retire, "--dry-run").text
    retired = run_cli(*retire, *shards)
    assert retired.code == 0, retired.text
    assert min(i for server in old.servers for i in server.draw("photos", 3)[0]) > further


@SQLITE
def test_audit_across_a_growth_tells_no_time_left(
    urls: list[URL], open_pool: OpenPool, tmp_path: Path
) -> None:
    """The numbers of the gap are not read one by one."""
    old = open_pool(urls[:2], 2)
    old.create_table("photos")
    shard = URL.create("sqlite", database=str(tmp_path / "shard.db"))
    run(shard, "CREATE TABLE photos (id BIGINT PRIMARY KEY)")
    resize.begin(old, open_pool(urls, 4), "photos")
    resize.finish(open_pool(urls, 4), "photos")
    command = [sys.executable, "-m", "sqla_tickets.cli", "audit", *options(urls)]
    for server, is_told in ((0, True), (2, False)):
        for ticket in (
            i for _ in range(2) for i in open_pool(urls, 4).servers[server].draw("photos", 3)[0]
        ):
            run(shard, f"INSERT INTO photos VALUES ({ticket})")
        done = subprocess.run(
            [*command, "--shard", shard.render_as_string(False)],
            capture_output=True,
            text=True,
            env={**os.environ, "FORCE_COLOR": "1", "TERM": "xterm", "COLUMNS": "100"},
        )
        assert done.returncode == 0, done.stdout
        assert "ids" in done.stderr
        assert ("100%" in done.stderr, "0:00:0" in done.stderr) == (is_told, is_told)


@SQLITE
def test_a_growth_begins_its_gap_above_the_shards(
    pools: tuple[TicketPool, TicketPool],
) -> None:
    assert resize.begin(*pools, "photos", gap=5000, held=70_000) >= 75_000


@SQLITE
def test_replacement_of_a_lost_server_begins_above_its_marks(
    urls: list[URL], open_pool: OpenPool
) -> None:
    """It had come further than they, as it had served alone for a while."""
    before = open_pool(urls[:3], 3)
    before.create_table("photos")
    lost = [*before.next_ids("photos", 3), *before.servers[2].draw("photos", 50_000)[-1]]
    before.dispose()  # which writes the marks
    arguments = ["grow", *options(urls[:2]), "--stride", "3", *joining(urls[3:])]
    refused = run_cli(*arguments)  # it may only have been forgotten
    assert refused.code == 3
    advice = re.search(
        r"gone for good, run sqla-tickets (retire photos --gone 3)", " ".join(refused.text.split())
    )
    assert advice
    retired = run_cli(*advice[1].split(), "--yes", *options(urls[:2]), "--stride", "3")
    assert retired.code == 0, retired.text
    grown = run_cli(*arguments)
    assert grown.code == 0, grown.text
    new = open_pool([*urls[:2], urls[3]], 3)
    ids = [*new.servers[2].draw("photos", 3)[0], *new.next_ids("photos", 3)]
    assert_unique([*lost, *ids])
    assert new.servers[2].table("photos").state == "closed"


@SQLITE
def test_joined_server_that_is_lost_at_once_begins_above_the_shards_again(
    urls: list[URL], open_pool: OpenPool
) -> None:
    """The shards may hold ids of its residue class, which only the growth was told."""
    old, new = open_pool(urls[:3], 16), open_pool(urls, 16)
    old.create_table("photos")
    held, joined = 10**8, new.servers[-1]
    resize.begin(old, new, "photos", held=held)
    number = joined.last_ticket("photos")
    resize.begin(old, new, "photos", held=held)  # as after an interruption
    assert joined.last_ticket("photos") == number
    joined.drop("photos")
    with joined.engine.begin() as connection:
        connection.exec_driver_sql(f"DROP TABLE {MARKS}")
    new.create_table("photos")
    assert joined.draw("photos", 1)[0][0] > held


@pytest.mark.ticket_servers("mariadb", "mysql")
def test_a_table_that_another_program_has_made_needs_metadata_first(
    urls: list[URL], open_pool: OpenPool
) -> None:
    """Without one it would let clients of both strides draw, and the end of the growth would pass it by."""
    for offset, url in enumerate(urls[:2], 1):
        table = FLICKRS_TABLE.format(name="photos", engine="InnoDB")
        run(url, table, f"INSERT INTO photos VALUES ({offset}, 'a')")
    old, new = open_pool(urls[:2]), open_pool(urls, 4)
    for offset, url in enumerate(urls[:2], 1):
        with pytest.raises(
            TicketArgumentError, match=rf"offset {offset}.* has no metadata"
        ) as refused:
            resize.begin(old, new, "photos")
        statement = re.search(r"ALTER TABLE .*", str(refused.value))
        assert statement is not None
        run(url, statement[0])
    resize.begin(old, new, "photos", gap=5000)
    assert {new.next_id("photos") % 4 for _ in range(4)} <= {0, 3}
    assert {old.next_id("photos") % 2 for _ in range(4)} == {0, 1}
    assert len(resize.unfinished(new, "photos")) == 2


Pools = tuple[TicketPool, TicketPool]


def raise_far(pools: Pools, name: str) -> None:
    pools[0].raise_above(name, 5200)


def grow_and_finish(pools: Pools, name: str) -> None:
    resize.begin(*pools, name, gap=5000)
    resize.finish(pools[1], name)


@pytest.mark.ticket_servers("sqlite", "mariadb", "postgresql")
@pytest.mark.parametrize(("first", "second"), [*permutations([raise_far, grow_and_finish])])
def test_an_old_configuration_raises_a_table_while_others_join(
    first: Callable[[Pools, str], None],
    second: Callable[[Pools, str], None],
    urls: list[URL],
) -> None:
    """Far enough, it would issue all numbers of its class, of which every other one is theirs."""

    def attempt(act: Callable[[Pools, str], None], statements: StatementCounter, name: str) -> None:
        engines = [statements.engine(url) for url in (*urls[:2], *urls)]
        with (
            TicketPool(engines[:2]) as old,
            TicketPool(engines[2:], stride=4) as new,
            contextlib.suppress(TicketError),
        ):
            act((old, new), name)

    def prepare(name: str) -> None:
        with TicketPool(urls[:2]) as old:
            old.create_table(name)
            old.next_ids(name, 9)

    counted = StatementCounter()
    prepare("n")
    attempt(first, counted, "n")
    counted.close()
    for at in range(2, counted.count + 1, max(1, counted.count // 3)):
        name = f"n{at}"
        prepare(name)

        def meanwhile(_: int, name: str = name) -> None:
            attempt(second, StatementCounter(), name)

        statements = BetweenStatements(meanwhile, at)
        attempt(first, statements, name)
        attempt(first, statements, name)
        statements.close()
        attempt(second, StatementCounter(), name)
        ids: list[int] = []
        with TicketPool(urls[:2]) as old, TicketPool(urls, stride=4) as new:
            for server in (*old.servers, *new.servers):
                with contextlib.suppress(TicketTableError):
                    ids += [ticket for block in server.draw(name, 400) for ticket in block]
        assert len(ids) >= 800
        assert_unique(ids)


@SQLITE
def test_raise_during_growth_uses_half_of_the_gap_at_most(pools: Pools) -> None:
    old, new = pools
    resize.begin(old, new, "photos", gap=5000)
    old.raise_above("photos", 2000)
    assert old.next_id("photos") > 2000
    with pytest.raises(TicketTableError, match="grow --finish"):
        old.raise_above("photos", 4000)
    assert old.next_id("photos") < 2100
    resize.finish(new, "photos")
    new.raise_above("photos", 9000)
    assert min(new.next_ids("photos", 9)) > 9000


@pytest.mark.ticket_servers("sqlite", "mariadb")
@pytest.mark.parametrize("above", [4000, 9000])
def test_raise_during_growth_has_no_plan_where_it_is_refused(
    pools: Pools, urls: list[URL], above: int
) -> None:
    """Above half of the gap, and above where the new servers began."""
    resize.begin(*pools, "photos", gap=5000)
    command = ["raise", "photos", "--above", str(above), *options(urls[:2])]
    dry, done = run_cli(*command, "--dry-run"), run_cli(*command)
    assert (done.code, dry.code) == (3, 3), dry.text
    assert dry.text == done.text
    assert "with a larger stride than 2" in dry.text


@pytest.mark.ticket_servers("sqlite", "mariadb")
def test_audit_during_growth_calls_no_id_of_the_new_servers_foreign(
    pools: Pools, urls: list[URL], tmp_path: Path
) -> None:
    """The old configuration does not know what they have issued; the new one does, at the end."""
    old, new = pools
    resize.begin(old, new, "photos", gap=5000)
    ids = [*old.servers[0].draw("photos", 3)[0]]
    shard = URL.create("sqlite", database=str(tmp_path / "shard.db"))
    rows = ", ".join(f"({i})" for i in ids)
    run(shard, "CREATE TABLE photos (id BIGINT PRIMARY KEY)", f"INSERT INTO photos VALUES {rows}")
    shards = ("--shard", shard.render_as_string(False))
    assert run_cli("audit", *options(urls[:2]), *shards).code == 0
    for server in new.servers[2:]:
        (block,) = server.draw("photos", 3)
        run(shard, *(f"INSERT INTO photos VALUES ({i})" for i in block))
    foreign = ids[-1] + 400
    run(shard, f"INSERT INTO photos VALUES ({foreign})")
    found = run_cli("audit", *options(urls[:2]), *shards, "--json")
    assert found.code == 1
    anomalies = {a["kind"]: a for a in found.json["audit"][0]["anomalies"]}
    assert anomalies.keys() == {"not compared", "foreign"}
    assert anomalies["foreign"]["ids"] == [foreign]
    assert f"--above {foreign}," in anomalies["foreign"]["fix"]
    assert "the pool grows" in anomalies["not compared"]["why"]
    assert "sqla-tickets grow --finish" in anomalies["not compared"]["fix"]
    run(shard, f"DELETE FROM photos WHERE id = {foreign}")
    assert run_cli("grow", "--finish", "--quiet", 0, *options(urls)).code == 0
    assert run_cli("audit", *options(urls), *shards).code == 0
