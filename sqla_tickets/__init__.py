"""Flickr's ticket servers for SQLAlchemy: integer keys that are unique over all your shards.

A database server can issue the numbers of a sequence for all the others: a *ticket server*. Two of
them, one with the odd numbers and one with the even ones, do it for years without knowing of each
other, and either may be down. This package lets a column declare such a sequence, and gives every
insert its numbers, *tickets*, with one round trip per sequence.

Declaring
---------

A `TicketSequence` stands where a ``Sequence`` would stand. It holds a name, by default that of the
table, and knows no servers::

    from sqlalchemy import BigInteger, String, create_engine
    from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column
    from sqla_tickets import TicketPool, TicketSequence

    class Base(DeclarativeBase):
        pass

    class Photo(Base):
        __tablename__ = "photos"
        id: Mapped[int] = mapped_column(BigInteger, TicketSequence("photos"), primary_key=True)
        title: Mapped[str] = mapped_column(String(100))

``Column(BigInteger, TicketSequence("photos"), primary_key=True)`` is the same in Core. The column never
becomes AUTO_INCREMENT.

Ticket servers
--------------

A `TicketPool` is the list of the servers. The place in the list gives each one its numbers, so never
change the order of a list in use. `TicketPool.attach` lets the pool serve a MetaData::

    tickets = TicketPool([
        "mysql+pymysql://tickets@ticket1/tickets",
        "mysql+pymysql://tickets@ticket2/tickets",
    ])
    tickets.attach(Base.metadata)

Nothing is connected to before the first ticket is needed. The ticket tables, one per sequence on
every server, are created once. Creating them again verifies them::

    tickets.create_all(Base.metadata)

Inserting
---------

From here on there is nothing to do::

    shard = create_engine("mysql+pymysql://app@shard7/app")
    Base.metadata.create_all(shard)
    with Session(shard) as session:
        session.add_all(Photo(title=f"Photo {n}") for n in range(100))
        session.commit()

The flush has drawn once for a hundred photos, and set their ids before anything was inserted: so it is
one INSERT on MySQL, too, and a ``ShardedSession`` can choose shards by the id. Bulk and Core statements draw
when they are executed, once for all their rows. An id that is set by hand stays. Only
``insert().from_select()`` is refused, which has one default for many rows.

Numbers can be drawn for other purposes::

    number = tickets.next_id("photos")
    blocks = tickets.reserve("photos", 1_000_000)   # as ranges: memory does not grow

What to rely on
---------------

No ticket is given twice. There are gaps, where a transaction was rolled back or an answer was lost, and
there is no order over the servers. When a server fails the draw goes to the next one; when none is left it
raises `NoTicketServer`, nothing is inserted, and the session stays usable. Every error is a
`TicketError` and says what to do next.

With ``TicketSequence(block=100)`` a process draws a hundred tickets when it needs one, keeps the rest in
hand, and fetches the next hundred before it needs them; what is left in hand when it ends is a gap.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from .errors import (
    ClockMovedBack,
    NoNodeLeft,
    NoTicketPool,
    NoTicketServer,
    TicketArgumentError,
    TicketError,
    TicketServerError,
    TicketsExhausted,
    TicketTableError,
    TicketTableMissing,
    TicketTableMoved,
    TicketViolation,
    TicketWarning,
)
from .sequence import TicketSequence

if TYPE_CHECKING:
    from .bits import FLAKE, INSTAGRAM, SNOWFLAKE, SONYFLAKE, BitLayout, Decoded
    from .early import EarlyDefault, UUIDSequence
    from .pool import TicketPool
    from .server import TicketServer
    from .shard_function import ShardIdFunction
    from .snowflake import Snowflakes, SnowflakeSequence
    from .status import NodeLease, TicketStatus

__all__ = [
    "FLAKE",
    "INSTAGRAM",
    "SNOWFLAKE",
    "SONYFLAKE",
    "BitLayout",
    "ClockMovedBack",
    "Decoded",
    "EarlyDefault",
    "NoNodeLeft",
    "NoTicketPool",
    "NoTicketServer",
    "NodeLease",
    "ShardIdFunction",
    "SnowflakeSequence",
    "Snowflakes",
    "TicketArgumentError",
    "TicketError",
    "TicketPool",
    "TicketSequence",
    "TicketServer",
    "TicketServerError",
    "TicketStatus",
    "TicketTableError",
    "TicketTableMissing",
    "TicketTableMoved",
    "TicketViolation",
    "TicketWarning",
    "TicketsExhausted",
    "UUIDSequence",
]
__version__ = "0.1.0"

# Whoever only declares models need not wait for these at the start: they are imported when they are asked for.
_LATER = {
    **dict.fromkeys(
        ("FLAKE", "INSTAGRAM", "SNOWFLAKE", "SONYFLAKE", "BitLayout", "Decoded"), "bits"
    ),
    **dict.fromkeys(("EarlyDefault", "UUIDSequence"), "early"),
    "ShardIdFunction": "shard_function",
    **dict.fromkeys(("SnowflakeSequence", "Snowflakes"), "snowflake"),
    **dict.fromkeys(("NodeLease", "TicketStatus"), "status"),
    "TicketPool": "pool",
    "TicketServer": "server",
}


def __getattr__(name: str) -> object:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found: object = getattr(import_module(f"{__name__}.{_LATER[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
