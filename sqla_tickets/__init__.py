"""Flickr's ticket servers for SQLAlchemy: integer keys that are unique across all your shards.

A *ticket server* is a database server that issues the ids of a sequence for all shards. Of two ticket servers, one
issues odd numbers and the other even numbers. They need no connection to each other, and either may be down. A column
declares a `TicketSequence`. A `TicketPool` lists the servers and serves a MetaData. Every insert then gets its ids,
*tickets*, with one round trip per sequence::

    from sqlalchemy import BigInteger, create_engine
    from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column
    from sqla_tickets import TicketPool, TicketSequence

    class Base(DeclarativeBase):
        pass

    class Photo(Base):
        __tablename__ = "photos"
        id: Mapped[int] = mapped_column(BigInteger, TicketSequence("photos"), primary_key=True)

    tickets = TicketPool([
        "mysql+pymysql://tickets@ticket1/tickets",
        "mysql+pymysql://tickets@ticket2/tickets",
    ])
    tickets.attach(Base.metadata)
    tickets.create_all(Base.metadata)   # once: a ticket table per sequence on every server

    shard = create_engine("mysql+pymysql://app@shard7/app")
    Base.metadata.create_all(shard)
    with Session(shard) as session:
        session.add_all([Photo(), Photo()])
        session.commit()

No ticket is issued twice. There are gaps, and there is no order across the servers. Every error is a
`TicketError` and says what to do next. The documentation has a tutorial.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from .errors import (
    ClockMovedBack,
    NodeIdsExhausted,
    NoTicketServer,
    PoolNotAttached,
    TicketArgumentError,
    TicketError,
    TicketIntegrityError,
    TicketServerError,
    TicketsExhausted,
    TicketTableError,
    TicketTableMissing,
    TicketTableMoved,
    TicketWarning,
)
from .orm.sequence import TicketSequence

if TYPE_CHECKING:
    from .async_pool import AsyncTicketPool
    from .draw.access import ServerSpec
    from .draw.server import TicketServer
    from .maintenance.status import TableStatus
    from .orm.insert_from_select import insert_from_select
    from .orm.preflush import PreflushDefault, UUIDSequence
    from .pool import TicketPool
    from .snowflake.generator import SnowflakeGenerator
    from .snowflake.instagram import ShardIdFunction
    from .snowflake.layouts import FLAKE, INSTAGRAM, SNOWFLAKE, SONYFLAKE, BitLayout, Decoded
    from .snowflake.leases import NodeLease, NodeLeases
    from .snowflake.sequence import SnowflakeSequence

__all__ = [
    "FLAKE",
    "INSTAGRAM",
    "SNOWFLAKE",
    "SONYFLAKE",
    "AsyncTicketPool",
    "BitLayout",
    "ClockMovedBack",
    "Decoded",
    "NoTicketServer",
    "NodeIdsExhausted",
    "NodeLease",
    "NodeLeases",
    "PoolNotAttached",
    "PreflushDefault",
    "ServerSpec",
    "ShardIdFunction",
    "SnowflakeGenerator",
    "SnowflakeSequence",
    "TableStatus",
    "TicketArgumentError",
    "TicketError",
    "TicketIntegrityError",
    "TicketPool",
    "TicketSequence",
    "TicketServer",
    "TicketServerError",
    "TicketTableError",
    "TicketTableMissing",
    "TicketTableMoved",
    "TicketWarning",
    "TicketsExhausted",
    "UUIDSequence",
    "insert_from_select",
]
__version__ = "0.1.0"

#: What is imported when it is first used, by its module: declaring models needs none of it.
_LAZY = {
    "async_pool": ("AsyncTicketPool",),
    "draw.access": ("ServerSpec",),
    "draw.server": ("TicketServer",),
    "maintenance.status": ("TableStatus",),
    "orm.insert_from_select": ("insert_from_select",),
    "orm.preflush": ("PreflushDefault", "UUIDSequence"),
    "pool": ("TicketPool",),
    "snowflake.generator": ("SnowflakeGenerator",),
    "snowflake.instagram": ("ShardIdFunction",),
    "snowflake.layouts": ("FLAKE", "INSTAGRAM", "SNOWFLAKE", "SONYFLAKE", "BitLayout", "Decoded"),
    "snowflake.leases": ("NodeLease", "NodeLeases"),
    "snowflake.sequence": ("SnowflakeSequence",),
}
_MODULES = {name: module for module, names in _LAZY.items() for name in names}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found: object = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
