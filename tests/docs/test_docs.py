"""What the README and the documentation say runs, prints what they say, and leaves nothing out.

The conventions of their fenced blocks:

* ```` ```python ```` runs; the blocks of one page share a namespace, top to bottom.
* ```` ```text ```` right after one is what it prints.
* ```` ```python FILE ```` quotes FILE, and does not run.

URLs of MySQL (`mysql+DRIVER://user@HOST/DATABASE`) are those of SQLite files here, one per host;
an asynchronous driver becomes aiosqlite. The pages of `ON_SERVERS` run once more on MariaDB.
"""

from __future__ import annotations

import ast
import contextlib
import io
import linecache
import re
import sys
import textwrap
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
from sqlalchemy import URL

import sqla_tickets
from sqla_tickets import errors, testing
from tests.support.markdown_blocks import Block, blocks_of
from tests.support.servers import ServerFixtures

ROOT = Path(__file__).parents[2]
#: Their blocks are of migrations, which have tests of their own in tests/integration/migrations.
OF_MIGRATIONS = {"migration-operations.md", "migrations.md", "move.md", "take-over.md"}
#: What the benchmarks and the simulation write, a part of other pages.
WRITTEN = {"understand/performance", "understand/scale"}
ALL_PAGES = [
    ROOT / "README.md",
    *(
        page
        for page in sorted((ROOT / "docs").rglob("*.md"))
        if str(page.parent.relative_to(ROOT / "docs")) not in WRITTEN and "_build" not in page.parts
    ),
]
PAGES = [page for page in ALL_PAGES if page.name not in OF_MIGRATIONS]
#: Where a reader's own database is created; on SQLite it takes what MySQL refuses.
ON_SERVERS = [
    "README.md",
    "asyncio.md",
    "inserting.md",
    "instagram-ids.md",
    "models.md",
    "shards.md",
    "time-sorted-ids.md",
]
MYSQL = re.compile(r"mysql\+(\w+)://\w+@(\w+)/\w+")
TEST = re.compile(r"(tests/[\w/]+\.py)::(\w+)")
#: A row of the table in causes.md: the number of the cause, and what becomes of it.
CAUSE = re.compile(r"^\* - (\d+)\n  - .+?^  - (.+?)^  - ", re.DOTALL | re.MULTILINE)
#: An item of the list in code.md: the number of the cause, and its tests.
TESTS_OF_CAUSE = re.compile(r"^(\d+)\. (`tests/.+?)(?=^\d+\. |\Z)", re.DOTALL | re.MULTILINE)


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    """What the blocks of a page run in, in an empty folder; SQLAlchemy looks annotations up in it."""
    monkeypatch.chdir(tmp_path)
    module = ModuleType("page")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT).with_suffix("")).removeprefix("docs/")


#: Gives the URL of a host, and of a driver, that a page names.
MakeUrl = Callable[[str, str], str]


def files_in(folder: Path) -> MakeUrl:
    """A SQLite file for each host."""

    def url(host: str, driver: str) -> str:
        is_async = driver in {"asyncmy", "aiomysql"}
        return f"sqlite{'+aiosqlite' if is_async else ''}:///{folder / host}.db"

    return url


def databases_on(servers: ServerFixtures) -> MakeUrl:
    """A database on MariaDB for each host, those of the second ticket server on another one."""
    databases: dict[str, URL] = {}

    def url(host: str, driver: str) -> str:
        if host not in databases:
            databases[host] = servers.fresh_database(servers.mariadb(int(host == "ticket2")))
        return databases[host].set(drivername=f"mysql+{driver}").render_as_string(False)

    return url


def run(block: Block, module: ModuleType, make_url: MakeUrl) -> str:
    """Run a block on databases of this test, and return what it printed."""
    text = "\n" * (block.line - 1) + MYSQL.sub(
        lambda found: make_url(found[2], found[1]), block.text
    )
    linecache.cache[str(block.source)] = (len(text), None, text.splitlines(True), str(block.source))
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(text, str(block.source), "exec", dont_inherit=True), vars(module))
    return printed.getvalue()


def run_page(page: Path, module: ModuleType, make_url: MakeUrl) -> None:
    for block in blocks_of(page):
        if block.info:
            continue
        printed = run(block, module, make_url)
        if block.output is not None:
            assert printed.expandtabs() == block.output.expandtabs(), f"{page}:{block.line}"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_the_code_runs_and_prints_what_the_page_says(
    page: Path, module: ModuleType, tmp_path: Path
) -> None:
    run_page(page, module, files_in(tmp_path))


@pytest.mark.parametrize("name", ON_SERVERS)
def test_the_code_runs_on_servers_too(
    name: str, module: ModuleType, servers: ServerFixtures
) -> None:
    (page,) = [page for page in PAGES if page.name == name]
    run_page(page, module, databases_on(servers))


def test_every_picture_is_shown_follows_the_theme_and_has_words() -> None:
    pages = (ROOT / "docs").rglob("*.md")
    text = "\n".join(p.read_text() for p in [ROOT / "README.md", *pages] if "_build" not in p.parts)
    pictures = [p for p in (ROOT / "docs").rglob("*.svg") if "_build" not in p.parts]
    assert pictures
    for picture in pictures:
        assert "@media (prefers-color-scheme: dark)" in picture.read_text(), picture
        words = re.findall(
            rf"!\[([^]]*)\]\(\S*\b{picture.name}\)|\{{image\}} \S*\b{picture.name}\n:alt: (.*)",
            text,
        )
        assert words, f"no page shows {picture}"
        assert all(len("".join(each).split()) >= 10 for each in words), f"{picture}: {words}"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_quotations_are_true(page: Path) -> None:
    for block in blocks_of(page):
        for quoted in block.info:
            lines = textwrap.dedent((ROOT / quoted).read_text()).splitlines()
            assert contains(lines, block.text.splitlines()), f"{page}:{block.line}"


def contains(lines: list[str], part: list[str]) -> bool:
    """Whether the lines of a part follow one another somewhere, indented alike or deeper."""
    wanted = textwrap.dedent("\n".join(part))
    candidates = (lines[n : n + len(part)] for n in range(len(lines) - len(part) + 1))
    return any(textwrap.dedent("\n".join(candidate)) == wanted for candidate in candidates)


def test_example_in_package_docstring_runs(module: ModuleType, tmp_path: Path) -> None:
    source = Path(sqla_tickets.__file__)
    blocks = re.findall(r"::\n((?:\n|    .*\n)+)", sqla_tickets.__doc__ or "")
    assert blocks
    for text in blocks:
        run(Block(source, 1, [], textwrap.dedent(text)), module, files_in(tmp_path))


def test_every_error_is_explained() -> None:
    explained = re.findall(
        r"^#+ `(\w+)`$", (ROOT / "docs/reference/errors.md").read_text(), re.MULTILINE
    )
    assert sorted(explained) == sorted(errors.__all__)


def test_every_kind_of_problem_is_in_the_table() -> None:
    page = (ROOT / "docs/guide/http.md").read_text()
    table = re.findall(r"^\| (\d{3}) \| (`.+?`) \|", page, re.MULTILINE)
    listed = {(int(status), kind) for status, kinds in table for kind in re.findall(r"\w+", kinds)}
    assert listed == {
        (404, "not_found"),  # of the router
        (405, "method_not_allowed"),
        *problems_in(ROOT / "sqla_tickets/http"),
    }


def problems_in(folder: Path) -> set[tuple[int, str]]:
    """The status and the kind of each problem that the code of a folder makes."""
    calls = [
        call
        for file in folder.glob("*.py")
        for call in ast.walk(ast.parse(file.read_text()))
        if isinstance(call, ast.Call) and ast.unparse(call.func).split(".")[-1] == "Problem"
    ]
    return {(ast.literal_eval(call.args[0]), ast.literal_eval(call.args[1])) for call in calls}


def test_every_public_name_is_in_the_reference() -> None:
    described = re.findall(
        r"auto(?:class|exception|data|function):: (?:sqla_tickets\.)?(\w+)",
        (ROOT / "docs/reference/api.md").read_text(),
    )
    assert set(sqla_tickets.__all__) <= set(described)
    parts = re.findall(
        r"autofunction:: sqla_tickets\.testing\.(\w+)", (ROOT / "docs/reference/api.md").read_text()
    )
    assert parts == testing.__all__


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_test_that_is_named_exists(page: Path) -> None:
    for file, name in TEST.findall(page.read_text()):
        assert name in names_of_tests(ROOT / file), f"{page}: {file}::{name}"


def names_of_tests(file: Path) -> set[str]:
    """The names of a file's tests."""
    parts = ast.walk(ast.parse(file.read_text()))
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {part.name for part in parts if isinstance(part, functions) and part.name[:5] == "test_"}


def test_every_cause_of_a_repeated_id_is_answered_and_tested() -> None:
    page = (ROOT / "docs/understand/causes.md").read_text()
    causes = CAUSE.findall(page)
    assert [int(number) for number, _ in causes] == list(range(1, len(causes) + 1))
    assert len(causes) >= 25
    answers = Counter(re.split("[;\n]", answer)[0] for _, answer in causes)
    assert set(answers) == {"prevented", "detected before", "detected after"}
    assert answers["detected after"] <= 4
    tests = TESTS_OF_CAUSE.findall((ROOT / "docs/understand/code.md").read_text())
    assert [number for number, _ in tests] == [number for number, _ in causes]
    for number, names in tests:
        assert TEST.search(names), f"no test of cause {number}"


def test_every_way_of_inserting_has_a_test_of_its_row() -> None:
    """A row of the table that says something else than its test, or has none."""
    page = (ROOT / "docs/guide/inserting.md").read_text()
    section = page.split("\n## How many draws\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (.+?) \| (.+) \|$", section, re.MULTILINE)
    assert rows
    assert rows == marked_rows(ROOT / "tests/integration/orm/test_inserting_table.py")


def marked_rows(file: Path) -> list[tuple[str, ...]]:
    """The arguments of ``@row(...)``, the mark of the tests of a file."""
    return [
        tuple(ast.literal_eval(argument) for argument in mark.args)
        for test in ast.parse(file.read_text()).body
        if isinstance(test, ast.FunctionDef)
        for mark in test.decorator_list
        if isinstance(mark, ast.Call) and isinstance(mark.func, ast.Name) and mark.func.id == "row"
    ]


def test_there_is_code_to_run() -> None:
    with_code = {page.name for page in PAGES if any(True for _ in blocks_of(page))}
    assert with_code >= {
        "README.md",
        "index.md",
        "asyncio.md",
        "shards.md",
        "models.md",
        "inserting.md",
        "how-a-draw-works.md",
        "errors.md",
    }
