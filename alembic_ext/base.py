"""The parts of every operation: a class with its arguments, and a function with its effect."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import KW_ONLY, MISSING, Field, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, ParamSpec, TypeVar, cast

from alembic import op as alembic_op
from alembic.autogenerate.render import renderers
from alembic.operations.base import Operations
from alembic.operations.ops import MigrateOperation

if TYPE_CHECKING:  # Alembic may be in the middle of its own import
    from alembic.autogenerate.api import AutogenContext

Arguments = ParamSpec("Arguments")
Op = TypeVar("Op", bound="TicketOp")
Result = TypeVar("Result")


@dataclass(eq=False)
class TicketOp(MigrateOperation):
    """An operation of this package; its fields are the arguments of the call in a migration file.

    Attributes:
        function: the name of that call; `operation` sets it.
    """

    function: ClassVar[str]

    def to_diff_tuple(self) -> tuple[object, ...]:
        """The tuple that ``alembic check`` shows: the function and its required arguments."""
        return self.function, *(
            getattr(self, field.name) for field in fields(self) if field.default is MISSING
        )


@dataclass(eq=False)
class TicketTableOp(TicketOp):
    """An operation on the ticket table of one sequence.

    Args:
        name: the sequence's name.
        pool: the name of its pool; None for ``"default"``, or the only one.
    """

    name: str
    _: KW_ONLY
    pool: str | None = None


def operation(
    op_class: Callable[Arguments, Op],
) -> Callable[[Callable[[Operations, Op], Result]], Callable[Arguments, Result]]:
    """Register the decorated function as the effect of an operation.

    ``op`` gets a method of the function's name, and `render` writes calls of it.

    Args:
        op_class: the class of the operation, whose docstring the method gets.

    Returns:
        A decorator, which returns a typed function that does the same as the method of ``op``.
    """
    data = cast("type[Op]", op_class)

    def register(effect: Callable[[Operations, Op], Result]) -> Callable[Arguments, Result]:
        data.function = effect.__name__
        Operations.implementation_for(data)(effect)
        renderers.dispatch_for(data)(render)

        def on_operations(cls: type[Op], operations: Operations, *args: Any, **kw: Any) -> Any:
            return operations.invoke(cls(*args, **kw))

        on_operations.__name__, on_operations.__doc__ = data.function, data.__doc__
        setattr(data, data.function, classmethod(on_operations))
        Operations.register_operation(data.function)(data)

        def function(*args: Arguments.args, **kw: Arguments.kwargs) -> Result:
            result: Result = alembic_op.invoke(op_class(*args, **kw))
            return result

        function.__name__ = function.__qualname__ = data.function
        function.__module__, function.__doc__ = effect.__module__, data.__doc__
        returned = inspect.signature(effect).return_annotation
        vars(function)["__signature__"] = inspect.signature(op_class).replace(
            return_annotation=returned
        )
        return function

    return register


def render(context: AutogenContext, op: TicketOp) -> str:
    """An operation as a call in a migration file, without the arguments that have their default."""
    if not _has_typed_op(context):
        context.imports.add("import alembic_ext")  # it makes `op` know the operations
    arguments = [
        f"{field.name}={value!r}" if field.kw_only else repr(value)
        for field in sorted(fields(op), key=_position)
        if field.init and (value := getattr(op, field.name)) != field.default
    ]
    return f"{context.opts['alembic_module_prefix']}{op.function}({', '.join(arguments)})"


def _has_typed_op(context: AutogenContext) -> bool:
    """Whether the template of new migrations imports ``op`` from this package."""
    of_run = context.migration_context.environment_context
    if of_run is None:
        return False
    template = Path(of_run.script.dir, "script.py.mako")
    return template.is_file() and "from alembic_ext import op" in template.read_text("utf-8")


def _position(field: Field[Any]) -> tuple[bool, bool]:
    """Positional arguments come first, and the pool last."""
    return field.kw_only is True, field.name == "pool"
