"""Statements as text for a driver's cursor, and what their compilation needs for each dialect."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import BigInteger, ClauseElement, Dialect, String, bindparam
from sqlalchemy.sql.compiler import DDLCompiler, SQLCompiler

__all__ = ["Compiled", "bound", "literal", "quoted"]


class Compiled:
    """A statement as text for a driver's cursor, and its parameters in the driver's own form."""

    def __init__(self, element: ClauseElement, dialect: Dialect) -> None:
        compiled = element.compile(dialect=dialect)
        self.text = str(compiled)
        self._positions: Sequence[str] | None = None
        if isinstance(compiled, SQLCompiler) and compiled.positional:
            self._positions = compiled.positiontup or ()

    def parameters(self, **values: int | str) -> tuple[int | str, ...] | dict[str, int | str]:
        """``values`` as a tuple or a dict; always one of them, as ``%%`` stays doubled without."""
        if self._positions is None:
            return values
        return tuple(values[name] for name in self._positions)

    def alone(self) -> tuple[Any, ...]:
        """What ``cursor.execute()`` takes, the quickest, of a statement without parameters.

        A driver that is handed none at all does not look into the text for their places.
        """
        return (self.text, self.parameters()) if "%" in self.text else (self.text,)


def quoted(compiler: DDLCompiler | SQLCompiler, name: str) -> str:
    """A name in a statement's text: always in quotes."""
    return compiler.preparer.quote_identifier(name)


def literal(compiler: DDLCompiler | SQLCompiler, text: object) -> str:
    """A text in a statement's text."""
    return compiler.sql_compiler.render_literal_value(str(text), String())


def bound(compiler: SQLCompiler, name: str) -> str:
    """The place of a parameter: ``span`` is a number, all others are texts."""
    type_ = BigInteger() if name == "span" else String()
    return str(compiler.process(bindparam(name, type_=type_)))
