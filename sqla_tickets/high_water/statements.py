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
    "raise_one",
    "raise_smaller_strides",
    "retirements_ended",
    "rows_of",
    "smallest_joined",
    "upsert",
]

#: The offset of the row that says where joined servers began; no server has this offset.
JOINED: Final = 0
#: How far above all others joining servers begin: years' worth, at ten thousand tickets a second.
GAP_NUMBERS: Final = 10**12


class Mark(NamedTuple):
    """A high-water mark: no ticket up to ``number`` may be issued again in its sequence and residue class.

    Attributes:
        sequence: its name.
        stride: the stride of the pool that wrote it. With another stride, an offset is another residue class.
        offset: the offset of the server that it is about. The row with ``-offset`` says that this server has retired:
            it has issued nothing above ``number``, and issues no more. A larger mark says that it issues again.
        token: the token of the sequence's present generation. A late write with an earlier token no
            longer counts.
        number: the largest ticket known to have been issued, or the number that the sequence was raised above.
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
    """The statements that create the table of marks and set its comment."""
    _marks.dialect_kwargs.update(dialect.table_options())
    if dialect.sqlalchemy.supports_comments and not dialect.sqlalchemy.inline_comments:
        return [CreateTable(_marks), SetTableComment(_marks)]
    return [CreateTable(_marks)]


def rows_of(
    dialect: TicketDialect, stride: int, sequences: Collection[str]
) -> tuple[Statement, dict[str, int | str]]:
    """Select the rows (sequence, stride, offset, token, number) of one stride, and where larger ones joined.

    Returns:
        The statement and its parameters.
    """
    names = {f"sequence{n}": sequence for n, sequence in enumerate(sequences)}

    def make() -> ClauseElement:
        c = _marks.c
        named = or_(*(c.sequence == bindparam(name, type_=c.sequence.type) for name in names))
        own = bindparam("stride", type_=c.stride.type)
        is_needed = or_(c.stride == own, and_(c.stride > own, c.offset == JOINED))
        return select(c.sequence, c.stride, c.offset, c.token, c.mark).where(named, is_needed)

    return dialect.compiled((rows_of, len(names)), make), {"stride": stride, **names}


def largest_of_other_strides(stride: int, sequence: str) -> ClauseElement:
    """Select the largest mark written with another stride than this; NULL if there is none."""
    c = _marks.c
    of_others = (c.sequence == sequence, c.offset > JOINED, c.stride != stride)
    return select(func.max(c.mark)).where(*of_others)


def smallest_joined(stride: int, sequence: str) -> ClauseElement:
    """Select the number where servers with a larger stride joined; NULL if none has."""
    c = _marks.c
    of_joined = (c.sequence == sequence, c.offset == JOINED, c.stride > stride)
    return select(func.min(c.mark)).where(*of_joined)


def upsert(dialect: TicketDialect, marks: Sequence[Mark]) -> tuple[Statement, dict[str, int | str]]:
    """Insert marks, or raise the ones that exist, never lowering one; returns the statement and its parameters."""
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


def raise_one(dialect: TicketDialect, mark: Mark) -> Statement | None:
    """Raise one mark that is there, never lowering it; answered with the number that is stored then, and 0 for none.

    Returns:
        None where a statement can be answered with rows only.
    """
    where = mark._asdict()
    return dialect.raise_and_show(MARKS, "mark", where.pop("number"), where)


def raise_smaller_strides(stride: int, sequence: str, number: int) -> ClauseElement:
    """Raise the marks of a sequence that were written with a smaller stride than this; never lowers one."""
    c = _marks.c
    lower = (c.sequence == sequence, c.offset > JOINED, c.stride < stride, c.mark < number)
    return update(_marks).where(*lower, c.token != _DROPPED).values(mark=number)


def retirements_ended(stride: int, sequence: str, offsets: Collection[int]) -> ClauseElement:
    """Delete the rows that say that servers with some offsets have retired."""
    c = _marks.c
    of_servers = or_(*(c.offset == -offset for offset in offsets))
    return delete(_marks).where(c.sequence == sequence, c.stride == stride, of_servers)


def deletion(stride: int, sequence: str) -> list[ClauseElement]:
    """Delete the marks of a sequence that a pool of this stride drops.

    Marks of other strides are only set to zero: they show that there were other strides, so that the next table
    refuses clients that still use them.
    """
    c = _marks.c
    of_others = and_(c.sequence == sequence, c.offset > JOINED, c.stride != stride)
    return [
        update(_marks).where(of_others).values(mark=0, token=_DROPPED),
        delete(_marks).where(c.sequence == sequence, not_(of_others)),
    ]
