"""The fenced blocks of Python in the documentation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from markdown_it import MarkdownIt


@dataclass
class Block:
    """A fenced block.

    Attributes:
        source: where it stands, for tracebacks.
        line: the line of its first line, counted from 1.
        info: what follows the opening fence.
        text: what is inside.
        output: what it prints, where the page tells.
    """

    source: Path
    line: int
    info: list[str]
    text: str
    output: str | None = None


def blocks_of(page: Path) -> Iterator[Block]:
    """The Python blocks of a page, each with the output that follows it."""
    tokens = MarkdownIt().parse(page.read_text())
    for token, follower in zip(tokens, [*tokens[1:], None], strict=True):
        if token.type == "fence" and token.info.split()[:1] == ["python"] and token.map:
            block = Block(page, token.map[0] + 2, token.info.split()[1:], token.content)
            if follower is not None and follower.type == "fence" and follower.info == "text":
                block = replace(block, output=follower.content)
            yield block
