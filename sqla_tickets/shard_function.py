"""``ShardIdFunction``: Instagram's ids, made by a function in each logical shard's own PostgreSQL.

The time, the shard's number and a sequence modulo what its bits hold, as published in 2011. When a shard makes
more ids in one millisecond than that, numbers repeat, and the primary key refuses them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import BigInteger, Connection, MetaData, Table, event, func, select
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.schema import ExecutableDDLElement
from sqlalchemy.sql.compiler import DDLCompiler, SQLCompiler
from sqlalchemy.sql.functions import FunctionElement

from .bits import INSTAGRAM, BitLayout
from .errors import TicketArgumentError
from .sequence import is_name

__all__ = [
    "CreateShardIdFunction",
    "CreateShardIdSequence",
    "DropShardIdFunction",
    "DropShardIdSequence",
    "ShardIdFunction",
    "declared_functions",
]

INFO: Final = "sqla_tickets_functions"


@dataclass(frozen=True)
class ShardIdFunction:
    """A function that makes the ids of one logical shard: ``server_default=ShardIdFunction("insta5", 5).default``.

    Args:
        name: of the function; its sequence is called so, too, with ``_seq`` behind.
        shard: the number of the logical shard. It stays the same wherever the shard is moved.
        layout: how an id is cut.

    Raises:
        TicketArgumentError: a name that is none, a shard beyond its bits, or a layout that does not have the
            sequence in the lowest bits of a BIGINT.
    """

    name: str
    shard: int
    layout: BitLayout = INSTAGRAM

    def __post_init__(self) -> None:
        if not is_name(self.name) or "'" in self.name or "$" in self.name or "%" in self.name:
            raise TicketArgumentError(f"{self.name!r} is no name of a function")
        if type(self.shard) is not int or not 0 <= self.shard < self.layout.nodes:
            raise TicketArgumentError(
                f"ShardIdFunction({self.name!r}): expected a shard from 0 to {self.layout.nodes - 1}"
                f" ({self.layout.node} bits), found {self.shard!r}"
            )
        if self.layout.node_lowest or self.layout.bits > 64:
            raise TicketArgumentError(
                f"ShardIdFunction({self.name!r}): {self.layout} has no sequence in the lowest bits of a BIGINT"
            )

    @property
    def default(self) -> FunctionElement[int]:
        """What a column takes as its ``server_default``; compiles on PostgreSQL only.

        Raises:
            TicketArgumentError: when a table with it is created in a database without the function.
        """
        if not event.contains(Table, "before_create", _see_that_functions_are_there):
            event.listen(Table, "before_create", _see_that_functions_are_there)
        return _Call(self)

    def attach(self, metadata: MetaData) -> None:
        """Let ``metadata.create_all()`` create it first, on PostgreSQL, and autogenerate know it."""
        declared_functions(metadata)[self.name] = self
        for element in (CreateShardIdSequence(self), CreateShardIdFunction(self)):
            event.listen(metadata, "before_create", element.execute_if(dialect="postgresql"))


def declared_functions(metadata: MetaData) -> dict[str, ShardIdFunction]:
    """The functions that were attached to this MetaData, by their names."""
    functions: dict[str, ShardIdFunction] = metadata.info.setdefault(INFO, {})
    return functions


class _Call(FunctionElement[int]):
    """A call of the function."""

    type = BigInteger()
    inherit_cache = False

    def __init__(self, function: ShardIdFunction) -> None:
        super().__init__()
        self.function = function


def _see_that_functions_are_there(table: Table, connection: object, **kw: Any) -> None:
    """PostgreSQL itself would speak of types that do not match."""
    if not isinstance(connection, Connection) or connection.dialect.name != "postgresql":
        return  # written down only; or refused when the call is compiled
    for column in table.columns:
        call = getattr(column.server_default, "arg", None)
        if not isinstance(call, _Call):
            continue
        function = call.function
        name = connection.dialect.identifier_preparer.quote_identifier(function.name)
        if connection.scalar(select(func.to_regprocedure(f"{name}()"))) is None:
            raise TicketArgumentError(
                f"{table.name}.{column.name} takes its ids from {function}, and {connection.engine.url!r} has"
                f" no function {function.name!r}: create it first, with"
                f" op.create_shard_id_function({function.name!r}, shard={function.shard}), or let"
                " create_all() do it with .attach(metadata)"
            )


class _OfFunction(ExecutableDDLElement):
    def __init__(self, function: ShardIdFunction) -> None:
        self.function = function


class CreateShardIdSequence(_OfFunction):
    """``CREATE SEQUENCE`` for a function."""


class CreateShardIdFunction(_OfFunction):
    """``CREATE OR REPLACE FUNCTION``."""


class DropShardIdSequence(_OfFunction):
    """``DROP SEQUENCE`` of a function."""


class DropShardIdFunction(_OfFunction):
    """``DROP FUNCTION``, which PostgreSQL refuses while a column's default calls it."""


@compiles(_Call)
@compiles(CreateShardIdSequence)
@compiles(CreateShardIdFunction)
@compiles(DropShardIdSequence)
@compiles(DropShardIdFunction)
def _elsewhere(element: object, compiler: SQLCompiler, **kw: Any) -> str:
    raise TicketArgumentError(
        f"{compiler.dialect.name} has no functions of this kind, only PostgreSQL: use SnowflakeSequence(),"
        " which makes ids in the process"
    )


@compiles(_Call, "postgresql")
def _call(element: _Call, compiler: SQLCompiler, **kw: Any) -> str:
    return f"{compiler.preparer.quote_identifier(element.function.name)}()"


@compiles(CreateShardIdSequence, "postgresql")
def _create_sequence(element: CreateShardIdSequence, compiler: DDLCompiler, **kw: Any) -> str:
    return f"CREATE SEQUENCE IF NOT EXISTS {_sequence(element, compiler)}"


@compiles(CreateShardIdFunction, "postgresql")
def _create_function(element: CreateShardIdFunction, compiler: DDLCompiler, **kw: Any) -> str:
    function, layout = element.function, element.function.layout
    # mod() and not its operator, which drivers take for a parameter
    return f"""\
CREATE OR REPLACE FUNCTION {compiler.preparer.quote_identifier(function.name)}() RETURNS bigint
LANGUAGE plpgsql AS $body$
DECLARE
    number bigint := nextval('{_sequence(element, compiler)}');
    tick bigint := div(floor(extract(epoch FROM clock_timestamp()) * 1000)::numeric - {layout.epoch}, {layout.unit});
BEGIN
    RETURN (tick << {layout.node + layout.sequence}) | {function.shard << layout.sequence}::bigint
        | mod(number, {1 << layout.sequence});
END
$body$"""


@compiles(DropShardIdSequence, "postgresql")
def _drop_sequence(element: DropShardIdSequence, compiler: DDLCompiler, **kw: Any) -> str:
    return f"DROP SEQUENCE IF EXISTS {_sequence(element, compiler)}"


@compiles(DropShardIdFunction, "postgresql")
def _drop_function(element: DropShardIdFunction, compiler: DDLCompiler, **kw: Any) -> str:
    name = compiler.preparer.quote_identifier(element.function.name)
    return f"DROP FUNCTION IF EXISTS {name}()"


def _sequence(element: _OfFunction, compiler: DDLCompiler) -> str:
    return compiler.preparer.quote_identifier(f"{element.function.name}_seq")
