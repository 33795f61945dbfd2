"""The example clients of other languages share ticket tables with this package, and repeat nothing."""

from __future__ import annotations

import os
import random
import subprocess
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from sqlalchemy import URL

from sqla_tickets import TicketError, TicketPool
from sqla_tickets.maintenance import resize
from tests.integration.languages.conftest import (
    CLIENTS,
    EXAMPLES,
    LANGUAGES,
    Client,
    Refused,
    Site,
    StartClient,
    address,
    crowd_of,
)
from tests.support.draws import (
    PATIENCE,
    assert_unique,
    connections_to,
    draw_from,
    kill_connections,
    residues,
    setting,
    until,
)
from tests.support.load import Load
from tests.support.servers import MySQLLike, ServerFixtures
from tests.support.servers.binaries import find_program
from tests.support.tcp_proxy import Fault, TcpProxy

pytestmark = pytest.mark.slow
SECONDS = 8.0
PROCESSES = 2
#: The first ticket of a second sequence, above all that the first one gets to.
ALBUMS = 10**12
#: Longer than any client waits for an answer.
LATE_SECONDS = 6.0
#: The command of the shell's client, whose input stops after the line that the file "armed" describes, until the file "paused" is gone.
PAUSING_MYSQL = """#!/usr/bin/env bash
feed() {{
    trap '' PIPE
    while IFS= read -r line; do
        printf '%s\\n' "$line"
        if [ -e "{folder}/armed" ] && [[ $line =~ $(<"{folder}/armed") ]]; then
            mv "{folder}/armed" "{folder}/paused"
            while [ -e "{folder}/paused" ]; do sleep 0.01; done
        fi
    done
}}
exec "{mysql}" "$@" < <(feed 2>/dev/null)
"""
#: The first lines of a block that the shell's client draws.
LOCK, FIRST_REPLACE = "^LOCK TABLES", r"\(stub\) VALUES"


class Crowd:
    """Clients that draw as fast as they can, each in a thread of this process.

    Attributes:
        drawn: by language.
        refused: by language, what the clients said instead.
    """

    def __init__(self, clients: list[tuple[str, Client]], seed: int) -> None:
        self.drawn: defaultdict[str, list[int]] = defaultdict(list)
        self.refused: defaultdict[str, list[str]] = defaultdict(list)
        self._failures: list[BaseException] = []
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._draw, args=(language, client, seed + number))
            for number, (language, client) in enumerate(clients)
        ]
        for thread in self._threads:
            thread.start()

    def _draw(self, language: str, client: Client, seed: int) -> None:
        chooser = random.Random(seed)
        try:
            while not self._stop.is_set():
                n = chooser.choice((1, 1, chooser.randint(2, 60)))
                try:
                    drawn = client.draw("photos", n)
                except Refused as refused:
                    self.refused[language].append(str(refused))
                else:
                    assert len(drawn) == n, (n, drawn)
                    self.drawn[language] += drawn
        except BaseException as failure:  # noqa: BLE001  # told to the test
            self._failures.append(failure)

    def finish(self) -> list[int]:
        """Have all stop, and return what they have drawn."""
        self._stop.set()
        for thread in self._threads:
            thread.join(PATIENCE)
            assert not thread.is_alive()
        assert not self._failures, self._failures
        return [ticket for drawn in self.drawn.values() for ticket in drawn]

    def __str__(self) -> str:
        return ", ".join(
            f"{language}: {len(self.drawn[language]):,} tickets, {len(self.refused[language])} errors"
            for language in LANGUAGES
        )


class Pauses:
    """A program that stops within a session, for the shell's client.

    Attributes:
        path: The variable `PATH` of such a client.
    """

    def __init__(self, folder: Path) -> None:
        mysql = find_program(CLIENTS, "install a client (Debian: apt-get install mariadb-client)")
        folder.mkdir()
        for name in CLIENTS:
            write_program(folder / name, PAUSING_MYSQL.format(folder=folder, mysql=mysql))
        self.path = f"{folder}{os.pathsep}{os.environ['PATH']}"
        self._armed, self._paused = folder / "armed", folder / "paused"

    def arm(self, line: str) -> None:
        """Stop once, after a line that this expression matches."""
        self._armed.write_text(line)

    def wait(self) -> None:
        """Wait until it has stopped."""
        until(self._paused.exists)

    def resume(self) -> None:
        """Let it go on."""
        self._paused.unlink()


def write_program(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


@pytest.fixture
def pauses(tmp_path: Path) -> Pauses:
    return Pauses(tmp_path / "pausing")


def is_locked(server: MySQLLike, url: URL) -> bool:
    """Whether some session has locked a table of the database."""
    with server.administrator() as cursor:
        cursor.execute(f"SHOW OPEN TABLES FROM `{url.database}` WHERE In_use > 0")
        return bool(cursor.fetchall())


def careless_mysql(site: Site, start: StartClient, pauses: Pauses, folder: Path) -> Client:
    """A client in the shell whose option files ask to reconnect, and to go on after errors."""
    client = start("mysql", site.urls, PATH=pauses.path)
    for file in folder.glob("*.cnf"):
        file.write_text(file.read_text() + "reconnect\nforce\n")
    return client


def all_languages(start: StartClient, site: Site, urls: list[URL]) -> list[tuple[str, Client]]:
    return [(language, start(language, urls)) for language in LANGUAGES for _ in range(PROCESSES)]


def with_seed() -> int:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    return seed


@pytest.mark.every_kind
@pytest.mark.timeout(600)
def test_every_language_and_a_pool_on_one_table(
    site: Site, start_client: StartClient, capsys: pytest.CaptureFixture[str]
) -> None:
    site.create()
    clients = all_languages(start_client, site, site.urls)
    load = Load([site.urls])
    try:
        load.wait_for(1)
        crowd = Crowd(clients, with_seed())
        time.sleep(SECONDS)
        theirs = crowd.finish()
        ours = load.finish()
    finally:
        load.kill()
    with capsys.disabled():
        print(f"\n{site.servers[0].kind} {site.layout}: pool: {len(ours):,} tickets, {crowd}")
    assert_unique(theirs + ours)
    for language in LANGUAGES:
        assert residues(crowd.drawn[language]) == {0, 1}, language
        assert len(crowd.drawn[language]) > 100


@pytest.mark.every_kind
def test_connections_killed_while_every_language_draws(
    site: Site, start_client: StartClient, capsys: pytest.CaptureFixture[str]
) -> None:
    """A client is frozen wherever it is, between two statements of a block too, and goes on without its connection."""
    site.create()
    seed = with_seed()
    chooser = random.Random(seed)
    clients = all_languages(start_client, site, site.urls)
    crowd = Crowd(clients, seed)
    ours: list[int] = []
    kills, end = 0, time.monotonic() + SECONDS
    with TicketPool(site.urls) as pool:
        while time.monotonic() < end:
            _, client = chooser.choice(clients)
            number = chooser.randrange(2)
            client.freeze()
            time.sleep(chooser.random() / 50)
            kills += kill_connections(site.servers[number], site.urls[number])
            client.thaw()
            with suppress(TicketError):
                ours += pool.next_ids("photos", chooser.choice((1, 30)))
    theirs = crowd.finish()
    with capsys.disabled():
        print(f"\n{site.servers[0].kind} {site.layout}: {kills} kills, pool: {len(ours)}, {crowd}")
    assert_unique(theirs + ours)
    assert kills > 50
    for language in LANGUAGES:
        assert crowd.drawn[language], language


def test_late_answer_is_no_ticket_of_another_sequence(
    site: Site, start_client: StartClient
) -> None:
    """A client gives up on a server whose answers come too late, and takes them for nothing later."""
    site.create("photos")
    site.create("albums", start=ALBUMS)
    drawn: dict[str, list[int]] = {"photos": [], "albums": []}
    with TcpProxy(site.urls[0].port) as proxy:
        urls = [site.urls[0].set(port=proxy.port), site.urls[1]]
        clients = [start_client(language, urls) for language in LANGUAGES]

        def draw(sequence: str, n: int) -> list[list[int]]:
            for client in clients:
                client.ask(sequence, n)
            answers = [client.answer() for client in clients]
            drawn[sequence] += [ticket for answer in answers for ticket in answer]
            return answers

        for n in (1, 2, 1, 2):
            draw("photos", n)
            draw("albums", n)
        last: list[list[int]] = []
        for n in (1, 3):
            proxy.do(Fault("delay", LATE_SECONDS))
            draw("photos", n)
            draw("photos", n)
            proxy.do(Fault())
            for _ in range(6):  # while the late answers arrive
                last = [*draw("albums", n), *draw("photos", 1)]
                time.sleep(LATE_SECONDS / 6)
        for number, language in enumerate(LANGUAGES):
            assert residues(last[number] + last[number + len(LANGUAGES)]) == {0, 1}, language
    for tickets in drawn.values():
        assert_unique(tickets)
    assert max(drawn["photos"]) < ALBUMS <= min(drawn["albums"])


@pytest.mark.parametrize("language", LANGUAGES)
def test_servers_in_another_order_are_refused(
    language: str, site: Site, start_client: StartClient
) -> None:
    site.create()
    client = start_client(language, site.urls[::-1])
    for n in (1, 5):
        with pytest.raises(Refused, match="is no table of stride 2"):
            client.draw("photos", n)
    for name in ("missing", "photos`; DROP TABLE photos; --"):
        with pytest.raises(Refused):
            client.draw(name)
    assert len(start_client(language, site.urls).draw("photos", 3)) == 3


@pytest.mark.parametrize("language", LANGUAGES)
def test_server_that_begins_transactions_loses_no_draw(
    language: str, site: Site, start_client: StartClient
) -> None:
    """A draw that is rolled back when its client ends would be drawn again."""
    site.create()
    ids: list[int] = []
    with setting(site.servers[0], autocommit=0), setting(site.servers[1], autocommit=0):
        for n in (1, 7, 1, 7):
            client = start_client(language, site.urls)
            ids += client.draw("photos", n) + client.draw("photos", n)
            client.kill()
    assert_unique(ids)


@pytest.mark.parametrize("language", LANGUAGES)
def test_numbers_above_2_to_53_stay_exact(
    language: str, site: Site, start_client: StartClient
) -> None:
    site.create(start=2**53 - 20)
    client = start_client(language, site.urls)
    ids = [ticket for n in (1, 1, 20, 20, 1, 1, 1, 1) for ticket in client.draw("photos", n)]
    with TicketPool(site.urls) as pool:
        ids += pool.next_ids("photos", 20)
    assert_unique(ids)
    assert max(ids) > 2**53
    assert residues(ids) == {0, 1}


@pytest.mark.parametrize("language", LANGUAGES)
def test_number_too_large_to_draw_moves_no_table(
    language: str, site: Site, start_client: StartClient
) -> None:
    """Stride times such a number wraps at 64 bits: the statement would set a counter back, or use it up."""
    site.create()
    client = start_client(language, site.urls)
    with TicketPool(site.urls) as pool:
        ids = [*pool.next_ids("photos", 20), *pool.next_ids("photos", 20)]
        for n in (0, -1, 1_000_001, 2**53 - 1, 2**62, 2**63 - 1, 2**63, 2**64, 10**30):
            with pytest.raises(Refused, match=r"expected a sequence|out of range"):
                client.draw("photos", n)
        ids += [ticket for n in (1, 1, 5, 5) for ticket in client.draw("photos", n)]
        ids += [*pool.next_ids("photos", 20), *pool.next_ids("photos", 20)]
    assert_unique(ids)
    assert max(ids) < 1000, "no numbers were used up"


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("bits", [32, 64])
def test_last_numbers_on_a_lax_server_are_drawn_once(
    language: str, bits: int, site: Site, start_client: StartClient
) -> None:
    """A lax server would store the largest number that fits, and answer with the one that does not."""
    last = 2**bits - 1 if bits == 32 else 2**63 - 1
    site.create(start=last - 60, bits=bits)
    ids: list[int] = []
    for server in site.servers:
        with server.administrator() as cursor:
            cursor.execute("SELECT @@GLOBAL.sql_mode")
            ((mode,),) = cursor.fetchall()
            cursor.execute("SET GLOBAL sql_mode = ''")
        try:
            client = start_client(language, site.urls)
            for n in (1, 7, 1, 9) * 4:
                with suppress(Refused):
                    ids += client.draw("photos", n)
        finally:
            with server.administrator() as cursor:
                cursor.execute("SET GLOBAL sql_mode = %s", [mode])
    assert_unique(ids)
    assert last - 60 <= min(ids) <= max(ids) <= last


@pytest.mark.parametrize("language", LANGUAGES)
def test_client_killed_within_a_block_leaves_no_lock(
    language: str, site: Site, start_client: StartClient
) -> None:
    site.create()
    chooser = random.Random(with_seed())
    ids: list[int] = []
    with TcpProxy(site.urls[0].port) as proxy, TicketPool(site.urls, hedge=False) as pool:
        proxy.do(Fault("delay", 0.05))
        for _ in range(4):
            client = start_client(language, [site.urls[0].set(port=proxy.port), site.urls[1]])
            ids += client.draw("photos") + client.draw("photos")
            client.ask("photos", 20)
            time.sleep(chooser.random() * 0.3)
            client.kill()
            ids += draw_from(pool, 1, 2)
            ids += pool.next_ids("photos", 10)
    assert_unique(ids)


@pytest.mark.parametrize("language", LANGUAGES)
def test_error_leaves_neither_lock_nor_connection(
    language: str, site: Site, start_client: StartClient
) -> None:
    """A block fails in its second statement, under the lock. Draws that go well share one connection."""
    site.create(start=2**32 - 100, bits=32)
    client = start_client(language, site.urls)
    kept = int(language != "mysql")

    def connections() -> list[list[int]]:
        pairs = zip(site.servers, site.urls, strict=True)
        return [connections_to(server, url) for server, url in pairs]

    ids = client.draw() + client.draw("photos", 3)
    until(lambda: [len(found) for found in connections()] == [kept, kept])
    before = connections()
    ids += client.draw() + client.draw("photos", 3)
    until(lambda: connections() == before)
    for sequence, n in (("photos", 500), ("missing", 1)) * 3:
        with pytest.raises(Refused):
            client.draw(sequence, n)
    until(lambda: max(len(found) for found in connections()) <= kept)
    with TicketPool(site.urls, hedge=False) as pool:
        ids += draw_from(pool, 0) + draw_from(pool, 1)
    ids += client.draw() + client.draw("photos", 3)
    assert residues(ids[-4:]) == {0, 1}
    assert_unique(ids)


@pytest.mark.parametrize("site", ["replace"], indirect=True)
def test_mysql_told_to_reconnect_repeats_nothing(
    site: Site, start_client: StartClient, pauses: Pauses, tmp_path: Path
) -> None:
    """A new session would draw the rest of a block without the lock of the killed one."""
    site.create()
    client = careless_mysql(site, start_client, pauses, tmp_path)
    pairs = list(zip(site.servers, site.urls, strict=True))
    with TicketPool(site.urls, hedge=False) as pool:
        ids = client.draw("photos", 3)
        pauses.arm(LOCK)
        client.ask("photos", 20)
        pauses.wait()
        until(lambda: any(is_locked(*pair) for pair in pairs))
        (locked,) = (number for number, pair in enumerate(pairs) if is_locked(*pair))
        assert kill_connections(*pairs[locked]) == 1
        until(lambda: not is_locked(*pairs[locked]))
        pauses.arm(FIRST_REPLACE)
        pauses.resume()
        pauses.wait()
        ids += draw_from(pool, locked + 1, 5)
        pauses.resume()
        block = client.answer()
        ids += block + client.draw("photos", 3) + client.draw("photos", 3)
        ids += draw_from(pool, 0, 5) + draw_from(pool, 1, 5)
    assert len(block) == 20
    assert_unique(ids)


@pytest.mark.parametrize("site", ["replace"], indirect=True)
def test_mysql_told_to_ignore_errors_draws_no_block_unlocked(
    site: Site, start_client: StartClient, pauses: Pauses, tmp_path: Path
) -> None:
    site.create()
    for server, url in zip(site.servers, site.urls, strict=True):
        with server.administrator() as cursor:
            cursor.execute(f"REVOKE LOCK TABLES ON `{url.database}`.* FROM '{url.username}'@'%'")
    client = careless_mysql(site, start_client, pauses, tmp_path)
    ids = client.draw() + client.draw()
    pauses.arm(FIRST_REPLACE)
    client.ask("photos", 900)
    pauses.wait()
    with TicketPool(site.urls, hedge=False) as pool:
        ids += draw_from(pool, 0, 5) + draw_from(pool, 1, 5)
        pauses.resume()
        with pytest.raises(Refused):
            client.answer()
        ids += draw_from(pool, 0, 5) + draw_from(pool, 1, 5)
    assert_unique(ids)
    assert max(ids) < 900, "no block was drawn"


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("how", ["kill", "freeze"])
def test_server_that_fails_is_passed_over(
    language: str, how: str, site: Site, start_client: StartClient
) -> None:
    site.create()
    client = start_client(language, site.urls)
    ids = [ticket for n in (1, 5, 1, 5) for ticket in client.draw("photos", n)]
    assert residues(ids) == {0, 1}
    getattr(site.servers[0], how)()
    until(lambda: not site.servers[0].answers())
    others = [ticket for n in (1, 5, 1, 5) for ticket in client.draw("photos", n)]
    assert residues(others) == {0}
    site.servers[0].revive()
    ids += others + [ticket for n in (1, 5) * 4 for ticket in client.draw("photos", n)]
    assert residues(ids[-12:]) == {0, 1}
    assert_unique(ids)


@pytest.mark.parametrize("language", LANGUAGES)
def test_server_frozen_within_the_handshake_is_passed_over(
    language: str, site: Site, start_client: StartClient
) -> None:
    site.create()
    with TcpProxy(site.urls[0].port, Fault("half")) as proxy:
        client = start_client(language, [site.urls[0].set(port=proxy.port), site.urls[1]])
        ids = [ticket for n in (1, 5) for ticket in client.draw("photos", n)]
    assert residues(ids) == {0}


@pytest.fixture(params=["node", "go"])
def crowd(
    request: pytest.FixtureRequest, site: Site, start_client: StartClient, builds: Path
) -> Iterator[Client]:
    """A program that draws as often at once as it is told."""
    site.create()
    start_client(request.param, site.urls)
    servers = " ".join(address(url, request.param, EXAMPLES) for url in site.urls)
    client = Client(crowd_of(request.param, builds), {"TICKET_SERVERS": servers})
    yield client
    client.kill()


def test_idle_connections_killed_at_once_fail_no_draw(site: Site, crowd: Client) -> None:
    """As by a restart of both servers, or by their `wait_timeout`."""
    pairs = list(zip(site.servers, site.urls, strict=True))
    ids: list[int] = []
    while min(len(connections_to(*pair)) for pair in pairs) < 4:
        ids += crowd.draw("photos", 24)
    assert min(kill_connections(*pair) for pair in pairs) > 3
    for _ in range(4):
        ids += crowd.draw("photos", 1)
    ids += crowd.draw("photos", 24)
    assert_unique(ids)


@pytest.mark.parametrize("crowd", ["node"], indirect=True)
def test_many_draws_at_once_share_few_connections(site: Site, crowd: Client) -> None:
    ids = crowd.draw("photos", 200) + crowd.draw("photos", 200)
    assert_unique(ids)
    for pair in zip(site.servers, site.urls, strict=True):
        assert 0 < len(connections_to(*pair)) <= 16


def test_draws_that_wait_for_a_frozen_server_go_to_another(site: Site, crowd: Client) -> None:
    ids = crowd.draw("photos", 100)
    site.servers[0].freeze()
    until(lambda: not site.servers[0].answers())
    others = crowd.draw("photos", 100)
    site.servers[0].thaw()
    ids += others + crowd.draw("photos", 100)
    assert residues(others) == {0}
    assert_unique(ids)


def test_shell_takes_mariadb_and_no_warning_for_an_answer(
    site: Site, start_client: StartClient, tmp_path: Path
) -> None:
    """The command `mysql` of MariaDB 11 warns in each session that its name is deprecated."""
    mysql = find_program(CLIENTS, "install a client (Debian: apt-get install mariadb-client)")
    site.create()
    write_program(tmp_path / "mysql", "#!/bin/sh\necho never run >&2\nexit 1\n")
    warning = "echo 'mysql: Deprecated program name' >&2"
    write_program(tmp_path / "mariadb", f'#!/bin/sh\n{warning}\nexec "{mysql}" "$@"\n')
    client = start_client("mysql", site.urls, PATH=f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    ids = [ticket for n in (1, 5) * 2 for ticket in client.draw("photos", n)]
    assert_unique(ids)
    with pytest.raises(Refused, match="is no table of stride 2"):
        client.draw("missing")


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("password", ["a+b%2F/c", ""])
def test_password_of_any_characters_or_none_is_sent(
    language: str, password: str, site: Site, start_client: StartClient
) -> None:
    site.create()
    urls: list[URL] = []
    for server, url in zip(site.servers, site.urls, strict=True):
        user = f"u{random.getrandbits(40)}"
        with server.administrator() as cursor:
            cursor.execute(f"CREATE USER '{user}'@'%%' IDENTIFIED BY %s", [password])
            cursor.execute(f"GRANT ALL ON `{url.database}`.* TO '{user}'@'%'")
        urls.append(url.set(username=user)._replace(password=password or None))
    client = start_client(language, urls)
    assert residues(client.draw() + client.draw()) == {0, 1}


@pytest.mark.parametrize("language", LANGUAGES)
def test_servers_are_separated_by_any_space(
    language: str, site: Site, start_client: StartClient, tmp_path: Path
) -> None:
    site.create()
    given = "".join(f"\n  {address(url, language, tmp_path)}  \n" for url in site.urls)
    client = start_client(language, site.urls, TICKET_SERVERS=given)
    assert residues(client.draw() + client.draw()) == {0, 1}


@pytest.mark.every_kind
def test_every_language_after_growth_is_refused_until_changed(
    kind: str, servers: ServerFixtures, start_client: StartClient, site: Site
) -> None:
    """Whether it is connected or starts again: the table has neither its stride nor its stub column."""
    urls = [*site.owners, *Site(servers, kind, site.layout).owners]
    site.create()
    old = {language: start_client(language, urls[:2]) for language in LANGUAGES}
    ids = [t for client in old.values() for n in (1, 4, 1, 4) for t in client.draw("photos", n)]
    with TicketPool(urls[:2]) as before, TicketPool(urls, stride=4) as after:
        resize.begin(before, after, "photos", gap=20_000)
        ids += [t for client in old.values() for n in (1, 4) for t in client.draw("photos", n)]
        resize.finish(after, "photos")
        for language, client in old.items():
            again = start_client(language, urls[:2])
            for n in (1, 4) * 3:
                with pytest.raises(Refused):
                    client.draw("photos", n)
                with pytest.raises(Refused, match="is no table of stride 2"):
                    again.draw("photos", n)
        new = [start_client(language, urls) for language in LANGUAGES]
        for n in (1, 1, 1, 1, 5, 5, 5, 5) * 3:
            ids += [ticket for client in new for ticket in client.draw("photos", n)]
            ids += after.next_ids("photos", n)
    assert residues(ids, 4) == {0, 1, 2, 3}
    assert_unique(ids)


FORK = """
require $argv[1];
$tickets = new Tickets(explode(' ', getenv('TICKET_SERVERS')), 2);
$parent = [...$tickets->draw('photos', 1), ...$tickets->draw('photos', 4)];
$child = pcntl_fork();
for ($round = 0; $round < 200; $round++) {
    try {
        $drawn = array_merge($drawn ?? $parent, $tickets->draw('photos', $round % 3 + 1), $tickets->draw('albums'));
    } catch (Exception $error) {
        fwrite(STDERR, $error->getMessage());
    }
}
if ($child) {
    pcntl_waitpid($child, $status);
} else {
    $drawn = array_slice($drawn, 5);
}
echo implode(' ', $drawn), "\\n";
"""


def test_fork_of_a_php_program_draws_by_itself(
    site: Site, programs: dict[str, list[str]], start_client: StartClient
) -> None:
    """Parent and child draw from two sequences, which a shared connection would mix up."""
    site.create("photos")
    site.create("albums", start=ALBUMS)
    start_client("php", site.urls)
    done = subprocess.run(
        [programs["php"][0], "-r", FORK, programs["php"][1]],
        env={"TICKET_SERVERS": " ".join(address(url, "php", EXAMPLES) for url in site.urls)},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stderr
    ids = [int(word) for word in done.stdout.split()]
    assert len(ids) > 1000, done.stderr
    assert_unique(ids)
