"""Names and texts are made of the field's words: each idea has one, and handlers have names."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("sqla_tickets", "alembic_ext", "tests", "benchmarks", "examples")

#: Words that no name has, and what to say. Words that have a plain meaning too, as order or site, are not here.
INSTEAD_OF = {
    "hand laid": "buffer, buffered",
    "arrivals": "single-flight refill",
    "trail neighbour draw_here": "redirects",
    "flight beaten": "in-flight request, LOST_HEDGE",
    "watch look looks looking recall": "monitor, poll, inspect",
    "doze eldest lagging": "idle, oldest, slow",
    "hope left_alone in_need silent suspect": "unresponsive, circuit open, forced trial",
    "trip admits_one has_found": "record_failure, half-open trial, shared result",
    "beside": "background",
    "turn turns stock": "connection limit, idle connections",
    "met stood": "verified",
    "place": "statement context, server address, pool configuration",
    "note": "table metadata",
    "keeper learn alarm former": "store, observe, raised fence, earlier generation",
    "forget_parent": "reinit_after_fork",
    "epoch": "generation",
    "moments tell": "dispatcher, dispatch",
    "twin twins": "duplicate server",
    "early": "pre-flush default",
    "survey alterations narrow widen": "table states, migration statements, resize",
    "facade time_sorted": "typed, snowflake",
    "bury erect grave": "close, place_tombstone, tombstone",
    "violation violated no_node_left": "integrity error, quarantined, exhausted",
    "lasts block_age": "duration, max_age",
    "standing complaint": "table status, finding",
    "scissors scripted actors guardian borrower fleet": "fault injection, fake driver, workers, reaper",
}

#: Terms that have such a word for a reason, in the files whose paths have a part.
ALLOWED = (
    ("in_flight", "", "the term itself"),
    ("single_flight", "", "the term itself"),
    ("round_trip", "", "the term itself"),
    ("place_tombstone", "", "the term itself"),
    ("by_hand", "", "an id that a person has set, a table that a person has dropped"),
    ("epoch", "snowflake", "the moment that the times of a layout count from"),
    ("watch", "cli", "an option of the command line, as of watch(1)"),
    ("note", "orm", "a table of an application"),
    ("board", "orm", "a table of an application"),
)


def words_of(name: str) -> str:
    """The words of a name, in lower case, each between underscores."""
    return f"_{'_'.join(re.findall(r'[A-Z]+(?![a-z])|[A-Z]?[a-z0-9]+', name))}_".lower()


#: Phrases of no text, and what to say.
NO_PHRASE = {
    "beside the traffic": "in the background",
    "whoever": "a process that, a client that",
    "cannot be meant": "invalid",
    "is told by": "see, to check",
    "what holds": "what works",
    "in hand": "buffered",
    "last hope": "all circuits open",
    "left alone": "ignored, not drawn from",
    "laid out": "buffered",
    "former life": "earlier generation",
    "keeper": "store",
    "twins": "duplicate servers",
    "for machines": "--json",
}
#: What users and maintainers read: docs, messages, help and docstrings.
TEXTS = ("README.md", "CHANGELOG.md", "docs", "sqla_tickets", "alembic_ext", "examples")

SAY = {words_of(old): say for words, say in INSTEAD_OF.items() for old in words.split()}
OLD = re.compile("|".join(SAY))


def names_in(tree: ast.Module) -> Iterator[str]:
    """The names that a file gives to functions, classes, arguments, variables, attributes and modules."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node.name.strip("_") or "def _"
        elif isinstance(node, ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr
        elif isinstance(node, ast.alias) and node.asname:
            yield node.asname


@pytest.mark.parametrize("folder", FOLDERS)
def test_names_are_made_of_the_fields_words(folder: str) -> None:
    """No traceback, profile or search finds a function called ``_``."""
    found: set[str] = set()
    for file in (ROOT / folder).rglob("*.py"):
        path = str(file.relative_to(ROOT))
        allowed = re.compile("|".join(words_of(term) for term, part, _ in ALLOWED if part in path))
        for name in set(names_in(ast.parse(file.read_text()))):
            old = OLD.search(allowed.sub("_", words_of(name)))
            if old or name == "def _":
                found.add(f"{path}: {name}: say {SAY[old[0]] if old else 'what it does'}")
    assert not found, "\n".join(sorted(found))


def texts() -> Iterator[Path]:
    for name in TEXTS:
        for path in [ROOT / name, *(ROOT / name).rglob("*")]:
            if path.suffix in (".md", ".py", ".svg") and "_build" not in path.parts:
                yield path


def test_texts_have_no_phrase_that_reads_as_translated() -> None:
    """A phrase may be broken over two lines, of a comment too."""
    old = re.compile(rf"\b({'|'.join(NO_PHRASE)})\b", re.IGNORECASE)
    found = {
        f"{path.relative_to(ROOT)}: {phrase}: say {NO_PHRASE[phrase.lower()]}"
        for path in texts()
        for phrase in old.findall(re.sub(r"[\s#]+", " ", path.read_text(encoding="utf-8")))
    }
    assert not found, "\n".join(sorted(found))
