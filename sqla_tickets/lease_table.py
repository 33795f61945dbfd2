"""The table of node numbers on one ticket server: one row per number that was ever leased.

Plain statements over a cursor in autocommit, each atomic by itself. A row changes hands only while its
``fence``, which every change raises, is what the taker has seen.

A server's own numbers are those of its residue. The rows of all others are what its peers' owners have told
it: their horizon, for the case that a peer is set back to an older state. A row that is told of has no owner
here: one that it had was of a pool with other servers, and finds out when it renews its lease.
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
    case,
    func,
    insert,
    or_,
    select,
    update,
)
from sqlalchemy.engine.interfaces import DBAPICursor
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.schema import CreateTable, DropTable
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import GenericFunction

from .place import Place

__all__ = [
    "NAME",
    "Claim",
    "Row",
    "abandoned",
    "all_rows",
    "claim",
    "claim_new",
    "create",
    "creation",
    "drop",
    "free",
    "highest",
    "known_horizon",
    "release",
    "released",
    "renew",
    "take_back",
    "tell_horizon",
    "tell_owner",
]

#: What the table is called on every ticket server.
NAME: Final = "ticket_nodes"

#: Times are microseconds since 1970: ``expires`` by the server's clock, ``horizon`` by the owners'.
#: No id of a number has a time after its ``horizon``.
_nodes = Table(
    NAME,
    MetaData(),
    Column("node", BigInteger, primary_key=True, autoincrement=False),
    Column("owner", String(32), nullable=False),
    Column("holder", String(100), nullable=False),
    Column("fence", BigInteger, nullable=False),
    Column("lasts", BigInteger, nullable=False),
    Column("expires", BigInteger, nullable=False),
    Column("horizon", BigInteger, nullable=False),
    comment="node numbers leased by sqla_tickets: never delete a row",
)


class Row(NamedTuple):
    """One number as its server has it.

    Attributes:
        node: the number.
        owner: the token of the lease; empty when it was given back.
        holder: host and process, for people.
        fence: how often the row was changed.
        lasts: microseconds that the lease is given for.
        expires: when it ends by the server's clock, in microseconds since 1970.
        horizon: the latest time that an id of this number may have, in microseconds since 1970.
        now: the server's clock when the row was read.
    """

    node: int
    owner: str
    holder: str
    fence: int
    lasts: int
    expires: int
    horizon: int
    now: int


class Claim(NamedTuple):
    """What a process writes into the row of a number that it takes.

    Attributes:
        token: of the lease, unlike that of any other.
        holder: host and process, for people.
        lasts: microseconds.
        horizon: no id will have a later time.
    """

    token: str
    holder: str
    lasts: int
    horizon: int


class _now(GenericFunction[int]):  # noqa: N801  # a function of SQL's
    """The server's clock in microseconds since 1970."""

    type = BigInteger()
    inherit_cache = True


@compiles(_now, "mysql")
@compiles(_now, "mariadb")
def _now_of_mysql(element: _now, compiler: SQLCompiler, **kw: Any) -> str:
    return "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))"


@compiles(_now, "postgresql")
def _now_of_postgresql(element: _now, compiler: SQLCompiler, **kw: Any) -> str:
    return "CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000000 AS BIGINT)"


@compiles(_now, "sqlite")
def _now_of_sqlite(element: _now, compiler: SQLCompiler, **kw: Any) -> str:
    return "CAST((julianday('now') - 2440587.5) * 86400000000 AS INTEGER)"


def _send(cursor: DBAPICursor, place: Place, statement: ClauseElement) -> int:
    compiled = statement.compile(dialect=place.dialect)
    parameters: Any = {}
    if isinstance(compiled, SQLCompiler):
        values = compiled.construct_params()
        positions = compiled.positiontup or () if compiled.positional else None
        parameters = values if positions is None else tuple(values[name] for name in positions)
    cursor.execute(str(compiled), parameters or ())
    return cursor.rowcount


def _rows(cursor: DBAPICursor, place: Place, *where: ColumnElement[bool], by: Any) -> list[Row]:
    c = _nodes.c
    columns = (c.node, c.owner, c.holder, c.fence, c.lasts, c.expires, c.horizon, _now())
    _send(cursor, place, select(*columns).where(*where).order_by(by).limit(1000))
    return [
        Row(int(node), str(owner), str(holder), *map(int, numbers))
        for node, owner, holder, *numbers in cursor.fetchall()
    ]


def _is_own(place: Place) -> ColumnElement[bool]:
    return _nodes.c.node % place.stride == place.offset % place.stride


def create(cursor: DBAPICursor, place: Place) -> None:
    """Create the table, unless it is there."""
    if place.dialect.name in ("mysql", "mariadb"):  # said above, it would import their dialects
        _nodes.dialect_kwargs[f"{place.dialect.name}_engine"] = "InnoDB"
    _send(cursor, place, CreateTable(_nodes, if_not_exists=True))


def creation(dialect: Dialect) -> str:
    """What `create` sends."""
    return str(CreateTable(_nodes, if_not_exists=True).compile(dialect=dialect)).strip()


def drop(cursor: DBAPICursor, place: Place) -> None:
    """Drop the table, if it is there."""
    _send(cursor, place, DropTable(_nodes, if_exists=True))


def released(cursor: DBAPICursor, place: Place, limit: int, wall: int) -> list[Row]:
    """Numbers below ``limit`` that were given back, and whose ids are all of the past."""
    c = _nodes.c
    where = (c.node < limit, _is_own(place), c.owner == "", c.horizon < wall)
    return _rows(cursor, place, *where, by=c.horizon)[:20]


def abandoned(cursor: DBAPICursor, place: Place, limit: int) -> list[Row]:
    """Numbers below ``limit`` whose lease has ended by the server's clock, and was not given back."""
    c = _nodes.c
    where = (c.node < limit, _is_own(place), c.owner != "", c.expires < _now())
    return _rows(cursor, place, *where, by=c.expires)


def all_rows(cursor: DBAPICursor, place: Place) -> list[Row]:
    """Every number of this server that was ever leased, up to a thousand."""
    return _rows(cursor, place, _is_own(place), by=_nodes.c.node)


def highest(cursor: DBAPICursor, place: Place, limit: int) -> int | None:
    """The highest number below ``limit`` that was ever leased here."""
    own = select(func.max(_nodes.c.node)).where(_nodes.c.node < limit, _is_own(place))
    _send(cursor, place, own)
    ((node,),) = cursor.fetchall()
    return None if node is None else int(node)


def claim(cursor: DBAPICursor, place: Place, row: Row, claim: Claim) -> bool:
    """Take a number that was given back; False when another process was quicker. Never lowers the horizon."""
    c = _nodes.c
    statement = update(_nodes).where(c.node == row.node, c.fence == row.fence, c.owner == "")
    values = _claimed(claim) | {"horizon": max(row.horizon, claim.horizon)}
    return _send(cursor, place, statement.values(fence=row.fence + 1, **values)) == 1


def claim_new(cursor: DBAPICursor, place: Place, node: int, claim: Claim) -> bool:
    """Take a number that nobody has had; False when another process was quicker."""
    try:
        _send(cursor, place, insert(_nodes).values(node=node, fence=1, **_claimed(claim)))
    except Exception:
        _send(cursor, place, select(_nodes.c.owner).where(_nodes.c.node == node))
        rows = cursor.fetchall()
        if not rows:
            raise
        return str(rows[0][0]) == claim.token
    return True


def _claimed(claim: Claim) -> dict[str, Any]:
    return {
        "owner": claim.token,
        "holder": claim.holder,
        "lasts": claim.lasts,
        "expires": _now() + claim.lasts,
        "horizon": claim.horizon,
    }


def renew(cursor: DBAPICursor, place: Place, node: int, token: str, claim: Claim) -> bool:
    """Keep a number under the claim's token; False when it is not this lease's any more. Never lowers the horizon.

    A renewal whose answer was lost may have put the claim's token there already.
    """
    c = _nodes.c
    statement = update(_nodes).where(_is_owned(node, token, claim.token))
    horizon = case((c.horizon < claim.horizon, claim.horizon), else_=c.horizon)
    values = _claimed(claim) | {"horizon": horizon}
    return _send(cursor, place, statement.values(fence=c.fence + 1, **values)) == 1


def release(
    cursor: DBAPICursor, place: Place, node: int, tokens: tuple[str, str], used: int
) -> None:
    """Give a number back, with the latest time that an id of it has."""
    statement = update(_nodes).where(_is_owned(node, *tokens))
    _send(cursor, place, statement.values(fence=_nodes.c.fence + 1, owner="", horizon=used))


def _is_owned(node: int, token: str, other: str) -> ColumnElement[bool]:
    c = _nodes.c
    return and_(c.node == node, or_(c.owner == token, c.owner == other))


def free(cursor: DBAPICursor, place: Place, row: Row) -> bool:
    """Let others take an abandoned number; False when its owner is back. Its horizon stays."""
    c = _nodes.c
    statement = update(_nodes).where(c.node == row.node, c.fence == row.fence)
    return _send(cursor, place, statement.values(fence=row.fence + 1, owner="")) == 1


def known_horizon(cursor: DBAPICursor, place: Place, node: int) -> int:
    """What this server was told of a peer's number: its horizon; 0 when nothing."""
    _send(cursor, place, select(_nodes.c.horizon).where(_nodes.c.node == node))
    rows = cursor.fetchall()
    return int(rows[0][0]) if rows else 0


def tell_owner(cursor: DBAPICursor, place: Place, node: int, since: int, claim: Claim) -> int:
    """Let this server know that a peer's number has a new owner, whose ids are all after ``since``.

    Returns:
        The horizon that it knew before. When that is after ``since``, nothing was told: the number's server has
        forgotten an owner.
    """
    while True:
        known = known_horizon(cursor, place, node)
        if known > since or _tell(cursor, place, node, known, claim):
            return known


def tell_horizon(cursor: DBAPICursor, place: Place, node: int, claim: Claim) -> None:
    """Let this server know the horizon of a peer's number, for the peer's bad days; never lowers it."""
    while True:
        known = known_horizon(cursor, place, node)
        if known >= claim.horizon or _tell(cursor, place, node, known, claim):
            return


def _tell(cursor: DBAPICursor, place: Place, node: int, known: int, claim: Claim) -> bool:
    """Replace the horizon that this server knows; False when it is another one meanwhile."""
    c = _nodes.c
    values = {"owner": "", "holder": claim.holder, "horizon": claim.horizon}
    statement = update(_nodes).where(c.node == node, c.horizon == known)
    if _send(cursor, place, statement.values(fence=c.fence + 1, **values)) == 1:
        return True
    if known:
        return False
    try:
        _send(cursor, place, insert(_nodes).values(node=node, **_claimed(claim) | values, fence=0))
    except Exception:
        if known_horizon(cursor, place, node):
            return False
        raise
    return True


def take_back(cursor: DBAPICursor, place: Place, node: int, told: int, used: int) -> None:
    """Replace a horizon that this server was told, when the number was given back below it."""
    c = _nodes.c
    _send(
        cursor, place, update(_nodes).where(c.node == node, c.horizon == told).values(horizon=used)
    )
