"""The SQL statements of the table of high-water marks, compiled per dialect."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Final, NamedTuple

from sqlalchemy import (
    BigInteger,
    ClauseElement,
    Column,
    Integer,
    MetaData,
    String,
    Table,
    and_,
    bindparam,
    delete,
    func,
    not_,
    or_,
    select,
    update,
)
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.schema import CreateTable, ExecutableDDLElement, SetTableComment
from sqlalchemy.sql.compiler import GenericTypeCompiler

from ..arguments import MARKS
from ..dialects import Statement, TicketDialect, dialect_of

__all__ = [
    "GAP_NUMBERS",
    "JOINED",
    "MARKS",
    "Mark",
    "creation",
    "deletion",
    "largest_of_other_strides",
    "rows_of",
    "smallest_joined",
    "upsert",
]

#: The offset, which no server has, under which it stands there where servers that joined began.
JOINED: Final = 0
#: How far above all others the servers that join begin: years, at ten thousand tickets a second.
GAP_NUMBERS: Final = 10**12


class Mark(NamedTuple):
    """No ticket of one residue class of a sequence may be issued that is ``number`` or below.

    Attributes:
        sequence: its name.
        stride: the stride of the pool that wrote it. With another stride, an offset is another residue class.
        offset: the offset of the server that it is about.
        token: the token of the sequence's present generation. A late write with an earlier token counts
            no more.
        number: the largest ticket that is known to have been issued, or raised to.
    """

    sequence: str
    stride: int
    offset: int
    token: int
    number: int


class _Ticket(BigInteger):
    """Holds every ticket that a table can issue."""


class _Name(String):
    """Holds the name of a sequence, exactly."""


@compiles(_Ticket)
def _write_ticket_type(element: _Ticket, compiler: GenericTypeCompiler, **kw: Any) -> str:
    return dialect_of(compiler.dialect).ticket_type


@compiles(_Name)
def _write_name_type(element: _Name, compiler: GenericTypeCompiler, **kw: Any) -> str:
    return dialect_of(compiler.dialect).name_type


#: The token of a row whose sequence was dropped: no generation of a sequence has it.
_DROPPED: Final = 0
_marks = Table(
    MARKS,
    MetaData(),
    Column("sequence", _Name(255), primary_key=True),
    Column("stride", Integer, primary_key=True, autoincrement=False),
    Column("offset", Integer, primary_key=True, autoincrement=False, quote=True),
    Column("token", BigInteger, nullable=False),
    Column("mark", _Ticket, nullable=False),
    comment="sqla_tickets: how far the other ticket servers have issued their tickets",
)


def creation(dialect: TicketDialect) -> list[ExecutableDDLElement]:
    """The statements that create the table of marks, and say what it is."""
    _marks.dialect_kwargs.update(dialect.table_options())
    if dialect.sqlalchemy.supports_comments and not dialect.sqlalchemy.inline_comments:
        return [CreateTable(_marks), SetTableComment(_marks)]
    return [CreateTable(_marks)]


def rows_of(
    dialect: TicketDialect, stride: int, sequences: Collection[str]
) -> tuple[Statement, dict[str, int | str]]:
    """Rows of (sequence, offset, token, number) of one stride: the statement, and its parameters."""
    names = {f"sequence{n}": sequence for n, sequence in enumerate(sequences)}

    def make() -> ClauseElement:
        c = _marks.c
        named = or_(*(c.sequence == bindparam(name, type_=c.sequence.type) for name in names))
        of_stride = c.stride == bindparam("stride", type_=c.stride.type)
        return select(c.sequence, c.offset, c.token, c.mark).where(of_stride, named)

    return dialect.compiled((rows_of, len(names)), make), {"stride": stride, **names}


def largest_of_other_strides(stride: int, sequence: str) -> ClauseElement:
    """One row: the largest mark from pools of another stride than this; NULL where there is none."""
    c = _marks.c
    of_others = (c.sequence == sequence, c.offset > JOINED, c.stride != stride)
    return select(func.max(c.mark)).where(*of_others)


def smallest_joined(stride: int, sequence: str) -> ClauseElement:
    """One row: where servers of a larger stride than this one joined; NULL where none has."""
    c = _marks.c
    of_joined = (c.sequence == sequence, c.offset == JOINED, c.stride > stride)
    return select(func.min(c.mark)).where(*of_joined)


def upsert(dialect: TicketDialect, marks: Sequence[Mark]) -> tuple[Statement, dict[str, int | str]]:
    """Raise marks, or write them where there are none, none is ever lowered: the statement, and its parameters."""
    columns = _marks.c.keys()
    values: dict[str, int | str] = {}
    for n, mark in enumerate(marks):
        row: tuple[int | str, ...] = mark
        values.update({f"{column}{n}": value for column, value in zip(columns, row, strict=True)})

    def make() -> ClauseElement:
        rows = [
            {c: bindparam(f"{c}{n}", type_=_marks.c[c].type) for c in columns}
            for n in range(len(marks))
        ]
        return dialect.upsert_largest(_marks, rows, "mark", same="token")

    return dialect.compiled((upsert, len(marks)), make), values


def deletion(stride: int, sequence: str) -> list[ClauseElement]:
    """Forget the marks of a sequence that is dropped by a pool of this stride.

    Of other strides one thing is remembered: that there were some, by which the next table is closed to
    clients that still number by them.
    """
    c = _marks.c
    of_others = and_(c.sequence == sequence, c.offset > JOINED, c.stride != stride)
    return [
        update(_marks).where(of_others).values(mark=0, token=_DROPPED),
        delete(_marks).where(c.sequence == sequence, not_(of_others)),
    ]
