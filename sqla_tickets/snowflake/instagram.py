"""``ShardIdFunction``: Instagram's ids, made by a function in each logical shard's own PostgreSQL.

An id has the time, the shard's number, and a sequence number modulo 2 to the power of its bits, as published in 2011.
If a shard makes more ids than that in one millisecond, ids repeat, and the primary key refuses them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import BigInteger, Connection, Dialect, MetaData, Table, event, func, select
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.schema import ExecutableDDLElement
from sqlalchemy.sql.compiler import DDLCompiler, SQLCompiler
from sqlalchemy.sql.functions import FunctionElement

from ..arguments import whole_number
from ..dialects import has_plpgsql
from ..errors import TicketArgumentError
from .layouts import INSTAGRAM, BitLayout

INFO: Final = "sqla_tickets_functions"


@dataclass(frozen=True)
class ShardIdFunction:
    """A function that makes the ids of one logical shard: ``server_default=ShardIdFunction("insta5", 5).default``.

    Args:
        name: the function's name; its sequence has that name followed by ``_seq``.
        shard: the number of the logical shard. It stays the same wherever the shard is moved.
        layout: the layout of the ids.

    Raises:
        TicketArgumentError: the name is invalid, the shard does not fit its bits, or the layout does not have the
            sequence in the lowest bits of a BIGINT.
    """

    name: str
    shard: int
    layout: BitLayout = INSTAGRAM

    def __post_init__(self) -> None:
        if (
            not self.name
            or not self.name.strip()
            or "'" in self.name
            or "$" in self.name
            or "%" in self.name
        ):
            raise TicketArgumentError(f"{self.name!r} is not a valid function name")
        what = f"ShardIdFunction({self.name!r}), {self.layout.node} bits: shard"
        whole_number(what, self.shard, 0, self.layout.nodes - 1)
        if self.layout.node_lowest or self.layout.bits > 64:
            raise TicketArgumentError(
                f"ShardIdFunction({self.name!r}): {self.layout} has no sequence in the lowest bits of a BIGINT"
            )

    @property
    def default(self) -> FunctionElement[int]:
        """The ``server_default`` of a column; compiles on PostgreSQL only.

        Raises:
            TicketArgumentError: a table with it is created in a database without the function.
        """
        if not event.contains(Table, "before_create", _see_that_functions_are_there):
            event.listen(Table, "before_create", _see_that_functions_are_there)
        return _Call(self)

    def attach(self, metadata: MetaData) -> None:
        """Let ``metadata.create_all()`` create the function first, on PostgreSQL, and autogenerate find it."""
        declared_functions(metadata)[self.name] = self
        for element in (CreateShardIdSequence(self), CreateShardIdFunction(self)):
            event.listen(metadata, "before_create", element.execute_if(callable_=_has_functions))


def _has_functions(
    ddl: object,
    target: object,
    bind: object,
    tables: object = None,
    state: object = None,
    *,
    dialect: Dialect,
    **kw: Any,
) -> bool:
    return has_plpgsql(dialect)


def declared_functions(metadata: MetaData) -> dict[str, ShardIdFunction]:
    """The functions that were attached to this MetaData, by their names."""
    functions: dict[str, ShardIdFunction] = metadata.info.setdefault(INFO, {})
    return functions


def is_there(connection: Connection, function: ShardIdFunction) -> bool:
    """Whether a call without a schema finds the function, and not one of another schema or with arguments."""
    name = connection.dialect.identifier_preparer.quote_identifier(function.name)
    return connection.scalar(select(func.to_regprocedure(f"{name}()"))) is not None


class _Call(FunctionElement[int]):
    """A call of the function."""

    type = BigInteger()
    inherit_cache = False

    def __init__(self, function: ShardIdFunction) -> None:
        super().__init__()
        self.function = function


def _see_that_functions_are_there(table: Table, connection: object, **kw: Any) -> None:
    """Refuse a table without its function; PostgreSQL's own error is about types."""
    if not isinstance(connection, Connection) or not has_plpgsql(connection.dialect):
        return  # written down only; or refused when the call is compiled
    for column in table.columns:
        call = getattr(column.server_default, "arg", None)
        if not isinstance(call, _Call):
            continue
        function = call.function
        if not is_there(connection, function):
            raise TicketArgumentError(
                f"{table.name}.{column.name} takes its ids from {function}, but {connection.engine.url!r} has no "
                f"function {function.name!r}: create it first, with"
                f" op.create_shard_id_function({function.name!r}, shard={function.shard}), or let"
                " create_all() do it with .attach(metadata)"
            )


class _OfFunction(ExecutableDDLElement):
    def __init__(self, function: ShardIdFunction) -> None:
        self.function = function

    def text(self, name: str, sequence: str) -> str:
        """The text of the statement, from the quoted names of the function and of its sequence."""
        raise NotImplementedError


class CreateShardIdSequence(_OfFunction):
    """``CREATE SEQUENCE`` for a function."""

    def text(self, name: str, sequence: str) -> str:
        return f"CREATE SEQUENCE IF NOT EXISTS {sequence}"


class CreateShardIdFunction(_OfFunction):
    """``CREATE OR REPLACE FUNCTION``."""

    def text(self, name: str, sequence: str) -> str:
        function, layout = self.function, self.function.layout
        # mod() and not its operator, which drivers take for a parameter
        return f"""\
CREATE OR REPLACE FUNCTION {name}() RETURNS bigint
LANGUAGE plpgsql AS $body$
DECLARE
    number bigint := nextval('{sequence}');
    tick bigint := div(floor(extract(epoch FROM clock_timestamp()) * 1000)::numeric - {layout.epoch}, {layout.unit});
BEGIN
    RETURN (tick << {layout.node + layout.sequence}) | {function.shard << layout.sequence}::bigint
        | mod(number, {1 << layout.sequence});
END
$body$"""


class DropShardIdSequence(_OfFunction):
    """``DROP SEQUENCE`` of a function."""

    def text(self, name: str, sequence: str) -> str:
        return f"DROP SEQUENCE IF EXISTS {sequence}"


class DropShardIdFunction(_OfFunction):
    """``DROP FUNCTION``, which PostgreSQL refuses while a column's default calls it."""

    def text(self, name: str, sequence: str) -> str:
        return f"DROP FUNCTION IF EXISTS {name}()"


@compiles(_Call)
def _write_call(element: _Call, compiler: SQLCompiler, **kw: Any) -> str:
    _refuse_without_plpgsql(compiler.dialect)
    return f"{compiler.preparer.quote_identifier(element.function.name)}()"


@compiles(_OfFunction)
def _write_statement(element: _OfFunction, compiler: DDLCompiler, **kw: Any) -> str:
    _refuse_without_plpgsql(compiler.dialect)
    quote, name = compiler.preparer.quote_identifier, element.function.name
    return element.text(quote(name), quote(f"{name}_seq"))


def _refuse_without_plpgsql(dialect: Dialect) -> None:
    if not has_plpgsql(dialect):
        raise TicketArgumentError(
            f"{dialect.name} cannot have this function, only PostgreSQL can: use SnowflakeSequence(), which makes "
            f"ids in the process"
        )
