"""The table of node numbers on one ticket server: one row per number that was ever leased.

Its statements use a connection in autocommit, and each is atomic. Every change of a row raises its ``fence``, and a
row changes its owner only if the fence is still the one that the new owner has read.

A server's own numbers are those of its `Numbering`. Its other rows are records of its peers' numbers: owners store
their horizons there, in case a peer is set back to an older state. Such a row has no owner here. An owner from before
the pool grew notices that when it renews its lease.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from sqlalchemy import (
    BigInteger,
    ClauseElement,
    Column,
    ColumnElement,
    Dialect,
    MetaData,
    String,
    Table,
    and_,
    bindparam,
    case,
    false,
    func,
    insert,
    or_,
    select,
    text,
    update,
)
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.schema import CreateTable, DropTable
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import GenericFunction

from ..arguments import NODES, YEAR_SECONDS
from ..dialects import Statement, TicketDialect, dialect_of
from ..errors import TicketTableError
from ..tables.context import StatementContext

#: What the table is called on every ticket server.
NAME: Final = NODES
#: How far ahead of the clock a horizon can be, in microseconds: the longest lease of any process, and two days for
#: clocks that differ.
MOST_AHEAD: Final = (YEAR_SECONDS + 2 * 86_400) * 1_000_000
#: In microseconds.
DAY: Final = 86_400_000_000

#: Times are microseconds since 1970: ``expires`` by the server's clock, ``horizon`` by the owners'.
#: No id of a number has a time after its ``horizon``.
TABLE = Table(
    NAME,
    MetaData(),
    Column("node", BigInteger, primary_key=True, autoincrement=False),
    Column("owner", String(32), nullable=False),
    Column("holder", String(100), nullable=False),
    Column("fence", BigInteger, nullable=False),
    Column("duration", BigInteger, nullable=False),
    Column("expires", BigInteger, nullable=False),
    Column("horizon", BigInteger, nullable=False),
    comment="node numbers leased by sqla_tickets: never delete a row",
)


class Row(NamedTuple):
    """One node number's row on its server.

    Attributes:
        node: the number.
        owner: the token of the lease; empty when it was given back.
        holder: host and process, for people.
        fence: the number of changes of the row.
        duration: how long the lease lasts, in microseconds.
        expires: when it ends by the server's clock, in microseconds since 1970.
        horizon: the latest time that an id of this number may have, in microseconds since 1970.
        now: the server's clock when the row was read.
    """

    node: int
    owner: str
    holder: str
    fence: int
    duration: int
    expires: int
    horizon: int
    now: int


class Claim(NamedTuple):
    """The values that a process writes into the row of a number when it takes the number.

    Attributes:
        token: the token of the lease, unlike that of any other.
        holder: host and process, for people.
        duration: microseconds.
        horizon: the latest time of an id, in microseconds since 1970.
    """

    token: str
    holder: str
    duration: int
    horizon: int


class Told(NamedTuple):
    """A server's record of a peer's number.

    Attributes:
        horizon: the horizon of the number, in microseconds since 1970; 0 when the server has none.
        now: the server's clock, in microseconds since 1970.
        holder: host and process that wrote it.
    """

    horizon: int
    now: int
    holder: str = ""


class server_clock(GenericFunction[int]):  # noqa: N801  # a function of SQL's
    """The server's clock in microseconds since 1970."""

    type = BigInteger()
    inherit_cache = True


@compiles(server_clock)
def _write_now(element: server_clock, compiler: SQLCompiler, **kw: Any) -> str:
    return dialect_of(compiler.dialect).now


_c = TABLE.c
_number, _limit, _version, _duration, _told, _until = (
    bindparam(name, type_=BigInteger())
    for name in ("number", "limit", "version", "microseconds", "told", "until")
)
_token, _holder = bindparam("token", type_=String()), bindparam("who", type_=String())

# a number below 0 is none: it would spill into the other bits of an id
_IS_OWN = and_(_c.node >= 0, _c.node % bindparam("stride") == bindparam("residue"))
_IS_OWNED = and_(_c.node == _number, or_(_c.owner == _token, _c.owner == bindparam("other")))
_IS_UNCHANGED = and_(_c.node == _number, _c.fence == _version)
_CLAIMED: Final[dict[str, Any]] = {
    "owner": _token,
    "holder": _holder,
    "duration": _duration,
    "expires": server_clock() + _duration,
    "horizon": _until,
}
_NEXT: Final = {"fence": _c.fence + 1}
_ROWS = select(*_c, server_clock()).where(_IS_OWN)
_RELEASED = (
    _ROWS.where(_c.node < _limit, _c.owner == "", _c.horizon < _until)
    .order_by(_c.horizon)
    .limit(20)
)
_ABANDONED = (
    _ROWS.where(_c.node < _limit, _c.owner != "", _c.expires < server_clock())
    .order_by(_c.expires)
    .limit(1000)
)
_ALL = _ROWS.order_by(_c.node)
_HIGHEST = select(func.max(_c.node)).where(_c.node < _limit, _IS_OWN)
_OWNER = select(_c.owner).where(_c.node == _number)
_KNOWN = select(_c.horizon, server_clock(), _c.holder).where(_c.node == _number)
_LATER = {"horizon": case((_c.horizon < _until, _until), else_=_c.horizon)}
_CLAIM = update(TABLE).where(_IS_UNCHANGED, _c.owner == "").values(_CLAIMED | _NEXT)
_CLAIM_NEW = insert(TABLE).values(_CLAIMED | {"node": _number, "fence": 1})
_RENEW = update(TABLE).where(_IS_OWNED, _IS_OWN).values(_CLAIMED | _NEXT | _LATER)
_RELEASE = update(TABLE).where(_IS_OWNED).values(_NEXT | {"owner": "", "horizon": _until})
_FREE = update(TABLE).where(_IS_UNCHANGED).values(_NEXT | {"owner": ""})
_TAKE_BACK = update(TABLE).where(_c.node == _number, _c.horizon == _told).values(horizon=_until)
_RECORD = _TAKE_BACK.values(_NEXT | {"owner": "", "holder": _holder, "duration": _duration})
_RECORD_NEW = insert(TABLE).values(_CLAIMED | {"node": _number, "owner": "", "fence": 0})


def _kept(context: StatementContext, element: ClauseElement) -> Statement:
    """An element of this module, compiled once for each dialect."""
    return context.dialect.compiled(element, lambda: element)


def _rows(context: StatementContext, element: ClauseElement, **values: int) -> list[Row]:
    rows = context.rows(_kept(context, element), **_own(context), **values)
    return [
        Row(int(node), str(owner), str(holder), *map(int, numbers))
        for node, owner, holder, *numbers in rows
    ]


def _own(context: StatementContext) -> dict[str, int]:
    return {"stride": context.stride, "residue": context.offset % context.stride}


def _of(claim: Claim) -> dict[str, int | str]:
    token, holder, duration, horizon = claim
    return {"token": token, "who": holder, "microseconds": duration, "until": horizon}


def create(context: StatementContext) -> None:
    """Create the table unless it exists.

    Raises:
        TicketTableError: another table has its name.
    """
    context.send(_creation(context.dialect))
    context.send(select(text("*")).select_from(TABLE).where(false()))
    found = {str(column[0]).lower() for column in context.cursor.description or ()}
    context.cursor.fetchall()
    if not found.issuperset(TABLE.c.keys()):
        raise TicketTableError(
            f"the table {NAME!r} on {context.server} has no node numbers: expected the columns"
            f" {TABLE.c.keys()}, found {sorted(found)}. Rename the sequence or the application's table of that name, "
            f"then create the table of node numbers"
        )


def creation(dialect: Dialect) -> str:
    """The statement of `create`, for a script."""
    return str(_creation(dialect_of(dialect)).compile(dialect=dialect)).strip()


def _creation(dialect: TicketDialect) -> CreateTable:
    TABLE.dialect_kwargs.update(dialect.table_options())
    return CreateTable(TABLE, if_not_exists=True)


def drop(context: StatementContext) -> None:
    """Drop the table if it exists."""
    context.send(DropTable(TABLE, if_exists=True))


def released(context: StatementContext, limit: int, wall: int) -> list[Row]:
    """Select up to 20 numbers below ``limit`` that were given back, with all ids in the past."""
    return _rows(context, _RELEASED, limit=limit, until=wall)


def abandoned(context: StatementContext, limit: int) -> list[Row]:
    """Select numbers below ``limit`` that were not given back, with leases ended by the server's clock."""
    return _rows(context, _ABANDONED, limit=limit)


def all_rows(context: StatementContext) -> list[Row]:
    """Select this server's numbers that were ever leased."""
    return _rows(context, _ALL)


def highest(context: StatementContext, limit: int) -> int | None:
    """Select the highest number below ``limit`` that was ever leased here."""
    ((node,),) = context.rows(_kept(context, _HIGHEST), limit=limit, **_own(context))
    return None if node is None else int(node)


def claim(context: StatementContext, row: Row, claim: Claim) -> bool:
    """Take a number that was given back; False if another process was quicker. Never lowers the horizon."""
    claim = claim._replace(horizon=max(row.horizon, claim.horizon))
    values = _of(claim) | {"number": row.node, "version": row.fence}
    return context.send(_kept(context, _CLAIM), **values) == 1


def claim_new(context: StatementContext, node: int, claim: Claim) -> bool:
    """Take a number that had no owner; False if another process was quicker."""
    try:
        context.send(_kept(context, _CLAIM_NEW), number=node, **_of(claim))
    except Exception:
        rows = context.rows(_kept(context, _OWNER), number=node)
        if not rows:
            raise
        return str(rows[0][0]) == claim.token
    return True


def renew(context: StatementContext, node: int, token: str, claim: Claim) -> bool:
    """Renew a lease with the claim's token; False if the lease or the server has lost the number. Never lowers the horizon.

    An earlier renewal whose answer was lost may already have written the claim's token.
    """
    values = _of(claim) | {"number": node, "other": token} | _own(context)
    return context.send(_kept(context, _RENEW), **values) == 1


def release(context: StatementContext, node: int, tokens: tuple[str, str], used: int) -> None:
    """Give a number back, with the latest time of its ids."""
    token, other = tokens
    context.send(_kept(context, _RELEASE), number=node, token=token, other=other, until=used)


def free(context: StatementContext, row: Row) -> bool:
    """Free an abandoned number; False if its owner is back. Its horizon stays."""
    return context.send(_kept(context, _FREE), number=row.node, version=row.fence) == 1


def far_horizons(context: StatementContext) -> tuple[int, int]:
    """The number of horizons that cannot be true by this server's clock, and the latest of them."""
    return _horizons(context, _c.horizon > server_clock() + MOST_AHEAD)


def late_horizons(context: StatementContext) -> tuple[int, int]:
    """The number of horizons two days ahead and more in rows of leases of a day at most, and the latest of them.

    They can be true: a clock may have been ahead.
    """
    is_late = _c.horizon.between(server_clock() + 2 * DAY, server_clock() + MOST_AHEAD)
    return _horizons(context, and_(is_late, _c.duration.between(1, DAY)))


def _horizons(context: StatementContext, which: ColumnElement[bool]) -> tuple[int, int]:
    ((count, latest),) = context.rows(select(func.count(), func.max(_c.horizon)).where(which))
    return int(count), int(latest or 0)


def known_horizon(context: StatementContext, node: int) -> Told:
    """This server's record of a peer's number."""
    rows = context.rows(_kept(context, _KNOWN), number=node)
    if not rows:
        return Told(0, 0)
    horizon, now, holder = rows[0]
    return Told(int(horizon), int(now), str(holder))


def record_owner(context: StatementContext, node: int, since: int, claim: Claim) -> Told:
    """Record on this server that a peer's number has a new owner, whose ids are all after ``since``.

    Returns:
        The earlier record. If its horizon is after ``since``, nothing is written: the number's server has forgotten
        an owner.
    """
    while True:
        known = known_horizon(context, node)
        if (known.horizon, known.holder) == (claim.horizon, claim.holder):
            # told before, over a connection that was lost then: what it knew was not after ``since``
            return known._replace(horizon=since)
        if known.horizon > since or _record(context, node, known.horizon, claim):
            return known


def record_horizon(context: StatementContext, node: int, claim: Claim) -> None:
    """Record the horizon of a peer's number on this server, in case the peer is set back; never lowers it."""
    while True:
        known = known_horizon(context, node).horizon
        if known >= claim.horizon or _record(context, node, known, claim):
            return


def _record(context: StatementContext, node: int, known: int, claim: Claim) -> bool:
    """Replace this server's record of a horizon; False if another process has changed it."""
    values = _of(claim) | {"number": node}
    if context.send(_kept(context, _RECORD), told=known, **values) == 1:
        return True
    if known:
        return False
    try:
        context.send(_kept(context, _RECORD_NEW), **values)
    except Exception:
        if known_horizon(context, node).horizon:
            return False
        raise
    return True


def take_back(context: StatementContext, node: int, told: int, used: int) -> bool:
    """Lower a recorded horizon after its number was given back early; False if the record has changed."""
    return context.send(_kept(context, _TAKE_BACK), number=node, told=told, until=used) == 1
