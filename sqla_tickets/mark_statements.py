"""The statements about the marks that ticket servers keep of their peers, compiled per dialect."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from sqlalchemy import ClauseElement, Executable
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.schema import ExecutableDDLElement
from sqlalchemy.sql.compiler import DDLCompiler, SQLCompiler

from .compiled import bound, quoted

__all__ = [
    "JOINED",
    "MARKS",
    "CreateMarks",
    "DeleteMarks",
    "Mark",
    "NoteMarks",
    "ReadJoined",
    "ReadMarks",
    "WriteMarks",
]

#: The table in which a ticket server keeps the high-water marks of its peers.
MARKS: Final = "sqla_tickets_marks"
#: The offset, which no server has, under which it stands there where servers that joined began.
JOINED: Final = 0


class Mark(NamedTuple):
    """No ticket of one residue class of a sequence may be issued that is ``number`` or below.

    Attributes:
        sequence: its name.
        stride: of the pool that wrote it: with another one, an offset is another residue class.
        offset: of the server that it is about.
        token: of the sequence's present life. It had another one before it was dropped, and what is
            written late with that one counts no more.
        number: the largest ticket that is known to have been issued, or raised to.
    """

    sequence: str
    stride: int
    offset: int
    token: int
    number: int


class CreateMarks(ExecutableDDLElement):
    """``CREATE TABLE`` of the marks that a ticket server keeps of its peers."""


class NoteMarks(ExecutableDDLElement):
    """Say beside the marks what they are, where it is not part of ``CREATE TABLE`` (PostgreSQL)."""


class _Statement(Executable, ClauseElement):
    """A statement about the marks."""

    inherit_cache: bool | None = False


class ReadMarks(_Statement):
    """Rows of (sequence, offset, token, number) of one stride.

    Args:
        stride: of the pool that asks.
        count: of how many sequences, ``:sequence_0`` and so on.
    """

    def __init__(self, stride: int, count: int = 1) -> None:
        self.stride, self.count = stride, count


class ReadJoined(_Statement):
    """One row: where servers of a larger stride than this one joined in ``:sequence``; NULL where none has."""

    def __init__(self, stride: int) -> None:
        self.stride = stride


class WriteMarks(_Statement):
    """Raise marks, or write them where there are none; none is ever lowered.

    Args:
        marks: whose sequences are the parameters ``:sequence_0`` and so on.
    """

    def __init__(self, marks: Sequence[Mark]) -> None:
        self.marks = list(marks)


class DeleteMarks(_Statement):
    """Forget the marks of ``:sequence``."""


# What the elements read as. The names of the functions are of no use to anybody.


_ABOUT_MARKS = "sqla_tickets: how far the other ticket servers have issued their tickets"


def _marks_columns(compiler: DDLCompiler, name_type: str, number_type: str) -> str:
    offset = quoted(compiler, "offset")
    return (
        f"\n\tsequence {name_type} NOT NULL,\n\tstride INTEGER NOT NULL,\n\t{offset} INTEGER NOT NULL"
        f",\n\ttoken BIGINT NOT NULL,\n\tmark {number_type} NOT NULL"
        f",\n\tPRIMARY KEY (sequence, stride, {offset})"
    )


@compiles(CreateMarks)
def _(element: CreateMarks, compiler: DDLCompiler, **kw: Any) -> str:
    columns = _marks_columns(compiler, "VARCHAR(255)", "BIGINT")
    return f"CREATE TABLE {quoted(compiler, MARKS)} ({columns}\n)"


@compiles(CreateMarks, "sqlite")
def _(element: CreateMarks, compiler: DDLCompiler, **kw: Any) -> str:
    columns = _marks_columns(compiler, "VARCHAR(255)", "BIGINT")
    return f"CREATE TABLE {quoted(compiler, MARKS)} ({columns}\n\t/* {_ABOUT_MARKS} */\n)"


@compiles(CreateMarks, "mysql", "mariadb")
def _(element: CreateMarks, compiler: DDLCompiler, **kw: Any) -> str:
    exact = "VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"
    columns = _marks_columns(compiler, exact, "BIGINT UNSIGNED")
    return f"CREATE TABLE {quoted(compiler, MARKS)} ({columns}\n) ENGINE=InnoDB COMMENT='{_ABOUT_MARKS}'"


@compiles(NoteMarks)
def _(element: NoteMarks, compiler: DDLCompiler, **kw: Any) -> str:
    return f"COMMENT ON TABLE {quoted(compiler, MARKS)} IS '{_ABOUT_MARKS}'"


@compiles(ReadMarks)
def _(element: ReadMarks, compiler: SQLCompiler, **kw: Any) -> str:
    names = ", ".join(bound(compiler, f"sequence_{n}") for n in range(element.count))
    return (
        f"SELECT sequence, {quoted(compiler, 'offset')}, token, mark FROM {quoted(compiler, MARKS)}"
        f" WHERE stride = {element.stride} AND sequence IN ({names})"
    )


@compiles(ReadJoined)
def _(element: ReadJoined, compiler: SQLCompiler, **kw: Any) -> str:
    return (
        f"SELECT MIN(mark) FROM {quoted(compiler, MARKS)} WHERE sequence = {bound(compiler, 'sequence')}"
        f" AND {quoted(compiler, 'offset')} = {JOINED} AND stride > {element.stride}"
    )


@compiles(DeleteMarks)
def _(element: DeleteMarks, compiler: SQLCompiler, **kw: Any) -> str:
    return f"DELETE FROM {quoted(compiler, MARKS)} WHERE sequence = {bound(compiler, 'sequence')}"


def _insert_marks(element: WriteMarks, compiler: SQLCompiler, alias: str) -> str:
    rows = ", ".join(
        f"({bound(compiler, f'sequence_{n}')}, {m.stride}, {m.offset}, {m.token}, {m.number})"
        for n, m in enumerate(element.marks)
    )
    columns = f"(sequence, stride, {quoted(compiler, 'offset')}, token, mark)"
    return f"INSERT INTO {quoted(compiler, MARKS)}{alias} {columns} VALUES {rows}"


@compiles(WriteMarks)
def _(element: WriteMarks, compiler: SQLCompiler, **kw: Any) -> str:
    return (
        f"{_insert_marks(element, compiler, ' AS old')}"
        f" ON CONFLICT (sequence, stride, {quoted(compiler, 'offset')}) DO UPDATE"
        " SET mark = excluded.mark WHERE old.token = excluded.token AND old.mark < excluded.mark"
    )


@compiles(WriteMarks, "mysql", "mariadb")
def _(element: WriteMarks, compiler: SQLCompiler, **kw: Any) -> str:
    dialect, old = compiler.dialect, quoted(compiler, MARKS)
    version = dialect.server_version_info or (9,)
    if getattr(dialect, "is_mariadb", False) or tuple(version) < (8, 0, 19):
        alias, token, mark = "", "VALUES(token)", "VALUES(mark)"
    else:  # where VALUES() is deprecated
        alias, token, mark = " AS new", "new.token", "new.mark"
    return (
        f"{_insert_marks(element, compiler, '')}{alias} ON DUPLICATE KEY UPDATE"
        f" mark = IF({old}.token = {token}, GREATEST({old}.mark, {mark}), {old}.mark)"
    )
