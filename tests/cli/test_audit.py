"""``sqla-tickets audit`` over four shards.

``TICKETS_AUDIT_ROWS=5000000`` makes as many rows, and shows how long it took and what memory it needed.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import URL

from sqla_tickets import TicketPool
from sqla_tickets_cli import shards as shards_
from sqla_tickets_cli.audit import audit, merged
from sqla_tickets_cli.shards import Shard, TicketColumn, open_shards
from tests.cli.conftest import options, run_cli
from tests.drawing.conftest import OpenPool
from tests.drawing.tools import run
from tests.servers import Borrower

ROWS = int(os.environ.get("TICKETS_AUDIT_ROWS", "40000"))
PHOTOS = TicketColumn("photos", "id", "photos")
SHARDS = 4
pytestmark = pytest.mark.ticket_servers("sqlite")
#: SQLite's way to have a key that counts, which no ALTER TABLE can make.
COUNTING = (
    "ALTER TABLE photos RENAME TO before",
    "CREATE TABLE photos (id INTEGER PRIMARY KEY, title VARCHAR(9))",
    "INSERT INTO photos SELECT * FROM before",
    "DROP TABLE before",
)
KINDS = pytest.mark.app_databases("sqlite", "mariadb")


class Site:
    """Four shards with photos whose ids are tickets, spread as the lowest digits say."""

    def __init__(self, kind: str, servers: Borrower, folder: Path, pool: TicketPool) -> None:
        self.pool, self.kind = pool, kind
        self.urls = [
            URL.create("sqlite", database=str(folder / f"shard{n}.db"))
            if kind == "sqlite"
            else servers.fresh_database(servers.shared(kind, n % 2), None)
            for n in range(SHARDS)
        ]
        each = ROWS // SHARDS
        pool.raise_above("photos", 2 * ROWS)
        self.first = 100
        for n, url in enumerate(self.urls):
            numbers = f"WITH RECURSIVE s(seq) AS (SELECT 0 UNION ALL SELECT seq + 1 FROM s WHERE seq < {each - 1})"
            source = f"{numbers} SELECT {self.first} + seq * {SHARDS} + {n}, 'x' FROM s"
            if kind == "mariadb":
                source = f"SELECT {self.first} + seq * {SHARDS} + {n}, 'x' FROM seq_0_to_{each - 1}"
            run(
                url,
                "CREATE TABLE photos (id BIGINT NOT NULL PRIMARY KEY, title VARCHAR(9))",
                f"INSERT INTO photos {source}",
            )
        self.shards = open_shards([url.render_as_string(False) for url in self.urls])

    def insert(self, shard: int, number: int) -> None:
        run(self.urls[shard], f"INSERT INTO photos VALUES ({number}, 'planted')")

    def plant(self) -> dict[str, tuple[list[str], list[int]]]:
        """Put wrong what an audit shall find: on which shards, and which ids."""
        twice = self.first + ROWS // 2 + 1
        foreign = self.pool.servers[0].last_ticket("photos") + 2
        self.insert(0, twice)
        self.insert(3, foreign)
        if self.kind == "mariadb":
            run(self.urls[2], "ALTER TABLE photos MODIFY id BIGINT NOT NULL AUTO_INCREMENT")
        else:
            run(self.urls[2], *COUNTING)
        owner = (twice - self.first) % SHARDS
        named = [str(shard) for shard in self.shards]
        return {
            "duplicate": ([named[n] for n in sorted({0, owner})], [twice]),
            "foreign": ([named[3]], [foreign]),
            "auto_increment": ([named[2]], []),
        }

    @property
    def arguments(self) -> list[str]:
        servers = options([server.engine.url for server in self.pool.servers])
        found = [word for url in self.urls for word in ("--shard", url.render_as_string(False))]
        return ["audit", *servers, *found]


def found_in(report: dict[str, Any]) -> dict[str, tuple[list[str], list[int]]]:
    """What a report says, as `Site.plant` does."""
    return {a["kind"]: (a["shards"], a["ids"]) for a in report["anomalies"]}


@pytest.fixture
def site(app_kind: str, servers: Borrower, tmp_path: Path, pool: TicketPool) -> Site:
    return Site(app_kind, servers, tmp_path, pool)


@KINDS
def test_nothing_is_found_where_nothing_is_wrong(site: Site) -> None:
    report = audit(site.pool, site.shards, PHOTOS)
    assert report.anomalies == []
    assert report.rows == ROWS
    assert report.residues == {1: ROWS // 2, 2: ROWS // 2}
    assert report.largest == site.first + ROWS - 1
    done = run_cli(*site.arguments)
    assert done.code == 0
    assert "No id twice" in done.text


@KINDS
def test_what_is_planted_is_found(site: Site) -> None:
    planted = site.plant()
    done = run_cli(*site.arguments, "--json")
    assert done.code == 1
    (report,) = done.json["audit"]
    assert found_in(report) == planted
    text = run_cli(*site.arguments).text
    assert "DUPLICATE" in text
    assert all(str(number) in text for _, ids in planted.values() for number in ids)
    assert "hush" not in text


@KINDS
def test_an_id_of_a_class_that_no_server_has(site: Site, open_pool: OpenPool) -> None:
    urls = [server.engine.url for server in site.pool.servers]
    for url in urls:
        run(url, "DROP TABLE photos")
    wide = open_pool(urls, 4)
    wide.create_table("photos", start=10 * ROWS)
    assert audit(wide, site.shards, PHOTOS).anomalies == []
    stray = 10 * ROWS + 10_003 - (10 * ROWS) % 4
    site.insert(1, stray)
    (anomaly,) = audit(wide, site.shards, PHOTOS).anomalies
    assert (anomaly.kind, anomaly.ids) == ("foreign", [stray])


@pytest.mark.app_databases("sqlite")
def test_a_row_that_moved_meanwhile_is_no_duplicate(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.insert(0, moved := site.first + 1)
    read = Shard.having

    def having(self: Shard, where: TicketColumn, wanted: list[int]) -> set[int]:
        run(site.urls[0], f"DELETE FROM photos WHERE id = {moved}")
        return read(self, where, wanted)

    monkeypatch.setattr(Shard, "having", having)
    assert audit(site.pool, site.shards, PHOTOS).anomalies == []


@pytest.mark.app_databases("sqlite")
def test_a_duplicate_behind_many_rows_that_moved(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More than are remembered, so that it would be forgotten."""
    moved = [site.first + SHARDS * n + 1 for n in range(150)]
    for number in [*moved, twice := site.first + ROWS - 3]:
        site.insert(0, number)
    read = Shard.having

    def having(self: Shard, where: TicketColumn, wanted: list[int]) -> set[int]:
        run(site.urls[0], f"DELETE FROM photos WHERE title = 'planted' AND id <= {moved[-1]}")
        return read(self, where, wanted)

    monkeypatch.setattr(Shard, "having", having)
    (anomaly,) = audit(site.pool, site.shards, PHOTOS).anomalies
    assert (anomaly.kind, anomaly.count, anomaly.ids) == ("duplicate", 1, [twice])


@pytest.mark.app_databases("sqlite")
def test_many_duplicates_are_counted(site: Site) -> None:
    copied = f"SELECT id, title FROM other.photos WHERE id < {site.first + SHARDS * 250}"
    attached = f"ATTACH '{site.urls[1].database}' AS other"
    run(site.urls[0], attached, f"INSERT INTO photos {copied}")
    (anomaly,) = audit(site.pool, site.shards, PHOTOS).anomalies
    assert (anomaly.kind, anomaly.count, len(anomaly.ids)) == ("duplicate", 250, 100)
    assert anomaly.shards == [str(site.shards[n]) for n in (0, 1)]


@pytest.mark.app_databases("sqlite")
def test_what_was_not_read_is_told(site: Site, tmp_path: Path) -> None:
    """A sequence whose ids nobody has found, and a database that has no such table."""
    site.pool.create_table("people")
    empty = ("--shard", f"sqlite:///{tmp_path}/empty.db")
    photos, people = run_cli(*site.arguments, *empty, "--json").json["audit"]
    assert (photos["anomalies"], photos["rows"]) == ([], ROWS)
    assert photos["without"] == [f"sqlite:///{tmp_path}/empty.db"]
    assert people["sequence"] == "people"
    assert [a["kind"] for a in people["anomalies"]] == ["not compared"]
    done = run_cli(*site.arguments, *empty)
    assert done.code == 1
    assert "No such column on sqlite" in done.text
    assert "--column TABLE.COLUMN=people" in done.text
    assert run_cli(*site.arguments, "--column", "photos.id").code == 0


@pytest.mark.app_databases("sqlite")
def test_what_is_read_is_not_kept(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards_, "PAGE", 500)
    audit(site.pool, site.shards, PHOTOS)  # what is made once for a process
    tracemalloc.start()
    try:
        report = audit(site.pool, site.shards, PHOTOS)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert report.rows == ROWS
    assert (
        peak < 1_500_000
    )  # all ids would be above, from 40,000 on: each is 32 bytes, and 8 in a list
    assert ROWS * 40 > 1_500_000


@pytest.mark.skipif(ROWS < 1_000_000, reason="a long run, asked for by TICKETS_AUDIT_ROWS")
@KINDS
def test_many_rows_in_little_memory(site: Site) -> None:
    code = (
        "import sys, re, json; from click.testing import CliRunner\n"
        "from sqla_tickets_cli.commands import cli\n"
        "peak = lambda: int(re.search(r'VmHWM:\\s+(\\d+)', open('/proc/self/status').read())[1])\n"
        "before = peak(); r = CliRunner().invoke(cli, sys.argv[1:])\n"
        "print(json.dumps([r.exit_code, r.output, peak() - before]))"
    )
    planted = site.plant()
    command = [sys.executable, "-c", code, *site.arguments, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    exit_code, text, kilobytes = json.loads(done.stdout)
    (report,) = json.loads(text)["audit"]
    print(f"{site.kind}: {report['rows']:,} rows, {report['seconds']:.1f} s, {kilobytes:,} kB")
    assert exit_code == 1
    assert found_in(report) == planted
    assert report["rows"] == ROWS + 2
    assert kilobytes < 100_000


@pytest.mark.app_databases("sqlite")
def test_a_terminal_sees_how_far_it_is(site: Site) -> None:
    seen: list[tuple[int, int]] = []
    audit(site.pool, site.shards, PHOTOS, lambda rows, last: seen.append((rows, last)))
    assert seen == sorted(seen)
    assert seen[-1] == (ROWS, site.first + ROWS - 1)
    command = [sys.executable, "-m", "sqla_tickets_cli", *site.arguments]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        env={**os.environ, "FORCE_COLOR": "1", "TERM": "xterm", "COLUMNS": "100"},
    )
    assert "100%" in done.stderr
    assert f"{ROWS:,} ids" in re.sub(r"\x1b\[[0-9;]*m", "", done.stderr)
    quiet = subprocess.run(command, capture_output=True, text=True)
    assert quiet.stderr == ""
    assert "No id twice" in quiet.stdout


def test_columns_are_found_in_the_models(
    pool: TicketPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on: list[str]
) -> None:
    (tmp_path / "site_models.py").write_text(
        "from sqlalchemy import *\nfrom sqla_tickets import TicketSequence\nmetadata = MetaData()\n"
        "Table('pictures', metadata, Column('number', BigInteger, TicketSequence('photos'),"
        " primary_key=True))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    shard = URL.create("sqlite", database=str(tmp_path / "shard.db"))
    run(
        shard, "CREATE TABLE pictures (number BIGINT)", "INSERT INTO pictures VALUES (3), (4), (99)"
    )
    pool.raise_above("photos", 50)
    arguments = ("audit", *on, "--shard", shard.render_as_string(False), "--json")
    for where in (("--models", "site_models:metadata"), ("--column", "pictures.number=photos")):
        (report,) = run_cli(*arguments, *where).json["audit"]
        assert report["column"] == "pictures.number"
        assert [a["ids"] for a in report["anomalies"]] == [[99]]
    for wrong in ([], ["--column", "nonsense"], ["--column", "no.where"], ["--models", "no:x"]):
        assert run_cli(*arguments, *wrong).code == 3


@pytest.mark.parametrize(
    "streams",
    [
        [[[1, 2, 3], [4, 9]], [[2, 5], [6], [9]]],
        [[[1]], []],
        [[[5]], [[1], [2], [3], [4], [5]], [[5, 6, 7]]],
        [],
    ],
)
def test_what_is_the_same_comes_together(streams: list[list[list[int]]]) -> None:
    found = [
        sorted(i for part in parts for i in part) for parts in merged([iter(s) for s in streams])
    ]
    ids = [i for part in found for i in part]
    assert ids == sorted(i for stream in streams for page in stream for i in page)
    assert sum(len(set(part)) for part in found) == len(set(ids))
