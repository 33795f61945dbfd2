"""Takes the pictures of `sqla-tickets` for the handbook, from real runs: `make screenshots`.

Starts ticket servers and shards, puts wrong what there is to be shown, runs the command as a terminal
would, and writes `docs/pictures/*.svg`. Addresses of this machine are replaced by names; nothing else.

    python tools/screenshots.py [FOLDER]
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text
from sqlalchemy import URL

from sqla_tickets import TicketPool
from tests.support.draws import grant_only, run
from tests.support.servers import MariaDB, ServerRegistry
from tests.support.themes import themed

ROOT = Path(__file__).parents[1]
FOLDER = Path(sys.argv[1]) if sys.argv[1:] else ROOT / "docs" / "pictures"
ROWS = 100_000
LEAST = ("SELECT", "INSERT", "UPDATE", "DELETE", "LOCK TABLES", "CREATE")
WIDTH = 80
#: A terminal on a light page and on a dark one: paper, red, green, yellow, blue, violet, cyan, ink.
LIGHT = "f6f8fa b62324 116329 7d4e00 0969da 6639ba 1b7c83 24292f"
DARK = "1e2127 f06c75 98c379 e5c07b 61afef c678dd 56b6c2 d6d9e0"
COLOUR = re.compile("#[0-9a-f]{6}")
#: Rich's own, without the font that it would fetch from elsewhere.
FRAME = """\
<svg xmlns="http://www.w3.org/2000/svg" class="rich-terminal" viewBox="0 0 {width} {height}">
<style>
.{unique_id}-matrix {{ font-family: "Fira Code", "DejaVu Sans Mono", Menlo, Consolas, monospace;
  font-size: {char_height}px; line-height: {line_height}px; font-variant-ligatures: none; }}
.{unique_id}-title {{ font-size: 18px; font-family: sans-serif; }}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}" /></clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix" xml:space="preserve">
{matrix}
</g>
</g>
</svg>
"""


def theme(words: str) -> TerminalTheme:
    colours = [(n >> 16, n >> 8 & 255, n & 255) for n in (int(word, 16) for word in words.split())]
    return TerminalTheme(colours[0], colours[-1], colours)


class Site:
    """A pair of ticket servers, and two shards whose ids they have issued."""

    def __init__(self, server_registry: ServerRegistry) -> None:
        self.tickets = [server_registry.mariadb(n) for n in range(2)]
        self.shards = [server_registry.mariadb(n) for n in (2, 3)]
        self.urls = [_database(server, "tickets") for server in self.tickets]
        self.shard_urls = [_database(server, "app") for server in self.shards]
        for offset, (server, url) in enumerate(zip(self.tickets, self.urls, strict=True), 1):
            with server.administrator() as cursor:
                cursor.execute("SET GLOBAL auto_increment_increment = 2")
                cursor.execute(f"SET GLOBAL auto_increment_offset = {offset}")
            grant_only(server, url, *LEAST)

    @property
    def on(self) -> list[str]:
        return [w for url in self.urls for w in ("--server", url.render_as_string(False))]

    @property
    def of_shards(self) -> list[str]:
        return [w for url in self.shard_urls for w in ("--shard", url.render_as_string(False))]

    def named(self, text: str) -> str:
        """Names in place of addresses; they are as long, so that no column moves."""
        for kind, servers in (("ticket", self.tickets), ("shard-", self.shards)):
            for number, server in enumerate(servers, 1):
                text = text.replace(f"{server.host}:{server.port}", f"{kind}{number}.example")
        return text


def _database(server: MariaDB, name: str) -> URL:
    server.create_database(name)
    return server.url(name)


def picture(site: Site, name: str, shown: str, arguments: Sequence[str]) -> None:
    """Run the command, and keep what a terminal shows of it."""
    environment = {**os.environ, "FORCE_COLOR": "1", "TERM": "xterm-256color", "NO_COLOR": ""}
    done = subprocess.run(
        [sys.executable, "-m", "sqla_tickets.cli", *arguments],
        check=False,  # it exits with 1 where it has found something
        capture_output=True,
        env={**environment, "COLUMNS": str(WIDTH), "PYTHONPATH": str(ROOT)},
        text=True,
    )
    if done.returncode > 1:
        sys.exit(f"{shown}: {done.stderr}")
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True)
    console.print(Text(f"$ {shown}", "bold"), Text.from_ansi(site.named(done.stdout)), sep="\n")
    light, dark = (
        console.export_svg(
            title="sqla-tickets",
            theme=theme(words),
            clear=False,
            code_format=FRAME,
            unique_id=f"tickets-{name}",
        )
        for words in (LIGHT, DARK)
    )
    pairs = dict(zip(COLOUR.findall(light), COLOUR.findall(dark), strict=True))
    svg = themed(light, {one: other for one, other in pairs.items() if one != other})
    (FOLDER / f"{name}.svg").write_text(re.sub(r"[ \t]+$", "", svg, flags=re.MULTILINE))
    print(f"docs/pictures/{name}.svg: exit code {done.returncode}")


@contextlib.contextmanager
def traffic(pool: TicketPool) -> Iterator[None]:
    """Somebody draws meanwhile."""
    end = threading.Event()

    def draw() -> None:
        while not end.wait(0.004):
            for _ in range(2):
                pool.next_id("photos")
            pool.next_ids("tags", 40)

    thread = threading.Thread(target=draw)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join()


def status(site: Site) -> None:
    """Three sequences: one is busy, one will run out, one was set back."""
    with TicketPool(site.urls, hedge=False) as pool:
        pool.create_table("photos", start=1_204_880)
        pool.create_table("tags", layout="counter", bits=32, start=3_100_000_000)
        pool.create_table("users", start=480_113)
        for name in ("photos", "tags", "users"):
            pool.next_ids(name, 2000)
            pool.next_ids(name, 1000)
    with site.tickets[1].administrator() as cursor:
        cursor.execute("DELETE FROM tickets.users")
        cursor.execute("ALTER TABLE tickets.users AUTO_INCREMENT = 480114")
        cursor.execute("INSERT INTO tickets.users VALUES (480114, 'a')")
    with TicketPool(site.urls, hedge=False) as pool, traffic(pool):
        picture(site, "status", "sqla-tickets status", ["status", *site.on])


def doctor(site: Site) -> None:
    """One server is not durable, is short of connections and lax, and its user may do anything."""
    first, second = site.tickets
    with second.administrator() as cursor:
        cursor.execute("SET GLOBAL innodb_flush_log_at_trx_commit = 2")
        cursor.execute("SET GLOBAL sql_mode = 'NO_ENGINE_SUBSTITUTION'")
    with first.administrator() as cursor:
        cursor.execute("SET GLOBAL read_only = 1")
    grant_only(second, site.urls[1], "ALL")
    picture(site, "doctor", "sqla-tickets doctor", ["doctor", *site.on])
    with first.administrator() as cursor:
        cursor.execute("SET GLOBAL read_only = 0")


def audit(site: Site) -> None:
    """One id is there twice, one is of another origin, and one shard counts by itself."""
    for n, url in enumerate(site.shard_urls):
        run(
            url,
            "CREATE TABLE photos (id BIGINT NOT NULL PRIMARY KEY)",
            f"INSERT INTO photos SELECT 4000 + seq * 2 + {n} FROM seq_0_to_{ROWS - 1}",
        )
    run(site.shard_urls[1], "INSERT INTO photos VALUES (4712), (1900001)")
    run(site.shard_urls[0], "ALTER TABLE photos MODIFY id BIGINT NOT NULL AUTO_INCREMENT")
    shown = "sqla-tickets audit --column photos.id --shard $SHARD1 --shard $SHARD2"
    arguments = ["audit", "--column", "photos.id", *site.on, *site.of_shards]
    picture(site, "audit", shown, arguments)


def main() -> None:
    server_registry = ServerRegistry(["mariadb"])
    try:
        site = Site(server_registry)
        status(site)
        doctor(site)
        audit(site)
    finally:
        server_registry.close()


if __name__ == "__main__":
    main()
