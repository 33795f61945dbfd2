"""Every link within README and the documentation leads to a file, and to a heading where it names one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.docs.test_docs import ALL_PAGES, name_of

FENCE = re.compile(r"^(`{3,}).*?^\1$", re.DOTALL | re.MULTILINE)
#: ``[text](target)``, ```{doc}`target` ```, ```{doc}`text <target>` ``` and directives that show a file.
LINK = re.compile(r"\]\(([^)\s]*)\)")
DOC = re.compile(r"\{doc\}`(?:[^`<]*<)?([^`<>]+)>?`")
SHOWN = re.compile(r"^`{3,}\{(?:image|figure|include|literalinclude)\} (\S+)", re.MULTILINE)
HEADING = re.compile(r"^#{1,3} (.+)$", re.MULTILINE)
LABEL = re.compile(r"^\((\S+)\)=$", re.MULTILINE)


@cache
def anchors_of(page: Path) -> set[str]:
    """What Sphinx and code hosts make of a page's headings, and the labels that stand before some."""
    text = FENCE.sub("", page.read_text())
    slugs = (re.sub(r"[^\w\- ]", "", title.lower()) for title in HEADING.findall(text))
    return {slug.replace(" ", "-") for slug in slugs} | set(LABEL.findall(text))


def broken_links(page: Path) -> Iterator[str]:
    text = page.read_text()
    for target in DOC.findall(text):
        if not (page.parent / f"{target}.md").is_file():
            yield target
    for target in SHOWN.findall(text):
        if not (page.parent / target).is_file():
            yield target
    for link in LINK.findall(FENCE.sub("", text)):
        target, _, anchor = link.partition("#")
        file = page.parent / target if target else page
        if "://" in link or link.startswith("mailto:"):
            continue
        if not file.exists() or (anchor and anchor not in anchors_of(file)):
            yield link


@pytest.mark.parametrize("page", ALL_PAGES, ids=name_of)
def test_every_link_leads_somewhere(page: Path) -> None:
    assert list(broken_links(page)) == []
